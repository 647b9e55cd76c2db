# SPDX-License-Identifier: Apache-2.0
"""A CPU that goes away and comes back while pyprof samples."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyprof.bpf.perf_events import online_cpus
from tests.kernels.recording import HZ, poll_for, sampling
from tests.support.profiling import build_target, running

SWITCHES = sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/online"))

pytestmark = [
    pytest.mark.bpf,
    pytest.mark.skipif(
        len(online_cpus()) < 2 or not any(os.access(switch, os.W_OK) for switch in SWITCHES),
        reason="no CPU can be taken offline here: /sys/devices/system/cpu/cpu*/online is not writable",
    ),
]


@pytest.fixture
def switch() -> Iterator[Path]:
    path = [path for path in SWITCHES if os.access(path, os.W_OK)][-1]
    yield path
    path.write_text("1")


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used, from fields 14 and 15 of proc(5)'s stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_cpu_that_returns_is_sampled_again(tmp_path: Path, switch: Path) -> None:
    target = build_target(tmp_path, "chain.c")
    cpu = int(switch.parent.name.removeprefix("cpu"))
    with running(target) as before, sampling() as session:
        unsampled = cpu_seconds(before.pid)
        os.sched_setaffinity(before.pid, {cpu})
        poll_for(session, 1)
        switch.write_text("0")
        assert cpu not in online_cpus()
        poll_for(session, 1.5)
        switch.write_text("1")
        poll_for(session, 1.5)
        with running(target) as after:
            os.sched_setaffinity(after.pid, {cpu})
            poll_for(session, 2)
            session.stop()
            used = {
                before.pid: cpu_seconds(before.pid) - unsampled,
                after.pid: cpu_seconds(after.pid),
            }
        profile = session.take()
    counts = profile.accounting
    assert counts.taken == counts.reported + sum(counts.lost.values())
    samples = {before.pid: 0, after.pid: 0}
    for sample in profile.samples():
        pid = profile.processes[sample.process].pid
        if pid in samples:
            samples[pid] += sample.count
    # Sampled where the one was moved to, and on the CPU that is back.
    assert {pid: samples[pid] / (HZ * seconds) > 0.6 for pid, seconds in used.items()} == dict.fromkeys(
        used, True
    )
