# SPDX-License-Identifier: Apache-2.0
"""The seven tables that all of a request shares: each entry once, the zero value first, none without a user.

Entries are added when something refers to them, so there are no orphans; they are found by their content,
so that there are no duplicates. Format: opentelemetry/proto/profiles/v1development/profiles.proto,
ProfilesDictionary.
"""

from collections.abc import Iterable, Sequence

from opentelemetry.proto.profiles.v1development import profiles_pb2 as messages

from pyprof.export.names import encodable


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
        self._functions: dict[tuple[int, int], int] = {}
        self._locations: dict[tuple[object, ...], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {(): 0}

    def finish(self) -> None:
        """Writes the strings. To be called once, last."""
        self._message.string_table.extend(self._strings)

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
        known = self._functions.get(key)
        if known is None:
            self._message.function_table.add(name_strindex=key[0], system_name_strindex=key[1])
            known = self._functions[key] = len(self._functions) + 1
        return known

    def location(self, mapping: int, address: int, function: int, attributes: Sequence[int]) -> int:
        """function: 0 for none, then the receiver may find a name by build ID and address."""
        key = (mapping, address, function, tuple(attributes))
        known = self._locations.get(key)
        if known is None:
            entry = self._message.location_table.add(
                mapping_index=mapping, address=address, attribute_indices=attributes
            )
            if function:
                entry.lines.add(function_index=function)
            known = self._locations[key] = len(self._locations) + 1
        return known

    def stack(self, locations: tuple[int, ...]) -> int:
        """locations: leaf first."""
        known = self._stacks.get(locations)
        if known is None:
            self._message.stack_table.add(location_indices=locations)
            known = self._stacks[locations] = len(self._stacks)
        return known
