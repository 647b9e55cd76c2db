# SPDX-License-Identifier: Apache-2.0
"""The symbol table against a naive model, and against tables that no tool writes."""

import struct
import time
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof._native.symbols import SymbolTable
from pyprof.errors import ElfError
from tests.support.elfwriter import (
    SHN_ABS,
    SHN_UNDEF,
    STB_GLOBAL,
    STB_LOCAL,
    STB_WEAK,
    STT_FILE,
    STT_FUNC,
    STT_IFUNC,
    STT_NOTYPE,
    STT_OBJECT,
    STT_SECTION,
    Sym,
    symbol_bytes,
)

TEXT = [(0x1000, 0x2000)]


def table_of(symbols: list[Sym], ranges: list[tuple[int, int]] | None = None) -> SymbolTable:
    return SymbolTable([symbol_bytes(symbols)], TEXT if ranges is None else ranges)


def names_at(table: SymbolTable, *addresses: int) -> list[str | None]:
    return [hit and hit[0].decode() for hit in table.resolve(array("Q", addresses))]


def at(table: SymbolTable, address: int) -> tuple[bytes, int, bool, int] | None:
    return table.resolve(array("Q", [address]))[0]


def test_address_within_size_is_named_and_behind_it_is_not() -> None:
    table = table_of([Sym("f", 0x1000, 16), Sym("g", 0x1020, 16)])
    assert names_at(table, 0xFFF, 0x1000, 0x100F, 0x1010, 0x101F, 0x1020, 0x102F, 0x1030) == [
        None, "f", "f", None, None, "g", "g", None,
    ]  # fmt: skip


def test_offset_counts_from_the_symbol() -> None:
    assert at(table_of([Sym("f", 0x1000, 16)]), 0x100C) == (b"f", 12, False, 0)


def test_unsized_symbol_ends_at_next_symbol_and_is_a_guess() -> None:
    table = table_of([Sym("label", 0x1000, 0, STT_NOTYPE), Sym("g", 0x1020, 16)])
    assert at(table, 0x101F) == (b"label", 0x1F, True, 0)
    assert names_at(table, 0x1020, 0x1030) == ["g", None]


def test_unsized_symbol_ends_at_end_of_section() -> None:
    table = table_of([Sym("label", 0x1000, 0)], [(0x1000, 0x1040), (0x1040, 0x1080)])
    assert names_at(table, 0x103F, 0x1040) == ["label", None]


def test_unsized_symbol_ends_where_unwind_information_of_a_function_begins() -> None:
    starts = struct.pack(
        "<8i", -0x100, 0, 0x0, 0, 0x30, 0, 0x80, 0
    )  # relative to 0x1000: (start, description)
    tables = [symbol_bytes([Sym("label", 0x1000, 0)])]
    assert names_at(SymbolTable(tables, TEXT, starts, 0x1000), 0x102F, 0x1030) == ["label", None]


def test_inner_symbol_owns_its_bytes_and_outer_the_rest() -> None:
    table = table_of([Sym("outer", 0x1000, 0x100), Sym("inner", 0x1020, 0x10), Sym("deep", 0x1028, 0x40)])
    assert names_at(table, 0x101F, 0x1020, 0x1028, 0x1067, 0x1068, 0x10FF, 0x1100) == [
        "outer", "inner", "deep", "deep", "outer", "outer", None,
    ]  # fmt: skip


def test_overlapping_symbols_belong_to_the_one_that_begins_last() -> None:
    table = table_of([Sym("a", 0x1000, 0x40), Sym("b", 0x1020, 0x40)])
    assert names_at(table, 0x101F, 0x1020, 0x105F, 0x1060) == ["a", "b", "b", None]


def test_aliases_of_different_size_share_the_start_and_the_longer_owns_the_rest() -> None:
    table = table_of([Sym("short", 0x1000, 0x10), Sym("zlong", 0x1000, 0x20)])
    assert names_at(table, 0x1000, 0x1010, 0x1020) == ["short", "zlong", None]


