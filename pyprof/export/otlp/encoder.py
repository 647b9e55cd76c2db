# SPDX-License-Identifier: Apache-2.0
"""A Profile as OTLP export requests.

Every request stands alone: names, build IDs and paths of all that its samples refer to are in it, whatever
was sent before. One resource is one process. Conventions:
https://opentelemetry.io/docs/specs/semconv/general/profiles/.
"""

import enum
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as service
from opentelemetry.proto.profiles.v1development import profiles_pb2 as messages
from opentelemetry.proto.resource.v1 import resource_pb2

import pyprof
from pyprof.export.names import encodable
from pyprof.export.otlp.batch import Batch
from pyprof.export.otlp.dictionary import Dictionary
from pyprof.export.otlp.resource import SCHEMA, Attributes, process_attributes
from pyprof.profile.model import By, Executable, FrameKind, Profile

SECOND = 1_000_000_000

MAX_MESSAGE = 4_000_000
"""gRPC servers take 4 MiB unless told otherwise; what goes around the message needs some, too."""

TOO_LARGE = "larger than a message may be"

_KERNEL_START = 1 << 63
_KERNEL_LIMIT = (1 << 64) - 1

# What entries take in a message, about: only the first guess at the number of messages depends on it.
_SAMPLE_BYTES, _TIME_BYTES, _STACK_FRAME_BYTES, _FRAME_BYTES = 16, 8, 3, 40


class Shape(enum.StrEnum):
    """How a sample that was taken several times is stated: by the times, or by how often."""

    TIMESTAMPS = "timestamps"
    VALUES = "values"


class Row(NamedTuple):
    """Samples that differ only in time. times: one for each of `count`, or none at all."""

    process: int
    thread: int
    stack: int
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    times: Sequence[int]

    def halves(self) -> "tuple[Row, Row]":
        middle = self.count // 2
        return (
            self._replace(count=middle, times=self.times[:middle]),
            self._replace(count=self.count - middle, times=self.times[middle:]),
        )


@dataclass(slots=True)
class Encoded:
    """Requests, and samples that are in none of them, by reason."""

    batches: list[Batch] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)


