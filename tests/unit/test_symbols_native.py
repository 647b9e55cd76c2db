# SPDX-License-Identifier: Apache-2.0
"""Names in real files: against nm, and for tables that mislead the nearest-symbol rule."""

import lzma
import os
import struct
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from pyprof.elf.file import ElfFile, open_regular
from pyprof.elf.identity import read_vdso
from pyprof.elf.tables import symbol_tables
from pyprof.symbols.native import NativeSymbols
from pyprof.symbols.symbol import Symbol
from tests.support.compile import compile_source, nm_symbols, run
from tests.support.elfwriter import SHT_PROGBITS, Section, Sym, elf_with_symbols

LIBS = Path("/usr/lib/x86_64-linux-gnu")
CHAIN = """
#include <stdio.h>
__attribute__((noinline)) int leaf(int x) { return x * 3 + getchar(); }
__attribute__((noinline)) int mid(int x) { return leaf(x) + 1; }
int main(int argc, char **argv) { (void)argv; return mid(argc) + 2; }
"""


def symbols_of(path: Path | str) -> NativeSymbols:
    fd = open_regular(path)
    try:
        return NativeSymbols(ElfFile(fd, str(path)))
    finally:
        os.close(fd)


def names_at(symbols: NativeSymbols, addresses: Iterable[int]) -> list[str | None]:
    return [found and found.system_name for found in symbols.resolve(addresses)]


def functions_by_address(path: Path) -> dict[int, set[str]]:
    """Every function that pyelftools finds in .symtab and .dynsym, versions cut, by address."""
    found = defaultdict(set)
    with path.open("rb") as stream:
        elf = ELFFile(stream)
        for section in elf.iter_sections():
            if isinstance(section, SymbolTableSection):
                for symbol in section.iter_symbols():
                    if symbol["st_info"]["type"] in {"STT_FUNC", "STT_LOOS"} and isinstance(
                        symbol["st_shndx"], int
                    ):
                        found[symbol["st_value"]].add(symbol.name.split("@")[0])
    return found


@pytest.mark.parametrize("name", ["libc.so.6", "libstdc++.so.6", "libcrypto.so.3", "libpython3.11.so.1.0"])
def test_every_exported_function_is_named_as_nm_names_it(name: str) -> None:
    path = next((path for path in (LIBS / name,) if path.exists()), None)
    if path is None:
        pytest.skip(f"{name} is not installed")
    expected = defaultdict(set)
    for line in run("nm", "-D", "--defined-only", str(path)).splitlines():
        value, kind, symbol = line.split(" ", 2)
        if kind in "TtWi":
            expected[int(value, 16)].add(symbol.split("@")[0])
    addresses = sorted(expected)
    assert len(addresses) > 1000
    for address, found in zip(addresses, symbols_of(path).resolve(addresses), strict=True):
        assert found is not None, hex(address)
        assert found.system_name in expected[address]
        assert found.offset == 0


def preferred(lines: list[tuple[str, str]]) -> str:
    """Of (binding, name) the one to expect: default version, global, few underscores, short, by alphabet."""

    def rank(line: tuple[str, str]) -> tuple[object, ...]:
        binding, name = line
        plain = name.split("@")[0]
        old = "@" in name and "@@" not in name
        return old, binding == "WEAK", len(plain) - len(plain.lstrip("_")), len(plain), plain

    return min(lines, key=rank)[1].split("@")[0]


def test_aliases_of_libc_are_chosen_by_version_binding_and_name() -> None:
    path = LIBS / "libc.so.6"
    by_address = defaultdict(list)
    for line in run("readelf", "--wide", "--dyn-syms", str(path)).splitlines():
        match line.split():
            case [_, value, _, "FUNC" | "IFUNC", binding, _, index, name] if index != "UND":
                by_address[int(value, 16)].append((binding, name))
    aliases = {address: lines for address, lines in by_address.items() if len(lines) > 1}
    assert len(aliases) > 300
    assert names_at(symbols_of(path), aliases) == [preferred(lines) for lines in aliases.values()]
    by_name = {name.split("@@")[0]: address for address, lines in by_address.items() for _, name in lines}
    wanted = ["free", "malloc", "memcpy", "strtol", "signal"]
    assert names_at(symbols_of(path), [by_name[name] for name in wanted]) == wanted


