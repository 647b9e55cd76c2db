# SPDX-License-Identifier: Apache-2.0
"""The seven tables that all of a request shares: each entry once, the zero value first, none without a user.

Entries are added when something refers to them, so there are no orphans; they are found by their content,
so that there are no duplicates. Format: opentelemetry/proto/profiles/v1development/profiles.proto,
ProfilesDictionary. The long tables are collected in columns and added at the end, each at once.
"""

from array import array
from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.profiles.v1development import profiles_pb2 as messages

from pyprof._native import protobuf
from pyprof.export.names import encodable

TABLES = messages.ProfilesDictionary


def field_number(message: Any, name: str) -> int:
    """Number of a field of a message's type."""
    found: int = message.DESCRIPTOR.fields_by_name[name].number
    return found


class Dictionary:
    """Fills a ProfilesDictionary. Each method gives the index of an entry, made where it is new."""

    def __init__(self, message: messages.ProfilesDictionary) -> None:
        self._message = message
        # Index 0 must read as "not set" wherever it stands.
        message.mapping_table.add()
        message.location_table.add()
        message.function_table.add()
        message.link_table.add()
        message.attribute_table.add()
        message.stack_table.add()
        self._strings = {"": 0}
        self._attributes: dict[tuple[str, str | int], int] = {}
        self._mappings: dict[tuple[object, ...], int] = {}
        # Of these the keys are the columns.
        self._functions: dict[tuple[int, int], int] = {}
        self._locations: dict[tuple[int, int, int, int], int] = {}

    def finish(self, locations: "array[int]", stack_starts: "array[int]") -> None:
        """Writes the tables. To be called once, last.

        Args:
            locations, stack_starts: stack i is locations[stack_starts[i - 1]:stack_starts[i]], leaf first.
        """
        message = self._message
        names, system_names = _columns(self._functions, 2)
        message.MergeFromString(
            protobuf.repeated(
                field_number(TABLES, "function_table"),
                protobuf.number(field_number(messages.Function, "name_strindex"), names),
                protobuf.number(field_number(messages.Function, "system_name_strindex"), system_names),
            )
        )
        mappings, addresses, functions, kinds = _columns(self._locations, 4)
        message.MergeFromString(
            protobuf.repeated(
                field_number(TABLES, "location_table"),
                protobuf.number(field_number(messages.Location, "mapping_index"), mappings),
                protobuf.number(field_number(messages.Location, "address"), addresses),
                protobuf.message(
                    field_number(messages.Location, "lines"),
                    field_number(messages.Line, "function_index"),
                    functions,
                ),
                protobuf.one(field_number(messages.Location, "attribute_indices"), kinds),
            )
        )
        message.MergeFromString(
            protobuf.repeated(
                field_number(TABLES, "stack_table"),
                protobuf.packed(field_number(messages.Stack, "location_indices"), locations, stack_starts),
            )
        )
        message.string_table.extend(self._strings)

    def string(self, text: str) -> int:
        return self._strings.setdefault(encodable(text), len(self._strings))

    def attribute(self, key: str, value: str | int) -> int:
        if isinstance(value, str):
            value = encodable(value)
        known = self._attributes.get((key, value))
        if known is None:
            entry = self._message.attribute_table.add(key_strindex=self.string(key))
            if isinstance(value, int):
                entry.value.int_value = value
            else:
                entry.value.string_value = value
            known = self._attributes[key, value] = len(self._attributes) + 1
        return known

    def attributes(self, pairs: Iterable[tuple[str, str | int]]) -> tuple[int, ...]:
        """Indices of attributes, those with an empty text left out."""
        return tuple(self.attribute(key, value) for key, value in pairs if value != "")

    def mapping(
        self, filename: str, start: int, limit: int, offset: int, attributes: Iterable[tuple[str, str | int]]
    ) -> int:
        """start, limit: addresses in the terms of the ELF file; offset: in the file."""
        key = (self.string(filename), start, limit, offset, self.attributes(attributes))
        known = self._mappings.get(key)
        if known is None:
            self._message.mapping_table.add(
                memory_start=start, memory_limit=limit, file_offset=offset,
                filename_strindex=key[0], attribute_indices=key[4],
            )  # fmt: skip
            known = self._mappings[key] = len(self._mappings) + 1
        return known

    def function(self, name: str, system_name: str) -> int:
        key = (self.string(name), self.string(system_name))
        return self._functions.setdefault(key, len(self._functions) + 1)

    def location(self, mapping: int, address: int, function: int, kind: int) -> int:
        """function: 0 for none: a receiver may find a name by build ID and address; kind: an attribute."""
        return self._locations.setdefault((mapping, address, function, kind), len(self._locations) + 1)


def _columns(rows: Iterable[tuple[int, ...]], count: int) -> "list[array[int]]":
    return [array("Q", column) for column in zip(*rows, strict=True)] or [array("Q")] * count