def encode(
    profile: Profile,
    shape: Shape = Shape.VALUES,
    host: Attributes | None = None,
    max_message: int = MAX_MESSAGE,
    kernel_build_id: str = "",
) -> Encoded:
    """Encodes a profile.

    Args:
        shape: TIMESTAMPS needs a profile with times; without them it is VALUES.
        host: attributes of the host, part of every resource.
        max_message: most bytes of a request, before compression.
        kernel_build_id: GNU build ID of the running kernel, or "".

    Returns:
        As many requests as the limit makes necessary, none for a profile without samples.
    """
    encoded = Encoded()
    rows = _rows(profile, shape)
    parts = max(-(-_estimate(profile, rows) // max_message), 1)
    todo = [rows[i * len(rows) // parts : (i + 1) * len(rows) // parts] for i in range(parts)]
    todo.reverse()
    while todo:
        part = todo.pop()
        if not part:
            continue
        request = _Request(profile, host or {}, kernel_build_id)
        payload = request.encode(part)
        if len(payload) <= max_message:
            samples = sum(row.count for row in part)
            encoded.batches.append(Batch(payload, samples, profile.started_at))
        elif len(part) > 1:
            todo += [part[len(part) // 2 :], part[: len(part) // 2]]
        elif part[0].count > 1:
            todo += [[half] for half in reversed(part[0].halves())]
        else:
            encoded.lost[TOO_LARGE] = encoded.lost.get(TOO_LARGE, 0) + 1
    return encoded


def _rows(profile: Profile, shape: Shape) -> list[Row]:
    """Process by process; what differs only in where the walk of the stack ended is one row."""
    times: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    if shape is Shape.TIMESTAMPS:
        keys = list(zip(profile.sample_process, profile.sample_thread, profile.sample_stack, strict=True))
        for row, time in zip(profile.time_samples, profile.times, strict=True):
            times[keys[row]].append(time)
    rows = []
    for process, thread, stack, count in profile.samples():
        stamps = times.get((process, thread, stack), [])
        rows.append(Row(process, thread, stack, count, stamps if len(stamps) == count else []))
    rows.sort(key=lambda row: (row.process, row.thread))
    return rows


def _estimate(profile: Profile, rows: Sequence[Row]) -> int:
    stacks = {row.stack for row in rows}
    return (
        sum(_SAMPLE_BYTES + _TIME_BYTES * len(row.times) for row in rows)
        + sum(_STACK_FRAME_BYTES * len(profile.stack(stack)) for stack in stacks)
        + _FRAME_BYTES * len(profile.frames)
    )


class _Locations(dict[int, int]):
    """Location by frame, made when it is first asked for: most frames are met many times."""

    def __init__(self, make: Callable[[int], int]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, frame: int) -> int:
        made = self[frame] = self._make(frame)
        return made


class _Request:
    """One ExportProfilesServiceRequest in the making."""

    def __init__(self, profile: Profile, host: Attributes, kernel_build_id: str) -> None:
        self._profile = profile
        self._host = host
        self._kernel_build_id = kernel_build_id
        self._message = service.ExportProfilesServiceRequest()
        self._dictionary = Dictionary(self._message.dictionary)
        self._executables: dict[int, int] = {}
        self._locations = _Locations(self.location)
        self._kinds: dict[str, tuple[int, ...]] = {}
        self._stacks: dict[int, int] = {}

    def encode(self, rows: Sequence[Row]) -> bytes:
        by_process: dict[int, list[Row]] = defaultdict(list)
        for row in rows:
            by_process[row.process].append(row)
        for process, members in by_process.items():
            self._resource(process, members)
        self._dictionary.finish()
        payload: bytes = self._message.SerializeToString()
        return payload

    def _resource(self, process: int, rows: Iterable[Row]) -> None:
        resource = self._message.resource_profiles.add(schema_url=SCHEMA)
        attributes = process_attributes(self._profile.processes[process]) | self._host
        _set_attributes(resource.resource, attributes)
        scope = resource.scope_profiles.add(schema_url=SCHEMA)
        scope.scope.name = "pyprof"
        scope.scope.version = pyprof.__version__
        self._samples(scope.profiles.add(), rows)

    def _samples(self, message: messages.Profile, rows: Iterable[Row]) -> None:
        profile, string = self._profile, self._dictionary.string
        message.sample_type.type_strindex = string("samples")
        message.sample_type.unit_strindex = string("count")
        message.period_type.type_strindex = string("cpu")
        message.period_type.unit_strindex = string("nanoseconds")
        message.period = (SECOND + profile.hz // 2) // profile.hz
        message.time_unix_nano = profile.started_at
        message.duration_nano = profile.duration
        message.profile_id = os.urandom(16)
        # Frames that differ in what is not reported may make two stacks one.
        merged: dict[tuple[int, tuple[int, ...]], tuple[int, list[int]]] = {}
        for row in rows:
            key = (self._stack(row.stack), self._thread(row.thread))
            count, times = merged.get(key, (0, []))
            merged[key] = (count + row.count, times + list(row.times) if times else list(row.times))
        for (stack, attributes), (count, times) in merged.items():
            sample = message.samples.add(stack_index=stack, attribute_indices=attributes)
            if len(times) == count:
                times.sort()
                sample.timestamps_unix_nano.extend(times)
            else:
                sample.values.append(count)

    def _thread(self, index: int) -> tuple[int, ...]:
        if self._profile.by is not By.THREAD:
            return ()
        thread = self._profile.threads[index]
        return self._dictionary.attributes((("thread.id", thread.tid), ("thread.name", thread.name)))

    def _stack(self, index: int) -> int:
        known = self._stacks.get(index)
        if known is None:
            locations = tuple(map(self._locations.__getitem__, self._profile.stack(index)))
            known = self._stacks[index] = self._dictionary.stack(locations)
        return known

    def location(self, index: int) -> int:
        """The location of a frame that was not met yet."""
        frame = self._profile.frames[index]
        mapping, kind = 0, "unknown"
        if frame.kind == FrameKind.KERNEL:
            mapping, kind = self._kernel_mapping(frame.module), "kernel"
        elif frame.executable >= 0:
            mapping = self._mapping(frame.executable)
            kind = "go" if self._profile.executables[frame.executable].go_build_id else "native"
        # A stand-in such as libc.so.6+0x1234 is no name: a receiver with symbols finds a better one.
        named = frame.system_name or frame.kind == FrameKind.UNKNOWN
        function = self._dictionary.function(frame.name, frame.system_name) if named else 0
        attributes = self._kinds.get(kind)
        if attributes is None:
            attributes = self._kinds[kind] = self._dictionary.attributes((("profile.frame.type", kind),))
        return self._dictionary.location(mapping, frame.address, function, attributes)

    def _mapping(self, index: int) -> int:
        known = self._executables.get(index)
        if known is None:
            executable = self._profile.executables[index]
            known = self._executables[index] = self._dictionary.mapping(
                executable.path.rpartition("/")[2] or executable.path,
                executable.memory_start,
                executable.memory_limit,
                executable.file_offset,
                build_ids(executable),
            )
        return known

    def _kernel_mapping(self, module: str) -> int:
        """Modules and BPF programs by their names; the kernel itself is one file."""
        build_id = "" if module else self._kernel_build_id
        ids = [("process.executable.build_id.gnu", build_id)] if build_id else []
        return self._dictionary.mapping(module or "vmlinux", _KERNEL_START, _KERNEL_LIMIT, 0, ids)


def build_ids(executable: Executable) -> Iterator[tuple[str, str]]:
    """The attributes that tell a file from all others."""
    yield "process.executable.build_id.gnu", executable.build_id
    yield "process.executable.build_id.go", executable.go_build_id
    yield "process.executable.build_id.htlhash", executable.htlhash


def _set_attributes(resource: resource_pb2.Resource, attributes: Attributes) -> None:
    for key, value in attributes.items():
        entry = resource.attributes.add(key=key)
        if isinstance(value, int):
            entry.value.int_value = value
        else:
            entry.value.string_value = encodable(value)
