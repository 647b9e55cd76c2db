# SPDX-License-Identifier: Apache-2.0
"""Unwind rows of files that a test makes, checked against readelf on the way."""

import os
from pathlib import Path

from pyprof.elf.file import ElfFile, open_regular
from pyprof.unwind.rows import FileRows, Notation, read_rows
from tests.support.readelf_frames import differences, our_steps, readelf_steps

SHARED = ("-shared", "-fPIC", "-nostdlib")


def file_rows(path: Path | str, problems: list[str] | None = None) -> FileRows | None:
    """The rows of a file."""
    fd = open_regular(path)
    try:
        return read_rows(ElfFile(fd, str(path)), [] if problems is None else problems)
    finally:
        os.close(fd)


def checked_rows(path: Path | str, machine: int = 62) -> FileRows:
    """The rows of a file, which has some, and which are readelf's."""
    found = file_rows(path)
    assert found is not None
    theirs = readelf_steps(path, section=found.source)
    assert differences(theirs, our_steps(found.rows, machine)) == []
    return found


def texts(found: FileRows, start: int, end: int, machine: int = 62) -> list[tuple[int, str]]:
    """Rows that cover [start, end): (distance from start, "CFA FP RA", "-", or a reason)."""
    notation = Notation(found.rows, machine)
    out = []
    index = found.rows.find(start)
    addresses = found.rows.addresses
    while index < len(addresses) and addresses[index] < end:
        row = notation.row(index)
        text = "-" if row is None else row.reason or f"{row.cfa} {row.fp} {row.ra}"
        out.append((max(addresses[index], start) - start, text))
        index += 1
    return out
