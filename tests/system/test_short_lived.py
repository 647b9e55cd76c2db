# SPDX-License-Identifier: Apache-2.0
"""Processes that come and go by the thousand leave nothing behind."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from pyprof.profile.model import By
from pyprof.session import GRACE, SECOND, Options, Session
from tests.support.profiling import build_target, record, wait_until

pytestmark = pytest.mark.bpf


def owned_by_the_dead(session: Session) -> set[int]:
    """Process IDs with keys in the kernel's trie that are no process any more, after a poll."""
    session.poll(0)
    return {pid for pid, _, _ in session.bpf.mapping_keys() if not Path(f"/proc/{pid}").exists()}


def reported(session: Session) -> int:
    session.drain()
    return session.samples()["reported"]


def test_nothing_is_sampled_after_the_end() -> None:
    with Session(Options(hz=997)) as session:
        session.prepare()
        session.start()
        wait_until(lambda: reported(session) > 0, "there are samples")
        session.stop()
        taken = session.accounting().taken
        # Once a second events are opened on CPUs that are new. This test keeps a CPU busy meanwhile.
        while time.monotonic_ns() < session.stopped + 3 * SECOND // 2:
            session.drain()
        assert session.accounting().taken == taken
        assert session.accounting().reported == taken


def test_2000_processes_leave_no_entries(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = build_target(tmp_path, "spawner.c")
    with Session(Options(hz=997, by=By.PROCESS)) as session:
        session.prepare()
        session.start()
        before = session.trie.counts()["processes"]
        with subprocess.Popen([target, "2000", "8"], stdout=subprocess.DEVNULL) as spawner:
            done = os.pidfd_open(spawner.pid)
            ended: list[bool] = []
            session.watch(done, lambda: ended.append(True))
            most = 0
            while not ended:
                session.poll()
                most = max(most, session.trie.counts()["processes"])
            session.unwatch(done)
            os.close(done)
            assert spawner.wait() == 0
        # Their exits were reported before the spawner's own; other processes of the host end meanwhile.
        wait_until(lambda: not owned_by_the_dead(session), "the dead own nothing")
        assert most > before, "some lived long enough to be published"
        state = session.state()
        assert state["orphans"] == 0
        session.stop()
        pids = {pid for pid, _, _ in session.bpf.mapping_keys()}
        for pid in pids:
            session.table.ended(pid, session.started)
        session.drain()
        assert session.bpf.mapping_keys() == []
        profile = session.take()
        assert session.table.forget_exited(session.stopped + GRACE) >= 0
        assert session.trie.reclaim(session.stopped + 10 * SECOND) >= 0
        assert session.trie.counts()["retired"] == 0
        assert session.table.counts()["lost_events"] == 0
    names = {process.name for process in profile.processes}
    counts = profile.accounting
    assert "spawner" in names
    assert counts.taken == counts.reported + sum(counts.lost.values())
    pids_seen = {process.pid for process in profile.processes if process.name == "spawner"}
    # 5 ms at 997 Hz are 5 samples each: hardly a process goes unseen.
    assert len(pids_seen) > 1900
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_every_short_process_is_named_and_resolved(tmp_path: Path) -> None:
    """Samples of processes that are never published still name their program's functions."""
    target = build_target(tmp_path, "spawner.c")
    stacks = record(tmp_path / "out.folded", "-F", "997", "--", target, "300", "4").folded()
    working = sum(count for stack, count in stacks.items() if "work" in stack)
    assert working > 300 * 5 * 0.5
    assert all(stack[0] == "spawner" for stack in stacks)
    bad = sum(count for stack, count in stacks.items() if "[unknown]" in stack)
    assert bad / sum(stacks.values()) < 0.01
