# SPDX-License-Identifier: Apache-2.0
"""Functions of Go programs, also of stripped ones."""

from functools import partial

from pyprof._native.gopclntab import function_symbols
from pyprof.elf.file import ElfFile
from pyprof.elf.gopclntab import GoTable, first_table, function_pairs
from pyprof.elf.tables import SymbolBytes
from pyprof.errors import ElfError

GOPCLNTAB = "gopclntab"


def go_symbols(file: ElfFile, problems: list[str]) -> SymbolBytes | None:
    """The functions of a Go program, each up to the next one's start.

    Names are those of Go's stack traces: an unstripped file's symbol table has ".abi0" behind some functions
    in assembly, and before Go 1.20 type arguments in place of "[...]".

    Args:
        file: any ELF file.
        problems: receives a sentence for a table that is there but cannot be used.

    Returns:
        Symbols in the form of an ELF symbol table; None where the file has no such table.
    """
    return first_table(file, problems, partial(_symbols, file))


def _symbols(file: ElfFile, table: GoTable) -> SymbolBytes:
    """Raises ElfError where there are none, or addresses are not known."""
    pairs, text = function_pairs(file, table)
    symbols = function_symbols(
        pairs, table.width, memoryview(table.data)[table.functions :], table.names_end - table.names, text
    )
    if not symbols:
        raise ElfError(f"the function table of {file.name} has no functions in it")
    return SymbolBytes(GOPCLNTAB, symbols, table.data[table.names : table.names_end])
