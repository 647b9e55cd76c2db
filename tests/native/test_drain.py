# SPDX-License-Identifier: Apache-2.0
"""From hand-made sample and event rings to counts."""

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof._native.drain import SampleReader
from pyprof.bpf.library import end_texts
from tests.support.rings import (
    BUSY,
    DISCARD,
    KERNEL,
    NATIVE,
    PAGE,
    UNKNOWN,
    World,
    comm,
    fork,
    leave,
    mmap2,
    sample,
)

COMPLETE, FRAME_POINTER, UNREADABLE, NO_MAPPING, TOO_DEEP, COMPAT, KERNEL_TOO_DEEP, GONE = range(8)
STALE = end_texts().index("mapping changed before the kernel side knew")
START = 0x7F0000001000
OFFSET = 0x5000
FILE = 2  # number of the first executable


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made


def known(world: World, pid: int = 1, time: int = 1) -> None:
    """A process with one file mapped at START from OFFSET on."""
    world.events[0].put(comm(pid, time, is_exec=True), mmap2(pid, time + 1, START, 0x2000, offset=OFFSET))


def published(world: World, pid: int = 1) -> int:
    """The same, in the kernel by time 10; the mapping's number."""
    known(world, pid)
    world.run(sample(pid, 5, kernel=[0xFF]))
    world.flush(10)
    world.take()
    (number,) = world.trie.ids(pid)
    return number


def only(world: World) -> tuple[tuple[int, int, int], ...]:
    """The frames of the only sample since the last look."""
    ((key, count),) = world.take().items()
    assert count == 1
    return key[3]


def counts(world: World) -> dict[str, int]:
    found = world.reader.counts()
    del found["first_sample"]
    return {name: count for name, count in found.items() if count}


def ends(world: World) -> dict[int, int]:
    return {end: count for end, count in enumerate(world.reader.ends()) if count}


def test_a_sample_as_bytes() -> None:
    with World("thread") as world:
        world.events[0].put(comm(7, 1, is_exec=True), mmap2(7, 2, 0x401000, 0x1000, offset=0x1000))
        world.run(
            bytes.fromhex(
                "01000000 00000000"  # a sample, without a slice
                "6300000000000000"  # time 99
                "0a00000000000000"  # start time
                "07000000 08000000"  # pid 7, tid 8
                "0200 0100"  # 2 user frames, 1 kernel frame
                "00 01 00 00"  # complete, in the kernel, no kernel thread
                "03000000"  # CPU 3
                "02000000 01000000 00000000"  # after 2 execs; 1 executable page
                "6e616d6500000000 0000000000000000"  # "name"
                "74687265616400000000000000000000"  # "thread"
                "3412400000000000 00000000 01000000"  # pc 0x401234, exact
                "7816400000000000 00000000 00000000"  # pc 0x401678
                "10000081ffffffff"  # kernel address
            )
        )
        assert world.take() == {
            (
                7,
                8,
                b"name",
                ((KERNEL, 0, 0xFFFFFFFF81000010), (NATIVE, FILE, 0x1234), (NATIVE, FILE, 0x1677)),
            ): 1
        }
        assert world.reader.counts() == {
            "reported": 1, "filtered": 0, "no_memory": 0, "malformed": 0, "malformed_slices": 0, "walked": 0,
            "first_sample": 99,
        }  # fmt: skip
        assert ends(world) == {COMPLETE: 1}


def test_callers_are_looked_up_by_return_address_and_reported_one_byte_before(world: World) -> None:
    known(world)
    # The byte behind a mapping may be a return address; the leaf there is no caller.
    world.run(sample(1, 9, user=[(START, 0), (START + 0x2000, 0)], kernel=[0x100, 0x200]))
    assert only(world) == (
        (KERNEL, 0, 0x100), (KERNEL, 0, 0x1FF), (NATIVE, FILE, OFFSET), (NATIVE, FILE, OFFSET + 0x1FFF),
    )  # fmt: skip


def test_a_caller_that_a_signal_interrupted_is_looked_up_as_it_is(world: World) -> None:
    known(world)
    data = bytearray(sample(1, 9, user=[(START + 9, 0), (START, 0)]))
    data[88 + 16 + 12] = 1  # flags of the second frame
    world.run(bytes(data))
    assert only(world) == ((NATIVE, FILE, OFFSET + 9), (NATIVE, FILE, OFFSET))


