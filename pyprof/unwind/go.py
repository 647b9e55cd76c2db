# SPDX-License-Identifier: Apache-2.0
"""Unwind rows of Go programs, from their program counter table; of C code in them, from .eh_frame."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyprof._native.cfi import UnwindRows, rows_of_go
from pyprof.elf.file import ET_REL, ElfFile
from pyprof.elf.gopclntab import MAX_TABLE, GoTable, first_table, function_pairs
from pyprof.errors import ElfError
from pyprof.unwind.tables import EH_FRAME, CfiSource, sources

if TYPE_CHECKING:
    from typing_extensions import Buffer

GOPCLNTAB = ".gopclntab"

MAX_CODE = MAX_TABLE
"""Most bytes of Go code: its table is of about the same size."""


@dataclass(frozen=True, slots=True)
class GoSource:
    """What the rows of a Go program are made from.

    Attributes:
        name: GOPCLNTAB.
        table: the table.
        pairs: its pairs of numbers, as they are in memory.
        text: ELF virtual address that functions' starts count from.
        code: the code of all functions: prologues tell what the table does not.
        code_address: ELF virtual address of its first byte.
        frames: call frame information of C code, if there is any.
    """

    name: str
    table: GoTable
    pairs: bytes | bytearray | memoryview
    text: int
    code: bytes
    code_address: int
    frames: CfiSource | None

    @property
    def data(self) -> bytes:
        """The table's bytes."""
        return self.table.data

    def parts(self) -> "tuple[Buffer, ...]":
        """All that rows depend on, as bytes; see CfiSource.parts."""
        facts = struct.pack("<QQQ", self.table.address, self.text, self.code_address)
        return self.data, self.pairs, self.code, facts, *(self.frames.parts() if self.frames else ())


def all_sources(file: ElfFile, problems: list[str]) -> Iterator[CfiSource | GoSource]:
    """Yields all that the rows of a file can be made from, the best first.

    Args:
        file: the file.
        problems: receives a sentence for each part that is there but cannot be used.
    """
    found = None
    if file.type != ET_REL:
        found = first_table(file, problems, partial(_source, file))
    if found is not None:
        yield found
    yield from sources(file, problems)


def _source(file: ElfFile, table: GoTable) -> GoSource:
    """Raises ElfError where the table's addresses are not known, or are not those of code."""
    pairs, text = function_pairs(file, table)
    ends = memoryview(pairs)
    first, last = (
        (text + int.from_bytes(number, "little")) % (1 << 64)
        for number in (ends[: table.width], ends[-table.width :])
    )
    size = last - first
    offset = file.offset_of_address(first, size) if 0 < size <= MAX_CODE else None
    if offset is None:
        raise ElfError(f"the function table of {file.name} is not that of its code")
    frames = next((source for source in sources(file, []) if source.name == EH_FRAME), None)
    return GoSource(GOPCLNTAB, table, pairs, text, file.read(offset, size), first, frames)


def rows_of_go_source(source: GoSource, machine: int, other: UnwindRows | None) -> UnwindRows:
    """Makes the rows of a Go program; the GIL is free meanwhile.

    Args:
        source: of the program.
        machine: EM_* of the file.
        other: the rows of `source.frames`.

    Raises:
        ElfError: the machine is none that can be unwound, or there are too many rows.
    """
    table = source.table
    data = memoryview(table.data)
    return rows_of_go(
        source.pairs,
        table.width,
        source.text,
        data[table.functions :],
        data[table.deltas :],
        data[table.names : table.names_end],
        source.code,
        source.code_address,
        machine,
        deltas_at=table.deltas_at,
        flags_at=table.flags_at,
        quantum=table.quantum,
        other=other,
    )
