# SPDX-License-Identifier: Apache-2.0
"""Tables in the wire format: bytes by hand, and what the protobuf library makes of the same messages."""

from array import array
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.profiles.v1development import profiles_pb2 as messages

from pyprof._native import protobuf

u32 = st.integers(0, (1 << 31) - 1)  # as far as int32, the type of indices
u64 = st.integers(0, (1 << 64) - 1)
small = st.one_of(st.just(0), st.integers(0, 300), st.integers((1 << 31) - 2, (1 << 31) - 1))


def narrow(*items: int) -> "array[int]":
    return array("I", items)


def wide(*items: int) -> "array[int]":
    return array("Q", items)


def flat(lists: Sequence[Sequence[int]], code: str) -> "tuple[array[int], array[int]]":
    starts = array("I", accumulate(map(len, lists), initial=0))
    return array(code, [item for each in lists for item in each]), starts


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        # Field 2 of each message is the table: tag 2 << 3 | LEN.
        (protobuf.number(1, narrow(0, 1)), b"\x12\x00" b"\x12\x02\x08\x01"),
        # 300 is 0b10_0101100: the lower seven bits first. Field 16 has a tag of two bytes.
        (protobuf.number(16, wide(300)), b"\x12\x04\x80\x01\xac\x02"),
        (protobuf.number(1, wide((1 << 64) - 1)), b"\x12\x0b\x08" + b"\xff" * 9 + b"\x01"),
        (protobuf.message(3, 1, narrow(0, 5)), b"\x12\x00" b"\x12\x04\x1a\x02\x08\x05"),
        (protobuf.one(4, wide(0, 128)), b"\x12\x00" b"\x12\x04\x22\x02\x80\x01"),
        (
            protobuf.packed(1, narrow(1, 0, 2), narrow(0, 2, 2, 3)),
            b"\x12\x04\x0a\x02\x01\x00" b"\x12\x00" b"\x12\x03\x0a\x01\x02",
        ),
        (protobuf.packed(1, narrow(7), narrow(0, 0, 1), narrow(1, 0)), b"\x12\x03\x0a\x01\x07" b"\x12\x00"),
        (protobuf.fixed64(5, wide(0x0102), narrow(0, 1)), b"\x12\x0a\x2a\x08\x02\x01" + bytes(6)),
    ],
)  # fmt: skip
def test_bytes_are_those_of_the_format(column: protobuf.Column, expected: bytes) -> None:
    assert protobuf.repeated(2, column) == expected


@given(st.lists(st.tuples(small, u64, small, small)))
def test_locations_are_those_of_the_library(rows: list[tuple[int, int, int, int]]) -> None:
    table = messages.ProfilesDictionary()
    for mapping, address, function, attribute in rows:
        entry = table.location_table.add(mapping_index=mapping, address=address)
        if function:
            entry.lines.add(function_index=function)
        if attribute:
            entry.attribute_indices.append(attribute)
    columns = [array("Q", [row[i] for row in rows]) for i in range(4)]
    made = protobuf.repeated(
        2,
        protobuf.number(1, columns[0]),
        protobuf.number(2, columns[1]),
        protobuf.message(3, 1, columns[2]),
        protobuf.one(4, columns[3]),
    )
    assert made == table.SerializeToString(deterministic=True)


@given(st.lists(st.lists(small, max_size=40)))
def test_stacks_are_those_of_the_library(stacks: list[list[int]]) -> None:
    table = messages.ProfilesDictionary()
    for stack in stacks:
        table.stack_table.add(location_indices=stack)
    made = protobuf.repeated(7, protobuf.packed(1, *flat(stacks, "I")))
    assert made == table.SerializeToString(deterministic=True)


@given(
    st.lists(st.lists(small, max_size=3), min_size=1, max_size=5),
    st.lists(st.tuples(u32, st.integers(0, 4), st.integers(0, (1 << 63) - 1), st.lists(u64, max_size=3))),
)
def test_samples_are_those_of_the_library(
    attributes: list[list[int]], rows: list[tuple[int, int, int, list[int]]]
) -> None:
    profile = messages.Profile()
    for stack, which, value, times in rows:
        sample = profile.samples.add(
            stack_index=stack,
            attribute_indices=attributes[which % len(attributes)],
            timestamps_unix_nano=times,
        )
        if value:
            sample.values.append(value)
    made = protobuf.repeated(
        2,
        protobuf.number(1, array("I", [row[0] for row in rows])),
        protobuf.packed(
            2, *flat(attributes, "I"), array("I", [row[1] % len(attributes) for row in rows])
        ),
        protobuf.one(4, array("Q", [row[2] for row in rows])),
        protobuf.fixed64(5, *flat([row[3] for row in rows], "Q")),
    )  # fmt: skip
    assert made == profile.SerializeToString(deterministic=True)


