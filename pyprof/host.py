# SPDX-License-Identifier: Apache-2.0
"""What this host offers for profiling: found by trying, never from a version number."""

import errno
import os
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from pyprof._native.processes import ProcessTable
from pyprof._native.sideband import SidebandReader
from pyprof._native.trie import MappingTrie
from pyprof.bpf.library import BpfObject, error_text, probe_loop, probe_program
from pyprof.bpf.perf_events import ProcessEvents, Sampling, online_cpus, raise_open_files
from pyprof.elf.file import open_regular
from pyprof.errors import ElfError, HostError
from pyprof.process.maps import map_file, read_maps
from pyprof.process.proc import list_pids
from pyprof.symbols.kernel import KernelSymbols

if TYPE_CHECKING:
    from pyprof.session import Session

PROC = Path("/proc")
SYS = Path("/sys")
TRIAL_RING_BYTES = 64 * 1024
TRIAL_HZ = 99
MAX_HZ = 10_000
"""The highest rate that `record -F` takes."""

# linux/capability.h
CAPABILITIES = {
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_RESOURCE": 24,
    "CAP_SYSLOG": 34,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
    "CAP_CHECKPOINT_RESTORE": 40,
}
REQUIRED = ("CAP_BPF", "CAP_PERFMON")
USEFUL = ("CAP_SYS_PTRACE", "CAP_SYSLOG", "CAP_CHECKPOINT_RESTORE")
# What CAP_SYS_ADMIN stands for, too: bpf_capable() and its like in linux/capability.h.
IN_SYS_ADMIN = frozenset(("CAP_BPF", "CAP_PERFMON", "CAP_CHECKPOINT_RESTORE"))

# Inode numbers of the host's own namespaces, the same on every host (include/linux/proc_ns.h).
HOST_USER_NAMESPACE = "user:[4026531837]"
HOST_PID_NAMESPACE = "pid:[4026531836]"


class State(StrEnum):
    """ok; limited: profiles, but something is less good; missing: cannot profile."""

    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what it is.
        state: whether it is there.
        detail: what was found, and what follows for profiles.
        remedy: how to get it, or "".
        needed: without it there is no profiling.
    """

    name: str
    state: State
    detail: str
    remedy: str = ""
    needed: bool = False

    @property
    def sentence(self) -> str:
        return f"{self.detail}: {self.remedy}" if self.remedy else self.detail


def needed(name: str, problem: str, found: str, remedy: str = "") -> Check:
    """A check that is missing where there is a problem."""
    state = State.MISSING if problem else State.OK
    return Check(name, state, problem or found, remedy if problem else "", needed=True)


def optional(name: str, problem: str, found: str, remedy: str = "") -> Check:
    """A check that is limited where there is a problem."""
    state = State.LIMITED if problem else State.OK
    return Check(name, state, problem or found, remedy if problem else "")


def check_host() -> list[Check]:
    """Everything, the causes of what may follow first. Programs and events are loaded and taken out again."""
    raise_open_files(2 * len(online_cpus()) + 1024)
    program = check_program()
    sampler, *events = try_sampler() if program.state is State.OK else without_programs()
    return [
        check_privileges(),
        check_pid_namespace(),
        check_btf(loads=sampler.state is State.OK),
        check_lockdown(),
        program,
        sampler,
        *try_process_events(),
        *events,
        check_kernel_names(),
        check_maps(),
        check_map_files(),
        check_process_roots(),
        check_rate_limit(),
        *check_not_needed(),
    ]


def explain_missing() -> str | None:
    """One sentence on what keeps this host from profiling and how to get it; None where nothing does."""
    return next((check.sentence for check in check_host() if check.state is State.MISSING), None)


def prepare(session: "Session") -> None:
    """Prepares a session.

    Raises:
        HostError: this host cannot profile; says what is missing and how to get it.
        TargetError: a process that was named is not there.
    """
    try:
        session.prepare()
    except HostError as error:
        raise HostError(explain_missing() or str(error)) from error
    # Nothing fails there, but samples would get the names of other processes.
    namespace = check_pid_namespace()
    if namespace.state is State.MISSING:
        raise HostError(namespace.sentence)


def read_text(path: Path) -> str | None:
    """A small file of the kernel; None where it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return None


def namespace(kind: str, proc: Path = PROC) -> str:
    """Our own namespace of a kind, such as ``pid:[4026531836]``; "" where the kernel has none of the kind."""
    try:
        return str((proc / "self/ns" / kind).readlink())
    except OSError:
        return ""


def status_field(name: str, proc: Path = PROC) -> str:
    """A field of our own status (proc_pid_status(5)), "" where there is none."""
    for line in (read_text(proc / "self/status") or "").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return ""


