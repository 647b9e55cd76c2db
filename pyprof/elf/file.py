# SPDX-License-Identifier: Apache-2.0
"""Reads headers and contents of ELF files through `pread`, believing nothing that they state.

Target files are never mapped: one that is truncated while we read would kill us with SIGBUS. Layouts are
those of the System V ABI, https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html.
"""

import errno
import os
import stat
import struct
from typing import NamedTuple

from pyprof.errors import ElfError

PAGE = 4096
"""Bytes read at once from the file's head; program headers and notes nearly always lie in them."""

MAX_SECTIONS = 1 << 17
MAX_SEGMENTS = 1 << 12

ET_REL = 1
EM_X86_64, EM_AARCH64 = 62, 183
PT_LOAD, PT_DYNAMIC, PT_NOTE, PT_GNU_EH_FRAME = 1, 2, 4, 0x6474E550
PF_X = 1
SHT_SYMTAB, SHT_STRTAB, SHT_RELA, SHT_NOTE, SHT_NOBITS, SHT_DYNSYM = 2, 3, 4, 7, 8, 11
SHT_GNU_VERSYM = 0x6FFFFFFF
SHF_ALLOC, SHF_EXECINSTR = 2, 4

_PN_XNUM = 0xFFFF
_SHN_XINDEX = 0xFFFF
_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_PHDR = struct.Struct("<IIQQQQQQ")
_SHDR = struct.Struct("<IIQQQQIIQQ")


class ProgramHeader(NamedTuple):
    """One entry of the program header table, fields in the order of the file."""

    type: int
    flags: int
    offset: int
    vaddr: int
    paddr: int
    filesz: int
    memsz: int
    align: int


class Section(NamedTuple):
    """One entry of the section header table; `name` is "" where the names cannot be read."""

    name: str
    type: int
    flags: int
    addr: int
    offset: int
    size: int
    link: int
    info: int
    entsize: int


