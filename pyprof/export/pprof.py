# SPDX-License-Identifier: Apache-2.0
"""pprof's format (.pb.gz), as read by ``go tool pprof``, Pyroscope, Parca and others.

Processes and threads are labels of the samples, not frames: in pprof's tables only functions count, and
``-tagfocus process=NAME`` or ``-tagroot process`` bring processes back.
"""

import gzip
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyprof
from pyprof.export.names import KERNEL, UNKNOWN, encodable, where
from pyprof.export.pprof_schema import PprofLabel, PprofProfile
from pyprof.profile.model import Accounting, By, Frame, FrameKind, Profile

_SECOND = 1_000_000_000

# The kernel's half of the address space; constant, so that pprof sees one kernel in all profiles of a host.
_KERNEL_START = 1 << 63
_KERNEL_LIMIT = (1 << 64) - 1


def write(profile: Profile, out: BinaryIO) -> None:
    """Write the profile, compressed: sample types samples/count and cpu/nanoseconds, the latter the default.

    Raises:
        OSError: `out` does not take it.
    """
    encoded = _Encoder(profile).encode().SerializeToString(deterministic=True)
    # Equal profiles give equal files: no time in gzip's header, and no file name.
    out.write(gzip.compress(encoded, compresslevel=6, mtime=0))


class _Encoder:
    """Turns one Profile into one message. Ids of mappings, locations and functions begin at 1; 0 is none."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.message = PprofProfile()
        # The zero value first: an index that is not set must not point at somebody's name.
        self.strings = {"": 0}
        self.functions: dict[tuple[int, int, int], int] = {}

    def encode(self) -> Any:
        self._header()
        self._mappings()
        self._locations()
        self._samples()
        self.message.string_table.extend(self.strings)
        return self.message

    def _string(self, text: str) -> int:
        text = encodable(text)
        return self.strings.setdefault(text, len(self.strings))

    def _header(self) -> None:
        message, profile = self.message, self.profile
        message.sample_type.add(type=self._string("samples"), unit=self._string("count"))
        message.sample_type.add(type=self._string("cpu"), unit=self._string("nanoseconds"))
        message.default_sample_type = self._string("cpu")
        message.period_type.type = self._string("cpu")
        message.period_type.unit = self._string("nanoseconds")
        message.period = self._cpu_time(1)
        message.time_nanos = profile.started_at
        message.duration_nanos = profile.duration
        message.comment.append(
            self._string(f"pyprof {pyprof.__version__}: {profile.event} at {profile.hz} Hz")
        )
        message.comment.extend(self._string(text) for text in _accounts(profile.accounting))

    def _cpu_time(self, count: int) -> int:
        """Nanoseconds that `count` samples stand for, to the nearest."""
        return (count * _SECOND + self.profile.hz // 2) // self.profile.hz

    def _mapping_id(self, frame: Frame) -> int:
        """Executables come in their order, the kernel last."""
        return len(self.profile.executables) + 1 if frame.kind == FrameKind.KERNEL else frame.executable + 1

    def _mappings(self) -> None:
        # All have functions, be they stand-ins: else pprof puts the nearest symbol of a stripped file there.
        for number, executable in enumerate(self.profile.executables, start=1):
            self.message.mapping.add(
                id=number,
                memory_start=executable.memory_start,
                memory_limit=executable.memory_limit,
                file_offset=executable.file_offset,
                filename=self._string(executable.path),
                build_id=self._string(executable.build_id or executable.htlhash),
                has_functions=True,
            )
        if any(frame.kind == FrameKind.KERNEL for frame in self.profile.frames):
            self.message.mapping.add(
                id=len(self.profile.executables) + 1,
                memory_start=_KERNEL_START,
                memory_limit=_KERNEL_LIMIT,
                filename=self._string(KERNEL),
                has_functions=True,
            )

    def _locations(self) -> None:
        for number, frame in enumerate(self.profile.frames, start=1):
            location = self.message.location.add(
                id=number, mapping_id=self._mapping_id(frame), address=frame.address
            )
            location.line.add(function_id=self._function_id(frame))

    def _function_id(self, frame: Frame) -> int:
        function = (
            self._string(frame.name or UNKNOWN),
            self._string(frame.system_name),
            self._string(where(self.profile, frame)),
        )
        number = self.functions.get(function)
        if number is None:
            number = self.functions[function] = len(self.functions) + 1
            name, system_name, filename = function
            self.message.function.add(id=number, name=name, system_name=system_name, filename=filename)
        return number

    def _samples(self) -> None:
        label_sets: dict[tuple[int, int], list[Any]] = {}
        locations: dict[int, list[int]] = {}
        for process, thread, stack, count in self.profile.samples():
            labels = label_sets.get((process, thread))
            if labels is None:
                labels = label_sets[process, thread] = list(self._labels(process, thread))
            location_ids = locations.get(stack)
            if location_ids is None:
                location_ids = locations[stack] = [frame + 1 for frame in self.profile.stack(stack)]
            sample = self.message.sample.add(location_id=location_ids, value=(count, self._cpu_time(count)))
            sample.label.extend(labels)

    def _labels(self, process: int, thread: int) -> Iterator[Any]:
        by = self.profile.by
        if by is not By.NONE:
            yield self._text_label("process", self.profile.processes[process].name)
            yield self._number_label("pid", self.profile.processes[process].pid)
        if by is By.THREAD:
            yield self._text_label("thread", self.profile.threads[thread].name)
            yield self._number_label("tid", self.profile.threads[thread].tid)

    def _text_label(self, key: str, text: str) -> Any:
        return PprofLabel(key=self._string(key), str=self._string(text or UNKNOWN))

    def _number_label(self, key: str, number: int) -> Any:
        return PprofLabel(key=self._string(key), num=number)


def _accounts(accounting: Accounting) -> Iterator[str]:
    """Where the samples went, a line each: taken = reported + all that is lost."""
    yield f"samples taken: {accounting.taken}"
    yield f"samples reported: {accounting.reported}"
    for reason, count in sorted(accounting.lost.items()):
        yield f"samples lost, {reason}: {count}"
    for reason, count in sorted(accounting.incomplete.items()):
        yield f"stacks incomplete, {reason}: {count}"
