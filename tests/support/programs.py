# SPDX-License-Identifier: Apache-2.0
"""Runs programs that know their own stack, records them together, and compares.

A recording has two parts. Until the kernel side knows all programs and has their unwind rows, stacks are
unwound from a copy of their innermost 28 KiB, which deeper ones reach beyond; after that there is no excuse.
"""

import hashlib
import os
import shutil
import signal
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pyprof.bpf.library import end_texts
from pyprof.profile.builder import fill, process_rows
from pyprof.profile.model import FrameKind, Profile
from pyprof.session import Options, Session
from tests.support.profiling import SCALE, TARGETS, cpu_ticks, running, wait_until
from tests.support.truth import KERNEL, Chain, Stack, Verdict, judge

ENOUGH = 200
"""Samples of a program, at least."""
COMPLETE = 0.995
"""More than so many of a program's stacks reach the start."""
HZ = 999 if SCALE == 1 else 399
NOT_LOADED = "unwind rows not loaded"
TOO_SHORT = "stack deeper than its copy"
ROUNDS = 8
QUIET = 1.0
"""Seconds without a stack that is cut for want of rows, after which there is none left to come."""


class Program(NamedTuple):
    """A target as it is built and run, and what its stacks may be."""

    name: str
    """Of the executable and so of the process: 15 bytes at most."""
    make: Callable[[Path], Path]
    """Builds it in a folder, which it does not name in what it builds."""
    chains: tuple[Chain, ...]
    arguments: tuple[str, ...] = ()
    rename: Callable[[Path], Callable[[str], str]] | None = None
    """Given the executable, what gives frames their names where pyprof cannot know them."""


@dataclass(slots=True)
class Seen:
    """The stacks of one program: the process's name, then its frames.

    Attributes:
        stacks: samples by stack.
        cut: samples that pyprof calls incomplete, by reason.
        verdict: of the program's chains.
    """

    stacks: dict[Stack, int]
    cut: Counter[str]
    verdict: Verdict

    def __str__(self) -> str:
        return f"{self.verdict}\n{dict(self.cut)}"


class Recording(NamedTuple):
    """Several programs, recorded together; what was seen of each, by name."""

    first: dict[str, Seen]
    """Before all programs and their rows were in the kernel."""
    rest: dict[str, Seen]


def make(program: Program, folder: Path) -> Path:
    """Builds a program in a folder of its own.

    PYPROF_TEST_TARGETS names a folder that keeps what was built, for machines without compilers.
    """
    own = folder / program.name
    if "PYPROF_TEST_TARGETS" not in os.environ:
        own.mkdir()
        return program.make(own).rename(own / program.name)
    # Whatever has a say in how it is built.
    tests = Path(__file__).parents[1]
    sources = (*TARGETS.iterdir(), *tests.glob("system/test_unwinding_*.py"), *tests.glob("support/t*.py"))
    texts = [path.read_bytes() for path in sorted(sources)]
    key = hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]
    kept = Path(os.environ["PYPROF_TEST_TARGETS"]) / f"programs-{key}" / program.name
    if not kept.exists():
        kept.mkdir(parents=True)
        program.make(kept).rename(kept / program.name)
    shutil.copytree(kept, own)
    return own / program.name


