# SPDX-License-Identifier: Apache-2.0
"""Samples merged for export, against counters of plain tuples."""

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof._native.grouping import Merged, SampleRows

Key = tuple[int, tuple[int, ...], int]  # process, locations, number of the list of attributes
Row = tuple[int, int, int, int]  # process, thread, stack, samples

FRAMES, THREADS = 5, 3


@dataclass
class Given:
    """A profile, and times of the samples of some of its rows."""

    stacks: list[list[int]]
    rows: list[Row]
    times: dict[int, list[int]] = field(default_factory=dict)

    def native(self) -> SampleRows:
        stamps = [(time, row) for row, times in self.times.items() for time in times]
        # In the order in which they were taken, not row by row.
        stamps.sort()
        return SampleRows(
            array("I", [row[0] for row in self.rows]),
            array("I", [row[1] for row in self.rows]),
            array("I", [row[2] for row in self.rows]),
            array("Q", [row[3] for row in self.rows]),
            array("I", accumulate(map(len, self.stacks), initial=0)),
            array("I", [frame for stack in self.stacks for frame in stack]),
            array("Q", [time for time, _ in stamps]),
            array("I", [row for _, row in stamps]),
        )

    def order(self) -> list[int]:
        """Rows as SampleRows counts them."""
        return sorted(range(len(self.rows)), key=lambda i: (*self.rows[i][:3], i))


@st.composite
def profiles(draw: st.DrawFn) -> Given:
    frame = st.integers(0, FRAMES - 1)
    stacks = draw(st.lists(st.lists(frame, max_size=4), min_size=1, max_size=8))
    row = st.tuples(
        st.integers(0, 2), st.integers(0, THREADS - 1), st.integers(0, len(stacks) - 1), st.integers(1, 5)
    )
    rows = draw(st.lists(row, max_size=20))
    times = {}
    for i, (*_, count) in enumerate(rows):
        # All, none, or not as many as there are samples, which are then as good as none.
        many = draw(st.sampled_from([count, count, 0, count - 1, count + 1]))
        times[i] = draw(st.lists(st.integers(0, (1 << 64) - 1), min_size=many, max_size=many))
    return Given(stacks, rows, times)


def model(profile: Given, rows: list[int], locations: list[int], lists: list[int]) -> dict[Key, Any]:
    """By key (samples, None), or (0, times) where all of them have one."""
    counts: Counter[Key] = Counter()
    times: dict[Key, list[int]] = {}
    for row in rows:
        process, thread, stack, count = profile.rows[row]
        key = (process, tuple(locations[frame] for frame in profile.stacks[stack]), lists[thread])
        counts[key] += count
        stamps = profile.times.get(row, [])
        times.setdefault(key, []).extend(stamps if len(stamps) == count else [])
    return {
        key: (0, sorted(times[key])) if len(times[key]) == count else (count, [])
        for key, count in counts.items()
    }


def seen(merged: Merged) -> dict[Key, Any]:
    """What was merged, which must hold each stack and sample once, those of a process side by side."""
    stacks: list[tuple[int, ...]] = [()]
    for first, end in zip(merged.stack_starts, merged.stack_starts[1:], strict=False):
        stacks.append(tuple(merged.locations[first:end]))
    assert len(set(stacks)) == len(stacks)
    assert merged.stack_starts[-1] == len(merged.locations)
    processes = [process for process, _ in groupby(merged.process)]
    assert processes == sorted(set(processes))
    found: dict[Key, Any] = {}
    for i, key in enumerate(zip(merged.process, merged.stack, merged.attributes, strict=True)):
        named = (key[0], stacks[key[1]], key[2])
        assert named not in found
        times = merged.times[merged.time_starts[i] : merged.time_starts[i + 1]]
        found[named] = (merged.values[i], list(times))
    assert {stacks[number] for number in merged.stack} | {()} == set(stacks)
    assert merged.time_starts[len(merged.stack)] == len(merged.times)
    return found


locations = st.lists(st.integers(1, 3), min_size=FRAMES, max_size=FRAMES)
lists = st.lists(st.integers(0, 1), min_size=THREADS, max_size=THREADS)


