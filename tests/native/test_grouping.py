# SPDX-License-Identifier: Apache-2.0
"""Samples merged for export, against counters of plain tuples."""

import random
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
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
    assert list(rows.used_frames(first, end, FRAMES)) == list(met)
    assert rows.used_threads(first, end) == {profile.rows[row][1] for row in order[first:end]}


@given(profiles(), locations, lists, st.data())
def test_parts_add_up_to_the_whole(
    profile: Given, by_frame: list[int], by_thread: list[int], data: st.DataObject
) -> None:
    rows, order = profile.native(), profile.order()
    starts = rows.time_starts
    counts: Counter[Key] = Counter()
    times: Counter[tuple[Key, int]] = Counter()
    for i, row in enumerate(order):
        inner = sorted(data.draw(st.lists(st.integers(starts[i], starts[i + 1]), max_size=3)))
        cuts = [starts[i], *inner, starts[i + 1]]
        # A row without times is in each of its parts whole: only one of them may be asked for.
        windows = list(pairwise(cuts)) if cuts[0] != cuts[-1] else [(cuts[0], cuts[0])]
        for window in windows:
            found = seen(rows.merge(i, i + 1, *window, array("I", by_frame), array("I", by_thread)))
            for key, (value, stamps) in found.items():
                assert value + len(stamps) == rows.samples(i, i + 1, *window)
                assert stamps == sorted(profile.times[row])[window[0] - starts[i] : window[1] - starts[i]]
                counts[key] += value + len(stamps)
                times.update((key, time) for time in stamps)
    whole: Counter[Key] = Counter()
    whole_times: Counter[tuple[Key, int]] = Counter()
    for row in order:
        for key, (value, stamps) in model(profile, [row], by_frame, by_thread).items():
            whole[key] += value + len(stamps)
            whole_times.update((key, time) for time in stamps)
    assert counts == whole
    assert times == whole_times


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_thousands_of_rows_are_merged_as_by_the_model(share: float) -> None:
    """More stacks and samples than there is room for at first; share: of the rows that have times."""
    pick = random.Random(1)
    stacks = [[pick.randrange(FRAMES) for _ in range(pick.randrange(9))] for _ in range(2000)]
    rows = [
        (pick.randrange(50), pick.randrange(THREADS), pick.randrange(len(stacks)), pick.randrange(1, 4))
        for _ in range(5000)
    ]
    times = {
        i: sorted(pick.randrange(1 << 64) for _ in range(row[3]))
        for i, row in enumerate(rows)
        if pick.random() < share
    }
    profile = Given(stacks, rows, times)
    native = profile.native()
    by_frame, by_thread = [1, 2, 3, 4, 4], [0, 1, 1]
    merged = native.merge(
        0, len(rows), 0, native.time_starts[len(rows)], array("I", by_frame), array("I", by_thread)
    )
    assert len(merged.stack_starts) > 900
    assert len(merged.stack) > 1000
    assert seen(merged) == model(profile, profile.order(), by_frame, by_thread)


def test_empty_stacks_need_no_locations() -> None:
    # The last of the stacks, so that it begins where frames end.
    rows = Given([[0], []], [(0, 0, 1, 2)]).native()
    assert seen(rows.merge(0, 1, 0, 0, array("I"), array("I", [0]))) == {(0, (), 0): (2, [])}
    rows = Given([[]], [(0, 0, 0, 2)]).native()
    assert seen(rows.merge(0, 1, 0, 0, array("I"), array("I", [0]))) == {(0, (), 0): (2, [])}


def test_locations_are_needed_only_for_frames_of_the_part() -> None:
    rows = Given([[0], [4]], [(0, 0, 0, 1), (0, 0, 1, 1)]).native()
    assert seen(rows.merge(0, 1, 0, 0, array("I", [9]), array("I", [0]))) == {(0, (9,), 0): (1, [])}
    assert list(rows.used_frames(0, 1, 1)) == [0]
    with pytest.raises(IndexError, match="no location"):
        rows.merge(0, 2, 0, 0, array("I", [9]), array("I", [0]))
    with pytest.raises(IndexError, match="no such frame"):
        rows.used_frames(0, 2, 4)


