# SPDX-License-Identifier: Apache-2.0
"""The cache of Python objects: lifetimes, callbacks that do what they like, references."""

import gc
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from pyprof._native.cache import LruCache

Removed = list[tuple[Any, Any, str]]


class Clock:
    def __init__(self) -> None:
        self.time = 0
        self.reads = 0

    def __call__(self) -> int:
        self.reads += 1
        return self.time


class Subject:
    """A cache with a clock, and what its callback was told."""

    def __init__(self, capacity: int = 10, **given: Any) -> None:
        self.clock = Clock()
        self.removed: Removed = []
        self.cache: LruCache[Any, Any] = LruCache(
            capacity,
            on_removed=lambda key, value, reason: self.removed.append((key, value, reason)),
            clock=self.clock,
            **given,
        )

    def at(self, time: int) -> "LruCache[Any, Any]":
        self.clock.time = time
        self.cache.tick()
        return self.cache


def test_an_entry_that_is_used_outlives_its_idle_lifetime() -> None:
    subject = Subject(idle=10)
    subject.cache.put("a", 1)
    for time in (3, 6, 9, 12):
        assert subject.at(time).get("a") == 1
    assert subject.at(21).get("a") == 1
    assert subject.at(31).get("a") is None
    assert subject.removed == [("a", 1, "expire")]


def test_an_absolute_lifetime_is_not_refreshed() -> None:
    subject = Subject(idle=10, lifetime=12)
    subject.cache.put("a", 1)
    for time in (3, 6, 9, 11):
        assert subject.at(time).get("a") == 1
    assert subject.at(12).get("a") is None


def test_a_look_up_without_refresh_leaves_the_lifetime_but_counts() -> None:
    subject = Subject(2, idle=10)
    subject.cache.put("a", 1)
    subject.cache.put("b", 2)
    assert subject.at(9).get_without_refresh("a") == 1
    assert subject.cache.keys() == ["a", "b"]
    assert subject.cache.metrics()["hits"] == 1
    assert subject.at(10).get_without_refresh("a", 7) == 7


def test_peeking_touches_nothing() -> None:
    subject = Subject(2, idle=10)
    subject.cache.put("a", 1)
    subject.cache.put("b", 2)
    assert subject.at(9).peek("a") == 1
    assert "a" in subject.cache
    assert subject.cache.keys() == ["b", "a"]
    assert subject.at(10).peek("a", 7) == 7
    assert "a" not in subject.cache
    assert subject.removed == [] and len(subject.cache) == 2
    metrics = subject.cache.metrics()
    assert metrics["hits"] == metrics["misses"] == 0


def test_lifetimes_of_an_entry_go_before_those_of_the_cache() -> None:
    subject = Subject(idle=10)
    subject.cache.put("short", 1, idle=2)
    subject.cache.put("usual", 2)
    subject.cache.put("eternal", 3, idle=0)
    subject.cache.put("late", 4, idle=0, lifetime=1000)
    assert subject.at(2).purge() == 1
    assert subject.at(10).purge() == 1
    assert subject.at(1000).purge() == 1
    assert [key for key, _, _ in subject.removed] == ["short", "usual", "late"]
    assert subject.cache.keys() == ["eternal"]


def test_a_clock_that_steps_back_makes_nobody_immortal_and_empties_nothing() -> None:
    hour = 3600
    subject = Subject(idle=10)
    subject.at(hour).put("a", 1)
    assert subject.at(0).get("a") == 1  # -1 h: time stands
    assert subject.cache.purge() == 0
    subject.at(5).put("b", 2)
    assert subject.at(9).peek("a") == 1
    assert subject.at(10).peek("a") is None
    assert subject.cache.peek("b") == 2
    assert subject.at(15).purge() == 2
    assert subject.removed == [("a", 1, "expire"), ("b", 2, "expire")]


def test_a_clock_that_steps_on_ends_what_it_passes_and_nothing_later() -> None:
    hour = 3600
    subject = Subject(idle=10)
    subject.cache.put("a", 1)
    subject.cache.put("b", 2, idle=2 * hour)
    assert subject.at(hour).purge() == 1
    subject.cache.put("c", 3)
    assert subject.at(0).get("c") == 3  # and back
    assert subject.at(9).get("b") == 2
    assert subject.at(11).get("c") is None


def test_the_clock_is_read_once_a_tick_and_for_nothing_else() -> None:
    subject = Subject(idle=10)
    before = subject.clock.reads
    for i in range(100):
        subject.cache.put(i, i)
        subject.cache.get(i)
    subject.cache.purge()
    subject.cache.clear()
    assert subject.clock.reads == before
    subject.cache.tick()
    assert subject.clock.reads == before + 1


