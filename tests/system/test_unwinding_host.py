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

from tests.support.profiling import TARGETS, record
from tests.support.programs import NOT_LOADED
from tests.support.truth import PROCESS, Chain, Some, Stack, build, judge, user_half

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
    """A compiler, Python with SQLite, and a shell that starts short programs, again and again; their pids."""
    source = TARGETS / "frames.c"
    jobs = [
        ["sh", "-c", f"while :; do gcc -O2 -c {source} -o {folder}/frames.o; done"],
        [sys.executable, "-c", CHURN],
        ["sh", "-c", "while :; do ls -l /usr/bin | sort -k5 -n | tail -3 | sed s/a/b/; done"],
    ]
    processes = [subprocess.Popen(job, stdout=subprocess.DEVNULL, process_group=0) for job in jobs]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def without_start(stacks: dict[Stack, int]) -> dict[str, Counter[str]]:
    """Process -> root frame -> samples, of the stacks whose root is not known to be a start."""
    found: dict[str, Counter[str]] = {}
    for stack, count in stacks.items():
        user = user_half(stack[1:])
        known = (
            not user or user[0] == "_start" or user[1:2] == ("__libc_start_main",) or "ld-linux" in user[0]
        )
        if not known:
            found.setdefault(stack[0], Counter())[user[0]] += count
    return found


def test_stacks_of_a_busy_host_are_whole(tmp_path: Path) -> None:
    with load(tmp_path) as pids:
        # Only these: what else runs is not ours to judge by.
        only = [word for pid in pids for word in ("-p", str(pid))]
        got = record(tmp_path / "out.folded", "-F", "499", "-d", "5", *only)
    reported = got.report["samples"]["reported"]
    told = f"{got.report}\n{without_start(got.folded())}"
    assert reported > 1000, told
    assert sum(got.report["incomplete"].values()) / reported < 0.01, told
