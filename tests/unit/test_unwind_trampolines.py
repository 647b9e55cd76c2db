# SPDX-License-Identifier: Apache-2.0
"""Signal trampolines are found by their code, in the files that may have some."""

import struct

import pytest

from pyprof.elf.file import EM_AARCH64, EM_X86_64, ElfFile
from pyprof.errors import ElfError
from pyprof.unwind import trampolines
from pyprof.unwind.rows import read_rows
from pyprof.unwind.tables import CODE, DEBUG_FRAME, sources
from pyprof.unwind.trampolines import find_trampolines
from tests.support.dwarf import Frames
from tests.support.elfwriter import PT_LOAD, SHT_PROGBITS, Section, Segment, build_elf

BASE = 0x400000
READ, READ_EXECUTE = 4, 5
PT_DYNAMIC, DT_NEEDED, DT_SONAME = 2, 1, 14
# What assemblers make of it; the first is musl's and Go's, as `objdump -d` shows it.
MOV_RAX = bytes.fromhex("48c7c00f000000 0f05")  # mov $0xf,%rax; syscall
MOV_EAX = bytes.fromhex("b80f000000 0f05")  # mov $0xf,%eax; syscall
MOV_R8D = bytes.fromhex("41b80f000000 0f05")  # mov $0xf,%r8d; syscall
SIGNAL_FRAMES = [b"zRS", b"zPLRS", b"zRSB"]


def file_of(*segments: Segment, machine: int = EM_X86_64, sections: tuple[Section, ...] = ()) -> ElfFile:
    return ElfFile.from_bytes(build_elf(list(segments), list(sections), machine=machine), "image")


def code(content: bytes, vaddr: int = BASE, flags: int = READ_EXECUTE) -> Segment:
    return Segment(PT_LOAD, flags, vaddr, content)


@pytest.mark.parametrize("form", [MOV_RAX, MOV_EAX])
@pytest.mark.parametrize("at", [0, 1, 3, 1000])
def test_both_forms_are_found(form: bytes, at: int) -> None:
    file = file_of(code(b"\x90" * at + form + b"\x90" * 20))
    assert find_trampolines(file, b"") == ((BASE + at, BASE + at + len(form)),)


def test_a_system_call_with_another_register_or_number_is_none() -> None:
    others = MOV_R8D + MOV_RAX.replace(b"\x0f\0", b"\x0e\0") + MOV_RAX[:-2] + b"\xcd\x80" + MOV_RAX[3:]
    assert find_trampolines(file_of(code(others)), b"") == ()


def test_all_are_found_in_order_of_address() -> None:
    first, second = code(MOV_RAX, BASE + 0x10000), code(b"\xc3" + MOV_EAX + MOV_RAX, BASE)
    assert find_trampolines(file_of(first, second), b"") == (
        (BASE + 1, BASE + 8), (BASE + 8, BASE + 17), (BASE + 0x10000, BASE + 0x10009),
    )  # fmt: skip


@pytest.mark.parametrize("before", range(1, 12))
def test_a_trampoline_across_the_end_of_a_block_is_found_once(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trampolines, "_BLOCK", 64)
    at = 128 - before
    file = file_of(code(b"\x90" * at + MOV_RAX + b"\x90" * 100))
    assert find_trampolines(file, b"") == ((BASE + at, BASE + at + 9),)


def test_r8d_across_the_end_of_a_block_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trampolines, "_BLOCK", 64)
    for before in range(1, 12):
        assert find_trampolines(file_of(code(b"\x90" * (128 - before) + MOV_R8D + b"\x90" * 99)), b"") == ()


def test_memory_that_is_not_executable_is_passed_over() -> None:
    assert find_trampolines(file_of(code(MOV_RAX, flags=READ)), b"") == ()


def test_no_more_code_than_stated_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trampolines, "MAX_CODE", 100)
    assert find_trampolines(file_of(code(b"\x90" * 91 + MOV_RAX)), b"") == ((BASE + 91, BASE + 100),)
    assert find_trampolines(file_of(code(b"\x90" * 92 + MOV_RAX)), b"") == ()


def test_a_file_full_of_them_has_a_few() -> None:
    found = find_trampolines(file_of(code(MOV_RAX * 10000)), b"")
    assert found == tuple((BASE + 9 * i, BASE + 9 * i + 9) for i in range(64))


@pytest.mark.parametrize("letters", SIGNAL_FRAMES)
def test_a_file_that_describes_its_own_is_not_searched(letters: bytes) -> None:
    frames = Frames()
    augmentation = {b"zRS": b"\x1b", b"zRSB": b"\x1b", b"zPLRS": b"\x9b\0\0\0\0\x1b\x1b"}[letters]
    frames.cie(letters=letters, augmentation=augmentation)
    assert find_trampolines(file_of(code(MOV_RAX)), bytes(frames.data)) == ()


def test_a_file_that_describes_others_is_searched() -> None:
    frames = Frames()
    frames.cie(letters=b"zPLR", augmentation=b"\x9b\0\0\0\0\x1b\x1b")
    assert find_trampolines(file_of(code(MOV_RAX)), bytes(frames.data)) == ((BASE, BASE + 9),)


@pytest.mark.parametrize(("tag", "found"), [(DT_NEEDED, 0), (DT_SONAME, 1)])
def test_a_file_that_needs_libraries_has_theirs(tag: int, found: int) -> None:
    dynamic = Segment(PT_DYNAMIC, READ, BASE + 0x1000, struct.pack("<qQqQ", tag, 1, 0, 0))
    assert len(find_trampolines(file_of(code(MOV_RAX), dynamic), b"")) == found


def test_arm64_code_is_found_where_instructions_begin() -> None:
    form = struct.pack("<2I", 0xD2801168, 0xD4000001)  # mov x8, #139; svc #0
    file = file_of(code(b"\0" + form + b"\0" * 3 + form), machine=EM_AARCH64)
    assert find_trampolines(file, b"") == ((BASE + 12, BASE + 20),)


def test_code_that_is_cut_off_is_an_error() -> None:
    file = file_of(Segment(PT_LOAD, READ_EXECUTE, BASE, b"\x90", filesz=1 << 20))
    with pytest.raises(ElfError):
        find_trampolines(file, b"")
    problems: list[str] = []
    assert list(sources(file, problems)) == []
    assert problems != []


def test_a_file_without_information_has_the_rows_of_its_trampoline() -> None:
    found = read_rows(file_of(code(b"\xc3" * 16 + MOV_RAX)), [])
    assert found is not None
    assert (found.source, found.rows.addresses.tolist()) == (CODE, [BASE + 15, BASE + 25])


def test_a_file_without_information_and_trampolines_has_no_rows() -> None:
    assert read_rows(file_of(code(b"\xc3" * 16)), []) is None


def test_debug_information_is_used_beside_trampolines() -> None:
    frames = Frames(0, debug=True)
    frames.fde(frames.cie(letters=b""), BASE, 8)
    section = Section(DEBUG_FRAME, SHT_PROGBITS, 0, 0, bytes(frames.data))
    found = read_rows(file_of(code(b"\xc3" * 16 + MOV_RAX), sections=(section,)), [])
    assert found is not None
    assert (found.source, found.rows.fde_count) == (DEBUG_FRAME, 1)
    assert found.rows.addresses.tolist() == [BASE, BASE + 8, BASE + 15, BASE + 25]