NUMBERS = (1, 2, 3, 4, 5), (15, 16, 17, 2047, 2048), (262143, 262144, 33554431, 33554432, (1 << 29) - 1)
"""Of fields: the least and the greatest of each length that a tag may have."""


@cache
def table_type(numbers: tuple[int, ...]) -> Any:
    """A table, in the second of these numbers, of messages whose fields have them: number, message (its field
    has the last), one, packed, fixed64."""
    kind = descriptor_pb2.FieldDescriptorProto
    package = f"t{numbers[0]}"
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")

    def field(
        message: descriptor_pb2.DescriptorProto, name: str, number: int, type_: int, of: str = ""
    ) -> None:
        repeated = name in {"one", "packed", "fixed", "rows"}
        label = kind.LABEL_REPEATED if repeated else kind.LABEL_OPTIONAL
        entry = message.field.add(name=name, number=number, type=type_, label=label)
        if of:
            entry.type_name = f".{package}.{of}"

    field(file.message_type.add(name="Inner"), "number", numbers[4], kind.TYPE_UINT64)
    row = file.message_type.add(name="Row")
    field(row, "number", numbers[0], kind.TYPE_UINT64)
    field(row, "message", numbers[1], kind.TYPE_MESSAGE, "Inner")
    field(row, "one", numbers[2], kind.TYPE_UINT64)
    field(row, "packed", numbers[3], kind.TYPE_UINT64)
    field(row, "fixed", numbers[4], kind.TYPE_FIXED64)
    field(file.message_type.add(name="Table"), "rows", numbers[1], kind.TYPE_MESSAGE, "Row")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Table"))


# The least and the greatest of each length that a number may have.
edges = st.sampled_from(
    sorted({0, (1 << 64) - 1, *((1 << 7 * i) + j for i in range(1, 10) for j in (-1, 0))})
)
of_width = {
    "I": st.one_of(edges.filter(lambda item: item < 1 << 32), st.integers(0, (1 << 32) - 1), st.just(0)),
    "Q": st.one_of(edges, u64, st.just(0)),
}


@given(st.sampled_from(NUMBERS), st.sampled_from("IQ"), st.booleans(), st.data())
def test_numbers_of_each_length_are_those_of_the_library(
    numbers: tuple[int, ...], code: str, shared: bool, data: st.DataObject
) -> None:
    item = of_width[code]
    # Rows of a few bytes, of more than 127, and lists that several rows share.
    lists = data.draw(st.lists(st.lists(item, max_size=40), min_size=1, max_size=6))
    which = data.draw(st.lists(st.integers(0, len(lists) - 1))) if shared else list(range(len(lists)))
    rows = [(*data.draw(st.tuples(item, item, item)), data.draw(st.lists(u64, max_size=20))) for _ in which]
    table = table_type(numbers)()
    for (number, inner, one, fixed), at in zip(rows, which, strict=True):
        entry = table.rows.add(number=number, packed=lists[at], fixed=fixed)
        if inner:
            entry.message.number = inner
        if one:
            entry.one.append(one)
    made = protobuf.repeated(
        numbers[1],
        protobuf.number(numbers[0], array(code, [row[0] for row in rows])),
        protobuf.message(numbers[1], numbers[4], array(code, [row[1] for row in rows])),
        protobuf.one(numbers[2], array(code, [row[2] for row in rows])),
        protobuf.packed(numbers[3], *flat(lists, code), array("I", which) if shared else None),
        protobuf.fixed64(numbers[4], *flat([row[3] for row in rows], "Q")),
    )
    assert made == table.SerializeToString(deterministic=True)
    assert table_type(numbers).FromString(made) == table


def test_merged_into_a_message_rows_come_after_those_it_has() -> None:
    table = messages.ProfilesDictionary()
    table.function_table.add(name_strindex=3)
    for names in (narrow(0, 4), narrow()):
        table.MergeFromString(protobuf.repeated(3, protobuf.number(1, names)))
    assert [entry.name_strindex for entry in table.function_table] == [3, 0, 4]


def test_slices_of_columns_are_their_rows() -> None:
    starts = narrow(0, 1, 3, 3)
    made = protobuf.repeated(7, protobuf.packed(1, narrow(5, 6, 7), memoryview(starts)[1:4]))
    table = messages.ProfilesDictionary.FromString(made)
    assert [list(stack.location_indices) for stack in table.stack_table] == [[6, 7], []]


