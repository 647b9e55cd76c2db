# SPDX-License-Identifier: Apache-2.0
"""Where call frame information is found in ELF files: whole, without section headers, lying, cut off."""

import struct
import time
import zlib
from pathlib import Path

import pytest

from pyprof.elf.file import PT_GNU_EH_FRAME, ElfFile
from pyprof.errors import ElfError
from pyprof.unwind.rows import read_rows
from pyprof.unwind.tables import DEBUG_FRAME, EH_FRAME, CfiSource, find, sources
from tests.support.compile import compile_source, nm_symbols, run
from tests.support.dwarf import Frames, advance, def_cfa_offset
from tests.support.elfwriter import (
    PT_LOAD,
    SHF_ALLOC,
    SHT_NOBITS,
    SHT_PROGBITS,
    Section,
    Segment,
    build_elf,
)
from tests.support.unwind_files import checked_rows, file_rows, texts

BASE = 0x10000
SECTION_HEADERS_AT, PROGRAM_HEADERS_AT, PROGRAM_HEADER_COUNT_AT = 40, 64, 56


def frames_at(address: int, functions: int = 3) -> Frames:
    """.eh_frame with some functions below BASE."""
    frames = Frames(address)
    cie = frames.cie()
    for i in range(functions):
        frames.fde(cie, 0x1000 + 0x100 * i, 0x80, advance(1) + def_cfa_offset(16))
    return frames


def search_table(frames: Frames, address: int, entries: list[tuple[int, int]], encoding: int = 0x1B) -> bytes:
    """.eh_frame_hdr at an address: pairs of a function's and its entry's address."""
    head = bytes([1, encoding, 0x03, 0x3B])
    pointer = frames.address - (address + 4)
    table = b"".join(struct.pack("<ii", start - address, entry - address) for start, entry in entries)
    return head + struct.pack("<iI", pointer, len(entries)) + table


def entry_addresses(frames: Frames) -> list[tuple[int, int]]:
    """What a linker puts into the search table for `frames_at`."""
    at, found = 0, []
    while at < len(frames.data):
        length, identity = struct.unpack_from("<Ii", frames.data, at)
        if length and identity:
            pointer = struct.unpack_from("<i", frames.data, at + 8)[0]
            found.append((frames.address + at + 8 + pointer, frames.address + at))
        at += 4 + length
    return found


def image_without_sections(frames: Frames, table: bytes, behind: bytes = b"") -> bytes:
    """A file with one loaded segment at BASE: search table, .eh_frame at BASE + 0x1000, what comes behind."""
    content = table.ljust(0x1000, b"\0") + bytes(frames.data) + behind
    return build_elf(
        [
            Segment(PT_LOAD, 4, BASE, content),
            # The content's offset: behind the ELF header and two program headers.
            Segment(PT_GNU_EH_FRAME, 4, BASE, offset=176, filesz=len(table)),
        ]
    )


def found_in(image: bytes) -> tuple[CfiSource | None, list[str]]:
    """The best source, and the problems."""
    problems: list[str] = []
    return find(ElfFile.from_bytes(image, "image"), problems), problems


def test_search_table_gives_place_and_exact_size() -> None:
    frames = frames_at(BASE + 0x1000)
    table = search_table(frames, BASE, entry_addresses(frames))
    # Behind the last entry comes what is no terminator.
    source, problems = found_in(image_without_sections(frames, table, b"\x55" * 64))
    assert source == CfiSource(EH_FRAME, bytes(frames.data), BASE + 0x1000, exact=True)
    assert problems == []


def test_last_entry_of_the_section_need_not_be_last_in_the_table() -> None:
    frames = frames_at(BASE + 0x1000)
    table = search_table(frames, BASE, entry_addresses(frames)[::-1])
    source, _ = found_in(image_without_sections(frames, table, b"\x55" * 64))
    assert source is not None
    assert source.data == bytes(frames.data)


