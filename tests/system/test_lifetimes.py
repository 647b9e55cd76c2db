# SPDX-License-Identifier: Apache-2.0
"""Thousands of processes come and go under a recorder, and nothing of them is left.

PYPROF_TEST_LIFETIMES says how many, 5,000 where it does not; 200,000 take a quarter of an hour. With -s the
test prints how the recorder's memory went.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.interval_recorder import MISSING
from tests.support.profiling import ROOT, SCALE, TARGETS

LIFETIMES = int(os.environ.get("PYPROF_TEST_LIFETIMES", "5000"))
PARALLEL = 8
GRACE = 1.0
STEP = """\
unsigned long step{0}(unsigned long x) {{ for (int i = 0; i < 300; i++) x = x * 33 + i; return x; }}
"""

pytestmark = [pytest.mark.bpf, pytest.mark.timeout(max(300, LIFETIMES // 50) * SCALE)]


def build_brood(folder: Path) -> Path:
    """The program and its twenty libraries."""
    numbers = [f"{number:02}" for number in range(20)]
    for number in numbers:
        source = folder / f"step{number}.c"
        source.write_text(STEP.format(number))
        library = folder / f"libstep{number}.so"
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    brood = folder / "brood"
    command = ["gcc", "-O2", "-pthread", "-o", str(brood), str(TARGETS / "brood.c"), f"-L{folder}"]
    libraries = [f"-lstep{number}" for number in numbers]
    subprocess.run([*command, f"-Wl,-rpath,{folder}", *libraries], check=True)
    return brood


def slope(points: list[tuple[float, float]]) -> float:
    """Of the straight line through points that has the least squares."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


class History:
    """The lines of an interval recorder while a brood lived and died."""

    def __init__(self, brood: Path) -> None:
        self.lines: list[dict[str, Any]] = []
        with subprocess.Popen(
            [sys.executable, "-m", "tests.support.interval_recorder", "199", str(GRACE)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        ) as recorder:  # fmt: skip
            assert recorder.stdin is not None
            assert recorder.stdout is not None
            try:
                assert recorder.stdout.readline() == "ready\n"
                self.before = json.loads(recorder.stdout.readline())
                with subprocess.Popen(
                    [brood, str(LIFETIMES), str(PARALLEL), "20261129"], stdout=subprocess.PIPE, text=True
                ) as parent:
                    while parent.poll() is None:
                        self.lines.append(json.loads(recorder.stdout.readline()))
                    assert parent.stdout is not None
                    assert parent.stdout.read() == f"{LIFETIMES}\n"
                recorder.stdin.close()
                self.lines += [json.loads(line) for line in recorder.stdout]
                assert recorder.wait() == 0
            finally:
                recorder.kill()
        self.after = self.lines.pop()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return History(build_brood(tmp_path_factory.mktemp("brood")))


def test_no_entry_is_ever_without_an_owner(history: History) -> None:
    for line in (*history.lines, history.after):
        assert (line["state"]["orphans"], line["state"]["missing"]) == (0, 0), line["state"]["audit"]


def test_what_processes_had_is_given_back(history: History) -> None:
    before, after = history.before["state"], history.after["state"]
    high = after["high_water"]
    # Other processes of the host come and go too.
    assert after["processes"]["exited"] <= before["processes"]["exited"] + 50
    assert after["processes"]["alive"] <= before["processes"]["alive"] + 50
    assert after["mappings"]["retired"] <= before["mappings"]["retired"] + 1000
    assert after["executables"]["known"] <= before["executables"]["known"] + 50
    assert after["kernel"]["exec_mappings"]["entries"] <= high["prefixes"]
    if LIFETIMES >= 5000:
        assert high["executables"] >= 21, "the libraries were known"
        assert high["retired_mappings"] > 100, "processes of the brood were published"


def test_every_sample_is_reported(history: History) -> None:
    last = history.after
    assert last["taken"] == last["reported"] + sum(last["lost"].values())
    assert last["state"]["events"]["lost"] == 0
    assert last["lost"] == {}


def test_frames_have_build_ids(history: History) -> None:
    for line in history.lines:
        ours = [path for path in line["without_build_id"] if "brood" in path or path == MISSING]
        assert ours == []
    assert any("brood" in line["names"] for line in history.lines)


def test_memory_does_not_grow(history: History) -> None:
    # The first third is warm-up: names, libraries, and the tables' first growth.
    lines = history.lines[len(history.lines) // 3 :]
    start = lines[0]["time"]
    points = [(line["time"] - start, line["anonymous_bytes"]) for line in lines]
    seconds = max(points[-1][0], 1)
    share = (lines[-1]["cpu_seconds"] - lines[0]["cpu_seconds"]) / seconds
    print(
        f"\n{LIFETIMES} lifetimes: anonymous memory {points[0][1] >> 10} to {points[-1][1] >> 10} KiB"
        f" in {seconds:.0f} s, {slope(points) / 1024:+.2f} KiB/s; {share:.1%} of a core"
    )
    # For other programs of the host rows may be made, which takes memory for a moment: the least counts.
    half = len(points) // 2
    least = [min(size for _, size in part) for part in (points[:half], points[half:])]
    assert least[1] - least[0] < 3 << 20
