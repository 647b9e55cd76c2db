# SPDX-License-Identifier: Apache-2.0
"""What a report says of a process beyond its name: its container and service, read once for each process.

They belong to the process, not to a cache: they are read when a process is first sampled, and stay as long
as the process table knows it.
"""

import os
import re
from typing import NamedTuple

from pyprof._native.processes import ProcessTable
from pyprof.errors import ProcError
from pyprof.process.proc import escape, read_bytes, read_stat

# Docker, containerd, CRI-O and Podman name a container by 64 hexadecimal digits, ECS by 32, a hyphen and a
# number. Podman's monitor runs beside the container, in a group with the container's name.
_CONTAINER = re.compile(rb"(?:^|[/:-])(?<!conmon-)([0-9a-f]{64}|[0-9a-f]{32}-[0-9]{1,10})(?:\.scope)?(?=/|$)")

_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class Facts(NamedTuple):
    """Attributes: container_id, service_name: "" where there is none, or none is known."""

    container_id: str = ""
    service_name: str = ""


def container_of(cgroups: bytes) -> str:
    """The container that /proc/PID/cgroup tells of, the innermost one; "" for none.

    Lines are ``hierarchy:controllers:path`` (cgroups(7)).
    """
    for line in cgroups.splitlines():
        found = _CONTAINER.findall(line.split(b":", 2)[-1])
        if found:
            return str(found[-1], "ascii")
    return ""


def service_of(environment: bytes) -> str:
    """The service that a process says it is, by OpenTelemetry's variables: OTEL_SERVICE_NAME, else
    service.name among OTEL_RESOURCE_ATTRIBUTES.

    Source: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/.
    """
    attributes = b""
    for variable in environment.split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == b"OTEL_SERVICE_NAME" and value:
            return escape(value)
        if name == b"OTEL_RESOURCE_ATTRIBUTES":
            attributes = value
    for pair in attributes.split(b","):
        key, _, value = pair.partition(b"=")
        if key.strip() == b"service.name" and value.strip():
            from urllib.parse import unquote_to_bytes

            return escape(unquote_to_bytes(value.strip()))
    return ""


class ProcessFacts:
    """Facts by serial number of the process table."""

    def __init__(self, table: ProcessTable) -> None:
        self._table = table
        self._facts: dict[int, Facts] = {}
        self._unconfirmed: list[tuple[int, int]] = []
        self.unreadable = 0

    def __len__(self) -> int:
        return len(self._facts)

    def get(self, serial: int) -> Facts:
        return self._facts.get(serial, Facts())

    def read(self, serial: int, pid: int, start_time: int, parent: int) -> None:
        """Reads the facts of a process, unless they are known.

        Args:
            start_time: nanoseconds since boot, by which a process with a reused PID is told from it.
            parent: its parent's PID, or 0. One that is gone was in the container of its parent.
        """
        if serial in self._facts or not pid:
            return
        facts = Facts()
        try:
            if self._is_same(pid, start_time):
                facts = Facts(self._container(pid), self._service(pid))
                self._unconfirmed.append((serial, pid))
            elif parent and self._is_older(parent, start_time):
                facts = Facts(self._container(parent))
        except ProcError:
            self.unreadable += 1
        self._facts[serial] = facts

    def confirm(self) -> None:
        """Drops what turns out to be another program's: to be called when all events up to now were
        applied."""
        for serial, pid in self._unconfirmed:
            state = self._table.process(pid)
            if state is None or (state["serial"] != serial and serial in self._facts):
                # The container is the same after an exec, the environment need not be.
                self._facts[serial] = self._facts[serial]._replace(service_name="")
        self._unconfirmed.clear()

    def forget_ended(self) -> None:
        """Forgets the processes that the table does not know any more."""
        known = self._table.serials()
        self._facts = {serial: facts for serial, facts in self._facts.items() if serial in known}

    def _is_same(self, pid: int, start_time: int) -> bool:
        stat = read_stat(pid)
        return stat is not None and stat.start_ns <= start_time < stat.start_ns + _TICK

    def _is_older(self, pid: int, start_time: int) -> bool:
        stat = read_stat(pid)
        return stat is not None and stat.start_ns <= start_time

    def _container(self, pid: int) -> str:
        return container_of(read_bytes(f"/proc/{pid}/cgroup") or b"")

    def _service(self, pid: int) -> str:
        return service_of(read_bytes(f"/proc/{pid}/environ") or b"")
