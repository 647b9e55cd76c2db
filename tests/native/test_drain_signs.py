# SPDX-License-Identifier: Apache-2.0
"""Samples that show that a process is not what events told: lost records, and what no event tells of."""

from collections.abc import Iterator

import pytest

from tests.support.rings import NATIVE, PAGE, UNKNOWN, World, comm, leave, mmap2, sample

FIRST, SECOND, SMALL, NEW = 0x400000, 0x500000, 0x600000, 0x700000
LAST = {FIRST: FIRST + 8 * PAGE - 1, SECOND: SECOND + 8 * PAGE - 1, SMALL: SMALL + PAGE - 1}
A, B, C = 2, 3, 4
"""Numbers of the files at FIRST, SECOND and SMALL."""
Frames = tuple[tuple[int, int, int], ...]
NOTHING: Frames = ((UNKNOWN, 0, 0),)


@pytest.fixture
def world() -> Iterator[World]:
    """Process 1 with two files of eight pages and one of a page."""
    with World() as made:
        made.events[0].put(
            comm(1, 1, is_exec=True),
            mmap2(1, 2, FIRST, 8 * PAGE, path=b"/a", inode=(1, 1, 1)),
            mmap2(1, 3, SECOND, 8 * PAGE, path=b"/b", inode=(1, 1, 2)),
            mmap2(1, 4, SMALL, PAGE, path=b"/c", inode=(1, 1, 3)),
        )
        yield made


def frames(world: World) -> list[Frames]:
    return sorted(key[3] for key in world.take())


def at(address: int, time: int, pages: int = 17, exec_id: int = 0) -> bytes:
    return sample(1, time, user=[(address, 0)], exec_pages=pages, exec_id=exec_id)


def scan(world: World, time: int, *starts: int, uncounted: int = 0) -> None:
    """What /proc says: those of the three that are still there."""
    numbers = {FIRST: A, SECOND: B, SMALL: C}
    world.table.scanned(1, 1, [(start, LAST[start], 0, numbers[start]) for start in starts], time, uncounted)


def test_what_the_kernel_counts_as_well_is_not_doubted(world: World) -> None:
    world.run(at(FIRST, 10), at(SMALL, 11))
    assert frames(world) == [((NATIVE, A, 0),), ((NATIVE, C, 0),)]
    assert world.table.unknown() == []


def test_fewer_pages_than_known_have_the_maps_read_and_no_other_code_wait(world: World) -> None:
    world.run(at(FIRST, 10, pages=16))
    assert frames(world) == [((NATIVE, A, 0),)]
    assert world.table.unknown() == [1]
    scan(world, 11, FIRST, SECOND)
    world.run(at(FIRST, 12, pages=16))
    assert world.table.unknown() == [], "now it is as the kernel counts"


def test_code_in_what_may_be_gone_waits_for_the_maps(world: World) -> None:
    world.run(at(SMALL, 10, pages=16))
    assert frames(world) == []
    assert world.table.unknown() == [1]
    scan(world, 11, FIRST, SMALL)  # it was SECOND of which a piece is gone
    world.reader.replay()
    assert frames(world) == [((NATIVE, C, 0),)]


def test_code_where_another_file_was_moved_to_is_not_named_after_what_was_there(world: World) -> None:
    world.run(at(SMALL, 10, pages=16))
    world.table.scanned(1, 1, [(FIRST, LAST[FIRST], 0, A), (SMALL, LAST[SMALL], 0, B)], 12)
    world.run(at(SMALL, 11, pages=9), at(SMALL, 13, pages=9))
    world.reader.replay()
    assert frames(world) == [((NATIVE, B, 0),), NOTHING]


def test_code_where_nothing_is_known_waits_for_the_maps(world: World) -> None:
    world.run(at(NEW, 10))
    assert frames(world) == []
    assert world.table.unknown() == [1]
    world.table.scanned(1, 1, [(NEW, NEW + PAGE - 1, 0, C)], 11)
    world.run(at(NEW, 12, pages=1))
    world.reader.replay()
    assert frames(world) == [((NATIVE, C, 0),), NOTHING]


def test_what_was_moved_twice_while_samples_waited_is_not_taken_for_what_was_there_first(
    world: World,
) -> None:
    world.run(at(NEW, 10))
    moved = [(FIRST, LAST[FIRST], 0, A), (NEW, NEW + PAGE - 1, 0, C)]
    world.table.scanned(1, 1, moved, 11)
    world.reader.replay()
    world.take()
    world.run(at(NEW, 20, pages=8))
    world.table.scanned(1, 1, moved, 21)
    world.reader.replay()
    assert frames(world) == [NOTHING]


def test_samples_in_doubt_of_a_process_that_ended_are_not_named(world: World) -> None:
    world.run(at(SMALL, 10, pages=16))
    world.events[0].put(leave(1, 1, 11))
    world.run()
    world.table.scanned(1, 1, None, 12)
    world.reader.replay()
    assert frames(world) == [NOTHING]


def test_memory_that_can_be_written_is_not_counted(world: World) -> None:
    world.run()
    world.table.scanned(1, 1, [(FIRST, LAST[FIRST], 0, A), (NEW, NEW + 4 * PAGE - 1, 0, 1)], 5, uncounted=4)
    world.run(at(FIRST, 10, pages=8))
    assert world.table.unknown() == []


def test_a_count_that_stays_another_is_taken_as_it_is_after_some_looks(world: World) -> None:
    asked = 0
    for time in range(10, 60, 2):
        world.run(at(FIRST, time, pages=99))
        for _ in world.table.unknown():
            asked += 1
            scan(world, time + 1, FIRST, SECOND, SMALL)
    assert asked == 3
    assert world.table.unknown() == []


def test_exec_whose_records_were_lost_is_another_program(world: World) -> None:
    world.run(at(FIRST, 10, exec_id=5))
    before = world.table.process(1)
    world.take()
    world.run(at(FIRST, 11, pages=8, exec_id=6))
    after = world.table.process(1)
    assert before is not None
    assert after is not None
    assert after["serial"] != before["serial"]
    assert after["ranges"] == []
    assert frames(world) == []
    assert world.table.unknown() == [1]
    world.table.scanned(1, 1, [(FIRST, LAST[FIRST], 0, B)], 12)
    world.reader.replay()
    assert frames(world) == [((NATIVE, B, 0),)]


def test_exec_that_was_told_is_not_taken_for_a_second_one(world: World) -> None:
    world.run(at(FIRST, 10, exec_id=5))
    world.events[0].put(comm(1, 11, is_exec=True), mmap2(1, 12, FIRST, PAGE))
    world.run(at(FIRST, 13, pages=1, exec_id=6))
    assert world.table.unknown() == []
    assert len(frames(world)) == 2


def test_sample_that_waited_until_after_an_exec_is_not_the_new_programs() -> None:
    with World() as world:
        world.run(sample(1, 5, user=[(FIRST, 0)], exec_id=5, name=b"old"))
        world.events[0].put(comm(1, 6, is_exec=True), mmap2(1, 7, FIRST, PAGE))
        world.run(sample(1, 8, user=[(FIRST, 0)], exec_id=6, exec_pages=1, name=b"new"))
        world.reader.replay()
        assert {key[2]: key[3] for key in world.take()} == {b"old": NOTHING, b"new": ((NATIVE, A, 0),)}
