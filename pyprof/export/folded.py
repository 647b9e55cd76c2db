# SPDX-License-Identifier: Apache-2.0
"""Folded stacks, ``process;root frame;...;leaf frame COUNT``, as read by flamegraph.pl and speedscope."""

from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

from pyprof.export.names import UNKNOWN, distinct, printable
from pyprof.profile.model import FrameKind, Profile

KERNEL_MARK = "_[k]"
"""Ends the names of kernel frames; flamegraph.pl gives them a colour of their own by it."""


def write(profile: Profile, out: BinaryIO) -> None:
    """Write the lines, sorted, each once; their counts add up to the samples reported.

    A thread's name comes second where threads are kept apart; nothing leads where processes are not.

    Raises:
        OSError: `out` does not take it.
    """
    for line, count in sorted(_lines(profile).items()):
        out.write(f"{line} {count}\n".encode())


def _lines(profile: Profile) -> Counter[str]:
    shown = distinct(_names(profile), _element)
    frames = [
        shown[frame.name or UNKNOWN] + (KERNEL_MARK if frame.kind == FrameKind.KERNEL else "")
        for frame in profile.frames
    ]
    stacks: dict[int, str] = {}
    lines: Counter[str] = Counter()
    for sample in profile.samples():
        stack = stacks.get(sample.stack)
        if stack is None:
            stack = ";".join([frames[frame] for frame in reversed(profile.stack(sample.stack))])
            stacks[sample.stack] = stack
        elements = [shown[name or UNKNOWN] for name in profile.lead(sample)]
        if stack:
            elements.append(stack)
        lines[";".join(elements) or UNKNOWN] += sample.count
    return lines


def _names(profile: Profile) -> Iterator[str]:
    for table in (profile.processes, profile.threads, profile.frames):
        for row in table:
            yield row.name or UNKNOWN


def _element(name: str) -> str:
    """A name as part of a line: no separator, and on one line."""
    return printable(name).replace(";", ":")