@pytest.mark.parametrize("damage", ["count", "entry", "form", "cut", "empty"])
def test_damaged_search_table_leaves_a_scan_up_to_the_terminator(damage: str) -> None:
    frames = frames_at(BASE + 0x1000)
    entries = entry_addresses(frames)
    if damage == "entry":
        entries[0] = (entries[0][0], BASE + 0x7FFFFF)
    table = bytearray(search_table(frames, BASE, [] if damage == "empty" else entries))
    if damage == "count":
        struct.pack_into("<I", table, 8, 0x10000000)
    if damage == "form":
        table[3] = 0x1B
    if damage == "cut":
        del table[16:]
    image = image_without_sections(frames, bytes(table), b"\0\0\0\0" + b"\x55" * 64)
    source, _ = found_in(image)
    assert source is not None
    assert not source.exact
    found = read_rows(ElfFile.from_bytes(image, "image"), [])
    assert found is not None
    assert found.rows.fde_count == 3
    assert found.rows.skipped == {}


@pytest.mark.parametrize(
    ("encoding", "pointer"),
    [
        (0x1B, struct.pack("<i", 0x1000 - 4)),
        (0x3B, struct.pack("<i", 0x1000)),
        (0x03, struct.pack("<I", BASE + 0x1000)),
        (0x00, struct.pack("<Q", BASE + 0x1000)),
        (0x1C, struct.pack("<q", 0x1000 - 4)),
    ],
)
def test_pointer_of_the_search_table_in_every_encoding(encoding: int, pointer: bytes) -> None:
    frames = frames_at(BASE + 0x1000)
    entries = entry_addresses(frames)
    table = bytes([1, encoding, 3, 0x3B]) + pointer + struct.pack("<I", len(entries))
    table += b"".join(struct.pack("<ii", start - BASE, entry - BASE) for start, entry in entries)
    source, _ = found_in(image_without_sections(frames, table))
    assert source == CfiSource(EH_FRAME, bytes(frames.data), BASE + 0x1000, exact=True)


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"\x02\x1b\x03\x3b", "unknown version"),
        (b"\x01\xff\x03\x3b", "unknown form 0xff"),
        (b"\x01\x9b\x03\x3b", "unknown form 0x9b"),
        (b"\x01\x1b\x03\x3b\xff\xff\xff\x7f", "leads out of the file"),
        (b"\x01\x1b", "unknown version"),
    ],
)
def test_search_table_that_leads_nowhere_is_a_problem(head: bytes, why: str) -> None:
    image = image_without_sections(frames_at(BASE + 0x1000), head.ljust(64, b"\0") if len(head) > 2 else head)
    source, problems = found_in(image)
    assert source is None
    assert len(problems) == 1
    assert why in problems[0]


def sections_image(kind: int, addr: int, offset_shift: int = 0, extra: list[Section] | None = None) -> bytes:
    """A file with a loaded segment that is .eh_frame's, and a section header for it."""
    frames = frames_at(BASE)
    segment = Segment(PT_LOAD, 4, BASE, bytes(frames.data))
    image = build_elf(
        [segment], [Section(EH_FRAME, kind, SHF_ALLOC, addr, bytes(frames.data)), *(extra or [])]
    )
    # The section's bytes are the segment's: its offset is set to the segment's.
    table = struct.unpack_from("<Q", image, SECTION_HEADERS_AT)[0]
    start = struct.unpack_from("<Q", image, PROGRAM_HEADERS_AT + 8)[0]
    patched = bytearray(image)
    struct.pack_into("<Q", patched, table + 64 + 24, start + offset_shift)
    return bytes(patched)


def test_section_is_taken_where_it_is_loaded() -> None:
    source, problems = found_in(sections_image(SHT_PROGBITS, BASE))
    assert source == CfiSource(EH_FRAME, bytes(frames_at(BASE).data), BASE, exact=True)
    assert problems == []


@pytest.mark.parametrize(("addr", "shift"), [(BASE + 8, 0), (BASE, 8), (0, 0)])
def test_section_that_is_not_what_is_loaded_is_a_problem(addr: int, shift: int) -> None:
    source, problems = found_in(sections_image(SHT_PROGBITS, addr, shift))
    assert source is None
    assert len(problems) == 1


def test_section_without_bytes_is_refused() -> None:
    source, problems = found_in(sections_image(SHT_NOBITS, BASE))
    assert source is None
    assert problems == ["section .eh_frame of image has no contents in this file"]


def test_relocatable_file_is_refused() -> None:
    image = build_elf([], [Section(EH_FRAME, SHT_PROGBITS, SHF_ALLOC, 0, bytes(frames_at(0).data))], kind=1)
    assert found_in(image) == (None, ["image is not linked yet"])


