# SPDX-License-Identifier: Apache-2.0
"""Unwind rows of what compilers, the assembler and the linker make of known sources."""

import os
import re
import struct
import subprocess
import time
from pathlib import Path

import pytest

from pyprof._native.cfi import SIGNED, UnwindRows
from pyprof.elf.file import EM_X86_64, ElfFile
from pyprof.elf.identity import read_vdso
from pyprof.unwind.rows import read_rows
from tests.support.compile import compile_source, nm_symbols, run
from tests.support.readelf_frames import differences, our_steps, readelf_steps
from tests.support.unwind_files import SHARED, checked_rows, file_rows, texts

FUNCTION = """
\t.text
\t.globl {name}
\t.type {name}, @function
{name}:
\t.cfi_startproc
{body}
\t.cfi_endproc
\t.size {name}, . - {name}
"""


def assemble(folder: Path, *functions: tuple[str, str]) -> Path:
    """A shared object of functions (name, body)."""
    source = "".join(FUNCTION.format(name=name, body=body) for name, body in functions)
    return compile_source(folder, "asm.S", source, *SHARED, output="asm.so")


def test_return_address_in_a_register(tmp_path: Path) -> None:
    body = "pop %rdi\n.cfi_adjust_cfa_offset -8\n.cfi_register %rip, %rdi\n nop\n push %rdi\n"
    path = assemble(tmp_path, ("f", body + ".cfi_adjust_cfa_offset 8\n.cfi_restore %rip\n ret"))
    start = nm_symbols(path)["f"]
    # pop, nop and push have one byte each.
    assert texts(checked_rows(path), start, start + 4) == [
        (0, "rsp+8 u c-8"), (1, "rsp+0 u rdi"), (3, "rsp+8 u c-8"),
    ]  # fmt: skip


def test_vfork_of_libc_keeps_its_return_address_in_rdi() -> None:
    libc = "/usr/lib/x86_64-linux-gnu/libc.so.6"
    start = next(value for name, value in nm_symbols(libc, "-D").items() if name.startswith("vfork@"))
    found = file_rows(libc)
    assert found is not None
    rows = [text for _, text in texts(found, start, start + 64)]
    assert rows[:2] == ["rsp+8 u c-8", "rsp+0 u rdi"]


def test_two_epilogues_and_nested_states(tmp_path: Path) -> None:
    epilogue = ".cfi_remember_state\n pop %rbx\n.cfi_adjust_cfa_offset -8\n ret\n.cfi_restore_state\n"
    push = "push %rbx\n.cfi_adjust_cfa_offset 8\n"
    nested = push + ".cfi_remember_state\n" + push + epilogue + " pop %rbx\n.cfi_restore_state\n pop %rbx\n"
    path = assemble(
        tmp_path,
        ("two", push + epilogue + " nop\n pop %rbx\n.cfi_adjust_cfa_offset -8\n ret"),
        ("nested", nested + ".cfi_adjust_cfa_offset -8\n ret"),
    )
    found = checked_rows(path)
    start = nm_symbols(path)["two"]
    # push, pop, ret, nop, pop, ret: one byte each
    assert [text.split()[0] for _, text in texts(found, start, start + 6)] == [
        "rsp+8", "rsp+16", "rsp+8", "rsp+16", "rsp+8",
    ]  # fmt: skip
    start = nm_symbols(path)["nested"]
    # push, push, pop, ret, pop, pop, ret
    assert [(at, text.split()[0]) for at, text in texts(found, start, start + 7)] == [
        (0, "rsp+8"), (1, "rsp+16"), (2, "rsp+24"), (3, "rsp+16"), (4, "rsp+24"), (5, "rsp+16"), (6, "rsp+8"),
    ]  # fmt: skip


