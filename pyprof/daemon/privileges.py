# SPDX-License-Identifier: Apache-2.0
"""Gives up all capabilities but those that profiling goes on to use, before the first thread starts."""

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from pyprof._native._libbpf import ffi, lib
from pyprof.bpf.library import error_text
from pyprof.bpf.perf_events import online_cpus
from pyprof.errors import HostError
from pyprof.host import status_field

NEEDED = {
    "CAP_BPF": 39,
    "CAP_PERFMON": 38,
    "CAP_SYS_PTRACE": 19,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_SYSLOG": 34,
    "CAP_CHECKPOINT_RESTORE": 40,
}
"""By their numbers in linux/capability.h; packaging/pyprof.service says what each is for. All are in use as
long as the daemon runs: maps are written and grow, CPUs come, processes start, the kernel loads modules."""

SYS_ADMIN = 21


@dataclass(frozen=True, slots=True)
class Dropped:
    """What became of the capabilities.

    Attributes:
        kept: names of those in effect now.
        admin: CAP_SYS_ADMIN is among them: this kernel opens no perf event without.
        unbounded: capabilities that could not be taken out of the bounding set, for want of CAP_SETPCAP. They
            are no use to us; no_new_privs keeps programs from them.
    """

    kept: tuple[str, ...]
    admin: bool
    unbounded: int

    def __str__(self) -> str:
        return f"kept capabilities: {', '.join(self.kept) or 'none'}"


def mask(numbers: Iterable[int]) -> int:
    """A set of capabilities as /proc/PID/status has it: bit n for capability n."""
    return sum(1 << number for number in set(numbers))


def drop() -> Dropped:
    """Gives up what is not needed, for this thread and those that it starts.

    Raises:
        HostError: the kernel refuses, or other threads run already, which would keep all they have.
    """
    if int(status_field("Threads")) > 1:
        raise HostError("privileges cannot be given up: threads run already")
    keep = dict(NEEDED)
    admin = perf_needs_admin()
    if admin:
        keep["CAP_SYS_ADMIN"] = SYS_ADMIN
    unbounded = ffi.new("uint32_t *")
    # The bounding set first: emptying it takes a capability that is given up next.
    code = lib.pyprof_capabilities_bound(unbounded) or lib.pyprof_capabilities_keep(mask(keep.values()))
    if code:
        raise HostError(f"privileges cannot be given up: {error_text(code)}")
    left = int(status_field("CapEff"), 16)
    kept = tuple(name for name, number in keep.items() if left >> number & 1)
    return Dropped(kept, admin, int(unbounded[0]))


def perf_needs_admin() -> bool:
    """Whether the needed ones do not open a perf event here, and CAP_SYS_ADMIN does: some distributions ask
    for it where kernel.perf_event_paranoid is 3 or more. Found by trying, in a thread of its own."""
    cpu = online_cpus()[0]
    opened: list[int] = []

    def attempt() -> None:
        lib.pyprof_capabilities_keep(mask(NEEDED.values()))
        opened.append(_open(cpu))

    if _open(cpu) < 0:
        return False  # nothing helps; starting will say why
    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return opened[0] < 0


def _open(cpu: int) -> int:
    """0 where a side-band event opens, else a negative errno."""
    fd = int(lib.pyprof_perf_sideband(cpu, 0, 4096))
    if fd < 0:
        return fd
    os.close(fd)
    return 0
