# SPDX-License-Identifier: Apache-2.0
"""A trie without room: who gives way, who comes back, and who is resolved in user space meanwhile."""

from collections.abc import Iterator

import pytest

from tests.support.rings import World, sample

SECOND = 1_000_000_000
PREFIXES = 3
"""That each process needs here: 0x1000, 0x2000 and 0x4000, a page, two and one."""
SPAN = (0x1000, 0x4FFF)


@pytest.fixture
def world() -> Iterator[World]:
    """Room for three processes."""
    with World(capacity=3 * PREFIXES) as made:
        yield made


def start(world: World, pid: int) -> None:
    world.table.exec(pid, 1)
    world.table.map(pid, *SPAN, 0, 2, 1)


def work(world: World, pid: int, time: int) -> None:
    """Has a process sampled, and what follows written."""
    world.run(sample(pid, time, user=[(0x1234, 0)]))
    world.flush(time)


def counts(world: World) -> tuple[int, int]:
    found = world.table.counts()
    return found["evicted"], found["refused"]


def test_the_process_idle_longest_gives_way_and_comes_back(world: World) -> None:
    for pid, seconds in ((1, 12), (2, 10), (3, 11)):
        start(world, pid)
        work(world, pid, seconds * SECOND)
    start(world, 4)
    work(world, 4, 13 * SECOND)
    assert world.trie.pids() == [1, 3, 4]
    work(world, 2, 14 * SECOND)
    assert world.trie.pids() == [1, 2, 4]
    assert counts(world) == (2, 0)
    assert sum(world.take().values()) == 5, "each sample is reported, wherever it was resolved"


def test_a_sample_puts_off_giving_way(world: World) -> None:
    for pid, seconds in ((1, 10), (2, 11), (3, 12), (1, 13)):
        if world.table.process(pid) is None:
            start(world, pid)
        work(world, pid, seconds * SECOND)
    start(world, 4)
    work(world, 4, 14 * SECOND)
    assert world.trie.pids() == [1, 3, 4]


def test_who_was_sampled_within_a_second_stays_and_the_new_one_is_tried_again_later(world: World) -> None:
    for pid in (1, 2, 3, 4):
        start(world, pid)
    for pid in (1, 2, 3):
        work(world, pid, 10 * SECOND)
    work(world, 4, 11 * SECOND - 1)
    assert world.trie.pids() == [1, 2, 3]
    assert counts(world) == (0, 1)
    # For ten seconds, however often it is sampled and whatever there is room for.
    world.table.exit(3, 3, 12 * SECOND)
    work(world, 4, 21 * SECOND - 2)
    assert world.trie.pids() == [1, 2]
    work(world, 4, 21 * SECOND - 1)
    assert world.trie.pids() == [1, 2, 4]
    assert counts(world) == (0, 1)
    assert sum(world.take().values()) == 6


def test_two_processes_at_work_do_not_drive_each_other_out_in_turn() -> None:
    with World(capacity=PREFIXES) as world:
        for pid in (1, 2):
            start(world, pid)
        for turn in range(400):  # each sampled every 100 ms, for 20 s
            work(world, 1 + turn % 2, 10 * SECOND + turn * SECOND // 20)
        evicted, refused = counts(world)
        assert evicted == 0
        assert refused == 2
        assert world.trie.pids() == [1]


def test_what_can_never_fit_drives_nobody_out(world: World) -> None:
    for pid in (1, 2, 3):
        start(world, pid)
        work(world, pid, 10 * SECOND)
    start(world, 4)
    for i in range(10):
        world.table.map(4, 0x10000 + i * 0x2000, 0x10FFF + i * 0x2000, 0, 2, 1)
    work(world, 4, 100 * SECOND)
    assert world.trie.pids() == [1, 2, 3]
    assert counts(world) == (0, 1)


def test_one_that_grows_has_others_give_way_but_not_itself(world: World) -> None:
    for pid in (1, 2, 3):
        start(world, pid)
        work(world, pid, (10 + pid) * SECOND)
    world.table.map(1, 0x9000, 0x9FFF, 0, 2, 20 * SECOND)
    world.flush(20 * SECOND)
    assert world.trie.pids() == [1, 3]
    assert len(world.trie.keys(1)) == PREFIXES + 1
    assert world.trie.counts()["prefixes"] == 2 * PREFIXES + 1


def test_a_rescan_of_one_that_does_not_fit_leaves_nothing_stale(world: World) -> None:
    for pid in (1, 2, 3):
        start(world, pid)
        work(world, pid, 10 * SECOND)
    world.table.scanned(1, 1, [(0x20000, 0x2FFFF, 0, 2), (0x41000, 0x44FFF, 0, 2)], 10 * SECOND + 5)
    assert world.trie.lookup(1, SPAN[0]) == 0
    world.flush(10 * SECOND + 6)
    assert world.trie.pids() == [2, 3]
    assert counts(world) == (0, 1)


def test_the_map_never_holds_more_than_it_can(world: World) -> None:
    kernel: set[bytes] = set()
    for turn in range(300):
        pid = 1 + turn * 7 % 40
        time = (10 + turn) * SECOND // 2
        if world.table.process(pid) is None:
            start(world, pid)
        world.run(sample(pid, time, user=[(0x1234, 0)]))
        world.table.publish(time)
        deletes, keys, _ = world.trie.pending()
        kernel -= {deletes[at : at + 16] for at in range(0, len(deletes), 16)}
        kernel |= {keys[at : at + 16] for at in range(0, len(keys), 16)}
        world.trie.flushed(time, len(keys) // 16)
        assert len(kernel) == world.trie.counts()["prefixes"] <= 3 * PREFIXES
    assert counts(world)[0] > 100