def test_label_inside_a_sized_function_owns_nothing_even_behind_it() -> None:
    table = table_of([Sym("f", 0x1000, 0x40), Sym("label", 0x1020, 0, STT_NOTYPE)])
    assert names_at(table, 0x1020, 0x1030, 0x1040) == ["f", "f", None]


@pytest.mark.parametrize(
    "symbols",
    [
        [Sym("best", 0x1000, 8), Sym("aaa", 0x1000, 0)],
        [Sym("best", 0x1000, 8, bind=STB_GLOBAL), Sym("aaa", 0x1000, 8, bind=STB_WEAK)],
        [Sym("best", 0x1000, 8, bind=STB_WEAK), Sym("aaa", 0x1000, 8, bind=STB_LOCAL)],
        [Sym("zest", 0x1000, 8), Sym("_aaa", 0x1000, 8)],
        [Sym("_z", 0x1000, 8), Sym("__aaa", 0x1000, 8)],
        [Sym("zest", 0x1000, 8, bind=STB_WEAK), Sym("aaa@V1", 0x1000, 8)],
        [Sym("zest@@V2", 0x1000, 8, bind=STB_LOCAL), Sym("aaa@V1", 0x1000, 8)],
        [Sym("__best", 0x1000, 8), Sym("aaa", 0x1000, 8, STT_NOTYPE)],
        [Sym("best", 0x1000, 8, STT_NOTYPE), Sym("aaa", 0x1000, 8, bind=STB_WEAK)],
        [Sym("zoo", 0x1000, 8), Sym("aaaa", 0x1000, 8)],
        [Sym("best", 0x1000, 8), Sym("besu", 0x1000, 8)],
        [Sym("best", 0x1000, 8), Sym("best2", 0x1000, 8)],
        [Sym("a@@V2", 0x1000, 8), Sym("b", 0x1000, 8)],
        [Sym("a@V1", 0x1000, 8), Sym("a.b@V1", 0x1000, 8)],
    ],
)
def test_alias_preferred_is_the_same_in_any_order_of_the_table(symbols: list[Sym]) -> None:
    best = str(symbols[0].name).split("@", 1)[0]
    assert names_at(table_of(symbols), 0x1004) == [best]
    assert names_at(table_of(symbols[::-1]), 0x1004) == [best]


def test_old_version_of_a_dynamic_symbol_is_the_last_choice() -> None:
    symbols, strings = symbol_bytes([Sym("cfree", 0x1000, 8), Sym("__libc_free", 0x1000, 8)])
    count = len(symbols) // 24
    versions = struct.pack(f"<{count}H", *[2] * (count - 2), 0x8002, 2)  # bit 15: hidden
    assert names_at(SymbolTable([(symbols, strings, versions)], TEXT), 0x1004) == ["__libc_free"]
    assert names_at(SymbolTable([(symbols, strings, versions[:-3])], TEXT), 0x1004) == ["cfree"]


@pytest.mark.parametrize(
    "symbol",
    [
        Sym("undefined", 0x1000, 8, shndx=SHN_UNDEF),
        Sym("VER_1", 0x1000, 8, STT_NOTYPE, shndx=SHN_ABS),
        Sym("absolute", 0x1000, 8, STT_FUNC, shndx=SHN_ABS),
        Sym("data", 0x1000, 8, STT_OBJECT),
        Sym("", 0x1000, 8, STT_SECTION, STB_LOCAL),
        Sym("file.c", 0x1000, 0, STT_FILE, STB_LOCAL),
        Sym("", 0x1000, 8),
        Sym("$x", 0x1000, 0, STT_NOTYPE, STB_LOCAL),
        Sym("$d.12", 0x1000, 0, STT_NOTYPE, STB_LOCAL),
        Sym(".L5", 0x1000, 0, STT_NOTYPE, STB_LOCAL),
        Sym("outside", 0x2000, 8),
        Sym("marker_at_zero", 0, 0x2000),
    ],
)
def test_what_is_no_function_names_nothing(symbol: Sym) -> None:
    table = table_of([symbol])
    assert len(table) == 0
    assert names_at(table, 0, 0x1000, 0x1004, 0x2000) == [None] * 4


