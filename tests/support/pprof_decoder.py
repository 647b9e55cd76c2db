# SPDX-License-Identifier: Apache-2.0
"""Reads pprof files byte by byte, sharing nothing with the writer: https://protobuf.dev/programming-guides/encoding/.

Field numbers are those of proto/profile.proto in https://github.com/google/pprof. An unknown field, a
wire type that does not belong to a field, an id that is zero or twice there, or a reference to nothing is
an error.
"""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

VARINT = 0
LENGTH_DELIMITED = 2


class Malformed(Exception):
    """The bytes are no valid pprof profile."""


@dataclass
class Label:
    key: str
    text: str = ""
    num: int = 0
    num_unit: str = ""


@dataclass
class Mapping:
    id: int
    memory_start: int
    memory_limit: int
    file_offset: int
    filename: str
    build_id: str
    has_functions: bool
    has_filenames: bool
    has_line_numbers: bool
    has_inline_frames: bool


@dataclass
class Function:
    id: int
    name: str
    system_name: str
    filename: str
    start_line: int


@dataclass
class Location:
    id: int
    mapping: Mapping | None
    address: int
    lines: list[tuple[Function, int]]
    is_folded: bool


@dataclass
class Sample:
    locations: list[Location]
    values: list[int]
    labels: list[Label]

    def label(self, key: str) -> Label | None:
        """The only label of this key, None for none."""
        found = [label for label in self.labels if label.key == key]
        if len(found) > 1:
            raise Malformed(f"label {key} twice")
        return found[0] if found else None

    def names(self) -> list[str]:
        """Function names, leaf first."""
        return [function.name for location in self.locations for function, _ in location.lines]


@dataclass
class Decoded:
    sample_types: list[tuple[str, str]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    mappings: list[Mapping] = field(default_factory=list)
    locations: list[Location] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)
    time_nanos: int = 0
    duration_nanos: int = 0
    period_type: tuple[str, str] | None = None
    period: int = 0
    comments: list[str] = field(default_factory=list)
    default_sample_type: str = ""


Entry = TypeVar("Entry", Mapping, Function, Location)

# What is in a message: field number -> (wire type of one value, whether repeated).
_PROFILE = {
    1: (LENGTH_DELIMITED, True),
    2: (LENGTH_DELIMITED, True),
    3: (LENGTH_DELIMITED, True),
    4: (LENGTH_DELIMITED, True),
    5: (LENGTH_DELIMITED, True),
    6: (LENGTH_DELIMITED, True),
    9: (VARINT, False),
    10: (VARINT, False),
    11: (LENGTH_DELIMITED, False),
    12: (VARINT, False),
    13: (VARINT, True),
    14: (VARINT, False),
}
_VALUE_TYPE = {1: (VARINT, False), 2: (VARINT, False)}
_SAMPLE = {1: (VARINT, True), 2: (VARINT, True), 3: (LENGTH_DELIMITED, True)}
_LABEL = dict.fromkeys((1, 2, 3, 4), (VARINT, False))
_MAPPING = dict.fromkeys(range(1, 11), (VARINT, False))
_LOCATION = {
    1: (VARINT, False),
    2: (VARINT, False),
    3: (VARINT, False),
    4: (LENGTH_DELIMITED, True),
    5: (VARINT, False),
}
_LINE = {1: (VARINT, False), 2: (VARINT, False)}
_FUNCTION = dict.fromkeys(range(1, 6), (VARINT, False))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Malformed("varint does not end")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return value, at


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


