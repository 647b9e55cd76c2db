# SPDX-License-Identifier: Apache-2.0
"""The process table against a naive model: any order of events, scans and samples."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.support.rings import World, sample

if TYPE_CHECKING:
    from pyprof._native.processes import ProcessState

PAGE = 0x1000
PIDS = st.integers(1, 4)
SPANS = st.tuples(st.integers(0, 11), st.integers(0, 11)).map(lambda ends: (min(ends), max(ends)))
"""First and last page of a mapping."""

Pages = dict[int, tuple[int, int]]
"""Page -> (where the file's offset 0 lies, executable)."""


@dataclass
class Model:
    threads: int = 1
    leader_exited: bool = False
    exited: int = 0
    pages: Pages = field(default_factory=dict)
    known: bool = False
    target: str = ""
    published: bool = False
    sending: str = ""
    sent_at: int = 0
    start_time: int = 0


def pages_of(spans: list[tuple[int, int, int, int]]) -> Pages:
    """Of (start, last, offset, executable) ranges, which must be in order and disjoint."""
    pages: Pages = {}
    before = -1
    for start, last, offset, executable in spans:
        assert before < start <= last
        before = last
        assert start % PAGE == 0
        assert (last + 1) % PAGE == 0
        pages.update(
            dict.fromkeys(range(start // PAGE, last // PAGE + 1), ((start - offset) % 2**64, executable))
        )
    return pages


def mapping(span: tuple[int, int], offset: int, executable: int) -> tuple[int, int, int, int]:
    return span[0] * PAGE, (span[1] + 1) * PAGE - 1, offset * PAGE, executable


class TableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.table = self.world.table
        self.model: dict[int, Model] = {}
        self.serials: dict[int, int] = {}
        self.all_serials: set[int] = set()
        self.clock = 1

    def teardown(self) -> None:
        self.world.__exit__(None, None, None)

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def fresh(self, pid: int, **fields: object) -> None:
        """The pid is a new process in the model, and has a new serial number in the table."""
        self.model[pid] = Model(**fields)  # type: ignore[arg-type]
        self.serials.pop(pid, None)

    @rule(pid=PIDS, parent=PIDS)
    def fork(self, pid: int, parent: int) -> None:
        if pid == parent:
            return
        self.table.fork(pid, parent, self.tick())
        old = self.model.get(parent, Model())
        target = "yes" if old.target == "yes" else ""
        self.fresh(pid, pages=dict(old.pages), known=old.known, target=target)

    @rule(pid=PIDS)
    def thread(self, pid: int) -> None:
        self.table.thread(pid)
        if pid in self.model:
            self.model[pid].threads += 1

    @rule(pid=PIDS)
    def exec(self, pid: int) -> None:
        self.table.exec(pid, self.tick())
        old = self.model.get(pid, Model())
        target, start_time = old.target, old.start_time
        self.fresh(
            pid,
            known=True,
            target="yes" if target else "",
            published=target == "on exec",
            start_time=start_time,
        )

    @rule(pid=PIDS, leader=st.booleans())
    def exit(self, pid: int, leader: bool) -> None:
        self.table.exit(pid, pid if leader else pid + 100, self.tick())
        process = self.model.get(pid)
        if process is None or process.exited:
            return
        process.threads -= 1
        process.leader_exited |= leader
        if process.leader_exited and process.threads <= 0:
            self.end(process)

    def end(self, process: Model) -> None:
        process.exited = self.clock
        process.published = False

    @rule(pid=PIDS)
    def ended(self, pid: int) -> None:
        self.table.ended(pid, self.tick())
        if pid in self.model and not self.model[pid].exited:
            self.end(self.model[pid])

    @rule(pid=PIDS, span=SPANS, offset=st.integers(0, 20), executable=st.integers(1, 3))
    def map(self, pid: int, span: tuple[int, int], offset: int, executable: int) -> None:
        item = mapping(span, offset, executable)
        self.table.map(pid, *item, self.tick())
        if pid not in self.model:
            self.fresh(pid)
        self.model[pid].pages.update(pages_of([item]))

    @rule(
        pid=PIDS,
        threads=st.integers(1, 3),
        spans=st.lists(st.tuples(SPANS, st.integers(0, 20), st.integers(1, 3)), max_size=3) | st.none(),
    )
    def scanned(self, pid: int, threads: int, spans: list[tuple[tuple[int, int], int, int]] | None) -> None:
        items = None if spans is None else [mapping(*item) for item in spans]
        self.table.scanned(pid, threads, items, self.tick())
        process = self.model.get(pid)
        if process is not None and process.exited and not items:
            process.known = True
            return
        if process is None or process.exited:
            self.fresh(pid)
            process = self.model[pid]
        process.known = True
        if items is None:
            self.end(process)
            return
        process.threads = threads
        if items:
            process.pages = {}
            for item in items:
                process.pages.update(pages_of([item]))

    @rule(pid=PIDS)
    def sample(self, pid: int) -> None:
        if pid not in self.model:
            self.fresh(pid)
        process = self.model[pid]
        process.start_time = process.start_time or 10
        self.world.run(sample(pid, self.tick(), kernel=[1], start_time=process.start_time))
        if process.known and not process.exited:
            process.published = True
        if process.known:  # else the sample waits for what is mapped
            process.sending = "counted"

    @rule(pid=PIDS)
    def sample_of_another_process(self, pid: int) -> None:
        """The pid was used again, and the records of that were lost: the start time tells."""
        if pid not in self.model or not self.model[pid].start_time:
            return
        start_time = self.model[pid].start_time + 1
        self.world.run(sample(pid, self.tick(), kernel=[1], start_time=start_time))
        self.fresh(pid, start_time=start_time)

    @rule(pid=PIDS)
    def late_sample_of_an_earlier_process(self, pid: int) -> None:
        """It changes nothing of the process that has the pid now."""
        if pid not in self.model or not self.model[pid].start_time:
            return
        reported = self.world.reader.counts()["reported"]
        start_time = self.model[pid].start_time - 1
        self.world.run(sample(pid, self.tick(), kernel=[1], start_time=start_time))
        assert self.world.reader.counts()["reported"] == reported + 1

    @rule()
    def take(self) -> None:
        self.table.take_counted()
        for process in self.model.values():
            if process.sending == "counted":
                process.sending = "being sent"

    @rule()
    def sent(self) -> None:
        self.table.sent(self.tick())
        for process in self.model.values():
            if process.sending == "being sent":
                process.sending = ""
                process.sent_at = self.clock

    @rule(pid=PIDS)
    def publish_ahead(self, pid: int) -> None:
        process = self.model.get(pid)
        lives = process is not None and not process.exited
        assert self.table.publish_ahead(pid) == lives
        if process is not None and lives:
            process.published = True

    @rule(pid=PIDS)
    def unpublish(self, pid: int) -> None:
        self.table.unpublish(pid, 0)
        if pid in self.model:
            self.model[pid].published = False

    @rule(pid=PIDS, on_exec=st.booleans())
    def set_target(self, pid: int, on_exec: bool) -> None:
        assert self.table.set_target(pid, on_exec) == (pid in self.model)
        if pid in self.model:
            self.model[pid].target = "on exec" if on_exec else "yes"

    @rule(age=st.integers(0, 5), sent_age=st.integers(0, 5))
    def forget_exited(self, age: int, sent_age: int) -> None:
        before, sent_before = max(self.clock - age, 0), max(self.clock - sent_age, 1)
        over = [pid for pid, process in self.model.items() if process.exited and process.exited < before]
        gone = [pid for pid in over if not self.model[pid].sending and self.model[pid].sent_at < sent_before]
        assert self.table.forget_exited(before, sent_before) == len(gone)
        for pid in over:
            self.model[pid].pages = {}
        for pid in gone:
            del self.model[pid]
            self.serials.pop(pid)

    def flush(self) -> None:
        """Has the kernel's part written."""
        self.world.flush(self.tick())

    @rule()
    def write(self) -> None:
        self.flush()
        self.world.trie.reclaim(self.clock)
        for pid, process in self.model.items():
            assert self.in_trie(pid) == (process.pages if process.published else {})

    def in_trie(self, pid: int) -> Pages:
        rows = [self.world.trie.mapping(number) for number in self.world.trie.ids(pid)]
        return pages_of([(row[1], row[2], (row[1] - row[3]) % 2**64, row[4]) for row in rows if row])

    @invariant()
    def table_says_what_the_model_says(self) -> None:
        assert len(self.table) == len(self.model)
        assert sorted(self.table.pids()) == sorted(p for p, m in self.model.items() if not m.exited)
        for pid, process in self.model.items():
            state = self.table.process(pid)
            assert state is not None
            assert pages_of(state["ranges"]) == process.pages
            assert state["threads"] == process.threads
            assert state["exited"] == bool(process.exited)
            assert state["known"] == process.known
            assert state["target"] == (process.target == "yes")
            assert state["published"] == process.published
            assert (pid in self.table) == (not process.exited)
            if pid not in self.serials:
                assert state["serial"] not in self.all_serials
                self.serials[pid] = state["serial"]
                self.all_serials.add(state["serial"])
            assert self.serials[pid] == state["serial"]

    @invariant()
    def nothing_in_the_trie_is_without_an_owner(self) -> None:
        for pid in self.world.trie.pids():
            process = self.model[pid]
            assert process.published
            assert self.in_trie(pid).items() <= process.pages.items()


TableMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestTable = TableMachine.TestCase


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made


def state_of(world: World, pid: int) -> "ProcessState":
    state = world.table.process(pid)
    assert state is not None
    return state


def published(world: World, pid: int = 1) -> int:
    """A process with one mapping that is in the kernel; number of that."""
    world.table.exec(pid, 1)
    world.table.map(pid, 0x1000, 0x4FFF, 0, 2, 2)
    world.run(sample(pid, 3, kernel=[1]))
    world.flush(4)
    (number,) = world.trie.ids(pid)
    return number


def test_exit_takes_all_of_a_process_out_of_the_kernel_at_once(world: World) -> None:
    number = published(world)
    world.table.exit(1, 1, 10)
    assert world.trie.pids() == []
    assert world.trie.mapping(number) == (1, 0x1000, 0x4FFF, 0x1000, 2, 10)
    assert len(world.trie.pending()[0]) // 16 == 3, "0x1000, 0x2000 and 0x4000 are to be deleted"
    assert 1 not in world.table
    assert state_of(world, 1)["ranges"], "samples of its last instructions may be on their way"


def test_exec_takes_all_of_the_old_program_out_of_the_kernel_at_once(world: World) -> None:
    number = published(world)
    world.table.exec(1, 10)
    assert world.trie.pids() == []
    row = world.trie.mapping(number)
    assert row is not None
    assert row[5] == 10


def test_a_leader_that_exits_first_leaves_the_process_until_the_last_thread(world: World) -> None:
    published(world)
    world.table.thread(1)
    world.table.exit(1, 1, 10)
    assert world.table.leaders() == [1]
    assert world.trie.pids() == [1]
    world.table.watch_leader(1)
    assert world.table.leaders() == [1]
    world.table.exit(1, 101, 11)
    assert world.table.leaders() == []
    assert world.trie.pids() == []
    assert 1 not in world.table


def test_a_process_found_with_a_dead_leader_can_be_watched(world: World) -> None:
    # Its leader exited before there was anyone to see it; num_threads still counts it.
    world.table.scanned(1, 2, [(0x1000, 0x1FFF, 0, 2)], 1)
    world.table.watch_leader(1)
    assert world.table.leaders() == [1]
    world.table.exit(1, 101, 5)
    world.table.exit(1, 102, 6)
    assert 1 not in world.table


def test_a_zombie_leader_does_not_take_the_mappings_away(world: World) -> None:
    # /proc/PID/maps is empty once the leader has exited, though other threads run on.
    published(world)
    world.table.thread(1)
    world.table.exit(1, 1, 10)
    world.table.scanned(1, 2, [], 11)
    world.table.publish()
    assert state_of(world, 1)["ranges"] == [(0x1000, 0x4FFF, 0, 2)]
    assert world.trie.pids() == [1]


@pytest.mark.parametrize("ranges", [None, []])
def test_a_scan_does_not_bring_an_ended_process_back(
    world: World, ranges: list[tuple[int, int, int, int]] | None
) -> None:
    published(world)
    serial = state_of(world, 1)["serial"]
    world.sent()
    world.table.exit(1, 1, 10)
    world.table.scanned(1, 1, ranges, 11)
    assert 1 not in world.table
    assert state_of(world, 1)["serial"] == serial
    assert world.table.forget_exited(20) == 1
    assert len(world.table) == 0


def test_a_process_that_is_gone_when_it_is_looked_for_is_forgotten(world: World) -> None:
    world.run(sample(1, 3, kernel=[1]))
    assert world.table.unknown() == [1]
    world.table.scanned(1, 1, None, 10)
    assert 1 not in world.table
    assert world.table.forget_exited(20) == 1
    assert len(world.table) == 0


def test_a_scan_of_a_reused_pid_is_a_new_process(world: World) -> None:
    published(world)
    serial = state_of(world, 1)["serial"]
    world.table.exit(1, 1, 10)
    world.table.scanned(1, 1, [(0x9000, 0x9FFF, 0, 3)], 11)
    assert state_of(world, 1)["serial"] != serial
    assert state_of(world, 1)["ranges"] == [(0x9000, 0x9FFF, 0, 3)]
    assert world.table.forget_exited(20) == 0


def test_a_file_mapped_below_its_offset_can_be_scanned(world: World) -> None:
    # mmap(0x10000, PROT_EXEC, fd, 1 GiB) is any program's to make.
    world.table.scanned(1, 1, [(0x10000, 0x10FFF, 1 << 30, 2)], 1)
    assert state_of(world, 1)["ranges"] == [(0x10000, 0x10FFF, 1 << 30, 2)]


def test_a_scan_with_an_empty_range_changes_nothing(world: World) -> None:
    published(world)
    before = state_of(world, 1)
    with pytest.raises(ValueError, match="empty"):
        world.table.scanned(1, 1, [(0x9000, 0x9FFF, 0, 3), (2, 1, 0, 3)], 5)
    assert state_of(world, 1) == before


def test_a_scan_may_be_given_items_that_change_the_table_while_they_are_made(world: World) -> None:
    published(world)

    def items() -> Iterator[tuple[int, int, int, int]]:
        for pid in range(1000, 9000):  # moves the table
            world.table.exec(pid, 5)
        yield (0x9000, 0x9FFF, 0, 3)

    world.table.scanned(1, 1, items(), 5)
    assert state_of(world, 1)["ranges"] == [(0x9000, 0x9FFF, 0, 3)]


def test_a_rescan_keeps_the_numbers_of_what_stayed(world: World) -> None:
    kept = published(world)
    world.table.map(1, 0x8000, 0x8FFF, 0, 3, 5)
    world.flush(6)
    world.table.scanned(1, 1, [(0x1000, 0x4FFF, 0, 2), (0xA000, 0xAFFF, 0, 4)], 7)
    assert world.trie.ids(1)[0] == kept
    world.flush(8)
    rows = [world.trie.mapping(number) for number in world.trie.ids(1)]
    assert [row[1] for row in rows if row] == [0x1000, 0xA000]


def test_a_fork_takes_its_parents_place_in_target_but_not_before_exec(world: World) -> None:
    world.table.exec(1, 1)
    world.table.exec(2, 1)
    assert world.table.set_target(1)
    assert world.table.set_target(2, on_exec=True)
    assert not world.table.set_target(99)
    world.table.fork(11, 1, 2)
    world.table.fork(12, 2, 2)
    assert state_of(world, 11)["target"]
    assert not state_of(world, 2)["target"]
    world.table.exec(2, 3)
    assert state_of(world, 2)["target"]
    assert not state_of(world, 12)["target"]


@pytest.fixture
def hidden(world: World) -> World:
    """Process 1 is sampled, and only 2 is wanted."""
    world.table.exec(1, 1)
    world.table.map(1, 0x1000, 0x4FFF, 0, 2, 2)
    world.table.exec(2, 2)
    world.table.set_only_targets()
    world.table.set_target(2)
    world.run(sample(1, 3, kernel=[1]))
    world.flush(4)
    return world


def hidden_entry(world: World) -> list[tuple[int, int, int]]:
    """(start, last, executable) of what the kernel has of process 1."""
    rows = [world.trie.mapping(number) for number in world.trie.ids(1)]
    return [(row[1], row[2], row[4]) for row in rows if row]


def test_a_process_that_is_not_wanted_has_one_entry_for_all_addresses(hidden: World) -> None:
    assert state_of(hidden, 1)["hidden"]
    assert hidden_entry(hidden) == [(0, 2**64 - 1, 0)]
    assert hidden.trie.keys(1) == [(0, 0)]


def test_what_a_process_that_is_not_wanted_maps_is_not_written(hidden: World) -> None:
    before = hidden.trie.ids(1)
    hidden.table.map(1, 0x8000, 0x8FFF, 0, 3, 5)
    hidden.table.scanned(1, 1, [(0x1000, 0x1FFF, 0, 2)], 6)
    assert not hidden.table.publish()
    assert hidden.trie.ids(1) == before


def test_a_process_that_is_wanted_after_all_is_written_with_its_mappings(hidden: World) -> None:
    hidden.table.set_target(1)
    assert not state_of(hidden, 1)["published"]
    hidden.run(sample(1, 6, kernel=[1]))
    hidden.flush(7)
    assert hidden_entry(hidden) == [(0x1000, 0x4FFF, 2)]


def test_exec_takes_what_hid_a_process_out_of_the_kernel(hidden: World) -> None:
    hidden.table.exec(1, 5)
    assert hidden.trie.ids(1) == []
    assert not state_of(hidden, 1)["hidden"]


def test_late_and_double_events_change_nothing(world: World) -> None:
    published(world)
    world.table.exit(1, 1, 10)
    for _ in range(2):
        world.table.exit(1, 1, 11)
        world.table.exit(77, 77, 11)
        world.table.thread(77)
        world.table.ended(1, 12)
        world.table.ended(77, 12)
        world.table.unpublish(77, 0)
        world.table.watch_leader(77)
        world.table.watch_leader(1)
    assert world.table.leaders() == []
    assert world.table.pids() == []
    world.sent()
    assert world.table.forget_exited(100) == 1


def test_memory_is_used_again_by_processes_that_come_and_go(world: World) -> None:
    world.table.exec(1, 1)
    world.table.map(1, 0x1000, 0x1FFF, 0, 2, 1)
    for i in range(2, 20_000):
        world.table.fork(i, 1, i)
        world.table.exit(i, i, i)
        world.table.forget_exited(i)
    counts = world.table.counts()
    assert counts["processes"] == 2
    assert counts["exited"] == 1
    assert counts["mappings"] == 2


def test_executables_are_told_once(world: World) -> None:
    number = world.table.executable(b"\x01" * 20, 0, 0, 7, b"/a", 1, 0x1000, 0x1FFF)
    assert world.table.executable(b"\x01" * 20, 8, 1, 9, b"/b", 2, 0x1000, 0x1FFF) == number
    assert world.table.executable(b"", 8, 1, 9, b"/b", 2, 0x1000, 0x1FFF) == number + 1
    assert world.table.executable(b"", 0, 0, 0, b"", 2, 0x1000, 0x1FFF) == 1
    assert world.table.new_executables() == [
        (number, b"\x01" * 20, 0, b"/a", 1, 0x1000, 0x1FFF),
        (number + 1, b"", 9, b"/b", 2, 0x1000, 0x1FFF),
    ]
    assert world.table.new_executables() == []


def test_10000_executables_keep_their_numbers(world: World) -> None:
    numbers = [
        world.table.executable(i.to_bytes(20, "big"), 0, 0, 0, b"/x", 1, 0, 1) for i in range(1, 10_001)
    ]
    assert numbers == list(range(2, 10_002))
    assert world.table.executable((5000).to_bytes(20, "big"), 0, 0, 0, b"/y", 1, 0, 1) == numbers[4999]