@pytest.mark.parametrize("flags", [("-z,lazy",), ("-z,lazy", "-z,ibtplt")])
def test_procedure_linkage_table_tells_before_from_behind_its_push(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    source = "int far(int); int near(int x) { return far(x) + far(x + 1); }\n"
    path = compile_source(
        tmp_path,
        "plt.c",
        source,
        *SHARED,
        *(f"-Wl,{flag}" for flag in flags),
        "-fcf-protection",
        output="plt.so",
    )
    found = checked_rows(path)
    rules = [found.rows.rule(number) for number in range(found.rows.rule_count)]
    plt = next(rule for rule in rules if rule[0] == "PLT")
    disassembly = run("objdump", "-d", "-j", ".plt", "--no-show-raw-insn", str(path))
    instructions = [
        (int(address, 16), text) for address, text in re.findall(r"^ +([0-9a-f]+):\t(.*)$", disassembly, re.M)
    ]
    # Behind the header of 16 bytes comes the first entry.
    first = instructions[0][0] + 16
    push = next(i for i, (address, text) in enumerate(instructions) if address >= first and "push" in text)
    behind = instructions[push + 1][0]
    for pc in range(first, first + 16):
        row = found.rows.rule(found.rows.numbers[found.rows.find(pc)])
        assert row == plt
        size = row[5] + (8 if pc & 15 >= row[7] else 0)
        assert size == (16 if pc >= behind else 8)


def test_frames_of_64_kib_and_more(tmp_path: Path) -> None:
    source = "void fill(char *); void work(void) { char out[SIZE]; fill(out); }\n"
    for size in (65536, 1 << 20, 1 << 30):
        for level in ("-O0", "-O2"):
            path = compile_source(
                tmp_path, "big.c", source, f"-DSIZE={size}", level, *SHARED, output="big.so"
            )
            found = checked_rows(path)
            assert found.rows.unsupported == {}
            largest = max(found.rows.rule(number)[5] for number in range(found.rows.rule_count))
            # At -O0 the frame pointer is the base.
            assert largest > size if level == "-O2" else largest < 64


def test_realigned_frame_with_variable_arguments(tmp_path: Path) -> None:
    source = """
    #include <stdarg.h>
    void use(void *, void *);
    void work(int n, ...) {
        va_list args; va_start(args, n);
        char out[n]; _Alignas(64) char in[64];
        use(out, in); va_end(args);
    }
    """
    path = compile_source(tmp_path, "drap.c", source, "-O2", *SHARED, output="drap.so")
    found = checked_rows(path)
    rules = [found.rows.rule(number) for number in range(found.rows.rule_count)]
    # The caller's stack pointer is in r10 first, then saved in the frame; rbp is where it points.
    assert any(rule[0] == "REGISTER" and rule[4] == 10 for rule in rules)
    assert any(rule[0] == "AT_FP" and rule[1] == "AT_FP" and rule[6] == 0 for rule in rules)


def test_end_of_the_stack_is_marked_in_start_up_code(tmp_path: Path) -> None:
    path = compile_source(tmp_path, "main.c", "int main(void) { return 0; }\n")
    found = checked_rows(path)
    rule = found.rows.rule(found.rows.numbers[found.rows.find(nm_symbols(path)["_start"])])
    assert rule[2] == "UNDEFINED"


def test_signal_trampoline_of_libc() -> None:
    libc = "/usr/lib/x86_64-linux-gnu/libc.so.6"
    found = file_rows(libc)
    assert found is not None
    # struct rt_sigframe behind its return address: uc_flags, uc_link, uc_stack (24), then gregs from r8 on;
    # rbp is 10, rsp 15, rip 16 (sys/ucontext.h).
    gregs = 8 + 8 + 24
    expected = ("CONTEXT", "AT_SP", "AT_SP", 1, 0, gregs + 15 * 8, gregs + 10 * 8, gregs + 16 * 8)
    assert expected in [found.rows.rule(number) for number in range(found.rows.rule_count)]


def test_hundred_thousand_functions_take_little_time(tmp_path: Path) -> None:
    source = "\t.text\n\t.rept 100000\n\t.cfi_startproc\n" + 6 * "\tpush %rbx\n\t.cfi_adjust_cfa_offset 8\n"
    source += 6 * "\tpop %rbx\n\t.cfi_adjust_cfa_offset -8\n" + "\tret\n\t.cfi_endproc\n\t.endr\n"
    path = compile_source(tmp_path, "many.S", source, *SHARED, output="many.so")
    started = time.thread_time()
    found = file_rows(path)
    assert time.thread_time() - started < 1.0
    assert found is not None
    assert found.rows.fde_count >= 100000
    # Each function has 13 rows, of which the last is the next one's first.
    assert len(found.rows) == pytest.approx(1_200_001, abs=16)


def test_vdso_has_the_rows_that_readelf_gives(tmp_path: Path) -> None:
    image = read_vdso()
    if image is None:
        pytest.skip("this kernel maps no vDSO")
    path = tmp_path / "vdso.so"
    path.write_bytes(image)
    found = read_rows(ElfFile.from_bytes(image, "vdso"), [])
    assert found is not None
    steps = readelf_steps(path)
    assert len(steps) > 10
    assert differences(steps, our_steps(found.rows, EM_X86_64)) == []


def test_debug_frame_of_a_go_program_is_decoded_right(tmp_path: Path) -> None:
    (tmp_path / "main.go").write_text('package main\n\nfunc main() { println("hi") }\n')
    path = tmp_path / "hello"
    environment = {**os.environ, "GOCACHE": str(tmp_path / "cache"), "CGO_ENABLED": "0"}
    subprocess.run(
        ["go", "build", "-o", str(path), str(tmp_path / "main.go")], env=environment, check=True, timeout=110
    )
    raw = tmp_path / "frames"
    run("objcopy", "-O", "binary", "-j", ".debug_frame", "--set-section-flags", ".debug_frame=alloc",
        "--decompress-debug-sections", str(path), str(raw))  # fmt: skip
    rows = UnwindRows(raw.read_bytes(), 0, EM_X86_64, debug_frame=True)
    steps = readelf_steps(path, section=".debug_frame")
    assert len(steps) > 1000
    assert differences(steps, our_steps(rows, EM_X86_64)) == []


# arm64, by a cross compiler; readelf reads any machine

TEXT, EH_FRAME = 0x400000, 0x800000


def link_eh_frame(path: Path) -> bytes:
    """.eh_frame of an object file, relocated as if .text were at TEXT and itself at EH_FRAME."""
    raw = path.with_suffix(".eh_frame")
    run("objcopy", "-O", "binary", "-I", "elf64-little", "-j", ".eh_frame", str(path), str(raw))
    data = bytearray(raw.read_bytes())
    for line in run("readelf", "-rW", str(path)).splitlines():
        # 000000000000001c  0000000200000105 R_AARCH64_PREL32  0000000000000000 .text + 0
        if match := re.match(r"([0-9a-f]+) .* R_AARCH64_PREL32 +[0-9a-f]+ \.text \+ ([0-9a-f]+)$", line):
            at, target = int(match[1], 16), TEXT + int(match[2], 16)
            struct.pack_into("<i", data, at, target - EH_FRAME - at)
    return bytes(data)


@pytest.mark.parametrize(
    "flags", [("-O0",), ("-O2",), ("-O2", "-mbranch-protection=pac-ret"), ("-O2", "-fno-omit-frame-pointer")]
)
def test_arm64_functions_have_the_rows_that_readelf_gives(tmp_path: Path, flags: tuple[str, ...]) -> None:
    source = """
    __asm__(".text\\n nop"); /* nothing at address 0 */
    extern int far(char *, double); extern double farther(int);
    int leaf(int x) { return x * 3; }
    int small(int x) { char a[40]; double d = farther(x); return far(a, d * x) + x; }
    int big(int x) { char a[70000]; return far(a, farther(x) + farther(x + 1)) ? far(a, 1) : x; }
    int varying(int n) { char a[n]; return far(a, n) + far(a, 2); }
    int early(int x) { if (x > 3) return leaf(x); char a[9]; if (far(a, x)) return 1; return far(a, 1) + 2; }
    """
    (tmp_path / "arm.c").write_text(source)
    path = tmp_path / "arm.o"
    run(
        "clang-19", "--target=aarch64-linux-gnu", "-c", "-ffreestanding", "-fasynchronous-unwind-tables",
        *flags, str(tmp_path / "arm.c"), "-o", str(path),
    )  # fmt: skip
    rows = UnwindRows(link_eh_frame(path), EH_FRAME, 183)
    assert rows.fde_count == 5
    assert (rows.skipped, rows.unsupported) == ({}, {})
    # readelf shows an unmentioned return address as undefined: it is in the link register.
    ours = [
        step if step.key is None or step.key[2] != "x30" else step._replace(key=(*step.key[:2], "u"))
        for step in our_steps(rows, 183)
    ]
    theirs = [step._replace(addr=step.addr + TEXT) for step in readelf_steps(path, fp="x29")]
    assert len(theirs) > 10
    assert differences(theirs, ours) == []
    signed = [rows.rule(number)[3] & SIGNED for number in rows.numbers]
    assert any(signed) == ("-mbranch-protection=pac-ret" in flags)
