# SPDX-License-Identifier: Apache-2.0
"""What /proc/PID says about a process, read so that a process may vanish at any moment.

Every reader takes a pid and gives None when the process is gone (ENOENT, ESRCH), may not be looked at
(EACCES, EPERM), or has nothing there any more (an empty or cut read, as of a process that is being torn
down). Names are bytes: the kernel lets them hold any byte but NUL, and `escape` makes them text at the
border. Formats are in proc_pid_stat(5), proc_pid_status(5) and the kernel's fs/proc/array.c.
"""

import errno
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from pyprof.errors import ProcError

PF_KTHREAD = 0x00200000
"""Flag of kernel threads, include/linux/sched.h."""

_GONE = frozenset((errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM))
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_FIRST_STAT_FIELD = 3  # proc_pid_stat(5) counts from 1: pid, comm, then the state.
_READ_SIZE = 65536

# The name may hold ") R 1 (" and newlines: it goes from the first parenthesis to the last one of the file.
_STAT = re.compile(rb"([0-9]+) \((.*)\) ([^)]+)", re.DOTALL)

# An undecodable byte becomes `\xNN`, NN from 80 up. Where the name itself holds backslashes in front of
# such a byte, or of text that looks like one, they are doubled: thus two names never become one, and other
# backslashes stay.
_AMBIGUOUS_BACKSLASHES = re.compile(r"\\+(?=[\udc80-\udcff]|x[89a-f][0-9a-f])")


class Stat(NamedTuple):
    """/proc/PID/stat, the fields that are used.

    Attributes:
        comm: the name of the main thread, any bytes but NUL; at most 15 but for kernel threads.
        state: one letter, R S D Z T t X I.
        flags: PF_* of include/linux/sched.h.
        cpu_ticks: user and system time of all its threads, in clock ticks.
        start_ticks: when the process started, in clock ticks since boot.
    """

    pid: int
    comm: bytes
    state: str
    ppid: int
    pgrp: int
    session: int
    tty: int
    tpgid: int
    flags: int
    num_threads: int
    cpu_ticks: int
    start_ticks: int

    @property
    def is_kernel_thread(self) -> bool:
        """Whether this is a thread of the kernel, which has no user memory."""
        return bool(self.flags & PF_KTHREAD)

    @property
    def start_ns(self) -> int:
        """Nanoseconds since boot, rounded down to a clock tick."""
        return self.start_ticks * 1_000_000_000 // _CLOCK_TICKS

    @property
    def cpu_ns(self) -> int:
        """CPU time in nanoseconds, in steps of a clock tick."""
        return self.cpu_ticks * 1_000_000_000 // _CLOCK_TICKS


class Status(NamedTuple):
    """/proc/PID/status, the fields that are used.

    Attributes:
        tgid: the process that the task belongs to.
        nspids: its ids, from the PID namespace of the reader to its own, which is last.
    """

    tgid: int
    nspids: tuple[int, ...]


