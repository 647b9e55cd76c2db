# SPDX-License-Identifier: Apache-2.0
"""Files that lie: an ElfError or an answer, in time; never another exception."""

import struct
import time
from pathlib import Path

import pytest

from pyprof.elf.file import SHT_NOBITS, ElfFile
from pyprof.elf.identity import identity_of
from pyprof.errors import ElfError
from pyprof.symbols.native import NativeSymbols
from tests.support.compile import compile_source, run
from tests.support.elfwriter import Segment, build_elf

PROBES = [0, 1, 0x1000, 0x1139, 0x401136, (1 << 64) - 1]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A complete shared object, as small as the tools make it."""
    folder = tmp_path_factory.mktemp("small")
    source = 'int puts(const char *); int one(void) { return puts(""); } static int two(void) { return 2; }\n'
    source += "int (*const table[])(void) = {two};\n"
    path = compile_source(
        folder, "small.c", source, "-shared", "-fPIC", "-O1", "-nostdlib", "-Wl,-z,noseparate-code",
        "-Wl,--build-id=sha1", "-Wl,-z,lazy", output="small.so",
    )  # fmt: skip
    return path.read_bytes()


def survive(image: bytes) -> bool:
    """Reads all that is read of a file; True where it was taken for a usable one."""
    started = time.monotonic()
    try:
        file = ElfFile.from_bytes(image, "image")
        identity_of(file)
        NativeSymbols(file).resolve(PROBES)
    except ElfError:
        return False
    finally:
        assert time.monotonic() - started < 1.0
    return True


def test_whole_file_is_read(small: bytes) -> None:
    assert survive(small)
    assert NativeSymbols(ElfFile.from_bytes(small, "image")).problems == []


def test_every_truncation_gives_an_error_or_an_answer(small: bytes) -> None:
    usable = [length for length in range(len(small)) if survive(small[:length])]
    assert min(usable) >= 64 + 56


def test_every_header_byte_flipped_gives_an_error_or_an_answer(small: bytes) -> None:
    section_table = struct.unpack_from("<Q", small, 40)[0]
    count = struct.unpack_from("<H", small, 60)[0]
    headers = struct.unpack_from("<H", small, 56)[0]
    positions = [*range(64 + 56 * headers), *range(section_table, section_table + 64 * count)]
    for position in positions:
        for mask in (0xFF, 0x80, 0x01):
            damaged = bytearray(small)
            damaged[position] ^= mask
            survive(bytes(damaged))


def test_every_byte_of_dynamic_table_flipped_without_sections_gives_an_answer(small: bytes) -> None:
    bare = bytearray(small)
    bare[40:48] = bytes(8)  # e_shoff
    bare[60:64] = bytes(4)  # e_shnum, e_shstrndx
    file = ElfFile.from_bytes(bytes(bare), "image")
    dynamic = next(header for header in file.headers if header.type == 2)
    for position in range(dynamic.offset, dynamic.offset + dynamic.filesz):
        for mask in (0xFF, 0x80, 0x01):
            damaged = bytearray(bare)
            damaged[position] ^= mask
            survive(bytes(damaged))


def test_file_that_becomes_shorter_while_open_is_an_elf_error(tmp_path: Path, small: bytes) -> None:
    path = tmp_path / "shrinking.so"
    path.write_bytes(small + b"\0" * 8192)
    with path.open("r+b") as stream:
        file = ElfFile(stream.fileno(), "shrinking.so")
        stream.truncate(100)
        with pytest.raises(ElfError, match="shorter"):
            file.read(5000, 100)


def test_nobits_section_is_never_read_as_contents(tmp_path: Path) -> None:
    path = compile_source(tmp_path, "hello.c", "int main(void) { return 0; }\n", "-g")
    run("objcopy", "--only-keep-debug", str(path), str(tmp_path / "hello.debug"))
    file = ElfFile.from_bytes((tmp_path / "hello.debug").read_bytes(), "hello.debug")
    section = next(section for section in file.sections() if section.name == ".eh_frame")
    assert section.type == SHT_NOBITS
    with pytest.raises(ElfError, match="no contents"):
        file.contents(section, 1 << 20)


def test_symbols_of_a_split_debug_file_are_those_of_the_program(tmp_path: Path) -> None:
    path = compile_source(tmp_path, "hello.c", "int main(void) { return 0; }\n", "-g")
    run("objcopy", "--only-keep-debug", str(path), str(tmp_path / "hello.debug"))
    main = int(
        next(line.split()[0] for line in run("nm", str(path)).splitlines() if line.endswith(" main")), 16
    )
    file = ElfFile.from_bytes((tmp_path / "hello.debug").read_bytes(), "hello.debug")
    found = NativeSymbols(file).resolve([main + 1])[0]
    assert found is not None
    assert (found.name, found.offset) == ("main", 1)


@pytest.mark.parametrize(
    ("image", "text"),
    [
        (b"", "not an ELF file"),
        (b"#!/bin/sh\n", "not an ELF file"),
        (b"\x7fELF\x02\x01", "ends within"),
        (b"\x7fELF\x01\x01".ljust(64, b"\0"), "64-bit little-endian"),
        (b"\x7fELF\x02\x02".ljust(64, b"\0"), "64-bit little-endian"),
    ],
)
def test_what_is_no_supported_elf_file_is_refused_with_a_reason(image: bytes, text: str) -> None:
    with pytest.raises(ElfError, match=text):
        ElfFile.from_bytes(image, "image")


def test_absurd_count_of_program_headers_is_refused() -> None:
    image = bytearray(build_elf([Segment(1, 5, 0, b"x")], []))
    image[56:58] = b"\xfe\xff"  # e_phnum
    with pytest.raises(ElfError, match="program headers"):
        ElfFile.from_bytes(bytes(image), "image")


def test_absurd_count_of_sections_is_refused_without_memory_for_it() -> None:
    image = bytearray(build_elf([], []))
    table = struct.unpack_from("<Q", image, 40)[0]
    image[60:62] = b"\0\0"  # e_shnum: see section 0
    struct.pack_into("<Q", image, table + 32, 1 << 60)
    with pytest.raises(ElfError, match="sections"):
        ElfFile.from_bytes(bytes(image), "image").sections()


def test_section_count_above_16_bits_is_read_from_section_0(tmp_path: Path) -> None:
    body = "".join(f'.section .s{i},"a"\n.byte 0\n' for i in range(0xFF00))
    path = compile_source(tmp_path, "many.s", body + ".text\nf: ret\n", "-c", output="many.o")
    names = [section.name for section in ElfFile.from_bytes(path.read_bytes(), "many.o").sections()]
    assert len(names) > 0xFF00
    assert {".s0", ".s65279", ".text"} <= set(names)
