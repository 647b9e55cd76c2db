# SPDX-License-Identifier: Apache-2.0
"""Finds what names functions in an ELF file: symbol tables, where code lies, where unwind rows begin."""

import struct
from array import array
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from pyprof.elf.file import (
    PF_X,
    PT_DYNAMIC,
    PT_GNU_EH_FRAME,
    PT_LOAD,
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHT_DYNSYM,
    SHT_GNU_VERSYM,
    SHT_SYMTAB,
    ElfFile,
    Section,
)
from pyprof.errors import ElfError

MAX_TABLE = 1 << 28
"""Most bytes of one symbol or string table: above the largest browsers, below what would exhaust a host."""

SYMBOL_SIZE = 24
_MAX_DYNAMIC = 1 << 16
_MAX_BUCKETS = 1 << 22
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_GNU_HASH = 4, 5, 6, 10, 0x6FFFFEF5
_DT_VERSYM = 0x6FFFFFF0
_FDE_COUNT_UDATA4, _TABLE_DATAREL_SDATA4 = 0x03, 0x3B


class SymbolBytes(NamedTuple):
    """One symbol table.

    Attributes:
        source: ".symtab" or ".dynsym".
        symbols: struct Elf64_Sym, one after another.
        strings: their names.
        versions: 16 bits a symbol, or nothing; `name@VER` and `name@@VER` of .dynsym differ only here.
    """

    source: str
    symbols: bytes
    strings: bytes
    versions: bytes = b""


class FunctionStarts(NamedTuple):
    """The search table of .eh_frame_hdr: pairs of 32-bit numbers, the first a function's start - `base`."""

    table: bytes
    base: int


def symbol_tables(file: ElfFile, problems: list[str]) -> Iterator[SymbolBytes]:
    """Yields the symbol tables of a file.

    .dynsym is found through PT_DYNAMIC where the section headers are gone or damaged: the loader needs no
    others.

    Args:
        file: the file.
        problems: receives a sentence for each table that is there but cannot be used.
    """
    seen = set()
    found_dynamic = False
    sections = _sections(file, problems)
    for section in sections:
        if section.type not in {SHT_SYMTAB, SHT_DYNSYM} or section.type in seen:
            continue
        seen.add(section.type)  # the ABI allows one of each; more would be a way to keep us busy
        source = ".symtab" if section.type == SHT_SYMTAB else ".dynsym"
        try:
            strings = file.contents(file.section(section.link), MAX_TABLE)
            versions = _versions(file, sections) if section.type == SHT_DYNSYM else b""
            table = SymbolBytes(source, file.contents(section, MAX_TABLE), strings, versions)
        except ElfError as error:
            problems.append(str(error))
            continue
        found_dynamic = found_dynamic or section.type == SHT_DYNSYM
        yield table
    if not found_dynamic and file.headers_of(PT_DYNAMIC):
        try:
            dynamic = _dynamic_symbols(file)
        except ElfError as error:
            problems.append(str(error))
            return
        if dynamic is not None:
            yield dynamic


def code_ranges(file: ElfFile) -> list[tuple[int, int]]:
    """Virtual addresses [start, end) of code: executable sections, or segments where there are none."""
    wanted = SHF_ALLOC | SHF_EXECINSTR
    ranges = [
        (section.addr, min(section.addr + section.size, (1 << 64) - 1))
        for section in _sections(file, [])
        if section.flags & wanted == wanted and section.size
    ]
    return ranges or [
        (header.vaddr, min(header.vaddr + header.memsz, (1 << 64) - 1))
        for header in file.headers
        if header.type == PT_LOAD and header.flags & PF_X
    ]


def function_starts(file: ElfFile) -> FunctionStarts | None:
    """Where functions with unwind information begin; None where the file does not say in the usual form.

    The header is version, three encodings, a pointer and a count; then comes the sorted table. Source: Linux
    Standard Base, Core, section 10.6.2.
    """
    for header in file.headers_of(PT_GNU_EH_FRAME):
        try:
            version, _, count_form, table_form, _, count = struct.unpack(
                "<4BiI", file.read(header.offset, 12)
            )
            if (version, count_form, table_form) != (1, _FDE_COUNT_UDATA4, _TABLE_DATAREL_SDATA4):
                return None
            size = min(8 * count, max(header.filesz - 12, 0), MAX_TABLE)
            return FunctionStarts(file.read(header.offset + 12, size), header.vaddr)
        except ElfError:
            return None
    return None


