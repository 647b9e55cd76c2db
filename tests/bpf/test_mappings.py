# SPDX-License-Identifier: Apache-2.0
"""exec_mappings of the kernel and its owner in user space: both answer alike."""

import itertools
import random
from collections.abc import Iterator

import pytest

from pyprof._native.trie import MappingTrie, prefixes
from pyprof.bpf.library import BpfObject

pytestmark = pytest.mark.bpf

RING = 256 * 1024
LAST = 2**64 - 1
Range = tuple[int, int]


@pytest.fixture
def bpf() -> Iterator[BpfObject]:
    with BpfObject(RING, RING // 4, 100_000) as loaded:
        yield loaded


@pytest.fixture
def small() -> Iterator[BpfObject]:
    with BpfObject(RING, RING // 4, 64) as loaded:
        yield loaded


def disjoint(chance: random.Random, count: int) -> list[Range]:
    """Ranges in the whole address space, of any size from one byte to terabytes, some adjacent."""
    ends: set[int] = {0, LAST} if chance.random() < 0.3 else set()
    while len(ends) < 2 * count:
        at = chance.getrandbits(64) >> chance.randrange(0, 60)
        ends.update((at, min(at + chance.getrandbits(48) >> chance.randrange(0, 48), LAST)))
    ordered = sorted(ends)
    return list(itertools.islice(zip(ordered[::2], ordered[1::2], strict=False), count))


def boundaries(ranges: list[Range]) -> list[int]:
    near = {0, LAST}
    for start, last in ranges:
        near |= {max(start - 1, 0), start, (start + last) // 2, last, min(last + 1, LAST)}
    return sorted(near)


def owned(trie: MappingTrie) -> list[tuple[int, int, int]]:
    return sorted((pid, *key) for pid in trie.pids() for key in trie.keys(pid))


def assert_alike(bpf: BpfObject, trie: MappingTrie, ranges: dict[int, list[Range]]) -> None:
    for pid, spans in ranges.items():
        for address in boundaries(spans):
            assert bpf.lookup_mapping(pid, address) == trie.lookup(pid, address)
    assert sorted(bpf.mapping_keys()) == owned(trie)


@pytest.mark.parametrize("seed", range(8))
def test_the_kernel_answers_as_its_owner_after_inserts_and_deletes(bpf: BpfObject, seed: int) -> None:
    chance = random.Random(seed)
    trie = MappingTrie()
    # Processes whose numbers share bytes: the pid is part of the prefix.
    ranges = {pid: disjoint(chance, 25) for pid in (1, 2, 256, 0x01000000, 2**22, 2**32 - 2)}
    for pid, spans in ranges.items():
        for number, (start, last) in enumerate(chance.sample(spans, len(spans))):
            trie.insert(pid, start, last, executable=number)
    assert bpf.write_mappings(trie, 1) == []
    assert_alike(bpf, trie, ranges)
    # A part goes, in the middle of others, and something else comes over it.
    for pid, spans in ranges.items():
        for start, last in chance.sample(spans, 10):
            trie.retire(pid, start, last)
            if chance.random() < 0.5:
                trie.insert(pid, start, start + (last - start) // 3)
    assert bpf.write_mappings(trie, 2) == []
    assert_alike(bpf, trie, ranges)
    for pid in ranges:
        trie.retire(pid)
    assert bpf.write_mappings(trie, 3) == []
    assert bpf.mapping_keys() == []
    trie.reclaim(4)
    assert trie.counts()["retired"] == trie.counts()["mappings"] == 0


def test_the_whole_address_space_and_its_ends_are_found(bpf: BpfObject) -> None:
    trie = MappingTrie()
    whole = trie.insert(1, 0, LAST)
    first = trie.insert(2, 0, 0)
    last = trie.insert(2, LAST, LAST)
    bpf.write_mappings(trie, 1)
    assert [bpf.lookup_mapping(1, address) for address in (0, 1 << 47, LAST)] == [whole] * 3
    assert [bpf.lookup_mapping(2, address) for address in (0, 1, LAST - 1, LAST)] == [first, 0, 0, last]
    assert bpf.lookup_mapping(3, 0) == 0
    assert sorted(bpf.mapping_keys()) == [(1, 0, 0), (2, 64, 0), (2, 64, LAST)]


def test_many_mappings_of_many_processes_all_come_and_go(bpf: BpfObject) -> None:
    trie = MappingTrie()
    for pid in range(1, 1001):
        for i in range(8):
            trie.insert(pid, 0x7F0000001000 + i * 0x100000, 0x7F0000001000 + i * 0x100000 + 0x2FFFF)
    assert bpf.write_mappings(trie, 1) == []
    assert len(bpf.mapping_keys()) == trie.counts()["prefixes"] == 8000 * len(prefixes(0x1000, 0x30FFF))
    for pid in range(1, 1001):
        trie.retire(pid)
    bpf.write_mappings(trie, 2)
    assert bpf.mapping_keys() == []


def test_processes_that_do_not_fit_are_out_whole_and_all_others_stay(small: BpfObject) -> None:
    trie = MappingTrie()
    refused: set[int] = set()
    fitted: set[int] = set()
    for pid in range(1, 41):  # three prefixes each: 21 processes fit into 64 entries
        trie.insert(pid, 0x1000, 0x4FFF)
        out = small.write_mappings(trie, pid)
        refused.update(out)
        fitted |= {pid} - set(out)
    assert fitted == set(range(1, 22))
    assert refused == set(range(22, 41))
    assert trie.pids() == sorted(fitted)
    assert sorted(small.mapping_keys()) == owned(trie)
    assert all(small.lookup_mapping(pid, 0x4FFF) == trie.lookup(pid, 0x4FFF) != 0 for pid in fitted)
    assert all(small.lookup_mapping(pid, 0x1000) == 0 for pid in refused)
    # Room that one leaves is another's.
    trie.retire(1)
    trie.insert(40, 0x1000, 0x4FFF)
    assert small.write_mappings(trie, 50) == []
    assert small.lookup_mapping(40, 0x1000) == trie.lookup(40, 0x1000) != 0


def test_a_full_map_in_one_write_refuses_the_last_and_is_emptied_in_the_end(small: BpfObject) -> None:
    trie = MappingTrie()
    for pid in range(1, 101):
        trie.insert(pid, 0x1000, 0x4FFF)
    refused = small.write_mappings(trie, 1)
    assert len(refused) == len(set(refused)) == 100 - 21
    assert sorted(small.mapping_keys()) == owned(trie)
    for pid in range(1, 101):
        trie.retire(pid)
    assert small.write_mappings(trie, 2) == []
    assert small.mapping_keys() == []
    assert trie.reclaim(3) == 100


def test_a_process_that_grows_out_of_a_full_map_is_out_whole(small: BpfObject) -> None:
    trie = MappingTrie()
    trie.insert(1, 0x1000, 0x4FFF)
    trie.insert(2, 0x1000, 0x4FFF)
    assert small.write_mappings(trie, 1) == []
    trie.insert(1, 1 << 20, LAST - 1)  # 44 + 64 - 1 prefixes
    assert small.write_mappings(trie, 2) == [1]
    assert small.lookup_mapping(1, 0x1000) == 0
    assert small.lookup_mapping(2, 0x1000) == trie.lookup(2, 0x1000) != 0
    assert sorted(small.mapping_keys()) == owned(trie)
