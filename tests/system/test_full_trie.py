# SPDX-License-Identifier: Apache-2.0
"""More processes than the kernel's trie has room for: idle ones give way, and nothing is lost of any."""

import logging
import os
import select
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyprof._native.trie import prefixes
from pyprof.session import Options, Session
from tests.support.profiling import build_target

pytestmark = pytest.mark.bpf

ENTRIES = 512
PROCESSES = 60
NEW = 10
LIBRARIES = ("-Wl,--no-as-needed", "-lm", "-lrt", "-lresolv")
"""Mapped only, so that each process has several mappings."""


class Worker:
    """A running turns.c whose name, and function, tell which one it is."""

    def __init__(self, folder: Path, binary: Path, name: str) -> None:
        self.name = name
        self.function = f"{binary.name}_work"
        path = folder / name
        shutil.copy(binary, path)
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self.process.stdout is not None
        assert self.process.stdout.read(6) == b"ready\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    def prefixes(self) -> int:
        """Entries that the kernel needs for it, as /proc shows it."""
        count = 0
        for line in Path(f"/proc/{self.pid}/maps").read_text().splitlines():
            span, access, *_ = line.split()
            if "x" in access and "[vsyscall]" not in line:
                start, end = (int(word, 16) for word in span.split("-"))
                count += len(prefixes(start, end - 1))
        return count

    def work(self, session: Session) -> None:
        """Has it take its turn, while the session keeps up."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"x")
        while not select.select([self.process.stdout], [], [], 0)[0]:
            session.poll(0.01)
            present = session.bpf.mapping_keys()
            assert len(present) <= ENTRIES
        assert self.process.stdout.read(1) == b"x"
        session.poll(0)

    def close(self) -> None:
        self.process.communicate()


@contextmanager
def workers(folder: Path, binaries: list[Path], names: list[str]) -> Iterator[list[Worker]]:
    started: list[Worker] = []
    try:
        for i, name in enumerate(names):
            started.append(Worker(folder, binaries[i % len(binaries)], name))
        yield started
    finally:
        for worker in started:
            worker.close()


def assert_audited(session: Session) -> None:
    state = session.state()
    assert state["orphans"] == 0
    assert state["missing"] == 0
    owned: defaultdict[int, int] = defaultdict(int)
    for pid, _, _ in session.bpf.mapping_keys():
        owned[pid] += 1
    assert owned == {pid: len(session.trie.keys(pid)) for pid in session.trie.pids()}


def test_many_more_processes_than_fit_are_all_profiled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    binaries = []
    for kind in ("even", "odd"):
        (tmp_path / kind).mkdir()
        made = build_target(tmp_path / kind, "turns.c", f"-DWORK={kind}_work", *LIBRARIES)
        binaries.append(made.rename(tmp_path / kind / kind))
    names = [f"turns{i:02}" for i in range(PROCESSES)]
    caplog.set_level(logging.WARNING, "pyprof")
    # Of this process and its children only, so that a busy host does not fill the trie.
    with Session(Options(hz=997, pids=[os.getpid()], mapping_entries=ENTRIES)) as session:
        session.prepare()
        session.start()
        with workers(tmp_path, binaries, names) as old:
            assert sum(worker.prefixes() for worker in old) > 2 * ENTRIES
            for worker in old:
                worker.work(session)
            assert_audited(session)
            with workers(tmp_path, binaries, [f"new{i:02}" for i in range(NEW)]) as new:
                for worker in new:
                    worker.work(session)
                # The first ones were idle for longest and gave way: they come back.
                for worker in old[:NEW]:
                    worker.work(session)
                assert_audited(session)
                everyone = [*old, *new]
        session.drain()
        assert_audited(session)
        counts = session.table.counts()
        session.stop()
        profile = session.take()
        kernel = session.state()["kernel"]
    assert counts["evicted"] > 0
    assert isinstance(kernel, dict)
    shown = kernel["exec_mappings"]
    assert (shown["evicted"], shown["refused"]) == (counts["evicted"], counts["refused"])
    assert shown["entries"] <= shown["capacity"] == ENTRIES
    assert profile.accounting.lost == {}
    assert profile.accounting.taken == profile.accounting.reported

    seen: defaultdict[tuple[int, str], set[str]] = defaultdict(set)
    for sample in profile.samples():
        process = profile.processes[sample.process]
        frames = {profile.frames[i].name for i in profile.stack(sample.stack)}
        seen[process.pid, process.name] |= frames & {"even_work", "odd_work"}
    for worker in everyone:
        assert seen[worker.pid, worker.name] == {worker.function}
    told = [record for record in caplog.records if "exec_mappings" in record.getMessage()]
    assert len(told) == 1, "once a minute at most"
