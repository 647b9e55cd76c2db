# SPDX-License-Identifier: Apache-2.0
"""Histories whose events come late, twice, out of order or not at all: after the next look at /proc the
process table is what is true, and what it wrote to the kernel is just that."""

import random

import pytest

from tests.support.rings import PAGE, World, comm, fork, leave, lost, mmap2, sample

HISTORIES = 400
STEPS = 80
PIDS = range(1, 7)
BASE = 0x400000
STAYS = 60

Range = tuple[int, int, int, int]
"""First page, page behind the last, first page in the file, number of the file (inode)."""


class Truth:
    """What the processes of a host have mapped, page by page: page -> (file, page of the file)."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.processes: dict[int, dict[int, tuple[int, int]]] = {}
        self.clock = 10
        self.records: list[bytes] = []

    def tick(self) -> int:
        self.clock += self.rng.randint(1, 5)
        return self.clock

    def step(self) -> None:
        pid, other = self.rng.choice(PIDS), self.rng.choice(PIDS)
        if pid not in self.processes:
            if other in self.processes:
                self.processes[pid] = dict(self.processes[other])
                self.records.append(fork(pid, other, self.tick()))
            else:
                self.exec(pid)
            return
        self.rng.choice((self.exec, self.end, self.map, self.map, self.map, self.unmap, self.move))(pid)

    def exec(self, pid: int) -> None:
        # Like the vDSO it stays: what runs has something mapped.
        self.processes[pid] = {STAYS: (9, 0)}
        self.records.append(comm(pid, self.tick(), is_exec=True))
        self.records.append(mmap2(pid, self.tick(), BASE + STAYS * PAGE, PAGE, path=b"/f9", inode=(1, 1, 9)))
        self.map(pid)

    def end(self, pid: int) -> None:
        del self.processes[pid]
        self.records.append(leave(pid, pid, self.tick()))

    def map(self, pid: int) -> None:
        start, count, file = self.rng.randrange(24), self.rng.randint(1, 6), self.rng.randint(1, 4)
        first = self.rng.randrange(3)
        self.processes[pid].update({start + i: (file, first + i) for i in range(count)})
        self.records.append(
            mmap2(pid, self.tick(), BASE + start * PAGE, count * PAGE, offset=first * PAGE,
                  path=b"/f%d" % file, inode=(1, 1, file))
        )  # fmt: skip

    def unmap(self, pid: int) -> None:
        """No event tells."""
        start = self.rng.randrange(24)
        for page in range(start, start + self.rng.randint(1, 8)):
            self.processes[pid].pop(page, None)

    def move(self, pid: int) -> None:
        """No event tells."""
        pages = sorted(set(self.processes[pid]) - {STAYS})
        if pages:
            page = self.rng.choice(pages)
            self.processes[pid][self.rng.randrange(24)] = self.processes[pid].pop(page)

    def ranges(self, pid: int) -> list[Range]:
        """What /proc would say."""
        found: list[Range] = []
        for page, (file, offset) in sorted(self.processes[pid].items()):
            if found and found[-1][1] == page and found[-1][3] == file:
                start, end, first, _ = found[-1]
                if first + end - start == offset:
                    found[-1] = (start, page + 1, first, file)
                    continue
            found.append((page, page + 1, offset, file))
        return found


def garbled(rng: random.Random, records: list[bytes]) -> list[bytes]:
    """Some records dropped, some twice, some elsewhere."""
    kept = [record for record in records for _ in range(rng.choice((0, 1, 1, 1, 1, 2)))]
    for _ in range(len(kept) // 4):
        kept.insert(rng.randrange(len(kept)), kept.pop(rng.randrange(len(kept))))
    return kept


def number_of(world: World, file: int) -> int:
    return world.table.executable(b"", 1, 1, file, b"/f%d" % file, 1, 0, 0)


def expected(world: World, truth: Truth, pid: int) -> list[Range]:
    return [
        (BASE + start * PAGE, BASE + end * PAGE - 1, first * PAGE, number_of(world, file))
        for start, end, first, file in truth.ranges(pid)
    ]


def disturb(world: World, truth: Truth, rng: random.Random) -> None:
    """Hands the history over in pieces, with samples in between that have processes published."""
    records, truth.records = garbled(rng, truth.records), []
    while records:
        piece = [records.pop(0) for _ in range(min(len(records), rng.randint(1, 9)))]
        for record in piece:
            rng.choice(world.events).put(record)
        if rng.random() < 0.2:
            rng.choice(world.events).put(lost(rng.randint(1, 100), truth.tick()))
        world.run(
            *(
                sample(
                    rng.choice(PIDS), rng.randint(1, truth.tick()), start_time=rng.choice((0, 0, 0, 7)),
                    user=[(BASE + rng.randrange(24) * PAGE, rng.randrange(40)) for _ in range(2)],
                    exec_id=rng.randint(0, 2), exec_pages=rng.randrange(30),
                )
                for _ in range(rng.randrange(4))
            )
        )  # fmt: skip
        if rng.random() < 0.3:
            world.flush(truth.tick())
        if rng.random() < 0.1:
            world.reader.replay()


def reconcile(world: World, truth: Truth) -> None:
    """What the scanner does, with what is true."""
    world.run()
    world.reader.replay()
    world.table.unknown()
    for pid in truth.processes:
        world.table.scanned(pid, 1, expected(world, truth, pid), truth.tick())
    for pid in set(world.table.pids()) - set(truth.processes):
        world.table.ended(pid, truth.tick())
    # Samples that waited show nothing any more that is to be asked about.
    world.reader.replay()
    assert world.table.unknown() == []


def check(world: World, truth: Truth) -> None:
    world.flush(truth.tick())
    assert sorted(world.table.pids()) == sorted(truth.processes)
    for pid in world.trie.pids():
        assert pid in truth.processes, "owned by nobody"
    for pid in truth.processes:
        state = world.table.process(pid)
        assert state is not None
        assert state["ranges"] == expected(world, truth, pid)
        rows = [world.trie.mapping(number) for number in world.trie.ids(pid)]
        written = [(row[1], row[2], row[1] - row[3], row[4]) for row in rows if row]
        assert written == (state["ranges"] if state["published"] else [])


@pytest.mark.parametrize("block", range(4))
def test_table_is_right_again_after_any_history(block: int) -> None:
    for seed in range(block * HISTORIES // 4, (block + 1) * HISTORIES // 4):
        rng = random.Random(seed)
        with World(cpus=2) as world:
            truth = Truth(rng)
            for _ in range(3):
                for _ in range(STEPS // 3):
                    truth.step()
                disturb(world, truth, rng)
                reconcile(world, truth)
                check(world, truth)
            for pid in world.table.pids():
                world.table.ended(pid, truth.tick())
            world.flush(truth.tick())
            assert world.trie.pids() == []
            world.table.forget_exited(truth.tick())
            world.trie.reclaim(truth.tick())
            assert world.trie.counts()["prefixes"] == world.trie.counts()["mappings"] == 0
            assert world.trie.counts()["retired"] == 0
            counts = world.reader.counts()
            assert counts["malformed"] == counts["no_memory"] == 0