@pytest.mark.parametrize("kind", [STT_FUNC, STT_IFUNC, STT_NOTYPE])
def test_functions_resolvers_and_labels_in_code_are_named(kind: int) -> None:
    assert names_at(table_of([Sym("f", 0x1000, 8, kind)]), 0x1000) == ["f"]


def test_version_is_cut_but_not_a_name_that_begins_with_at() -> None:
    table = table_of([Sym("foo@@VER_2", 0x1000, 8), Sym("bar@VER_1", 0x1010, 8), Sym("@odd", 0x1020, 8)])
    assert names_at(table, 0x1000, 0x1010, 0x1020) == ["foo", "bar", "@odd"]


def test_two_tables_are_one_and_each_hit_says_where_it_stands() -> None:
    tables = [symbol_bytes([Sym("f", 0x1000, 8)]), (b"", b""), symbol_bytes([Sym("g", 0x1010, 8)])]
    table = SymbolTable(tables, TEXT)
    assert table.counts == [1, 0, 1]
    assert table.resolve(array("Q", [0x1000, 0x1010])) == [(b"f", 0, False, 0), (b"g", 0, False, 2)]


def test_too_many_tables_are_refused() -> None:
    with pytest.raises(ElfError, match="symbol tables"):
        SymbolTable([(b"", b"")] * 9)


# Tables that no tool writes


def entry(name: int, value: int, size: int, info: int = 0x12, shndx: int = 1) -> bytes:
    return struct.pack("<IBBHQQ", name, info, 0, shndx, value, size)


def test_name_outside_the_string_table_is_no_symbol() -> None:
    table = SymbolTable([(entry(4, 0x1000, 8) + entry(0xFFFFFFFF, 0x1000, 8), b"\0abc")], TEXT)
    assert len(table) == 0


def test_name_without_terminator_ends_with_the_string_table() -> None:
    table = SymbolTable([(entry(1, 0x1000, 8), b"\0abc"), (entry(1, 0x1010, 8), b"\0next\0")], TEXT)
    assert names_at(table, 0x1000, 0x1010) == ["abc", "next"]


def test_size_that_wraps_the_address_space_ends_with_the_code() -> None:
    table = SymbolTable([(entry(1, 0x1800, 2**64 - 1), b"\0abc\0")], TEXT)
    assert names_at(table, 0, 0x17FF, 0x1800, 0x1FFF, 0x2000, 2**64 - 1) == [
        None, None, "abc", "abc", None, None,
    ]  # fmt: skip


def test_code_at_the_end_of_the_address_space_is_named() -> None:
    table = table_of([Sym("last", 2**64 - 16, 8), Sym("open", 2**64 - 8)], [(2**64 - 32, 2**64 - 1)])
    assert names_at(table, 2**64 - 9, 2**64 - 2, 2**64 - 1) == ["last", "open", None]


def test_half_an_entry_at_the_end_is_ignored() -> None:
    symbols, strings = symbol_bytes([Sym("f", 0x1000, 8), Sym("g", 0x1010, 8)])
    assert names_at(SymbolTable([(symbols[:-1], strings)], TEXT), 0x1000, 0x1010) == ["f", None]


def test_overlapping_code_ranges_are_taken_once() -> None:
    table = table_of(
        [Sym("f", 0x1000, 0x1000)], [(0x1000, 0x1800), (0x1400, 0x1C00), (0x1500, 0x1600), (5, 5)]
    )
    assert names_at(table, 0x1000, 0x1BFF, 0x1C00) == ["f", None, None]


