# SPDX-License-Identifier: Apache-2.0
"""The table that Go's run-time system makes stack traces with, in every Go program; `strip` leaves it.

The layouts are those of the Go sources: src/debug/gosym/pclntab.go, src/internal/abi/symtab.go and, of
moduledata, src/runtime/symtab.go.
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from pyprof._native.gopclntab import relocate
from pyprof.elf.file import EM_X86_64, PF_X, PT_DYNAMIC, PT_LOAD, SHT_NOBITS, ElfFile, ProgramHeader
from pyprof.errors import ElfError

Made = TypeVar("Made")

MAX_TABLE = 1 << 28
"""Most bytes of the table that are read: five times what the largest programs have."""

MAX_FUNCTIONS = 1 << 22
"""Most functions of a table: the largest programs have some 500,000."""

# Versions of the table by the first Go release that has it.
_GO_1_2, _GO_1_16, _GO_1_18, _GO_1_20 = 0xFFFFFFFB, 0xFFFFFFFA, 0xFFFFFFF0, 0xFFFFFFF1
_VERSIONS = {_GO_1_2, _GO_1_16, _GO_1_18, _GO_1_20}
_SECTIONS = {".gopclntab", ".data.rel.ro.gopclntab"}
_GO_SECTIONS = (".go.", ".note.go.")
# Magic, two zeros, least size of an instruction (1, 2 or 4), size of a pointer.
_MAGIC = struct.Struct("<IHBB")
_WORDS = 10  # of the longest header, with the magic
_PIECE = 1 << 22
_MAX_SEARCHED = 1 << 30
_MAX_CANDIDATES = 16  # real files have one; each may cost a read of the whole table, or of all relocations
_MAX_HITS = 4096
_MAX_RELOCATIONS = 1 << 28
_MODULE_WORDS = 32
_PF_W = 2
_U64 = 1 << 64
_DT_RELA, _DT_RELASZ = 7, 8
_R_X86_64_RELATIVE, _R_AARCH64_RELATIVE = 8, 1027


class GoTable(NamedTuple):
    """A table whose parts are known to lie in it.

    Attributes:
        version: its magic.
        address: ELF virtual address.
        total: number of functions.
        text: what the file says functions' addresses count from; 0 where it does not.
        table: where in `data` pairs of numbers are: a function's start, and the position of its description.
        width: bytes of each of these numbers.
        names, names_end: where in `data` names are.
        functions: where in `data` descriptions count from.
        deltas: where in `data` tables of values by address count from.
        deltas_at: where in a description the position of the stack pointer's distances is.
        flags_at: where in a description flags are; 0 where there are none.
        quantum: bytes that a unit of a distance between addresses stands for.
        data: all bytes from the header on.
    """

    version: int
    address: int
    total: int
    text: int
    table: int
    width: int
    names: int
    names_end: int
    functions: int
    deltas: int
    deltas_at: int
    flags_at: int
    quantum: int
    data: bytes

    @property
    def table_end(self) -> int:
        return self.table + (2 * self.total + 1) * self.width


def first_table(file: ElfFile, problems: list[str], use: Callable[[GoTable], Made]) -> Made | None:
    """Finds a Go program's table.

    Args:
        file: any ELF file.
        problems: receives a sentence for a table that is there but cannot be used.
        use: makes something of a table; raises ElfError where it is none after all.

    Returns:
        What `use` made; None where the file has no such table.
    """
    try:
        sections = file.sections()
    except ElfError:
        sections = []
    for section in sections:
        if section.name in _SECTIONS and section.type != SHT_NOBITS:
            try:
                return use(_parse(file, section.addr, file.contents(section, MAX_TABLE)))
            except ElfError as error:
                problems.append(str(error))
                return None
    # A C linker may have made it a part of .data.rel.ro; other files are not worth a search.
    names = [section.name for section in sections if section.name]
    if names and not any(name.startswith(_GO_SECTIONS) for name in names):
        return None
    problem = ""
    for address, data in _search(file):
        try:
            return use(_parse(file, address, data))
        except ElfError as error:
            problem = problem or str(error)
    if problem:
        problems.append(problem)
    return None


def _search(file: ElfFile) -> Iterator[tuple[int, bytes]]:
    """Address and bytes of what may be a table, found by its first bytes in the loaded segments."""
    patterns = [_MAGIC.pack(version, 0, size, 8) for version in _VERSIONS for size in (1, 4)]
    searched = candidates = hits = 0
    for header in file.headers_of(PT_LOAD):
        end = min(header.filesz, file.size - header.offset)
        for start in range(0, end, _PIECE):
            searched += _PIECE
            if searched > _MAX_SEARCHED:
                return
            piece = file.read(header.offset + start, min(_PIECE + _MAGIC.size, end - start))
            for pattern in patterns:
                at = piece.find(pattern)
                while at >= 0 and candidates < _MAX_CANDIDATES and hits < _MAX_HITS:
                    hits += 1
                    if (header.vaddr + start + at) % 8 == 0 and at < _PIECE:
                        position = start + at
                        if _is_header(piece[at : at + 8 * _WORDS], end - position):
                            candidates += 1
                            size = min(end - position, MAX_TABLE)
                            yield (header.vaddr + position) % _U64, file.read(header.offset + position, size)
                    at = piece.find(pattern, at + 8)


def _is_header(head: bytes, size: int) -> bool:
    """Whether what looks like a table can have the number of functions that it states."""
    if len(head) < 16:
        return True  # at the end of a piece; parsing will tell
    (count,) = struct.unpack_from("<Q", head, 8)
    return bool(0 < count < size // 8)


def _parse(file: ElfFile, address: int, data: bytes) -> GoTable:
    """Reads the header of a table.

    Raises:
        ElfError: it is damaged, or of an unknown version.
    """
    what = f"the function table of {file.name}"
    if len(data) < 8 * _WORDS:
        raise ElfError(f"{what} ends within its header")
    version, zeros, quantum, pointer = _MAGIC.unpack_from(data)
    if version not in _VERSIONS or zeros or pointer != 8 or not quantum:
        raise ElfError(f"{what} has an unknown form")
    words = struct.unpack_from(f"<{_WORDS - 1}Q", data, 8)
    count, text = words[0], 0
    if version == _GO_1_2:
        # Everything counts from the table's beginning.
        table, functions, deltas, names, names_end, width = 16, 0, 0, 0, len(data), 8
    else:
        # Count, files, (start of text,) then where these begin: names, units, files, pc tables, functions.
        first = 2
        width = 8
        if version != _GO_1_16:
            first, width, text = 3, 4, words[2]
        names, names_end, table = words[first], words[first + 1], words[first + 4]
        functions, deltas = table, words[first + 3]
    # In a description: start, name, arguments, deferreturn, distances (four bytes each but the first), and
    # after four or five more the function's number, of one byte, and its flags.
    flags_at = {_GO_1_2: 0, _GO_1_16: 41, _GO_1_18: 37, _GO_1_20: 41}[version]
    found = GoTable(
        version, address, count, text, table, width, names, names_end, functions, deltas, width + 12,
        flags_at, quantum, data,
    )  # fmt: skip
    if (
        not 0 < count <= MAX_FUNCTIONS
        or found.table_end > len(data)
        or not names < names_end <= len(data)
        or deltas > len(data)
    ):
        raise ElfError(f"{what} states sizes that cannot be")
    return found


def function_pairs(file: ElfFile, table: GoTable) -> tuple[bytes | bytearray | memoryview, int]:
    """The pairs of numbers of a table, and what those that are starts of functions count from.

    Raises:
        ElfError: addresses are not known.
    """
    pairs: bytes | bytearray | memoryview = memoryview(table.data)[table.table : table.table_end]
    if table.width == 4:
        return pairs, _text_start(file, table)
    relocations = _relocations(file)
    if relocations:  # absolute addresses, which the loader writes in a position-independent program
        pairs = bytearray(pairs)
        relocate(pairs, (table.address + table.table) % _U64, relocations, _relative(file))
    return pairs, 0


def _text_start(file: ElfFile, table: GoTable) -> int:
    """What functions' addresses count from: runtime.text, which is not where .text begins in programs with C.

    Since Go 1.26 only moduledata tells; it begins with the table's address. Behind come slices, of which that
    of the function table is (address, count + 1, count + 1); then findfunctab, minpc and maxpc: where the
    first function begins and the last one ends.

    Raises:
        ElfError: it is not found.
    """
    first = struct.unpack_from("<I", table.data, table.table)[0]
    last = struct.unpack_from("<I", table.data, table.table_end - 4)[0]
    slice_words = (table.address + table.functions, table.total + 1, table.total + 1)
    relocations = _relocations(file)
    for address, offset in _pointers_to(file, table.address, relocations):
        size = min(8 * _MODULE_WORDS, file.size - offset) // 8 * 8
        module = bytearray(file.read(offset, size))
        relocate(module, address, relocations, _relative(file))
        words = struct.unpack(f"<{size // 8}Q", module)
        for index in range(1, len(words) - 6):
            if (
                words[index : index + 3] == slice_words
                and words[index + 5] - words[index + 4] == last - first
            ):
                return int(words[index + 4] - first) % _U64
    if table.text:
        return table.text
    raise ElfError(f"{file.name} does not tell where the functions of its function table begin")


def _pointers_to(file: ElfFile, address: int, relocations: bytes) -> Iterator[tuple[int, int]]:
    """Address and file offset of pointers to an address, in segments that are writable when loaded."""
    wanted = struct.pack("<Q", address)
    left, hits = _MAX_CANDIDATES, _MAX_HITS
    at = relocations.find(wanted)
    while at >= 0 and left and hits:
        hits -= 1
        if at % 24 == 16:
            left -= 1
            (place,) = struct.unpack_from("<Q", relocations, at - 16)
            offset = file.offset_of_address(place)
            if offset is not None and place % 8 == 0:
                yield place, offset
        at = relocations.find(wanted, at + 1)
    for header in file.headers_of(PT_LOAD):
        if header.flags & _PF_W and not header.flags & PF_X:
            for place in _find_words(file, header, wanted):
                if not left:
                    return
                left -= 1
                yield (header.vaddr + place) % _U64, header.offset + place


def _find_words(file: ElfFile, header: ProgramHeader, wanted: bytes) -> Iterator[int]:
    """Where in a segment's bytes an aligned word is."""
    end = min(header.filesz, file.size - header.offset, _MAX_SEARCHED)
    hits = 0
    for start in range(0, end, _PIECE):
        piece = file.read(header.offset + start, min(_PIECE + 7, end - start))
        at = piece.find(wanted)
        while 0 <= at < _PIECE and hits < _MAX_HITS:
            hits += 1
            if (header.vaddr + start + at) % 8 == 0:
                yield start + at
            at = piece.find(wanted, at + 1)


def _relative(file: ElfFile) -> int:
    return _R_X86_64_RELATIVE if file.machine == EM_X86_64 else _R_AARCH64_RELATIVE


def _relocations(file: ElfFile) -> bytes:
    """Relocations with addends, as the loader finds them; empty where there are none, or they are damaged."""
    try:
        for header in file.headers_of(PT_DYNAMIC)[:1]:
            found: dict[int, int] = {}
            table = file.read(header.offset, min(header.filesz, 1 << 16) // 16 * 16)
            for tag, value in struct.iter_unpack("<QQ", table):
                found.setdefault(tag, value)
            size = min(found.get(_DT_RELASZ, 0), _MAX_RELOCATIONS)
            offset = file.offset_of_address(found.get(_DT_RELA, 0), size)
            if size and offset is not None:
                return file.read(offset, size)
    except ElfError:
        pass
    return b""