def capabilities(proc: Path = PROC) -> set[str]:
    """Those of CAPABILITIES that we have in effect."""
    try:
        mask = int(status_field("CapEff", proc), 16)
    except ValueError:
        mask = 0
    held = {name for name, bit in CAPABILITIES.items() if mask >> bit & 1}
    return held | IN_SYS_ADMIN if "CAP_SYS_ADMIN" in held else held


def check_privileges(proc: Path = PROC, uid: int | None = None) -> Check:
    """uid: the effective one, by default ours."""
    held = capabilities(proc)
    absent = [name for name in REQUIRED if name not in held]
    if absent:
        problem = f"profiling needs {' and '.join(absent)}"
        if (os.geteuid() if uid is None else uid) != 0:
            return needed("privileges", problem, "", "run it as root, such as with sudo")
        flags = " ".join(f"--cap-add={name.removeprefix('CAP_')}" for name in REQUIRED + USEFUL)
        remedy = f"leave what confines this root, or start the container with --privileged or {flags}"
        return needed("privileges", problem, "", remedy)
    if namespace("user", proc) not in ("", HOST_USER_NAMESPACE):
        problem = "the kernel lets no root of a user namespace profile the host"
        return needed("privileges", problem, "", "run pyprof as root of the host, in no rootless container")
    found = ", ".join(name for name in REQUIRED + USEFUL if name in held)
    return needed("privileges", "", found)


def check_pid_namespace(proc: Path = PROC) -> Check:
    """Programs in the kernel see the host's process IDs; ours, and those in /proc, must be the same."""
    own = namespace("pid", proc)
    # More than one number: /proc is of another namespace than we are.
    inside = own not in ("", HOST_PID_NAMESPACE) or len(status_field("NSpid", proc).split()) > 1
    return needed(
        "process IDs",
        "this is a PID namespace of its own, where the host's processes cannot be told" if inside else "",
        "those of the host",
        "run pyprof outside of the container, or the container with --pid=host",
    )


def check_btf(*, loads: bool, sys: Path = SYS) -> Check:
    """loads: the sampler loads: libbpf may have found the type information elsewhere."""
    there = (sys / "kernel/btf/vmlinux").exists()
    return needed(
        "type information",
        "" if there or loads else "the kernel's type information, /sys/kernel/btf/vmlinux, is not there",
        "/sys/kernel/btf/vmlinux" if there else "from the kernel's image",
        "it takes a kernel with CONFIG_DEBUG_INFO_BTF, as distributions have, and a mounted /sys",
    )


def check_lockdown(sys: Path = SYS) -> Check:
    """See kernel_lockdown(7): in mode confidentiality nobody may read kernel memory or open perf events."""
    text = read_text(sys / "kernel/security/lockdown") or ""
    mode = text.partition("[")[2].partition("]")[0]
    return needed(
        "lockdown",
        "kernel lockdown forbids profiling (mode confidentiality)" if mode == "confidentiality" else "",
        f"mode {mode}" if mode else "none",
        "boot with lockdown=integrity, or without lockdown=confidentiality, on the kernel's command line",
    )


def check_program() -> Check:
    code = probe_program()
    remedy = ""
    if code in (-errno.EPERM, -errno.EACCES, -errno.ENOSYS):
        if status_field("Seccomp") == "2":
            remedy = "a seccomp filter may do this, so run the container with --privileged"
        elif code == -errno.ENOSYS:
            remedy = "it takes a kernel with CONFIG_BPF_SYSCALL and CONFIG_BPF_EVENTS"
        else:
            remedy = "run pyprof as root of the host; a security module may refuse even that"
    elif code == -errno.EINVAL:
        remedy = "it takes a kernel with CONFIG_BPF_EVENTS and CONFIG_PERF_EVENTS"
    problem = f"the kernel refuses BPF programs for perf events ({error_text(code)})" if code else ""
    return needed("BPF programs", problem, "a perf_event program loads", remedy)


def without_programs() -> list[Check]:
    return untried("BPF programs", needed("sampler", "cannot be tried without BPF programs", ""))


def untried(cause: str, sampler: Check) -> list[Check]:
    """The checks of try_sampler() that its first one keeps from being made."""
    problem = f"cannot be tried without {cause}"
    return [
        sampler,
        needed("cpu-clock", problem, ""),
        optional("cycles", problem, ""),
        optional("bpf_loop", problem, ""),
    ]