def test_many_aliases_of_one_huge_name_take_bounded_time() -> None:
    strings = b"\0" + b"a" * (1 << 22) + b"\0"
    symbols = b"".join(entry(1 + i, 0x1000, 8) for i in range(100_000))
    started = time.process_time()
    table = SymbolTable([(symbols, strings)], TEXT)
    hit = at(table, 0x1000)
    assert time.process_time() - started < 2.0
    assert hit is not None
    assert len(hit[0]) == 1 << 16


def test_deeply_nested_symbols_take_bounded_time() -> None:
    count = 200_000
    symbols = b"".join(entry(1, 0x1000 + i, 2 * (count - i)) for i in range(count))
    started = time.process_time()
    table = SymbolTable([(symbols, b"\0n\0")], [(0x1000, 0x1000 + 4 * count)])
    assert at(table, 0x1000 + count // 2) == (b"n", 0, False, 0)
    assert at(table, 0x1000 + 2 * count - 1) == (b"n", 2 * count - 1, False, 0)
    assert time.process_time() - started < 2.0


@given(st.binary(max_size=24 * 20), st.binary(max_size=40), st.binary(max_size=80), st.integers(0, 2**64 - 1))
def test_garbage_gives_some_answer(symbols: bytes, strings: bytes, starts: bytes, base: int) -> None:
    table = SymbolTable([(symbols, strings)], [(0, 2**64 - 1)], starts, base)
    for hit in table.resolve(array("Q", [0, 1, base, 2**63, 2**64 - 1])):
        assert hit is None or 0 < len(hit[0]) <= len(strings)


# The naive model


def preference(symbol: Sym) -> tuple[object, ...]:
    """Smallest is best."""
    name = str(symbol.name)
    order = {STB_GLOBAL: 0, STB_WEAK: 1, STB_LOCAL: 2}[symbol.bind]
    label = symbol.type == STT_NOTYPE
    return order, label, len(name) - len(name.lstrip("_")), len(name), name


def model(symbols: list[Sym], address: int, text: tuple[int, int]) -> tuple[str, int, bool] | None:
    """Every rule as a sentence, by looking at every symbol."""
    known = [s for s in symbols if text[0] <= s.value < text[1]]
    sized = [s for s in known if s.size]
    covering = [s for s in sized if s.value <= address < min(s.value + s.size, text[1])]
    if covering:
        best = min(covering, key=lambda s: (-s.value, preference(s)))
        return str(best.name), address - best.value, False
    free = [s for s in known if not s.size and not any(f.value <= s.value < f.value + f.size for f in sized)]
    before = [s for s in free if s.value <= address < text[1]]
    if not before:
        return None
    start = max(s.value for s in before)
    if any(start < s.value <= address for s in known):
        return None
    best = min((s for s in before if s.value == start), key=preference)
    return str(best.name), address - start, True


SYMBOLS = st.lists(
    st.builds(
        Sym,
        name=st.text("ab_", min_size=1, max_size=3),
        value=st.integers(90, 200),
        size=st.one_of(st.just(0), st.integers(0, 60)),
        type=st.sampled_from([STT_FUNC, STT_NOTYPE]),
        bind=st.sampled_from([STB_LOCAL, STB_GLOBAL, STB_WEAK]),
    ),
    max_size=14,
)


@settings(max_examples=400)
@given(SYMBOLS)
def test_every_address_is_named_as_the_model_says(symbols: list[Sym]) -> None:
    text = (100, 190)
    addresses = range(85, 265)
    found = table_of(symbols, [text]).resolve(array("Q", addresses))
    for address, hit in zip(addresses, found, strict=True):
        got = hit and (hit[0].decode(), hit[1], hit[2])
        assert got == model(symbols, address, text), hex(address)


@given(st.lists(st.integers(0, 2**64 - 2), max_size=60, unique=True))
def test_symbols_anywhere_in_the_address_space_are_found(values: list[int]) -> None:
    table = table_of([Sym(f"s{value}", value, 1) for value in values], [(0, 2**64 - 1)])
    assert names_at(table, *values) == [f"s{value}" for value in values]
