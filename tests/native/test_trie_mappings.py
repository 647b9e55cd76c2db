# SPDX-License-Identifier: Apache-2.0
"""MappingTrie: what its batches make of the kernel's map, against a dict with longest-prefix look-up."""

import random
import struct
from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pyprof._native.trie import MappingTrie, prefixes

LAST = 2**64 - 1
KEY = struct.Struct(">IQ")  # pid and address; before them the prefix length in host order
VALUE = struct.Struct("=QQQII")


def keys_of(data: bytes) -> list[tuple[int, int, int]]:
    """(pid, prefix length in the address, address) of each struct pyprof_mapping_key."""
    found = []
    for at in range(0, len(data), 16):
        (length,) = struct.unpack_from("=I", data, at)
        pid, address = KEY.unpack_from(data, at + 4)
        found.append((pid, length - 32, address))
    return found


class Kernel:
    """exec_mappings: prefix -> value, of a given capacity."""

    def __init__(self, capacity: int = 10**9) -> None:
        self.capacity = capacity
        self.entries: dict[tuple[int, int, int], tuple[int, ...]] = {}

    def write(self, pending: tuple[bytes, bytes, bytes]) -> int:
        """Applies a batch; how many inserts fitted."""
        deletes, keys, values = pending
        for key in keys_of(deletes):
            self.entries.pop(key, None)
        done = 0
        for key, value in zip(keys_of(keys), VALUE.iter_unpack(values), strict=True):
            if key not in self.entries and len(self.entries) >= self.capacity:
                break
            self.entries[key] = value
            done += 1
        return done

    def lookup(self, pid: int, address: int) -> int:
        for length in range(64, -1, -1):
            value = self.entries.get((pid, length, address >> (64 - length) << (64 - length)))
            if value is not None:
                return value[3]
        return 0


def flush(trie: MappingTrie, kernel: Kernel, now: int = 1) -> list[int]:
    """Writes until all is written; the processes that did not fit."""
    refused: list[int] = []
    while True:
        failed = trie.flushed(now, kernel.write(trie.pending()))
        if not failed:
            return refused
        refused += failed


def owned(trie: MappingTrie) -> set[tuple[int, int, int]]:
    return {(pid, *key) for pid in trie.pids() for key in trie.keys(pid)}


PIDS = st.integers(1, 3)
BASES = st.sampled_from([0, 0x7F0000000000, LAST - 31])


ITEM = st.builds(
    lambda base, ends, bias, executable: (base + min(ends), base + max(ends), bias, executable),
    BASES,
    st.tuples(st.integers(0, 31), st.integers(0, 31)),
    st.integers(0, 1),
    st.integers(0, 1),
)
ITEMS = st.lists(ITEM, max_size=4)
Item = tuple[int, int, int, int]
"""First and last address, bias, executable."""


if TYPE_CHECKING:
    Columns = tuple[array[int], array[int], array[int], array[int]]


def columns_of(items: list[Item]) -> "Columns":
    starts, lasts, biases, executables = zip(*items, strict=True) if items else ((), (), (), ())
    return array("Q", starts), array("Q", lasts), array("Q", biases), array("I", executables)


def overlap(items: list[Item]) -> bool:
    return any(
        one[0] <= other[1] and other[0] <= one[1] for i, one in enumerate(items) for other in items[:i]
    )