def test_overwriting_what_has_ended_is_an_end_and_no_replacement() -> None:
    subject = Subject(idle=10)
    subject.cache.put("a", 1)
    subject.at(10).put("a", 2)
    assert subject.removed == [("a", 1, "expire")]
    assert subject.cache["a"] == 2


def test_updating_a_full_cache_evicts_nobody() -> None:
    subject = Subject(2)
    for key in ("a", "b", "a"):
        subject.cache[key] = key
    assert subject.removed == [("a", "a", "replace")]
    assert subject.cache.keys() == ["a", "b"]


def test_replacements_are_counted_where_nobody_is_told() -> None:
    cache: LruCache[str, int] = LruCache(2)
    for value in range(5):
        cache["a"] = value
    cache["b"] = 0
    cache["a"] = 5
    metrics = cache.metrics()
    assert (metrics["inserts"], metrics["replace"], len(cache)) == (7, 5, 2)
    assert cache.keys() == ["a", "b"] and cache["a"] == 5


def test_absent_keys_can_be_removed_from_a_full_cache() -> None:
    subject = Subject(8)
    for i in range(8):
        subject.cache[i] = i
    assert not any(subject.cache.remove(i) for i in range(8, 5000))
    with pytest.raises(KeyError, match="9"):
        del subject.cache[9]
    assert subject.cache[0] == 0
    del subject.cache[0]
    assert subject.removed == [(0, 0, "remove")]
    with pytest.raises(KeyError, match="0"):
        subject.cache[0]


def test_resizing_down_tells_of_what_goes_the_oldest_first() -> None:
    subject = Subject(10)
    for i in range(10):
        subject.cache[i] = -i
    subject.cache.resize(3)
    assert subject.removed == [(i, -i, "evict") for i in range(7)]
    subject.cache.resize(4)
    subject.cache[10] = -10
    assert subject.cache.keys() == [10, 9, 8, 7]


def test_an_entry_that_is_too_heavy_is_not_kept_nor_is_its_predecessor() -> None:
    subject = Subject(10, weight_limit=10)
    assert subject.cache.put("a", 1, 10)
    assert not subject.cache.put("a", 2, 11)
    assert subject.removed == [("a", 1, "replace")]
    assert not subject.cache.put("b", 2, 11)
    assert len(subject.cache) == 0 and subject.cache.metrics()["refused"] == 2


def test_a_callback_may_do_anything_to_the_cache() -> None:
    deeds: list[Callable[[], object]] = []
    told: Removed = []

    def on_removed(key: int, value: int, reason: str) -> None:
        told.append((key, value, reason))
        if deeds:
            deeds.pop()()

    cache: LruCache[int, int] = LruCache(4, on_removed=on_removed)
    for i in range(4):
        cache[i] = i
    deeds += [lambda: cache.resize(100), cache.clear, lambda: cache.put(7, 7), lambda: cache.resize(2)]
    cache[4] = 4
    # 0 gave way to 4; then resize(2) evicts, whose callbacks put 7, clear, and resize again.
    assert told[0] == (0, 0, "evict")
    assert cache.metrics()["inserts"] == len(told) + len(cache) == 6
    assert sorted(key for key, _, _ in told) + cache.keys() == [0, 1, 2, 3, 4, 7]
    cache.put(9, 9)
    assert cache[9] == 9


def test_a_callback_that_raises_stops_no_other_and_undoes_nothing() -> None:
    told: list[int] = []

    def on_removed(key: int, value: int, reason: str) -> None:
        told.append(key)
        if key in {1, 3}:
            raise ValueError(key)

    cache: LruCache[int, int] = LruCache(10, on_removed=on_removed)
    for i in range(5):
        cache[i] = i
    with pytest.raises(ValueError, match="1"):
        cache.remove(1)
    with pytest.raises(ValueError, match="3"):
        cache.clear()
    assert told == [1, 0, 2, 3, 4] and len(cache) == 0


def test_several_callbacks_that_raise_raise_a_group() -> None:
    def on_removed(key: int, value: int, reason: str) -> None:
        raise ValueError(key)

    cache: LruCache[int, int] = LruCache(10, on_removed=on_removed)
    cache[1], cache[2] = 1, 2
    with pytest.raises(ExceptionGroup) as caught:
        cache.clear()
    assert [str(error) for error in caught.value.exceptions] == ["1", "2"]
    cache[1] = 1
    assert cache[1] == 1


