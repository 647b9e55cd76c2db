# SPDX-License-Identifier: Apache-2.0
"""Who a file is: against readelf, hashlib, the ABI's layouts, and files that lie."""

import hashlib
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from pyprof.elf.file import ElfFile, open_regular
from pyprof.elf.identity import (
    Identity,
    Segment,
    address_of_offset,
    identity_of,
    read_identity,
    read_vdso,
)
from pyprof.errors import ElfError
from tests.support.compile import compile_source, run
from tests.support.elfwriter import PT_LOAD, PT_NOTE, SHT_NOTE, Section, build_elf, note
from tests.support.elfwriter import Segment as Part

BUILD_ID = bytes(range(20))
HELLO = "int main(void) { return 0; }\n"


def identity_at(path: Path | str) -> Identity:
    fd = open_regular(path)
    try:
        return read_identity(fd, str(path))
    finally:
        os.close(fd)


def identity_in(image: bytes) -> Identity:
    return identity_of(ElfFile.from_bytes(image, "image"))


def test_build_id_in_note_segment_is_read() -> None:
    image = build_elf([Part(PT_NOTE, data=note(b"GNU\0", 3, BUILD_ID))])
    assert identity_in(image).build_id == BUILD_ID.hex()


def test_build_id_behind_another_note_with_odd_size_is_read() -> None:
    notes = note(b"abc\0", 1, b"12345") + note(b"GNU\0", 3, BUILD_ID)
    assert identity_in(build_elf([Part(PT_NOTE, data=notes)])).build_id == BUILD_ID.hex()


def test_build_id_in_segment_aligned_to_8_is_read() -> None:
    notes = note(b"GNU\0", 5, b"\1\0\0\xc0\4\0\0\0\3\0\0\0", 8) + note(b"GNU\0", 3, BUILD_ID, 8)
    assert identity_in(build_elf([Part(PT_NOTE, data=notes, align=8)])).build_id == BUILD_ID.hex()


def test_build_id_in_second_note_segment_is_read() -> None:
    parts = [
        Part(PT_NOTE, data=note(b"GNU\0", 1, b"\0" * 16)),
        Part(PT_NOTE, data=note(b"GNU\0", 3, BUILD_ID)),
    ]
    assert identity_in(build_elf(parts)).build_id == BUILD_ID.hex()


def test_build_id_is_read_from_section_when_there_is_no_note_segment() -> None:
    section = Section(".note.gnu.build-id", SHT_NOTE, data=note(b"GNU\0", 3, BUILD_ID))
    assert identity_in(build_elf([], [section])).build_id == BUILD_ID.hex()


def test_go_build_id_is_read_beside_gnu_build_id() -> None:
    notes = note(b"Go\0\0", 4, b"abc/def/ghi/jkl") + note(b"GNU\0", 3, BUILD_ID)
    identity = identity_in(build_elf([Part(PT_NOTE, data=notes)]))
    assert (identity.go_build_id, identity.build_id) == ("abc/def/ghi/jkl", BUILD_ID.hex())


def test_other_owners_and_types_are_no_build_id() -> None:
    notes = note(b"GNU\0", 1, BUILD_ID) + note(b"Xen\0", 3, BUILD_ID) + note(b"Go\0\0", 3, b"x")
    identity = identity_in(build_elf([Part(PT_NOTE, data=notes)]))
    assert (identity.build_id, identity.go_build_id) == ("", "")


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 21])
def test_note_longer_than_its_segment_gives_no_build_id(size: int) -> None:
    lying = struct.pack("<III", 4, size, 3) + b"GNU\0" + BUILD_ID
    assert identity_in(build_elf([Part(PT_NOTE, data=lying)])).build_id == ""


def test_note_segment_outside_the_file_gives_no_build_id() -> None:
    image = build_elf([Part(PT_NOTE, offset=1 << 40, filesz=1 << 50), Part(PT_LOAD, 5, 0x1000, b"x")])
    assert identity_in(image).build_id == ""


def test_segments_are_the_loadable_ones_in_order() -> None:
    image = build_elf(
        [
            Part(PT_LOAD, 4, 0, offset=0, filesz=64, memsz=64),
            Part(PT_NOTE, data=note(b"GNU\0", 3, BUILD_ID)),
            Part(PT_LOAD, 5, 0x401000, offset=0x40, filesz=16, memsz=32),
        ]
    )
    assert identity_in(image).segments == (Segment(0, 64, 0, 64, 4), Segment(0x40, 16, 0x401000, 32, 5))


@pytest.mark.parametrize("size", [64, 4095, 4096, 4097, 8191, 8193, 20000])
def test_htlhash_is_over_head_tail_and_length_for_any_size(size: int) -> None:
    content = build_elf([Part(PT_LOAD, 5, 0, b"")])[:64].ljust(size, b"\x5a")
    content = content[:32] + b"\0" * 8 + content[40:54] + b"\0" * 4 + content[58:]  # no program headers
    expected = hashlib.sha256(content[:4096] + content[-4096:] + struct.pack(">Q", size)).digest()[:16].hex()
    assert identity_in(content).htlhash == expected


def test_htlhash_is_the_same_after_many_files() -> None:
    image = build_elf([Part(PT_LOAD, 5, 0, b"x" * 100)])
    assert len({identity_in(image).htlhash for _ in range(120)}) == 1


