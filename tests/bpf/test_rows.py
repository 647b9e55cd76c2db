# SPDX-License-Identifier: Apache-2.0
"""The kernel's maps of unwind rows hold what their owner in user space says."""

import random
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pyprof._native.arena import RowArena
from pyprof.bpf.library import BpfObject
from pyprof.errors import HostError
from tests.support.arena import PAGE, Holder, Rows, Segments, interesting, number_rule
from tests.support.bpf import held, left_after, shown
from tests.support.bpf_maps import Map
from tests.support.stacks import NONE, RULE_BYTES

pytestmark = pytest.mark.bpf

RING = 256 * 1024


class Kernel:
    """A loaded object with an arena, and its maps. A context manager."""

    def __init__(self, chunks: int = 1) -> None:
        self.stack = ExitStack()
        before = held("map")
        self.bpf = self.stack.enter_context(BpfObject(RING, RING // 4, 64))
        rows = shown("map")
        self.maps = {
            rows[number]["name"]: self.stack.enter_context(Map(number)) for number in held("map") - before
        }
        self.arena = RowArena(self.bpf.rule_table())
        for index in range(chunks):
            self.arena.add_chunk(self.bpf.make_chunk(index))

    def __enter__(self) -> "Kernel":
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def load(self, executable: int, rows: Rows, segments: Segments) -> bool:
        rules = b"".join(number_rule(i) for i in range(max((row[1] for row in rows), default=0) + 1))
        return self.arena.load(
            executable, array("Q", [row[0] for row in rows]), array("I", [row[1] for row in rows]), rules,
            segments, 1,
        )  # fmt: skip

    def pages(self) -> dict[tuple[int, int], tuple[int, ...]]:
        return {
            struct.unpack("=II", key): struct.unpack("=IHH16H", value)
            for key, value in self.maps["pages"].items().items()
        }

    def loaded(self) -> dict[int, int]:
        items = self.maps["executables"].items().items()
        return {struct.unpack("=I", key)[0]: struct.unpack("=I", value)[0] for key, value in items}

    def chunk(self, index: int) -> bytes:
        number = self.maps["chunks"].get(struct.pack("=I", index))
        assert number is not None
        with Map(struct.unpack("=I", number)[0]) as inner:
            return inner.get(struct.pack("=I", 0)) or b""

    def rule(self, number: int) -> bytes | None:
        return self.maps["rules"].get(struct.pack("=I", number))


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    with Kernel() as made:
        yield made


def some_rows(chance: random.Random) -> tuple[Rows, Segments]:
    start = chance.randrange(0, 4 * PAGE)
    size = chance.randrange(1, 5 * PAGE)
    addresses = sorted(chance.sample(range(start, start + size), min(size, 700)))
    return [(address, chance.randrange(6)) for address in addresses], [(start, size, start)]


def test_what_is_pending_is_what_the_kernel_has_after_the_write(kernel: Kernel) -> None:
    # The same rows at the same places in an arena without a kernel.
    chance = random.Random(3)
    holder = Holder()
    for executable in range(2, 12):
        rows, segments = some_rows(chance)
        assert holder.load(executable, rows, segments)
        assert kernel.load(executable, rows, segments)
    kernel.arena.load_none(50)
    assert kernel.pages() == {}
    assert kernel.loaded() == {}
    assert kernel.bpf.write_rows(kernel.arena, 5) == 0
    holder.flush()
    assert len(holder.pages) > 20
    assert kernel.pages() == holder.pages
    assert kernel.loaded() == dict.fromkeys([*range(2, 12), 50], 1)
    assert kernel.arena.pending() == (b"", b"", b"", b"", b"")


def test_rows_and_rules_are_found_through_the_maps_alone(kernel: Kernel) -> None:
    chance = random.Random(4)
    files = {executable: some_rows(chance) for executable in range(2, 8)}
    for executable, (rows, segments) in files.items():
        assert kernel.load(executable, rows, segments)
    kernel.bpf.write_rows(kernel.arena, 5)
    chunk, pages = kernel.chunk(0), kernel.pages()
    rules = [kernel.rule(number) for number in range(8)]
    for executable, (rows, segments) in files.items():
        for offset in interesting(rows, segments):
            found: bytes | None = NONE
            if (executable, offset // PAGE) in pages:
                at, _, last, *_ = pages[executable, offset // PAGE]
                words = memoryview(chunk)[at : at + 4 * (last + 1)].cast("H")
                row = bisect_right(words, offset % PAGE, 0, last + 1) - 1
                found = rules[words[last + 1 + row]]
            owner = kernel.arena.rule(executable, offset)
            assert owner is not None
            assert found == struct.pack("=BBBBiii", *owner)


def test_the_table_of_rules_is_shared_with_the_kernel(kernel: Kernel) -> None:
    memory = kernel.bpf.rule_table()
    kernel.load(2, [(0, 5)], [(0, 10, 0)])
    assert kernel.rule(0) == NONE
    assert number_rule(5) in [kernel.rule(number) for number in range(10)]
    memory[RULE_BYTES * 100 : RULE_BYTES * 101] = bytes(range(16))
    assert kernel.rule(100) == bytes(range(16))


def test_chunks_are_shared_with_the_kernel_each_for_itself(kernel: Kernel) -> None:
    chunks = [kernel.bpf.make_chunk(index) for index in (1, 2)]
    chunks[0][:4], chunks[1][-4:] = b"abcd", b"wxyz"
    assert kernel.chunk(1) == b"abcd".ljust(1 << 20, b"\0")
    assert kernel.chunk(2) == b"wxyz".rjust(1 << 20, b"\0")


def test_an_eviction_takes_the_entries_out_and_a_new_load_puts_others_in(kernel: Kernel) -> None:
    chance = random.Random(5)
    kept, gone, other = (some_rows(chance) for _ in range(3))
    kernel.load(2, *kept)
    kernel.load(3, *gone)
    kernel.bpf.write_rows(kernel.arena, 5)
    pages = kernel.pages()
    kernel.arena.evict(3)
    assert kernel.pages() == pages, "not before the write"
    kernel.bpf.write_rows(kernel.arena, 6)
    assert kernel.pages() == {key: page for key, page in pages.items() if key[0] == 2}
    assert kernel.loaded() == {2: 1}
    assert kernel.arena.reclaim(2**63) > 0
    kernel.load(3, *other)
    kernel.bpf.write_rows(kernel.arena, 8)
    assert {key for key in kernel.pages() if key[0] == 2} == {key for key in pages if key[0] == 2}
    assert kernel.loaded() == {2: 1, 3: 1}


def test_what_was_said_to_have_no_rows_can_be_taken_back(kernel: Kernel) -> None:
    kernel.arena.load_none(9)
    kernel.bpf.write_rows(kernel.arena, 1)
    assert kernel.loaded() == {9: 1}
    kernel.arena.forget(9)
    kernel.bpf.write_rows(kernel.arena, 2)
    assert kernel.loaded() == {}


def test_as_many_pages_as_the_arena_allows_find_room_in_the_kernel() -> None:
    with Kernel(4) as kernel:
        # A rule that holds for a page takes a cache line of a chunk: 16384 fill it.
        for executable in range(2, 6):
            assert kernel.load(executable, [(0, 1)], [(0, 16200 * PAGE, 0)])
        assert kernel.load(6, [(0, 1)], [(0, 200 * PAGE, 0)])
        assert not kernel.load(7, [(0, 1)], [(0, PAGE, 0)]), "65,000 pages are all"
        assert kernel.bpf.write_rows(kernel.arena, 1) == 0
        assert sum(1 for _ in kernel.maps["pages"].each_key()) == 65_000
        for executable in range(2, 7):
            kernel.arena.evict(executable)
        assert kernel.bpf.write_rows(kernel.arena, 2) == 0
        assert list(kernel.maps["pages"].each_key()) == list(kernel.maps["executables"].each_key()) == []


def test_a_chunk_beyond_the_last_is_refused(kernel: Kernel) -> None:
    with pytest.raises(HostError, match="no memory for unwind rows"):
        kernel.bpf.make_chunk(1024)


def test_closing_frees_the_chunks() -> None:
    before = held("map")
    with Kernel(3) as kernel:
        numbers = held("map") - before
        assert sum(shown("map")[number]["name"] == "chunk" for number in numbers) == 3
    del kernel
    assert held("map") == before
    assert left_after("map", numbers) == set()
