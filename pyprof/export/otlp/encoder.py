# SPDX-License-Identifier: Apache-2.0
"""A Profile as OTLP export requests.

Every request stands alone: names, build IDs and paths of all that its samples refer to are in it, whatever
was sent before. One resource is one process. Conventions:
https://opentelemetry.io/docs/specs/semconv/general/profiles/.
"""

import enum
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, groupby, pairwise
from typing import NamedTuple

from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as service
from opentelemetry.proto.profiles.v1development import profiles_pb2 as messages
from opentelemetry.proto.resource.v1 import resource_pb2

import pyprof
from pyprof._native import protobuf
from pyprof._native.grouping import Merged, SampleRows
from pyprof.export.names import encodable
from pyprof.export.otlp.batch import Batch
from pyprof.export.otlp.dictionary import Dictionary, field_number
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


class Part(NamedTuple):
    """Rows [first, end) of SampleRows, of whose times only those in [first_time, end_time) belong to it."""

    first: int
    end: int
    first_time: int
    end_time: int

    def halves(self, time_starts: Sequence[int]) -> "list[Part]":
        """Two parts, or none where this one is a single sample, or one that is not told by its times."""
        middle = (self.first + self.end) // 2
        time = time_starts[middle]
        if self.end - self.first == 1:
            middle, time = self.first, (self.first_time + self.end_time) // 2
            if time == self.first_time:
                return []
            return [self._replace(end_time=time), self._replace(first_time=time)]
        return [self._replace(end=middle, end_time=time), self._replace(first=middle, first_time=time)]


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
    count = len(rows)
    starts = rows.time_starts
    pieces = min(max(-(-_estimate(profile, starts[count]) // max_message), 1), count)
    cuts = [i * count // pieces for i in range(pieces + 1)] if count else []
    todo = [Part(a, b, starts[a], starts[b]) for a, b in pairwise(cuts)]
    todo.reverse()
    while todo:
        part = todo.pop()
        payload = _Request(profile, host or {}, kernel_build_id).encode(rows, part)
        samples = rows.samples(*part)
        if len(payload) <= max_message:
            encoded.batches.append(Batch(payload, samples, profile.started_at))
            continue
        halves = part.halves(starts)
        # What is too large with one time, too, need not be halved to the last one.
        if part.end - part.first == 1 and len(payload) - _TIME_BYTES * (samples - 1) > max_message:
            halves = []
        if not halves:
            encoded.lost[TOO_LARGE] = encoded.lost.get(TOO_LARGE, 0) + samples
        else:
            todo += reversed(halves)
    return encoded


def _rows(profile: Profile, shape: Shape) -> SampleRows:
    stamped = shape is Shape.TIMESTAMPS
    return SampleRows(
        profile.sample_process,
        profile.sample_thread,
        profile.sample_stack,
        profile.sample_count,
        profile.stack_starts,
        profile.stack_frames,
        profile.times if stamped else array("Q"),
        profile.time_samples if stamped else array("I"),
    )


def _estimate(profile: Profile, times: int) -> int:
    return (
        _SAMPLE_BYTES * len(profile.sample_count)
        + _TIME_BYTES * times
        + _STACK_FRAME_BYTES * len(profile.stack_frames)
        + _FRAME_BYTES * len(profile.frames)
    )


class _Request:
    """One ExportProfilesServiceRequest in the making."""

    def __init__(self, profile: Profile, host: Attributes, kernel_build_id: str) -> None:
        self._profile = profile
        self._host = host
        self._kernel_build_id = kernel_build_id
        self._message = service.ExportProfilesServiceRequest()
        self._dictionary = Dictionary(self._message.dictionary)
        self._executables: dict[int, int] = {}
        self._modules: dict[str, int] = {}

    def encode(self, rows: SampleRows, part: Part) -> bytes:
        locations = self._locations(rows.used_frames(part.first, part.end, len(self._profile.frames)))
        threads, lists, list_starts = self._threads(rows.used_threads(part.first, part.end))
        merged = rows.merge(*part, locations, threads)
        first = 0
        for process, members in groupby(merged.process):
            end = first + sum(1 for _ in members)
            message = self._resource(process)
            self._header(message)
            message.MergeFromString(_samples(merged, first, end, lists, list_starts))
            first = end
        self._dictionary.finish(merged.locations, merged.stack_starts)
        payload: bytes = self._message.SerializeToString()
        return payload

    def _resource(self, process: int) -> messages.Profile:
        """The profile, empty so far, of a process."""
        resource = self._message.resource_profiles.add(schema_url=SCHEMA)
        attributes = process_attributes(self._profile.processes[process]) | self._host
        _set_attributes(resource.resource, attributes)
        scope = resource.scope_profiles.add(schema_url=SCHEMA)
        scope.scope.name = "pyprof"
        scope.scope.version = pyprof.__version__
        profile: messages.Profile = scope.profiles.add()
        return profile

    def _header(self, message: messages.Profile) -> None:
        profile, string = self._profile, self._dictionary.string
        message.sample_type.type_strindex = string("samples")
        message.sample_type.unit_strindex = string("count")
        message.period_type.type_strindex = string("cpu")
        message.period_type.unit_strindex = string("nanoseconds")
        message.period = (SECOND + profile.hz // 2) // profile.hz
        message.time_unix_nano = profile.started_at
        message.duration_nano = profile.duration
        message.profile_id = os.urandom(16)

    def _threads(self, used: Iterable[int]) -> "tuple[array[int], array[int], array[int]]":
        """(by thread the number of its list of attributes, the lists, where each starts)."""
        threads = self._profile.threads
        by_thread = array("I", bytes(4 * len(threads)))
        # The first list is that of threads that are not used, or not told apart.
        numbers: dict[tuple[int, ...], int] = {(): 0}
        if self._profile.by is By.THREAD:
            for index in sorted(used):
                pairs = (("thread.id", threads[index].tid), ("thread.name", threads[index].name))
                by_thread[index] = numbers.setdefault(self._dictionary.attributes(pairs), len(numbers))
        starts = array("I", accumulate(map(len, numbers), initial=0))
        return by_thread, array("I", chain.from_iterable(numbers)), starts

    def _locations(self, used: Iterable[int]) -> "array[int]":
        """By frame its location; 0 for frames that are not used."""
        profile, dictionary = self._profile, self._dictionary
        frames, function, location = profile.frames, dictionary.function, dictionary.location
        kinds: dict[str, int] = {}
        locations = array("I", bytes(4 * len(frames)))
        for index in used:
            kind, executable, address, name, system_name, module = frames[index]
            mapping, kind_name = 0, "unknown"
            if kind == FrameKind.KERNEL:
                mapping, kind_name = self._kernel_mapping(module), "kernel"
            elif executable >= 0:
                mapping = self._mapping(executable)
                kind_name = "go" if profile.executables[executable].go_build_id else "native"
            attribute = kinds.get(kind_name)
            if attribute is None:
                attribute = kinds[kind_name] = dictionary.attribute("profile.frame.type", kind_name)
            # A stand-in such as libc.so.6+0x1234 is no name: a receiver with symbols finds a better one.
            named = system_name or kind == FrameKind.UNKNOWN
            number = function(name, system_name) if named else 0
            locations[index] = location(mapping, address, number, attribute)
        return locations

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
        known = self._modules.get(module)
        if known is None:
            build_id = "" if module else self._kernel_build_id
            ids = [("process.executable.build_id.gnu", build_id)] if build_id else []
            known = self._modules[module] = self._dictionary.mapping(
                module or "vmlinux", _KERNEL_START, _KERNEL_LIMIT, 0, ids
            )
        return known


def _samples(merged: Merged, first: int, end: int, lists: "array[int]", list_starts: "array[int]") -> bytes:
    """Samples [first, end) as a field of a Profile."""
    starts = memoryview(merged.time_starts)[first : end + 1]
    return protobuf.repeated(
        field_number(messages.Profile, "samples"),
        protobuf.number(field_number(messages.Sample, "stack_index"), memoryview(merged.stack)[first:end]),
        protobuf.packed(
            field_number(messages.Sample, "attribute_indices"),
            lists,
            list_starts,
            memoryview(merged.attributes)[first:end],
        ),
        protobuf.one(field_number(messages.Sample, "values"), memoryview(merged.values)[first:end]),
        protobuf.fixed64(field_number(messages.Sample, "timestamps_unix_nano"), merged.times, starts),
    )


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
