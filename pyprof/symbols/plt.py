# SPDX-License-Identifier: Apache-2.0
"""Names the stubs of the procedure linkage table, which no symbol covers: `name@plt`."""

import struct
from typing import NamedTuple

from pyprof.elf.file import EM_X86_64, SHT_RELA, ElfFile, Section
from pyprof.elf.tables import SYMBOL_SIZE, SymbolBytes
from pyprof.errors import ElfError

_PLT_SECTIONS = {".plt", ".plt.sec", ".plt.got", ".plt.bnd"}
_MAX_STUBS = 1 << 22
_MAX_RELOCATIONS = 1 << 18
_RELA_SIZE = 24
_JUMP = b"\xff\x25"  # jmp *offset(%rip)


class _Stubs(NamedTuple):
    addr: int
    entry: int
    code: bytes


class PltStubs:
    """The stubs of one x86-64 file. All that is needed is read at once; the file may be closed afterwards."""

    def __init__(self, file: ElfFile, dynamic: SymbolBytes) -> None:
        """Reads stubs and relocations; a file without (or with damaged) ones has no named stubs.

        Args:
            file: whose stubs.
            dynamic: its .dynsym, which the relocations refer to.
        """
        self._dynamic = dynamic
        self._stubs: list[_Stubs] = []
        self._relocations: list[bytes] = []
        if file.machine != EM_X86_64:
            return
        try:
            sections = file.sections()
        except ElfError:
            return
        for section in sections:
            if section.name in _PLT_SECTIONS and len(self._stubs) < len(_PLT_SECTIONS):
                entry = section.entsize if section.entsize in {8, 16} else 16
                self._stubs.append(_Stubs(section.addr, entry, _contents(file, section, _MAX_STUBS)))
            elif section.type == SHT_RELA and section.name in {".rela.plt", ".rela.dyn"}:
                self._relocations.append(_contents(file, section, _MAX_RELOCATIONS))

    def find(self, address: int) -> tuple[bytes, int] | None:
        """The name (`name@plt`) of the stub that an address lies in, and the offset into the stub."""
        for stubs in self._stubs:
            inside = address - stubs.addr
            if not 0 <= inside < len(stubs.code):
                continue
            start = inside - inside % stubs.entry
            code = stubs.code[start : start + stubs.entry]
            jump = code.find(_JUMP)
            if jump < 0 or jump + 6 > len(code):
                return None
            (displacement,) = struct.unpack_from("<i", code, jump + 2)
            name = self._imported(stubs.addr + start + jump + 6 + displacement)
            return (name + b"@plt", inside - start) if name else None
        return None

    def _imported(self, slot: int) -> bytes:
        """Name of the function whose address the loader writes to a slot of the global offset table."""
        if not 0 <= slot < 1 << 64:
            return b""
        wanted = struct.pack("<Q", slot)
        for table in self._relocations:
            position = table.find(wanted)
            while position >= 0 and position % _RELA_SIZE:
                position = table.find(wanted, position + 1)
            if 0 <= position <= len(table) - _RELA_SIZE:
                symbol = struct.unpack_from("<Q", table, position + 8)[0] >> 32
                return self._name(symbol)
        return b""

    def _name(self, symbol: int) -> bytes:
        symbols, strings = self._dynamic.symbols, self._dynamic.strings
        if symbol == 0 or (symbol + 1) * SYMBOL_SIZE > len(symbols):
            return b""
        (start,) = struct.unpack_from("<I", symbols, symbol * SYMBOL_SIZE)
        return strings[start : start + 65536].split(b"\0", 1)[0]


def _contents(file: ElfFile, section: Section, limit: int) -> bytes:
    try:
        return file.contents(section, limit)
    except ElfError:
        return b""
