# SPDX-License-Identifier: Apache-2.0
"""Pieces of chunks against a map of every byte."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pyprof._native.extents import ExtentPool

CHUNK = 64


class Pieces(RuleBasedStateMachine):
    """The pool beside a set of free bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = ExtentPool(CHUNK)
        self.chunks = 0
        self.free: set[int] = set()
        self.taken: list[tuple[int, int]] = []

    def runs(self) -> list[tuple[int, int]]:
        """Free bytes as [(start, size)], cut at the borders of chunks."""
        found: list[tuple[int, int]] = []
        for at in sorted(self.free):
            if found and sum(found[-1]) == at and at % CHUNK:
                found[-1] = (found[-1][0], found[-1][1] + 1)
            else:
                found.append((at, 1))
        return found

    @rule()
    def add_chunk(self) -> None:
        self.pool.give(self.chunks * CHUNK, CHUNK)
        self.free |= set(range(self.chunks * CHUNK, (self.chunks + 1) * CHUNK))
        self.chunks += 1

    @rule(size=st.integers(1, CHUNK + 1) | st.integers(1, 8))
    def take(self, size: int) -> None:
        fits = [start for start, length in self.runs() if length >= size]
        start = self.pool.take(size)
        assert start == (fits[0] if fits else None)
        if start is not None:
            assert start // CHUNK == (start + size - 1) // CHUNK
            self.free -= set(range(start, start + size))
            self.taken.append((start, size))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        start, size = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.pool.give(start, size)
        self.free |= set(range(start, start + size))

    @invariant()
    def free_is_what_is_not_taken_and_joined(self) -> None:
        assert self.pool.free() == self.runs()


TestPieces = Pieces.TestCase
TestPieces.settings = settings(max_examples=100, stateful_step_count=60)


def test_an_empty_pool_gives_nothing() -> None:
    assert ExtentPool(CHUNK).take(1) is None


def test_a_piece_larger_than_a_chunk_is_not_put_together_from_two() -> None:
    pool = ExtentPool(CHUNK)
    pool.give(0, CHUNK)
    pool.give(CHUNK, CHUNK)
    assert pool.take(CHUNK + 1) is None
    assert pool.free() == [(0, CHUNK), (CHUNK, CHUNK)]


def test_a_chunk_that_comes_before_others_is_put_in_order() -> None:
    pool = ExtentPool(CHUNK)
    for number in (2, 0, 1):
        pool.give(number * CHUNK, CHUNK)
    assert [pool.take(CHUNK) for _ in range(4)] == [0, CHUNK, 2 * CHUNK, None]