@contextmanager
def as_it_was() -> Iterator[None]:
    """Gives this process its old priority back: what it starts later would run before all else."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    os.setpriority(os.PRIO_PROCESS, 0, nice)


def record_programs(folder: Path, programs: Sequence[Program], seconds: float) -> Recording:
    """Builds programs, two at a time, and records them all at once."""
    with ThreadPoolExecutor(2) as pool:
        paths = dict(
            zip([p.name for p in programs], pool.map(lambda p: make(p, folder), programs), strict=True)
        )
    renames = {p.name: p.rename(paths[p.name]) for p in programs if p.rename}
    with ExitStack() as stack:
        pids = []
        for program in programs:
            # Nice, so that the recorder and the tests need not wait for them.
            command: list[str | Path] = ["nice", "-n", "5", paths[program.name], *program.arguments]
            pids.append(stack.enter_context(running(*command)).pid)
            # Those that start later would have to wait for those that run.
            os.kill(pids[-1], signal.SIGSTOP)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        # What they do between saying "ready" and the stacks that are known is over by then.
        ticks = {pid: cpu_ticks(pid) + 1 for pid in pids}
        wait_until(lambda: all(cpu_ticks(pid) > ticks[pid] for pid in pids), "programs at work", 60)
        stack.enter_context(as_it_was())
        session = stack.enter_context(Session(Options(hz=HZ, pids=pids)))
        session.prepare()
        session.start()
        poll_until_loaded(session, pids)
        # Names are for later: while they are looked up nobody reads the ring.
        first = session.aggregator.take()
        rest: list[dict[str, bytes]] = []
        counts = Counter[str]()
        # On a busy machine some get little of the time.
        while len(rest) < ROUNDS and min(counts[program.name] for program in programs) <= ENOUGH:
            poll_for(session, seconds)
            rest.append(session.aggregator.take())
            counts += samples_by_process(rest[-1])
        session.stop()
        rest.append(session.aggregator.take())
        accounting = session.accounting()
        tallies = Tally(renames), Tally(renames)
        for tally, taken in zip(tallies, ([first], rest), strict=True):
            for tables in taken:
                tally.add(named(session, tables))
    assert accounting.taken == accounting.reported, accounting
    assert sum(one.total() for tally in tallies for one in tally.stacks.values()) == accounting.reported
    return Recording(*(tally.judged(programs) for tally in tallies))


def samples_by_process(taken: dict[str, bytes]) -> Counter[str]:
    """Samples in the tables of an Aggregator, by name of the process."""
    names = [row.name.rstrip(b"\0").decode() for row in process_rows(taken)]
    counts = Counter[str]()
    for count, process, _, _, _ in struct.iter_unpack("=QIIII", taken["samples"]):
        counts[names[process]] += count
    return counts


def named(session: Session, taken: dict[str, bytes]) -> Profile:
    profile = Profile(started_at=0, duration=1, hz=HZ, ends=end_texts())
    fill(profile, taken, session.files, session.intervals.names, session.intervals.facts)
    return profile


def poll_for(session: Session, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        session.poll(min(0.25, max(end - time.monotonic(), 0)))


def poll_until_loaded(session: Session, pids: Sequence[int]) -> None:
    """Polls until all processes are in the kernel and no stack is cut any more for want of rows."""
    deadline = time.monotonic() + 60 * SCALE
    quiet_since, before = time.monotonic(), -1
    while time.monotonic() - quiet_since < QUIET:
        assert time.monotonic() < deadline, session.accounting()
        session.poll(0.1)
        incomplete = session.accounting().incomplete
        cut = incomplete.get(NOT_LOADED, 0) + incomplete.get(TOO_SHORT, 0)
        if cut != before or session.reader.waiting or not set(pids) <= set(session.trie.pids()):
            quiet_since, before = time.monotonic(), cut


class Tally:
    """Adds profiles up, by program."""

    def __init__(self, renames: dict[str, Callable[[str], str]]) -> None:
        self._renames = renames
        self.stacks: defaultdict[str, Counter[Stack]] = defaultdict(Counter)
        self.cut: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, profile: Profile) -> None:
        names = [frame.name + (KERNEL if frame.kind == FrameKind.KERNEL else "") for frame in profile.frames]
        columns = (profile.sample_process, profile.sample_stack, profile.sample_end, profile.sample_count)
        for process, number, end, count in zip(*columns, strict=True):
            program = profile.processes[process].name
            stack = (program, *(names[index] for index in reversed(profile.stack(number))))
            rename = self._renames.get(program)
            self.stacks[program][tuple(map(rename, stack)) if rename else stack] += count
            if end:
                self.cut[program][profile.ends[end]] += count

    def judged(self, programs: Sequence[Program]) -> dict[str, Seen]:
        assert set(self.stacks) <= {program.name for program in programs}
        return {
            p.name: Seen(dict(self.stacks[p.name]), self.cut[p.name], judge(self.stacks[p.name], p.chains))
            for p in programs
        }


def check(recording: Recording, program: Program) -> None:
    """Asserts that no frame of a program is wrong and that nearly all of its stacks are whole."""
    first, rest = recording.first[program.name], recording.rest[program.name]
    told = f"first: {first}\nthen: {rest}"
    assert not first.verdict.wrong, told
    assert not rest.verdict.wrong, told
    assert rest.verdict.total > ENOUGH, told
    assert rest.verdict.cut < (1 - COMPLETE) * rest.verdict.total, told
    # Of the first ones, only those that are deeper than their copy, or whose rows came late.
    excused = first.cut[TOO_SHORT] + first.cut[NOT_LOADED]
    cut = first.verdict.cut - excused + rest.verdict.cut
    assert cut < (1 - COMPLETE) * (first.verdict.total + rest.verdict.total), told


def check_reasons(recording: Recording, program: Program, unsure: float = 0) -> None:
    """Asserts that pyprof calls incomplete just those stacks of a program that do not reach a start.

    Args:
        recording: of it.
        program: whose stacks were judged.
        unsure: the share of its stacks of which the chains do not tell.
    """
    for seen in (recording.first[program.name], recording.rest[program.name]):
        cut = seen.verdict.cut
        assert cut <= seen.cut.total() <= cut + unsure * seen.verdict.total, seen
