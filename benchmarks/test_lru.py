# SPDX-License-Identifier: Apache-2.0
"""Caches of 10,000 entries that are full, and 100,000 accesses.

Ours does the same as the packages from Python, call by call, in turn with them; numbers in batches, without
the GIL, are measured for themselves. The plain cache is an OrderedDict, as one would write it.
"""

import random
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import cachetools
import pytest
from lru import LRU
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.ratios import OURS, Arguments, time_rounds
from pyprof._native.cache import LruCache
from pyprof._native.lru_numbers import LruNumbers

CAPACITY = 10_000
ACCESSES = 100_000
ROUNDS, MORE_ROUNDS = 10, 60  # more for what is so fast that other things of the machine weigh more
HOUR = 3600 * 10**9


class Plain(OrderedDict[Any, Any]):
    """An LRU cache over OrderedDict."""

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        self.move_to_end(key)
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            return default
        self.move_to_end(key)
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > CAPACITY:
            self.popitem(last=False)


RIVALS: dict[str, Callable[[], Any]] = {
    OURS: lambda: LruCache(CAPACITY),
    "lru-dict": lambda: LRU(CAPACITY),
    "cachetools.LRUCache": lambda: cachetools.LRUCache(CAPACITY),
    "OrderedDict": Plain,
}
TIMED: dict[str, Callable[[], Any]] = {
    OURS: lambda: LruCache(CAPACITY, lifetime=HOUR),
    "cachetools.TTLCache": lambda: cachetools.TTLCache(CAPACITY, 3600),
}
FLOOR: dict[str, Callable[[], Any]] = {OURS: RIVALS[OURS], "dict": dict}
rivals = pytest.mark.parametrize("rival", list(RIVALS))
timed_rivals = pytest.mark.parametrize("rival", list(TIMED))


@cache
def keys() -> list[str]:
    return [f"/usr/lib/libnumber-{i}.so" for i in range(CAPACITY)]


@cache
def hits() -> list[str]:
    return random.Random(1).choices(keys(), k=ACCESSES)


@cache
def others() -> list[str]:
    """Keys that are new each time: twice as many as fit."""
    return [f"/opt/other-{i}.so" for i in range(2 * CAPACITY)] * (ACCESSES // (2 * CAPACITY))


@cache
def mixed() -> list[str]:
    """A few keys often, many seldom: four times as many as fit."""
    chance = random.Random(2)
    names = [f"/usr/bin/number-{i}" for i in range(4 * CAPACITY)]
    chance.shuffle(names)
    return [names[min(int(chance.expovariate(1 / CAPACITY)), 4 * CAPACITY - 1)] for _ in range(ACCESSES)]


def full(make: Callable[[], Any]) -> Any:
    filled = make()
    for key in keys():
        filled[key] = key
    return filled


def get_all(subject: Any) -> None:
    get = subject.get
    for key in hits():
        get(key)


def index_all(subject: Any) -> None:
    for key in hits():
        subject[key]


def put_all(subject: Any) -> None:
    for key in others():
        subject[key] = key


def update_all(subject: Any) -> None:
    for key in hits():
        subject[key] = key


def use_all(subject: Any) -> int:
    """What a cache is for. Returns how many were found."""
    get = subject.get
    found = 0
    for key in mixed():
        if get(key) is None:
            subject[key] = key
        else:
            found += 1
    return found


WORK: dict[str, Callable[[Any], object]] = {
    "get(), hit": get_all,
    "[key], hit": index_all,
    "put, new key": put_all,
    "put, same key": update_all,
    "get, put on a miss": use_all,
}


def measure(
    benchmark: BenchmarkFixture,
    rivals: Mapping[str, Callable[[], Any]],
    rival: str,
    run: Callable[[Any], object],
    rounds: int,
) -> None:
    def arguments(name: str) -> Arguments:
        return (full(rivals[name]),), {}

    ours = partial(arguments, OURS) if rival != OURS else None
    time_rounds(benchmark, rounds, partial(arguments, rival), run, ours)


@pytest.mark.parametrize("work", list(WORK))
@rivals
def test_untimed(benchmark: BenchmarkFixture, rival: str, work: str) -> None:
    benchmark.group = f"lru: {work}, 100,000 times"
    plain, subject = full(Plain), full(RIVALS[rival])
    assert WORK[work](subject) == WORK[work](plain)
    assert len(subject) == CAPACITY
    assert all(subject[key] == plain[key] for key in list(plain.keys()))
    measure(benchmark, RIVALS, rival, WORK[work], MORE_ROUNDS if rival in {OURS, "lru-dict"} else ROUNDS)


@pytest.mark.parametrize("work", ["get(), hit", "[key], hit", "put, same key"])
@pytest.mark.parametrize("rival", [name for name in FLOOR if name != OURS])
def test_floor(benchmark: BenchmarkFixture, rival: str, work: str) -> None:
    """A dict, which keeps no order of use: what is below no cache can be."""
    benchmark.group = f"lru: {work}, 100,000 times"
    measure(benchmark, FLOOR, rival, WORK[work], MORE_ROUNDS)


@pytest.mark.parametrize("work", list(WORK))
@timed_rivals
def test_timed(benchmark: BenchmarkFixture, rival: str, work: str) -> None:
    benchmark.group = f"lru with a lifetime: {work}, 100,000 times"
    plain, subject = full(Plain), full(TIMED[rival])
    # TTLCache gives up what will end first instead of what was used least recently: its hits may differ.
    found = WORK[work](plain), WORK[work](subject)
    assert found[0] == found[1] or rival == "cachetools.TTLCache"
    assert len(subject) == CAPACITY
    measure(benchmark, TIMED, rival, WORK[work], ROUNDS)


@pytest.mark.benchmark(group="lru: numbers in batches")
@pytest.mark.parametrize("work", ["get, hit", "put, new key"])
@pytest.mark.parametrize("lifetime", [0, HOUR], ids=["no lifetime", "a lifetime"])
def test_numbers(benchmark: BenchmarkFixture, work: str, lifetime: int) -> None:
    chance = random.Random(3)
    known = array("Q", (chance.getrandbits(64) for _ in range(CAPACITY)))
    used = array("Q", chance.choices(known, k=ACCESSES))
    new = array("Q", (chance.getrandbits(64) for _ in range(ACCESSES)))
    to = array("Q", bytes(8 * ACCESSES))

    def filled() -> tuple[tuple[LruNumbers], dict[str, Any]]:
        subject = LruNumbers(CAPACITY, idle=lifetime, reports=False)
        subject.put_many(known, known)
        return (subject,), {}

    def run(subject: LruNumbers) -> int:
        return subject.put_many(new, new) if work == "put, new key" else subject.get_many(used, to)

    assert run(filled()[0][0]) == ACCESSES
    assert work == "put, new key" or to == used
    time_rounds(benchmark, 20, filled, run)
    assert benchmark.stats is not None
    nanoseconds = benchmark.stats.stats.min / ACCESSES * 1e9
    benchmark.extra_info["note"] = (
        f"numbers, 10,000 entries{', a lifetime' if lifetime else ''}: {work}: {nanoseconds:.0f} ns"
    )
