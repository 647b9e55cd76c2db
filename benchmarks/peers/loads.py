# SPDX-License-Identifier: Apache-2.0
"""What keeps the machine busy while a profiler is measured."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

TARGETS = Path(__file__).parent / "targets"

CHURN = "while :; do /bin/ls / >/dev/null; /bin/true; sort </etc/passwd | uniq | wc -l; done"
"""Programs that live for a millisecond; two of these loops start some 1,400 a second on two cores."""

SLEEPERS = 280
PYTHON_SLEEPERS = 20

Commands = list[list[str]]


def build(folder: Path) -> Path:
    """Compiles the native load.

    Raises:
        subprocess.CalledProcessError: no g++, or no zlib.
    """
    program = folder / "native"
    subprocess.run(
        ["g++", "-O2", "-fomit-frame-pointer", "-o", program, TARGETS / "native.cpp", "-lz"], check=True
    )
    return program


def idle(program: Path) -> Commands:
    """Nothing but what the host does anyway."""
    del program
    return []


def native(program: Path) -> Commands:
    """Two C++ programs without frame pointers."""
    return [[str(program)], [str(program)]]


def steady(program: Path) -> Commands:
    """One C++ program and one of Python."""
    return [[str(program)], [sys.executable, str(TARGETS / "python_load.py")]]


def churn(program: Path) -> Commands:
    """Programs that live for a millisecond."""
    del program
    return [["bash", "-c", CHURN], ["bash", "-c", CHURN]]


def many(program: Path) -> Commands:
    """The steady load, and 300 processes that sleep."""
    python = [sys.executable, "-c", "import json, re, signal; signal.pause()"]
    return [["sleep", "infinity"]] * SLEEPERS + [python] * PYTHON_SLEEPERS + steady(program)


LOADS: dict[str, Callable[[Path], Commands]] = {
    load.__name__: load for load in (idle, native, steady, churn, many)
}


@contextmanager
def running(name: str, program: Path) -> Iterator[None]:
    """Runs a load; program: what build() made."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in LOADS[name](program):
            processes.append(
                subprocess.Popen(
                    command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
                )
            )
        yield
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
