# SPDX-License-Identifier: Apache-2.0
"""LruCache against an OrderedDict that is gone through from one end to the other at each step.

A step may bring another one, which the first removal's callback takes while the rest of the removals wait.
What the model leaves open is only which entries that have ended give way when room is made, and the order of
a purge: there it follows what was told, after it has checked that it was allowed.
"""

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyprof._native.cache import LruCache


class Key:
    """Few hashes, so that most keys collide; equal keys are different objects."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return self.number % 3

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.number == other.number

    def __repr__(self) -> str:
        return f"Key({self.number})"


@dataclass(frozen=True)
class Kept:
    value: int
    weight: int
    idle: int
    last_use: int
    latest: int | None

    def ended(self, now: int) -> bool:
        idle_over = self.idle != 0 and self.last_use + self.idle <= now
        return idle_over or (self.latest is not None and self.latest <= now)


class Told(NamedTuple):
    key: Key
    value: int
    reason: str


class Model:
    def __init__(self, capacity: int, limit: int | None, idle: int, lifetime: int) -> None:
        self.capacity, self.limit, self.idle, self.lifetime = capacity, limit, idle, lifetime
        self.entries: OrderedDict[Key, Kept] = OrderedDict()  # the least recently used first
        self.now = 0
        self.clock = 0
        self.counts: Counter[str] = Counter()
        self.told: deque[Told] = deque()

    def take(self, key: Key, reason: str) -> None:
        """The next that was told is this; the entry goes."""
        kept = self.entries.pop(key)
        assert self.told.popleft() == (key, kept.value, "expire" if kept.ended(self.now) else reason)
        self.counts["expire" if kept.ended(self.now) else reason] += 1

    def take_ended(self) -> None:
        """The next that was told is any that has ended."""
        key = self.told[0].key
        assert self.entries[key].ended(self.now)
        self.take(key, "expire")

    def make_room(self, more: int, weight: int) -> None:
        def over() -> bool:
            heavy = sum(kept.weight for kept in self.entries.values()) + weight
            return len(self.entries) + more > self.capacity or (self.limit is not None and heavy > self.limit)

        while over():
            if self.told[0].reason == "expire":
                self.take_ended()
            else:
                self.take(next(iter(self.entries)), "evict")

    def get(self, key: Key) -> int | None:
        return self.look_up(key, True)

    def get_without_refresh(self, key: Key) -> int | None:
        return self.look_up(key, False)

    def look_up(self, key: Key, refresh: bool) -> int | None:
        if key not in self.entries or self.entries[key].ended(self.now):
            self.counts["misses"] += 1
            if key in self.entries:
                self.take(key, "expire")
            return None
        self.counts["hits"] += 1
        self.entries.move_to_end(key)
        if refresh:
            self.entries[key] = replace(self.entries[key], last_use=self.now)
        return self.entries[key].value

    def peek(self, key: Key) -> int | None:
        kept = self.entries.get(key)
        return None if kept is None or kept.ended(self.now) else kept.value

    def contains(self, key: Key) -> bool:
        return self.peek(key) is not None

    def put(self, key: Key, value: int, weight: int, idle: int | None, lifetime: int | None) -> bool:
        idle = self.idle if idle is None else idle
        lifetime = self.lifetime if lifetime is None else lifetime
        old = self.entries.get(key)
        if old is not None and old.ended(self.now):
            self.take(key, "expire")
            old = None
        if self.limit is not None and weight > self.limit:
            self.counts["refused"] += 1
            if old is not None:
                self.take(key, "replace")
            return False
        self.counts["inserts"] += 1
        kept = Kept(value, weight, idle, self.now, self.now + lifetime if lifetime else None)
        if old is None:
            self.make_room(1, weight)
        else:
            self.entries.move_to_end(key)
            self.make_room(0, weight - old.weight)
            self.take(key, "replace")
        self.entries[key] = kept
        return True

    def remove(self, key: Key) -> bool:
        there = self.contains(key)
        if key in self.entries:
            self.take(key, "remove")
        return there

    def clear(self) -> None:
        for key in list(self.entries):
            self.take(key, "clear")

    def resize(self, capacity: int, limit: int | None) -> None:
        self.capacity, self.limit = capacity, limit
        self.make_room(0, 0)

    def set_clock(self, clock: int) -> None:
        self.now += max(0, clock - self.clock)
        self.clock = clock

    def purge(self, removed: int) -> None:
        for _ in range(removed):
            self.take_ended()


KEYS = st.builds(Key, st.integers(0, 12))
LIFETIMES = st.sampled_from([None, 0, 0, 1, 3, 10, 100, 5000, 2**64 - 1])
WEIGHTS = st.sampled_from([0, 1, 1, 1, 2, 5, 9, 40])
LIMITS = st.none() | st.integers(0, 30)
STEPS = st.one_of(
    *(
        st.tuples(st.just(name), KEYS)
        for name in ("get", "get", "get_without_refresh", "peek", "contains", "remove")
    ),
    *[st.tuples(st.just("put"), KEYS, WEIGHTS, LIFETIMES, LIFETIMES)] * 4,
    st.tuples(st.just("resize"), st.integers(1, 9), LIMITS),
    st.tuples(st.just("clear")),
    st.tuples(st.just("purge"), st.none() | st.integers(0, 20)),
    *[st.tuples(st.just("tick"), st.sampled_from([0, 1, 1, 2, 5, 60, 5000, -1, -5000]))] * 2,
)


class CallbackError(Exception):
    pass


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        capacity=st.integers(1, 9),
        limit=LIMITS,
        idle=st.sampled_from([0, 4]),
        lifetime=st.sampled_from([0, 20]),
    )
    def make(self, capacity: int, limit: int | None, idle: int, lifetime: int) -> None:
        self.model = Model(capacity, limit, idle, lifetime)
        self.time = 0
        self.next = 0
        self.within: Any = None
        self.steps: list[tuple[Any, Any]] = []
        """What was done to the cache, with what came of it."""
        self.cache: LruCache[Key, int] = LruCache(
            capacity,
            weight_limit=limit,
            idle=idle,
            lifetime=lifetime,
            on_removed=self.removed,
            clock=lambda: self.time,
        )

    def removed(self, key: Key, value: int, reason: str) -> None:
        self.model.told.append(Told(key, value, reason))
        within, self.within = self.within, None
        if within == "raise":
            raise CallbackError
        if within is not None:
            self.do(within)

    def do(self, step: Any) -> None:
        """Takes a step of the cache; it is noted before those that its callbacks take."""
        name, *given = step
        if name == "put":
            key, *rest = given
            self.next += 1
            given = [key, self.next, *rest]
        if name == "tick":
            self.time += given[0]
            given = [self.time]
        at = len(self.steps)
        self.steps.append(((name, given), None))
        try:
            answer = self.cache_step(name, given)
        except CallbackError:
            answer = CallbackError
        self.steps[at] = ((name, given), answer)

    def cache_step(self, name: str, given: Any) -> Any:
        if name == "put":
            key, value, weight, idle, lifetime = given
            return self.cache.put(key, value, weight, idle=idle, lifetime=lifetime)
        if name == "contains":
            return given[0] in self.cache
        if name == "tick":
            return self.cache.tick()
        return getattr(self.cache, name)(*given)

    def model_step(self, name: str, given: Any, answer: Any) -> None:
        if name == "tick":
            self.model.set_clock(given[0])
        elif name == "purge":
            if answer is CallbackError:
                answer = sum(told.reason == "expire" for told in self.model.told)
            self.model.purge(answer)
            if given[0] is None:
                assert not any(kept.ended(self.model.now) for kept in self.model.entries.values())
        else:
            expected = getattr(self.model, name)(*given)
            assert answer in (expected, CallbackError)

    @rule(step=STEPS, within=st.none() | st.none() | st.just("raise") | STEPS)
    def step(self, step: Any, within: Any) -> None:
        self.within = within
        self.do(step)
        self.within = None
        for (name, given), answer in self.steps:
            self.model_step(name, given, answer)
        self.steps.clear()
        assert not self.model.told

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "cache"):
            return
        assert len(self.cache) == len(self.model.entries)
        assert self.cache.keys() == list(reversed(self.model.entries))
        for key in self.model.entries:
            assert self.cache.peek(Key(key.number)) == self.model.peek(key)
        metrics = self.cache.metrics()
        names = ["hits", "misses", "inserts", "refused", "evict", "expire", "replace", "remove", "clear"]
        assert {name: metrics[name] for name in names} == {name: self.model.counts[name] for name in names}
        assert metrics["inserts"] == sum(metrics[name] for name in names[4:]) + len(self.cache)
        assert metrics["weight"] == sum(kept.weight for kept in self.model.entries.values())


CacheMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestCache = CacheMachine.TestCase
