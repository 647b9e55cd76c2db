# SPDX-License-Identifier: Apache-2.0
"""Containers and services of processes, from the forms that runtimes use and from processes that run."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyprof._native.processes import ProcessTable
from pyprof._native.trie import MappingTrie
from pyprof.process.facts import Facts, ProcessFacts, container_of, service_of
from pyprof.process.proc import read_stat

ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4
TASK = "0123456789abcdef" * 2

CGROUPS = {
    f"0::/system.slice/docker-{ID}.scope\n": ID,
    f"0::/docker/{ID}\n": ID,
    f"12:memory:/docker/{ID}\n11:cpu,cpuacct:/docker/{ID}\n0::/\n": ID,
    f"0::/kubepods.slice/kubepods-burstable.slice/pod1.slice/cri-containerd-{ID}.scope\n": ID,
    f"0::/kubepods/besteffort/pod0a1b2c3d-1111-2222-3333-444455556666/{ID}\n": ID,
    f"0::/kubepods.slice/kubepods-pod1.slice/crio-{ID}.scope\n": ID,
    f"0::/machine.slice/libpod-{ID}.scope/container\n": ID,
    f"0::/machine.slice/libpod-conmon-{ID}.scope\n": "",
    f"5:cpu:/ecs/task/{TASK}-1234567890\n": f"{TASK}-1234567890",
    # From inside a cgroup namespace.
    f"0::/../{ID}\n": ID,
    # Docker in Docker: the process is in the inner one.
    f"0::/docker/{ID}/docker/{OTHER}\n": OTHER,
    "0::/user.slice/user-1000.slice/session-3.scope\n": "",
    "0::/\n": "",
    f"0::/system.slice/{ID}aa.scope\n": "",
    "": "",
    ":::\n\n:": "",
}


@pytest.mark.parametrize(("cgroups", "expected"), CGROUPS.items())
def test_container_is_found_in_the_group_of_each_runtime(cgroups: str, expected: str) -> None:
    assert container_of(cgroups.encode()) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (b"A=1\0OTEL_SERVICE_NAME=shop\0", "shop"),
        (b"OTEL_RESOURCE_ATTRIBUTES=a=b,service.name=my%20shop\0", "my shop"),
        (b"OTEL_RESOURCE_ATTRIBUTES=service.name=two\0OTEL_SERVICE_NAME=one\0", "one"),
        (b"OTEL_SERVICE_NAME=\0OTEL_RESOURCE_ATTRIBUTES= service.name = two ,x\0", "two"),
        (b"OTEL_SERVICE_NAME=a\xff\0", "a\\xff"),
        (b"OTEL_RESOURCE_ATTRIBUTES=service.name=%ff\0", "\\xff"),
        (b"MY_OTEL_SERVICE_NAME=x\0OTEL_SERVICE_NAME_X=y", ""),
        (b"", ""),
    ],
)
def test_service_is_what_the_environment_says(environment: bytes, expected: str) -> None:
    assert service_of(environment) == expected


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that calls itself by a service's name, until its input ends."""
    environment = dict(os.environ) | {"OTEL_SERVICE_NAME": "shop"}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x\n")
        process.stdin.flush()
        process.stdout.readline()  # it runs its own program by now
        yield process
        process.stdin.close()


def known(pid: int) -> tuple[ProcessTable, ProcessFacts, int]:
    table = ProcessTable(MappingTrie(100))
    table.scanned(pid, 1, [(0x1000, 0x1FFF, 0, 1)], 1)
    state = table.process(pid)
    assert state is not None
    return table, ProcessFacts(table), state["serial"]


def start_time(pid: int) -> int:
    stat = read_stat(pid)
    assert stat is not None
    return stat.start_ns


def test_facts_of_a_process_that_runs(child: subprocess.Popen[bytes]) -> None:
    _, facts, serial = known(child.pid)
    facts.read(serial, child.pid, start_time(child.pid) + 1, 0)
    facts.confirm()
    container = container_of(Path(f"/proc/{child.pid}/cgroup").read_bytes())
    assert facts.get(serial) == Facts(container, "shop")


def test_process_with_the_same_pid_is_not_taken_for_one_that_is_gone(child: subprocess.Popen[bytes]) -> None:
    _, facts, serial = known(child.pid)
    facts.read(serial, child.pid, start_time(child.pid) - 10**9, 0)
    assert facts.get(serial) == Facts()


def test_service_of_another_program_after_an_exec_is_not_taken(child: subprocess.Popen[bytes]) -> None:
    table, facts, serial = known(child.pid)
    facts.read(serial, child.pid, start_time(child.pid), 0)
    # The exec came before the reading; its event is applied only now.
    table.exec(child.pid, 2)
    facts.confirm()
    assert facts.get(serial).service_name == ""


def test_facts_stay_as_long_as_the_table_knows_the_process(child: subprocess.Popen[bytes]) -> None:
    table, facts, serial = known(child.pid)
    facts.read(serial, child.pid, start_time(child.pid), 0)
    table.ended(child.pid, 5)
    facts.forget_ended()
    assert facts.get(serial).service_name == "shop"
    table.forget_exited(10, 10)
    facts.forget_ended()
    assert facts.get(serial) == Facts()
    assert len(facts) == 0