@given(profiles(), locations, lists, st.data())
def test_part_is_merged_as_by_the_model(
    profile: Given, by_frame: list[int], by_thread: list[int], data: st.DataObject
) -> None:
    rows, order = profile.native(), profile.order()
    first = data.draw(st.integers(0, len(order)))
    end = data.draw(st.integers(first, len(order)))
    part = (first, end, rows.time_starts[first], rows.time_starts[end])
    merged = rows.merge(*part, array("I", by_frame), array("I", by_thread))
    assert seen(merged) == model(profile, order[first:end], by_frame, by_thread)
    assert rows.samples(*part) == sum(profile.rows[row][3] for row in order[first:end])
    met = dict.fromkeys(frame for row in order[first:end] for frame in profile.stacks[profile.rows[row][2]])
    assert list(rows.used_frames(first, end)) == list(met)
    assert rows.used_threads(first, end) == {profile.rows[row][1] for row in order[first:end]}


def test_times_of_a_row_may_be_shared_out() -> None:
    profile = Given([[0], [1]], [(0, 0, 0, 1), (0, 0, 1, 4)], {0: [5], 1: [9, 7, 8, 6]})
    rows = profile.native()
    assert list(rows.time_starts) == [0, 1, 5]
    for window, times in (((1, 3), [6, 7]), ((3, 5), [8, 9])):
        merged = rows.merge(1, 2, *window, array("I", [1, 2]), array("I", [0]))
        assert list(merged.times) == times
        assert list(merged.values) == [0]
        assert rows.samples(1, 2, *window) == 2


def test_no_rows_are_no_samples() -> None:
    rows = Given([[]], []).native()
    assert len(rows) == 0
    assert seen(rows.merge(0, 0, 0, 0, array("I"), array("I"))) == {}
    assert list(rows.used_frames(0, 0)) == []


def make(**changed: Any) -> SampleRows:
    """One row of a stack of one frame, but for what is changed."""
    columns = {
        "process": array("I", [0]), "thread": array("I", [0]), "stack": array("I", [0]),
        "count": array("Q", [1]), "starts": array("I", [0, 1]), "frames": array("I", [0]),
        "times": array("Q", [7]), "time_rows": array("I", [0]),
    }  # fmt: skip
    return SampleRows(**(columns | changed))


ONE, TWO = array("I", [0]), array("I", [0, 0])


@pytest.mark.parametrize(
    "changed",
    [
        {"process": TWO}, {"thread": TWO}, {"stack": TWO}, {"count": array("Q", [1, 1])},
        {"stack": array("I", [1])}, {"stack": array("I", [(1 << 32) - 1])}, {"starts": array("I")},
        {"starts": ONE}, {"starts": array("I", [1, 0])}, {"starts": array("I", [0, 2])}, {"time_rows": TWO},
        {"time_rows": array("I", [1])}, {"times": array("Q")},
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_are_an_error(changed: dict[str, Any]) -> None:
    assert len(make()) == 1
    with pytest.raises(ValueError, match="do not fit together"):
        make(**changed)


@pytest.mark.parametrize(
    "use",
    [
        lambda rows: rows.samples(0, 2, 0, 1),
        lambda rows: rows.samples(1, 0, 0, 1),
        lambda rows: rows.used_frames(0, 2),
        lambda rows: rows.used_frames(1, 0),
        lambda rows: rows.used_threads(0, 2),
        lambda rows: rows.merge(0, 2, 0, 1, ONE, ONE),
        lambda rows: rows.merge(1, 0, 0, 1, ONE, ONE),
        lambda rows: rows.merge(0, 1, 0, 1, array("I"), ONE),
        lambda rows: rows.merge(0, 1, 0, 1, ONE, array("I")),
    ],
)
def test_rows_frames_and_threads_that_are_not_there_are_an_error(use: Callable[[SampleRows], Any]) -> None:
    with pytest.raises(IndexError):
        use(make())


def test_windows_of_times_beyond_a_row_are_its_own() -> None:
    rows = make()
    assert rows.samples(0, 1, 0, 99) == 1
    assert rows.samples(0, 1, 1, 99) == 0
    assert rows.samples(0, 1, 99, 0) == 0
