# SPDX-License-Identifier: Apache-2.0
"""Processes that are gone before they are known, and a host with everything on it: stacks reach the start."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyprof.profile.completeness import completeness, render
from pyprof.profile.model import Profile
from pyprof.session import Options, Session
from tests.support.profiling import ROOT, record
from tests.support.programs import NOT_LOADED, as_it_was, named, poll_for
from tests.support.truth import PROCESS, Chain, Some, build, judge

pytestmark = pytest.mark.bpf


def test_first_samples_are_whole_when_processes_live_30_ms(tmp_path: Path) -> None:
    target = build(tmp_path, "brief.c", ["-Wl,-z,now"])
    got = record(tmp_path / "out.folded", "-F", "999", "--", target, "100", "2")
    stacks = {stack: count for stack, count in got.folded().items() if stack[0] == "brief"}
    working = {stack: count for stack, count in stacks.items() if "outer" in stack or "leaf" in stack}
    main: Chain = (PROCESS, "main")
    middle: Chain = (*main, "outer", "middle")
    clock = Some(r"clock_gettime(@plt)?|\[vdso\].*|__vdso_clock_gettime", 0, 3)
    verdict = judge(working, [middle, (*middle, "leaf"), (*middle, clock)])
    told = f"{verdict}\n{got.report}"
    assert not verdict.wrong, told
    assert verdict.total > 100 * 30 * 0.5, told
    late = got.report["incomplete"].get(NOT_LOADED, 0)
    assert verdict.cut <= 0.01 * verdict.total + late, told
    assert got.report["unwound_in_user_space"] > 0, told
    reported = got.report["samples"]["reported"]
    incomplete = sum(got.report["incomplete"].values())
    assert incomplete / reported < 0.01, told


CHURN = """
import json, sqlite3
connection = sqlite3.connect(":memory:")
connection.execute("create table words (number integer, word text)")
while True:
    connection.executemany("insert into words values (?, ?)", ((n, str(n * 7919)) for n in range(20000)))
    connection.execute("select max(word) from words where word like '%9%7%' group by number % 7").fetchall()
    json.loads(json.dumps(connection.execute("select * from words limit 5000").fetchall()))
    connection.execute("delete from words")
"""


@contextmanager
def load(folder: Path) -> Iterator[list[int]]:
    """gcc, clang, Python with SQLite, SQLite itself, and a shell that starts short programs; their pids."""
    flags = "-O2 -I bpf -I csrc -c csrc/cfi_program.c"
    words = (
        "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i * 7919 % 99) from n;"
    )
    jobs = [
        ["sh", "-c", f"while :; do gcc {flags} -o {folder}/gcc.o; done"],
        ["sh", "-c", f"while :; do clang-19 {flags} -o {folder}/clang.o; done"],
        ["sqlite3", ":memory:", words],
        [sys.executable, "-c", CHURN],
        ["sh", "-c", "while :; do ls -l /usr/bin | sort -k5 -n | tail -3 | sed s/a/b/; done"],
    ]
    processes = [subprocess.Popen(job, stdout=subprocess.DEVNULL, process_group=0, cwd=ROOT) for job in jobs]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def judged(
    session: Session, taken: dict[str, bytes], title: str, capsys: pytest.CaptureFixture[str]
) -> Profile:
    """What was counted, named; its completeness is printed."""
    profile = named(session, taken)
    counts = Counter[int]()
    for end, count in zip(profile.sample_end, profile.sample_count, strict=True):
        counts[end] += count
    with capsys.disabled():
        print(f"\n{title}: {counts[0]} of {counts.total()} stacks are complete")
        print(render(completeness(profile)))
    return profile


def test_stacks_of_a_busy_host_are_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Only these programs: what else runs is not ours to judge by.
    with as_it_was(), load(tmp_path) as pids, Session(Options(hz=999, pids=pids)) as session:
        session.prepare()
        session.start()
        # The rows of the largest files take a second to make, longer than samples wait for them.
        poll_for(session, 4)
        first = session.aggregator.take()
        poll_for(session, 8)
        session.stop()
        # Names take seconds in which nobody would read the rings.
        judged(session, first, "busy host, first 4 s", capsys)
        profile = judged(session, session.aggregator.take(), "busy host, then", capsys)
        accounting = session.accounting()
    assert accounting.taken == accounting.reported + sum(accounting.lost.values()), accounting
    shares = completeness(profile).executables
    reported = sum(share.samples for share in shares)
    assert reported > 500, shares
    assert {"cc1", "clang-19", "sqlite3", "ls", "sort"} <= {process.name for process in profile.processes}
    assert sum(share.complete for share in shares) / reported > 0.99, shares
