# SPDX-License-Identifier: Apache-2.0
"""Counting 100,000 stacks of 30 frames, 2,000 of them distinct.

Each rival is given the same columns and makes the same three tables: each frame once, each stack once as
numbers of frames, and how often each stack was there.

- plain Python: a dict of tuples;
- plain Python on bytes: the columns of a stack as bytes are the key of a dict, and only new stacks are taken
  apart: the fastest that we found without a native package;
- pyarrow (C++): dictionary encoding of frames, then value_counts of the stacks as binary values. One thread,
  like all of them.
"""

import struct
from array import array
from collections.abc import Callable
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.ratios import time_rounds
from benchmarks.stacks import Columns, make_columns
from pyprof._native.aggregate import Aggregator

COUNT = 100_000
Frame = tuple[int, int, int]
Counts = dict[tuple[Frame, ...], int]


@cache
def columns() -> Columns:
    return make_columns(COUNT)


class Rival:
    """run: what is timed. read: its result as counts by stack, for comparison."""

    def __init__(self, run: Callable[[Columns], object], read: Callable[[object], Counts]) -> None:
        self.run = run
        self.read = read


def run_pyprof(given: Columns) -> object:
    aggregator = Aggregator(1)
    aggregator.add_batch(0, 0, given.starts, given.kinds, given.executables, given.addresses)
    return aggregator.take()


def read_pyprof(result: object) -> Counts:
    assert isinstance(result, dict)
    frames = [
        (kind, number, address) for address, number, kind in struct.iter_unpack("=QII", result["frames"])
    ]
    pool = array("I", result["pool"])
    stacks = [
        tuple(frames[i] for i in pool[start : start + length])
        for start, length, _ in struct.iter_unpack("=QII", result["stacks"])
    ]
    return {stacks[stack]: count for count, _, _, stack, _ in struct.iter_unpack("=QIIII", result["samples"])}


def read_python(result: object) -> Counts:
    assert isinstance(result, tuple)
    frames, counts = result
    rows = list(frames)
    return {tuple(rows[i] for i in stack): count for stack, count in counts.items()}


def run_tuples(given: Columns) -> object:
    frames: dict[Frame, int] = {}
    counts: dict[tuple[int, ...], int] = {}
    rows = list(zip(given.kinds, given.executables, given.addresses, strict=True))
    start = 0
    for end in given.starts[1:]:
        stack = tuple([frames.setdefault(row, len(frames)) for row in rows[start:end]])
        counts[stack] = counts.get(stack, 0) + 1
        start = end
    return frames, counts


def run_bytes(given: Columns) -> object:
    raw: dict[tuple[bytes, bytes, bytes], int] = {}
    kinds, executables, addresses = (
        memoryview(column).cast("B") for column in (given.kinds, given.executables, given.addresses)
    )
    start = 0
    for end in given.starts[1:]:
        key = (
            bytes(kinds[4 * start : 4 * end]),
            bytes(executables[4 * start : 4 * end]),
            bytes(addresses[8 * start : 8 * end]),
        )
        raw[key] = raw.get(key, 0) + 1
        start = end
    frames: dict[Frame, int] = {}
    counts: dict[tuple[int, ...], int] = {}
    for (kind, executable, address), count in raw.items():
        rows = zip(array("I", kind), array("I", executable), array("Q", address), strict=True)
        counts[tuple([frames.setdefault(row, len(frames)) for row in rows])] = count
    return frames, counts


def run_pyarrow(given: Columns) -> object:
    def column(kind: pa.DataType, values: "array[int]") -> pa.Array:
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])

    def pair(upper: pa.Array, lower: pa.Array) -> pa.Array:
        return pc.bit_wise_or(pc.shift_left(upper.cast(pa.uint64()), 32), lower.cast(pa.uint64()))

    code = pair(column(pa.uint32(), given.kinds), column(pa.uint32(), given.executables)).dictionary_encode()
    address = column(pa.uint64(), given.addresses).dictionary_encode()
    frames = pair(code.indices, address.indices).dictionary_encode()
    starts = pc.multiply(column(pa.uint64(), given.starts), 4).cast(pa.int32())
    stacks = pa.Array.from_buffers(
        pa.binary(), len(given), [None, starts.buffers()[1], frames.indices.buffers()[1]]
    )
    return code.dictionary, address.dictionary, frames.dictionary, pc.value_counts(stacks)


def read_pyarrow(result: object) -> Counts:
    assert isinstance(result, tuple)
    codes, addresses, pairs, counted = (part.to_pylist() for part in result)
    frames = [(codes[p >> 32] >> 32, codes[p >> 32] & 0xFFFFFFFF, addresses[p & 0xFFFFFFFF]) for p in pairs]
    return {tuple(frames[i] for i in array("I", row["values"])): row["counts"] for row in counted}


RIVALS = {
    "pyprof": Rival(run_pyprof, read_pyprof),
    "plain Python": Rival(run_tuples, read_python),
    "plain Python on bytes": Rival(run_bytes, read_python),
    "pyarrow": Rival(run_pyarrow, read_pyarrow),
}


@pytest.mark.benchmark(group=f"aggregate {COUNT:,} stacks")
@pytest.mark.parametrize("rival", list(RIVALS))
def test_aggregate(benchmark: BenchmarkFixture, rival: str) -> None:
    pa.set_cpu_count(1)
    given = columns()
    expected = read_pyprof(run_pyprof(given))
    assert sum(expected.values()) == COUNT
    assert len(expected) == 2000
    assert RIVALS[rival].read(RIVALS[rival].run(given)) == expected
    time_rounds(benchmark, 5, lambda: ((given,), {}), RIVALS[rival].run)
