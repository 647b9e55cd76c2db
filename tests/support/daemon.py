# SPDX-License-Identifier: Apache-2.0
"""Runs `pyprof daemon` as a service manager does: it hears of its states, asks for metrics, and ends it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from prometheus_client.parser import text_string_to_metric_families

from tests.support.profiling import ROOT, SCALE

WAIT = 30 * SCALE


class Daemon:
    """A running daemon.

    Attributes:
        process: of it.
        said: states that it told its manager, in order.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", manager: socket.socket, log: Path) -> None:
        self.process = process
        self._manager = manager
        self._log = log
        self.said: list[str] = []
        manager.settimeout(WAIT)

    def wait_for(self, state: str, count: int = 1) -> None:
        """Until it has told its manager something so often."""
        while sum(state in told.split("\n") for told in self.said) < count:
            try:
                self.said.append(self._manager.recv(4096).decode())
            except TimeoutError:
                raise AssertionError(f"no {state} after {self.said}\n{self.log_text()}") from None

    def log_text(self) -> str:
        return self._log.read_text()

    def log(self) -> list[dict[str, Any]]:
        """The lines of its log."""
        return [json.loads(line) for line in self.log_text().splitlines()]

    def messages(self) -> list[str]:
        return [line["message"] for line in self.log()]

    def get(self, path: str) -> tuple[int, str]:
        """A page that it serves; the port is found in its log."""
        serving = "serving /metrics and /healthz at port "
        port = next(text.removeprefix(serving) for text in self.messages() if text.startswith(serving))
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=WAIT) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def health(self) -> dict[str, Any]:
        status, text = self.get("/healthz")
        assert status == 200, text
        found: dict[str, Any] = json.loads(text)
        return found

    def metrics(self) -> dict[tuple[str, ...], float]:
        """(name, values of labels...) -> value."""
        status, text = self.get("/metrics")
        assert status == 200, text
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def end(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """(exit code, seconds) of ending it by a signal."""
        begun = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(WAIT)
        return code, time.monotonic() - begun

    def totals(self) -> dict[str, int]:
        """What it said of its samples when it ended."""
        line = self.log()[-1]
        assert line["message"] == "stopped", self.log_text()
        return {name: value for name, value in line.items() if isinstance(value, int)}


@contextmanager
def started(
    folder: Path,
    *arguments: str,
    environ: Mapping[str, str] = {},
    prefix: Sequence[str] = (),
    module: str = "pyprof",
    defects: bool = False,
) -> Iterator[Daemon]:
    """A daemon with spool and socket in a folder, metrics at any port; killed at the end if it runs still.

    Args:
        folder: a new one for each.
        arguments: of the command line, after `daemon`.
        environ: variables besides the usual ones.
        prefix: a command that runs it in turn.
        module: what is run in the place of pyprof.
        defects: whether its log may have tracebacks.
    """
    folder.mkdir(exist_ok=True)
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PYPROF_EXPORT_"))
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        log = folder / "log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [
                    *prefix, sys.executable, "-m", module, "daemon", "--log-format", "json",
                    "--metrics-listen", "127.0.0.1:0", *arguments,
                ],
                stderr=stderr, cwd=ROOT,
                env=clean
                | {
                    "NOTIFY_SOCKET": str(folder / "notify"),
                    "PYPROF_RUN_DIR": str(folder / "run"),
                    "PYPROF_SPOOL_DIR": str(folder / "spool"),
                }
                | dict(environ),
            )  # fmt: skip
        try:
            yield Daemon(process, manager, log)
        finally:
            process.kill()
            process.wait()
        log_text = log.read_text()
        assert ("Traceback" in log_text) is defects, log_text


@contextmanager
def ready(folder: Path, *arguments: str, **options: Any) -> Iterator[Daemon]:
    """The same, once it samples."""
    with started(folder, *arguments, **options) as daemon:
        daemon.wait_for("READY=1")
        yield daemon
