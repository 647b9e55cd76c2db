# SPDX-License-Identifier: Apache-2.0
"""What an executable is known by, and where its segments lie: read once for each file that is sampled."""

import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, cast

from pyprof.elf.file import PAGE, PF_X, PT_LOAD, PT_NOTE, SHT_NOTE, ElfFile, show_bytes
from pyprof.errors import ElfError

NT_GNU_BUILD_ID = 3
NT_GO_BUILD_ID = 4
MAX_NOTES = 1 << 20
"""Most bytes of one note segment or section that are read; real ones have under 1 KiB."""

MAX_BUILD_ID = 256
MAX_GO_BUILD_ID = 4096

_NOTE = struct.Struct("<III")
_HOST_PAGE = os.sysconf("SC_PAGESIZE")


class Segment(NamedTuple):
    """A loadable segment (PT_LOAD): file bytes offset..offset+filesz appear at vaddr; flags are PF_*."""

    offset: int
    filesz: int
    vaddr: int
    memsz: int
    flags: int


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells one executable from another.

    Attributes:
        build_id: GNU build ID, lower-case hex, or "".
        go_build_id: Go build ID, or "".
        htlhash: hash of head, tail and length, 32 hex digits.
        segments: its loadable segments, in the order of the file.
        size: bytes of the file.
    """

    build_id: str
    go_build_id: str
    htlhash: str
    segments: tuple[Segment, ...]
    size: int


def read_identity(fd: int, name: str = "file") -> Identity:
    """Reads who a file is.

    Args:
        fd: open for reading; stays the caller's.
        name: what messages call it.

    Raises:
        ElfError: not an ELF file of the supported class, or a damaged one.
    """
    return identity_of(ElfFile(fd, name))


def identity_of(file: ElfFile) -> Identity:
    """The same for a file whose headers are read already, or an image in memory.

    Raises:
        ElfError: it cannot be read.
    """
    build_id, go_build_id = _build_ids(file)
    segments = tuple(
        Segment(header.offset, header.filesz, header.vaddr, header.memsz, header.flags)
        for header in file.headers
        if header.type == PT_LOAD
    )
    return Identity(build_id, go_build_id, _htlhash(file), segments, file.size)


def address_of_offset(segments: Sequence[Segment], file_offset: int) -> int | None:
    """ELF virtual address of a byte of the file, as a mapping of code shows it.

    A file may have several executable segments with different biases, so it is the offset that selects
    one. The kernel maps whole pages: what lies in a segment's first or last page but outside its bytes
    belongs to it too, unless another executable segment holds the very byte.

    Returns:
        The address, or None where no segment is there.
    """
    executable = [segment for segment in segments if segment.flags & PF_X]
    for segment in executable:
        if segment.offset <= file_offset < segment.offset + segment.filesz:
            return file_offset - segment.offset + segment.vaddr
    for segment in executable:
        start = segment.offset & -_HOST_PAGE
        end = (segment.offset + segment.filesz + _HOST_PAGE - 1) & -_HOST_PAGE
        if segment.filesz and start <= file_offset < end:
            return file_offset - segment.offset + segment.vaddr
    for segment in segments:
        if segment.offset <= file_offset < segment.offset + segment.filesz:
            return file_offset - segment.offset + segment.vaddr
    return None


def read_vdso() -> bytes | None:
    """The ELF image that the kernel maps as [vdso], from our own memory; None where there is none.

    Every process of one kind (64-bit) has the same image, though at another address.
    """
    try:
        with open("/proc/self/maps", "rb") as maps:
            line = next((line for line in maps if line.endswith(b"[vdso]\n")), None)
        if line is None:
            return None
        start, end = (int(part, 16) for part in line.split(b" ", 1)[0].split(b"-"))
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            image = os.pread(memory, end - start, start)
        finally:
            os.close(memory)
    except (OSError, ValueError, OverflowError):
        return None
    return image or None


def _build_ids(file: ElfFile) -> tuple[str, str]:
    """GNU and Go build ID; the section headers are read only where the program headers give neither."""
    found = ["", ""]
    for header in file.headers:
        if header.type == PT_NOTE:
            _scan_notes(file, header.offset, header.filesz, header.align, found)
    if found == ["", ""]:  # relocatable and split debug files: no note segment, or an empty one
        try:
            sections = file.sections()
        except ElfError:
            sections = []  # damaged; the program headers are what the kernel goes by
        for section in sections:
            if section.type == SHT_NOTE:
                _scan_notes(file, section.offset, section.size, 4, found)
    return found[0], found[1]


def _scan_notes(file: ElfFile, offset: int, size: int, align: int, found: list[str]) -> None:
    """Notes: name size, descriptor size, type, then name and descriptor, each padded.

    The padding is 4 bytes although the ABI asks for 8 in 64-bit files, except in segments aligned to 8
    (.note.gnu.property): https://sourceware.org/bugzilla/show_bug.cgi?id=23509.
    """
    if offset + size > file.size or size > MAX_NOTES:
        return
    _take_notes(file.read(offset, size), 7 if align == 8 else 3, found)


def kernel_build_id(path: str = "/sys/kernel/notes") -> str:
    """GNU build ID of the running kernel, from its notes; "" where they cannot be read."""
    found = ["", ""]
    try:
        with open(path, "rb") as notes:
            _take_notes(notes.read(MAX_NOTES), 3, found)
    except OSError:
        return ""
    return found[0]


def _take_notes(data: bytes, pad: int, found: list[str]) -> None:
    position = 0
    size = len(data)
    while position + _NOTE.size <= size:
        name_size, desc_size, kind = _NOTE.unpack_from(data, position)
        name_start = position + _NOTE.size
        desc_start = (name_start + name_size + pad) & ~pad
        desc_end = desc_start + desc_size
        if desc_end > size:
            return
        name = data[name_start : name_start + min(name_size, 8)]
        if name == b"GNU\0" and kind == NT_GNU_BUILD_ID and not found[0] and 0 < desc_size <= MAX_BUILD_ID:
            found[0] = data[desc_start:desc_end].hex()
        elif name == b"Go\0\0" and kind == NT_GO_BUILD_ID and not found[1] and desc_size <= MAX_GO_BUILD_ID:
            found[1] = show_bytes(data[desc_start:desc_end].rstrip(b"\0"))
        position = (desc_end + pad) & ~pad


def _htlhash(file: ElfFile) -> str:
    """Hash of head, tail and length, as the OpenTelemetry profiles conventions define it.

    The first half of SHA-256 over the first 4096 bytes, the last 4096 bytes (both fewer in a shorter file)
    and the length, a big-endian 64-bit number:
    https://opentelemetry.io/docs/specs/semconv/registry/attributes/process/
    (process.executable.build_id.htlhash).
    """
    part = min(file.size, PAGE)
    content = file.read(0, part) + file.read(file.size - part, part) + struct.pack(">Q", file.size)
    digest: bytes = _sha256()(content).digest()
    return digest[:16].hex()


@cache
def _sha256() -> Callable[[bytes], Any]:
    """SHA-256 of the interpreter's own module: hashlib loads OpenSSL, 4 MiB for 120 us less a file."""
    for module in ("_sha2", "_sha256"):  # from Python 3.12 on, and before
        with suppress(ImportError):
            return cast(Callable[[bytes], Any], __import__(module).sha256)
    import hashlib

    return hashlib.sha256
