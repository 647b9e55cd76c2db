# SPDX-License-Identifier: Apache-2.0
"""Unwind rows of the host's own programs and libraries against GNU readelf's.

By default the best-known ones and, until a time limit, small ones; with PYPROF_FULL=1 all, which takes half
an hour.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyprof.elf.file import EM_X86_64, ET_REL, ElfFile, open_regular
from pyprof.errors import ElfError
from pyprof.unwind.go import GOPCLNTAB, all_sources
from pyprof.unwind.rows import read_rows
from pyprof.unwind.tables import EH_FRAME, CfiSource
from tests.support.readelf_frames import differences, our_steps, readelf_steps

FULL = os.environ.get("PYPROF_FULL") == "1"
FOLDERS = [Path("/usr/bin"), Path("/usr/lib/x86_64-linux-gnu")]
KNOWN = ["libc.so.6", "libstdc++.so.6", "ld-linux-x86-64.so.2", "libcrypto.so.3", "bash", "git"]
SMALL = 300 << 10
SECONDS = 40


def elf_files() -> Iterator[Path]:
    """Linked x86-64 files below the folders, each once; the well-known first, the rest in a fixed order."""
    paths = sorted(path for folder in FOLDERS for path in folder.rglob("*") if path.is_file())
    random.Random(1).shuffle(paths)
    paths.sort(key=lambda path: path.name not in KNOWN)
    seen = set()
    for path in paths:
        status = path.stat()
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        if not FULL and path.name not in KNOWN and status.st_size > SMALL:
            continue
        with path.open("rb") as stream:
            if stream.read(4) == b"\x7fELF":
                yield path


def trampolines_of(file: ElfFile) -> set[int]:
    """Where code of a known form takes the place of call frame information that is missing. A row for it
    begins a byte before it, for whoever looks a return address up as that of a call."""
    sources = [source for source in all_sources(file, []) if isinstance(source, CfiSource)]
    return {start - 1 for source in sources for start, _ in source.trampolines}


class Totals:
    """What is asserted over all files."""

    def __init__(self) -> None:
        self.files = 0
        self.rows = 0
        self.rules: set[tuple[object, ...]] = set()
        self.unsupported: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.overlaps = 0
        self.go = 0
        self.slowest = (0.0, "")
        self.wrong: list[str] = []

    def add(self, path: Path) -> None:
        """Compares one file."""
        fd = open_regular(path)
        try:
            file = ElfFile(fd, str(path))
            if file.type == ET_REL or file.machine != EM_X86_64:
                return
            started = time.thread_time()
            found = read_rows(file, [])
            trampolines = trampolines_of(file)
            self.slowest = max(self.slowest, (time.thread_time() - started, str(path)))
        except ElfError:  # another class of ELF file
            return
        finally:
            os.close(fd)
        self.files += 1
        source = found.source if found else EH_FRAME
        ours = our_steps(found.rows, EM_X86_64) if found else []
        # Go's own code has rows from Go's table (test_unwind_go_rows.py); what C code there is stands here.
        is_go = source == GOPCLNTAB
        self.go += is_go
        theirs = readelf_steps(path, section=EH_FRAME if is_go else source)
        wrong = differences(theirs, ours, only_theirs=is_go)
        # Of musl's signal trampolines, which have no call frame information, the row comes from their code.
        wrong = [text for text in wrong if int(text.partition(":")[0], 16) not in trampolines]
        if wrong:
            self.wrong.append(f"{path}: {len(wrong)} differences, {wrong[:3]}")
        if found:
            self.rows += len(found.rows)
            self.rules |= {found.rows.rule(number) for number in range(found.rows.rule_count)}
            self.unsupported.update(found.rows.unsupported)
            self.skipped.update(found.rows.skipped)
            self.overlaps += found.rows.overlaps

    def __str__(self) -> str:
        return (
            f"{self.files} files, {self.go} of them of Go, {self.rows} rows, {len(self.rules)} rules,"
            f" unsupported {dict(self.unsupported)}, skipped {dict(self.skipped)}, overlaps {self.overlaps},"
            f" slowest {self.slowest[0]:.3f} s of CPU for {self.slowest[1]}"
        )


@pytest.mark.timeout(3 * 3600 if FULL else 300)
def test_rows_of_installed_files_are_those_of_readelf() -> None:
    totals = Totals()
    started = time.monotonic()
    for path in elf_files():
        totals.add(path)
        if not FULL and time.monotonic() - started > SECONDS:
            break
    print(totals)
    assert totals.wrong == [], str(totals)
    assert totals.files > 20
    assert sum(totals.unsupported.values()) < totals.rows / 1000, str(totals)
    assert totals.skipped == Counter()
    assert totals.slowest[0] < 1.0
