# SPDX-License-Identifier: Apache-2.0
"""Functions of stripped Go programs: against those of unstripped twins, and against Go's own decoder."""

import argparse
import itertools
import json
import os
import random
import struct
from pathlib import Path

import pytest

from pyprof.cli import inspect_elf
from pyprof.elf.file import ElfFile, open_regular
from pyprof.symbols.gopclntab import go_symbols
from pyprof.symbols.native import NativeSymbols
from tests.support.compile import compile_source, run
from tests.support.elfwriter import (
    PT_DYNAMIC,
    PT_LOAD,
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHT_NOBITS,
    SHT_PROGBITS,
    Section,
    Segment,
    build_elf,
)
from tests.support.gobinaries import (
    DECODER,
    PLAIN,
    WITH_C,
    as_in_stack_traces,
    build,
    build_twins,
    functions_of_nm,
)

TEXT, RODATA, DATA = 0x401000, 0x500000, 0x600000
NAMES = ["runtime.first", "main.main", "main.(*Thing).do", "type:.eq.x\u00b71"]
STARTS = [0, 0x40, 0x60, 0x100]
END = 0x180
VERSIONS = {"1.2": 0xFFFFFFFB, "1.16": 0xFFFFFFFA, "1.18": 0xFFFFFFF0, "1.20": 0xFFFFFFF1}


def symbols_of(path: Path) -> NativeSymbols:
    fd = open_regular(path)
    try:
        return NativeSymbols(ElfFile(fd, path.name))
    finally:
        os.close(fd)


def without_sections(path: Path) -> Path:
    data = bytearray(path.read_bytes())
    data[0x28:0x30] = bytes(8)  # e_shoff
    data[0x3C:0x40] = bytes(4)  # e_shnum, e_shstrndx
    stripped = path.with_name(f"{path.name}.bare")
    stripped.write_bytes(data)
    return stripped


BUILDS = {
    "static": (PLAIN, [], False),
    "position-independent": (PLAIN, ["-buildmode=pie"], False),
    "with C": (WITH_C, [], True),
    "with C, position-independent": (WITH_C, ["-buildmode=pie"], True),
    "shared library": (WITH_C, ["-buildmode=c-shared"], True),
}


