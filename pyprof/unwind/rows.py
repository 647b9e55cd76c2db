# SPDX-License-Identifier: Apache-2.0
"""Unwind rows of an ELF file, and their text in the notation of `readelf --debug-dump=frames-interp`."""

from array import array
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from pyprof._native.cfi import REASONS, UnwindRows
from pyprof.elf.file import EM_X86_64, ElfFile
from pyprof.unwind.go import GoSource, all_sources, rows_of_go_source
from pyprof.unwind.tables import DEBUG_FRAME, CfiSource

_X86_64 = ("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *(f"r{number}" for number in range(8, 16)))
_ARM64 = (*(f"x{number}" for number in range(31)), "sp")
_SP, _FP = {True: 7, False: 31}, {True: 6, False: 29}


@dataclass(frozen=True, slots=True)
class FileRows:
    """The unwind rows of a file.

    Attributes:
        source: the section that they were made from.
        bytes: its size.
        rows: the rows.
    """

    source: str
    bytes: int
    rows: UnwindRows


class RowText(NamedTuple):
    """A row, addresses [addr, end), as text.

    `cfa` is REGISTER+OFFSET; "exp" where it is an expression; "?" where the rule is unsupported.
    `fp` and `ra` are "u" (as it is, or undefined), "c-16" (saved 16 below the CFA), "v-16" (16 below the CFA
    itself), a register, or "exp". `reason` says why the rule, or that of `fp`, is unsupported; else "".
    """

    addr: int
    end: int
    cfa: str
    fp: str
    ra: str
    reason: str


def rows_of(source: CfiSource | GoSource, machine: int) -> UnwindRows:
    """Makes the rows of a source; the GIL is free meanwhile.

    Args:
        source: what `all_sources` found.
        machine: EM_* of the file.

    Raises:
        ElfError: the machine is none that can be unwound, or there are too many rows.
    """
    if isinstance(source, GoSource):
        frames = source.frames
        return rows_of_go_source(source, machine, rows_of(frames, machine) if frames else None)
    return UnwindRows(
        source.data,
        source.address,
        machine,
        debug_frame=source.name == DEBUG_FRAME,
        stop_at_zero=not source.exact,
        trampolines=array("Q", chain.from_iterable(source.trampolines)),
    )


def read_rows(file: ElfFile, problems: list[str]) -> FileRows | None:
    """Makes the rows of a file, from the first of its sources that has any.

    Args:
        file: the file.
        problems: receives a sentence for each source that is there but cannot be used.

    Returns:
        The rows; None where there are none.

    Raises:
        ElfError: as for `rows_of`.
    """
    for source in all_sources(file, problems):
        rows = rows_of(source, file.machine)
        if len(rows):
            return FileRows(source.name, len(source.data), rows)
    return None


class Notation:
    """Turns rows into text, each distinct rule once."""

    def __init__(self, rows: UnwindRows, machine: int) -> None:
        """Prepares for some rows.

        Args:
            rows: the rows.
            machine: EM_* of their file.
        """
        self._rows = rows
        self._addresses = rows.addresses
        self._numbers = rows.numbers
        self._names = _X86_64 if machine == EM_X86_64 else _ARM64
        self._sp = self._names[_SP[machine == EM_X86_64]]
        self._fp = self._names[_FP[machine == EM_X86_64]]
        self._texts = [self._text(number) for number in range(rows.rule_count)]

    def row(self, index: int) -> RowText | None:
        """The row of an index; None where it says that no unwind information covers its addresses."""
        text = self._texts[self._numbers[index]]
        if text is None:
            return None
        end = self._addresses[index + 1] if index + 1 < len(self._addresses) else 1 << 64
        return RowText(self._addresses[index], end, *text)

    def _text(self, number: int) -> tuple[str, str, str, str] | None:
        cfa, fp, ra, _, register, cfa_offset, fp_offset, other = self._rows.rule(number)
        if cfa == "NONE":
            return None
        reason = ""
        if cfa == "UNSUPPORTED":
            if ra == "UNDEFINED":  # the outermost frame needs no CFA
                return "exp", "u", "u", ""
            return "?", "?", "?", REASONS[other]
        if fp == "UNSUPPORTED":
            reason = REASONS[fp_offset]
        base = self._names[register]
        # The CFA as the file states it, which need not be the caller's stack pointer.
        shift = other if cfa in ("SP", "FP") and ra == "BELOW_CFA" else 0
        cfa_text = {
            "SP": f"{self._sp}{cfa_offset - shift:+d}",
            "FP": f"{self._fp}{cfa_offset - shift:+d}",
            "REGISTER": f"{base}{cfa_offset:+d}",
            "JUMP": f"{base}{cfa_offset:+d}",
            "CONTEXT_AT": f"{base}+0",
        }.get(cfa, "exp")
        fp_text = {
            "SAME": "u",
            "UNDEFINED": "u",
            "AT_CFA": f"c{fp_offset + shift:+d}",
            "IS_CFA": f"v{fp_offset + shift:+d}",
            "IN_REGISTER": self._names[fp_offset & 31 if fp == "IN_REGISTER" else 0],
        }.get(fp, "exp")
        ra_text = {
            "BELOW_CFA": f"c{shift - 8:+d}",
            "AT_CFA": f"c{other:+d}",
            "LINK": self._names[30 if ra == "LINK" else 0],
            "IN_REGISTER": self._names[other & 31 if ra == "IN_REGISTER" else 0],
            "UNDEFINED": "u",
        }.get(ra, "exp")
        return cfa_text, fp_text, ra_text, reason
