# SPDX-License-Identifier: Apache-2.0
"""Recordings within the test's process: starting Python takes seconds on an emulated machine."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pyprof.profile.model import Profile
from pyprof.session import Options, Session

HZ = 199


@contextmanager
def sampling(*pids: int, plain_loop: bool = False) -> Iterator[Session]:
    """A session that samples some processes, or all."""
    with Session(Options(hz=HZ, pids=list(pids), plain_loop=plain_loop)) as session:
        session.prepare()
        session.start()
        yield session


def poll_for(session: Session, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        session.poll(min(0.25, max(end - time.monotonic(), 0)))


def record_process(pid: int, seconds: float = 2, plain_loop: bool = False) -> Profile:
    with sampling(pid, plain_loop=plain_loop) as session:
        poll_for(session, seconds)
        session.stop()
        return session.take()


def stacks(profile: Profile) -> Counter[tuple[str, ...]]:
    """Names from the root to the leaf -> samples."""
    found: Counter[tuple[str, ...]] = Counter()
    for sample in profile.samples():
        names = [profile.frames[index].name for index in reversed(profile.stack(sample.stack))]
        found[tuple(names)] += sample.count
    return found
