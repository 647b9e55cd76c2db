# SPDX-License-Identifier: Apache-2.0
"""What a sample costs in the kernel, by depth of the user stack: bpf_stats over real samples."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from pyprof.session import Options, Session
from tests.support.profiling import build_target, running

STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
HZ = 1999
SECONDS = 3


def run_time(program_fd: int) -> tuple[int, int]:
    """(nanoseconds, runs) of a program so far, as the kernel counts them."""
    number = next(
        line.split()[1]
        for line in Path(f"/proc/self/fdinfo/{program_fd}").read_text().splitlines()
        if line.startswith("prog_id:")
    )
    shown = subprocess.run(
        ["bpftool", "-j", "prog", "show", "id", number], check=True, capture_output=True, text=True
    )
    entry = json.loads(shown.stdout)
    return entry.get("run_time_ns", 0), entry.get("run_cnt", 0)


@pytest.mark.parametrize("depth", [10, 30, 100])
@pytest.mark.benchmark(group="kernel time a sample")
def test_kernel_time_of_a_sample(benchmark: BenchmarkFixture, tmp_path: Path, depth: int) -> None:
    """The note holds the figure; the time in the table is that of the measurement."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    target = build_target(tmp_path, "depth.c", "-fomit-frame-pointer", compiler="gcc")

    def measure() -> float:
        before = STATS.read_text()
        STATS.write_text("1")
        try:
            with running(target, str(depth)), Session(Options(hz=HZ)) as session:
                session.prepare()
                session.start()
                for _ in range(4):
                    session.poll(0.25)
                begin = run_time(session.bpf.program_fd)
                for _ in range(4 * SECONDS):
                    session.poll(0.25)
                end = run_time(session.bpf.program_fd)
        finally:
            STATS.write_text(before)
        return (end[0] - begin[0]) / max(end[1] - begin[1], 1)

    nanoseconds = benchmark.pedantic(measure, rounds=1)  # type: ignore[no-untyped-call]
    benchmark.extra_info["note"] = f"{depth} frames: {nanoseconds:,.0f} ns a sample"
