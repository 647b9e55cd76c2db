# SPDX-License-Identifier: Apache-2.0
"""Checks an export request against the rules that the protocol states in its own words.

Source: the comments of opentelemetry/proto/profiles/v1development/profiles.proto, common.proto and
resource.proto. It shares nothing with the encoder, and gives back what a reader sees: samples as plain
values.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

TABLES = ("mapping", "location", "function", "link", "string", "attribute", "stack")


class Invalid(Exception):
    """The request breaks a rule."""


def require(condition: object, rule: str, *what: object) -> None:
    if not condition:
        raise Invalid(f"{rule}: {' '.join(map(repr, what))}")


Value = str | int | bool | float | bytes


@dataclass(frozen=True)
class SeenFrame:
    name: str
    system_name: str
    address: int
    kind: str
    filename: str
    build_ids: tuple[tuple[str, str], ...]


@dataclass
class SeenSample:
    resource: dict[str, Value]
    frames: list[SeenFrame]  # leaf first
    attributes: dict[str, Value]
    count: int
    times: list[int]


@dataclass
class Seen:
    """What a request says."""

    samples: list[SeenSample] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(sample.count for sample in self.samples)


def read(payload: bytes) -> Seen:
    """Checks a serialised request.

    Raises:
        Invalid: it breaks a rule.
    """
    request = ExportProfilesServiceRequest()
    request.ParseFromString(payload)  # refuses text that is not UTF-8
    require(request.resource_profiles, "a request has profiles")
    return _Reader(request).read()


class _Reader:
    def __init__(self, request: Any) -> None:
        self.request = request
        self.tables = {name: getattr(request.dictionary, f"{name}_table") for name in TABLES}
        self.used: dict[str, set[int]] = {name: {0} for name in TABLES}
        self.seen = Seen()
        self.frames: dict[int, SeenFrame] = {}

    def read(self) -> Seen:
        self._no_unknown_fields(self.request)
        self._tables()
        for resource in self.request.resource_profiles:
            self._resource(resource)
        for name, table in self.tables.items():
            orphans = set(range(len(table))) - self.used[name]
            require(not orphans, f"every entry of the {name} table is referred to", sorted(orphans)[:5])
        self.seen.strings = list(self.tables["string"])
        return self.seen

    def _no_unknown_fields(self, message: Any) -> None:
        require(not len(UnknownFieldSet(message)), "no unknown fields", message.DESCRIPTOR.name)
        for descriptor, value in message.ListFields():
            if descriptor.message_type is None:
                continue
            for item in value if isinstance(value, Iterable) else [value]:
                self._no_unknown_fields(item)

    def _tables(self) -> None:
        for name, table in self.tables.items():
            require(len(table), f"the {name} table is there")
            zero = table[0]
            is_zero = zero == "" if name == "string" else zero.ByteSize() == 0
            require(is_zero, f"entry 0 of the {name} table is the zero value", zero)
            keys = (
                list(table)
                if name == "string"
                else [item.SerializeToString(deterministic=True) for item in table]
            )
            twice = [key for key, count in Counter(keys).items() if count > 1]
            require(not twice, f"the {name} table has no entry twice", twice[:3])

    def at(self, table: str, index: int) -> Any:
        require(0 <= index < len(self.tables[table]), f"an index lies in the {table} table", index)
        self.used[table].add(index)
        return self.tables[table][index]

    def string(self, index: int) -> str:
        text: str = self.at("string", index)
        return text

    def _attributes(self, indices: Sequence[int]) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for index in indices:
            require(index != 0, "an attribute is one that is set")
            entry = self.at("attribute", index)
            key = self.string(entry.key_strindex)
            self.string(entry.unit_strindex)
            require(key, "an attribute has a key")
            require(key not in found, "keys of attributes are unique", key)
            found[key] = self._value(entry.value, key)
        return found

    def _value(self, value: Any, key: str) -> Value:
        kind = value.WhichOneof("value")
        require(kind, "an attribute has a value", key)
        found: Value = getattr(value, kind)
        if kind == "string_value_strindex":
            found = self.string(value.string_value_strindex)
        require(found != "", "a text of an attribute is not empty", key)
        return found

    def _resource(self, message: Any) -> None:
        attributes: dict[str, Value] = {}
        for entry in message.resource.attributes:
            require(not (entry.key and entry.key_strindex), "a key is stated once", entry.key)
            key = entry.key or self.string(entry.key_strindex)
            require(key and key not in attributes, "keys of a resource are unique", key)
            attributes[key] = self._value(entry.value, key)
        require(message.scope_profiles, "a resource has profiles")
        for scope in message.scope_profiles:
            require(scope.scope.name, "the scope has a name")
            require(scope.scope.version, "the scope has a version")
            require(scope.profiles, "a scope has profiles")
            for profile in scope.profiles:
                self._profile(profile, attributes)

    def _profile(self, profile: Any, resource: dict[str, Value]) -> None:
        require(len(profile.profile_id) == 16 and any(profile.profile_id), "a profile has an ID of 16 bytes")
        for kind in (profile.sample_type, profile.period_type):
            require(self.string(kind.type_strindex), "a type has a name")
            require(self.string(kind.unit_strindex), "a type has a unit")
        require(profile.period > 0, "the period is set")
        require(profile.time_unix_nano > 0 and profile.duration_nano > 0, "the time is set")
        self._attributes(profile.attribute_indices)
        require(profile.samples, "a profile has samples")
        identities = Counter(
            (sample.stack_index, frozenset(sample.attribute_indices), sample.link_index)
            for sample in profile.samples
        )
        require(max(identities.values()) == 1, "samples of one identity are one sample")
        for sample in profile.samples:
            self._sample(profile, sample, resource)

    def _sample(self, profile: Any, sample: Any, resource: dict[str, Value]) -> None:
        times, values = list(sample.timestamps_unix_nano), list(sample.values)
        require(times or values, "a sample has values or times")
        require(not (times and values) or len(times) == len(values), "values and times are as many")
        end = profile.time_unix_nano + profile.duration_nano
        outside = [time for time in times if not profile.time_unix_nano <= time < end]
        require(not outside, "times lie within the profile's", outside[:3])
        self.at("link", sample.link_index)
        stack = self.at("stack", sample.stack_index)
        self.seen.samples.append(
            SeenSample(
                resource,
                [self._location(index) for index in stack.location_indices],
                self._attributes(sample.attribute_indices),
                sum(values) if values else len(times),
                times,
            )
        )

    def _location(self, index: int) -> SeenFrame:
        known = self.frames.get(index)
        if known is None:
            known = self.frames[index] = self._new_location(index)
        return known

    def _new_location(self, index: int) -> SeenFrame:
        require(index != 0, "a location is one that is set")
        location = self.at("location", index)
        attributes = self._attributes(location.attribute_indices)
        mapping = self.at("mapping", location.mapping_index)
        build_ids = self._attributes(mapping.attribute_indices)
        if location.mapping_index:
            inside = mapping.memory_start <= location.address <= mapping.memory_limit
            unknown = mapping.memory_limit == 0
            require(inside or unknown, "an address lies in its mapping", location.address)
        name = system_name = ""
        require(len(location.lines) <= 1, "no inlined functions are known")
        for line in location.lines:
            require(line.function_index, "a line has a function")
            function = self.at("function", line.function_index)
            name, system_name = (
                self.string(function.name_strindex),
                self.string(function.system_name_strindex),
            )
            self.string(function.filename_strindex)
        return SeenFrame(
            name,
            system_name,
            location.address,
            str(attributes.get("profile.frame.type", "")),
            self.string(mapping.filename_strindex),
            tuple(sorted((key, str(value)) for key, value in build_ids.items())),
        )
