# SPDX-License-Identifier: Apache-2.0
"""More unwind rows than the arena may hold: the cap holds, rows give way, every sample is accounted for."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyprof.session import Options, Session
from tests.support.bpf import held, shown
from tests.support.profiling import TARGETS
from tests.support.programs import as_it_was, poll_for, samples_by_process
from tests.support.truth import tool

pytestmark = pytest.mark.bpf

CAP = 4 << 20
GAP = 1.3
"""Seconds after which what was not sampled may give way."""
BY_FRAME_POINTER = "frame pointer does not lead on"
ENOUGH = 50
"""Samples of each program in each phase."""


def compiling(compiler: str, source: str) -> list[str]:
    return ["sh", "-c", f"while :; do {compiler} -O2 -c {TARGETS / source} -o /dev/null; done"]


QUERY = (
    "import sqlite3\nc = sqlite3.connect(':memory:')\nwhile True: c.execute('select ?', ('a',)).fetchall()"
)
SCRIPT = "for (;;) JSON.parse(JSON.stringify(Array.from({length: 1000}, (_, i) => ({i, s: String(i)}))))"

# Rows, MiB: libLLVM 4.5 and libclang-cpp 5.1, neither of which fits; node 1.4, cc1 1.8; cc1plus 2.0, gdb 0.6.
ALWAYS = {
    "clang-19": compiling("clang-19", "frames.c"),
    Path(sys.executable).name: [sys.executable, "-c", QUERY],
}
ONE = {"node": ["node", "-e", SCRIPT], "cc1": compiling("gcc", "frames.c")}
OTHER = {
    "cc1plus": compiling("g++", "throws.cc"),
    "gdb": ["gdb", "-batch", "-nx", "-ex", "while 1", "-ex", "print 1"],
}


@contextmanager
def started(session: Session, programs: dict[str, list[str]]) -> Iterator[None]:
    processes = [
        subprocess.Popen(["nice", "-n", "5", *command], stdout=subprocess.DEVNULL, process_group=0)
        for command in programs.values()
    ]
    try:
        session.poll(0)
        for process in processes:
            assert session.table.set_target(process.pid)
        yield
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def chunk_bytes() -> list[int]:
    """Bytes that the kernel has locked for each chunk of this process."""
    maps = shown("map")
    return [maps[number]["bytes_memlock"] for number in held("map") if maps[number]["name"] == "chunk"]


class Watch:
    """Polls a session, looks at its chunks, and keeps what was counted."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.looks: list[list[int]] = []
        self.taken: list[dict[str, bytes]] = []
        self.phases: list[Counter[str]] = []

    def until(self, names: Iterable[str], seconds: float) -> None:
        """At least so long, and until all programs were sampled often enough."""
        counts: Counter[str] = Counter()
        end = time.monotonic() + seconds
        limit = end + 60
        while time.monotonic() < end or min(counts[name] for name in names) < ENOUGH:
            assert time.monotonic() < limit, counts
            poll_for(self.session, 0.5)
            self.looks.append(chunk_bytes())
            self.taken.append(self.session.aggregator.take())
            counts += samples_by_process(self.taken[-1])
        self.phases.append(counts)


def test_cap_holds_and_every_sample_counts_when_rows_need_more(tmp_path: Path) -> None:
    for command in (*ALWAYS.values(), *ONE.values(), *OTHER.values()):
        tool(command[0])
    with as_it_was(), Session(Options(hz=499, arena_bytes=CAP)) as session:
        session.table.set_only_targets()
        session.prepare()
        session.start()
        watch = Watch(session)
        with started(session, ALWAYS):
            for programs in (ONE, OTHER, ONE):
                watch.until(ALWAYS, GAP)
                with started(session, programs):
                    watch.until((*ALWAYS, *programs), 2)
        session.stop()
        watch.taken.append(session.aggregator.take())
        accounting, state = session.accounting(), session.state()
    told = f"{accounting}\n{state}\n{watch.phases}"
    assert all(len(look) <= CAP >> 20 for look in watch.looks), watch.looks
    assert max(map(sum, watch.looks)) <= CAP + len(watch.looks[-1]) * os.sysconf("SC_PAGE_SIZE"), watch.looks
    assert len(watch.looks[-1]) == CAP >> 20, "it was needed"
    arena = state["arena"]
    assert isinstance(arena, dict)
    assert arena["evictions"] >= 1, told
    assert arena["no_room"] >= 1, told
    assert arena["rows"] * 4 <= CAP, told
    # Nothing is lost; what found no room is unwound by frame pointers, and says where that ends.
    assert accounting.taken == accounting.reported + sum(accounting.lost.values()), told
    assert accounting.lost == {}, told
    assert sum((samples_by_process(taken) for taken in watch.taken), Counter()).total() == accounting.reported
    assert accounting.incomplete[BY_FRAME_POINTER] > 0, told