class _Message:
    """The fields of one message, by number."""

    def __init__(self, data: bytes, allowed: dict[int, tuple[int, bool]]) -> None:
        self.numbers: dict[int, list[int]] = {}
        self.blobs: dict[int, list[bytes]] = {}
        at = 0
        while at < len(data):
            key, at = _varint(data, at)
            number, wire_type = key >> 3, key & 7
            if number not in allowed:
                raise Malformed(f"unknown field {number}")
            expected, repeated = allowed[number]
            if wire_type == VARINT and expected == VARINT:
                value, at = _varint(data, at)
                values = self.numbers.setdefault(number, [])
                values.append(value)
                if len(values) > 1 and not repeated:
                    raise Malformed(f"field {number} twice")
                continue
            if wire_type != LENGTH_DELIMITED:
                raise Malformed(f"wire type {wire_type} for field {number}")
            length, at = _varint(data, at)
            if at + length > len(data):
                raise Malformed(f"field {number} is longer than its message")
            blob, at = data[at : at + length], at + length
            if expected == VARINT:  # packed
                if not repeated:
                    raise Malformed(f"field {number} packed")
                self.numbers.setdefault(number, []).extend(_varints(blob))
            else:
                blobs = self.blobs.setdefault(number, [])
                blobs.append(blob)
                if len(blobs) > 1 and not repeated:
                    raise Malformed(f"field {number} twice")

    def unsigned(self, number: int) -> int:
        return self.numbers.get(number, [0])[0]

    def signed(self, number: int) -> int:
        return _signed(self.unsigned(number))

    def all(self, number: int) -> list[int]:
        return self.numbers.get(number, [])

    def flag(self, number: int) -> bool:
        value = self.unsigned(number)
        if value > 1:
            raise Malformed(f"bool field {number} is {value}")
        return bool(value)

    def messages(self, number: int, allowed: dict[int, tuple[int, bool]]) -> "list[_Message]":
        return [_Message(blob, allowed) for blob in self.blobs.get(number, [])]


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self.root = _Message(data, _PROFILE)
        self.result = Decoded(strings=[blob.decode() for blob in self.root.blobs.get(6, [])])

    def text(self, index: int) -> str:
        if not 0 <= index < len(self.result.strings):
            raise Malformed(f"string {index} of {len(self.result.strings)}")
        return self.result.strings[index]

    def decode(self) -> Decoded:
        root, result = self.root, self.result
        if not result.strings or result.strings[0] != "":
            raise Malformed("string table does not begin with the empty string")
        if len(set(result.strings)) != len(result.strings):
            raise Malformed("a string twice")
        result.sample_types = [self.value_type(message) for message in root.messages(1, _VALUE_TYPE)]
        result.mappings = [self.mapping(message) for message in root.messages(3, _MAPPING)]
        result.functions = [self.function(message) for message in root.messages(5, _FUNCTION)]
        mappings = _by_id("mapping", result.mappings)
        functions = _by_id("function", result.functions)
        result.locations = [
            self.location(message, mappings, functions) for message in root.messages(4, _LOCATION)
        ]
        locations = _by_id("location", result.locations)
        result.samples = [self.sample(message, locations) for message in root.messages(2, _SAMPLE)]
        period_types = root.messages(11, _VALUE_TYPE)
        result.period_type = self.value_type(period_types[0]) if period_types else None
        result.time_nanos, result.duration_nanos, result.period = (
            root.signed(9),
            root.signed(10),
            root.signed(12),
        )
        result.comments = [self.text(index) for index in root.all(13)]
        result.default_sample_type = self.text(root.signed(14))
        return result

    def value_type(self, message: _Message) -> tuple[str, str]:
        return self.text(message.signed(1)), self.text(message.signed(2))

    def mapping(self, message: _Message) -> Mapping:
        number, start, limit, offset = (message.unsigned(field) for field in (1, 2, 3, 4))
        filename, build_id = (self.text(message.signed(field)) for field in (5, 6))
        functions, filenames, line_numbers, inline_frames = (message.flag(field) for field in (7, 8, 9, 10))
        return Mapping(
            number,
            start,
            limit,
            offset,
            filename,
            build_id,
            functions,
            filenames,
            line_numbers,
            inline_frames,
        )

    def function(self, message: _Message) -> Function:
        name, system_name, filename = (self.text(message.signed(number)) for number in (2, 3, 4))
        return Function(message.unsigned(1), name, system_name, filename, message.signed(5))

    def location(
        self, message: _Message, mappings: dict[int, Mapping], functions: dict[int, Function]
    ) -> Location:
        mapping_id = message.unsigned(2)
        lines = [
            (_find("function", functions, line.unsigned(1)), line.signed(2))
            for line in message.messages(4, _LINE)
        ]
        mapping = _find("mapping", mappings, mapping_id) if mapping_id else None
        return Location(message.unsigned(1), mapping, message.unsigned(3), lines, message.flag(5))

    def sample(self, message: _Message, locations: dict[int, Location]) -> Sample:
        values = [_signed(value) for value in message.all(2)]
        if len(values) != len(self.result.sample_types):
            raise Malformed(f"{len(values)} values in a sample")
        labels = [self.label(label) for label in message.messages(3, _LABEL)]
        return Sample([_find("location", locations, number) for number in message.all(1)], values, labels)

    def label(self, message: _Message) -> Label:
        label = Label(
            self.text(message.signed(1)),
            self.text(message.signed(2)),
            message.signed(3),
            self.text(message.signed(4)),
        )
        if label.key == "" or (label.text and label.num):
            raise Malformed(f"label {label}")
        return label


def _by_id(kind: str, entries: list[Entry]) -> dict[int, Entry]:
    result = {entry.id: entry for entry in entries}
    if 0 in result or len(result) != len(entries):
        raise Malformed(f"{kind} ids {[entry.id for entry in entries]}")
    return result


def _find(kind: str, entries: dict[int, Entry], number: int) -> Entry:
    if number not in entries:
        raise Malformed(f"no {kind} {number}")
    return entries[number]


def decode(compressed: bytes) -> Decoded:
    """Decode a .pb.gz file.

    Raises:
        Malformed: it is none.
    """
    return _Decoder(gzip.decompress(compressed)).decode()