def _sections(file: ElfFile, problems: list[str]) -> list[Section]:
    try:
        return file.sections()
    except ElfError as error:
        problems.append(str(error))
        return []


def _versions(file: ElfFile, sections: list[Section]) -> bytes:
    """.gnu.version; nothing where it is damaged, which costs no names."""
    try:
        return next(
            (file.contents(section, MAX_TABLE) for section in sections if section.type == SHT_GNU_VERSYM), b""
        )
    except ElfError:
        return b""


def _dynamic_symbols(file: ElfFile) -> SymbolBytes | None:
    """.dynsym as the loader finds it.

    Raises:
        ElfError: the dynamic table refers to what is not in the file.
    """
    header = file.headers_of(PT_DYNAMIC)[0]
    table = file.read(header.offset, min(header.filesz, _MAX_DYNAMIC) // 16 * 16)
    entries: dict[int, int] = {}
    for tag, value in struct.iter_unpack("<QQ", table):
        if tag == 0:
            break
        entries.setdefault(tag, value)
    if not {_DT_SYMTAB, _DT_STRTAB, _DT_STRSZ} <= entries.keys():
        return None
    if _DT_HASH in entries:
        # https://refspecs.linuxfoundation.org/elf/gabi4+/ch5.dynamic.html#hash: nchain is the number of
        # symbols
        count = struct.unpack("<II", _at(file, entries[_DT_HASH], 8))[1]
    elif _DT_GNU_HASH in entries:
        count = _gnu_hash_count(file, entries[_DT_GNU_HASH])
    else:
        return None
    size = count * SYMBOL_SIZE
    if size > MAX_TABLE or entries[_DT_STRSZ] > MAX_TABLE:
        raise ElfError(f"{file.name} states {count} dynamic symbols: too many")
    versions = b""
    if _DT_VERSYM in entries:
        with suppress(ElfError):
            versions = _at(file, entries[_DT_VERSYM], 2 * count)
    return SymbolBytes(
        ".dynsym",
        _at(file, entries[_DT_SYMTAB], size),
        _at(file, entries[_DT_STRTAB], entries[_DT_STRSZ]),
        versions,
    )


def _at(file: ElfFile, vaddr: int, size: int) -> bytes:
    offset = file.offset_of_address(vaddr, size)
    if offset is None:
        raise ElfError(
            f"{file.name} has no {size} bytes at address {vaddr:#x}, which its dynamic table refers to"
        )
    return file.read(offset, size)


def _gnu_hash_count(file: ElfFile, vaddr: int) -> int:
    """Number of dynamic symbols: no field holds it, so the highest bucket's chain is followed to its end.

    Layout: bucket count, first hashed symbol, Bloom filter words, shift; filter; buckets; a 32-bit hash a
    symbol, whose lowest bit ends a chain. Source: https://sourceware.org/ml/binutils/2006-06/msg00418.html.
    """
    buckets, first, bloom_words, _ = struct.unpack("<4I", _at(file, vaddr, 16))
    if buckets > _MAX_BUCKETS:
        raise ElfError(f"{file.name} states {buckets} hash buckets: too many")
    start = vaddr + 16 + 8 * bloom_words
    last = max(array("I", _at(file, start, 4 * buckets)), default=0)
    if last < first:
        return int(first)
    chain = start + 4 * buckets + 4 * (last - first)
    while last * SYMBOL_SIZE <= MAX_TABLE:
        piece = 256
        while piece > 1 and file.offset_of_address(chain, 4 * piece) is None:
            piece //= 2
        for value in struct.unpack(f"<{piece}I", _at(file, chain, 4 * piece)):
            last += 1
            if value & 1:
                return last
        chain += 4 * piece
    raise ElfError(f"the symbol hash table of {file.name} has no end")