def test_every_function_of_an_unstripped_program_is_named_as_pyelftools_names_it(tmp_path: Path) -> None:
    path = compile_source(tmp_path, "chain.c", CHAIN, "-static", "-O1")
    expected = functions_by_address(path)
    assert len(expected) > 1000
    addresses = sorted(expected)
    for address, found in zip(addresses, symbols_of(path).resolve(addresses), strict=True):
        assert found is not None, hex(address)
        assert found.system_name in expected[address]


def test_address_behind_every_sized_function_is_not_that_function() -> None:
    path = LIBS / "libc.so.6"
    ends: dict[int, str] = {}
    with path.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(".dynsym")
        assert isinstance(section, SymbolTableSection)
        for symbol in section.iter_symbols():
            if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_size"]:
                ends[symbol["st_value"] + symbol["st_size"]] = symbol.name
    addresses = sorted(ends)
    for address, found in zip(addresses, symbols_of(path).resolve(addresses), strict=True):
        if found is not None:
            assert (found.offset == 0) or found.system_name != ends[address], hex(address)


def test_names_of_gdb_are_ours_at_addresses_inside_functions(tmp_path: Path) -> None:
    path = compile_source(tmp_path, "chain.c", CHAIN, "-no-pie", "-O1")
    symbols = nm_symbols(path)
    addresses = [symbols[name] + 3 for name in ("leaf", "mid", "main")]
    commands = [part for address in addresses for part in ("-ex", f"info symbol {address:#x}")]
    printed = run("gdb", "-nx", "-batch", *commands, str(path)).splitlines()
    ours = [
        found and f"{found.name} + {found.offset} in section .text"
        for found in symbols_of(path).resolve(addresses)
    ]
    assert ours == printed


# Stripped in part: the nearest symbol is not the answer


@pytest.mark.parametrize("kept", ["leaf", "mid", "main"])
def test_function_whose_symbol_was_stripped_has_no_name(tmp_path: Path, kept: str) -> None:
    path = compile_source(tmp_path, "chain.c", CHAIN, "-O1")
    values = nm_symbols(path)
    run("strip", f"--keep-symbol={kept}", str(path))
    names = ["leaf", "mid", "main"]
    found = names_at(symbols_of(path), [values[name] + 2 for name in names])
    assert found == [name if name == kept else None for name in names]


def test_unsized_label_does_not_claim_the_stripped_function_behind_it(tmp_path: Path) -> None:
    source = """
    .text
    .globl label
    label: nop; nop; ret
    .p2align 4
    .type other, @function
    other: .cfi_startproc
    nop; ret
    .cfi_endproc
    .size other, .-other
    """
    path = compile_source(tmp_path, "label.s", source, "-shared", "-Wl,--eh-frame-hdr", output="label.so")
    values = nm_symbols(path)
    label, other = values["label"], values["other"]
    run("strip", "--keep-symbol=label", str(path))
    found = symbols_of(path).resolve([label + 1, other, other + 1])
    assert [(s.name, s.offset, s.is_guess) if s else None for s in found] == [("label", 1, True), None, None]


# Versions, aliases, marks and labels in one shared object

VERSIONED = """
int impl_v1(void) { return 1; }
int impl_v2(void) { return 2; }
__asm__(".symver impl_v1, foo@VER_1\\n.symver impl_v2, foo@@VER_2");
extern int pretty_alias(void) __attribute__((weak, alias("impl_v2")));
__asm__(".text\\n.globl nosize\\nnosize: nop\\nnop\\nret\\n");
int sized(void) { return 3; }
"""


@pytest.fixture(scope="module")
def versioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("versioned")
    (folder / "map").write_text(
        "VER_1 { global: foo; local: *; };\nVER_2 { global: foo; pretty_alias; nosize; sized; } VER_1;\n"
    )
    return compile_source(
        folder, "versioned.c", VERSIONED, "-shared", "-fPIC", "-O1", "-nostdlib",
        f"-Wl,--version-script={folder / 'map'}", output="versioned.so",
    )  # fmt: skip


def test_version_marks_at_address_0_name_nothing(versioned: Path) -> None:
    assert "A VER_1" in run("nm", "-D", str(versioned)) or "VER_1" in run("readelf", "-sW", str(versioned))
    assert names_at(symbols_of(versioned), [0, 1, 0x100]) == [None, None, None]


