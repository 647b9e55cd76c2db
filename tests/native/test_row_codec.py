# SPDX-License-Identifier: Apache-2.0
"""Packed unwind rows: any columns come back, and any bytes give rows that ascend, or none."""

from array import array
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof._native.row_codec import pack_rows, packed_size, unpack_rows

U32 = (1 << 32) - 1
U64 = (1 << 64) - 1
STEPS = st.one_of(st.integers(1, 255), st.integers(1, 65535), st.integers(1, U32))


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    steps = draw(st.lists(STEPS, max_size=50))
    first = draw(st.one_of(st.integers(0, 1 << 48), st.just(U64 - sum(steps))))
    rule_count = draw(st.one_of(st.integers(1, 300), st.sampled_from([65536, 65537, 1 << 24, U32])))
    addresses = list(accumulate(steps, initial=first))
    numbers = [draw(st.integers(0, rule_count - 1)) for _ in addresses]
    return addresses, numbers, rule_count


@given(columns())
def test_rows_come_back(given_columns: tuple[list[int], list[int], int]) -> None:
    addresses, numbers, rule_count = given_columns
    packed = pack_rows(array("Q", addresses), array("I", numbers), rule_count)
    assert packed is not None
    step_bytes, data = packed
    assert len(data) == packed_size(len(addresses), step_bytes, rule_count)
    found = unpack_rows(data, len(addresses), step_bytes, addresses[0], rule_count)
    assert found is not None
    assert (list(found[0]), list(found[1])) == (addresses, numbers)


def test_layout_is_planes_of_steps_then_of_numbers() -> None:
    packed = pack_rows(array("Q", [0x1000, 0x1001, 0x1203]), array("I", [5, 0, 0x102]), 0x103)
    # Steps 0, 1, 0x202: low bytes, high bytes; numbers 5, 0, 0x102: low bytes, high bytes.
    assert packed == (2, bytes([0, 1, 2, 0, 0, 2, 5, 0, 2, 0, 0, 1]))


@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, 2048, 5000])
def test_rows_of_many_blocks_come_back(count: int) -> None:
    addresses = array("Q", (7 * number * number for number in range(1, count + 1)))
    numbers = array("I", (number % 256 for number in range(count)))
    packed = pack_rows(addresses, numbers, 256)
    assert packed is not None
    found = unpack_rows(packed[1], count, packed[0], 7, 256)
    assert found is not None
    assert (array("Q", found[0]), array("I", found[1])) == (addresses, numbers)


@pytest.mark.parametrize(
    ("addresses", "numbers"),
    [([], []), ([5, 5], [0, 0]), ([5, 4], [0, 0]), ([0, 1 << 32], [0, 0]), ([5], [1])],
    ids=["none", "equal", "descending", "far", "no rule"],
)
def test_columns_that_are_no_rows_have_no_packed_form(addresses: list[int], numbers: list[int]) -> None:
    assert pack_rows(array("Q", addresses), array("I", numbers), 1) is None


def test_columns_of_different_length_are_an_error() -> None:
    with pytest.raises(ValueError, match="differ"):
        pack_rows(array("Q", [1]), array("I", [0, 0]), 1)


@given(
    st.binary(max_size=60), st.integers(0, 70), st.integers(0, 6), st.integers(0, U64),
    st.sampled_from([0, 1, 5, 256, 257, 65537, U32]),
)  # fmt: skip
def test_any_bytes_give_ascending_rows_with_rules_or_none(
    data: bytes, row_count: int, step_bytes: int, first: int, rule_count: int
) -> None:
    found = unpack_rows(data, row_count, step_bytes, first, rule_count)
    if found is None:
        return
    addresses, numbers = list(found[0]), list(found[1])
    assert len(addresses) == len(numbers) == row_count > 0
    assert addresses[0] == first
    assert addresses == sorted(set(addresses))
    assert max(numbers) < rule_count


@pytest.mark.parametrize(
    ("data", "row_count", "step_bytes", "first", "rule_count"),
    [
        (b"\x01\x00", 1, 1, 5, 1),  # the first step is not 0
        (b"\x00\x01", 1, 1, 5, 1),  # rule 1 of 1
        (b"\x00\x00\x00\x00", 2, 1, 5, 1),  # two rows at one address
        (b"\x00\x02\x00\x00", 2, 1, U64 - 1, 1),  # behind the highest address
        (b"\x00\x00\x00", 1, 1, 5, 1),  # a byte too many
    ],
)
def test_bytes_that_are_no_rows_give_none(
    data: bytes, row_count: int, step_bytes: int, first: int, rule_count: int
) -> None:
    assert unpack_rows(data, row_count, step_bytes, first, rule_count) is None
