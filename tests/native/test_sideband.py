# SPDX-License-Identifier: Apache-2.0
"""The reader of perf records over rings in memory files, with records made byte by byte."""

import os
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof._native.processes import ProcessTable
from pyprof._native.sideband import SidebandReader
from pyprof._native.trie import MappingTrie
from tests.support.rings import PAGE, PerfRing, comm, fork, leave, lost, mmap2, record

if TYPE_CHECKING:
    from pyprof._native.processes import ProcessState

ANONYMOUS = 1
BUILD_ID = bytes(range(1, 21))


class Side:
    """A table fed by rings."""

    def __init__(self, rings: int = 1, size: int = PAGE) -> None:
        self.table = ProcessTable(MappingTrie())
        self.reader = SidebandReader(self.table)
        self.rings = [PerfRing(size) for _ in range(rings)]
        for ring in self.rings:
            self.reader.add(ring.fd, ring.size)

    def apply(self, *records: bytes) -> int:
        self.rings[0].put(*records)
        return self.reader.drain()

    def process(self, pid: int) -> "ProcessState":
        state = self.table.process(pid)
        assert state is not None
        return state


@pytest.fixture
def side() -> Iterator[Side]:
    made = Side(2)
    yield made
    for ring in made.rings:
        ring.close()


def test_mmap2_with_a_build_id_as_bytes(side: Side) -> None:
    data = bytes.fromhex(
        "0a000000 0040 5800"  # type MMAP2, misc MMAP_BUILD_ID, size 88
        "07000000 08000000"  # pid, tid
        "0010400000000000"  # address 0x401000
        "0020000000000000"  # length 0x2000
        "0010000000000000"  # offset 0x1000
        "14 00 0000 0102030405060708090a0b0c0d0e0f1011121314"  # 20 bytes of build ID
        "05000000 02000000"  # PROT_READ | PROT_EXEC, MAP_PRIVATE
        "2f62696e2f780000"  # /bin/x
        "6300000000000000"  # time 99
    )
    assert len(data) == 88
    assert side.apply(data) == 1
    assert side.process(7)["ranges"] == [(0x401000, 0x402FFF, 0x1000, 2)]
    assert side.table.new_executables() == [(2, BUILD_ID, 0, b"/bin/x", 7, 0x401000, 0x402FFF)]


def test_mmap2_with_an_inode_as_bytes(side: Side) -> None:
    data = bytes.fromhex(
        "0a000000 0000 5800"  # type MMAP2, misc 0, size 88
        "07000000 08000000"
        "0010400000000000 0010000000000000 0000000000000000"  # address, length, offset
        "08000000 01000000 2a00000000000000 0000000000000000"  # 8:1, inode 42, generation
        "05000000 02000000"
        "2f62696e2f780000"
        "6300000000000000"
    )
    side.apply(data)
    assert side.table.new_executables() == [(2, b"", 42, b"/bin/x", 7, 0x401000, 0x401FFF)]


def test_one_file_has_one_number_by_build_id_then_inode_then_name(side: Side) -> None:
    side.apply(
        mmap2(1, 1, 0x1000, 0x1000, build_id=BUILD_ID, path=b"/a"),
        mmap2(2, 2, 0x1000, 0x1000, build_id=BUILD_ID, path=b"/container/a"),
        mmap2(3, 3, 0x1000, 0x1000, inode=(8, 1, 42), path=b"/b"),
        mmap2(4, 4, 0x1000, 0x1000, inode=(8, 2, 42), path=b"/b"),
        mmap2(5, 5, 0x1000, 0x1000, inode=(8, 1, 42), path=b"/c"),
        mmap2(6, 6, 0x1000, 0x1000, path=b"[vdso]"),
        mmap2(7, 7, 0x1000, 0x1000, path=b"[vdso]"),
        mmap2(8, 8, 0x1000, 0x1000, build_id=BUILD_ID[:8], path=b"/a"),
    )
    assert [side.process(pid)["ranges"][0][3] for pid in range(1, 9)] == [2, 2, 3, 4, 3, 5, 5, 6]
    assert [row[1] for row in side.table.new_executables()] == [BUILD_ID, b"", b"", b"", BUILD_ID[:8]]