def test_versioned_function_is_named_without_its_version(versioned: Path) -> None:
    run("cp", str(versioned), str(versioned.with_name("stripped.so")))
    stripped = versioned.with_name("stripped.so")
    run("strip", str(stripped))
    values = nm_symbols(stripped, "-D")
    found = names_at(symbols_of(stripped), [values["foo@VER_1"], values["foo@@VER_2"]])
    assert found == ["foo", "foo"]


def test_alias_is_chosen_alike_with_and_without_the_full_table(versioned: Path) -> None:
    values = nm_symbols(versioned, "-D")
    assert values["pretty_alias@@VER_2"] == values["foo@@VER_2"]
    assert names_at(symbols_of(versioned), [values["foo@@VER_2"]]) == ["foo"]


def test_unsized_assembly_label_is_a_guess_up_to_the_next_function(versioned: Path) -> None:
    values = nm_symbols(versioned, "-D")
    label, following = values["nosize@@VER_2"], values["sized@@VER_2"]
    found = symbols_of(versioned).resolve([label, label + 2, following])
    assert [(s.system_name, s.offset, s.is_guess) if s else None for s in found] == [
        ("nosize", 0, True), ("nosize", 2, True), ("sized", 0, False),
    ]  # fmt: skip


# No section headers


def test_exported_functions_are_named_without_section_headers(tmp_path: Path) -> None:
    bare = tmp_path / "libc.bare"
    run("llvm-objcopy-19", "--strip-sections", str(LIBS / "libc.so.6"), str(bare))
    full = {symbol for symbol in functions_by_address(LIBS / "libc.so.6") if symbol}
    addresses = sorted(full)
    assert names_at(symbols_of(bare), addresses) == names_at(symbols_of(LIBS / "libc.so.6"), addresses)


@pytest.mark.parametrize("style", ["sysv", "gnu", "both"])
def test_dynamic_symbols_are_counted_by_either_hash_table(tmp_path: Path, style: str) -> None:
    source = "\n".join(f"int function_{i}(void) {{ return {i}; }}" for i in range(50))
    path = compile_source(
        tmp_path,
        "many.c",
        source,
        "-shared",
        "-fPIC",
        "-nostdlib",
        f"-Wl,--hash-style={style}",
        output="many.so",
    )
    values = nm_symbols(path, "-D")
    run("llvm-objcopy-19", "--strip-sections", str(path), str(tmp_path / "bare.so"))
    symbols = symbols_of(tmp_path / "bare.so")
    assert symbols.counts == {".dynsym": 50}
    assert names_at(symbols, values.values()) == list(values)


# Symbols of Fedora: .gnu_debugdata


def with_debugdata(folder: Path, content: bytes | None = None) -> tuple[Path, dict[str, int]]:
    """A stripped program with an embedded xz symbol file (or other content), and its nm values."""
    path = compile_source(folder, "chain.c", CHAIN, "-O1")
    values = nm_symbols(path)
    if content is None:
        keep = [f"--keep-symbol={name}" for name in ("main", "mid", "leaf")]
        run("objcopy", "-S", *keep, str(path), str(folder / "mini"))
        content = lzma.compress((folder / "mini").read_bytes())
    (folder / "mini.xz").write_bytes(content)
    run("strip", str(path))
    run("objcopy", "--add-section", f".gnu_debugdata={folder / 'mini.xz'}", str(path))
    assert "no symbols" in run("sh", "-c", f"nm {path} 2>&1; true")
    return path, values


def test_embedded_symbols_name_the_hosts_addresses(tmp_path: Path) -> None:
    path, values = with_debugdata(tmp_path)
    symbols = symbols_of(path)
    assert symbols.problems == []
    found = symbols.resolve([values["leaf"] + 1, values["mid"] + 1, values["main"] + 1])
    assert [(s.name, s.offset, s.source) if s else None for s in found] == [
        (name, 1, ".gnu_debugdata") for name in ("leaf", "mid", "main")
    ]


