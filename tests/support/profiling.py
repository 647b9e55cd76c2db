# SPDX-License-Identifier: Apache-2.0
"""Runs targets and the recorder for system tests."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
TARGETS = ROOT / "tests" / "targets"
SCALE = float(os.environ.get("PYPROF_TEST_SCALE", "1"))
"""How many times slower than a usual machine this one is: what must end within some time may take so long."""


def build_target(folder: Path, source: str, *flags: str, compiler: str = "clang-19") -> Path:
    """Compiles tests/targets/SOURCE, at -O2 and with frame pointers unless flags say otherwise.

    By clang: on x86 gcc, from -O1 on, leaves the frame pointer out of leaf functions whatever it is told.
    PYPROF_TEST_TARGETS names a folder that keeps what was compiled, for machines that are slow at it.
    """
    path = folder / Path(source).stem
    command = [compiler, "-O2", "-g", "-fno-omit-frame-pointer", *flags]
    kept = None
    if "PYPROF_TEST_TARGETS" in os.environ:
        text = (TARGETS / source).read_text()
        key = hashlib.sha256(repr((command, text)).encode()).hexdigest()[:16]
        kept = Path(os.environ["PYPROF_TEST_TARGETS"]) / key / path.name
    if kept is not None and kept.exists():
        shutil.copy(kept, path)
        return path
    subprocess.run([*command[:1], str(TARGETS / source), "-o", str(path), *command[1:]], check=True)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, kept)
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
    deadline = time.monotonic() + seconds * SCALE
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds * SCALE} s: {what}"
        os.sched_yield()


def cpu_ticks(pid: int) -> int:
    """CPU time of a process, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def bpf_ids(kind: str) -> set[int]:
    """IDs of all "prog"s or "map"s in the kernel, as bpftool sees them."""
    done = subprocess.run(["bpftool", "-j", kind, "show"], check=True, capture_output=True, text=True)
    return {item["id"] for item in json.loads(done.stdout or "[]")}
