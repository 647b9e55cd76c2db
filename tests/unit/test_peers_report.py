# SPDX-License-Identifier: Apache-2.0
"""What the comparison with other profilers prints, and what it reads from the kernel."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from benchmarks.peers.machine import BpfUse, cpu_seconds, memory_by_kind, memory_mib, tree
from benchmarks.peers.measure import Figures
from benchmarks.peers.report import put, table
from benchmarks.peers.soak import trend

OURS = Figures(
    load="native",
    hz=19,
    profiler="pyprof",
    bpf_us_a_sample=14.314,
    cpu_percent=0.18,
    cpu_seconds_start=0.4,
    rss_mib=28.7,
    rss_peak_mib=40,
    maps_mib=3.9,
    delivered=0.9996,
    identified=1,
)
THEIRS = replace(OURS, profiler="opentelemetry", bpf_us_a_sample=44.06, cpu_percent=0.56, maps_mib=34.4)


def test_runs_of_one_load_and_rate_are_compared() -> None:
    other = replace(OURS, hz=997)
    lines = list(table([OURS, THEIRS, other]))
    assert lines[2] == (
        "| native | 19 | pyprof | 14.31 us | 0.18 % | 0.40 s | 29 (40) MiB | 3.9 MiB | 100.0% | 100.0% |"
    )
    assert lines[4] == (
        "| native | 19 | pyprof / opentelemetry | **0.32** | **0.32** | **1.00** | **1.00** | **0.11** | | |"
    )
    assert len(lines) == 6
    assert {line.count("|") for line in lines} == {11}


def test_document_gets_the_table_in_the_place_that_it_marks() -> None:
    document = "a\n<!-- peers: begin -->\nold\n<!-- peers: end -->\nb\n"
    assert put(document, "new\n") == "a\n<!-- peers: begin -->\nnew\n<!-- peers: end -->\nb\n"
    with pytest.raises(ValueError, match="no lines"):
        put("a\n<!-- peers: begin -->\n", "new")


def test_runs_are_those_of_the_program_that_takes_most_time() -> None:
    before = BpfUse(runs={1: 100, 2: 50}, nanoseconds={1: 1000, 2: 10})
    now = BpfUse(runs={1: 110, 2: 90, 3: 4}, nanoseconds={1: 1500, 2: 30, 3: 7})
    assert now.since(before) == (10, 500 + 20 + 7)


def test_nothing_in_the_kernel_gives_no_runs() -> None:
    assert BpfUse().since(BpfUse()) == (0, 0)


def test_cpu_time_and_memory_include_those_of_children() -> None:
    code = (
        "import time\nheld = b'x' * (64 << 20)\nwhile time.process_time() < 0.5: pass\n"
        "print('ready', flush=True)\ninput()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"ready\n"
        assert child.pid in tree(os.getpid())
        own = time.process_time()
        assert cpu_seconds(os.getpid()) > own + 0.4
        assert 0.4 < cpu_seconds(child.pid) < 5
        now, peak = memory_mib(child.pid)
        assert 64 < now <= peak < 256
        held = memory_by_kind(child.pid)
        assert 64 < held.anonymous < now
        assert held.files > 1
        assert held.maps == 0
        assert sum(held) == pytest.approx(now, rel=0.05)
        child.stdin.write(b"\n")


def test_trend_is_the_line_of_least_squares() -> None:
    found = trend([0, 60, 120, 180], [1, 2, 2, 3])
    assert (found.least, found.most, found.last) == (1, 3, 3)
    # 3/5 MiB a minute; the rests are -1/10, 3/10, -3/10 and 1/10, so that the error is the root of 1/50.
    assert found.slope == pytest.approx(0.6 * 1024)
    assert found.error == pytest.approx(0.02**0.5 * 1024)