def escape(name: bytes) -> str:
    r"""Text for a name of any bytes: UTF-8 where it is, `\xNN` for what is not.

    Different names give different texts: backslashes that would make a name look escaped are doubled.
    """
    text = name.decode("utf-8", "surrogateescape")
    if "\\" in text:
        text = _AMBIGUOUS_BACKSLASHES.sub(lambda found: found.group() * 2, text)
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def read_bytes(path: str) -> bytes | None:
    """The whole of a file below /proc, None where the process is gone or may not be read; possibly empty.

    Raises:
        ProcError: it cannot be read for another reason.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Files made by seq_file come in pieces of about a page, whatever the size asked for.
            parts = []
            while part := os.read(fd, _READ_SIZE):
                parts.append(part)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise ProcError(f"cannot read {path}: {error.strerror}") from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def list_pids(root: str = "/proc") -> list[int]:
    """The processes there are, ascending.

    Raises:
        ProcError: there is no /proc.
    """
    try:
        with os.scandir(root) as entries:
            return _numbers(entries)
    except OSError as error:
        raise ProcError(f"cannot list processes in {root}: {error.strerror}") from error


def list_tids(pid: int, root: str = "/proc") -> list[int] | None:
    """The threads of a process, ascending."""
    try:
        with os.scandir(f"{root}/{pid}/task") as entries:
            return _numbers(entries) or None
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise ProcError(f"cannot list the threads of process {pid}: {error.strerror}") from error


def _numbers(entries: Iterable[os.DirEntry[str]]) -> list[int]:
    return sorted(int(entry.name) for entry in entries if entry.name.isascii() and entry.name.isdigit())


def _unknown_form(name: str, data: bytes) -> ProcError:
    return ProcError(f"/proc/PID/{name} has a form that is not known: {data[:200]!r}")


def parse_stat(data: bytes) -> Stat:
    """Take /proc/PID/stat apart.

    Raises:
        ProcError: it has another form.
    """
    found = _STAT.fullmatch(data)
    if found is None:
        raise _unknown_form("stat", data)
    fields = found[3].split()

    def number(field: int) -> int:
        return int(fields[field - _FIRST_STAT_FIELD])

    try:
        return Stat(
            pid=int(found[1]),
            comm=found[2],
            state=fields[0].decode("ascii"),
            ppid=number(4),
            pgrp=number(5),
            session=number(6),
            tty=number(7),
            tpgid=number(8),
            flags=number(9),
            num_threads=number(20),
            cpu_ticks=number(14) + number(15),
            start_ticks=number(22),
        )
    except (ValueError, IndexError) as error:
        raise _unknown_form("stat", data) from error


def read_stat(pid: int, root: str = "/proc") -> Stat | None:
    """What /proc/PID/stat says.

    Raises:
        ProcError: it has a form that is not known.
    """
    data = read_bytes(f"{root}/{pid}/stat")
    return parse_stat(data) if data and data.endswith(b"\n") else None


def read_comm(pid: int, tid: int | None = None, root: str = "/proc") -> bytes | None:
    """The name of a process's main thread, or of its thread `tid`; it may be empty, and hold newlines."""
    data = read_bytes(f"{root}/{pid}/comm" if tid is None else f"{root}/{pid}/task/{tid}/comm")
    return data[:-1] if data and data.endswith(b"\n") else None


def read_exe(pid: int, root: str = "/proc") -> bytes | None:
    """Path of the program that a process runs, as a label: it may end in ``(deleted)``.

    None for kernel threads, too.
    """
    try:
        return os.readlink(os.fsencode(f"{root}/{pid}/exe"))  # noqa: PTH115 - Path knows no bytes
    except OSError as error:
        # ENAMETOOLONG: the path is longer than a page.
        if error.errno in _GONE or error.errno == errno.ENAMETOOLONG:
            return None
        raise ProcError(f"cannot read {root}/{pid}/exe: {error.strerror}") from error


def parse_status(data: bytes) -> Status:
    """Take /proc/PID/status apart.

    Raises:
        ProcError: it has another form.
    """
    try:
        # Newlines in the name are escaped here (unlike in stat), so that lines are what they seem.
        fields = dict(line.split(b":\t", 1) for line in data.split(b"\n") if b":\t" in line)
        tgid = int(fields[b"Tgid"])
        nspids = tuple(map(int, fields.get(b"NSpid", b"").split()))
        # Kernels without PID namespaces have no such line.
        return Status(tgid, nspids or (int(fields[b"Pid"]),))
    except (KeyError, ValueError) as error:
        raise _unknown_form("status", data) from error


def read_status(pid: int, root: str = "/proc") -> Status | None:
    """What /proc/PID/status says.

    Raises:
        ProcError: it has a form that is not known.
    """
    data = read_bytes(f"{root}/{pid}/status")
    return parse_status(data) if data and data.endswith(b"\n") else None