def test_equal_samples_are_counted_and_others_kept_apart(world: World) -> None:
    known(world)
    known(world, 2)
    a, b = sample(1, 9, user=[(START, 0)]), sample(2, 9, user=[(START, 0)], name=b"other")
    world.run(a, a, b)
    assert sorted(world.take().values()) == [1, 2]


@pytest.mark.parametrize(("by", "rows"), [("none", 1), ("process", 2), ("thread", 3)])
def test_samples_are_kept_apart_as_asked(by: str, rows: int) -> None:
    with World(by) as world:
        known(world)
        known(world, 2)
        for pid, tid in ((1, 1), (1, 9), (2, 2)):
            world.run(sample(pid, 9, tid=tid, user=[(START, 0)]))
        assert len(world.take()) == rows


def test_a_mapping_number_is_taken_until_the_mapping_is_retired(world: World) -> None:
    number = published(world)
    # Another file over the same addresses at time 20.
    world.events[0].put(mmap2(1, 20, START, 0x2000, offset=0, path=b"/other"))
    world.run(sample(1, 19, user=[(START + 4, number)]))
    assert only(world) == ((NATIVE, FILE, OFFSET + 4),)
    world.run(sample(1, 20, user=[(START + 4, number)]))
    assert only(world) == ((NATIVE, FILE + 1, 4),)
    # A sample that comes late is still of its own time: the number outlives the mapping.
    world.run(sample(1, 19, user=[(START + 4, number)]))
    assert only(world) == ((NATIVE, FILE, OFFSET + 4),)


def test_callers_that_another_files_rows_led_to_are_not_reported(world: World) -> None:
    number = published(world)
    world.events[0].put(mmap2(1, 20, START, 0x2000, offset=0, path=b"/other"))
    world.run(sample(1, 20, user=[(START + 4, number), (START + 9, number)]))
    assert only(world) == ((NATIVE, FILE + 1, 4),)
    assert ends(world)[STALE] == 1


def test_callers_are_reported_where_the_same_file_is_mapped_the_same_way_again(world: World) -> None:
    number = published(world)
    # The first page of the mapping, alone: what is behind it is cut off, and mapped by an entry of its own.
    world.events[0].put(mmap2(1, 20, START + 0x1000, 0x1000, offset=0x9000, path=b"/other"))
    world.run(sample(1, 20, user=[(START + 4, number), (START + 9, number)]))
    assert only(world) == ((NATIVE, FILE, OFFSET + 4), (NATIVE, FILE, OFFSET + 8))


def test_a_mapping_number_of_another_process_is_not_taken(world: World) -> None:
    number = published(world)
    known(world, 2)
    world.run(sample(2, 30, user=[(START + 4, number + 1000), (0x1234, number)]))
    assert only(world) == ((NATIVE, FILE, OFFSET + 4),)
    assert ends(world)[NO_MAPPING] == 1


def test_what_was_mapped_after_the_sample_is_not_what_ran(world: World) -> None:
    known(world)
    world.events[0].put(mmap2(1, 50, 0x10000, 0x1000, path=b"/later"))
    world.run()
    world.run(sample(1, 40, user=[(0x10000, 0)]))
    assert only(world) == ((UNKNOWN, 0, 0),)


def test_events_up_to_a_samples_time_are_applied_before_it_and_later_ones_after(world: World) -> None:
    known(world)
    world.events[0].put(mmap2(1, 20, START, 0x2000, path=b"/b"), mmap2(1, 30, START, 0x2000, path=b"/c"))
    world.run(*(sample(1, time, user=[(START, 0)]) for time in (19, 20, 29, 30)))
    executables = [frames[0][1] for _, _, _, frames in world.take()]
    assert sorted(executables) == [FILE, FILE + 1, FILE + 2]
    assert counts(world) == {"reported": 4}


