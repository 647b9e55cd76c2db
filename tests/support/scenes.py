# SPDX-License-Identifier: Apache-2.0
"""Recordings of programs whose every sample tells what ran, and the audit of what is left behind."""

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyprof.profile.model import By, FrameKind, Profile
from pyprof.session import POLL_SECONDS, Options, Session
from tests.support.profiling import build_target

HZ = 1999

Stack = tuple[str, ...]
"""The process's name, then the frames from the root to the leaf; kernel frames end in _[k]."""


@contextmanager
def recording(hz: int = HZ, by: By = By.PROCESS) -> Iterator[Session]:
    """A session that samples; the audit is part of its end."""
    with Session(Options(hz=hz, by=by)) as session:
        session.prepare()
        session.start()
        yield session
        audit(session)


def follow(session: Session, *command: str | Path, every: float = POLL_SECONDS) -> list[str]:
    """Runs a program to its end, the session keeping up with it; the lines that it printed.

    These must be few enough for a pipe, since they are read at the end. every: most seconds between two looks
    at the rings.
    """
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True) as process:
        done = os.pidfd_open(process.pid)
        ended: list[bool] = []
        session.watch(done, lambda: ended.append(True))
        try:
            while not ended:
                session.poll(every)
        finally:
            session.unwatch(done)
            os.close(done)
            process.kill()  # where the session failed
        output, _ = process.communicate()
    assert process.returncode == 0, (command, process.returncode)
    return output.splitlines()


def profile_of(command: Sequence[str], *, runs_before: bool, says: str, by: By = By.PROCESS) -> Profile:
    """Records a program until its end, from its beginning on or while it runs already.

    Args:
        says: pattern of the one line that it prints.
    """
    if not runs_before:
        with recording(by=by) as session:
            (line,) = follow(session, *command)
            assert re.fullmatch(says, line)
            session.stop()
            return session.take()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert re.fullmatch(says + "\n", process.stdout.readline())
        with recording(by=by) as session:
            while process.poll() is None:
                session.poll(0.05)
            session.stop()
            return session.take()


def audit(session: Session) -> None:
    """Holds what the kernel, its owner and the process table say against each other and /proc.

    Raises:
        AssertionError: something has no owner, or an owner lacks something.
    """
    session.drain()
    in_kernel: dict[int, set[tuple[int, int]]] = {}
    for pid, bits, address in session.bpf.mapping_keys():
        in_kernel.setdefault(pid, set()).add((bits, address))
    owned = {pid: session.trie.keys(pid) for pid in session.trie.pids()}
    for pid, keys in owned.items():
        assert len(keys) == len(set(keys)), f"{pid} owns a key twice"
    for pid in in_kernel.keys() | owned.keys():
        found, wanted = in_kernel.get(pid, set()), set(owned.get(pid, ()))
        assert found == wanted, f"keys of {pid}: {found - wanted} left, {wanted - found} missing"
    assert session.state()["orphans"] == 0
    assert session.trie.counts()["prefixes"] == sum(map(len, owned.values()))
    for pid in owned:
        process = session.table.process(pid)
        assert process is not None, f"{pid} owns keys, and is no process"
        assert process["published"] and not process["exited"]
        rows = [session.trie.mapping(number) for number in session.trie.ids(pid)]
        assert [(row[1], row[2], (row[1] - row[3]) % 2**64, row[4]) for row in rows if row] == [
            (start, last, offset % 2**64, number) for start, last, offset, number in process["ranges"]
        ]


def stacks_of(profile: Profile) -> Counter[Stack]:
    """Samples by process name and frames."""
    found: Counter[Stack] = Counter()
    for sample in profile.samples():
        frames = [profile.frames[i] for i in reversed(profile.stack(sample.stack))]
        names = [frame.name + "_[k]" * (frame.kind == FrameKind.KERNEL) for frame in frames]
        found[profile.processes[sample.process].name, *names] += sample.count
    return found


def twins(folder: Path, source: str, *flags: str, names: Sequence[str] = ("alpha", "omega")) -> list[Path]:
    """A source of tests/targets compiled with -DNAME=... for each name, to files of these names."""
    made = []
    for name in names:
        (folder / "build" / name).mkdir(parents=True)
        path = build_target(folder / "build" / name, source, f"-DNAME={name}", *flags)
        made.append(path.rename(folder / name))
    return made


class Truth(Counter[str]):
    """Samples by how their leaf fits what is known to have run: "right", "wrong", "unnamed" where it has no
    function's name, "outside" of any call that tells."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: Counter[Stack] = Counter()


def below_callers(stacks: Mapping[Stack, int], allowed: Mapping[str, set[str]]) -> Truth:
    """Judges the frame below each caller.

    Args:
        stacks: see stacks_of.
        allowed: caller -> names of what it may have called, besides the kernel.
    """
    truth = Truth()
    for stack, count in stacks.items():
        at = next((i for i, name in enumerate(stack) if name in allowed), None)
        if at is None:
            truth["outside"] += count
            continue
        below = stack[at + 1] if at + 1 < len(stack) else ""
        if not below or below.endswith("_[k]") or below in allowed[stack[at]]:
            truth["right"] += count
        elif below.startswith("["):
            truth["unnamed"] += count
        else:
            truth["wrong"] += count
            truth.wrong[stack] += count
    return truth
