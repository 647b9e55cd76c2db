# SPDX-License-Identifier: Apache-2.0
"""Rows of Go programs against what Go's linker wrote into .debug_frame, and against their machine code."""

import bisect
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyprof._native.cfi import UnwindRows
from pyprof.elf.file import EM_X86_64, ElfFile, open_regular
from pyprof.elf.identity import identity_of
from pyprof.unwind.cache import RowCache, cache_key
from pyprof.unwind.rows import FileRows, Notation, read_rows
from tests.support.gobinaries import MODULE, PLAIN, go
from tests.support.readelf_frames import readelf_steps
from tests.support.unwind_rows import EM_AARCH64

SERVER = """package main

import (
	"crypto/sha256"
	"fmt"
	"net/http"
)

func main() { fmt.Println(http.ListenAndServe("127.0.0.1:0", nil), sha256.Sum256(nil)) }
"""

# These end a stack, or set the stack pointer: .debug_frame says of them what is not so.
SPECIAL = re.compile(
    r"_rt0_\w+|gogo|time\.now|runtime\.(rt0_go|mstart|mcall|systemstack|switchToCrashStack0|morestack(_noctxt)?|asmcgocall"
    r"|goexit|nanotime1|walltime|callCgo\w+|sigfwd|sigtramp|sigreturn__sigaction|clone|vgetrandom1|cgocallback)(\.abi0)?"
)
# syscall.rawVforkSyscall has its return address in a register, which .debug_frame does not say either.
POPPED = "syscall.rawVforkSyscall.abi0"


def build(folder: Path, source: str, arch: str) -> Path:
    """A program whose .debug_frame readelf can read."""
    (folder / "go.mod").write_text(MODULE)
    (folder / "main.go").write_text(source)
    go(folder, "build", "-ldflags=-compressdwarf=false", "-o", "program", "main.go", arch=arch)
    return folder / "program"


def rows_of_file(path: Path) -> FileRows:
    fd = open_regular(path)
    found = read_rows(ElfFile(fd, path.name), [])
    assert found is not None
    return found


def functions(path: Path) -> list[tuple[int, str]]:
    """Address and name of all symbols of code, ascending."""
    lines = subprocess.run(["nm", "-n", path], capture_output=True, text=True, check=True).stdout.splitlines()
    return [
        (int(f[0], 16), f[2])
        for f in (line.split(maxsplit=2) for line in lines)
        if len(f) == 3 and f[1] in "tT"
    ]


def differences(path: Path, found: FileRows, machine: int) -> Iterator[tuple[str, int, object, object]]:
    """Function, address, and both rules, where either side has a row and they differ."""
    notation = Notation(found.rows, machine)
    steps = readelf_steps(path, "rbp" if machine == EM_X86_64 else "x29", ".debug_frame")
    named = functions(path)
    theirs = 0
    for address in sorted({step.addr for step in steps} | set(found.rows.addresses)):
        while theirs + 1 < len(steps) and steps[theirs + 1].addr <= address:
            theirs += 1
        key = steps[theirs].key if steps[theirs].addr <= address else None
        if key is None:
            continue  # padding
        index = found.rows.find(address)
        row = notation.row(index) if index >= 0 else None
        # In arm64's link register it is "unchanged" for readelf.
        ours = None if row is None else (row.cfa, row.ra.replace("x30", "u"))
        if ours != (key[0], key[2]):
            name = named[bisect.bisect_right(named, (address, "\x7f")) - 1][1]
            yield name, address, (key[0], key[2]), ours


def test_amd64_rows_are_those_of_the_linker(tmp_path: Path) -> None:
    path = build(tmp_path, SERVER, "amd64")
    found = rows_of_file(path)
    assert found.source == ".gopclntab"
    assert len(found.rows) > 20_000
    assert not found.rows.skipped
    assert not found.rows.overlaps
    odd = [item for item in differences(path, found, EM_X86_64) if not SPECIAL.fullmatch(item[0])]
    assert {item[0] for item in odd} <= {POPPED}, odd[:20]
    # Nothing is missing for a reason but what is: gogo, and marks of two bytes at most for C code.
    assert found.rows.unsupported.keys() <= {
        "stack pointer set to what is not stated",
        "C code without call frame information in a Go program",
    }
    assert sum(found.rows.unsupported.values()) <= 5


def test_arm64_rows_are_those_of_the_linker(tmp_path: Path) -> None:
    path = build(tmp_path, PLAIN, "arm64")
    found = rows_of_file(path)
    assert len(found.rows) > 5_000
    odd = [item for item in differences(path, found, EM_AARCH64) if not SPECIAL.fullmatch(item[0])]
    # Their last instruction jumps to what they interrupted, with the frame gone.
    assert {item[0] for item in odd} <= {"runtime.debugCallV2", "runtime.asyncPreempt.abi0"}, odd[:20]


def lost_frame_pointers(rows: UnwindRows, named: list[tuple[int, str]]) -> set[str]:
    """Functions with a frame in which the caller's frame pointer is not known to be."""
    numbers = {
        number
        for number in range(rows.rule_count)
        if rows.rule(number)[0] == "SP" and rows.rule(number)[1:3] == ("UNDEFINED", "BELOW_CFA")
    }
    starts = [
        address for address, number in zip(rows.addresses, rows.numbers, strict=True) if number in numbers
    ]
    return {named[bisect.bisect_right(named, (address, "\x7f")) - 1][1] for address in starts}


def test_frame_pointer_is_known_in_every_function_that_pushes_it(tmp_path: Path) -> None:
    path = build(tmp_path, PLAIN, "amd64")
    named = functions(path)
    lost = lost_frame_pointers(rows_of_file(path).rows, named)
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True
    ).stdout
    pushing = {
        part.partition(">:")[0]
        for part in re.split(r"^[0-9a-f]+ <", listing, flags=re.MULTILINE)[1:]
        if re.search(r"\tpush +%rbp$", part, flags=re.MULTILINE)
    }
    assert len(pushing) > 1000
    assert not lost & pushing
    # Assembly that C calls: it saves all registers in a way of its own.
    assert len(lost) < 10


def test_rows_from_the_cache_are_those_that_were_made(tmp_path: Path) -> None:
    path = build(tmp_path, PLAIN, "amd64")
    file = ElfFile(open_regular(path), "program")
    made = rows_of_file(path).rows
    cache = RowCache(tmp_path / "cache")
    key = cache_key(identity_of(file))
    for hits in range(2):
        rows = cache.rows(file, key)
        cache.flush()
        assert rows is not None
        assert (cache.hits, cache.errors) == (hits, 0)
        assert list(rows.addresses) == list(made.addresses)
        assert list(rows.numbers) == list(made.numbers)
        assert bytes(rows.rules) == bytes(made.rules)


@pytest.mark.parametrize("section", [".text", ".gopclntab"])
def test_entry_of_other_code_or_table_is_not_used(tmp_path: Path, section: str) -> None:
    path = build(tmp_path, PLAIN, "amd64")
    content = bytearray(path.read_bytes())
    file = ElfFile.from_bytes(bytes(content), "program")
    cache = RowCache(tmp_path / "cache")
    key = cache_key(identity_of(file))
    assert cache.rows(file, key) is not None
    cache.flush()
    content[{found.name: found.offset for found in file.sections()}[section] + 40_000] ^= 0x40
    changed = ElfFile.from_bytes(bytes(content), "program")
    cache.rows(changed, key)
    assert (cache.hits, cache.misses) == (0, 2)