@pytest.mark.parametrize("path", [b"//anon", b"[heap]", b"[stack]", b"[anon:jit]"])
def test_memory_without_a_file_is_anonymous(side: Side, path: bytes) -> None:
    side.apply(mmap2(1, 1, 0x1000, 0x1000, path=path))
    assert side.process(1)["ranges"] == [(0x1000, 0x1FFF, 0, ANONYMOUS)]


def test_a_build_id_of_no_bytes_does_not_make_files_equal(side: Side) -> None:
    for pid, path in ((1, b"/a"), (2, b"/b")):
        data = bytearray(mmap2(pid, pid, 0x1000, 0x1000, build_id=BUILD_ID, path=path))
        data[40] = 0  # its length
        side.apply(bytes(data))
    assert side.process(1)["ranges"][0][3] != side.process(2)["ranges"][0][3]


@pytest.mark.parametrize(("start", "length"), [(0x1000, 0), (2**64 - PAGE, 2 * PAGE), (2, 2**64 - 1)])
def test_a_mapping_of_nothing_or_past_the_end_is_ignored(side: Side, start: int, length: int) -> None:
    side.apply(mmap2(1, 1, start, length))
    assert 1 not in side.table


def test_the_last_page_can_be_mapped(side: Side) -> None:
    side.apply(mmap2(1, 1, 2**64 - PAGE, PAGE))
    assert side.process(1)["ranges"] == [(2**64 - PAGE, 2**64 - 1, 0, 2)]


def test_an_exec_forgets_the_mappings_and_a_new_name_does_not(side: Side) -> None:
    side.apply(mmap2(1, 1, 0x1000, 0x1000), comm(1, 2, is_exec=False))
    before = side.process(1)
    assert len(before["ranges"]) == 1
    side.apply(comm(1, 3, is_exec=True))
    after = side.process(1)
    assert after["ranges"] == []
    assert after["known"]
    assert after["serial"] != before["serial"]


def test_fork_thread_and_exit_are_told_apart(side: Side) -> None:
    side.apply(comm(1, 1, is_exec=True), mmap2(1, 2, 0x1000, 0x1000))
    side.apply(fork(2, 1, 3), fork(1, 1, 4, tid=9))
    assert side.process(2)["ranges"] == side.process(1)["ranges"]
    assert side.process(1)["threads"] == 2
    side.apply(leave(1, 1, 5))
    assert not side.process(1)["exited"]
    side.apply(leave(1, 9, 6))
    assert side.process(1)["exited"]
    assert not side.process(2)["exited"]


def test_lost_records_are_counted(side: Side) -> None:
    side.apply(lost(5, 1), lost(7, 2))
    assert side.table.counts()["lost_events"] == 12


@pytest.mark.parametrize("pid", [0, 2**32 - 1])
def test_tasks_outside_of_our_pid_namespace_make_no_process(side: Side, pid: int) -> None:
    side.apply(fork(pid, 1, 1), mmap2(pid, 2, 0x1000, 0x1000), comm(pid, 3, is_exec=True), leave(pid, pid, 4))
    assert len(side.table) == 0


def test_records_of_other_types_are_passed_over(side: Side) -> None:
    assert side.apply(record(17, b"\0" * 32, 1), record(0, b"", 2), mmap2(1, 3, 0x1000, 0x1000)) == 3
    assert len(side.process(1)["ranges"]) == 1


def test_two_rings_are_merged_by_time(side: Side) -> None:
    # Each event of one ring depends on one of the other.
    side.rings[0].put(comm(1, 10, is_exec=True), fork(2, 1, 30), mmap2(2, 50, 0x2000, 0x1000, path=b"/b"))
    side.rings[1].put(mmap2(1, 20, 0x1000, 0x1000, path=b"/a"), comm(2, 40, is_exec=True), leave(1, 1, 60))
    side.reader.drain()
    assert side.process(1)["ranges"] == [(0x1000, 0x1FFF, 0, 2)]
    assert side.process(1)["exited"]
    assert side.process(2)["ranges"] == [(0x2000, 0x2FFF, 0, 3)]


