# SPDX-License-Identifier: Apache-2.0
"""Range lists against a dict of addresses."""

import random
from array import array
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, rule

from pyprof._native.ranges import RangeList

LAST = 2**64 - 1
SPACE = 24
"""Addresses in the model's small world, which is put at the beginning, middle and end of the real one."""

Model = dict[int, tuple[int, int]]
Item = tuple[int, int, int, int]


def spread(items: list[Item]) -> Model:
    """Address -> (bias, executable), by walking the ranges; they must be in order and disjoint."""
    found: Model = {}
    before = -1
    for start, last, bias, executable in items:
        assert before < start <= last
        before = last
        found.update(dict.fromkeys(range(start, last + 1), (bias, executable)))
    return found


if TYPE_CHECKING:
    Columns = tuple[array[int], array[int], array[int], array[int]]


def columns_of(items: list[Item]) -> "Columns":
    starts, lasts, biases, executables = zip(*items, strict=True) if items else ((), (), (), ())
    return array("Q", starts), array("Q", lasts), array("Q", biases), array("I", executables)


class RangesMachine(RuleBasedStateMachine):
    lists = Bundle("lists")

    @rule(target=lists, base=st.sampled_from([0, 2**47, LAST - SPACE + 1]))
    def create(self, base: int) -> tuple[RangeList, Model, int]:
        return RangeList(), {}, base

    @rule(target=lists, old=lists)
    def fork(self, old: tuple[RangeList, Model, int]) -> tuple[RangeList, Model, int]:
        return old[0].fork(), dict(old[1]), old[2]

    @rule(
        which=lists, ends=st.tuples(st.integers(0, SPACE - 1), st.integers(0, SPACE - 1)),
        bias=st.integers(0, 1), executable=st.integers(0, 2),
    )  # fmt: skip
    def map(
        self, which: tuple[RangeList, Model, int], ends: tuple[int, int], bias: int, executable: int
    ) -> None:
        ranges, model, base = which
        start, last = base + min(ends), base + max(ends)
        was_so = (start, last, bias, executable) in ranges.items()
        assert ranges.map(start, last, bias, executable) == (not was_so)
        model.update(dict.fromkeys(range(start, last + 1), (bias, executable)))

    @rule(
        which=lists,
        spans=st.lists(
            st.tuples(
                st.integers(0, SPACE - 1), st.integers(0, SPACE - 1), st.integers(0, 1), st.integers(0, 2)
            ),
            max_size=5,
        ),
        apart=st.booleans(),
    )
    def map_many(
        self, which: tuple[RangeList, Model, int], spans: list[tuple[int, int, int, int]], apart: bool
    ) -> None:
        ranges, model, base = which
        items: list[Item] = []
        for one, other, bias, executable in spans:
            item = (base + min(one, other), base + max(one, other), bias, executable)
            if not apart or all(item[1] < old[0] or old[1] < item[0] for old in items):
                items.append(item)
                model.update(dict.fromkeys(range(item[0], item[1] + 1), (bias, executable)))
        ranges.map_many(*columns_of(items))

    @rule(which=lists)
    def agrees(self, which: tuple[RangeList, Model, int]) -> None:
        ranges, model, base = which
        assert spread(ranges.items()) == model
        for address in range(base, base + SPACE):
            hit = ranges.find(address)
            assert (hit and hit[2:]) == model.get(address)
            assert hit is None or hit[0] <= address <= hit[1]


RangesMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestRanges = RangesMachine.TestCase


@given(st.lists(st.tuples(st.integers(0, LAST), st.integers(0, LAST)), min_size=1, max_size=8))
def test_the_newest_range_wins_anywhere_in_the_address_space(pairs: list[tuple[int, int]]) -> None:
    ranges = RangeList()
    ends = [(min(pair), max(pair)) for pair in pairs]
    for number, (start, last) in enumerate(ends):
        ranges.map(start, last, executable=number)
    probes = {max(start - 1, 0) for start, _ in ends} | {min(last + 1, LAST) for _, last in ends}
    probes |= {end for pair in ends for end in pair}
    for address in probes:
        newest = [number for number, (start, last) in enumerate(ends) if start <= address <= last]
        hit = ranges.find(address)
        assert (hit and hit[3]) == (newest[-1] if newest else None)


def test_a_range_inside_another_leaves_both_its_sides() -> None:
    ranges = RangeList()
    ranges.map(0x1000, 0x5FFF, 0x1000, 7)
    assert ranges.map(0x3000, 0x3FFF, 0x3000, 8)
    assert ranges.items() == [
        (0x1000, 0x2FFF, 0x1000, 7), (0x3000, 0x3FFF, 0x3000, 8), (0x4000, 0x5FFF, 0x1000, 7),
    ]  # fmt: skip


def test_the_whole_address_space_is_a_range() -> None:
    ranges = RangeList()
    ranges.map(5, 5, executable=1)
    ranges.map(0, LAST, executable=2)
    assert ranges.items() == [(0, LAST, 0, 2)]
    ranges.map(LAST, LAST, executable=3)
    assert ranges.items() == [(0, LAST - 1, 0, 2), (LAST, LAST, 0, 3)]


def test_mapping_the_same_again_changes_nothing() -> None:
    ranges = RangeList()
    assert ranges.map(1, 2, 3, 4)
    assert not ranges.map(1, 2, 3, 4)
    assert ranges.map(1, 2, 3, 5)


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        RangeList().map(2, 1)


def test_a_fork_keeps_what_its_parent_changes_and_outlives_it() -> None:
    parent = RangeList()
    parent.map(0, 9, executable=1)
    child = parent.fork()
    parent.map(5, 6, executable=2)
    del parent
    assert child.items() == [(0, 9, 0, 1)]


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled"])
def test_65530_ranges_are_mapped_whole_and_one_by_one(order: str) -> None:
    starts = [0x10000 + i * 0x3000 for i in range(65_530)]
    if order == "descending":
        starts.reverse()
    if order == "shuffled":
        random.Random(1).shuffle(starts)
    whole, single = RangeList(), RangeList()
    whole.map_many(array("Q", starts), array("Q", [start + 0xFFF for start in starts]))
    for start in starts:
        single.map(start, start + 0xFFF)
    assert whole.items() == single.items() == [(start, start + 0xFFF, 0, 0) for start in sorted(starts)]


def test_a_batch_with_an_empty_range_changes_nothing() -> None:
    ranges = RangeList()
    ranges.map(0, 9, executable=1)
    with pytest.raises(ValueError, match="empty"):
        ranges.map_many(array("Q", [5, 2]), array("Q", [6, 1]))
    with pytest.raises(ValueError, match="differ"):
        ranges.map_many(array("Q", [5, 2]), array("Q", [6]))
    assert ranges.items() == [(0, 9, 0, 1)]
