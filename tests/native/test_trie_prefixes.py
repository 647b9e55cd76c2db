# SPDX-License-Identifier: Apache-2.0
"""Splitting ranges into prefixes: exact cover, and as few as can be."""

from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof._native.trie import prefixes

LAST = 2**64 - 1
PAGE = 4096
GIB = 1 << 30


def blocks(start: int, last: int) -> list[tuple[int, int]]:
    """(first, last) of each prefix."""
    return [(at, at + 2 ** (64 - length) - 1) for length, at in prefixes(start, last)]


@cache
def fewest(start: int, last: int, top: int, bits: int) -> int:
    """Fewest nodes of the binary tree over [top, top + 2^bits) that cover a range exactly: a node that lies
    inside is taken whole (its two halves would be two), one that is crossed is split."""
    end = top + 2**bits - 1
    if last < top or start > end:
        return 0
    if start <= top and end <= last:
        return 1
    middle = top + 2 ** (bits - 1)
    return fewest(start, last, top, bits - 1) + fewest(start, last, middle, bits - 1)


@pytest.mark.parametrize(
    ("start", "size", "count"),
    [
        (0x7F0000000000, PAGE, 1),
        (0x7F0000000000, 2 << 20, 1),  # aligned
        (0x7F0000000000, 3 * PAGE, 2),
        (0x7F0000001000, 2 * PAGE, 2),  # two pages, but not a pair
        # 1 GiB that begins one page late: 4 KiB, 8 KiB ... 512 MiB up to the next GiB, then the last page.
        (0x7F0000000000 + PAGE, GIB, 18 + 1),
        # 1 GiB without its first and last page: 4 KiB ... 256 MiB and back.
        (0x7F0000000000 + PAGE, GIB - 2 * PAGE, 17 + 17),
        (0, 1, 1),
        (1, 2, 2),
        (0, 2**64, 1),
        (0, 2**64 - 1, 64),
        (1, 2**64 - 1, 64),
        (1, 2**64 - 2, 126),  # the most there can be
        (2**64 - PAGE, PAGE, 1),  # the last page
        (2**64 - 1, 1, 1),
    ],
)
def test_prefixes_are_as_many_as_counted_by_hand(start: int, size: int, count: int) -> None:
    assert len(prefixes(start, start + size - 1)) == count


def test_prefixes_of_a_small_range_are_those_found_by_hand() -> None:
    # 0x3000-0x9fff: 4 KiB at 0x3000, 16 KiB at 0x4000, 8 KiB at 0x8000.
    assert prefixes(0x3000, 0x9FFF) == [(52, 0x3000), (50, 0x4000), (51, 0x8000)]


def test_the_whole_space_is_the_empty_prefix() -> None:
    assert prefixes(0, LAST) == [(0, 0)]


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        prefixes(1, 0)


@given(st.integers(0, LAST), st.integers(0, LAST))
def test_prefixes_cover_the_range_exactly_and_are_the_fewest(a: int, b: int) -> None:
    start, last = min(a, b), max(a, b)
    found = blocks(start, last)
    assert found[0][0] == start
    assert found[-1][1] == last
    for (_, before), (after, _) in pairwise(found):
        assert after == before + 1
    for first, end in found:
        assert first % (end - first + 1) == 0
    assert len(found) == fewest(start, last, 0, 64)


@given(st.integers(0, 2**52 - 1), st.integers(1, 2**20))
def test_page_ranges_need_at_most_twice_the_bits_of_their_size(page: int, pages: int) -> None:
    pages = min(pages, 2**52 - page)
    assert len(prefixes(page * PAGE, (page + pages) * PAGE - 1)) <= max(2 * pages.bit_length() - 2, 1)
