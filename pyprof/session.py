# SPDX-License-Identifier: Apache-2.0
"""A profiling session: events and programs in the kernel, and the loop that keeps up with them.

Python's share of the work is per process, per file and per interval; samples stay in native code.
"""

import logging
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from pyprof._native.aggregate import Aggregator
from pyprof._native.arena import SHORTAGES, RowArena
from pyprof._native.drain import SampleReader
from pyprof._native.processes import ProcessTable
from pyprof._native.reclaim import Reclaimer
from pyprof._native.sideband import SidebandReader
from pyprof._native.trie import MappingTrie
from pyprof.bpf.library import MAPPING_ENTRIES, BpfObject, end_texts, return_memory
from pyprof.bpf.perf_events import ProcessEvents, Sampling, online_cpus, raise_open_files
from pyprof.errors import ProcError, TargetError
from pyprof.full import FullMaps
from pyprof.interval import Intervals
from pyprof.process.files import MappedFile, MappedFiles
from pyprof.process.proc import read_stat
from pyprof.process.resync import Resync
from pyprof.process.scan import Scanner
from pyprof.profile.model import Accounting, By, Profile
from pyprof.state import HighWater, full_counts, held, one_line, state_of
from pyprof.symbols.names import Limits
from pyprof.unwind.ahead import load_ahead
from pyprof.unwind.loader import RowLoader

LOG = logging.getLogger(__name__)

SECOND = 1_000_000_000
POLL_SECONDS = 0.25
GRACE = 3 * SECOND
"""How long what ended is kept for samples on their way: a BPF program runs for microseconds, and its sample
is in the ring when it ends."""

RETRY_FULL = 10 * SECOND
"""How long a process that did not fit into exec_mappings is resolved in user space only."""

WAIT_FOR_ROWS = SECOND
"""How long a sample waits for the unwind rows that its stack needs."""

SCAN_SHARE = 50
"""Where events are lost all the time, reading all of /proc may take a fiftieth of a CPU."""

STOP_TRIES = 100

STOP_SECONDS = 2.0
"""How long the end of a recording waits for unwind rows that its last samples need."""

AHEAD_SECONDS = 1.0
"""How long the start waits for the unwind rows of processes that were named."""

AHEAD_SECONDS_HOST = 0.2
"""The same for those that are busy when a whole host is sampled."""

START_STEPS = (0.002, 0.01, 0.02)
"""Seconds between looks at a program that begins."""

PRIORITY = -10
"""Nice value of the recorder; what it profiles or starts keeps its own."""

ARENA_BYTES = 64 << 20

REPORT_SECONDS = 5.0

KEEP_UNUSED = 4 * REPORT_SECONDS
"""A program that is run again and again need not be read each time; four reports without it, and it goes."""

SAMPLE_BYTES = 1024
"""What a sample of usual depth takes in the ring."""


@dataclass(slots=True)
class Options:
    """What to profile. hz: samples a second on each CPU, 1 to 10,000; event: "cpu-clock" or "cycles"; pids:
    only these and their descendants, all when empty; mapping_entries, plain_loop: see BpfObject; arena_bytes:
    most memory for unwind rows; grace: seconds for which executables that nobody maps, and processes that
    ended, are kept after the last sample of them was sent; stamps: whether the time of each sample is kept;
    facts: whether the containers and services of processes are looked for; names: how much is kept of
    names."""

    hz: int = 99
    event: str = "cpu-clock"
    by: By = By.PROCESS
    pids: list[int] = field(default_factory=list)
    mapping_entries: int = MAPPING_ENTRIES
    plain_loop: bool = False
    arena_bytes: int = ARENA_BYTES
    grace: float = KEEP_UNUSED
    stamps: bool = False
    facts: bool = False
    names: Limits = field(default_factory=Limits)


def ring_bytes(hz: int, cpus: int) -> int:
    """Size of the sample ring: two seconds of usual samples, from 256 KiB to 64 MiB."""
    wanted = min(max(2 * hz * cpus * SAMPLE_BYTES, 256 * 1024), 64 * 1024 * 1024)
    return 1 << (wanted - 1).bit_length()


