# SPDX-License-Identifier: Apache-2.0
"""Makes unwind rows off the main loop, and puts them into the arena."""

import os
import select
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue

from pyprof._native.arena import RowArena
from pyprof.bpf.library import CHUNK_BYTES, BpfObject
from pyprof.elf.file import PF_X, ElfFile
from pyprof.errors import HostError
from pyprof.process.files import MappedFile, MappedFiles
from pyprof.unwind.cache import RowCache, cache_key
from pyprof.unwind.row_entry import Rows

SECOND = 1_000_000_000
BIG_FILE = 32 << 20
"""Files from this size on have a thread of their own: making the rows of the largest takes a second."""

UNUSED = SECOND
"""How long an executable must not have been sampled for another to take its place."""

RETRY = 10 * SECOND
"""After how long it is tried again to find room for an executable."""

ROW_BYTES = 4
"""What a row takes in the arena."""

DELAY = SECOND // 10
"""How long a program of the kernel side may be reading rows whose entry is gone."""


@dataclass(slots=True)
class Job:
    """Attributes: number: of the executable; file: it; key: of its rows in the cache; segments: (file offset,
    size, ELF address) of its code; opened: what is to be closed after reading; rows: what was made, None for
    none; problem: why, or ""."""

    number: int
    file: ElfFile
    key: str
    segments: list[tuple[int, int, int]]
    opened: MappedFile | None = None
    rows: Rows | None = None
    problem: str = ""


