# SPDX-License-Identifier: Apache-2.0
"""Programs that follow one another under one process ID: no sample of one is named after another."""

import mmap
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.compile import nm_symbols
from tests.support.profiling import build_target
from tests.support.scenes import Stack, follow, recording, stacks_of, twins

pytestmark = pytest.mark.bpf

OTHER = {"alpha": "omega_busy", "omega": "alpha_busy"}

Twins = tuple[Path, Path]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    """Two programs, alpha and omega, each with its own function at the same address."""
    alpha, omega = twins(tmp_path_factory.mktemp("identity"), "identity.c", "-no-pie")
    assert nm_symbols(alpha)["alpha_busy"] == nm_symbols(omega)["omega_busy"]
    return alpha, omega


def check(stacks: Mapping[Stack, int], enough: int) -> None:
    """The kernel tells the name of the program with each sample: the functions must be that program's."""
    right = dict.fromkeys(OTHER, 0)
    wrong = {}
    for stack, count in stacks.items():
        if stack[0] not in OTHER:
            continue
        if OTHER[stack[0]] in stack:
            wrong[stack] = count
        right[stack[0]] += count * (f"{stack[0]}_busy" in stack)
    assert wrong == {}
    assert min(right.values()) > enough, right


def free_pid() -> int:
    """A process ID that is free, and far from where the kernel looks for the next ones."""
    limit = int(Path("/proc/sys/kernel/pid_max").read_text())
    pid = int(Path("/proc/sys/kernel/ns_last_pid").read_text())
    while True:
        pid = 1000 + (pid - 1000 + limit // 3) % (limit - 1000)
        if not Path(f"/proc/{pid}").exists():
            return pid
        pid += 1


def test_exec_back_and_forth_500_times_names_only_the_program_that_runs(programs: Twins) -> None:
    alpha, omega = programs
    with recording() as session:
        lines = follow(session, alpha, "500", "3", omega)
        session.stop()
        check(stacks_of(session.take()), 1000)
    assert [line.split()[0] for line in lines] == ["alpha", "omega"] * 250 + ["alpha"]
    assert len({line.partition(" ")[2] for line in lines}) == 1, "one pid, one address"


def test_processes_with_one_pid_are_told_apart(programs: Twins, tmp_path: Path) -> None:
    reuse = build_target(tmp_path, "reuse.c")
    pid = str(free_pid())
    with recording() as session:
        lines = follow(session, reuse, pid, "200", "3", *programs)
        session.stop()
        profile = session.take()
        check(stacks_of(profile), 400)
    assert len(lines) == 200
    assert len({line.partition(" ")[2] for line in lines}) == 1, "one pid, one address"
    of_pid = [process for process in profile.processes if process.pid == int(pid)]
    assert {process.name for process in of_pid} == {"alpha", "omega", "reuse"}
    named = [process.start_time for process in of_pid if process.name != "reuse"]
    assert len(set(named)) > 180


def test_pid_used_again_in_a_pid_namespace_is_another_process(programs: Twins) -> None:
    """The numbers in the namespace are not those of the host, which tells the processes apart."""
    script = (
        "for i in $(seq 50); do for program in $0 $1; do "
        "echo 99 >/proc/sys/kernel/ns_last_pid; $program 0 3 || exit 1; done; done"
    )
    command = ["unshare", "--pid", "--fork", "--mount-proc", "bash", "-c", script, *map(str, programs)]
    with recording() as session:
        lines = follow(session, *command)
        session.stop()
        profile = session.take()
        check(stacks_of(profile), 100)
    assert len(lines) == 100
    assert {line.split()[1] for line in lines} == {"100"}, "one pid in the namespace"
    pids = {process.pid for process in profile.processes if process.name in OTHER}
    assert len(pids) > 90, "each is another one on the host"


def flood() -> None:
    """Fills the side-band ring of each CPU, of one page, with events of this process."""
    cpus = os.sched_getaffinity(0)
    comm = Path("/proc/self/comm")
    name = comm.read_text()
    with open("/proc/self/exe", "rb") as file:
        try:
            for cpu in cpus:
                os.sched_setaffinity(0, {cpu})
                for _ in range(mmap.PAGESIZE // 64):
                    mmap.mmap(
                        file.fileno(), 1, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC
                    ).close()
                # The smallest records there are fill what is left.
                for _ in range(8):
                    comm.write_text("x")
        finally:
            os.sched_setaffinity(0, cpus)
            comm.write_text(name)


@pytest.mark.parametrize("way", ["reused pid", "exec"])
def test_lost_records_do_not_lend_a_program_the_names_of_the_one_before(
    programs: Twins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("pyprof.bpf.perf_events.SIDEBAND_BYTES", os.sysconf("SC_PAGE_SIZE"))
    alpha, omega = map(str, programs)
    if way == "exec":
        command = [alpha, "1", "400", omega]
    else:
        command = [str(build_target(tmp_path, "reuse.c")), str(free_pid()), "2", "400", alpha, omega]
    with recording() as session:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            name, pid, _ = process.stdout.readline().split()
            assert name == "alpha"
            while not session.trie.keys(int(pid)):
                session.poll(0.01)
            flood()
            # The exec, or the end and the next process's start, find no room.
            assert process.stdout.readline().split()[:2] == ["omega", pid]
            while session.table.counts()["lost_events"] == 0 or process.poll() is None:
                session.poll(0.01)
        assert process.returncode == 0
        session.stop()
        check(stacks_of(session.take()), 200)