class TrieMachine(RuleBasedStateMachine):
    """The model is a list of the live mappings."""

    def __init__(self) -> None:
        super().__init__()
        self.trie = MappingTrie()
        self.kernel = Kernel(capacity=40)
        self.live: dict[
            int, tuple[int, int, int, int, int]
        ] = {}  # number -> pid, start, last, bias, executable
        self.held: dict[int, int] = {}  # retired number -> when its deletion was written, 0 before
        self.clock = 10

    @rule(
        pid=PIDS, base=BASES, ends=st.tuples(st.integers(0, 31), st.integers(0, 31)),
        bias=st.integers(0, LAST), executable=st.integers(0, 2**32 - 1),
    )  # fmt: skip
    def insert(self, pid: int, base: int, ends: tuple[int, int], bias: int, executable: int) -> None:
        start, last = base + min(ends), base + max(ends)
        if any(m[0] == pid and m[1] <= last and start <= m[2] for m in self.live.values()):
            with pytest.raises(ValueError, match="overlaps"):
                self.trie.insert(pid, start, last, bias, executable)
            return
        number = self.trie.insert(pid, start, last, bias, executable)
        assert number > 0
        assert number not in self.live
        assert number not in self.held, "a number is given again only after it was reclaimed"
        self.live[number] = (pid, start, last, bias, executable)

    @rule(pid=PIDS, items=ITEMS, apply=st.booleans())
    def replace(self, pid: int, items: list[Item], apply: bool) -> None:
        columns = columns_of(items)
        if overlap(items):
            with pytest.raises(ValueError, match="overlaps"):
                self.trie.replace(pid, *columns, time=self.clock)
            return
        had = {m[1:]: n for n, m in self.live.items() if m[0] == pid}
        kept = len(had.keys() & set(items))
        expected = (kept, len(had) - kept, len(items) - kept)
        assert self.trie.diff(pid, *columns) == expected
        if not apply:
            return
        assert self.trie.replace(pid, *columns, time=self.clock) == expected
        for item in had.keys() - set(items):
            number = had[item]
            assert self.trie.mapping(number) == (*self.live.pop(number), self.clock)
            self.held[number] = 0
        for number in self.trie.ids(pid):
            row = self.trie.mapping(number)
            assert row is not None
            if number not in self.live:
                assert number not in self.held
                assert row[1:5] not in had
                self.live[number] = row[:5]

    @rule(rows=st.lists(st.tuples(PIDS, ITEM), max_size=6))
    def insert_many(self, rows: list[tuple[int, Item]]) -> None:
        live = [(m[0], m[1:]) for m in self.live.values()]
        columns = (array("I", [pid for pid, _ in rows]), *columns_of([item for _, item in rows]))
        if any(overlap([item for at, item in (*live, *rows) if at == pid]) for pid in (1, 2, 3)):
            before = self.trie.counts()["mappings"]
            with pytest.raises(ValueError, match="overlaps"):
                self.trie.insert_many(*columns)
            assert self.trie.counts()["mappings"] == before
            # Those that were taken back hold their numbers, as all that are retired do.
            known = self.live.keys() | self.held.keys()
            for number in range(1, 2000):
                if number not in known and self.trie.mapping(number) is not None:
                    self.held[number] = 0
            return
        numbers = self.trie.insert_many(*columns)
        assert len(set(numbers)) == len(rows)
        for number, (pid, item) in zip(numbers, rows, strict=True):
            assert number not in self.live
            assert number not in self.held
            self.live[number] = (pid, *item)

    @rule(gone=st.lists(PIDS, max_size=3))
    def retire_many(self, gone: list[int]) -> None:
        numbers = [n for n, m in self.live.items() if m[0] in gone]
        assert self.trie.retire_many(array("I", gone), self.clock) == len(numbers)
        for number in numbers:
            del self.live[number]
            self.held[number] = 0

    @rule(pid=PIDS, base=BASES, ends=st.tuples(st.integers(0, 31), st.integers(0, 31)))
    def retire_range(self, pid: int, base: int, ends: tuple[int, int]) -> None:
        self.retire(pid, base + min(ends), base + max(ends))

    @rule(pid=PIDS)
    def retire_process(self, pid: int) -> None:
        self.retire(pid, 0, LAST)

    def retire(self, pid: int, start: int, last: int) -> None:
        gone = [n for n, m in self.live.items() if m[0] == pid and m[1] <= last and start <= m[2]]
        assert self.trie.retire(pid, start, last, self.clock) == len(gone)
        for number in gone:
            assert self.trie.mapping(number) == (*self.live.pop(number), self.clock)
            self.held[number] = 0

    @rule()
    def flush(self) -> None:
        self.clock += 1
        refused: set[int] = set()
        while True:
            pending = self.trie.pending()
            failed = self.trie.flushed(self.clock, self.kernel.write(pending))
            for number, written in self.held.items():
                self.held[number] = written or self.clock
            for number in [n for n, m in self.live.items() if m[0] in failed]:
                del self.live[number]
                self.held[number] = 0
            assert not refused.intersection(failed)
            refused.update(failed)
            if not failed:
                break
        assert set(self.kernel.entries) == owned(self.trie)
        for pid in refused:
            assert self.trie.ids(pid) == []

    @rule(age=st.integers(0, 3))
    def reclaim(self, age: int) -> None:
        before = self.clock - age
        free = [n for n, written in self.held.items() if written and written < before]
        assert self.trie.reclaim(before) == len(free)
        for number in free:
            del self.held[number]
            assert self.trie.mapping(number) is None

    @precondition(lambda self: not any(map(len, self.trie.pending())))
    @rule()
    def kernel_answers_as_the_trie(self) -> None:
        for pid, address in self.boundaries():
            assert self.kernel.lookup(pid, address) == self.trie.lookup(pid, address)

    @invariant()
    def trie_holds_what_the_model_holds(self) -> None:
        for pid, address in self.boundaries():
            hit = [n for n, m in self.live.items() if m[0] == pid and m[1] <= address <= m[2]]
            assert [self.trie.lookup(pid, address)] == (hit or [0])
            assert list(self.trie.lookup_many(array("I", [pid]), array("Q", [address]))) == (hit or [0])
        pids = sorted({m[0] for m in self.live.values()})
        assert self.trie.pids() == pids
        for pid in pids:
            ordered = sorted((m[1], n) for n, m in self.live.items() if m[0] == pid)
            assert self.trie.ids(pid) == [number for _, number in ordered]
        counts = self.trie.counts()
        assert counts["mappings"] == len(self.live)
        assert counts["retired"] == len(self.held)
        assert counts["prefixes"] == len(owned(self.trie))

    def boundaries(self) -> Iterable[tuple[int, int]]:
        for pid in (1, 2, 3):
            for _, start, last, _, _ in list(self.live.values()):
                for address in {max(start - 1, 0), start, last, min(last + 1, LAST)}:
                    yield pid, address


TrieMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestTrie = TrieMachine.TestCase


def test_a_batch_has_the_layout_of_the_abi() -> None:
    trie = MappingTrie()
    number = trie.insert(0x01020304, 0x7F0000400000, 0x7F0000400FFF, 0x7F0000300000, 9)
    deletes, keys, values = trie.pending()
    assert deletes == b""
    assert keys == bytes.fromhex(
        "54000000"  # prefix_len: 32 bits of pid and 52 of the address, little-endian
        "01020304"  # pid, big-endian
        "00007f0000400000"  # address, big-endian
    )
    assert values == struct.pack("<QQQII", 0x7F0000400000, 0x7F0000400FFF, 0x7F0000300000, number, 9)


def test_a_mapping_retired_before_it_was_written_never_reaches_the_kernel() -> None:
    trie, kernel = MappingTrie(), Kernel()
    trie.insert(1, 0x1000, 0x3FFF)
    trie.retire(1)
    assert trie.pending()[1:] == (b"", b"")
    assert flush(trie, kernel) == []
    assert kernel.entries == {}


def test_a_mapping_over_one_that_was_retired_in_the_same_batch_stays() -> None:
    trie, kernel = MappingTrie(), Kernel()
    trie.insert(1, 0x1000, 0x1FFF, executable=1)
    flush(trie, kernel)
    trie.retire(1)
    new = trie.insert(1, 0x1000, 0x1FFF, executable=2)
    flush(trie, kernel)
    assert kernel.lookup(1, 0x1000) == new


def test_a_process_that_does_not_fit_is_out_whole_and_others_stay() -> None:
    trie, kernel = MappingTrie(), Kernel(capacity=4)
    first = trie.insert(1, 0x1000, 0x3FFF)  # 0x1000, 0x2000: two prefixes
    flush(trie, kernel)
    second = trie.insert(2, 0x1000, 0x1FFF)  # fits
    flush(trie, kernel)
    trie.insert(2, 0x5000, 0x8FFF)  # 0x5000, 0x6000, 0x8000: one too many of the three
    assert flush(trie, kernel) == [2]
    assert trie.ids(2) == []
    assert trie.mapping(second) is not None, "samples on their way may still name it"
    assert set(kernel.entries) == {(1, *key) for key in prefixes(0x1000, 0x3FFF)}
    assert kernel.lookup(1, 0x3FFF) == first


def test_a_number_is_not_given_again_before_it_is_reclaimed() -> None:
    trie, kernel = MappingTrie(), Kernel()
    first = trie.insert(1, 0, 9)
    trie.retire(1, time=5)
    assert trie.insert(1, 0, 9) != first
    assert trie.reclaim(100) == 0, "its deletion is not written"
    flush(trie, kernel, now=10)
    assert trie.reclaim(10) == 0
    assert trie.reclaim(11) == 1
    assert trie.insert(2, 0, 9) == first