def test_file_without_any_has_none_and_no_problem() -> None:
    assert found_in(build_elf([Segment(PT_LOAD, 5, 0x1000, b"\xc3")], [])) == (None, [])


# .debug_frame


def debug_frames() -> Frames:
    """.debug_frame with one function."""
    frames = Frames(0, debug=True)
    frames.fde(frames.cie(letters=b""), 0x1000, 0x80, advance(1) + def_cfa_offset(16))
    return frames


def compressed(content: bytes, kind: int = 1, size: int | None = None) -> bytes:
    """The bytes of a compressed section: ch_type, ch_reserved, ch_size, ch_addralign; the stream."""
    stated = len(content) if size is None else size
    return struct.pack("<IIQQ", kind, 0, stated, 8) + zlib.compress(content)


def debug_image(data: bytes, flags: int = 0) -> bytes:
    """A file whose only call frame information is .debug_frame."""
    return build_elf(
        [Segment(PT_LOAD, 5, 0x1000, b"\xc3")], [Section(DEBUG_FRAME, SHT_PROGBITS, flags, 0, data)]
    )


@pytest.mark.parametrize("flags", [0, 0x800])
def test_debug_frame_serves_where_there_is_nothing_else(flags: int) -> None:
    content = bytes(debug_frames().data)
    image = debug_image(compressed(content) if flags else content, flags)
    assert found_in(image) == (CfiSource(DEBUG_FRAME, content, 0, exact=True), [])
    found = read_rows(ElfFile.from_bytes(image, "image"), [])
    assert found is not None
    assert found.rows.addresses.tolist() == [0x1000, 0x1001, 0x1080]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\1\0\0\0", "ends within its header"),
        (compressed(b"abc", kind=2), "unknown way 2"),
        (compressed(b"abc", size=1 << 40), "above"),
        (compressed(b"abc", size=2), "does not have the 2 bytes"),
        (compressed(b"abc", size=4), "does not have the 4 bytes"),
        (compressed(b"abc")[:-8], "does not have the 3 bytes"),
        (struct.pack("<IIQQ", 1, 0, 3, 8) + b"garbage", "cannot be decompressed"),
        (compressed(b"\0" * (1 << 26), size=10), "does not have the 10 bytes"),
    ],
)
def test_compressed_section_that_lies_is_a_problem(data: bytes, why: str) -> None:
    source, problems = found_in(debug_image(data, 0x800))
    assert source is None
    assert len(problems) == 1
    assert why in problems[0]


def test_eh_frame_comes_before_debug_frame_and_an_empty_one_gives_way() -> None:
    debug = Section(DEBUG_FRAME, SHT_PROGBITS, 0, 0, bytes(debug_frames().data))
    image = sections_image(SHT_PROGBITS, BASE, extra=[debug])
    names = [source.name for source in sources(ElfFile.from_bytes(image, "image"), [])]
    assert names == [EH_FRAME, DEBUG_FRAME]
    empty = bytearray(image)
    start = struct.unpack_from("<Q", image, PROGRAM_HEADERS_AT + 8)[0]
    empty[start : start + len(frames_at(BASE).data)] = bytes(len(frames_at(BASE).data))
    found = read_rows(ElfFile.from_bytes(bytes(empty), "image"), [])
    assert found is not None
    assert found.source == DEBUG_FRAME


# What the tools make


SOURCE = """
int puts(const char *);
__attribute__((noinline)) int one(int x) { return puts("1") + x; }
__attribute__((noinline)) int two(int x) { char a[500]; a[x] = 1; return puts(a) + one(x); }
int main(int argc, char **argv) { return two(argc) + one(argc) + !argv; }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ordinary executable."""
    return compile_source(tmp_path_factory.mktemp("program"), "hello.c", SOURCE, "-O2", "-g")


def test_program_without_section_headers_has_the_rows_of_its_twin(program: Path, tmp_path: Path) -> None:
    whole = checked_rows(program)
    bare = tmp_path / "bare"
    run("llvm-objcopy-19", "--strip-sections", str(program), str(bare))
    assert ElfFile.from_bytes(bare.read_bytes(), "bare").sections() == []
    problems: list[str] = []
    stripped = file_rows(bare, problems)
    assert stripped is not None
    assert problems == []
    assert stripped.rows.addresses.tolist() == whole.rows.addresses.tolist()
    assert stripped.rows.numbers.tolist() == whole.rows.numbers.tolist()
    assert bytes(stripped.rows.rules) == bytes(whole.rows.rules)
    assert stripped.rows.skipped == {}