@pytest.fixture(scope="module", params=BUILDS)
def twins(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    source, flags, cgo = BUILDS[request.param]
    return build_twins(tmp_path_factory.mktemp("go"), source, *flags, cgo=cgo)


def assert_named_as_by_nm(whole: Path, stripped: Path) -> None:
    expected = functions_of_nm(whole.parent, whole)
    assert len(expected) > 1000
    symbols = symbols_of(stripped)
    assert symbols.problems == []
    assert symbols.counts["gopclntab"] >= len(expected)
    for address, found in zip(expected, symbols.resolve(expected), strict=True):
        assert found is not None, hex(address)
        assert found.offset == 0
        if found.source == "gopclntab":
            assert as_in_stack_traces(found.system_name) in map(as_in_stack_traces, expected[address])


def test_every_function_of_a_stripped_program_is_named_as_in_its_unstripped_twin(
    twins: tuple[Path, Path],
) -> None:
    assert_named_as_by_nm(*twins)


def test_table_is_found_where_section_headers_are_gone(twins: tuple[Path, Path]) -> None:
    assert_named_as_by_nm(twins[0], without_sections(twins[1]))


def test_names_are_exactly_those_of_nm_except_for_calling_conventions(tmp_path: Path) -> None:
    whole, stripped = build_twins(tmp_path, PLAIN)
    expected = functions_of_nm(tmp_path, whole)
    differing = {
        names.pop()
        for (names, found) in zip(expected.values(), symbols_of(stripped).resolve(expected), strict=True)
        if found is None or found.system_name not in names
    }
    assert [name for name in differing if not name.endswith(".abi0") and "[" not in name] == []


def test_function_reaches_to_the_next_ones_start(tmp_path: Path) -> None:
    whole, stripped = build_twins(tmp_path, PLAIN)
    addresses = sorted(functions_of_nm(tmp_path, whole))
    symbols = symbols_of(stripped)
    lasts = [after - 1 for after in addresses[1:]]
    starts = zip(
        symbols.resolve(addresses[:-1]), symbols.resolve(lasts), addresses, addresses[1:], strict=False
    )
    for first, last, start, after in starts:
        assert first is not None
        assert last == first._replace(offset=after - 1 - start)


def test_stripped_by_binutils_the_program_has_its_names(tmp_path: Path) -> None:
    whole = build(tmp_path, PLAIN, "whole")
    stripped = tmp_path / "stripped"
    run("strip", "-o", str(stripped), str(whole))
    assert_named_as_by_nm(whole, stripped)


def test_table_is_not_read_where_there_is_a_symbol_table(tmp_path: Path) -> None:
    symbols = symbols_of(build(tmp_path, PLAIN, "whole"))
    assert symbols.counts.keys() == {".symtab"}


def test_c_program_has_no_such_table(tmp_path: Path) -> None:
    path = compile_source(tmp_path, "plain.c", "int main(void) { return 0; }\n", "-s")
    symbols = symbols_of(path)
    assert "gopclntab" not in symbols.counts
    assert symbols.problems == []


def test_inspect_elf_counts_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, stripped = build_twins(tmp_path, PLAIN)
    parser = argparse.ArgumentParser()
    inspect_elf.add_arguments(parser)
    assert inspect_elf.run(parser.parse_args([str(stripped), "--json"])) == 0
    counted = json.loads(capsys.readouterr().out)["symbols"]
    assert counted["symtab"] == 0
    assert counted["gopclntab"] >= len(functions_of_nm(tmp_path, whole))


# Tables of each version, by hand


def table_of(version: str, text: int, starts: list[int] = STARTS, names: list[str] = NAMES) -> bytes:
    """A table: header, names, functions. `text` goes where the version says that addresses count from."""
    magic, count = VERSIONS[version], len(starts)
    width = 8 if version in {"1.2", "1.16"} else 4
    number = "<Q" if width == 8 else "<I"
    base = text if width == 8 else 0
    packed = b"".join(name.encode() + b"\0" for name in names)
    positions = list(itertools.accumulate((len(name.encode()) + 1 for name in names[:-1]), initial=0))
    # magic, zeros, least size of an instruction, size of a pointer, number of functions
    head = struct.pack("<IHBBQ", magic, 0, 1, 8, count)
    pairs_size = (2 * count + 1) * width
    if version == "1.2":
        before = 16  # behind the header; descriptions and names count from the table's start
        names_at = before + pairs_size + 4 + count * 24
        described = before + pairs_size + 4  # behind the position of the file table
        names_base = names_at
    else:
        # files, (text,) names, units, files, pc tables, functions: as distances from the table's start
        words = 6 if version == "1.16" else 7
        names_at = 16 + 8 * words
        before = names_at + len(packed) + 8
        places = [names_at, names_at + len(packed), 0, 0, before]
        head += struct.pack(f"<{words}Q", 0, *([] if version == "1.16" else [text]), *places)
        described = pairs_size
        names_base = 0
    pairs = b"".join(
        struct.pack(number, base + start) + struct.pack(number, described + index * 24)
        for index, start in enumerate(starts)
    ) + struct.pack(number, base + END)
    descriptions = b"".join(
        # start, position of the name, and fields that do not matter here
        (struct.pack(number, base + start) + struct.pack("<I", names_base + position)).ljust(24, b"\0")
        for start, position in zip(starts, positions, strict=True)
    )
    if version == "1.2":
        return head + pairs + bytes(4) + descriptions + packed
    return head + packed + bytes(8) + pairs + descriptions + bytes(24)


def go_file(
    table: bytes, data: bytes = b"", relocations: bytes = b"", section: str = ".gopclntab"
) -> ElfFile:
    """A file with code, a table, and data with pointers, or with relocations for the loader to make them."""
    dynamic = struct.pack("<4Q", 7, RODATA + 0x10000, 8, len(relocations)) + bytes(16)  # DT_RELA, DT_RELASZ
    image = build_elf(
        [
            Segment(PT_LOAD, 5, TEXT, offset=0, filesz=0, memsz=0x1000),
            Segment(PT_LOAD, 4, RODATA, data=table),
            Segment(PT_LOAD, 6, DATA, data=data),
            *([Segment(PT_LOAD, 4, RODATA + 0x10000, data=relocations)] if relocations else []),
            *([Segment(PT_DYNAMIC, 6, DATA + 0x10000, data=dynamic)] if relocations else []),
        ],
        [
            Section(".text", SHT_NOBITS, SHF_ALLOC | SHF_EXECINSTR, TEXT, size=0x1000),
            Section(section, SHT_PROGBITS, SHF_ALLOC, RODATA, data=table),
        ],
    )
    return ElfFile.from_bytes(image, "made")


def moduledata(table: bytes, text: int) -> bytes:
    """The beginning of moduledata as Go 1.18 to 1.26 lay it out."""
    places = struct.unpack_from("<5Q", table, 32)
    (names, units, files, values, functions) = (RODATA + place for place in places)
    words = [RODATA]
    for address, length in ((names, 60), (units, 0), (files, 0), (values, 0), (functions, 200)):
        words += [address, length, length]
    words += [functions, len(STARTS) + 1, len(STARTS) + 1, 0]  # the function table; findfunctab
    words += [text + STARTS[0], text + END, text, text + 0x1000]  # minpc, maxpc, text, etext
    return struct.pack(f"<{len(words)}Q", *words).ljust(600, b"\0")


def found_in(file: ElfFile) -> list[tuple[int, int, str]]:
    """(start, end, name) of each function; nothing may be wrong."""
    problems: list[str] = []
    table = go_symbols(file, problems)
    assert problems == []
    assert table is not None
    return [
        (value, value + size, table.strings[name:].split(b"\0", 1)[0].decode())
        for name, _, _, _, value, size in struct.iter_unpack("<IBBHQQ", table.symbols)
    ]


EXPECTED = [
    (TEXT + 0x20 + start, TEXT + 0x20 + end, name)
    for start, end, name in zip(STARTS, [*STARTS[1:], END], NAMES, strict=True)
]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("decoder"), DECODER, "decoder")


