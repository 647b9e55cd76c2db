# SPDX-License-Identifier: Apache-2.0
"""From the counted numbers of an interval to a Profile with names."""

import struct
from array import array
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from pyprof.process.facts import ProcessFacts
from pyprof.process.files import MappedFiles
from pyprof.process.proc import escape
from pyprof.profile.model import Frame, FrameKind, Process, Profile, Thread
from pyprof.symbols.names import FrameNames
from pyprof.symbols.symbol import Symbol

# Layouts of Aggregator.take().
_FRAME = struct.Struct("=QII")
_STACK = struct.Struct("=QII")
_PROCESS = struct.Struct("=QIIII16s")
_THREAD = struct.Struct("=II16s")
_SAMPLE = struct.Struct("=QIIII")


class ProcessRow(NamedTuple):
    """A process as the Aggregator counts it; program: the number of the executable that it runs, or 0."""

    start_time: int
    serial: int
    pid: int
    program: int
    parent: int
    name: bytes


ANONYMOUS = 1
"""Number of executable memory without a file in the process table."""

_ANON = Frame(FrameKind.UNKNOWN, -1, 0, "[anon]", "")
_UNKNOWN = _ANON._replace(name="[unknown]")


def process_rows(taken: dict[str, bytes]) -> list[ProcessRow]:
    """The processes that an Aggregator counted."""
    return [ProcessRow(*row) for row in _PROCESS.iter_unpack(taken["processes"])]


def fill(
    profile: Profile,
    taken: dict[str, bytes],
    files: MappedFiles,
    names: FrameNames,
    facts: ProcessFacts,
    kernel_changes: int = 0,
) -> None:
    """Fills the tables of a profile, but for the times of samples, from what an Aggregator counted.

    Args:
        kernel_changes: how many kernel symbols came or went, for names of what is loaded and unloaded.
    """
    names.tick()
    rows = list(_FRAME.iter_unpack(taken["frames"]))
    by_number: dict[int, list[int]] = defaultdict(list)
    kernel: list[int] = []
    for i, (_, number, kind) in enumerate(rows):
        if kind == FrameKind.KERNEL:
            kernel.append(i)
        elif kind == FrameKind.NATIVE:
            by_number[number].append(i)
    frames: list[Frame] = [_ANON if number == ANONYMOUS else _UNKNOWN for _, number, _ in rows]
    for number in sorted(by_number):
        _name_native(profile, files, names, number, by_number[number], rows, frames)
    addresses = [rows[i][0] for i in kernel]
    for i, address, symbol in zip(kernel, addresses, names.kernel(addresses, kernel_changes), strict=True):
        frames[i] = _kernel_frame(address, symbol)
    profile.frames = frames
    _fill_stacks(profile, taken)
    _fill_processes(profile, taken, files, facts)


def _name_native(
    profile: Profile,
    files: MappedFiles,
    names: FrameNames,
    number: int,
    which: Sequence[int],
    rows: Sequence[tuple[int, int, int]],
    frames: list[Frame],
) -> None:
    file = files.get(number)
    if file is None:
        return
    executable = len(profile.executables)
    profile.executables.append(file.describe())
    base = profile.executables[-1].path.rpartition("/")[2] or profile.executables[-1].path
    addresses = file.addresses_of([rows[i][0] for i in which])
    symbols = names.native(files, number, addresses)
    for i, address, symbol in zip(which, addresses, symbols, strict=True):
        if symbol is None:
            frames[i] = Frame(FrameKind.NATIVE, executable, address, f"{base}+{address:#x}", "")
        else:
            frames[i] = Frame(FrameKind.NATIVE, executable, address, symbol.name, symbol.system_name)


def _kernel_frame(address: int, symbol: Symbol | None) -> Frame:
    if symbol is None:
        return Frame(FrameKind.KERNEL, -1, address, f"{address:#x}", "")
    name = f"{symbol.name} [{symbol.module}]" if symbol.module else symbol.name
    return Frame(FrameKind.KERNEL, -1, address, name, symbol.system_name, symbol.module)


def _text(name: bytes) -> str:
    return escape(name.split(b"\0", 1)[0])


def _fill_stacks(profile: Profile, taken: dict[str, bytes]) -> None:
    profile.stack_frames = array("I", taken["pool"])
    # Stacks lie in the pool in the order of their numbers, without gaps.
    profile.stack_starts = array("I", [start for start, _, _ in _STACK.iter_unpack(taken["stacks"])])
    profile.stack_starts.append(len(profile.stack_frames))
    profile.threads = [
        Thread(tid, _text(name)) for _, tid, name in _THREAD.iter_unpack(taken["threads"])
    ] or [Thread(0, "")]
    samples = list(_SAMPLE.iter_unpack(taken["samples"]))
    profile.sample_count = array("Q", [row[0] for row in samples])
    profile.sample_process = array("I", [row[1] for row in samples])
    profile.sample_thread = array("I", [row[2] for row in samples])
    profile.sample_stack = array("I", [row[3] for row in samples])
    profile.sample_end = array("B", [row[4] for row in samples])


def _fill_processes(
    profile: Profile, taken: dict[str, bytes], files: MappedFiles, facts: ProcessFacts
) -> None:
    rows = process_rows(taken)
    programs = {number: files.get(number) for number in {row.program for row in rows}}
    paths = {number: escape(file.path) for number, file in programs.items() if file is not None}
    profile.processes = [
        Process(row.pid, _text(row.name), row.start_time, paths.get(row.program, ""), *facts.get(row.serial))
        for row in rows
    ] or [Process(0, "", 0)]