def test_an_address_in_no_mapping_ends_the_stack_and_asks_for_the_maps(world: World) -> None:
    known(world)
    world.run(sample(1, 9, user=[(START, 0), (0x666, 0), (START, 0)], end=FRAME_POINTER))
    assert only(world) == ((NATIVE, FILE, OFFSET),)
    assert ends(world) == {NO_MAPPING: 1}
    assert world.table.unknown() == [1]
    world.table.scanned(1, 1, [(START, START + 0x1FFF, OFFSET, FILE)], 10)
    world.run(sample(1, 11, user=[(START, 0), (0x666, 0)]))
    assert world.table.unknown() == [], "asked again only after a while"


def test_where_a_stack_ends_is_counted_with_it(world: World) -> None:
    known(world)
    here = [(START, 0)]
    world.run(
        *(sample(1, 9, user=here, end=end) for end in (COMPLETE, FRAME_POINTER, COMPLETE, UNREADABLE)),
        sample(1, 9, user=[*here, (0x666, 0)], end=COMPLETE),
    )
    assert world.aggregator.sizes() == (1, 1, 4)
    assert world.take() == {(1, 0, b"name", ((NATIVE, FILE, OFFSET),)): 5}
    assert dict(world.taken_ends) == {COMPLETE: 2, FRAME_POINTER: 1, UNREADABLE: 1, NO_MAPPING: 1}
    assert ends(world) == dict(world.taken_ends)


def test_anonymous_code_is_unknown_code(world: World) -> None:
    known(world)
    world.events[0].put(mmap2(1, 5, 0x10000, 0x1000, path=b"//anon"))
    world.run(sample(1, 9, user=[(0x10010, 0), (START + 1, 0)]))
    assert only(world) == ((UNKNOWN, 1, 0), (NATIVE, FILE, OFFSET))
    world.flush(10)
    anonymous = world.trie.lookup(1, 0x10010)
    world.run(sample(1, 11, user=[(0x10010, anonymous)]))
    assert only(world) == ((UNKNOWN, 1, 0),)


def test_kernel_threads_need_no_mappings(world: World) -> None:
    world.run(sample(2, 9, kernel=[1, 2], kernel_thread=True))
    assert only(world) == ((KERNEL, 0, 1), (KERNEL, 0, 1))
    assert world.table.unknown() == []
    assert not world.table.publish()


def test_a_full_kernel_stack_is_marked(world: World) -> None:
    world.run(sample(2, 9, kernel=list(range(1000, 1127)), kernel_thread=True))
    assert len(only(world)) == 127
    assert ends(world) == {KERNEL_TOO_DEEP: 1}


def test_the_deepest_sample_is_reported_whole(world: World) -> None:
    known(world)
    world.run(
        sample(1, 9, user=[(START + i, 0) for i in range(1024)], kernel=list(range(1, 128)), end=TOO_DEEP)
    )
    assert len(only(world)) == 1024 + 127


def test_a_sample_of_an_unknown_process_waits_for_its_mappings(world: World) -> None:
    world.run(sample(5, 9, user=[(START, 0)]), sample(5, 10, user=[(START, 0)]))
    assert world.take() == {}
    assert counts(world) == {}
    assert world.table.unknown() == [5]
    world.table.scanned(5, 1, [(START, START + 0xFFF, OFFSET, 9)], 11)
    assert world.reader.replay() == 2
    assert list(world.take().values()) == [2]
    assert counts(world) == {"reported": 2}
    assert world.reader.replay() == 0


def test_a_sample_of_a_process_that_cannot_be_found_is_reported_as_such(world: World) -> None:
    world.run(sample(5, 9, user=[(START, 0)], end=UNREADABLE))
    world.table.scanned(5, 1, None, 11)
    world.reader.replay()
    assert only(world) == ((UNKNOWN, 0, 0),)
    assert ends(world) == {GONE: 1}


def test_a_sample_of_a_process_that_exited_meanwhile_is_its_own(world: World) -> None:
    known(world)
    world.events[0].put(leave(1, 1, 20))
    world.run(sample(1, 19, user=[(START, 0)]))
    world.run(sample(1, 21, user=[(START, 0)]))
    assert list(world.take().values()) == [2]
    assert not world.table.publish()


