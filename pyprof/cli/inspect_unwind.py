# SPDX-License-Identifier: Apache-2.0
"""`pyprof inspect unwind FILE`: by which rules the profiler finds callers in an executable."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from pyprof.elf.file import EM_X86_64, ElfFile, open_regular, show_path
from pyprof.errors import ElfError
from pyprof.unwind.rows import FileRows, Notation, RowText, read_rows

EPILOG = """\
examples:
  pyprof inspect unwind /bin/sh                    all rows
  pyprof inspect unwind /bin/sh --pc 0x4040        how the caller of code at 0x4040 is found
  pyprof inspect unwind /bin/sh --json | jq .counts

CFA is the caller's stack pointer: register+offset, or exp (an expression). RBP and RA say where the caller's
frame pointer and the return address are: u (unchanged, or there is none), c-16 (saved 16 below the CFA), a
register, or exp. ? marks a rule that cannot be decoded, with the reason.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb."""
    parser.description = (
        "Show the unwind rows of an executable or library, one a line: ADDR CFA RBP RA, in the notation of"
        " `readelf --debug-dump=frames-interp`. A row holds up to the next one, or its function's end."
    )
    parser.epilog = EPILOG
    parser.add_argument("file", metavar="FILE", help="an ELF file")
    parser.add_argument(
        "--pc", metavar="ADDR", type=_address, help="only the row that covers this ELF virtual address"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _address(text: str) -> int:
    value = int(text, 0)
    if not 0 <= value < 1 << 64:
        raise ValueError(text)
    return value


def run(args: argparse.Namespace) -> int:
    """Prints the rows of a file.

    Raises:
        ElfError: it cannot be opened, is no ELF file that can be profiled, or has no unwind information, in
            it or (with --pc) for the address.
    """
    name = show_path(args.file)
    fd = open_regular(args.file)
    problems: list[str] = []
    try:
        file = ElfFile(fd, name)
        found = read_rows(file, problems)
    finally:
        os.close(fd)
    if found is None:
        raise ElfError(problems[0] if problems else f"{name} has no unwind information")
    rows = list(_rows(found, file.machine, args.pc))
    if args.pc is not None and not rows:
        raise ElfError(f"{name} has no unwind information for address {args.pc:#x}")
    if args.json:
        sys.stdout.write(json.dumps(_as_object(found, file.machine, rows, problems)) + "\n")
    else:
        sys.stdout.writelines(_as_line(row) for row in rows)
    for problem in problems:
        print(f"pyprof: {problem}", file=sys.stderr)
    return 0


def _rows(found: FileRows, machine: int, pc: int | None) -> Iterator[RowText]:
    notation = Notation(found.rows, machine)
    wanted = range(len(found.rows))
    if pc is not None:
        index = found.rows.find(pc)
        wanted = range(index, index + 1) if index >= 0 else range(0)
    for index in wanted:
        row = notation.row(index)
        if row is not None:
            yield row


def _as_line(row: RowText) -> str:
    reason = f"  # {row.reason}" if row.reason else ""
    return f"{row.addr:016x} {row.cfa:<8} {row.fp:<5} {row.ra}{reason}\n"


def _as_object(found: FileRows, machine: int, rows: list[RowText], problems: list[str]) -> dict[str, Any]:
    fp = "rbp" if machine == EM_X86_64 else "x29"
    return {
        "source": found.source,
        "bytes": found.bytes,
        "counts": {
            "rows": len(found.rows),
            "rules": found.rows.rule_count,
            "functions": found.rows.fde_count,
            "common": found.rows.cie_count,
            "overlaps": found.rows.overlaps,
            "discarded": found.rows.discarded,
            "skipped": found.rows.skipped,
            "unsupported": found.rows.unsupported,
        },
        "rows": [
            {"addr": row.addr, "end": row.end, "cfa": row.cfa, fp: row.fp, "ra": row.ra}
            for row in rows
            if row.cfa != "?"
        ],
        "unsupported": [
            {"addr": row.addr, "end": row.end, "reason": row.reason} for row in rows if row.reason
        ],
        "problems": problems,
    }