@pytest.mark.parametrize("version", VERSIONS)
def test_table_of_each_version_is_read_as_gos_own_decoder_reads_it(
    version: str, decoder: Path, tmp_path: Path
) -> None:
    table = table_of(version, TEXT + 0x20)
    # 1.20 differs from 1.18 in nothing but the magic, which older decoders do not know.
    known = table.replace(struct.pack("<I", VERSIONS["1.20"]), struct.pack("<I", VERSIONS["1.18"]))
    (tmp_path / "table").write_bytes(known)
    printed = run(str(decoder), str(tmp_path / "table"), str(TEXT + 0x20)).splitlines()
    theirs = [(int(start), int(end), name) for start, end, name in (line.split(" ", 2) for line in printed)]
    assert theirs == EXPECTED
    assert found_in(go_file(table)) == EXPECTED


def test_name_is_written_as_gos_linker_writes_it_into_symbol_tables() -> None:
    (found,) = NativeSymbols(go_file(table_of("1.20", TEXT + 0x20))).resolve([TEXT + 0x120])
    assert found is not None
    assert found.name == "type:.eq.x.1"


def test_module_tells_where_functions_begin_and_not_the_header() -> None:
    table = table_of("1.20", 0)
    assert found_in(go_file(table, bytes(24) + moduledata(table, TEXT + 0x20))) == EXPECTED


def test_module_of_a_relocated_program_is_read_through_its_relocations() -> None:
    table = table_of("1.20", 0)
    module = moduledata(table, TEXT + 0x20)
    words = struct.unpack(f"<{len(module) // 8}Q", module)
    pointers = {index: word for index, word in enumerate(words) if word >= TEXT}
    relocations = b"".join(
        struct.pack("<3Q", DATA + 16 + 8 * index, 8, word) for index, word in pointers.items()
    )
    bare = struct.pack(
        f"<{len(words)}Q", *(0 if index in pointers else word for index, word in enumerate(words))
    )
    assert found_in(go_file(table, bytes(16) + bare, relocations)) == EXPECTED


