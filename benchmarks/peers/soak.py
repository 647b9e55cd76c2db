# SPDX-License-Identifier: Apache-2.0
"""python -m benchmarks.peers.soak: the daemon for a long time: CPU share, and whether its memory grows."""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.loads import LOADS, build, running
from benchmarks.peers.machine import Memory, cpu_seconds, memory_by_kind
from benchmarks.peers.measure import host, wait
from benchmarks.peers.profilers import Pyprof
from pyprof.export.otlp.endpoint import GRPC, HTTP

EVERY = 10
"""Seconds from look to look."""
TELL_EVERY = 300
LEAST_LOOKS = 3
"""After the warm-up, for a slope and its error."""
EPILOG = """\
Needs root, and g++ with zlib. Of resident memory, "anonymous" is what the daemon holds for itself. "maps" are
unwind rows of the executables that ran, which are shared with the kernel and grow up to their cap while the
host starts programs that it has not run before. "files" are pages of programs and libraries.
"""


class Look(NamedTuple):
    """At the daemon: seconds since the start, CPU seconds so far, memory."""

    at: float
    cpu: float
    memory: Memory


class Trend(NamedTuple):
    """Memory over time: MiB, KiB a minute, and the standard error of the latter."""

    least: float
    most: float
    last: float
    slope: float
    error: float


def trend(times: Sequence[float], mib: Sequence[float]) -> Trend:
    """The line of least squares through MiB by seconds, of three points at least."""
    line = statistics.linear_regression(times, mib)
    rests = (value - line.intercept - line.slope * at for at, value in zip(times, mib, strict=True))
    spread = statistics.pvariance(times) * len(times)
    error = math.sqrt(sum(rest * rest for rest in rests) / (len(times) - 2) / spread)
    kib_a_minute = 1024 * 60
    return Trend(min(mib), max(mib), mib[-1], line.slope * kib_a_minute, error * kib_a_minute)


@dataclass
class Soak:
    """What a long run said, the warm-up left out.

    Attributes:
        cpu_percent: of one core.
        memory: of the daemon: all that is resident, and by kind.
        received: samples that reached the receiver, from the start on.
        said: the daemon's last line.
        looks: all of them, the warm-up's included.
    """

    cpu_percent: float
    memory: dict[str, Trend]
    received: int
    said: str
    looks: list[Look]

    def lines(self) -> list[str]:
        """For people."""
        lines = [f"CPU: {self.cpu_percent:.2f} % of a core"]
        for name, found in self.memory.items():
            lines.append(
                f"{name}: {found.least:.1f} to {found.most:.1f} MiB, {found.last:.1f} at the end; "
                f"slope {found.slope:+.2f} KiB a minute, standard error {found.error:.2f}"
            )
        return [*lines, f"received: {self.received} samples", f"daemon: {self.said}"]


def watch(process: "subprocess.Popen[bytes]", seconds: float) -> list[Look]:
    """Looks at the daemon every ten seconds.

    Raises:
        RuntimeError: it ended.
    """
    looks: list[Look] = []
    start = told = time.monotonic()
    while (passed := time.monotonic() - start) < seconds:
        if time.monotonic() - told >= TELL_EVERY:
            told = time.monotonic()
            minutes, mib = passed / 60, sum(looks[-1].memory)
            print(f"{minutes:.0f} of {seconds / 60:g} minutes: {mib:.1f} MiB", file=sys.stderr, flush=True)
        with suppress(OSError):  # where it ends: wait() tells
            looks.append(Look(passed, cpu_seconds(process.pid), memory_by_kind(process.pid)))
        wait(process, EVERY)
    return looks


def soak(profiler: Pyprof, hz: int, minutes: float, warm_up: float) -> Soak:
    """Runs the daemon. minutes, warm_up: of which the latter is not evaluated.

    Raises:
        RuntimeError: it ended; its own words are in the message.
    """
    with tempfile.TemporaryDirectory(prefix="pyprof-soak-") as name:
        begin = time.time_ns()
        try:
            with profiler.running(Path(name), hz) as process:
                looks = watch(process, minutes * 60)
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{profiler.log.read_text(errors='replace')[-2000:]}") from error
        received = profiler.delivered(begin, time.time_ns()).samples
        said = profiler.log.read_text(errors="replace").splitlines()[-1]
    late = [look for look in looks if look.at >= warm_up * 60]
    times = [look.at for look in late]
    columns = {"resident": [sum(look.memory) for look in late]}
    columns |= {kind: [getattr(look.memory, kind) for look in late] for kind in Memory._fields}
    return Soak(
        cpu_percent=100 * (late[-1].cpu - late[0].cpu) / (times[-1] - times[0]),
        memory={name: trend(times, column) for name, column in columns.items()},
        received=received,
        said=said,
        looks=looks,
    )


def main() -> int:
    """Prints what a long run said; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.soak", epilog=EPILOG)
    parser.add_argument("--load", choices=LOADS, default="idle", help="what else runs (default idle)")
    parser.add_argument("--minutes", type=float, default=30, help="how long (default 30)")
    parser.add_argument("--warm-up", type=float, default=10, help="minutes left out (default 10)")
    parser.add_argument("--rate", type=int, default=20, help="samples a second on each CPU (default 20)")
    parser.add_argument("--protocol", choices=(HTTP, GRPC), default=HTTP, help=f"default {HTTP}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("needs root")
    if (args.minutes - args.warm_up) * 60 < LEAST_LOOKS * EVERY:
        parser.error("--minutes must be half a minute more than --warm-up, at least")
    try:
        with tempfile.TemporaryDirectory(prefix="pyprof-loads-") as folder:
            with running(args.load, build(Path(folder))):
                found = soak(Pyprof(args.protocol), args.rate, args.minutes, args.warm_up)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    if args.json:
        trends = {name: each._asdict() for name, each in found.memory.items()}
        print(json.dumps({"host": host(), **vars(args), **asdict(found), "memory": trends}))
    else:
        print(f"{host()}; {args.load}, {args.rate} Hz, {args.protocol}, {args.minutes:g} minutes")
        print("\n".join(found.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
