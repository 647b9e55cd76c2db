# SPDX-License-Identifier: Apache-2.0
"""A process whose main thread has ended while another one runs on is a process like any other."""

import os
from pathlib import Path

import pytest

from tests.support.profiling import build_target, record, running

pytestmark = pytest.mark.bpf


def test_threads_are_named_after_their_leader_has_exited(tmp_path: Path) -> None:
    target = build_target(tmp_path, "leader.c", "-pthread")
    with running(target) as process:
        assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        got = record(tmp_path / "out.folded", "-F", "499", "-d", "1", "-p", str(process.pid))
        os.kill(process.pid, 0)
    stacks = got.folded()
    named = sum(count for stack, count in stacks.items() if stack[-1] == "spin")
    assert named > 300
    assert named / sum(stacks.values()) > 0.95
