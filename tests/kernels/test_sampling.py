# SPDX-License-Identifier: Apache-2.0
"""Stacks, files and accounting on whatever kernel this is."""

import re
import subprocess
from pathlib import Path

import pytest

from pyprof.profile.model import FrameKind
from tests.kernels.recording import record_process, stacks
from tests.support.profiling import build_target, record, running

pytestmark = pytest.mark.bpf


@pytest.mark.parametrize("plain_loop", [False, True], ids=["bpf_loop", "plain_loop"])
def test_chain_is_complete_down_to_main(tmp_path: Path, plain_loop: bool) -> None:
    target = build_target(tmp_path, "chain.c")
    with running(target) as process:
        profile = record_process(process.pid, plain_loop=plain_loop)
    right = total = 0
    for sample in profile.samples():
        frames = [profile.frames[index] for index in reversed(profile.stack(sample.stack))]
        user = [frame.name for frame in frames if frame.kind != FrameKind.KERNEL]
        total += sample.count
        right += sample.count if user[-4:] == ["main", "a", "b", "c"] else 0
    assert total > 100
    assert right / total > 0.99, stacks(profile)


def test_kernel_frames_are_named_when_making_system_calls(tmp_path: Path) -> None:
    target = build_target(tmp_path, "chain.c")
    with running(target, "syscall") as process:
        found = stacks(record_process(process.pid))
    assert sum(count for stack, count in found.items() if any("getppid" in name for name in stack)) > 0


def test_file_and_build_id_are_the_programs_own(tmp_path: Path) -> None:
    """On an overlay, too, whose device in /proc/PID/maps is another than stat's."""
    target = build_target(tmp_path, "chain.c")
    notes = subprocess.run(["readelf", "-n", target], check=True, capture_output=True, text=True).stdout
    (build_id,) = re.findall(r"Build ID: ([0-9a-f]+)", notes)
    with running(target) as process:
        profile = record_process(process.pid, seconds=1)
    assert (str(target), build_id) in {(file.path, file.build_id) for file in profile.executables}


def test_samples_of_short_processes_add_up(tmp_path: Path) -> None:
    target = build_target(tmp_path, "spawner.c")
    got = record(tmp_path / "out.folded", "-F", "997", "--", target, "30", "2")
    samples = got.report["samples"]
    found = got.folded()
    assert samples["taken"] == samples["reported"] + sum(samples["lost"].values())
    assert sum(found.values()) == samples["reported"]
    assert {stack[0] for stack in found} == {"spawner"}
    # 5 ms of CPU time each, of which exec and the dynamic loader may take most.
    assert samples["reported"] > 30 * 5 * 0.5
    assert any("work" in stack for stack in found)
    bad = sum(count for stack, count in found.items() if "[unknown]" in stack)
    assert bad / samples["reported"] < 0.02
