# SPDX-License-Identifier: Apache-2.0
"""Counting of frames, stacks and samples against dicts of tuples."""

import struct
from array import array
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof._native.aggregate import Aggregator

FRAME = struct.Struct("=QII")
STACK = struct.Struct("=QII")
SAMPLE = struct.Struct("=QIIII")

Frame = tuple[int, int, int]  # kind, executable, address
Stack = tuple[Frame, ...]
Key = tuple[int, int, Stack, int]  # process, thread, stack, end


def columns(frames: Stack) -> tuple["array[int]", "array[int]", "array[int]"]:
    return (
        array("I", [frame[0] for frame in frames]),
        array("I", [frame[1] for frame in frames]),
        array("Q", [frame[2] for frame in frames]),
    )


def add(aggregator: Aggregator, key: Key, count: int = 1) -> None:
    aggregator.add(key[0], key[1], *columns(key[2]), count, key[3])


def read(taken: dict[str, bytes]) -> dict[Key, int]:
    """The counts of a take(), which must hold each frame, stack and sample once."""
    frames = [(kind, executable, address) for address, executable, kind in FRAME.iter_unpack(taken["frames"])]
    assert len(set(frames)) == len(frames)
    pool = array("I", taken["pool"])
    stacks = []
    at = 0
    for start, length, _ in STACK.iter_unpack(taken["stacks"]):
        assert start == at, "stacks lie in the pool in order, without gaps"
        at += length
        stacks.append(tuple(frames[i] for i in pool[start : start + length]))
    assert at == len(pool)
    assert len(set(stacks)) == len(stacks)
    found: dict[Key, int] = {}
    for count, process, thread, stack, end in SAMPLE.iter_unpack(taken["samples"]):
        assert (process, thread, stacks[stack], end) not in found
        found[process, thread, stacks[stack], end] = count
    return found


FRAMES = st.tuples(
    st.sampled_from([1, 2, 3]),
    st.sampled_from([0, 1, 2, 2**32 - 1]),
    st.sampled_from([0, 1, 2**32, 2**63, 2**64 - 1]),
)
STACKS = st.lists(FRAMES, max_size=5).map(tuple)
SAMPLES = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 2), st.integers(0, 2), STACKS, st.sampled_from([0, 1, 255])),
        st.integers(1, 2**40),
    ),
    max_size=60,
)


@given(SAMPLES, st.integers(0, 2**64 - 1))
def test_counts_are_those_of_a_dict_whatever_the_seed(samples: list[tuple[Key, int]], seed: int) -> None:
    aggregator = Aggregator(seed)
    model: Counter[Key] = Counter()
    for key, count in samples:
        add(aggregator, key, count)
        model[key] += count
    frames = {frame for _, _, stack, _ in model for frame in stack}
    stacks = {stack for _, _, stack, _ in model}
    assert aggregator.sizes() == (len(frames), len(stacks), len(model))
    assert read(aggregator.take()) == dict(model)
    assert aggregator.sizes() == (0, 0, 0)


@settings(max_examples=20)
@given(st.lists(SAMPLES, min_size=2, max_size=4))
def test_nothing_of_one_interval_is_in_the_next(intervals: list[list[tuple[Key, int]]]) -> None:
    aggregator = Aggregator()
    for samples in intervals:
        model: Counter[Key] = Counter()
        for key, count in samples:
            add(aggregator, key, count)
            model[key] += count
        assert read(aggregator.take()) == dict(model)


def test_rows_have_their_documented_layout() -> None:
    aggregator = Aggregator(1)
    add(aggregator, (5, 6, ((1, 7, 0x1122334455667788), (2, 0, 9), (1, 7, 0x1122334455667788)), 4), 3)
    taken = aggregator.take()
    assert taken["frames"] == struct.pack("=QIIQII", 0x1122334455667788, 7, 1, 9, 0, 2)
    assert taken["pool"] == struct.pack("=III", 0, 1, 0)
    assert taken["stacks"][:12] == struct.pack("=QI", 0, 3)
    assert taken["samples"] == struct.pack("=QIIII", 3, 5, 6, 0, 4)
    assert taken["processes"] == taken["threads"] == b""


def test_many_stacks_survive_the_growth_of_every_table() -> None:
    aggregator = Aggregator(1)
    model = {}
    for i in range(20_000):
        stack = tuple((1, i % 7, address) for address in (i, i // 2, i // 3))
        add(aggregator, (i % 3, 0, stack, i % 5))
        model[i % 3, 0, stack, i % 5] = 1
    assert read(aggregator.take()) == model


def test_a_stack_without_frames_counts() -> None:
    aggregator = Aggregator()
    add(aggregator, (0, 0, (), 0))
    add(aggregator, (0, 0, (), 0))
    assert read(aggregator.take()) == {(0, 0, (), 0): 2}


def test_a_stack_that_ended_for_two_reasons_is_one_stack_and_two_samples() -> None:
    aggregator = Aggregator()
    stack = ((1, 7, 8), (1, 7, 9))
    for end, count in ((0, 5), (2, 1), (9, 1), (2, 2)):
        add(aggregator, (3, 4, stack, end), count)
    assert aggregator.sizes() == (2, 1, 3)
    assert read(aggregator.take()) == {(3, 4, stack, 0): 5, (3, 4, stack, 2): 3, (3, 4, stack, 9): 1}


@given(st.lists(STACKS, max_size=30))
def test_a_batch_counts_what_its_stacks_count_one_by_one(stacks: list[Stack]) -> None:
    aggregator = Aggregator()
    starts = array("Q", [0])
    for stack in stacks:
        starts.append(starts[-1] + len(stack))
    aggregator.add_batch(4, 2, starts, *columns(tuple(frame for stack in stacks for frame in stack)))
    assert read(aggregator.take()) == {(4, 2, stack, 0): count for stack, count in Counter(stacks).items()}


@pytest.mark.parametrize(
    "starts",
    [
        [0, 3000],  # more than a stack may have
        [0, 3001],  # past the end
        [0, 10, 5],  # backwards
        [3000, 2**64 - 1],
    ],
)
def test_a_batch_with_starts_that_cannot_be_is_refused_whole(starts: list[int]) -> None:
    aggregator = Aggregator()
    frames = columns(((1, 1, 1),) * 3000)
    with pytest.raises(ValueError, match="starts do not lie"):
        aggregator.add_batch(0, 0, array("Q", [0, 5, *starts[1:]]), *frames)
    assert aggregator.sizes() == (0, 0, 0)


def test_columns_of_unequal_length_are_refused() -> None:
    kinds, executables, addresses = columns(((1, 1, 1), (1, 1, 2)))
    with pytest.raises(ValueError, match="differ"):
        Aggregator().add(0, 0, kinds[:1], executables, addresses)
    with pytest.raises(ValueError, match="differ"):
        Aggregator().add_batch(0, 0, array("Q", [0, 1]), kinds, executables[:1], addresses)


def test_a_stack_longer_than_any_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        Aggregator().add(0, 0, *columns(((1, 1, 1),) * 2049))
