# SPDX-License-Identifier: Apache-2.0
"""One OTLP export of 100,000 samples with 20,000 distinct stacks of 30 frames, in 50 processes.

The time is that of encoding, without compression and network. The memory is what a process of its own needs
more at its peak than before, as the kernel counts it.
"""

import json
import random
import subprocess
import sys
import time
from array import array
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.ratios import time_rounds
from benchmarks.stacks import KERNEL, distinct_stacks
from pyprof.export.otlp.encoder import Encoded, Shape, encode
from pyprof.profile.model import Executable, Frame, FrameKind, Process, Profile, Thread

SAMPLES, STACKS, PROCESSES = 100_000, 20_000, 50


def make_profile() -> Profile:
    chance = random.Random(20)
    profile = Profile(1_700_000_000_000_000_000, 5_000_000_000, 20)
    profile.processes = [
        Process(1000 + i, f"app{i}", 1, f"/usr/bin/app{i}", f"{i:064x}") for i in range(PROCESSES)
    ]
    profile.threads = [Thread(0, "")]
    numbers: dict[tuple[int, int, int], int] = {}
    for stack in distinct_stacks(chance, STACKS, 30):
        profile.stack_frames.extend(numbers.setdefault(frame, len(numbers)) for frame in stack)
        profile.stack_starts.append(len(profile.stack_frames))
    for kind, executable, address in numbers:
        name = f"_ZN3app8function{address:x}Ev"
        if kind == KERNEL:
            profile.frames.append(Frame(FrameKind.KERNEL, -1, address, name, name))
        else:
            profile.frames.append(
                Frame(FrameKind.NATIVE, executable - 2, address, f"app::function{address:x}()", name)
            )
    profile.executables = [
        Executable(f"/usr/lib/lib{i}.so", f"{i:040x}", "", f"{i:032x}", 0, 1 << 23) for i in range(12)
    ]
    rows = [*range(STACKS), *(chance.randrange(STACKS) for _ in range(SAMPLES - STACKS))]
    counts = [0] * STACKS
    for row in rows:
        counts[row] += 1
    profile.sample_process = array("I", [row % PROCESSES for row in range(STACKS)])
    profile.sample_thread = array("I", bytes(4 * STACKS))
    profile.sample_stack = array("I", range(STACKS))
    profile.sample_count = array("Q", counts)
    profile.sample_end = array("B", bytes(STACKS))
    profile.time_samples = array("I", rows)
    profile.times = array("Q", [profile.started_at + i * 49_999 for i in range(SAMPLES)])
    return profile


def peak_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise RuntimeError("no VmHWM")


def main(shape: Shape) -> None:
    profile = make_profile()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what it is now, proc_pid_clear_refs(5)
    before = peak_kib()
    began = time.process_time()
    encoded = encode(profile, shape)
    sizes = [len(batch.payload) for batch in encoded.batches]
    print(json.dumps({"seconds": time.process_time() - began, "sizes": sizes, "kib": peak_kib() - before}))


@pytest.mark.benchmark(group="OTLP export of 100,000 samples, 20,000 stacks")
@pytest.mark.parametrize("shape", list(Shape))
def test_export(benchmark: BenchmarkFixture, shape: Shape) -> None:
    profile = make_profile()
    found: list[Encoded] = []
    time_rounds(benchmark, 3, lambda: ((), {}), lambda: found.append(encode(profile, shape)))
    assert sum(batch.samples for batch in found[0].batches) == SAMPLES
    command = [sys.executable, "-m", "benchmarks.test_export", shape.value]
    alone = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    benchmark.extra_info["note"] = (
        f"OTLP export, {shape}: {alone['seconds']:.2f} s of CPU, {sum(alone['sizes']):,} bytes in "
        f"{len(alone['sizes'])} messages, {alone['kib'] / 1024:.1f} MiB more memory at the peak"
    )


if __name__ == "__main__":
    main(Shape(sys.argv[1]))
