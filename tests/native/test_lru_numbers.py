# SPDX-License-Identifier: Apache-2.0
"""The cache of numbers, which is the C structure call by call: its index, its batches, its lifetimes."""

import gc
import random
import threading
import tracemalloc
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import pytest

from pyprof._native.lru_numbers import LruNumbers

LAST = 2**64 - 1


def words(values: Iterable[int]) -> "array[int]":
    return array("Q", values)


def put(cache: LruNumbers, keys: Iterable[int], **given: int) -> int:
    """Puts key -> key + 1."""
    column = words(keys)
    return cache.put_many(column, words((key + 1) & LAST for key in column), **given)


def get(cache: LruNumbers, keys: Iterable[int], **given: Any) -> list[int]:
    column = words(keys)
    to = words(bytes(8 * len(column)))
    cache.get_many(column, to, **given)
    return to.tolist()


def test_a_full_cache_gives_up_what_was_used_least_recently() -> None:
    cache = LruNumbers(3)
    put(cache, [1, 2, 3])
    assert get(cache, [1]) == [2]
    assert put(cache, [4, 5]) == 2
    assert cache.removals() == [(2, 0, 3, "evict"), (3, 0, 4, "evict")]
    assert get(cache, [1, 2, 3, 4, 5]) == [2, 0, 0, 5, 6]


def test_both_words_of_a_key_count() -> None:
    cache = LruNumbers(8)
    put(cache, [7], second=1)
    put(cache, [8], second=2)
    assert get(cache, [7, 8], second=1) == [8, 0]
    assert get(cache, [7, 8], second=2) == [0, 9]
    assert get(cache, [7, 8], missing=5) == [5, 5]


def test_absent_keys_can_be_removed_from_a_full_cache() -> None:
    cache = LruNumbers(8)
    put(cache, range(8))
    assert cache.remove_many(words(range(100, 20_000))) == 0
    assert get(cache, range(8)) == list(range(1, 9))
    assert get(cache, [1000]) == [0]


@pytest.mark.parametrize("capacity", [1, 2, 7, 8, 9, 100])
def test_any_order_of_operations_gives_what_a_dict_gives(capacity: int) -> None:
    chance = random.Random(capacity)
    cache = LruNumbers(capacity)
    model: OrderedDict[tuple[int, int], int] = OrderedDict()
    removed: list[tuple[int, int, int, str]] = []
    for value in range(20_000):
        # Also multiples of large powers of two, whose low bits are all the same.
        key = (chance.randrange(2 * capacity + 2) << chance.choice([0, 32, 58])) % 2**64
        second = chance.randrange(2)
        if chance.random() < 0.5:
            cache.put_many(words([key]), words([value]), second=second)
            if (key, second) in model:
                removed.append((key, second, model.pop((key, second)), "replace"))
            elif len(model) == capacity:
                (old, older), was = model.popitem(last=False)
                removed.append((old, older, was, "evict"))
            model[key, second] = value
        elif chance.random() < 0.5:
            assert get(cache, [key], second=second, missing=LAST) == [model.get((key, second), LAST)]
            if (key, second) in model:
                model.move_to_end((key, second))
        else:
            there = (key, second) in model
            assert cache.remove_many(words([key]), second=second) == there
            if there:
                removed.append((key, second, model.pop((key, second)), "remove"))
    assert len(cache) == len(model)
    assert cache.removals() == removed


def test_entries_end_each_at_its_own_time_whatever_else_is_kept() -> None:
    """Lifetimes over all levels of the wheel, in random order, beside entries that never end."""
    chance = random.Random(3)
    cache = LruNumbers(4000)
    ends = {key: 1 + int(10 ** chance.uniform(0, 18)) for key in range(3000)}
    for key, end in ends.items():
        put(cache, [key], lifetime=end)
    put(cache, range(3000, 4000))
    for now in sorted(set(chance.sample(list(ends.values()), 300))):
        cache.tick(now)
        gone = {key for key, end in ends.items() if end <= now}
        assert cache.purge() == len(gone)
        assert {(key, reason) for key, *_, reason in cache.removals()} == {(key, "expire") for key in gone}
        for key in gone:
            del ends[key]
        assert len(cache) == 1000 + len(ends)
    assert get(cache, range(3000, 4000)) == list(range(3001, 4001))