def damaged(content: bytes) -> bytes:
    return content[:40] + bytes(byte ^ 0xFF for byte in content[40:60]) + content[60:]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"not xz at all", "damaged"),
        (damaged(lzma.compress(os.urandom(500))), "damaged"),
        (lzma.compress(os.urandom(500))[:300], "cut off"),
        (lzma.compress(b"\0" * (100 << 20), preset=1), "unpacks to more than"),
        (lzma.compress(b"a text, no ELF file"), "not an ELF file"),
        (lzma.compress(b"x" * 100, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]), "damaged"),
    ],
    ids=["no xz", "flipped", "truncated", "bomb", "no elf", "huge dictionary"],
)
def test_embedded_symbols_that_cannot_be_used_are_one_problem(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    path, values = with_debugdata(tmp_path, content)
    symbols = symbols_of(path)
    assert len(symbols.problems) == 1
    assert problem in symbols.problems[0]
    assert names_at(symbols, [values["leaf"]]) == [None]


# Procedure linkage table


@pytest.mark.parametrize(
    "flags", [["-Wl,-z,lazy"], ["-Wl,-z,now"], ["-fcf-protection=full", "-Wl,-z,ibtplt"]]
)
def test_stub_of_an_imported_function_is_named(tmp_path: Path, flags: list[str]) -> None:
    path = compile_source(tmp_path, "chain.c", CHAIN, "-O1", *flags)
    expected = {}
    for line in run("objdump", "-d", "--no-show-raw-insn", str(path)).splitlines():
        if line.endswith("@plt>:") and "getc" in line:
            expected[int(line.split()[0], 16)] = line.split("<")[1].split(">")[0]
    assert len(expected) == 1
    address = next(iter(expected))
    found = symbols_of(path).resolve([address, address + 4])
    assert [(s.name, s.offset, s.source) if s else None for s in found] == [
        ("getc@plt", 0, "plt"), ("getc@plt", 4, "plt"),
    ]  # fmt: skip


# Names that are no text, and other files


def test_name_with_bytes_outside_utf_8_is_escaped() -> None:
    image = elf_with_symbols([Sym(b"caf\xe9", 0x1000, 8), Sym("größe".encode(), 0x1010, 8)])
    found = NativeSymbols(ElfFile.from_bytes(image, "image")).resolve([0x1000, 0x1010])
    assert [s and s.name for s in found] == ["caf\\xe9", "größe"]


def test_cplusplus_name_is_demangled_and_the_system_name_kept() -> None:
    image = elf_with_symbols([Sym("_ZN2ns4workEi", 0x1000, 8)])
    assert NativeSymbols(ElfFile.from_bytes(image, "image")).resolve([0x1004]) == [
        Symbol("ns::work(int)", "_ZN2ns4workEi", 4, source=".symtab")
    ]


def test_relocatable_file_has_no_addresses_and_no_symbols(tmp_path: Path) -> None:
    path = compile_source(tmp_path, "part.c", "int f(void) { return 1; }\n", "-c", output="part.o")
    assert names_at(symbols_of(path), [0, 1]) == [None, None]


def test_functions_of_the_vdso_are_named(tmp_path: Path) -> None:
    image = read_vdso()
    assert image is not None
    (tmp_path / "vdso").write_bytes(image)
    values = nm_symbols(tmp_path / "vdso", "-D")
    address = values["__vdso_clock_gettime@@LINUX_2.6"]
    symbols = NativeSymbols(ElfFile.from_bytes(image, "[vdso]"))
    assert names_at(symbols, [address + 4]) == ["__vdso_clock_gettime"]


def test_damaged_symbol_table_is_a_problem_and_the_other_one_is_used() -> None:
    path = LIBS / "libc.so.6"
    image = bytearray(path.read_bytes())
    file = ElfFile.from_bytes(bytes(image), "libc")
    section = next(index for index, section in enumerate(file.sections()) if section.name == ".dynsym")
    table = struct.unpack_from("<Q", image, 40)[0]
    struct.pack_into("<Q", image, table + 64 * section + 24, 1 << 40)  # sh_offset
    problems: list[str] = []
    tables = list(symbol_tables(ElfFile.from_bytes(bytes(image), "libc"), problems))
    assert len(problems) == 1
    assert [entry.source for entry in tables] == [".dynsym"]  # through PT_DYNAMIC


def test_debugdata_section_without_symbols_changes_nothing() -> None:
    inner = lzma.compress(elf_with_symbols([]))
    image = elf_with_symbols(
        [Sym("f", 0x1000, 8)], extra=[Section(".gnu_debugdata", SHT_PROGBITS, data=inner)]
    )
    symbols = NativeSymbols(ElfFile.from_bytes(image, "image"))
    assert (symbols.problems, names_at(symbols, [0x1000])) == ([], ["f"])