WRONG: dict[str, Callable[[], Any]] = {
    "columns of different length": lambda: protobuf.repeated(
        1, protobuf.number(1, narrow(1)), protobuf.number(2, narrow())
    ),
    "lists and numbers of different length": lambda: protobuf.repeated(
        1, protobuf.number(1, narrow(1, 2)), protobuf.packed(2, narrow(1), narrow(0, 1))
    ),
    "no start": lambda: protobuf.repeated(1, protobuf.packed(1, narrow(), narrow())),
    "descending starts": lambda: protobuf.repeated(1, protobuf.packed(1, narrow(1, 2), narrow(0, 2, 1))),
    "a list beyond the items": lambda: protobuf.repeated(1, protobuf.packed(1, narrow(1), narrow(0, 2))),
    "times beyond the items": lambda: protobuf.repeated(1, protobuf.fixed64(1, wide(1), narrow(0, 2))),
    "no such list": lambda: protobuf.repeated(1, protobuf.packed(1, narrow(1), narrow(0, 1), narrow(1))),
    "no list at all": lambda: protobuf.repeated(1, protobuf.packed(1, narrow(), narrow(0), narrow(0))),
    "no column": lambda: protobuf.repeated(1),
    "too many columns": lambda: protobuf.repeated(1, *[protobuf.number(1, narrow())] * 9),
    "field 0": lambda: protobuf.number(0, narrow()),
    "field 0 within": lambda: protobuf.message(1, 0, narrow()),
    "field 2^29": lambda: protobuf.repeated(1 << 29, protobuf.number(1, narrow())),
    "items of two bytes": lambda: protobuf.number(1, array("H", [1])),
    "items that are no integers": lambda: protobuf.number(1, array("d", [1])),
    "items that lie apart": lambda: protobuf.number(1, memoryview(narrow(1, 2, 3))[::2]),
    "signed items": lambda: protobuf.number(1, array("i", [1])),
    "items of a float's four bytes": lambda: protobuf.number(1, array("f", [1])),
    "bytes": lambda: protobuf.number(1, b"\0\0\0\0"),
    "items in two dimensions": lambda: protobuf.number(1, memoryview(bytes(16)).cast("I", (2, 2))),
    "narrow times": lambda: protobuf.fixed64(1, narrow(1), narrow(0, 1)),
    "field 2^29 of a column": lambda: protobuf.number(1 << 29, narrow()),
    "field 2^29 within": lambda: protobuf.message(1, 1 << 29, narrow()),
    "field 0 of the table": lambda: protobuf.repeated(0, protobuf.number(1, narrow())),
    "numbers of lists that are wide": lambda: protobuf.packed(1, narrow(1), narrow(0, 1), wide(0)),
    "starts that lie apart": lambda: protobuf.packed(1, narrow(1), memoryview(narrow(0, 0, 1))[::2]),
    "descending starts that no row uses": lambda: protobuf.repeated(
        1, protobuf.packed(1, narrow(1, 2), narrow(0, 2, 1), narrow(0))
    ),
    "no start, and no rows": lambda: protobuf.repeated(1, protobuf.packed(1, narrow(), narrow(), narrow())),
    "a list as far as can be": lambda: protobuf.repeated(
        1, protobuf.packed(1, narrow(1), narrow(0, (1 << 32) - 1))
    ),
    "a number of a list as far as can be": lambda: protobuf.repeated(
        1, protobuf.packed(1, narrow(1), narrow(0, 1), narrow((1 << 32) - 1))
    ),
    "wide starts": lambda: protobuf.packed(1, narrow(1), wide(0, 1)),
}  # fmt: skip


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG.keys())
def test_what_does_not_fit_is_an_error(make: Callable[[], Any]) -> None:
    with pytest.raises((ValueError, BufferError), match=r"."):
        make()


def test_what_is_no_column_is_an_error() -> None:
    with pytest.raises(TypeError):
        protobuf.repeated(1, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        protobuf.number(1, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        protobuf.packed(1, narrow(), None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        protobuf.fixed64(1, wide(), None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        protobuf.number(1, [1])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        protobuf.repeated(1, narrow(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        protobuf.Column()


@pytest.mark.parametrize("number", [-1, 1 << 32, 1 << 64])
def test_number_of_a_field_that_is_none_is_an_error(number: int) -> None:
    with pytest.raises(OverflowError):
        protobuf.number(number, narrow())
    with pytest.raises(OverflowError):
        protobuf.repeated(number, protobuf.number(1, narrow()))


def test_column_that_was_never_filled_has_no_rows() -> None:
    empty = protobuf.Column.__new__(protobuf.Column)
    assert protobuf.repeated(1, empty) == b""
    with pytest.raises(ValueError, match="differ in length"):
        protobuf.repeated(1, empty, protobuf.number(1, narrow(1)))


def test_columns_are_looked_at_as_they_are_when_written() -> None:
    starts, which = narrow(0, 1, 1), narrow(0, 1)
    column = protobuf.packed(1, narrow(7), starts, which)
    assert protobuf.repeated(1, column) == b"\x0a\x03\x0a\x01\x07\x0a\x00"
    which[1] = 2
    with pytest.raises(ValueError, match="no such list"):
        protobuf.repeated(1, column)
    which[1], starts[2] = 0, 1 << 31
    with pytest.raises(ValueError, match="after the last item"):
        protobuf.repeated(1, column)
    with pytest.raises(BufferError):
        starts.pop()