def test_program_with_two_executable_segments_has_rows_in_both(tmp_path: Path) -> None:
    source = 'int puts(const char *);\n__attribute__((section(".text_far"), noinline)) int far(int x) {'
    source += ' return puts("far") + x; }\nint main(int c, char **v) { return far(c) + !v; }\n'
    path = compile_source(
        tmp_path, "far.c", source, "-O2", "-no-pie", "-Wl,--section-start=.text_far=0x40000000"
    )
    found = checked_rows(path)
    symbols = nm_symbols(path)
    assert symbols["far"] == 0x40000000
    for name in ("far", "main"):
        assert texts(found, symbols[name], symbols[name] + 1) == [(0, "rsp+8 u c-8")]


def test_separate_debug_file_has_none(program: Path, tmp_path: Path) -> None:
    debug = tmp_path / "hello.debug"
    run("objcopy", "--only-keep-debug", str(program), str(debug))
    problems: list[str] = []
    assert file_rows(debug, problems) is None
    assert len(problems) == 1
    assert "no contents" in problems[0]


def test_assembled_debug_frame_has_the_rows_that_readelf_gives(tmp_path: Path) -> None:
    source = (
        "\t.cfi_sections .debug_frame\n\t.text\nf:\n\t.cfi_startproc\n\tpush %rbp\n\t.cfi_def_cfa_offset 16\n"
    )
    source += "\t.cfi_offset %rbp, -16\n\tpop %rbp\n\t.cfi_def_cfa_offset 8\n\tret\n\t.cfi_endproc\n"
    flags = ("-shared", "-nostdlib")
    path = compile_source(tmp_path, "debug.S", source, *flags, output="debug.so")
    found = checked_rows(path)
    assert found.source == DEBUG_FRAME
    start = nm_symbols(path)["f"]
    expected = [(0, "rsp+8 u c-8"), (1, "rsp+16 c-16 c-8"), (2, "rsp+8 c-16 c-8")]
    assert texts(found, start, start + 3) == expected
    small = tmp_path / "compressed.so"
    run("objcopy", "--compress-debug-sections=zlib", str(path), str(small))
    again = file_rows(small)
    assert again is not None
    assert texts(again, start, start + 3) == expected


def survive(image: bytes) -> bool:
    """Reads all rows of a damaged file; True where there are some."""
    started = time.monotonic()
    try:
        found = read_rows(ElfFile.from_bytes(image, "image"), [])
    except ElfError:
        return False
    finally:
        assert time.monotonic() - started < 1.0
    return found is not None


@pytest.mark.parametrize("stripped", [False, True])
def test_every_truncation_gives_an_answer_or_an_error(program: Path, tmp_path: Path, stripped: bool) -> None:
    if stripped:
        run("llvm-objcopy-19", "--strip-sections", str(program), str(tmp_path / "bare"))
    image = (tmp_path / "bare" if stripped else program).read_bytes()
    lengths = [*range(min(len(image), 0x400)), *range(0x400, len(image), 61), len(image)]
    answers = [survive(image[:length]) for length in lengths]
    assert answers[-1]
    assert not answers[0]


@pytest.mark.parametrize("stripped", [False, True])
def test_every_changed_header_byte_gives_an_answer_or_an_error(
    program: Path, tmp_path: Path, stripped: bool
) -> None:
    if stripped:
        run("llvm-objcopy-19", "--strip-sections", str(program), str(tmp_path / "bare"))
    image = (tmp_path / "bare" if stripped else program).read_bytes()
    sections = struct.unpack_from("<Q", image, SECTION_HEADERS_AT)[0]
    count = struct.unpack_from("<H", image, PROGRAM_HEADER_COUNT_AT)[0]
    search = ElfFile.from_bytes(image, "image").headers_of(PT_GNU_EH_FRAME)[0].offset
    places = [*range(PROGRAM_HEADERS_AT + 56 * count), *range(search, search + 40)]
    if sections:
        places += range(sections, len(image), 3)
    for at in places:
        for bits in (0xFF, 0x80, 0x01):
            changed = bytearray(image)
            changed[at] ^= bits
            survive(bytes(changed))
