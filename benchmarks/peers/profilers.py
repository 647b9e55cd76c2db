# SPDX-License-Identifier: Apache-2.0
"""The profilers that are compared: how each is run, and how what it delivered is read."""

import gzip
import json
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from pyprof.export.names import KERNEL
from pyprof.export.pprof_schema import PprofProfile

ROOT = Path(__file__).parents[2]
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


class Profiler(Protocol):
    """One run of a profiler."""

    name: str

    def running(
        self, folder: Path, hz: int, seconds: int
    ) -> "AbstractContextManager[subprocess.Popen[bytes]]":
        """Runs it for so many seconds at least, with a folder for what it writes."""
        ...

    def delivered(self, begin: int, end: int) -> Delivered:
        """What came of a run. begin, end: the measured time, ns since 1970."""
        ...


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a profiler as Ctrl-C does; one that does not is killed."""
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Pyprof:
    """`pyprof record`, which writes one profile of its whole run at the end."""

    name = "pyprof"

    @contextmanager
    def running(self, folder: Path, hz: int, seconds: int) -> Iterator["subprocess.Popen[bytes]"]:
        self._profile, self._summary = folder / "pyprof.pb.gz", folder / "pyprof.json"
        command = [
            sys.executable, "-m", "pyprof", "record", "-F", str(hz), "-d", str(seconds), "--json",
            "-o", str(self._profile),
        ]  # fmt: skip
        with self._summary.open("wb") as out, (folder / "pyprof.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=log)
            try:
                yield process
                process.wait(seconds + PATIENCE)
            finally:
                end(process)

    def delivered(self, begin: int, end: int) -> Delivered:
        del begin, end  # its profile is of the whole run
        summary = json.loads(self._summary.read_text())
        message = PprofProfile()
        message.ParseFromString(gzip.decompress(self._profile.read_bytes()))
        strings = message.string_table
        mappings = {
            mapping.id: strings[mapping.filename] == KERNEL or bool(strings[mapping.build_id])
            for mapping in message.mapping
        }
        # Code that a JIT compiler made lies in no file.
        anonymous = {function.id for function in message.function if strings[function.name] == "[anon]"}
        locations = {
            location.id: mappings.get(location.mapping_id, False)
            or any(line.function_id in anonymous for line in location.line)
            for location in message.location
        }
        samples = identified = 0
        for sample in message.sample:
            named = any(strings[label.key] == "process" and strings[label.str] for label in sample.label)
            samples += sample.value[0]
            if named and all(locations[number] for number in sample.location_id):
                identified += sample.value[0]
        return Delivered(samples, identified, summary["seconds"])


@contextmanager
def sink(lines: IO[bytes]) -> Iterator[int]:
    """Receives OTLP profiles, a line for each request; the port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peers.sink", str(port)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=lines,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE
        while not Path(lines.name).stat().st_size:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the sink does not start: pip install grpcio opentelemetry-proto")
            time.sleep(0.1)
        yield port
    finally:
        process.communicate(timeout=PATIENCE)


class OpenTelemetry:
    """The OpenTelemetry eBPF profiler, which reports over OTLP every five seconds."""

    name = "opentelemetry"
    MOUNTS = "mount -t debugfs none /sys/kernel/debug && mount -t tracefs none /sys/kernel/tracing"

    def __init__(self, program: Path) -> None:
        """program: what build-opentelemetry made."""
        self._program = program.resolve()

    @contextmanager
    def running(self, folder: Path, hz: int, seconds: int) -> Iterator["subprocess.Popen[bytes]"]:
        del seconds  # it runs until it is told to end
        self._requests = folder / "requests"
        with self._requests.open("wb") as lines, (folder / "opentelemetry.log").open("wb") as log:
            with sink(lines) as port:
                command = shlex.join(
                    [str(self._program), "-collection-agent", f"127.0.0.1:{port}", "-disable-tls",
                     "-samples-per-second", str(hz)]
                )  # fmt: skip
                # It wants both file systems, mounted or not, and nobody else needs to see them.
                process = subprocess.Popen(
                    ["unshare", "-m", "sh", "-c", f"{self.MOUNTS}; exec {command}"], stdout=log, stderr=log
                )
                try:
                    yield process
                finally:
                    end(process)

    def delivered(self, begin: int, end: int) -> Delivered:
        counts = {"identified": 0, "other": 0}
        for line in self._requests.read_text().splitlines():
            for kind, times in json.loads(line).items():
                counts[kind] += sum(begin <= at < end for at in times)
        return Delivered(sum(counts.values()), counts["identified"], (end - begin) / SECOND)