def test_keys_and_values_are_released_by_every_way_out() -> None:
    class Thing:
        pass

    alive: weakref.WeakSet[Thing] = weakref.WeakSet()

    def thing() -> Thing:
        made = Thing()
        alive.add(made)
        return made

    clock = Clock()
    cache: LruCache[Thing, Thing] = LruCache(2, weight_limit=10, lifetime=10, clock=clock)
    key = thing()
    for _ in range(5):
        cache.put(key, thing())  # replaced
    assert len(alive) == 2
    cache.remove(key)
    assert len(alive) == 1
    for _ in range(5):
        cache.put(thing(), thing())  # evicted
    assert len(alive) == 5
    cache.resize(1)
    assert len(alive) == 3
    cache.put(thing(), thing(), 11)  # refused
    assert len(alive) == 3
    cache.clear()
    assert len(alive) == 1
    cache.put(thing(), thing())
    clock.time = 10
    cache.tick()
    cache.purge()
    assert len(alive) == 1
    cache.put(key, thing())
    del cache
    assert len(alive) == 1
    assert sys.getrefcount(key) == 2


def test_reference_counts_come_out_even() -> None:
    key, value = object(), object()
    counts = sys.getrefcount(key), sys.getrefcount(value)
    told: Removed = []
    cache: LruCache[object, object] = LruCache(1, on_removed=lambda *what: told.append(what))
    for _ in range(1000):
        cache.put(key, value)
        cache.put(key, value)
        assert cache.get(key) is cache.peek(key) is cache[key] is value
        cache.put(1, 2)
    del cache
    told.clear()
    assert (sys.getrefcount(key), sys.getrefcount(value)) == counts


def test_memory_stays_level_and_is_given_back() -> None:
    tracemalloc.start()
    try:
        cache: LruCache[int, bytes] = LruCache(1000)
        for i in range(2000):
            cache[i] = bytes(100)
        gc.collect()
        level = tracemalloc.get_traced_memory()[0]
        for i in range(50_000):
            cache[i] = bytes(100)
        gc.collect()
        assert abs(tracemalloc.get_traced_memory()[0] - level) < 20_000
        del cache
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < level - 1000 * 132
    finally:
        tracemalloc.stop()


def test_a_cycle_through_the_cache_is_collected() -> None:
    class Node:
        pass

    node = Node()
    cache: LruCache[Any, Any] = LruCache(10)
    cache["node"] = node
    cache[node] = 1
    node.cache = cache  # type: ignore[attr-defined]
    gone = weakref.ref(node)
    assert cache in gc.get_referrers(node)
    del node, cache
    gc.collect()
    assert gone() is None


def test_a_cycle_through_the_callback_is_collected() -> None:
    class Owner:
        def __init__(self) -> None:
            self.cache: LruCache[int, Any] = LruCache(10, on_removed=self.removed)
            self.cache[1] = self

        def removed(self, key: int, value: object, reason: str) -> None:
            raise AssertionError

    owner = Owner()
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def test_values_whose_finalisers_use_the_cache_do_no_harm() -> None:
    class Value:
        def __init__(self, cache: "LruCache[int, Value]") -> None:
            self.cache = cache

        def __del__(self) -> None:
            self.cache.get(0)
            self.cache.remove(1)
            self.cache.clear()

    cache: LruCache[int, Value] = LruCache(3)
    for i in range(50):
        cache[i] = Value(cache)
    cache.resize(1)
    cache.clear()
    assert len(cache) == 0
    for i in range(3):
        cache[i] = Value(cache)
    gone = weakref.ref(cache[2])
    del cache
    gc.collect()
    assert gone() is None


def test_caches_in_caches_in_caches_are_freed_without_recursion() -> None:
    cache: LruCache[int, Any] = LruCache(1)
    for _ in range(100_000):
        outer: LruCache[int, Any] = LruCache(1)
        outer[1] = cache
        cache = outer
    del cache, outer
    gc.collect()


def test_threads_share_a_cache() -> None:
    told: list[int] = []
    cache: LruCache[int, int] = LruCache(50, on_removed=lambda key, value, reason: told.append(key))

    def work(number: int) -> None:
        for i in range(3000):
            cache[i % 97] = number
            cache.get(i % 89)
            if i % 500 == 0:
                cache.resize(20 + i % 7)
            if i % 11 == 0:
                cache.remove(i % 31)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert cache.metrics()["inserts"] == 12_000 == len(told) + len(cache)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"capacity": 0}, ValueError),
        ({"capacity": 2**29 + 1}, ValueError),
        ({"capacity": -1}, OverflowError),
        ({"capacity": 1, "weight_limit": 2**63}, ValueError),
        ({"capacity": 1, "idle": -1}, OverflowError),
        ({"capacity": 1, "on_removed": 5}, TypeError),
        ({"capacity": 1, "clock": lambda: "late"}, TypeError),
        ({"capacity": 1, "clock": lambda: 2**63}, OverflowError),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        LruCache(**given)