TWO = (
    Segment(0, 0x5F8, 0x400000, 0x5F8, 4),
    Segment(0x1000, 0x1F0, 0x401000, 0x1F0, 5),
    Segment(0x4000, 0x80, 0x40000000, 0x80, 5),
    Segment(0x4100, 0x100, 0x404100, 0x900, 6),
)


@pytest.mark.parametrize(
    ("offset", "address"),
    [
        (0x1000, 0x401000),
        (0x11EF, 0x4011EF),
        (0x4000, 0x40000000),
        (0x4010, 0x40000010),
        (0x10, 0x400010),  # in no executable segment: the one that holds it
        (0x11F8, 0x4011F8),  # behind the segment's bytes, in its last page
        (0x9000, None),
    ],
)
def test_address_of_offset_uses_the_segment_that_holds_it(offset: int, address: int | None) -> None:
    assert address_of_offset(TWO, offset) == address


def test_address_of_offset_at_start_of_a_mapped_page_before_the_segment() -> None:
    # lld: the code begins in the middle of a file page; the kernel maps the page from its start
    segments = [Segment(0, 0x12F0, 0, 0x12F0, 4), Segment(0x12F0, 0x500, 0x22F0, 0x500, 5)]
    assert address_of_offset(segments, 0x1000) == 0x2000


def test_address_of_offset_without_segments_is_unknown() -> None:
    assert address_of_offset((), 0) is None


def test_both_executable_segments_of_a_real_program_give_addresses_of_nm(tmp_path: Path) -> None:
    source = (
        'int main(void) { return 0; }\n__attribute__((section(".text_far"))) int far(void) { return 1; }\n'
    )
    path = compile_source(tmp_path, "two.c", source, "-no-pie", "-Wl,--section-start=.text_far=0x40000000")
    segments = identity_at(path).segments
    symbols = dict(re.findall(r"([0-9a-f]+) T (main|far)\n", run("nm", str(path))))
    for address, name in symbols.items():
        offset = _file_offset_by_readelf(path, int(address, 16))
        assert address_of_offset(segments, offset) == int(address, 16), name
    assert len(symbols) == 2


def _file_offset_by_readelf(path: Path, address: int) -> int:
    for line in run("readelf", "-lW", str(path)).splitlines():
        fields = line.split()
        if fields[:1] == ["LOAD"]:
            offset, vaddr, size = int(fields[1], 16), int(fields[2], 16), int(fields[4], 16)
            if vaddr <= address < vaddr + size:
                return address - vaddr + offset
    raise AssertionError(f"no segment at {address:#x}")


def test_identity_is_the_same_without_section_headers(tmp_path: Path) -> None:
    path = compile_source(tmp_path, "hello.c", HELLO, "-Wl,--build-id=sha1")
    before = identity_at(path)
    run("llvm-objcopy-19", "--strip-sections", str(path), str(tmp_path / "bare"))
    after = identity_at(tmp_path / "bare")
    assert before.build_id
    assert after.build_id == before.build_id
    assert [s for s in after.segments if s.flags & 1] == [s for s in before.segments if s.flags & 1]


def test_build_id_of_a_split_debug_file_is_that_of_the_program(tmp_path: Path) -> None:
    path = compile_source(tmp_path, "hello.c", HELLO, "-g", "-Wl,--build-id=sha1")
    run("objcopy", "--only-keep-debug", str(path), str(tmp_path / "hello.debug"))
    assert identity_at(tmp_path / "hello.debug").build_id == identity_at(path).build_id != ""


def test_go_build_id_of_a_real_program_is_that_of_go_tool(tmp_path: Path) -> None:
    go = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")
    if go is None:
        pytest.skip("go is not installed")
    expected = run(go, "tool", "buildid", go).strip()
    assert identity_at(go).go_build_id == expected != ""


def test_vdso_has_a_build_id_that_readelf_confirms(tmp_path: Path) -> None:
    image = read_vdso()
    assert image is not None
    (tmp_path / "vdso").write_bytes(image)
    assert f"Build ID: {identity_in(image).build_id}\n" in run("readelf", "-n", str(tmp_path / "vdso"))


def installed_files() -> list[Path]:
    found = []
    for folder in (Path("/usr/bin"), Path("/usr/lib/x86_64-linux-gnu")):
        for path in sorted(folder.iterdir()):
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    if file.read(6) == b"\x7fELF\x02\x01":
                        found.append(path)
    return found


def test_build_id_of_every_installed_file_is_that_of_readelf() -> None:
    files = installed_files()
    assert len(files) > 100
    printed = subprocess.run(
        ["readelf", "-n", *map(str, files)], capture_output=True, text=True, check=False, errors="replace"
    ).stdout
    expected = {}
    for block in printed.split("\nFile: ")[1:]:
        name, _, rest = block.partition("\n")
        match = re.search(r"Build ID: ([0-9a-f]+)", rest)
        expected[name] = match.group(1) if match else ""
    assert {str(path): identity_at(path).build_id for path in files} == expected


def test_directory_is_refused() -> None:
    with pytest.raises(ElfError, match="not a regular file"):
        open_regular("/usr/bin")


def test_pipe_without_writer_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ElfError, match="not a regular file"):
        open_regular(tmp_path / "pipe")


@pytest.mark.parametrize("name", [b"/nonexistent/\xff", b"nul\0byte"])
def test_unopenable_path_is_an_elf_error(name: bytes) -> None:
    with pytest.raises(ElfError, match="cannot open"):
        open_regular(name)
