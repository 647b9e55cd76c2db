# SPDX-License-Identifier: Apache-2.0
"""What `record --completeness` says of a program whose stacks are whole and of one whose are too deep."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.profiling import pyprof, record, running
from tests.support.truth import build

pytestmark = pytest.mark.bpf

TOO_DEEP = "more frames than a sample holds"


@pytest.fixture(name="pids", scope="module")
def run_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """One program, twice: as "whole" its stacks have a few frames, as "deep" 5,000."""
    folder = tmp_path_factory.mktemp("two")
    # Two files with build IDs of their own.
    build(folder, "frames.c").rename(folder / "whole")
    build(folder, "frames.c", ["-O1"]).rename(folder / "deep")
    with running(folder / "whole", "chain") as whole, running(folder / "deep", "deep", "5000") as deep:
        yield ["-p", str(whole.pid), "-p", str(deep.pid)]


def test_summary_and_tables_tell_of_stacks_that_are_cut(tmp_path: Path, pids: list[str]) -> None:
    output = tmp_path / "out.folded"
    done = pyprof("record", "-F", "499", "-d", "2", "--completeness", "-o", output, *pids)
    assert done.returncode == 0, done.stderr
    told = done.stdout + done.stderr
    match = re.search(
        rf"([\d.]+)% of the stacks do not reach their thread's start \({TOO_DEEP}: (\d+)\)", done.stderr
    )
    assert match, told
    reported = int(re.search(r"(\d+) reported", done.stderr)[1])  # type: ignore[index]
    deep = int(match[2])
    assert match[1] == f"{100 * deep / reported:.2f}", told
    processes, executables = re.split(r" samples  complete    share  executable.*\n", done.stdout)
    lines = [line.split(maxsplit=3) for line in processes.splitlines()[1:]]
    assert lines == [
        [str(deep), "0", "0.00%", "deep"],
        [str(deep), "100.00%", "more", TOO_DEEP.removeprefix("more ")],
        [str(reported - deep), str(reported - deep), "100.00%", "whole"],
    ], told
    # All of them end in the program's own file: in the function that calls itself, or in _start.
    assert re.match(rf" +{deep} +0 +0.00%  /\S*/deep\n", executables), told
    assert re.search(rf"\n +{reported - deep} +{reported - deep}  100.00%  /\S*/whole\n", executables), told


def test_json_has_the_same_shares_when_it_is_asked_for(tmp_path: Path, pids: list[str]) -> None:
    got = record(tmp_path / "out.folded", "-F", "499", "-d", "2", "--completeness", *pids)
    stacks = got.folded()
    found = {share["name"]: share for share in got.report["completeness"]["processes"]}
    counts = {name: sum(n for stack, n in stacks.items() if stack[0] == name) for name in ("whole", "deep")}
    assert found == {
        "whole": {"name": "whole", "samples": counts["whole"], "complete": counts["whole"], "incomplete": {}},
        "deep": {
            "name": "deep", "samples": counts["deep"], "complete": 0, "incomplete": {TOO_DEEP: counts["deep"]}
        },
    }  # fmt: skip
    executables = got.report["completeness"]["executables"]
    assert sum(share["samples"] for share in executables) == got.report["samples"]["reported"]


def test_json_has_no_shares_when_they_are_not_asked_for(tmp_path: Path, pids: list[str]) -> None:
    assert "completeness" not in record(tmp_path / "out.folded", "-d", "0.3", *pids).report


@pytest.mark.parametrize("size", ["0", "1025", "-3", "x"])
def test_arena_cap_that_cannot_be_is_a_bad_argument(size: str) -> None:
    done = pyprof("record", "-d", "1", f"--arena-mib={size}")
    assert done.returncode == 2
    assert "--arena-mib" in done.stderr