class RowLoader:
    """Keeps the arena filled with what is sampled, within its cap.

    Attributes:
        fd: readable when rows are ready for `install`.
        failed: executables whose rows could not be made.
        no_room: times that an executable found no room in the arena.
        evicted: times that an executable gave way, by the map that was full: one of SHORTAGES.
        refused: times that nobody gave way to one.
        cache: rows on disk, with its counters.
    """

    def __init__(
        self,
        bpf: BpfObject,
        arena: RowArena,
        files: MappedFiles,
        cap_bytes: int,
        cache: RowCache | None = None,
    ) -> None:
        """cap_bytes: most memory of the arena. cache: rows on disk; where the environment says if None."""
        self._bpf = bpf
        self._arena = arena
        self._files = files
        self._cap_chunks = max(cap_bytes // CHUNK_BYTES, 1)
        self._queues: dict[bool, SimpleQueue[Job | None]] = {}
        self._threads: list[threading.Thread] = []
        self._done: deque[Job] = deque()
        self._waiting: deque[Job] = deque()
        self._retry_at: dict[int, int] = {}
        self._under_way = 0
        self._closing = False
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.failed = 0
        self.no_room = 0
        self.evicted: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.cache = cache if cache is not None else RowCache.of_environment()

    @property
    def busy(self) -> bool:
        """Whether rows are being made or wait for room."""
        return self._under_way > 0 or bool(self._waiting)

    def request(self) -> None:
        """Starts on what samples have asked for, most wanted first."""
        now = time.monotonic_ns()
        for number in self._arena.wanted():
            file = self._files.get(number)
            was_open = file is not None and file.fd >= 0
            elf = self._files.elf(number) if file is not None else None
            if file is None or elf is None or file.identity is None:
                self.failed += file is not None and bool(file.problem)
                self._give_up(number, now)
                continue
            segments = [
                (segment.offset, segment.filesz, segment.vaddr)
                for segment in file.identity.segments
                if segment.flags & PF_X
            ]
            self._under_way += 1
            self._queue(elf.size >= BIG_FILE).put(
                Job(number, elf, cache_key(file.identity), segments, None if was_open else file)
            )

    def _queue(self, big: bool) -> "SimpleQueue[Job | None]":
        queue = self._queues.get(big)
        if queue is None:
            queue = self._queues[big] = SimpleQueue()
            thread = threading.Thread(target=self._work, args=(queue,), name="unwind rows", daemon=True)
            self._threads.append(thread)
            thread.start()
        return queue

    def _work(self, queue: "SimpleQueue[Job | None]") -> None:
        while self._make(queue.get()):
            if queue.empty():
                self.cache.flush()
        self.cache.flush()

    def _make(self, job: Job | None) -> bool:
        """Makes the rows of a job; False for none, at the end. A thread that waits for the next job must not
        hold the last one: rows take up to 20 MiB."""
        if job is None:
            return False
        if not self._closing:
            try:
                job.rows = self.cache.rows(job.file, job.key)
            except Exception as error:  # whatever is wrong with a file, all others still get their rows
                job.problem = str(error) or type(error).__name__
            self._done.append(job)
            os.eventfd_write(self.fd, 1)
        return True

    def install(self, now: int) -> None:
        """Places what is ready, and writes what changed to the kernel's maps."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        self._arena.reclaim(now - DELAY)
        while self._done:
            job = self._done.popleft()
            self._under_way -= 1
            if job.opened is not None:
                job.opened.close()
            if job.rows is None:
                self.failed += bool(job.problem)
                self._give_up(job.number, now)
            else:
                self._waiting.append(job)
        for _ in range(len(self._waiting)):
            job = self._waiting.popleft()
            if not self._place(job, now):
                self._waiting.append(job)
        for number in [number for number, at in self._retry_at.items() if at <= now]:
            del self._retry_at[number]
            self._arena.forget(number)
        self.no_room += self._bpf.write_rows(self._arena, now)

    def drop(self, number: int) -> bool:
        """Forgets an executable, whose number is to stand for another one.

        What the kernel has of it goes with the next `install`.
        """
        if any(job.number == number for job in self._waiting) or not self._arena.drop(number):
            return False
        self._retry_at.pop(number, None)
        return True

    def _place(self, job: Job, now: int) -> bool:
        """False where room is being made."""
        rows = job.rows
        if rows is None:
            return True
        if len(rows) * ROW_BYTES > self._cap_chunks * CHUNK_BYTES:
            self._refuse(job, now, "chunks")  # though all others went
            return True
        partial = False
        while not self._arena.load(
            job.number, rows.addresses, rows.numbers, rows.rules, job.segments, now, partial
        ):
            short = self._arena.short_of
            if short != "chunks":
                if short == "rules" and self._arena.withdrawn_rules:
                    return False
                if self._give_way(short, now):
                    continue
                if short == "rules":
                    partial = True
                    self.refused["rules"] += 1
                    continue
                self._refuse(job, now, short)
                return True
            counts = self._arena.counts()
            if counts["chunks"] < self._cap_chunks:
                try:
                    self._arena.add_chunk(self._bpf.make_chunk(counts["chunks"]))
                    continue
                except HostError as error:
                    job.problem = str(error)
                    self._cap_chunks = counts["chunks"]
            if counts["withdrawn"]:
                return False
            # Where what is free lies in pieces, one more goes the next time.
            if not self._evict(max(len(rows) * ROW_BYTES - counts["free_bytes"], 1), now):
                self._refuse(job, now, "chunks")
                return True
        return True

    def _refuse(self, job: Job, now: int, shortage: str) -> None:
        self.no_room += 1
        if shortage != "executables":  # which _give_up counts
            self.refused[shortage] += 1
        self._give_up(job.number, now)
        self._retry_at[job.number] = now + RETRY

    def _evict(self, wanted: int, now: int) -> bool:
        """Withdraws executables that were not sampled lately; False where there is none."""
        freed = 0
        while freed < wanted:
            number = self._arena.oldest(now - UNUSED)
            if not number:
                break
            freed += self._arena.evict(number)
            self.evicted["chunks"] += 1
        return freed > 0

    def _give_way(self, shortage: str, now: int) -> bool:
        """Has the executable sampled longest ago make room in a map; False where there is none to do so."""
        number = self._arena.oldest(now - UNUSED, shortage)
        if not number:
            return False
        self._arena.evict(number)
        self._arena.forget(number)  # where it had no rows
        self.evicted[shortage] += 1
        return True

    def _give_up(self, number: int, now: int) -> None:
        """Has the kernel know, if it has room to, that frame pointers have to do for an executable."""
        while not self._arena.load_none(number):
            if not self._give_way("executables", now):
                self.refused["executables"] += 1
                break

    def finish(self, seconds: float) -> None:
        """Waits for what is under way, at most so long."""
        deadline = time.monotonic() + seconds
        while self.busy and time.monotonic() < deadline:
            # What waits for room is not told of when there is some.
            patience = DELAY / SECOND if self._waiting else max(deadline - time.monotonic(), 0)
            select.select([self.fd], [], [], patience)
            self.install(time.monotonic_ns())

    def close(self) -> None:
        """Ends the threads; what they are at is finished, what has not begun is dropped."""
        self._closing = True
        for queue in self._queues.values():
            queue.put(None)
        for thread in self._threads:
            thread.join()
        os.close(self.fd)
