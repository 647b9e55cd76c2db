# SPDX-License-Identifier: Apache-2.0
"""The profilers that are compared: how each is run, and how what it delivered is read."""

import json
import shlex
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from pyprof.export.otlp.endpoint import HTTP

ROOT = Path(__file__).parents[2]
OURS = "pyprof"
SECOND = 1_000_000_000
PATIENCE = 30
"""Seconds for a sink to be ready, and for a profiler to end."""


@dataclass
class Delivered:
    """What reached the user.

    Attributes:
        samples: how many.
        identified: those of them with a process name, and a build ID for each native frame.
        seconds: in which they were taken.
    """

    samples: int
    identified: int
    seconds: float


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a profiler as Ctrl-C does; one that does not is killed."""
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Ports(NamedTuple):
    """Where a sink listens."""

    grpc: int
    http: int


@contextmanager
def sink(lines: IO[bytes]) -> Iterator[Ports]:
    """Receives OTLP profiles, a line for each request."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peers.sink"], cwd=ROOT, stdin=subprocess.PIPE, stdout=lines
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while not (first := Path(lines.name).read_text()).endswith("\n"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the sink does not start: pip install grpcio opentelemetry-proto")
            time.sleep(0.1)
        yield Ports(**json.loads(first.splitlines()[0]))
    finally:
        process.communicate(timeout=PATIENCE)


def received(requests: Path, begin: int, end: int) -> Delivered:
    """What a sink's lines say of a time, ns since 1970."""
    counts = {"identified": 0, "other": 0}
    for line in requests.read_text().splitlines()[1:]:
        for kind, times in json.loads(line).items():
            counts[kind] += sum(begin <= at < end for at in times)
    return Delivered(sum(counts.values()), counts["identified"], (end - begin) / SECOND)


class Profiler(ABC):
    """A profiler that sends OTLP profiles, here to a sink. Each is run once."""

    name: str

    @abstractmethod
    def command(self, ports: Ports, folder: Path, hz: int) -> list[str]:
        """What runs it until it is told to end. ports: of the sink; folder: for what it writes."""

    @contextmanager
    def running(self, folder: Path, hz: int) -> Iterator["subprocess.Popen[bytes]"]:
        """Runs it. folder: for what it writes, and for its log."""
        self._requests = folder / "requests"
        self.log = folder / f"{self.name}.log"
        with self._requests.open("wb") as lines, self.log.open("wb") as log, sink(lines) as ports:
            process = subprocess.Popen(self.command(ports, folder, hz), cwd=ROOT, stdout=log, stderr=log)
            try:
                yield process
            finally:
                end(process)

    def delivered(self, begin: int, end: int) -> Delivered:
        """What came of the run. begin, end: the measured time, ns since 1970."""
        return received(self._requests, begin, end)


class Pyprof(Profiler):
    """`pyprof daemon` as it is by default, but for the rate and where it sends to."""

    def __init__(self, protocol: str = HTTP) -> None:
        """protocol: by which it sends."""
        self._protocol = protocol
        self.name = OURS if protocol == HTTP else f"{OURS}, {protocol}"

    def command(self, ports: Ports, folder: Path, hz: int) -> list[str]:
        port = ports.http if self._protocol == HTTP else ports.grpc
        return [
            sys.executable, "-m", "pyprof", "daemon", "-F", str(hz), "--spool-dir", str(folder / "spool"),
            "--otlp-endpoint", f"http://127.0.0.1:{port}", "--otlp-protocol", self._protocol,
        ]  # fmt: skip


class OpenTelemetry(Profiler):
    """The OpenTelemetry eBPF profiler, which reports over OTLP every five seconds."""

    name = "opentelemetry"
    # It wants both file systems, mounted or not, and nobody else needs to see them.
    MOUNTS = "mount -t debugfs none /sys/kernel/debug && mount -t tracefs none /sys/kernel/tracing"

    def __init__(self, program: Path) -> None:
        """program: what build-opentelemetry made."""
        self._program = program.resolve()

    def command(self, ports: Ports, folder: Path, hz: int) -> list[str]:
        del folder
        own = [
            str(self._program), "-collection-agent", f"127.0.0.1:{ports.grpc}", "-disable-tls",
            "-samples-per-second", str(hz),
        ]  # fmt: skip
        return ["unshare", "-m", "sh", "-c", f"{self.MOUNTS}; exec {shlex.join(own)}"]
