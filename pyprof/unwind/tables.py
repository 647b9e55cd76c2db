# SPDX-License-Identifier: Apache-2.0
"""Finds the call frame information of an ELF file: what says, for each address, how to find the caller."""

import struct
import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from pyprof.elf.file import (
    ET_REL,
    PT_GNU_EH_FRAME,
    PT_LOAD,
    SHF_ALLOC,
    SHT_NOBITS,
    ElfFile,
    ProgramHeader,
    Section,
)
from pyprof.errors import ElfError
from pyprof.unwind.trampolines import Trampoline, find_trampolines

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_BYTES = 1 << 28
"""Most bytes of call frame information, decompressed: ten times what the largest browsers have."""

EH_FRAME, DEBUG_FRAME = ".eh_frame", ".debug_frame"
CODE = ".text"

Where = TypeVar("Where")

_GO_SECTIONS = (".gopclntab", ".data.rel.ro.gopclntab", ".note.go.buildid", ".go.buildinfo")
_SHF_COMPRESSED = 0x800
_ELFCOMPRESS_ZLIB = 1
_CHDR = struct.Struct("<IIQQ")
_HEADER = 12
_U64 = 1 << 64

# DW_EH_PE_*: Linux Standard Base Core 5.0, section 10.5.1.
_FORMATS = {0x00: "<Q", 0x02: "<H", 0x03: "<I", 0x04: "<Q", 0x0A: "<h", 0x0B: "<i", 0x0C: "<q"}
_PCREL, _DATAREL = 0x10, 0x30
_UDATA4, _DATAREL_SDATA4 = 0x03, 0x3B


@dataclass(frozen=True, slots=True)
class CfiSource:
    """Call frame information of a file.

    Attributes:
        name: EH_FRAME or DEBUG_FRAME, which differ in layout; CODE where there is none, but trampolines are.
        data: the bytes.
        address: ELF virtual address of the first; 0 for DEBUG_FRAME, which is not loaded.
        exact: the data ends where the information does. Else an entry of no length is the end.
        trampolines: signal trampolines of the file that it may say nothing about.
    """

    name: str
    data: bytes
    address: int
    exact: bool
    trampolines: tuple[Trampoline, ...] = ()

    def parts(self) -> "tuple[Buffer, ...]":
        """All that rows depend on, as bytes; other information of the same name has other parts."""
        facts = struct.pack("<Q?", self.address, self.exact)
        return self.data, facts, array("Q", chain.from_iterable(self.trampolines)).tobytes()


def find(file: ElfFile, problems: list[str]) -> CfiSource | None:
    """The best call frame information of a file; None where it has none that can be used.

    Args:
        file: the file.
        problems: receives a sentence for each part that is there but cannot be used.
    """
    return next(sources(file, problems), None)


def sources(file: ElfFile, problems: list[str]) -> Iterator[CfiSource]:
    """Yields all call frame information of a file, the best first.

    .eh_frame is found by its section, and where the section headers are gone or wrong through
    PT_GNU_EH_FRAME, by which the running program finds it. .debug_frame, which is not loaded, comes last, and
    not at all for Go.

    Args:
        file: the file; a relocatable one has none, since its addresses are not known yet.
        problems: receives a sentence for each part that is there but cannot be used.
    """
    if file.type == ET_REL:
        problems.append(f"{file.name} is not linked yet")
        return
    try:
        sections = file.sections()
    except ElfError as error:
        problems.append(str(error))
        sections = []
    found, has_section = None, False
    for section in sections:
        if section.name == EH_FRAME and found is None:
            # In a separate debug file it has no bytes, and its offset leads to those of others.
            has_section = has_section or section.type == SHT_NOBITS
            found = _attempt(_by_section, file, section, problems)
    if found is None and not has_section:
        for header in file.headers_of(PT_GNU_EH_FRAME)[:1]:
            found = _attempt(_by_header, file, header, problems)
    if found is not None and not any(found.data):
        found = None  # what linkers add at its end is all there is of it
    trampolines = _trampolines(file, found.data if found is not None else b"", problems)
    if found is not None:
        yield replace(found, trampolines=trampolines)
    debug = _debug_frame_of(file, sections, problems)
    if debug is not None:
        yield replace(debug, trampolines=trampolines)
    elif found is None and trampolines:
        yield CfiSource(CODE, b"", 0, exact=True, trampolines=trampolines)


def _debug_frame_of(file: ElfFile, sections: list[Section], problems: list[str]) -> CfiSource | None:
    # Go's says less than its program counter table: neither where the caller's frame pointer is, nor where
    # stacks end or are left for others.
    if any(section.name in _GO_SECTIONS for section in sections):
        return None
    for section in sections:
        if section.name == DEBUG_FRAME and section.type != SHT_NOBITS:
            return _attempt(_debug_frame, file, section, problems)
    return None


def _trampolines(file: ElfFile, frames: bytes, problems: list[str]) -> tuple[Trampoline, ...]:
    try:
        return find_trampolines(file, frames)
    except ElfError as error:
        problems.append(str(error))
        return ()


def _attempt(
    read: Callable[[ElfFile, Where], CfiSource], file: ElfFile, where: Where, problems: list[str]
) -> CfiSource | None:
    try:
        return read(file, where)
    except ElfError as error:
        problems.append(str(error))
        return None


