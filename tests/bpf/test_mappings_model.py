# SPDX-License-Identifier: Apache-2.0
"""The owner of exec_mappings, a list searched end to end, and the kernel's LPM trie: all answer alike."""

from array import array
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyprof._native.trie import MappingTrie
from pyprof.bpf.library import BpfObject

pytestmark = pytest.mark.bpf

RING = 256 * 1024
LAST = 2**64 - 1
PAGE = 4096
PIDS = (1, 256, 2**31 + 5)  # whose bytes tell the order in the key

Item = tuple[int, int, int, int]
"""First and last address, bias, executable."""
Step = tuple[str, int, list[Item], tuple[int, int]]
"""What to do to which process, with ranges to have, and a span to retire."""


@pytest.fixture(scope="module")
def bpf() -> Iterator[BpfObject]:
    with BpfObject(RING, RING // 4, 20_000) as loaded:
        yield loaded


@st.composite
def spans(draw: st.DrawFn) -> tuple[int, int]:
    """Single bytes, pages, and anything, at the beginning, in the middle and at the very end."""
    unit = draw(st.sampled_from([1, PAGE, 2**40 + 3]))
    base = draw(st.sampled_from([0, 0x7F0000000000, LAST - 40 * unit + 1]))
    first, size = draw(st.integers(0, 39)), draw(st.integers(1, 12))
    return base + first * unit, min(base + (first + size) * unit - 1, LAST)


@st.composite
def items(draw: st.DrawFn) -> list[Item]:
    """Ranges that share no address, in any order."""
    found: list[Item] = []
    for start, last in draw(st.lists(spans(), max_size=6)):
        if all(last < other[0] or other[1] < start for other in found):
            found.append((start, last, draw(st.integers(0, 1)), draw(st.integers(0, 1))))
    return found


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["replace", "add", "retire", "end", "write"]), st.sampled_from(PIDS), items(), spans()
    ),
    max_size=12,
)


def columns_of(rows: list[Item]) -> "tuple[array[int], array[int], array[int], array[int]]":
    starts, lasts, biases, executables = zip(*rows, strict=True) if rows else ((), (), (), ())
    return array("Q", starts), array("Q", lasts), array("Q", biases), array("I", executables)


def change(trie: MappingTrie, model: dict[int, list[Item]], step: Step) -> None:
    """One step, of the trie and of the plain lists."""
    kind, pid, rows, (first, last) = step
    had = model[pid]
    if kind == "replace":
        trie.replace(pid, *columns_of(rows), time=5)
        model[pid] = rows
    elif kind == "add":
        rows = [row for row in rows if all(row[1] < other[0] or other[1] < row[0] for other in had)]
        trie.insert_many(array("I", [pid] * len(rows)), *columns_of(rows))
        model[pid] = had + rows
    elif kind == "retire":
        trie.retire(pid, first, last)
        model[pid] = [row for row in had if row[1] < first or last < row[0]]
    elif kind == "end":
        trie.retire_many(array("I", [pid]))
        model[pid] = []


def assert_alike(bpf: BpfObject, trie: MappingTrie, model: dict[int, list[Item]]) -> None:
    places = {0, LAST}
    for rows in model.values():
        for start, last, _, _ in rows:
            places |= {max(start - 1, 0), start, (start + last) // 2, last, min(last + 1, LAST)}
    for pid, rows in model.items():
        for place in places:
            expected = [row for row in rows if row[0] <= place <= row[1]]
            number = bpf.lookup_mapping(pid, place)
            assert number == trie.lookup(pid, place)
            found = trie.mapping(number)
            assert ([found[1:5]] if found else []) == expected
    owned = [(pid, *key) for pid in trie.pids() for key in trie.keys(pid)]
    assert sorted(bpf.mapping_keys()) == sorted(owned)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_the_kernel_answers_as_the_owner_and_a_plain_list(bpf: BpfObject, steps: list[Step]) -> None:
    trie = MappingTrie()
    model: dict[int, list[Item]] = {pid: [] for pid in PIDS}
    try:
        for now, step in enumerate(steps, 1):
            change(trie, model, step)
            if step[0] == "write":
                assert bpf.write_mappings(trie, now) == []
                assert_alike(bpf, trie, model)
                trie.reclaim(now + 1)
        assert bpf.write_mappings(trie, 100) == []
        assert_alike(bpf, trie, model)
    finally:
        trie.retire_many(array("I", PIDS))
        bpf.write_mappings(trie, 101)
    assert bpf.mapping_keys() == []
