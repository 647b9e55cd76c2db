# SPDX-License-Identifier: Apache-2.0
"""Keys whose __hash__ and __eq__ raise, change the cache, or collide."""

import gc
from collections.abc import Callable
from typing import Any

import pytest

from pyprof._native.cache import LruCache

Cache = LruCache[Any, Any]


class Hostile:
    """All collide. Comparing one does a deed first."""

    def __init__(self, name: str, deed: Callable[[], object] = lambda: None) -> None:
        self.name = name
        self.deed = deed

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        self.deed()
        return isinstance(other, Hostile) and self.name == other.name


def even(cache: Cache, removed: int) -> None:
    metrics = cache.metrics()
    reasons = ("evict", "expire", "replace", "remove", "clear")
    assert sum(metrics[reason] for reason in reasons) == removed
    assert metrics["inserts"] == removed + len(cache)


def test_keys_of_one_hash_are_all_kept_apart() -> None:
    cache: Cache = LruCache(300)
    for i in range(300):
        cache[Hostile(str(i))] = i
    for i in range(0, 300, 2):
        assert cache.remove(Hostile(str(i)))
    assert [cache.get(Hostile(str(i))) for i in range(300)] == [None if i % 2 == 0 else i for i in range(300)]
    assert not cache.remove(Hostile("absent"))


def test_equal_keys_of_different_types_are_one_key() -> None:
    cache: Cache = LruCache(10)
    cache[1] = "one"
    assert cache[1.0] == cache[True] == "one"
    cache[(1, "a")] = 2
    assert cache[(1.0, "a")] == 2
    cache["ab"] = 3
    assert cache["".join(["a", "b"])] == 3
    cache[10**30] = 4
    assert cache[10**15 * 10**15] == 4
    assert len(cache) == 4
    cache[1.0] = "uno"
    newest = cache.keys()[0]
    assert type(newest) is int  # the first key stays


def test_a_key_that_is_not_equal_to_itself_is_found_by_identity() -> None:
    cache: Cache = LruCache(10)
    nan = float("nan")
    cache[nan] = 1
    assert cache[nan] == 1
    other = float("nan")
    assert other not in cache


@pytest.mark.parametrize("way", ["get", "get_without_refresh", "peek", "remove", "__contains__"])
def test_an_error_in_comparing_changes_nothing(way: str) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    told: list[Any] = []
    cache: Cache = LruCache(1, on_removed=lambda *what: told.append(what))
    key = Hostile("a", fail)
    cache[key] = 1
    with pytest.raises(ZeroDivisionError):
        getattr(cache, way)(Hostile("b"))
    with pytest.raises(ZeroDivisionError):
        cache.put(Hostile("b"), 2)
    assert told == [] and cache.keys() == [key]
    assert cache.metrics()["misses"] == 0
    even(cache, 0)


def test_an_error_in_hashing_changes_nothing() -> None:
    cache: Cache = LruCache(1)
    cache[1] = 1
    for call in (cache.get, cache.peek, cache.remove, cache.__contains__, cache.__getitem__):
        with pytest.raises(TypeError, match="unhashable"):
            call([])
    with pytest.raises(TypeError, match="unhashable"):
        cache[[]] = 1
    assert cache.keys() == [1]


DEEDS: dict[str, Callable[[Cache], object]] = {
    "clear": lambda cache: cache.clear(),
    "put": lambda cache: cache.put(5, 0),
    "resize down": lambda cache: cache.resize(1),
    "resize up": lambda cache: cache.resize(5000),
    "remove": lambda cache: cache.remove(77),
    "fill": lambda cache: [cache.put(1000 + i, i) for i in range(20)],
    "collect": lambda cache: gc.collect(),
}


@pytest.mark.parametrize("deed", list(DEEDS))
@pytest.mark.parametrize("way", ["get", "put", "remove", "peek", "__contains__"])
def test_a_comparison_may_change_the_cache(deed: str, way: str) -> None:
    removed: list[Any] = []
    cache: Cache = LruCache(4, on_removed=lambda key, value, reason: removed.append(key))
    left = 3

    def act() -> None:
        nonlocal left
        if left:
            left -= 1
            DEEDS[deed](cache)

    cache[77] = 77
    for name in ("a", "b", "c"):
        cache[Hostile(name, act)] = name
    call = getattr(cache, way)
    if way == "put":
        call(Hostile("b"), "new")
        assert cache.peek(Hostile("b")) == "new"
    else:
        # The other deeds evict or clear what is looked for while it is looked for.
        assert bool(call(Hostile("b"))) == (deed in {"put", "remove", "resize up", "collect"})
    even(cache, len(removed))
    assert len(cache.keys()) == len(cache) == len(set(map(id, cache.keys())))


def test_a_comparison_that_removes_what_it_compares_leaves_the_key_alive() -> None:
    cache: Cache = LruCache(4)

    class Suicidal(Hostile):
        def __eq__(self, other: object) -> bool:
            cache.clear()
            gc.collect()
            return isinstance(other, Hostile) and self.name == other.name

        __hash__ = Hostile.__hash__

    cache[Suicidal("a")] = 1
    assert cache.get(Hostile("a")) is None
    assert len(cache) == 0


def test_a_comparison_that_always_changes_the_cache_ends() -> None:
    cache: Cache = LruCache(4)
    calls = 0

    def churn() -> None:
        nonlocal calls
        calls += 1
        cache.put(5, calls)
        cache.remove(5)

    cache[Hostile("a", churn)] = 1
    with pytest.raises(RuntimeError, match="again and again"):
        cache.get(Hostile("b"))
    assert calls == 1000
    assert len(cache) == 1


def test_a_hash_may_change_the_cache() -> None:
    cache: Cache = LruCache(4)

    class Clearing:
        def __hash__(self) -> int:
            cache.clear()
            return 1

    key = Clearing()
    cache[1] = 1
    cache[key] = 2
    assert cache.keys() == [key]
    assert cache.get(key) is None
