# SPDX-License-Identifier: Apache-2.0
"""Measures one profiler on one load."""

import os
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.peers.machine import MIB, BpfWatch, busy_seconds, cpu_seconds, memory_mib
from benchmarks.peers.profilers import Profiler

START = 60
"""Most seconds until one samples: verifying its programs takes one of them five or thirty on a busy host."""

SETTLE = 10
"""Seconds from then on until its start is over."""

TAIL = 12
"""Seconds that it goes on, so that what was measured is reported: one of them does it every five to nine."""


@dataclass
class Figures:
    """What one run cost and brought.

    Attributes:
        load, hz, profiler: what ran.
        bpf_us_a_sample: time of all of its BPF programs for each run of the sampling one, microseconds.
        cpu_percent: CPU time of its processes after the start, in percent of one core.
        cpu_seconds_start: CPU time up to then.
        rss_mib, rss_peak_mib: resident memory.
        maps_mib: kernel memory of its BPF maps.
        delivered: samples that reached the file or the receiver, by what is expected: the time in which any
            CPU was busy, by the rate.
        identified: those with a process name, and a build ID for each native frame, of the delivered.
    """

    load: str
    hz: int
    profiler: str
    bpf_us_a_sample: float
    cpu_percent: float
    cpu_seconds_start: float
    rss_mib: float
    rss_peak_mib: float
    maps_mib: float
    delivered: float
    identified: float

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def wait(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Lets a profiler run.

    Raises:
        RuntimeError: it ended.
    """
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    raise RuntimeError(f"it ended with {process.returncode}")


def wait_for_samples(process: "subprocess.Popen[bytes]", watch: BpfWatch) -> None:
    """Waits until one of its programs has run.

    Raises:
        RuntimeError: it ended, or none ran.
    """
    deadline = time.monotonic() + START
    while not any(watch.look(process.pid).runs.values()):
        wait(process, 0.5)
        if time.monotonic() > deadline:
            raise RuntimeError(f"it took no sample within {START} s")


def measure(profiler: Profiler, load: str, hz: int, seconds: int) -> Figures:
    """Runs a profiler while the load runs. seconds: that are measured.

    Raises:
        RuntimeError: the profiler does not run; its own words are in the message.
    """
    with tempfile.TemporaryDirectory(prefix="pyprof-peers-") as name:
        folder = Path(name)
        watch = BpfWatch()
        try:
            with profiler.running(folder, hz) as process:
                wait_for_samples(process, watch)
                wait(process, SETTLE)
                begin, clock = time.time_ns(), time.monotonic()
                cpu, busy, bpf = cpu_seconds(process.pid), busy_seconds(), watch.look(process.pid)
                wait(process, seconds)
                end, passed = time.time_ns(), time.monotonic() - clock
                used, worked = cpu_seconds(process.pid) - cpu, busy_seconds() - busy
                now, memory = watch.look(process.pid), memory_mib(process.pid)
                wait(process, TAIL - 1)
        except RuntimeError as error:
            logs = [log.read_text(errors="replace") for log in folder.glob("*.log")]
            raise RuntimeError(f"{profiler.name}: {error}\n" + "".join(logs)[-2000:]) from error
        found = profiler.delivered(begin, end)
    runs, nanoseconds = now.since(bpf)
    expected = worked / passed * hz * found.seconds
    return Figures(
        load=load,
        hz=hz,
        profiler=profiler.name,
        bpf_us_a_sample=nanoseconds / max(runs, 1) / 1000,
        cpu_percent=100 * used / passed,
        cpu_seconds_start=cpu,
        rss_mib=memory[0],
        rss_peak_mib=memory[1],
        maps_mib=sum(now.maps.values()) / MIB,
        delivered=found.samples / max(expected, 1),
        identified=found.identified / max(found.samples, 1),
    )


def host() -> str:
    """The machine, in one line."""
    system = os.uname()
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        system.machine,
    )
    return f"{os.cpu_count()} CPUs ({model}), Linux {system.release}"