def test_a_sample_with_another_start_time_is_of_another_process(world: World) -> None:
    known(world)
    world.run(sample(1, 9, start_time=100, user=[(START, 0)]))
    world.take()
    serial = world.table.process(1)
    world.run(sample(1, 20, start_time=200, user=[(START, 0)]))
    assert world.take() == {}, "its mappings are not known"
    assert world.table.unknown() == [1]
    after = world.table.process(1)
    assert serial is not None
    assert after is not None
    assert after["serial"] != serial["serial"]


def test_a_waiting_sample_does_not_take_the_place_of_the_next_process_of_its_pid(world: World) -> None:
    # The old process was never known; the new one is known from its fork on, and a target.
    known(world)
    world.run(sample(5, 3, start_time=100, user=[(START, 0)], name=b"old"))
    world.table.set_target(1)
    world.events[0].put(fork(5, 1, 10))
    world.run(sample(5, 11, start_time=200, user=[(START, 0)], name=b"new"))
    before = world.table.process(5)
    assert world.reader.replay() == 1
    assert world.table.process(5) == before
    assert before is not None
    assert before["target"]
    assert sorted((key[2], key[3]) for key in world.take()) == [
        (b"new", ((NATIVE, FILE, OFFSET),)), (b"old", ((UNKNOWN, 0, 0),)),
    ]  # fmt: skip
    assert counts(world) == {"reported": 2}


def test_a_waiting_sample_is_not_the_next_processs_though_that_was_not_sampled(world: World) -> None:
    known(world)
    world.run(sample(5, 3, start_time=100, user=[(START, 0)]))
    world.events[0].put(fork(5, 1, 10))
    world.run()
    world.reader.replay()
    assert only(world) == ((UNKNOWN, 0, 0),)
    world.run(sample(5, 11, start_time=200, user=[(START, 0)]))
    assert only(world) == ((NATIVE, FILE, OFFSET),)


def test_only_samples_of_targets_count_once_there_are_some(world: World) -> None:
    known(world)
    known(world, 2)
    world.run()
    world.table.set_only_targets()
    world.table.set_target(2)
    world.events[0].put(fork(3, 2, 5))
    world.run(*(sample(pid, 9, user=[(START, 0)]) for pid in (1, 2, 3, 77)))
    assert sorted(key[0] for key in world.take()) == [2, 3]
    assert counts(world) == {"reported": 2, "filtered": 2}
    assert world.table.unknown() == [], "others are not looked up"
    world.flush(10)
    states = {pid: world.table.process(pid) for pid in (1, 2, 3, 77)}
    assert [pid for pid, state in states.items() if state and state["hidden"]] == [1, 77]


def test_more_samples_than_may_wait_are_reported_as_they_are(world: World) -> None:
    frames = [(START + i, 0) for i in range(1000)]
    for i in range(1100):  # 16 KiB each; 16 MiB may wait
        world.run(sample(5, i + 1, user=frames))
    waiting = world.reader.replay()
    assert 1000 < waiting < 1050
    assert counts(world) == {"reported": 1100}


def test_a_record_that_is_being_written_stops_the_reader_until_it_is_done(world: World) -> None:
    known(world)
    at = world.samples.put(sample(1, 9, user=[(START, 0)]), BUSY)
    world.run(sample(1, 10, user=[(START, 0)]))
    assert world.take() == {}
    assert world.samples.consumer == 0
    world.samples.store(at, struct.pack("<I", len(sample(1, 9, user=[(START, 0)]))))
    world.run()
    assert list(world.take().values()) == [2]
    assert world.samples.consumer == world.samples.producer


