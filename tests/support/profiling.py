# SPDX-License-Identifier: Apache-2.0
"""Runs targets and the recorder for system tests."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
TARGETS = ROOT / "tests" / "targets"


def build_target(folder: Path, source: str, *flags: str, compiler: str = "clang-19") -> Path:
    """Compiles tests/targets/SOURCE, at -O2 and with frame pointers unless flags say otherwise.

    By clang: on x86 gcc, from -O1 on, leaves the frame pointer out of leaf functions whatever it is told.
    """
    path = folder / Path(source).stem
    command = [compiler, "-O2", "-g", "-fno-omit-frame-pointer", "-o", str(path), str(TARGETS / source), *flags]
    subprocess.run(command, check=True)
    return path


@contextmanager
def running(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A program that says "ready"; it is killed at the end of the block."""
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


class Recorded(NamedTuple):
    """What `pyprof record --json` said, and what it wrote."""

    report: dict[str, Any]
    output: Path
    stderr: str

    def folded(self) -> dict[tuple[str, ...], int]:
        """Frames (the process first) -> count, of a .folded output."""
        stacks: dict[tuple[str, ...], int] = {}
        for line in self.output.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            stacks[tuple(stack.split(";"))] = int(count)
        return stacks


def pyprof(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the command line to its end."""
    return subprocess.run(
        [sys.executable, "-m", "pyprof", *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        **options,
    )


def record(output: Path, *arguments: str | Path) -> Recorded:
    """`pyprof record --json -o OUTPUT ...`, which must succeed."""
    done = pyprof("record", "--json", "-o", output, *arguments)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return Recorded(json.loads(done.stdout), output, done.stderr)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 10) -> None:
    """Looks until a condition of the kernel's holds that no pipe can tell of."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        os.sched_yield()


def bpf_ids(kind: str) -> set[int]:
    """IDs of all "prog"s or "map"s in the kernel, as bpftool sees them."""
    done = subprocess.run(["bpftool", "-j", kind, "show"], check=True, capture_output=True, text=True)
    return {item["id"] for item in json.loads(done.stdout or "[]")}
