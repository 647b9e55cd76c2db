# SPDX-License-Identifier: Apache-2.0
"""Writes exactly the ELF bytes that a test needs, independently of the code that reads them."""

import struct
from dataclasses import dataclass

PT_LOAD, PT_DYNAMIC, PT_NOTE = 1, 2, 4
SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_NOTE, SHT_NOBITS = 1, 2, 3, 7, 8
SHF_ALLOC, SHF_EXECINSTR = 2, 4
STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_SECTION, STT_FILE, STT_IFUNC = 0, 1, 2, 3, 4, 10
STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2
SHN_UNDEF, SHN_ABS = 0, 0xFFF1


@dataclass
class Segment:
    """A program header; without `offset` its data is placed in the file and the offset is filled in."""

    type: int
    flags: int = 4
    vaddr: int = 0
    data: bytes = b""
    offset: int | None = None
    filesz: int | None = None
    memsz: int | None = None
    align: int = 4


@dataclass
class Section:
    """A section header; its data is placed in the file unless the type is SHT_NOBITS."""

    name: str
    type: int
    flags: int = 0
    addr: int = 0
    data: bytes = b""
    size: int | None = None
    link: int = 0
    info: int = 0
    entsize: int = 0


@dataclass
class Sym:
    """A symbol; shndx 1 is the first section of `Section`s."""

    name: str | bytes
    value: int
    size: int = 0
    type: int = STT_FUNC
    bind: int = STB_GLOBAL
    shndx: int = 1


def note(owner: bytes, kind: int, content: bytes, align: int = 4) -> bytes:
    """A note: sizes of name and content, type, name, content; each part padded."""

    def padded(part: bytes) -> bytes:
        return part + b"\0" * (-len(part) % align)

    header = struct.pack("<III", len(owner), len(content), kind)
    # The name begins behind the 12-byte header; the content at the next multiple of `align`.
    return padded(header + owner) + padded(content)


def symbol_bytes(symbols: list[Sym]) -> tuple[bytes, bytes]:
    """A symbol table and its string table; entry 0 is the null symbol."""
    table = bytearray(24)
    strings = bytearray(b"\0")
    for symbol in symbols:
        name = symbol.name.encode() if isinstance(symbol.name, str) else symbol.name
        start = len(strings) if name else 0
        if name:
            strings += name + b"\0"
        info = symbol.bind << 4 | symbol.type
        table += struct.pack("<IBBHQQ", start, info, 0, symbol.shndx, symbol.value, symbol.size)
    return bytes(table), bytes(strings)


def build_elf(
    segments: list[Segment] | None = None,
    sections: list[Section] | None = None,
    kind: int = 3,
    machine: int = 62,
) -> bytes:
    """An ELF file: header, program headers, data of segments, data of sections, section headers.

    Args:
        segments: program headers, in order.
        sections: section headers behind the null section; .shstrtab is added at the end. None: no table.
        kind: e_type, 3 is ET_DYN.
        machine: e_machine, 62 is x86-64.
    """
    segments = segments or []
    body = bytearray(64 + 56 * len(segments))
    program = bytearray()
    for segment in segments:
        offset = segment.offset
        if offset is None:
            body += b"\0" * (-len(body) % 16)
            offset = len(body)
            body += segment.data
        filesz = len(segment.data) if segment.filesz is None else segment.filesz
        memsz = filesz if segment.memsz is None else segment.memsz
        program += struct.pack(
            "<IIQQQQQQ",
            segment.type,
            segment.flags,
            offset,
            segment.vaddr,
            segment.vaddr,
            filesz,
            memsz,
            segment.align,
        )
    body[64 : 64 + len(program)] = program
    table, count, names_index = 0, 0, 0
    if sections is not None:
        headers = bytearray(64)  # the null section
        names = bytearray(b"\0")
        named = [*sections, Section(".shstrtab", SHT_STRTAB)]
        for section in named:
            start = len(names)
            names += section.name.encode() + b"\0"
            data = bytes(names) if section is named[-1] else section.data
            body += b"\0" * (-len(body) % 16)
            offset = len(body)
            if section.type != SHT_NOBITS:
                body += data
            size = len(data) if section.size is None else section.size
            headers += struct.pack(
                "<IIQQQQIIQQ", start, section.type, section.flags, section.addr, offset, size,
                section.link, section.info, 1, section.entsize,
            )  # fmt: skip
        body += b"\0" * (-len(body) % 16)
        table, count, names_index = len(body), len(named) + 1, len(named)
        body += headers
    body[:64] = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", kind, machine, 1, 0, 64 if segments else 0, table, 0,
        64, 56, len(segments), 64, count, names_index,
    )  # fmt: skip
    return bytes(body)


def elf_with_symbols(
    symbols: list[Sym], text: tuple[int, int] = (0x1000, 0x1000), extra: list[Section] | None = None
) -> bytes:
    """A file whose section 1 is .text, at `text` (address, size), with a .symtab of `symbols`."""
    table, strings = symbol_bytes(symbols)
    return build_elf(
        [Segment(PT_LOAD, 5, text[0], offset=0, filesz=0, memsz=text[1])],
        [
            Section(".text", SHT_NOBITS, SHF_ALLOC | SHF_EXECINSTR, text[0], size=text[1]),
            Section(".symtab", SHT_SYMTAB, data=table, link=3, entsize=24),
            Section(".strtab", SHT_STRTAB, data=strings),
            *(extra or []),
        ],
    )