def try_sampler() -> list[Check]:
    """Loads what a recording does, with small maps, and samples with it for a moment."""
    try:
        with BpfObject(TRIAL_RING_BYTES, TRIAL_RING_BYTES // 4, mapping_entries=1024) as bpf:
            clock = event_problem("cpu-clock", bpf.program_fd)
            cycles = event_problem("cycles", bpf.program_fd)
    except HostError as error:
        return untried("the sampler", needed("sampler", str(error), ""))
    return [
        needed("sampler", "", "loads, and the verifier takes it"),
        needed("cpu-clock", clock, "samples on each CPU"),
        optional("cycles", cycles, "samples on each CPU (--event cycles)", "give the virtual machine a PMU"),
        optional(
            "bpf_loop",
            "" if probe_loop() else "absent: user stacks end after 512 frames, not 1024",
            "user stacks of up to 1024 frames",
            "Linux 5.17 has it",
        ),
    ]


def event_problem(event: str, program_fd: int) -> str:
    """Why an event cannot drive the sampling, or ""."""
    with closing(Sampling(TRIAL_HZ, event, program_fd)) as sampling:
        try:
            sampling.update()
        except HostError as error:
            return str(error)
    return ""


def try_process_events() -> list[Check]:
    """Opens what reports processes and mappings, on each CPU, with its locked memory."""
    name, ids = "process events", "build IDs in events"
    with closing(ProcessEvents(SidebandReader(ProcessTable(MappingTrie())))) as events:
        try:
            events.update()
        except HostError as error:
            return [needed(name, str(error), ""), optional(ids, "cannot be tried without process events", "")]
        return [
            needed(name, "", f"open on {len(events.fds)} CPUs"),
            optional(
                ids,
                "" if events.build_ids else "absent: a program that is soon gone may have no build ID",
                "the kernel tells them",
                "Linux 5.12 has them",
            ),
        ]


def check_kernel_names() -> Check:
    problem, _, remedy = KernelSymbols.load().problem.partition("; ")
    return optional("kernel names", problem, "/proc/kallsyms gives them", remedy)


def refused(name: str, proc: Path = PROC) -> tuple[int, int]:
    """How many processes do not let us open a file of theirs, and how many there are."""
    pids = list_pids(str(proc))
    count = 0
    for pid in pids:
        try:
            os.close(os.open(proc / str(pid) / name, os.O_RDONLY | os.O_CLOEXEC))
        except PermissionError:
            count += 1
        except OSError:  # gone
            continue
    return count, len(pids)


def check_maps(proc: Path = PROC) -> Check:
    count, total = refused("maps", proc)
    return optional(
        "mappings",
        f"those of {count} of {total} processes cannot be read: what they had mapped already has no names"
        if count else "",
        f"of all {total} processes",
        ptrace_remedy(proc),
    )  # fmt: skip


def check_process_roots(proc: Path = PROC) -> Check:
    count, total = refused("root", proc)
    return optional(
        "process roots",
        f"those of {count} of {total} processes cannot be entered: what they unmap too soon has no names"
        if count else "",
        f"of all {total} processes",
        ptrace_remedy(proc),
    )  # fmt: skip


def ptrace_remedy(proc: Path) -> str:
    if "CAP_SYS_PTRACE" in capabilities(proc):
        return "a sandbox withholds them even from CAP_SYS_PTRACE; no other process suffers"
    return "CAP_SYS_PTRACE"


def check_map_files() -> Check:
    """Only opening tells: the names are readable to everybody."""
    problem = ""
    mapping = next((mapping for mapping in read_maps(os.getpid()) or [] if mapping.inode), None)
    if mapping is not None:
        try:
            os.close(open_regular(map_file(os.getpid(), mapping.start, mapping.end)))
        except ElfError:
            problem = (
                "/proc/PID/map_files cannot be opened: files are found by their paths, "
                "and functions of those deleted or replaced have no names"
            )
    return optional(
        "mapped files", problem, "can be opened, even deleted ones", "CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN"
    )


def check_rate_limit(proc: Path = PROC) -> Check:
    text = read_text(proc / "sys/kernel/perf_event_max_sample_rate") or ""
    limit = int(text) if text.isdecimal() else MAX_HZ
    return optional(
        "sampling rate",
        "" if limit >= MAX_HZ else f"the kernel takes at most {limit} samples a second on each CPU (-F)",
        f"up to {MAX_HZ} samples a second on each CPU",
        f"as root: sysctl kernel.perf_event_max_sample_rate={MAX_HZ}",
    )


def check_not_needed(proc: Path = PROC, sys: Path = SYS) -> list[Check]:
    """What other profilers stop at: pyprof works with and without."""
    there = {
        "tracefs": (sys / "kernel/tracing/events").exists(),
        "loadable modules": (proc / "modules").exists(),
        "/proc/kcore": (proc / "kcore").exists(),
        "CAP_SYS_RESOURCE": "CAP_SYS_RESOURCE" in capabilities(proc),
    }
    return [
        Check(name, State.OK, "there, not needed" if found else "absent, not needed")
        for name, found in there.items()
    ]
