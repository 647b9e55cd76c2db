# SPDX-License-Identifier: Apache-2.0
"""A recorder whose standard error is a terminal: its progress line tells when it samples."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.profiling import ROOT


class TerminalRecorder:
    """A running `pyprof record`. Attributes: process: it; shown: what the terminal got so far."""

    def __init__(self, arguments: tuple[str, ...], run_folder: Path) -> None:
        self._master, slave = pty.openpty()
        self.shown = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pyprof", "record", *arguments],
            cwd=ROOT,
            env=os.environ | {"PYPROF_RUN_DIR": str(run_folder)},
            stdout=subprocess.PIPE,
            stderr=slave,
        )
        os.close(slave)

    def read_until(self, text: str, seconds: float = 30) -> None:
        """Reads the terminal until a text was shown after the call."""
        deadline = time.monotonic() + seconds
        seen = ""
        while text not in seen:
            seen += self._read(deadline, f"{text!r} in {seen!r}")

    def _read(self, deadline: float, what: str) -> str:
        ready, _, _ = select.select([self._master], [], [], max(deadline - time.monotonic(), 0))
        assert ready, f"no {what}"
        part = os.read(self._master, 4096).decode()
        self.shown += part
        return part

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def finish(self, seconds: float = 30) -> tuple[int, bytes]:
        """Waits for the end; exit status and standard output."""
        deadline = time.monotonic() + seconds
        try:
            while True:
                self._read(deadline, "end of the recorder")
        except OSError:  # EIO: the other side is closed
            pass
        out, _ = self.process.communicate(timeout=seconds)
        return self.process.returncode, out

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self._master)


@contextmanager
def recorder(*arguments: str, run_folder: Path) -> Iterator[TerminalRecorder]:
    """A recorder that samples already; what remains of it is killed at the end of the block."""
    started = TerminalRecorder(arguments, run_folder)
    try:
        started.read_until(" samples ")
        yield started
    finally:
        started.close()
