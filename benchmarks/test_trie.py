# SPDX-License-Identifier: Apache-2.0
"""Inserting, looking up and deleting the mappings of a host of 300 processes.

The mappings are those that /proc shows of this host's processes, taken in turn until there are 300. What has
to be kept is the same for all: per process, which mapping holds an address, exactly.

Ours is measured call by call (pyprof) and with a batch a step (pyprof, batches). The packages know prefixes
only, of 128 bits as in IPv6: (pid, address) is the key, and ranges are split by our own function, in native
code and before the time is taken. So they do less than we: they are given the prefixes, and do not keep what
belongs to a process, so that deleting is given all the prefixes again. Plain Python keeps, as ours does,
what is in the kernel, (pid, prefix length, address) -> number in a dict, looked up from the longest prefix
down, and splits ranges itself.
"""

import random
from array import array
from collections.abc import Callable
from functools import cache
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any, Protocol

import pygtrie
import pytest
import pytricia
import radix
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.ratios import time_rounds
from pyprof._native.trie import MappingTrie, prefixes

PROCESSES = 300
LAST = 2**64 - 1
Mapping = tuple[int, int, int]
"""pid, first and last address."""


def executable_ranges(maps: Path) -> list[tuple[int, int]]:
    """First and last address of what /proc/PID/maps shows as executable; none for a process that is gone."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        span, access, *_ = line.split(None, 2)
        if "x" in access and not line.endswith("[vsyscall]"):
            start, end = (int(word, 16) for word in span.split("-"))
            found.append((start, end - 1))
    return found


@cache
def mappings() -> list[Mapping]:
    """The mappings of 300 processes, in the order in which they would be reported."""
    hosts = [
        ranges for maps in sorted(Path("/proc").glob("[0-9]*/maps")) if (ranges := executable_ranges(maps))
    ]
    return [(100 + i, start, last) for i in range(PROCESSES) for start, last in hosts[i % len(hosts)]]


@cache
def addresses() -> list[tuple[int, int]]:
    """Mostly inside of mappings, some behind."""
    chance = random.Random(8)
    found = []
    for _ in range(10_000):
        pid, start, last = chance.choice(mappings())
        found.append((pid, min(chance.randint(start, last + (last - start) // 16), LAST)))
    return found


@cache
def split() -> list[tuple[int, list[tuple[int, int]]]]:
    """(pid, prefixes) of each mapping."""
    return [(pid, prefixes(start, last)) for pid, start, last in mappings()]


class Owner(Protocol):
    """What all do: fill with mappings(), find each of addresses() (0 for none), and empty again."""

    def fill(self) -> None: ...
    def find(self) -> list[int]: ...
    def empty(self) -> None: ...


class Single:
    """Ours, call by call."""

    def __init__(self) -> None:
        self.trie = MappingTrie()

    def fill(self) -> None:
        insert = self.trie.insert
        for pid, start, last in mappings():
            insert(pid, start, last)

    def find(self) -> list[int]:
        lookup = self.trie.lookup
        return [lookup(pid, address) for pid, address in addresses()]

    def empty(self) -> None:
        for pid in range(100, 100 + PROCESSES):
            self.trie.retire(pid)


@cache
def columns() -> "tuple[array[int], array[int], array[int]]":
    pids, starts, lasts = zip(*mappings(), strict=True)
    return array("I", pids), array("Q", starts), array("Q", lasts)


@cache
def address_columns() -> "tuple[array[int], array[int]]":
    pids, places = zip(*addresses(), strict=True)
    return array("I", pids), array("Q", places)


class Batch:
    """Ours, a call a step."""

    def __init__(self) -> None:
        self.trie = MappingTrie()

    def fill(self) -> None:
        self.trie.insert_many(*columns())

    def find(self) -> list[int]:
        return self.trie.lookup_many(*address_columns()).tolist()

    def empty(self) -> None:
        self.trie.retire_many(array("I", range(100, 100 + PROCESSES)))


class PlainTrie:
    """What a straightforward owner in Python does."""

    def __init__(self) -> None:
        self.entries: dict[tuple[int, int, int], int] = {}
        self.owned: dict[int, list[tuple[int, int, int]]] = {}

    def fill(self) -> None:
        for number, (pid, start, last) in enumerate(mappings(), 1):
            keys = self.owned.setdefault(pid, [])
            at = start
            while at <= last:
                bits = min((at & -at).bit_length() - 1 if at else 64, (last - at + 1).bit_length() - 1)
                key = (pid, 64 - bits, at)
                self.entries[key] = number
                keys.append(key)
                at += 1 << bits

    def find(self) -> list[int]:
        return [self.lookup(pid, address) for pid, address in addresses()]

    def lookup(self, pid: int, address: int) -> int:
        for bits in range(65):
            number = self.entries.get((pid, 64 - bits, address >> bits << bits))
            if number is not None:
                return number
        return 0

    def empty(self) -> None:
        for pid in range(100, 100 + PROCESSES):
            for key in self.owned.pop(pid):
                del self.entries[key]


def packed(pid: int, address: int) -> bytes:
    """The 128-bit key: pid and address, big-endian, and nothing before them."""
    return pid.to_bytes(8, "big") + address.to_bytes(8, "big")


@cache
def packed_prefixes() -> list[tuple[bytes, int, int]]:
    """(key, length in bits, number of the mapping)."""
    return [
        (packed(pid, at), 64 + length, number)
        for number, (pid, parts) in enumerate(split(), 1)
        for length, at in parts
    ]


@cache
def packed_addresses() -> list[bytes]:
    return [packed(pid, address) for pid, address in addresses()]


@cache
def named_prefixes() -> list[str]:
    """Prefixes as IPv6 networks in text, which is how pytricia deletes."""
    return [f"{IPv6Address(key)}/{length}" for key, length, _ in packed_prefixes()]


class Pytricia:
    """pytricia: a Patricia trie in C."""

    def __init__(self) -> None:
        self.trie: Any = pytricia.PyTricia(128)

    def fill(self) -> None:
        insert = self.trie.insert
        for key, length, number in packed_prefixes():
            insert(key, length, number)

    def find(self) -> list[int]:
        get = self.trie.get
        return [get(key, 0) for key in packed_addresses()]

    def empty(self) -> None:
        delete = self.trie.delete
        for name in named_prefixes():
            delete(name)


class Radix:
    """py-radix: a radix tree in C."""

    def __init__(self) -> None:
        self.tree: Any = radix.Radix()

    def fill(self) -> None:
        add = self.tree.add
        for key, length, number in packed_prefixes():
            add(packed=key, masklen=length).data["mapping"] = number

    def find(self) -> list[int]:
        best = self.tree.search_best
        found = (best(packed=key, masklen=128) for key in packed_addresses())
        return [node.data["mapping"] if node is not None else 0 for node in found]

    def empty(self) -> None:
        delete = self.tree.delete
        for key, length, _ in packed_prefixes():
            delete(packed=key, masklen=length)


@cache
def bit_prefixes() -> list[tuple[str, int]]:
    """Prefixes as strings of bits, which is what pygtrie takes."""
    return [
        (f"{int.from_bytes(key, 'big'):0128b}"[:length], number) for key, length, number in packed_prefixes()
    ]


@cache
def bit_addresses() -> list[str]:
    return [f"{int.from_bytes(key, 'big'):0128b}" for key in packed_addresses()]


class Pygtrie:
    """pygtrie: a trie in Python."""

    def __init__(self) -> None:
        self.trie: Any = pygtrie.CharTrie()

    def fill(self) -> None:
        for bits, number in bit_prefixes():
            self.trie[bits] = number

    def find(self) -> list[int]:
        longest = self.trie.longest_prefix
        return [longest(bits).get(0) for bits in bit_addresses()]

    def empty(self) -> None:
        for bits, _ in bit_prefixes():
            del self.trie[bits]


RIVALS: dict[str, Callable[[], Owner]] = {
    "pyprof": Batch,
    "pyprof, call by call": Single,
    "pytricia": Pytricia,
    "py-radix": Radix,
    "pygtrie": Pygtrie,
    "plain Python": PlainTrie,
}
rivals = pytest.mark.parametrize("rival", list(RIVALS))


def rounds(rival: str) -> int:
    return 1 if rival == "pygtrie" else 10


def filled(rival: str) -> Owner:
    """Also has all that is prepared be there before the time is taken."""
    owner = RIVALS[rival]()
    owner.fill()
    return owner


@cache
def truth() -> list[int]:
    """The answers, by going through all mappings of the process."""
    spans: dict[int, list[tuple[int, int, int]]] = {}
    for number, (pid, start, last) in enumerate(mappings(), 1):
        spans.setdefault(pid, []).append((start, last, number))
    return [
        next((number for start, last, number in spans[pid] if start <= address <= last), 0)
        for pid, address in addresses()
    ]


@pytest.mark.benchmark(group="trie: insert all mappings of 300 processes")
@rivals
def test_insert(benchmark: BenchmarkFixture, rival: str) -> None:
    assert filled(rival).find() == truth()
    time_rounds(benchmark, rounds(rival), lambda: ((RIVALS[rival](),), {}), lambda owner: owner.fill())
    benchmark.extra_info["mappings"] = len(mappings())


@pytest.mark.benchmark(group="trie: delete them")
@rivals
def test_delete(benchmark: BenchmarkFixture, rival: str) -> None:
    owner = filled(rival)
    owner.empty()
    assert set(owner.find()) == {0}
    time_rounds(benchmark, rounds(rival), lambda: ((filled(rival),), {}), lambda owner: owner.empty())


@pytest.mark.benchmark(group="trie: look up 10,000 addresses")
@rivals
def test_lookup(benchmark: BenchmarkFixture, rival: str) -> None:
    owner = filled(rival)
    assert owner.find() == truth()
    time_rounds(benchmark, rounds(rival), lambda: ((owner,), {}), lambda owner: owner.find())


def mapped(order: str) -> "tuple[array[int], array[int]]":
    starts = [0x10000 + i * 0x3000 for i in range(65_530)]
    if order == "descending":
        starts.reverse()
    if order == "shuffled":
        random.Random(1).shuffle(starts)
    return array("Q", starts), array("Q", [start + 0xFFF for start in starts])


@pytest.mark.benchmark(group="trie: one process with 65,530 mappings")
@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled"])
def test_a_huge_process(benchmark: BenchmarkFixture, order: str) -> None:
    given = mapped(order)
    time_rounds(benchmark, 5, lambda: ((MappingTrie(),), {}), lambda trie: trie.replace(1, *given))
    assert benchmark.stats is not None
    seconds = benchmark.stats.stats.min
    benchmark.extra_info["note"] = f"65,530 mappings of one process, {order}: {1e3 * seconds:.1f} ms"
