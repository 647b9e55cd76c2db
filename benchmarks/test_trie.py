# SPDX-License-Identifier: Apache-2.0
"""Inserting, looking up and deleting the mappings of 1,000 processes.

Plain Python keeps, as ours does, what is in the kernel: (pid, prefix length, address) -> number in a dict,
looked up from the longest prefix down.
"""

import random
from collections.abc import Callable
from functools import cache
from typing import Protocol

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.ratios import time_rounds
from pyprof._native.trie import MappingTrie

PROCESSES = 1000
LAST = 2**64 - 1
Mapping = tuple[int, int, int]
"""pid, first and last address."""


@cache
def mappings() -> list[Mapping]:
    """Eight libraries a process, of a page to some megabytes, as mmap places them: downwards, with gaps."""
    chance = random.Random(7)
    sizes = [chance.choice([1, 2, 5, 13, 37, 140, 400, 1500]) * 4096 for _ in range(8)]
    found = []
    for pid in range(100, 100 + PROCESSES):
        at = 0x7F0000000000 + chance.randrange(1 << 28) * 4096
        for size in sizes:
            at -= size + 4096 * chance.randrange(1, 40)
            found.append((pid, at, at + size - 1))
    return found


@cache
def addresses() -> list[tuple[int, int]]:
    chance = random.Random(8)
    return [(pid, chance.randint(start, last + 4096)) for pid, start, last in chance.sample(mappings(), 8000)]


class Owner(Protocol):
    """What both sides do."""

    def insert(self, pid: int, start: int, last: int) -> int: ...
    def retire(self, pid: int) -> int: ...
    def lookup(self, pid: int, address: int) -> int: ...


class PlainTrie:
    """What a straightforward owner in Python does."""

    def __init__(self) -> None:
        self.entries: dict[tuple[int, int, int], int] = {}
        self.owned: dict[int, list[tuple[int, int, int]]] = {}
        self.count = 0

    def insert(self, pid: int, start: int, last: int) -> int:
        self.count += 1
        keys = self.owned.setdefault(pid, [])
        at = start
        while at <= last:
            bits = min((at & -at).bit_length() - 1 if at else 64, (last - at + 1).bit_length() - 1)
            key = (pid, 64 - bits, at)
            self.entries[key] = self.count
            keys.append(key)
            at += 1 << bits
        return self.count

    def retire(self, pid: int) -> int:
        keys = self.owned.pop(pid)
        for key in keys:
            del self.entries[key]
        return len(keys)

    def lookup(self, pid: int, address: int) -> int:
        for bits in range(65):
            number = self.entries.get((pid, 64 - bits, address >> bits << bits))
            if number is not None:
                return number
        return 0


RIVALS: dict[str, Callable[[], Owner]] = {"pyprof": MappingTrie, "plain Python": PlainTrie}
rivals = pytest.mark.parametrize("rival", list(RIVALS))


def filled(rival: str) -> Owner:
    owner = RIVALS[rival]()
    for pid, start, last in mappings():
        owner.insert(pid, start, last)
    return owner


def empty(owner: Owner) -> None:
    for pid in range(100, 100 + PROCESSES):
        owner.retire(pid)


def ask(owner: Owner) -> list[int]:
    return [owner.lookup(pid, address) for pid, address in addresses()]


@pytest.mark.benchmark(group="insert 8,000 mappings")
@rivals
def test_insert(benchmark: BenchmarkFixture, rival: str) -> None:
    assert ask(filled(rival)) == ask(filled("pyprof"))
    time_rounds(benchmark, 10, lambda: ((rival,), {}), filled)


@pytest.mark.benchmark(group="delete 8,000 mappings")
@rivals
def test_delete(benchmark: BenchmarkFixture, rival: str) -> None:
    owner = filled(rival)
    empty(owner)
    assert set(ask(owner)) == {0}
    time_rounds(benchmark, 10, lambda: ((filled(rival),), {}), empty)


@pytest.mark.benchmark(group="look up 8,000 addresses")
@rivals
def test_lookup(benchmark: BenchmarkFixture, rival: str) -> None:
    owner = filled(rival)
    assert ask(owner) == ask(filled("pyprof"))
    time_rounds(benchmark, 10, lambda: ((owner,), {}), ask)