def open_regular(path: str | bytes | os.PathLike[str]) -> int:
    """Opens a target file for reading: never blocks, takes no terminal, is not inherited.

    Returns:
        A file descriptor, which the caller closes.

    Raises:
        ElfError: it cannot be opened, or is not a regular file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise ElfError(f"cannot open {show_path(path)}: {os.strerror(error.errno or errno.EIO)}") from error
    except ValueError as error:  # a NUL byte in the path
        raise ElfError(f"cannot open {show_path(path)}: {error}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ElfError(f"{show_path(path)} is not a regular file")
    return fd


def show_path(path: str | bytes | os.PathLike[str]) -> str:
    """A path as text for a message; undecodable bytes are backslash-escaped."""
    return show_bytes(os.fsencode(path))


def show_bytes(raw: bytes) -> str:
    """Bytes of a file as text; what is not UTF-8 is backslash-escaped, so that no two names become one."""
    return raw.decode("utf-8", "backslashreplace")


class ElfFile:
    """A 64-bit little-endian ELF file, read on demand.

    The descriptor stays the caller's, and must be open as long as contents are read. Sections are
    optional: a file without a section header table (or with a damaged one) still has its program headers.

    Attributes:
        name: what messages call it.
        size: bytes of the file.
        type: ET_*.
        machine: EM_*.
        headers: all program headers.
    """

    def __init__(self, fd: int, name: str) -> None:
        """Reads the ELF header and the program headers.

        Raises:
            ElfError: not an ELF file of the supported class, or its headers state what cannot be.
        """
        self._open(fd, b"", name)

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> "ElfFile":
        """The same for an image in memory, such as the vDSO's or a decompressed symbol file.

        Raises:
            ElfError: as for a file.
        """
        file = cls.__new__(cls)
        file._open(-1, data, name)
        return file

    def _open(self, fd: int, data: bytes, name: str) -> None:
        self.name = name
        self._fd = fd
        self._sections: list[Section] | None = None
        try:
            self.size = os.fstat(fd).st_size if fd >= 0 else len(data)
            self._head = os.pread(fd, PAGE, 0) if fd >= 0 else data
        except OSError as error:
            raise ElfError(f"cannot read {name}: {os.strerror(error.errno or errno.EIO)}") from error
        self._read_header()
        self.headers = self._read_program_headers()

    def _read_header(self) -> None:
        head = self._head
        if head[:4] != b"\x7fELF":
            raise ElfError(f"{self.name} is not an ELF file")
        if len(head) < _EHDR.size:
            raise ElfError(f"{self.name} ends within its ELF header")
        if head[4] != 2 or head[5] != 1:
            raise ElfError(f"{self.name} is not 64-bit little-endian, the only kind of ELF file supported")
        fields = _EHDR.unpack_from(head)
        self.type: int = fields[1]
        self.machine: int = fields[2]
        self._phoff, self._shoff = fields[5], fields[6]
        self._phentsize, self._phnum, self._shentsize, self._shnum, self._shstrndx = fields[9:14]

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes of the file.

        Raises:
            ElfError: they are not all within the file, or cannot be read.
        """
        if offset < 0 or length < 0 or offset + length > self.size:
            raise ElfError(f"{self.name} ends before byte {offset + length}, which its headers refer to")
        if offset + length <= len(self._head):
            return self._head[offset : offset + length]
        try:
            data = os.pread(self._fd, length, offset)
            while len(data) < length:  # one pread gives at most 2 GiB, or less where a signal came
                more = os.pread(self._fd, length - len(data), offset + len(data))
                if not more:
                    raise ElfError(f"{self.name} became shorter while it was read")
                data += more
        except (OSError, OverflowError) as error:
            raise ElfError(f"cannot read {self.name}: {error}") from error
        return data

    def _first_section(self) -> tuple[int, ...]:
        """Section 0, which holds the counts that do not fit the ELF header."""
        return _SHDR.unpack(self.read(self._shoff, _SHDR.size))

    def _read_program_headers(self) -> list[ProgramHeader]:
        count = self._phnum
        if self._phoff == 0 or count == 0:
            return []
        if self._phentsize != _PHDR.size:
            raise ElfError(f"{self.name} states program headers of {self._phentsize} bytes, not {_PHDR.size}")
        if count == _PN_XNUM and self._shoff:
            count = self._first_section()[7]
        if count > MAX_SEGMENTS:
            raise ElfError(f"{self.name} states {count} program headers, more than any real file has")
        table = self.read(self._phoff, count * _PHDR.size)
        return [ProgramHeader._make(fields) for fields in _PHDR.iter_unpack(table)]

    def headers_of(self, kind: int) -> list[ProgramHeader]:
        """Program headers of one type, in the order of the file."""
        return [header for header in self.headers if header.type == kind]

    def sections(self) -> list[Section]:
        """All section headers; empty where the file has none.

        Raises:
            ElfError: the section header table is damaged.
        """
        if self._sections is None:
            self._sections = self._read_sections()
        return self._sections

    def _read_sections(self) -> list[Section]:
        if self._shoff == 0:
            return []
        if self._shentsize != _SHDR.size:
            raise ElfError(f"{self.name} states section headers of {self._shentsize} bytes, not {_SHDR.size}")
        count, names_index = self._shnum, self._shstrndx
        if count == 0:
            count = self._first_section()[5]
        if names_index == _SHN_XINDEX:
            names_index = self._first_section()[6]
        if count > MAX_SECTIONS:
            raise ElfError(f"{self.name} states {count} sections, more than any real file has")
        rows = list(_SHDR.iter_unpack(self.read(self._shoff, count * _SHDR.size)))
        names = b""
        if 0 < names_index < count:
            _, kind, _, _, offset, size, *_ = rows[names_index]
            if kind != SHT_NOBITS and offset + size <= self.size and size <= 1 << 24:
                names = self.read(offset, size)
        return [
            Section(_name_at(names, name), kind, flags, addr, offset, size, link, info, entsize)
            for name, kind, flags, addr, offset, size, link, info, _, entsize in rows
        ]

    def section(self, index: int) -> Section:
        """One section header.

        Raises:
            ElfError: there is none of that index.
        """
        sections = self.sections()
        if not 0 <= index < len(sections):
            raise ElfError(f"{self.name} has no section {index}, which another one refers to")
        return sections[index]

    def contents(self, section: Section, limit: int) -> bytes:
        """A section's bytes.

        Args:
            section: one of `sections()`.
            limit: most bytes to read.

        Raises:
            ElfError: it has no bytes in this file, lies outside it, or is larger than `limit`.
        """
        if section.type == SHT_NOBITS:
            raise ElfError(f"section {section.name} of {self.name} has no contents in this file")
        if section.size > limit:
            raise ElfError(f"section {section.name} of {self.name} has {section.size} bytes: above {limit}")
        return self.read(section.offset, section.size)

    def offset_of_address(self, vaddr: int, length: int = 1) -> int | None:
        """File offset of `length` bytes at an ELF virtual address; None where no segment holds them all."""
        for header in self.headers:
            start = vaddr - header.vaddr
            if header.type == PT_LOAD and start >= 0 and start + length <= header.filesz:
                return header.offset + start
        return None


def _name_at(names: bytes, offset: int) -> str:
    if offset >= len(names):
        return ""
    end = names.find(b"\0", offset, offset + 4096)
    return show_bytes(names[offset : end if end >= 0 else offset + 4096])
