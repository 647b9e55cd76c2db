# SPDX-License-Identifier: Apache-2.0
"""The open-addressing index against a dict. IndexMap takes a key's low 32 bits as its tag, so tests choose
where keys lie: a fresh index has 16 slots."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pyprof._native.index import IndexMap

# Few tags, next to each other and at the end of the table, so that probe sequences run into each other and
# around the end; the same tag with other upper halves is another key.
TAGS = st.sampled_from([0, 1, 2, 12, 13, 14, 15, 16, 31, 0xFFFFFFFF, 0xFFFFFFFE])
KEYS = st.builds(lambda tag, upper: upper << 32 | tag, TAGS, st.integers(0, 3))


class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.map = IndexMap()
        self.model: dict[int, int] = {}
        self.next = 0

    @rule(key=KEYS)
    def add(self, key: int) -> None:
        if key not in self.model:
            self.model[key] = self.next
            self.next += 1
        assert self.map.add(key) == self.model[key]

    @rule(key=KEYS)
    def remove(self, key: int) -> None:
        assert self.map.remove(key) == (self.model.pop(key, None) is not None)

    @rule(key=KEYS)
    def get(self, key: int) -> None:
        assert self.map.get(key) == self.model.get(key)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert len(self.map) == len(self.model)
        for key, number in self.model.items():
            assert self.map.get(key) == number


IndexMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestIndex = IndexMachine.TestCase


def test_absent_keys_can_be_deleted_from_an_index_that_is_as_full_as_it_gets() -> None:
    index = IndexMap()
    for key in range(8):  # half of 16 slots
        index.add(key)
    for key in range(100, 1000):
        assert not index.remove(key)
    assert index.get(1000) is None
    assert [index.get(key) for key in range(8)] == list(range(8))


def test_keys_of_one_tag_are_all_kept_apart() -> None:
    index = IndexMap()
    keys = [upper << 32 | 7 for upper in range(300)]
    assert [index.add(key) for key in keys] == list(range(300))
    for key in keys[::2]:
        assert index.remove(key)
    assert [index.get(key) for key in keys] == [None if i % 2 == 0 else i for i in range(300)]


def test_probing_goes_around_the_end_of_the_table() -> None:
    index = IndexMap()
    keys = [upper << 32 | 15 for upper in range(5)]  # slots 15, 0, 1, 2, 3
    for key in keys:
        index.add(key)
    index.add(0)  # its own slot is taken
    assert index.remove(keys[0])
    assert [index.get(key) for key in [*keys[1:], 0]] == [1, 2, 3, 4, 5]
    assert index.get(keys[0]) is None


def test_growth_keeps_every_key() -> None:
    index = IndexMap()
    keys = [i * 0x9E3779B97F4A7C15 % 2**64 for i in range(100_000)]
    for i, key in enumerate(keys):
        assert index.add(key) == i
    assert len(index) == 100_000
    assert all(index.get(key) == i for i, key in enumerate(keys))


def test_capacity_is_room_from_the_start() -> None:
    index = IndexMap(1000)
    assert [index.add(key) for key in range(1000)] == list(range(1000))


def test_adding_and_deleting_for_ever_stays_correct() -> None:
    index = IndexMap()
    for i in range(20_000):  # would fill a table that keeps tombstones a thousand times over
        index.add(i)
        if i >= 7:
            assert index.remove(i - 7)
    assert len(index) == 7
    assert index.get(5) is None
