# SPDX-License-Identifier: Apache-2.0
"""Names of addresses in one ELF file, from all of its symbol tables together."""

from array import array
from collections.abc import Iterable

from pyprof._native.symbols import SymbolTable
from pyprof.elf.file import ET_REL, ElfFile, show_bytes
from pyprof.elf.tables import FunctionStarts, SymbolBytes, code_ranges, function_starts, symbol_tables
from pyprof.errors import ElfError
from pyprof.symbols.demangle import demangle
from pyprof.symbols.gopclntab import GOPCLNTAB, go_symbols
from pyprof.symbols.plt import PltStubs
from pyprof.symbols.symbol import Symbol

MAX_DEBUGDATA = 1 << 26
"""Most bytes that .gnu_debugdata may unpack to, and that unpacking may use."""

DEBUGDATA = ".gnu_debugdata"


class NativeSymbols:
    """The functions of one file; everything is read at once, and the file may be closed afterwards.

    Attributes:
        counts: number of functions by source: ".symtab", ".dynsym", ".gnu_debugdata", "gopclntab".
        problems: a sentence for each table that is there but cannot be used.
    """

    def __init__(self, file: ElfFile) -> None:
        """Reads the symbol tables of a file.

        A damaged table is left out and stands in `problems`. Relocatable files have no addresses, so no
        symbols.
        """
        self.problems: list[str] = []
        tables = list(symbol_tables(file, self.problems)) if file.type != ET_REL else []
        dynamic = next((table for table in tables if table.source == ".dynsym"), None)
        self._plt = PltStubs(file, dynamic) if dynamic else None
        tables += _debugdata_tables(file, self.problems)
        if file.type != ET_REL and not any(table.source == ".symtab" for table in tables):
            go_table = go_symbols(file, self.problems)
            tables += [go_table] if go_table else []
        starts = function_starts(file) or FunctionStarts(b"", 0)
        self._table = SymbolTable(
            [(table.symbols, table.strings, table.versions) for table in tables],
            code_ranges(file),
            starts.table,
            starts.base,
        )
        self._sources = [table.source for table in tables]
        self.counts = dict(zip(self._sources, self._table.counts, strict=True))

    @property
    def nbytes(self) -> int:
        """Memory that the tables hold."""
        return self._table.nbytes

    def resolve(self, addresses: Iterable[int]) -> list[Symbol | None]:
        """Names addresses.

        Args:
            addresses: ELF virtual addresses, 0 to 2^64 - 1.

        Returns:
            A symbol for each, in order; None where no symbol covers the address.
        """
        asked = array("Q", addresses)
        found: list[Symbol | None] = []
        for address, hit in zip(asked, self._table.resolve(asked), strict=True):
            if hit is not None:
                raw, offset, is_guess, source = hit
                name = show_bytes(raw)
                if self._sources[source] == GOPCLNTAB:
                    name = name.replace("\u00b7", ".")  # as Go's linker does for symbol tables
                found.append(Symbol(demangle(name), name, offset, is_guess, source=self._sources[source]))
                continue
            stub = self._plt.find(address) if self._plt else None
            if stub is None:
                found.append(None)
            else:
                name = show_bytes(stub[0])
                found.append(Symbol(demangle(name), name, stub[1], source="plt"))
        return found


def _debugdata_tables(file: ElfFile, problems: list[str]) -> list[SymbolBytes]:
    """The symbol table of the ELF file that .gnu_debugdata holds, compressed with xz.

    Source: https://sourceware.org/gdb/current/onlinedocs/gdb.html/MiniDebugInfo.html.
    """
    try:
        section = next((section for section in file.sections() if section.name == DEBUGDATA), None)
        if section is None:
            return []
        packed = file.contents(section, MAX_DEBUGDATA)
        name = f"{DEBUGDATA} of {file.name}"
        inner = ElfFile.from_bytes(_unpack(packed, name), name)
    except ElfError as error:
        problems.append(str(error))
        return []
    return [
        SymbolBytes(DEBUGDATA, table.symbols, table.strings)
        for table in symbol_tables(inner, problems)
        if table.source == ".symtab"
    ]


def _unpack(packed: bytes, name: str) -> bytes:
    """Decompresses xz data within bounds of memory and, by that, of time.

    Raises:
        ElfError: it is damaged, or unpacks to more than MAX_DEBUGDATA.
    """
    import lzma

    unpacker = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MAX_DEBUGDATA)
    try:
        data = unpacker.decompress(packed, max_length=MAX_DEBUGDATA)
    except (lzma.LZMAError, MemoryError) as error:
        raise ElfError(f"{name} is damaged: {error}") from error
    if not unpacker.eof:
        reason = "is cut off" if unpacker.needs_input else f"unpacks to more than {MAX_DEBUGDATA} bytes"
        raise ElfError(f"{name} {reason}")
    return data
