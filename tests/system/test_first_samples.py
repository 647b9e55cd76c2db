# SPDX-License-Identifier: Apache-2.0
"""What is known before a process is sampled need not be unwound in user space."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyprof.session import Options, Session
from tests.support.profiling import build_target, record, running, wait_until

pytestmark = pytest.mark.bpf

NO_FILE, LOADED = 1, 2


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[int]:
    """The pid of a program that computes."""
    with running(build_target(tmp_path, "depth.c"), "20") as process:
        yield process.pid


def poll_until(session: Session, condition: Callable[[], bool], what: str) -> None:
    def polled() -> bool:
        session.poll(0.05)
        return condition()

    wait_until(polled, what, 30)


def code_of(pid: int) -> list[int]:
    """Addresses in its executable mappings, as /proc tells; the kernel's own page at the top is nobody's."""
    lines = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return [
        int(line[0].split("-")[0], 16) + 1 for line in lines if "x" in line[1] and line[-1] != "[vsyscall]"
    ]


def test_a_named_process_is_known_before_it_is_sampled(busy: int) -> None:
    with Session(Options(pids=[busy])) as session:
        session.prepare()
        assert all(session.bpf.lookup_mapping(busy, address) for address in code_of(busy))
        process = session.table.process(busy)
        assert process is not None
        files = {number for *_, number in process["ranges"] if number > NO_FILE}
        assert len(files) >= 4, "the program, its linker, libc, the vDSO"
        assert min(session.arena.state(number) for number in files) >= LOADED
        session.start()
        poll_until(session, lambda: session.samples()["reported"] > 20, "samples")
        assert session.samples()["unwound_in_user_space"] == 0


def test_children_that_are_there_already_are_sampled_with_their_parent(busy: int) -> None:
    children = [int(word) for word in Path(f"/proc/{busy}/task/{busy}/children").read_text().split()]
    assert children, "depth has a process for each processor"
    with Session(Options(pids=[busy])) as session:
        session.prepare()
        for child in children:
            process = session.table.process(child)
            assert process is not None
            assert process["target"]
            assert process["published"]


def test_a_busy_process_is_known_before_the_host_is_sampled(busy: int) -> None:
    with Session(Options()) as session:
        session.prepare()
        assert busy in session.scanner.busiest()
        assert all(session.bpf.lookup_mapping(busy, address) for address in code_of(busy))


def test_a_process_that_is_not_wanted_copies_no_stacks(busy: int, tmp_path: Path) -> None:
    with (
        running(build_target(tmp_path, "chain.c"), "20") as other,
        Session(Options(pids=[other.pid])) as session,
    ):
        session.prepare()
        session.start()
        poll_until(session, lambda: session.bpf.lookup_mapping(busy, 1) != 0, "it is sampled")
        # One entry answers for all addresses, so that the kernel side never has to ask.
        found = {session.bpf.lookup_mapping(busy, address) for address in (1, *code_of(busy), 2**64 - 1)}
        assert len(found) == 1


def test_a_command_is_known_soon_after_it_began(tmp_path: Path) -> None:
    code = "import time\nwhile time.process_time() < 2: pass"
    got = record(tmp_path / "out.folded", "-F", "99", "--", sys.executable, "-S", "-c", code)
    assert got.report["samples"]["reported"] > 100
    assert got.report["unwound_in_user_space"] < 15, "a quarter of a second would be 25"