def test_records_that_wrap_around_are_read_whole(side: Side) -> None:
    # Their length does not divide the ring's: in the end each of their parts has lain across its end.
    for i in range(500):
        side.apply(mmap2(1, i, 0x10000 * i, 0x1000, path=b"/wrapped"))
    assert [row[0] for row in side.process(1)["ranges"]] == [0x10000 * i for i in range(500)]
    assert side.table.new_executables()[0][3] == b"/wrapped"
    assert side.rings[0].tail == side.rings[0].head
    assert side.reader.malformed == 0


def test_a_record_as_large_as_the_ring_is_read(side: Side) -> None:
    side.apply(mmap2(1, 1, 0x1000, 0x1000))
    path = b"/" + b"a" * (PAGE - 72 - 8 - 2)
    data = mmap2(1, 2, 0x2000, 0x1000, path=path)
    assert len(data) == PAGE
    side.apply(data)
    assert side.table.new_executables()[-1][3] == path


@pytest.mark.parametrize("size", [0, 7, 8, 15, 0xFFFF])
def test_a_record_of_an_impossible_size_is_a_loss_and_not_the_end(side: Side, size: int) -> None:
    data = bytearray(mmap2(1, 1, 0x1000, 0x1000))
    struct.pack_into("<H", data, 6, size)
    side.apply(bytes(data), mmap2(1, 2, 0x3000, 0x1000))
    assert side.reader.malformed == 1
    assert side.table.counts()["lost_events"] == 1
    assert side.rings[0].tail == side.rings[0].head
    side.apply(mmap2(1, 3, 0x5000, 0x1000))
    assert [row[0] for row in side.process(1)["ranges"]] == [0x5000]


def test_a_head_that_is_more_than_a_ring_ahead_is_a_loss(side: Side) -> None:
    side.rings[0].put(mmap2(1, 1, 0x1000, 0x1000))
    side.rings[0].head += PAGE
    side.reader.drain()
    assert side.reader.malformed == 1
    assert len(side.table) == 0


@pytest.mark.parametrize("kind", [2, 3, 4, 7, 10])
@pytest.mark.parametrize("body", [0, 8, 16, 24, 56, 64])
def test_a_record_cut_short_is_harmless(side: Side, kind: int, body: int) -> None:
    side.apply(record(kind, b"\x01" * body, 1, 0x6000))
    assert side.reader.malformed == 0
    assert side.apply(mmap2(7, 2, 0x1000, 0x1000)) == 1
    assert len(side.process(7)["ranges"]) == 1


def test_a_name_without_an_end_stops_at_the_time(side: Side) -> None:
    body = mmap2(1, 1, 0x1000, 0x1000)[8:72] + b"/no-end!"
    side.apply(record(10, body, 0x4141414141414141))
    assert side.table.new_executables()[0][3] == b"/no-end!"


def test_a_ring_can_go_and_another_take_its_place(side: Side) -> None:
    side.rings[0].put(mmap2(1, 1, 0x1000, 0x1000))
    side.reader.remove(side.rings[0].fd)
    assert len(side.process(1)["ranges"]) == 1, "what was in it counts"
    side.rings[0].put(mmap2(1, 2, 0x3000, 0x1000))
    assert side.reader.drain() == 0
    fresh = PerfRing()
    side.reader.add(fresh.fd, fresh.size)
    fresh.put(mmap2(1, 3, 0x5000, 0x1000))
    assert side.reader.drain() == 1
    fresh.close()


def test_rings_that_cannot_be_mapped_are_refused(side: Side) -> None:
    read_end, write_end = os.pipe()
    with pytest.raises(OSError, match="side-band"):
        side.reader.add(read_end, PAGE)
    os.close(read_end)
    os.close(write_end)
    for size in (0, PAGE - 1, 3 * PAGE):
        with pytest.raises(ValueError, match="power of two"):
            side.reader.add(side.rings[0].fd, size)
    assert side.apply(mmap2(1, 1, 0x1000, 0x1000)) == 1


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=200), max_size=20), st.integers(0, 2**63))
def test_no_bytes_at_all_stop_the_reader(chunks: list[bytes], start: int) -> None:
    made = Side()
    for chunk in chunks:
        made.apply(chunk)
        assert made.rings[0].tail == made.rings[0].head
    made.rings[0].head += start
    made.reader.drain()
    made.apply(mmap2(77, 1, 0x1000, 0x1000))
    made.rings[0].close()
    assert len(made.process(77)["ranges"]) == 1
