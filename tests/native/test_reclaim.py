# SPDX-License-Identifier: Apache-2.0
"""Executables that no owner names any more are found, and only those."""

from collections.abc import Iterator

import pytest

from pyprof._native.reclaim import Reclaimer
from tests.support.rings import World, comm, fork, leave, mmap2, sample, stack_slice

START, LENGTH = 0x401000, 0x2000
NEVER = 2**64 - 1


class Owners(World):
    """A world with a reclaimer; files are told apart by inode number."""

    def __init__(self) -> None:
        super().__init__()
        self.reclaimer = Reclaimer(self.table, self.reader)
        self.clock = 1000

    def map_file(self, pid: int, inode: int, start: int = START) -> int:
        """Maps a file; its number."""
        self.clock += 1
        self.events[0].put(mmap2(pid, self.clock, start, LENGTH, inode=(8, 1, inode), path=b"/%d" % inode))
        self.run()
        state = self.table.process(pid)
        assert state is not None
        return next(number for first, _, _, number in state["ranges"] if first == start)

    def start(self, pid: int) -> None:
        self.clock += 1
        self.events[0].put(comm(pid, self.clock, is_exec=True))

    def end(self, pid: int) -> None:
        self.clock += 1
        self.events[0].put(leave(pid, pid, self.clock))
        self.run()
        self.table.forget_exited(NEVER)

    def end_and_write(self, pid: int) -> None:
        """Ends a process that is in the kernel, and lets the kernel have that: nothing is on its way then."""
        self.clock += 3
        self.flush(self.clock - 1)
        self.end(pid)
        self.flush(self.clock + 1)
        self.trie.reclaim(NEVER)

    def gone(self) -> None:
        """Says that all is sent, and forgets processes that ended."""
        self.sent(self.clock)
        self.table.forget_exited(NEVER)

    def send(self) -> None:
        """Takes what was counted, to be sent."""
        self.take()
        self.table.take_counted()

    def unused(self) -> list[int]:
        self.clock += 1
        self.reclaimer.sweep(self.clock)
        return [number for number, _, _ in self.reclaimer.unused()]

    def fresh(self) -> list[tuple[int, int]]:
        """(number, inode) of what Python did not know yet."""
        return [(number, inode) for number, _, inode, *_ in self.table.new_executables()]


@pytest.fixture
def world() -> Iterator[Owners]:
    with Owners() as made:
        yield made


def test_file_is_unused_when_its_only_process_is_forgotten(world: Owners) -> None:
    world.start(1)
    number = world.map_file(1, 77)
    assert world.unused() == []
    world.end(1)
    assert world.unused() == [number]


def test_file_is_in_use_while_one_of_two_processes_maps_it(world: Owners) -> None:
    world.start(1)
    number = world.map_file(1, 77)
    world.events[0].put(fork(2, 1, world.clock))
    world.end(1)
    assert world.unused() == []
    world.end(2)
    assert world.unused() == [number]


def test_file_that_is_mapped_over_is_unused(world: Owners) -> None:
    world.start(1)
    world.map_file(1, 70, START + LENGTH)
    old = world.map_file(1, 77)
    new = world.map_file(1, 78)
    assert world.unused() == [old]
    assert new != old


def test_entry_on_its_way_out_of_the_kernel_keeps_its_file(world: Owners) -> None:
    world.start(1)
    number = world.map_file(1, 77)
    world.run(sample(1, world.clock + 1, kernel=[1]))
    world.flush(world.clock + 2)
    world.clock += 3
    world.end(1)
    assert world.unused() == []  # a sample that names the mapping may be on its way
    world.flush(world.clock + 1)
    world.trie.reclaim(NEVER)
    world.gone()
    assert world.unused() == [number]


def test_counted_frame_keeps_its_file_until_it_is_sent(world: Owners) -> None:
    world.start(1)
    number = world.map_file(1, 77)
    world.run(sample(1, world.clock + 1, user=[(START, 0)]))
    world.end_and_write(1)
    assert world.unused() == []
    world.send()
    assert world.unused() == []  # it is being sent
    world.gone()
    assert world.unused() == [number]


def test_program_is_its_processs_though_it_is_not_mapped_any_more(world: Owners) -> None:
    world.start(1)
    number = world.map_file(1, 77)
    world.map_file(1, 78)
    assert world.unused() == []
    world.start(1)
    world.run()
    assert number in world.unused()


def test_frames_of_the_next_interval_keep_their_files_when_the_last_one_is_sent(world: Owners) -> None:
    world.start(1)
    first, second = world.map_file(1, 77), world.map_file(1, 78, START + LENGTH)
    world.run(sample(1, world.clock + 1, user=[(START, 0)]))
    world.send()
    world.run(sample(1, world.clock + 2, user=[(START + LENGTH, 0)]))
    world.end_and_write(1)
    assert world.unused() == []
    world.start(1)  # its program is another one now
    world.run()
    world.table.sent(world.clock)
    world.table.take_counted()
    assert first not in world.unused()  # the row of its process names it
    assert second not in world.unused()
    world.table.sent(world.clock)
    assert world.unused() == [first, second]


def test_waiting_sample_keeps_its_file(world: Owners) -> None:
    world.start(1)
    number = world.map_file(1, 77)
    stack = stack_slice(1, 0x7000, bytes(64), pc=START, sp=0x7000)
    # Its rows are not there: the sample waits for them.
    world.run(stack, sample(1, world.clock + 1, user=[(START, 0)], end=11, slice_number=1))
    assert world.reader.waiting
    world.end_and_write(1)
    assert world.unused() == []
    world.reader.replay()
    assert world.unused() == []  # counted now
    world.send()
    world.table.sent(world.clock)
    assert world.unused() == [number]


def test_file_that_is_mapped_again_is_not_released(world: Owners) -> None:
    world.start(1)
    number = world.map_file(1, 77)
    world.end(1)
    assert world.unused() == [number]
    world.start(2)
    assert world.map_file(2, 77) == number
    assert world.reclaimer.unused() == []
    assert not world.reclaimer.release(number)
    assert world.unused() == []


def test_released_number_stands_for_the_next_file(world: Owners) -> None:
    world.start(1)
    number = world.map_file(1, 77)
    assert world.fresh() == [(number, 77)]
    world.end(1)
    assert world.unused() == [number]
    assert world.reclaimer.release(number)
    assert world.table.counts()["executables"] == 0
    world.start(1)
    assert world.map_file(1, 78) == number
    assert world.fresh() == [(number, 78)]
    assert world.unused() == []


def test_time_of_disuse_is_that_of_the_first_look_that_found_it(world: Owners) -> None:
    world.start(1)
    number = world.map_file(1, 77)
    world.end(1)
    world.reclaimer.sweep(5000)
    world.reclaimer.sweep(6000)
    assert world.reclaimer.unused() == [(number, 5000, True)]


def test_table_does_not_grow_with_files_that_come_and_go(world: Owners) -> None:
    for inode in range(1, 300):
        world.start(1)
        world.map_file(1, inode)
        world.end(1)
        world.fresh()
        (number,) = world.unused()
        assert world.reclaimer.release(number)
    assert number == 2
    assert world.table.counts()["executables"] == 0
