# SPDX-License-Identifier: Apache-2.0
"""The perf events: one that samples and one that reports processes, on each online CPU."""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

from pyprof._native._libbpf import lib
from pyprof._native.sideband import SidebandReader
from pyprof.bpf.library import error_text
from pyprof.errors import HostError

ONLINE = Path("/sys/devices/system/cpu/online")
SIDEBAND_BYTES = 512 * 1024


def parse_cpu_list(text: str) -> list[int]:
    """CPU numbers of a list such as ``0-3,8`` (Documentation/admin-guide/cputopology.rst)."""
    cpus: list[int] = []
    try:
        for part in filter(None, text.strip().split(",")):
            first, _, last = part.partition("-")
            cpus.extend(range(int(first), int(last or first) + 1))
    except ValueError:
        raise HostError(f"unknown form of a CPU list: {text!r}") from None
    return cpus


def online_cpus() -> list[int]:
    try:
        return parse_cpu_list(ONLINE.read_text())
    except OSError:
        return sorted(os.sched_getaffinity(0))


def raise_open_files(wanted: int) -> None:
    """Lifts the soft limit of open files towards what is wanted, as far as the hard one lets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def open_error(code: int, event: str) -> HostError:
    """The sentence for an event that the kernel does not open."""
    if code in (-errno.EPERM, -errno.EACCES):
        return HostError("the kernel refuses whole-host perf events: run as root or with CAP_PERFMON")
    if code in (-errno.ENOENT, -errno.EOPNOTSUPP, -errno.ENODEV) and event == "cycles":
        return HostError(
            "this machine has no hardware cycle counter for us: use --event cpu-clock (the default)"
        )
    if code == -errno.EMFILE:
        return HostError("too many open files for one event on each CPU: raise `ulimit -n`")
    if code == -errno.EINVAL and event != "side-band":
        return HostError(
            f"the kernel refuses the event {event} at this rate: "
            "see /proc/sys/kernel/perf_event_max_sample_rate"
        )
    if code == -errno.ENOSYS:
        return HostError("the kernel has no perf events: it needs CONFIG_PERF_EVENTS")
    return HostError(f"the kernel refuses the perf event {event}: {error_text(code)}")


class PerCpu:
    """One event on each online CPU, following CPUs that come and go."""

    def __init__(self, open_one: Callable[[int], int]) -> None:
        """open_one: opens the event of a CPU; a file descriptor, or a negative errno."""
        self._open_one = open_one
        self.fds: dict[int, int] = {}

    def follow(self, online: list[int], event: str) -> list[int]:
        """Opens events of CPUs that came, closes those of CPUs that went; the CPUs that came.

        Raises:
            HostError: the kernel refuses the event on every CPU.
        """
        for cpu in set(self.fds) - set(online):
            self.close_cpu(cpu)
        came = []
        for cpu in online:
            if cpu in self.fds:
                continue
            fd = self._open_one(cpu)
            if fd >= 0:
                self.fds[cpu] = fd
                came.append(cpu)
            elif fd != -errno.ENODEV or not online:  # ENODEV: it went offline in the meantime
                raise open_error(fd, event)
        if not self.fds:
            raise open_error(-errno.ENODEV, event)
        return came

    def close_cpu(self, cpu: int) -> None:
        os.close(self.fds.pop(cpu))

    def close(self) -> None:
        for cpu in list(self.fds):
            self.close_cpu(cpu)

    def enable(self, on: bool) -> None:
        for fd in self.fds.values():
            lib.pyprof_perf_enable(fd, on)

    def __iter__(self) -> Iterator[int]:
        return iter(self.fds.values())


class Sampling(PerCpu):
    """The sampling events; they run from being opened on."""

    def __init__(self, hz: int, event: str, program_fd: int) -> None:
        super().__init__(lambda cpu: int(lib.pyprof_perf_sampler(cpu, hz, event == "cycles", program_fd)))
        self._event = event

    def update(self) -> None:
        """Adapts to the CPUs that are online now."""
        self.follow(online_cpus(), self._event)


class ProcessEvents(PerCpu):
    """The side-band events and their rings, read by a SidebandReader."""

    def __init__(self, reader: SidebandReader) -> None:
        self._reader = reader
        # Build IDs in mmap records came with Linux 5.12 (commit 88a16a130933); probed by trying.
        self.build_ids = True
        super().__init__(self._open)

    def _open(self, cpu: int) -> int:
        wakeup = SIDEBAND_BYTES // 4
        fd = int(lib.pyprof_perf_sideband(cpu, self.build_ids, wakeup))
        if fd == -errno.EINVAL and self.build_ids:
            fd = int(lib.pyprof_perf_sideband(cpu, 0, wakeup))
            if fd >= 0:
                self.build_ids = False
        if fd < 0:
            return fd
        try:
            self._reader.add(fd, SIDEBAND_BYTES)
        except OSError as error:
            os.close(fd)
            raise HostError(
                "no locked memory for side-band records: run as root, or raise kernel.perf_event_mlock_kb"
            ) from error
        return fd

    def close_cpu(self, cpu: int) -> None:
        self._reader.remove(self.fds[cpu])
        super().close_cpu(cpu)

    def update(self) -> list[int]:
        """Adapts to the CPUs that are online now; those whose records begin only now."""
        return self.follow(online_cpus(), "side-band")