def test_old_table_of_a_relocated_program_is_read_through_its_relocations() -> None:
    table = table_of("1.16", 0)
    (functions,) = struct.unpack_from("<Q", table, 56)
    # Starts are the first of each pair, and the last number.
    relocations = b"".join(
        struct.pack("<3Q", RODATA + functions + 16 * index, 8, TEXT + 0x20 + start)
        for index, start in enumerate([*STARTS, END])
    )
    assert found_in(go_file(table, b"", relocations)) == EXPECTED


def test_table_inside_another_section_of_a_go_program_is_found(tmp_path: Path) -> None:
    table = table_of("1.20", TEXT + 0x20)
    assert found_in(go_file(table, section=".go.other")) == EXPECTED


def test_what_looks_like_a_table_does_not_hide_the_true_one() -> None:
    table = table_of("1.20", TEXT + 0x20)
    decoy = table[:8] + struct.pack("<Q", 1) + bytes(64)  # a header that leads nowhere
    file = go_file(decoy + table, section=".go.other")
    assert found_in(file) == EXPECTED


# Hostile


def problems_of(table: bytes) -> list[str]:
    problems: list[str] = []
    assert go_symbols(go_file(table), problems) is None
    return problems


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, b"\0\0\0\0"),  # no magic
        (4, b"\1"),  # not zero
        (7, b"\4"),  # pointers of 4 bytes
        (8, bytes(8)),  # no function
        (8, b"\xff" * 8),  # 2^64 - 1 functions
        (8, struct.pack("<Q", 1000)),
        (32, b"\xff" * 8),  # names outside
        (40, bytes(8)),  # names end before they begin
        (64, b"\xff" * 8),  # functions outside
        (24, bytes(8)),  # begins nowhere
    ],
)
def test_table_that_states_what_cannot_be_is_one_problem(position: int, value: bytes) -> None:
    table = bytearray(table_of("1.20", TEXT + 0x20))
    table[position : position + len(value)] = value
    assert len(problems_of(bytes(table))) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_table_that_is_cut_off_is_a_problem_or_has_fewer_functions(version: str) -> None:
    table = table_of(version, TEXT + 0x20)
    for length in range(len(table)):
        problems: list[str] = []
        found = go_symbols(go_file(table[:length]), problems)
        assert (found is None) == bool(problems)
        assert found is None or len(found.symbols) <= 24 * len(NAMES)


def test_function_with_an_impossible_name_is_left_out() -> None:
    table = table_of("1.20", TEXT + 0x20)
    (functions,) = struct.unpack_from("<Q", table, 64)
    changed = bytearray(table)
    changed[functions + 36 + 24 + 4 : functions + 36 + 24 + 8] = b"\xff" * 4  # of the second function
    assert found_in(go_file(bytes(changed))) == [EXPECTED[0], *EXPECTED[2:]]


@pytest.mark.parametrize("version", VERSIONS)
def test_any_damage_is_survived(version: str) -> None:
    table = table_of(version, 0)
    image = go_file(table, moduledata(table, TEXT) if version in {"1.18", "1.20"} else b"")
    whole = image.read(0, image.size)
    chance = random.Random(1)
    for _ in range(2000):
        changed = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            at = chance.randrange(64, len(changed))  # behind the ELF header
            size = chance.choice([1, 2, 4, 8])
            changed[at : at + size] = chance.choice([b"\0", b"\xff", b"\x80", chance.randbytes(1)]) * size
        symbols = NativeSymbols(ElfFile.from_bytes(bytes(changed), "damaged"))
        for found in symbols.resolve([TEXT, TEXT + 0x20, TEXT + 0x100]):
            assert found is None or found.system_name


def test_relocations_that_lead_nowhere_are_survived() -> None:
    table = table_of("1.20", 0)
    relocations = struct.pack("<3Q", (1 << 64) - 8, 8, RODATA) * 1000
    problems: list[str] = []
    assert go_symbols(go_file(table, b"", relocations), problems) is None
    assert len(problems) == 1