def _by_section(file: ElfFile, section: Section) -> CfiSource:
    """.eh_frame as the section headers state it.

    Raises:
        ElfError: it has no bytes, is too large, or is not where the program headers put its address.
    """
    data = file.contents(section, MAX_BYTES)
    # Pointers are relative to where the section is loaded, which only the program headers decide.
    loaded = file.offset_of_address(section.addr, section.size)
    if not section.flags & SHF_ALLOC or loaded != section.offset:
        raise ElfError(f"section {section.name} of {file.name} is not what is loaded at its address")
    return CfiSource(EH_FRAME, data, section.addr, exact=True)


def _by_header(file: ElfFile, header: ProgramHeader) -> CfiSource:
    """.eh_frame as the search table .eh_frame_hdr states it, by which the running program finds it.

    Layout: version, encodings of the pointer, the count and the table, then these three; Linux Standard
    Base Core 5.0, section 10.6.2.

    Raises:
        ElfError: the header is damaged, or leads out of the file.
    """
    head = file.read(header.offset, min(header.filesz, 32))
    if len(head) < _HEADER or head[0] != 1:
        raise ElfError(f"{file.name} has a search table for unwinding of an unknown version")
    start, size = _pointer(file, head, header.vaddr)
    where = _rest_of_segment(file, start)
    if where is None:
        raise ElfError(f"the search table for unwinding of {file.name} leads out of the file")
    offset, most = where
    length = None
    if head[2] == _UDATA4 and head[3] == _DATAREL_SDATA4 and 4 + size + 4 <= len(head):
        count = int.from_bytes(head[4 + size : 8 + size], "little")
        last = _last_entry(file, header, 8 + size, count)
        length = None if last is None else _end_of_entry(file, offset, most, last - start)
    if length is None:
        return CfiSource(EH_FRAME, file.read(offset, min(most, MAX_BYTES)), start, exact=False)
    return CfiSource(EH_FRAME, file.read(offset, length), start, exact=True)


def _pointer(file: ElfFile, head: bytes, vaddr: int) -> tuple[int, int]:
    """The encoded pointer behind the first four bytes, and its size."""
    encoding = head[1]
    form = _FORMATS.get(encoding & 0x0F)
    base = {0: 0, _PCREL: vaddr + 4, _DATAREL: vaddr}.get(encoding & 0xF0)
    if form is None or base is None:
        raise ElfError(f"the search table for unwinding of {file.name} has the unknown form {encoding:#x}")
    return (base + struct.unpack_from(form, head, 4)[0]) % _U64, struct.calcsize(form)


def _rest_of_segment(file: ElfFile, vaddr: int) -> tuple[int, int] | None:
    """File offset of an address, and how many bytes of the file follow in its segment."""
    for header in file.headers:
        start = vaddr - header.vaddr
        if header.type == PT_LOAD and 0 <= start < header.filesz:
            most = min(header.filesz - start, file.size - header.offset - start)
            return (header.offset + start, most) if most > 0 else None
    return None


def _last_entry(file: ElfFile, header: ProgramHeader, at: int, count: int) -> int | None:
    """Address of the last entry of .eh_frame that the search table names.

    Args:
        file: the file.
        header: that of the search table.
        at: where in it pairs of 32-bit distances from its address begin: of a function, and of its entry.
        count: number of pairs.

    Returns:
        The address, or None where the table is empty or does not fit the file.
    """
    if not count or at + 8 * count > min(header.filesz, MAX_BYTES):
        return None
    entries = array("i")
    try:
        entries.frombytes(file.read(header.offset + at, 8 * count))
    except ElfError:
        return None
    return header.vaddr + max(entries[1::2])


def _end_of_entry(file: ElfFile, offset: int, most: int, entry: int) -> int | None:
    """Bytes from the start of .eh_frame to the end of one of its entries; None where it has not so many.

    Args:
        file: the file.
        offset: of .eh_frame.
        most: bytes that it can have at most.
        entry: the entry's distance from the start.
    """
    if entry < 0 or entry + 4 > most:
        return None
    end = entry + 4 + int.from_bytes(file.read(offset + entry, 4), "little")
    return end if end <= min(most, MAX_BYTES) else None


def _debug_frame(file: ElfFile, section: Section) -> CfiSource:
    """.debug_frame, decompressed.

    Raises:
        ElfError: it is too large, or its compression is unknown or damaged.
    """
    data = file.contents(section, MAX_BYTES)
    if section.flags & _SHF_COMPRESSED:
        data = _decompress(file, data)
    return CfiSource(DEBUG_FRAME, data, 0, exact=True)


def _decompress(file: ElfFile, data: bytes) -> bytes:
    """Contents of a compressed section: a header, then a zlib stream of the size that it states.

    Source: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.sheader.html, section compression.
    """
    if len(data) < _CHDR.size:
        raise ElfError(f"{DEBUG_FRAME} of {file.name} ends within its header")
    kind, _, size, _ = _CHDR.unpack_from(data)
    if kind != _ELFCOMPRESS_ZLIB:
        raise ElfError(f"{DEBUG_FRAME} of {file.name} is compressed in the unknown way {kind}")
    if size > MAX_BYTES:
        raise ElfError(f"{DEBUG_FRAME} of {file.name} states {size} bytes: above {MAX_BYTES}")
    try:
        # One byte more than stated, so that a stream that goes on is noticed, and not decompressed.
        content = zlib.decompressobj().decompress(data[_CHDR.size :], size + 1)
    except zlib.error as error:
        raise ElfError(f"{DEBUG_FRAME} of {file.name} cannot be decompressed: {error}") from error
    if len(content) != size:
        raise ElfError(f"{DEBUG_FRAME} of {file.name} does not have the {size} bytes that it states")
    return content