def test_largest_numbers_are_kept() -> None:
    most, large = (1 << 32) - 1, (1 << 64) - 1
    rows = make(process=array("I", [most]), count=array("Q", [large]))
    assert rows.samples(0, 1, 0, 0) == large
    merged = rows.merge(0, 1, 0, 0, array("I", [most]), array("I", [most]))
    assert (merged.process[0], merged.locations[0], merged.attributes[0]) == (most, most, most)
    assert merged.values[0] == large


def test_rows_stay_when_the_columns_change() -> None:
    columns = {
        name: array("I", [0]) for name in ("process", "thread", "stack", "time_rows")
    } | {"count": array("Q", [1]), "starts": array("I", [0, 1]), "times": array("Q", [7])}  # fmt: skip
    rows = make(**columns)
    for column in columns.values():
        for i in range(len(column)):
            column[i] = (1 << 32) - 1 - i
    merged = rows.merge(0, 1, 0, 1, array("I", [3]), array("I", [0]))
    assert seen(merged) == {(0, (3,), 0): (0, [7])}


def test_frames_that_change_are_looked_at_anew() -> None:
    frames = array("I", [0])
    rows = make(frames=frames)
    frames[0] = (1 << 32) - 1
    with pytest.raises(IndexError):
        rows.merge(0, 1, 0, 1, ONE, ONE)
    with pytest.raises(IndexError):
        rows.used_frames(0, 1, 1)
    with pytest.raises(BufferError):
        frames.pop()


def test_starts_of_times_cannot_be_written() -> None:
    starts = make().time_starts
    assert list(starts) == [0, 1]
    with pytest.raises(TypeError):
        starts[1] = 9
    assert isinstance(starts.obj, bytes)


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
    assert list(rows.used_frames(0, 0, 0)) == []


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
        lambda rows: rows.used_frames(0, 2, 1),
        lambda rows: rows.used_frames(0, 1, 0),
        lambda rows: rows.used_frames(1, 0, 1),
        lambda rows: rows.used_threads(0, 2),
        lambda rows: rows.merge(0, 2, 0, 1, ONE, ONE),
        lambda rows: rows.merge(1, 0, 0, 1, ONE, ONE),
        # Found before there is room for so many.
        lambda rows: rows.merge(0, 1 << 40, 0, 1, ONE, ONE),
        lambda rows: rows.merge(0, (1 << 64) - 1, 0, 1, ONE, ONE),
        lambda rows: rows.samples((1 << 64) - 1, (1 << 64) - 1, 0, 1),
        lambda rows: rows.merge(0, 1, 0, 1, array("I"), ONE),
        lambda rows: rows.merge(0, 1, 0, 1, ONE, array("I")),
    ],
)
def test_rows_frames_and_threads_that_are_not_there_are_an_error(use: Callable[[SampleRows], Any]) -> None:
    with pytest.raises(IndexError):
        use(make())


@pytest.mark.parametrize(
    "changed",
    [
        {"process": array("Q", [0])}, {"thread": array("i", [0])}, {"stack": b"\0"}, {"count": ONE},
        {"frames": memoryview(array("I", [0] * 4))[::2]}, {"starts": array("d", [0, 1])},
        {"times": array("q", [7])}, {"time_rows": memoryview(bytes(4)).cast("I", (1, 1))},
    ],
)  # fmt: skip
def test_columns_of_another_type_are_an_error(changed: dict[str, Any]) -> None:
    with pytest.raises((ValueError, BufferError)):
        make(**changed)


@pytest.mark.parametrize(
    "name", ["process", "thread", "stack", "count", "starts", "frames", "times", "time_rows"]
)
def test_column_that_is_missing_is_an_error(name: str) -> None:
    with pytest.raises(TypeError):
        make(**{name: None})


def test_rows_are_not_made_twice() -> None:
    with pytest.raises(TypeError):
        SampleRows.__new__(SampleRows)
    with pytest.raises(TypeError):
        make().merge(0, 1, 0, 1, None, ONE)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        make().merge(0, 1, 0, 1, ONE, None)  # type: ignore[arg-type]


def test_windows_of_times_beyond_a_row_are_its_own() -> None:
    rows = make()
    assert rows.samples(0, 1, 0, 99) == 1
    assert rows.samples(0, 1, 1, 99) == 0
    assert rows.samples(0, 1, 99, 0) == 0