class Session:
    """One recording. Use as a context manager: start(), poll() until done, stop(), take()."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.trie = MappingTrie(options.mapping_entries)
        self.table = ProcessTable(self.trie)
        self.sideband = SidebandReader(self.table)
        self.aggregator = Aggregator(stamped=options.stamps)
        self.files = MappedFiles()
        self.scanner = Scanner(self.table, self.files)
        self.full = 0
        """Times that a process did not fit into exec_mappings."""
        self.started = 0  # CLOCK_MONOTONIC, ns
        self.stopped = 0
        self.intervals = Intervals(self, options.names)
        self._stack = ExitStack()
        self._poller = select.epoll()
        self._stack.callback(self._poller.close)
        self._on_ready: dict[int, Callable[[], None]] = {}
        self._lost_seen = 0
        self._scan_all_after = 0
        self._next_report = 0
        self.each_second: list[Callable[[int], None]] = []
        """Called from poll() once a second, with the time (CLOCK_MONOTONIC, ns)."""
        self.high_water = HighWater()
        self._full_maps = FullMaps()
        self._next_second = 0
        self._bpf: BpfObject | None = None
        self._reader: SampleReader | None = None
        self._sampling: Sampling | None = None
        self._events: ProcessEvents | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Takes everything out of the kernel; closed twice is closed."""
        self._stack.close()

    @property
    def bpf(self) -> BpfObject:
        if self._bpf is None:
            raise RuntimeError("the session has not started")
        return self._bpf

    @property
    def reader(self) -> SampleReader:
        if self._reader is None:
            raise RuntimeError("the session has not started")
        return self._reader

    def prepare(self) -> None:
        """Loads the programs and learns of all processes; sampling does not run yet.

        Raises:
            HostError: this host cannot profile.
            TargetError: a process that was named is not there.
        """
        # On a host that is busy throughout, who reads the rings must not wait for its turn.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
        return_memory()
        cpus = online_cpus()
        raise_open_files(2 * len(cpus) + 1024)
        size = ring_bytes(self.options.hz, len(cpus))
        # Events first: what happens while /proc is read comes after it, in the order of time.
        self._events = ProcessEvents(self.sideband)
        self._stack.callback(self._events.close)
        self._events.update()
        self._bpf = self._stack.enter_context(
            BpfObject(size, size // 4, self.options.mapping_entries, self.options.plain_loop)
        )
        self._stack.callback(self.files.close)
        self.arena = RowArena(self._bpf.rule_table())
        self._rows = RowLoader(self._bpf, self.arena, self.files, self.options.arena_bytes)
        self._stack.callback(self._rows.close)
        self._reader = SampleReader(
            self._bpf.ring_fd, size, self.table, self.sideband, self.aggregator, self.arena,
            self.options.by.value,
        )  # fmt: skip
        self._reclaimer = Reclaimer(self.table, self._reader)
        self._resync = Resync(self.table, self.scanner)
        self._grace = int(self.options.grace * SECOND)
        self.scanner.scan_all()
        self._take_new_files()
        if self.options.pids:
            self.table.set_only_targets()
            wanted = list(self.options.pids)
            for pid in self.options.pids:
                wanted += self.scanner.descendants(pid)
            known = [pid for pid in wanted if self.table.set_target(pid)]
            for pid in self.options.pids:
                if pid not in known:
                    raise TargetError(f"there is no process {pid}")
            self.load_ahead(known, AHEAD_SECONDS)
        else:
            self.load_ahead(self.scanner.busiest(), AHEAD_SECONDS_HOST)
        self._poller.register(self._bpf.ring_fd, select.EPOLLIN)
        self._poller.register(self._rows.fd, select.EPOLLIN)
        for fd in self._events:
            self._poller.register(fd, select.EPOLLIN)

    def load_ahead(self, pids: Iterable[int], seconds: float) -> None:
        """Has the kernel side know processes before they are sampled, so that fewer first samples go to user
        space.

        Args:
            pids: most important first.
            seconds: how long it may wait for unwind rows.
        """
        load_ahead(self.table, self.arena, self._rows, pids, seconds)
        if self.table.publish(time.monotonic_ns()):
            self._write(time.monotonic_ns())

    def start(self) -> None:
        """Begins to sample.

        Raises:
            HostError: the kernel refuses the event.
        """
        self._sampling = Sampling(self.options.hz, self.options.event, self.bpf.program_fd)
        self._stack.callback(self._sampling.close)
        self.started = time.monotonic_ns()
        self._sampling.update()
        self._next_second = self.started + SECOND

    def follow_start(self, pid: int) -> None:
        """Keeps up closely with a program that has just begun: it maps its libraries now."""
        for seconds in START_STEPS:
            self.poll(seconds)
            self.load_ahead([pid], seconds)

    def watch(self, fd: int, action: Callable[[], None]) -> None:
        """Calls an action from poll() whenever a descriptor is readable; unwatch() ends that."""
        self._on_ready[fd] = action
        self._poller.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        del self._on_ready[fd]
        self._poller.unregister(fd)

    def poll(self, seconds: float = POLL_SECONDS) -> None:
        """Waits for work, at most so long, and does it."""
        for fd, _ in self._poller.poll(max(seconds, 0)):
            action = self._on_ready.get(fd)
            if action is not None:
                action()
        self.drain()

    def drain(self) -> None:
        """Reads what the kernel has for us and acts on it."""
        self.reader.run()
        self.intervals.clock.note()
        self._take_new_files()
        unknown = self.table.unknown()
        if unknown:
            for pid in unknown:
                self.scanner.scan(pid)
            self._take_new_files()
        now = time.monotonic_ns()
        self._rows.request()
        self._rows.install(now)
        if self.reader.waiting:
            self.reader.replay(now - WAIT_FOR_ROWS)
            self._rows.request()
        if now >= self._next_second:
            self._next_second = now + SECOND
            self._each_second(now)
        # Last, so that nothing stays in the kernel from one wake-up to the next that is known to be gone.
        if self.table.publish(now):
            self._write(now)

    def _take_new_files(self) -> None:
        for number, build_id, inode, path, pid, start, last in self.table.new_executables():
            if number not in self.files:
                self.files.add(number, MappedFile(path, build_id, inode, pid, start, last))

    def _write(self, now: int) -> None:
        for pid in self.bpf.write_mappings(self.trie, now):
            self.full += 1
            self.table.unpublish(pid, now + RETRY_FULL)

    def _each_second(self, now: int) -> None:
        self.trie.reclaim(now - GRACE)
        self.table.forget_exited(now - GRACE, now - self._grace)
        self._release_executables(now)
        self._resync.run(now)
        for pid in self.table.leaders():
            # Threads may have gone on without their leader; whether any runs, /proc knows.
            with suppress(ProcError):
                stat = read_stat(pid)
                if stat is not None and stat.num_threads > 1:
                    self.table.watch_leader(pid)
                else:
                    self.table.ended(pid, now)
        lost = self.table.counts()["lost_events"]
        if lost != self._lost_seen and now >= self._scan_all_after:
            self._lost_seen = lost
            self.scanner.scan_all()
            self._take_new_files()
            self._scan_all_after = now + SCAN_SHARE * (time.monotonic_ns() - now)
        if self._sampling is not None and self._events is not None:
            for cpu in self._events.update():
                self._poller.register(self._events.fds[cpu], select.EPOLLIN)
            self._sampling.update()
        self.high_water.note(held(self))
        self._full_maps.look(now, full_counts(self))
        for action in self.each_second:
            action(now)
        if now >= self._next_report:
            self._next_report = now + int(REPORT_SECONDS * SECOND)
            if LOG.isEnabledFor(logging.DEBUG):
                LOG.debug("%s", one_line(self.state()))

    def _release_executables(self, now: int) -> None:
        """Releases what no process, sample or mapping in the kernel has named for a while: the only place."""
        self._reclaimer.sweep(now)
        gone = []
        for number, since, by_inode in self._reclaimer.unused():
            file = self.files.get(number)
            # While it is open its inode number cannot become another file's.
            safe = not by_inode or (file is not None and file.fd >= 0)
            if since < now - self._grace or not safe:
                if not self._rows.drop(number):
                    continue  # it comes again when its rows are made
                self.files.forget(number)
                gone.append(number)
        if gone:
            # Nothing of a number may be in the kernel when it comes to stand for another file.
            self._rows.install(now)
            for number in gone:
                self._reclaimer.release(number)

    def row_shortages(self) -> dict[str, tuple[int, int]]:
        """(times that an executable gave way, times that none did), by map in which rows find room."""
        return {name: (self._rows.evicted[name], self._rows.refused[name]) for name in SHORTAGES if name}

    def row_counts(self) -> dict[str, int]:
        """What became of making and placing unwind rows."""
        rows = self._rows
        return {
            "no_room": rows.no_room,
            "failed": rows.failed,
            "cache_hits": rows.cache.hits,
            "cache_misses": rows.cache.misses,
        }

    def state(self) -> dict[str, object]:
        """What is held where, and whether the kernel holds just that: the answer to `pyprof inspect maps`."""
        now = time.monotonic_ns()
        self.table.publish(now)
        self._write(now)
        self._rows.install(now)
        return state_of(self)

    def stop(self) -> None:
        """Ends sampling and reads what is left."""
        if self._sampling is not None:
            self._sampling.enable(False)
            self._sampling.close()
            # What is done each second would open its events again.
            self._sampling = None
        self.stopped = time.monotonic_ns()
        self.drain()
        # A record may have been in the making on another CPU.
        for _ in range(STOP_TRIES):
            if not self.reader.unread:
                break
            time.sleep(0.001)
            self.drain()
        self._rows.finish(STOP_SECONDS)
        self.drain()
        self.reader.replay()

    def accounting(self) -> Accounting:
        """Where the samples of the session went, so far."""
        kernel = self.bpf.counters()
        counts = self.reader.counts()
        lost = {
            "ring buffer full": kernel["ring buffer full"],
            "sampler failed": kernel["sampler failed"],
            "out of memory": counts["no_memory"],
            "malformed record": counts["malformed"],
        }
        ends = self.reader.ends()[1:]
        texts = end_texts()[1:]
        return Accounting(
            taken=kernel["taken"] - counts["filtered"],
            reported=counts["reported"],
            lost={reason: count for reason, count in lost.items() if count},
            incomplete={text: count for text, count in zip(texts, ends, strict=True) if count},
        )

    def samples(self) -> dict[str, int]:
        """Samples reported so far; of how many the stack was unwound in user space, all or part: those of
        processes and executables that the kernel side did not have yet; and how many copies of stacks, which
        that needs, found no room in the ring."""
        counts = self.reader.counts()
        return {
            "reported": counts["reported"],
            "unwound_in_user_space": counts["walked"],
            "stack_copies_without_room": self.bpf.counters()["stack copies without room"],
        }

    @property
    def kernel_names_problem(self) -> str:
        """Why kernel functions have no names, or ""."""
        return self.intervals.names.problem

    def take(self) -> Profile:
        """The profile of what was sampled since the last call, or the start, named."""
        return self.intervals.take(self.aside)

    def discard(self) -> int:
        """Gives up what was sampled since the last profile; how many samples that is."""
        return self.intervals.discard()

    def aside(self, work: Callable[[], None]) -> None:
        """Does work that takes long; while sampling goes on, the rings are read meanwhile."""
        if self._sampling is None:
            work()
            return
        ready = os.eventfd(0, os.EFD_CLOEXEC)

        def notify() -> None:
            try:
                work()
            finally:
                os.eventfd_write(ready, 1)

        with ThreadPoolExecutor(1, "names") as pool:
            self.watch(ready, lambda: None)
            naming = pool.submit(notify)
            while not naming.done():
                self.poll()
            self.unwatch(ready)
        os.close(ready)
        naming.result()


def on_signals(session: Session, signals: Iterable[int], action: Callable[[int], None]) -> Callable[[], None]:
    """Has signals wake the session's poll() and call an action there; returns what restores the old state."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    old = {number: signal.signal(number, lambda *_: None) for number in signals}
    old_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def readable() -> None:
        for number in os.read(reader, 64):
            if number in old:
                action(number)

    def restore() -> None:
        session.unwatch(reader)
        signal.set_wakeup_fd(old_fd)
        for number, handler in old.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)

    session.watch(reader, readable)
    return restore
