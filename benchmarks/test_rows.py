# SPDX-License-Identifier: Apache-2.0
"""Making unwind rows of libc and of the largest library there is, beside pyelftools and readelf."""

import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from elftools.dwarf.callframe import FDE
from elftools.elf.elffile import ELFFile
from pytest_benchmark.fixture import BenchmarkFixture

from pyprof._native.arena import RowArena
from pyprof.bpf.library import CHUNK_BYTES, RULE_TABLE_BYTES
from pyprof.elf.file import PF_X, ElfFile, open_regular
from pyprof.elf.identity import read_identity
from pyprof.unwind.rows import read_rows, rows_of
from pyprof.unwind.tables import CfiSource, find

LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
LIBC = LIBRARIES / "libc.so.6"


@cache
def largest() -> Path:
    """The library with the most bytes."""
    found = [path for path in LIBRARIES.rglob("*.so*") if path.is_file() and not path.is_symlink()]
    return max(found, key=lambda path: path.stat().st_size)


@cache
def source(path: Path) -> tuple[CfiSource, int]:
    file = ElfFile(open_regular(path), path.name)
    found = find(file, [])
    assert found is not None
    return found, file.machine


def rows_by_pyelftools(path: Path) -> int:
    """How many rows pyelftools decodes from .eh_frame."""
    with path.open("rb") as stream:
        entries = ELFFile(stream).get_dwarf_info().EH_CFI_entries()
        count = 0
        for entry in entries:
            # Version 0.33 fails on some entries of libc: what it does not do costs it nothing here.
            with suppress(ValueError):
                count += len(entry.get_decoded().table) if isinstance(entry, FDE) else 0
        return count


def rows_by_readelf(path: Path) -> int:
    """How many rows readelf prints."""
    # It ends with 1 whenever it cannot find a debug file.
    command = ["readelf", "--debug-dump=frames-interp", str(path)]
    printed = subprocess.run(command, check=False, capture_output=True).stdout
    return sum(
        len(line) > 17 and line[:16].isalnum() and line[16:17] == b" " for line in printed.splitlines()
    )


@pytest.mark.parametrize("rival", ["pyprof", "pyelftools", "readelf"])
@pytest.mark.benchmark(group="unwind rows of libc")
def test_rows_of_libc(benchmark: BenchmarkFixture, rival: str) -> None:
    data, machine = source(LIBC)
    if rival == "pyprof":
        made = benchmark(rows_of, data, machine)
        assert len(made) > 10_000
    else:
        count = benchmark.pedantic(  # type: ignore[no-untyped-call]
            rows_by_pyelftools if rival == "pyelftools" else rows_by_readelf, args=(LIBC,), rounds=1
        )
        assert count > 10_000


@pytest.mark.benchmark(group="unwind rows of the largest library")
def test_rows_of_the_largest_library(benchmark: BenchmarkFixture) -> None:
    data, machine = source(largest())
    made = benchmark.pedantic(rows_of, args=(data, machine), rounds=5)  # type: ignore[no-untyped-call]
    assert benchmark.stats is not None
    rate = len(made) / benchmark.stats["min"]
    benchmark.extra_info["note"] = f"{largest().name}: {len(made):,} rows, {rate:,.0f} rows/s"


@pytest.mark.benchmark(group="rows into the arena")
def test_bytes_a_row_in_the_arena(benchmark: BenchmarkFixture) -> None:
    """Places libc's rows: what one takes in memory that kernel and user space share."""
    fd = open_regular(LIBC)
    file = ElfFile(fd, "libc")
    made = read_rows(file, [])
    assert made is not None
    segments = [
        (segment.offset, segment.filesz, segment.vaddr)
        for segment in read_identity(fd).segments
        if segment.flags & PF_X
    ]
    rules = bytearray(RULE_TABLE_BYTES)

    def place() -> dict[str, int]:
        arena = RowArena(rules)
        arena.add_chunk(bytearray(CHUNK_BYTES))
        assert arena.load(2, made.rows.addresses, made.rows.numbers, made.rows.rules, segments, 1)
        return arena.counts()

    counts = benchmark(place)
    used = counts["bytes"] - counts["free_bytes"]
    note = f"libc: {counts['rows']:,} rows in {used:,} bytes: {used / counts['rows']:.2f} bytes a row"
    benchmark.extra_info["note"] = note