def test_a_purge_in_small_steps_comes_to_everything() -> None:
    cache = LruNumbers(1000)
    for key in range(1000):
        put(cache, [key], lifetime=5 if key % 2 else LAST // 2)
    cache.tick(10**9)
    calls = 0
    while cache.metrics()["expire"] < 500:
        before = cache.metrics()["expire"]
        assert cache.purge(steps=16) == cache.metrics()["expire"] - before <= 16
        calls += 1
        assert calls < 1000
    assert len(cache) == 500


def test_use_keeps_an_entry_for_ever_with_an_idle_lifetime_only() -> None:
    cache = LruNumbers(10, idle=10)
    put(cache, [1, 2])
    put(cache, [3], lifetime=25)
    for now in range(3, 100, 3):
        cache.tick(now)
        assert get(cache, [1]) == [2]
        assert get(cache, [2], refresh=False) == [3 if now < 10 else 0]
        assert get(cache, [3]) == [4 if now < 25 else 0]
    assert cache.purge() == 0


def test_entries_with_no_lifetime_survive_the_end_of_time() -> None:
    cache = LruNumbers(10, now=-(2**63))
    put(cache, [1])
    put(cache, [2], idle=LAST, lifetime=LAST)  # ends later than any time
    put(cache, [3], idle=LAST - 10)
    cache.tick(2**63 - 1)
    assert cache.purge() == 0
    assert get(cache, [1, 2, 3]) == [2, 3, 4]


def test_what_has_ended_gives_way_before_what_lives() -> None:
    cache = LruNumbers(3)
    put(cache, [1, 2])
    put(cache, [3], lifetime=5)
    cache.tick(5)
    put(cache, [4])
    assert cache.removals() == [(3, 0, 4, "expire")]
    assert get(cache, [1, 2, 4]) == [2, 3, 5]


def test_weights_are_kept_below_the_limit() -> None:
    cache = LruNumbers(100, weight_limit=10)
    put(cache, [1, 2], weight=4)
    assert put(cache, [3], weight=11) == 0
    assert put(cache, [4], weight=2) == 1
    assert cache.metrics()["weight"] == 10
    assert put(cache, [1], weight=5) == 1  # the entry itself does not give way
    assert cache.removals() == [(2, 0, 3, "evict"), (1, 0, 2, "replace")]
    assert cache.metrics()["weight"] == 7
    assert put(cache, [4], weight=11) == 0  # its old value is out of date
    assert cache.removals() == [(4, 0, 5, "replace")]
    put(cache, [5], weight=0)
    cache.resize(100, 4)
    assert cache.removals() == [(1, 0, 2, "evict")]
    assert cache.metrics()["weight"] == 0 and len(cache) == 1
    assert cache.metrics()["refused"] == 2


def test_resizing_keeps_order_weights_and_lifetimes() -> None:
    cache = LruNumbers(1000)
    for key in range(1000):
        put(cache, [key], weight=key, lifetime=key + 1 if key % 2 else 0)
    cache.tick(500)
    cache.purge()
    cache.removals()
    cache.resize(600)
    assert {reason for *_, reason in cache.removals()} == {"evict"}
    left = [key for key in range(1000) if key % 2 == 0 or key + 1 > 500][-600:]
    assert cache.metrics()["weight"] == sum(left)
    cache.resize(70_000)
    cache.tick(700)
    assert cache.purge() == sum(key % 2 == 1 and key + 1 <= 700 for key in left)
    cache.removals()
    cache.clear()
    assert [key for key, *_ in cache.removals()] == [key for key in left if key % 2 == 0 or key + 1 > 700]


def test_an_absolute_lifetime_outlasts_resizing_and_use() -> None:
    cache = LruNumbers(10)
    put(cache, [1], idle=8, lifetime=12)
    cache.resize(20)
    cache.tick(7)
    assert get(cache, [1]) == [2]
    cache.tick(12)
    assert get(cache, [1]) == [0]


@pytest.mark.parametrize("capacity", [0, 2**29 + 1])
def test_a_capacity_that_cannot_be_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match="capacity"):
        LruNumbers(capacity)
    cache = LruNumbers(1)
    put(cache, [1])
    with pytest.raises(ValueError, match="capacity"):
        cache.resize(capacity)
    with pytest.raises(ValueError, match="weight"):
        cache.resize(1, 2**63)
    assert get(cache, [1]) == [2]


def test_columns_of_different_lengths_are_refused() -> None:
    cache = LruNumbers(1)
    for call in (cache.get_many, cache.peek_many, cache.put_many):
        with pytest.raises(ValueError, match="length"):
            call(words([1, 2]), words([1]))


def test_removals_that_nobody_wants_take_no_memory() -> None:
    cache = LruNumbers(100, reports=False)
    keys = words(range(100_000))
    tracemalloc.start()
    try:
        cache.put_many(keys, keys)
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()
    assert cache.removals() == []
    assert cache.metrics()["evict"] == 99_900


def test_memory_is_given_back() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        cache = LruNumbers(10_000)
        assert tracemalloc.get_traced_memory()[0] - before > 10_000 * 32
        put(cache, range(20_000))
        cache.resize(100)
        cache.removals()
        del cache
        gc.collect()  # empties the interpreter's own store of tuples
        assert tracemalloc.get_traced_memory()[0] - before < 10_000
    finally:
        tracemalloc.stop()


def test_one_thread_a_cache_runs_beside_others() -> None:
    """Batches give up the GIL; caches share nothing."""
    wrong: list[int] = []

    def work(number: int) -> None:
        cache = LruNumbers(512)
        for _ in range(50):
            put(cache, range(number, number + 1000))
            if get(cache, range(number, number + 1000)) != [0] * 488 + list(
                range(number + 489, number + 1001)
            ):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