def test_a_discarded_record_is_passed_over_and_has_no_time(world: World) -> None:
    known(world)
    world.events[0].put(mmap2(1, 20, START, 0x2000, path=b"/b"))
    world.samples.put(b"\xff" * 80, DISCARD)
    world.run(sample(1, 19, user=[(START, 0)]))
    assert only(world) == ((NATIVE, FILE, OFFSET),)
    assert counts(world) == {"reported": 1}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 79,
        sample(1, 9, user=[(START, 0)])[:-1],
        sample(1, 9, kernel=[1])[:-1],
        sample(1, 9, end=len(end_texts())),
        sample(1, 9, end=255),
        sample(1, 9)[:32] + b"\xff\xff" + sample(1, 9)[34:] + b"\0" * 20_000,  # 65535 user frames
        sample(1, 9)[:34] + b"\x80\x00" + sample(1, 9)[36:] + b"\0" * 20_000,  # 128 kernel frames
        b"\0" + sample(1, 9)[1:],  # no kind of record
        b"\3" + sample(1, 9)[1:],
    ],
)
def test_a_malformed_record_is_counted_and_the_next_one_read(world: World, data: bytes) -> None:
    known(world)
    world.run(data, sample(1, 10, user=[(START, 0)]))
    assert only(world) == ((NATIVE, FILE, OFFSET),)
    assert counts(world) == {"reported": 1, "malformed": 1}


@pytest.mark.parametrize("length", [96, 4096, 0x3FFFFFFF])
def test_a_length_past_the_end_is_counted_and_nothing_behind_it_read(world: World, length: int) -> None:
    known(world)
    world.samples.put(sample(1, 9), length=length)
    world.run()
    assert world.samples.consumer == world.samples.producer
    assert counts(world) == {"malformed": 1}
    world.run(sample(1, 10, user=[(START, 0)]))
    assert only(world) == ((NATIVE, FILE, OFFSET),)


def test_a_producer_more_than_a_ring_ahead_is_survived(world: World) -> None:
    world.samples.producer = 5 * world.samples.size + 8
    world.run()
    assert world.samples.consumer == world.samples.producer
    known(world)
    world.run(sample(1, 10, user=[(START, 0)]))
    assert only(world) == ((NATIVE, FILE, OFFSET),)


def test_records_that_wrap_around_are_read_whole() -> None:
    with World(ring_size=PAGE) as world:
        known(world)
        for i in range(300):
            world.run(sample(1, 9 + i, user=[(START + j, 0) for j in range(i % 13)], kernel=[7]))
        assert counts(world) == {"reported": 300}
        assert len(world.take()) == 13


RECORDS = st.binary(max_size=120) | st.binary(max_size=9).map(
    lambda tail: sample(1, 9, user=[(START, 0)]) + tail
)
LENGTHS = st.none() | st.integers(0, 2**30 - 1) | st.integers(0, 200)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0, 0, BUSY, DISCARD]), RECORDS, LENGTHS), max_size=20))
def test_no_bytes_at_all_stop_the_reader(records: list[tuple[int, bytes, int | None]]) -> None:
    with World() as world:
        known(world)
        for flags, data, length in records:
            world.samples.put(data, flags, length)
        world.run()
        found = counts(world)
        found.pop("reported", None)
        assert set(found) <= {"malformed", "malformed_slices"}
        if all(flags == 0 and length is None for flags, _, length in records):
            world.reader.replay()
            assert sum(counts(world).values()) == len(records)


def test_accounts_add_up_over_samples_of_every_kind(world: World) -> None:
    known(world)
    world.run()
    world.table.set_only_targets()
    world.table.set_target(1)
    samples = [
        sample(1, 9, user=[(START, 0)]), sample(2, 9), sample(1, 9)[:-1], sample(3, 9, kernel_thread=True),
        sample(1, 10, user=[(0x666, 0)]), b"",
    ]  # fmt: skip
    for data in samples * 50:
        world.samples.put(data)
        world.reader.run()
    world.reader.replay()
    assert counts(world) == {"reported": 100, "filtered": 100, "malformed": 100}
    assert sum(world.reader.ends()) == 100


@pytest.mark.parametrize("size", [0, PAGE - 1, 3 * PAGE])
def test_a_size_that_no_ring_has_is_refused(world: World, size: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        SampleReader(
            world.samples.fd, size, world.table, world.sideband, world.aggregator, world.arena, "none"
        )


def test_a_file_that_cannot_be_mapped_is_refused(world: World) -> None:
    with pytest.raises(OSError, match="cannot map"):
        SampleReader(-1, PAGE, world.table, world.sideband, world.aggregator, world.arena, "none")


def test_an_unknown_way_to_keep_samples_apart_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match="apart by cpu"):
        SampleReader(
            world.samples.fd, PAGE, world.table, world.sideband, world.aggregator, world.arena, "cpu"
        )
