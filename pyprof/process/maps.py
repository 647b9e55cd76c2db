# SPDX-License-Identifier: Apache-2.0
"""Executable mappings of a process, from /proc/PID/maps (proc_pid_maps(5), fs/proc/task_mmu.c).

A path there is a label, no way to the file: a newline is written as ``\\012``, which a name may also hold
literally, and a file called ``live (deleted)`` looks like a deleted ``live``. `map_file` gives the way to
the file.
"""

import re
from typing import NamedTuple

from pyprof.errors import ProcError
from pyprof.process.proc import read_bytes

# One match passes over the lines of other mappings and takes the next executable one apart, or stands at
# the end: with 65,000 lines, of which few are executable, nothing is done in Python for the rest. The path
# is what comes after the blanks that pad the inode, up to the newline. Possessive quantifiers keep this
# linear on any input.
_NEXT = re.compile(
    rb"(?:[0-9a-f]++-[0-9a-f]++ [r-][w-]-[ps] .*+\n)*+"
    rb"(?:([0-9a-f]{1,16})-([0-9a-f]{1,16}) [r-]([w-])x[ps] "
    rb"([0-9a-f]{1,16}) ([0-9a-f]{1,8}):([0-9a-f]{1,8}) ([0-9]{1,20})(?: *+(?<= )(.*+))?+\n|\Z)"
)


class Mapping(NamedTuple):
    """An executable address range of a process.

    Attributes:
        start: first address.
        end: the address after the last.
        offset: bytes into the file at which it begins.
        dev_major: device of the file, 0 with dev_minor and inode where memory has no file.
        dev_minor: see dev_major.
        inode: number of the file on that device.
        path: name as the kernel prints it, b"" for none; a label only.
        writable: whether the process may also write there.
    """

    start: int
    end: int
    offset: int
    dev_major: int
    dev_minor: int
    inode: int
    path: bytes
    writable: bool = False


def executable_mappings(data: bytes) -> list[Mapping]:
    """The executable mappings among the lines of /proc/PID/maps, in address order.

    Raises:
        ProcError: a line has a form that is not known.
    """
    if data and not data.endswith(b"\n"):
        data += b"\n"
    mappings: list[Mapping] = []
    position = 0
    while found := _NEXT.match(data, position):
        start, end, write, offset, major, minor, inode, path = found.groups()
        if start is None:
            return mappings
        mappings.append(
            Mapping(
                int(start, 16),
                int(end, 16),
                int(offset, 16),
                int(major, 16),
                int(minor, 16),
                int(inode),
                path or b"",
                write == b"w",
            )
        )
        position = found.end()
    raise ProcError(f"/proc/PID/maps has a line of a form that is not known: {_odd_line(data, position)!r}")


def _odd_line(data: bytes, position: int) -> bytes:
    """The first line from `position` that `_NEXT` does not take."""
    for line in data[position:].split(b"\n"):
        found = _NEXT.match(line + b"\n")
        if found is None or found.end() == 0:
            return line[:200]
    return b""


def read_maps(pid: int, root: str = "/proc") -> list[Mapping] | None:
    """The executable mappings of a process now, in address order.

    None where there is no process or it has no memory: kernel threads, and processes about to be gone. The
    kernel ends the text early when the process execs or exits meanwhile; what was read then is of the
    memory before.

    Raises:
        ProcError: a line has a form that is not known.
    """
    data = read_bytes(f"{root}/{pid}/maps")
    if data is None:
        return None
    whole_lines = data[: data.rfind(b"\n") + 1]
    return executable_mappings(whole_lines) if whole_lines else None


def map_file(pid: int, start: int, end: int, root: str = "/proc") -> str:
    """Path that opens the file of a mapping, whatever its name is by now.

    The file must be opened with O_NONBLOCK and compared with the mapping's device and inode: the range may
    have been mapped anew. Needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.

    Args:
        pid: the process.
        start: the mapping's own first address; one inside it does not do.
        end: the mapping's own end.
        root: where proc is mounted.
    """
    return f"{root}/{pid}/map_files/{start:x}-{end:x}"