def test_a_process_can_come_and_go_for_ever() -> None:
    trie, kernel = MappingTrie(), Kernel(capacity=64)
    for i in range(1, 5000):
        trie.insert(i, 0x1000, 0x5FFF)
        if i > 3:
            trie.retire(i - 3)
        assert flush(trie, kernel, i) == []
        trie.reclaim(i)
    assert len(trie.pids()) == 3
    assert trie.counts()["mappings_high_water"] <= 4
    assert max(number for pid in trie.pids() for number in trie.ids(pid)) <= 8


@pytest.mark.parametrize(("pid", "start", "last"), [(0, 0, 1), (1, 2, 1)])
def test_what_is_no_range_of_a_process_is_refused(pid: int, start: int, last: int) -> None:
    trie = MappingTrie()
    with pytest.raises(ValueError, match="not a range"):
        trie.insert(pid, start, last)
    assert trie.pids() == []


def test_unknown_numbers_and_processes_have_nothing() -> None:
    trie = MappingTrie()
    assert trie.mapping(0) is None
    assert trie.mapping(2**32 - 1) is None
    assert trie.lookup(1, 0) == 0
    assert trie.keys(1) == []
    assert trie.retire(1) == 0


def test_a_trie_that_knows_its_capacity_takes_nothing_that_does_not_fit() -> None:
    trie = MappingTrie(5)
    first = trie.insert(1, 0x1000, 0x4FFF)  # three prefixes
    with pytest.raises(OverflowError, match="full"):
        trie.insert(2, 0x1000, 0x4FFF)
    with pytest.raises(OverflowError, match="full"):
        trie.replace(2, *columns_of([(0x1000, 0x4FFF, 0, 0)]))
    with pytest.raises(OverflowError, match="full"):
        trie.insert_many(array("I", [1, 1]), array("Q", [0, 0x8000]), array("Q", [1, 0xA000]))
    assert trie.pids() == [1]
    assert trie.ids(1) == [first]
    # What goes makes room for what comes in its place.
    assert trie.replace(1, *columns_of([(1, 6, 0, 0)])) == (0, 1, 1)
    assert trie.counts()["prefixes"] == 4


def test_a_batch_may_come_in_any_order_and_is_answered_in_that() -> None:
    rows = [(2, 0x5000), (1, 0x9000), (2, 0x1000), (1, LAST - 0xFFF), (1, 0)]
    trie = MappingTrie()
    numbers = trie.insert_many(
        array("I", [pid for pid, _ in rows]),
        array("Q", [start for _, start in rows]),
        array("Q", [start + 0xFFF for _, start in rows]),
    )
    assert [trie.mapping(number) for number in numbers] == [
        (pid, start, start + 0xFFF, 0, 0, 0) for pid, start in rows
    ]
    found = trie.lookup_many(array("I", [pid for pid, _ in rows]), array("Q", [at + 0xFFF for _, at in rows]))
    assert found == numbers


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled"])
def test_a_process_with_65530_mappings_is_taken_whole_and_one_by_one(order: str) -> None:
    starts = [0x10000 + i * 0x3000 for i in range(65_530)]
    if order == "descending":
        starts.reverse()
    if order == "shuffled":
        random.Random(1).shuffle(starts)
    columns = array("Q", starts), array("Q", [start + 0xFFF for start in starts])
    whole, single = MappingTrie(), MappingTrie()
    assert whole.replace(7, *columns) == (0, 0, 65_530)
    for start in starts:
        single.insert(7, start, start + 0xFFF)
    assert whole.keys(7) == single.keys(7) == [(52, start) for start in sorted(starts)]
    assert whole.diff(7, *columns) == (65_530, 0, 0)
    assert whole.replace(7, columns[0][:100], columns[1][:100]) == (100, 65_430, 0)
    assert whole.retire(7) == 100
    assert single.retire(7, 0x10000 + 0x3000, LAST - 1) == 65_529
    assert single.keys(7) == [(52, 0x10000)]


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_columns_of_different_lengths_are_refused(columns: int) -> None:
    trie = MappingTrie()
    given = [array("Q", [0x1000]), array("Q", [0x1FFF]), array("Q", [0]), array("I", [0])]
    given[columns] = array(given[columns].typecode)
    starts, lasts, biases, executables = given
    with pytest.raises(ValueError, match="differ"):
        trie.replace(1, starts, lasts, biases, executables)
    with pytest.raises(ValueError, match="differ"):
        trie.insert_many(array("I", [1]), starts, lasts, biases, executables)
    with pytest.raises(ValueError, match="differ"):
        trie.lookup_many(array("I"), array("Q", [1]))
    assert trie.pids() == []
