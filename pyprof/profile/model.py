# SPDX-License-Identifier: Apache-2.0
"""The Profile: what one recording or interval reports, in columns, ready for any writer."""

import enum
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class FrameKind(enum.IntEnum):
    """What a frame's address means; writers colour and mark frames by it."""

    NATIVE = 1
    KERNEL = 2
    UNKNOWN = 3
    """User code outside every known file: JIT output, or a mapping that could not be read."""


class By(enum.StrEnum):
    """What stacks are kept apart by."""

    THREAD = "thread"
    PROCESS = "process"
    NONE = "none"


@dataclass(slots=True)
class Executable:
    """An ELF file (or the vDSO) that frames lie in.

    Attributes:
        path: as the process saw it; undecodable bytes are backslash-escaped.
        build_id: GNU build ID, lower-case hex, or "".
        go_build_id: Go build ID, or "".
        htlhash: hash of head, tail and length, 32 hex digits, or "" where the file could not be read.
        memory_start: lowest ELF address of its executable segments, 0 where unknown.
        memory_limit: end of the highest one.
        file_offset: file offset of the first executable segment.
    """

    path: str
    build_id: str = ""
    go_build_id: str = ""
    htlhash: str = ""
    memory_start: int = 0
    memory_limit: int = 0
    file_offset: int = 0


class Frame(NamedTuple):
    """One place in the code.

    Attributes:
        kind: see FrameKind.
        executable: index into Profile.executables, -1 for none (kernel, unknown code).
        address: ELF virtual address, or kernel address; of callers the byte before the return address.
        name: demangled name, or a stand-in such as ``libc.so.6+0x1234`` or ``[unknown]``.
        system_name: the symbol as it stands in the file, "" where there is none.
        module: of kernel frames the module, or "bpf", "" for the kernel itself.
    """

    kind: FrameKind
    executable: int
    address: int
    name: str
    system_name: str
    module: str = ""


class Process(NamedTuple):
    """A process between two execs.

    Attributes:
        start_time: nanoseconds since boot, 0 where unknown.
        path: of the program that it runs, as it sees it, "" where unknown.
        container_id: of the container that it runs in, "" for none or where unknown.
        service_name: by which it calls itself in its environment (OpenTelemetry's variables), else "".
    """

    pid: int
    name: str
    start_time: int
    path: str = ""
    container_id: str = ""
    service_name: str = ""


class Thread(NamedTuple):
    """A thread; pid and tid are 0, and the name is empty, where threads are not kept apart."""

    tid: int
    name: str


class Sample(NamedTuple):
    """Indices into the tables of a Profile, and how many samples were alike."""

    process: int
    thread: int
    stack: int
    count: int  # type: ignore[assignment]  # tuple.count is of no use here


@dataclass(slots=True)
class Accounting:
    """Where each sample went: taken = reported + sum(lost.values()).

    Attributes:
        taken: samples that the kernel took of what was to be profiled.
        reported: samples in the profile.
        lost: samples not in it, by reason.
        incomplete: reported samples whose stack does not reach its thread's start, by reason.
    """

    taken: int = 0
    reported: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    incomplete: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Profile:
    """Samples in columns. Stack i is stack_frames[stack_starts[i]:stack_starts[i + 1]], leaf first.

    Attributes:
        started_at: wall clock, nanoseconds since 1970.
        duration: nanoseconds.
        hz: samples a second on each CPU.
        event: "cpu-clock" or "cycles".
        by: what samples are kept apart by. With By.NONE the only process has pid 0 and no name.
        ends: what a number in sample_end means; 0 is a stack that reaches its thread's start.
        sample_end: where the walk of the stack ended. Rows may differ in nothing else.
        times: when each sample was taken, wall clock, nanoseconds since 1970, in the order in which they were
            counted; empty unless asked for. time_samples: which row each of these belongs to.
    """

    started_at: int
    duration: int
    hz: int
    event: str = "cpu-clock"
    by: By = By.PROCESS
    processes: list[Process] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)
    executables: list[Executable] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    stack_starts: "array[int]" = field(default_factory=lambda: array("I", [0]))
    stack_frames: "array[int]" = field(default_factory=lambda: array("I"))
    sample_process: "array[int]" = field(default_factory=lambda: array("I"))
    sample_thread: "array[int]" = field(default_factory=lambda: array("I"))
    sample_stack: "array[int]" = field(default_factory=lambda: array("I"))
    sample_count: "array[int]" = field(default_factory=lambda: array("Q"))
    sample_end: "array[int]" = field(default_factory=lambda: array("B"))
    times: "array[int]" = field(default_factory=lambda: array("Q"))
    time_samples: "array[int]" = field(default_factory=lambda: array("I"))
    ends: list[str] = field(default_factory=lambda: ["complete"])
    accounting: Accounting = field(default_factory=Accounting)

    def stack(self, index: int) -> Sequence[int]:
        """Frame indices of a stack, leaf first."""
        return self.stack_frames[self.stack_starts[index] : self.stack_starts[index + 1]]

    def samples(self) -> Iterator[Sample]:
        """All samples, in table order; those that differ only in where the walk ended are one."""
        counts: Counter[tuple[int, int, int]] = Counter()
        keys = zip(self.sample_process, self.sample_thread, self.sample_stack, strict=True)
        for key, count in zip(keys, self.sample_count, strict=True):
            counts[key] += count
        return (Sample(*key, count) for key, count in counts.items())

    def lead(self, sample: Sample) -> list[str]:
        """The names that stand before a sample's root frame: process, then thread, as `by` says."""
        if self.by is By.NONE:
            return []
        names = [self.processes[sample.process].name]
        if self.by is By.THREAD:
            names.append(self.threads[sample.thread].name)
        return names
