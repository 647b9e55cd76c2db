# SPDX-License-Identifier: Apache-2.0
"""The kernel's list of symbols: its lines, its aliases, and that nothing stretches over gaps."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof._native.symbols import SymbolTable

BASE = 0xFFFFFFFF81000000


def read(*lines: str) -> SymbolTable:
    return SymbolTable.from_kallsyms(["".join(f"{line}\n" for line in lines).encode()])


def names_at(table: SymbolTable, *addresses: int) -> list[str | None]:
    return [hit and hit[0].decode() for hit in table.resolve(array("Q", addresses))]


def test_function_ends_where_the_next_begins() -> None:
    table = read(f"{BASE:x} T first", f"{BASE + 0x40:x} t second", f"{BASE + 0x80:x} T third")
    assert table.resolve(array("Q", [BASE - 1, BASE, BASE + 0x3F, BASE + 0x40])) == [
        None, (b"first", 0, False, 0), (b"first", 0x3F, False, 0), (b"second", 0, False, 0),
    ]  # fmt: skip


def test_data_ends_a_function_and_names_nothing() -> None:
    table = read(
        f"{BASE:x} T f", f"{BASE + 0x40:x} D data", f"{BASE + 0x80:x} r table", f"{BASE + 0xC0:x} W g"
    )
    assert names_at(table, BASE + 0x3F, BASE + 0x40, BASE + 0x80, BASE + 0xC0) == ["f", None, None, "g"]


@pytest.mark.parametrize("mark", ["_etext", "_einittext", "__entry_text_end", "__noinstr_text_end"])
def test_address_behind_the_end_of_text_has_no_name(mark: str) -> None:
    table = read(f"{BASE:x} T last", f"{BASE + 0x40:x} T {mark}", f"{BASE + 0x90000:x} T much_later")
    assert names_at(table, BASE + 0x3F, BASE + 0x40, BASE + 0x50) == ["last", None, None]


def test_marks_at_a_functions_address_do_not_hide_it() -> None:
    lines = [f"{BASE:x} T {name}" for name in ("_stext", "_text", "__sched_text_start", "__schedule")]
    assert names_at(read(*lines), BASE + 5) == ["__schedule"]
    assert names_at(read(*lines[::-1]), BASE + 5) == ["__schedule"]


@pytest.mark.parametrize(
    ("lines", "best"),
    [
        (["t aaa", "T best"], "best"),
        (["W aaa", "T best"], "best"),
        (["t aaa", "W best"], "best"),
        (["T __x64_sys_read", "T zread"], "zread"),
        (["T best", "T besu"], "best"),
    ],
)
def test_alias_preferred_is_the_same_in_any_order(lines: list[str], best: str) -> None:
    lines = [f"{BASE:x} {line}" for line in lines]
    assert names_at(read(*lines), BASE) == names_at(read(*lines[::-1]), BASE) == [best]


def test_last_function_before_a_gap_does_not_stretch_over_it() -> None:
    table = read(
        f"{BASE:x} T core",
        "ffffffffc0201000 t mod_fn\t[some_mod]",
        "ffffffffc0300000 t bpf_prog_6deef7357e7b4530_x\t[bpf]",
    )
    assert names_at(table, BASE + 0x1000, BASE + (1 << 20)) == ["core", None]
    assert names_at(table, 0xFFFFFFFFC0201010, 0xFFFFFFFFC0280000) == ["mod_fn\t[some_mod]", None]
    assert names_at(table, 0xFFFFFFFFC0300010, 0xFFFFFFFFC0400000) == [
        "bpf_prog_6deef7357e7b4530_x\t[bpf]",
        None,
    ]


def test_modules_below_earlier_lines_are_found() -> None:
    table = read(f"{BASE + 0x1000:x} T core", "ffffffffa0002000 t b\t[m]", "ffffffffa0001000 t a\t[m]")
    assert names_at(table, 0xFFFFFFFFA0001008, 0xFFFFFFFFA0002008, BASE + 0x1000) == [
        "a\t[m]",
        "b\t[m]",
        "core",
    ]


def test_addresses_that_are_all_zero_are_hidden() -> None:
    table = read("0000000000000000 T startup_64", "0000000000000000 t other")
    assert table.hidden
    assert names_at(table, 0, 1, BASE) == [None] * 3


def test_per_cpu_symbols_at_zero_are_not_hidden_text() -> None:
    table = read("0000000000000000 A fixed_percpu_data", f"{BASE:x} T f", f"{BASE + 16:x} T g")
    assert not table.hidden
    assert names_at(table, 0, BASE) == [None, "f"]


def test_empty_list_has_no_functions_and_hides_none() -> None:
    table = SymbolTable.from_kallsyms([])
    assert (len(table), table.hidden, names_at(table, BASE)) == (0, False, [None])


@pytest.mark.parametrize(
    "line",
    ["", " ", "zz T f", "ffffffff81000000", "ffffffff81000000 T", "ffffffff81000000 T ",
     "ffffffff81000000Tf", "ffffffff810000000 T f", "ffffffff81000000 TT f"],
)  # fmt: skip
def test_line_of_another_form_is_skipped(line: str) -> None:
    assert names_at(read(line, f"{BASE + 0x100:x} T after"), BASE, BASE + 0x100) == [None, "after"]


def test_last_line_without_newline_is_read() -> None:
    table = SymbolTable.from_kallsyms([f"{BASE:x} T f\n".encode(), f"{BASE + 16:x} T g".encode()])
    assert names_at(table, BASE, BASE + 16) == ["f", "g"]


def test_functions_at_the_end_of_the_address_space_do_not_wrap() -> None:
    table = read("fffffffffffffff0 T f", "ffffffffffffffff T g")
    assert names_at(table, 0, 0xFFFFFFFFFFFFFFFE) == [None, "f"]


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_garbage_gives_some_answer(chunks: list[bytes]) -> None:
    SymbolTable.from_kallsyms(chunks).resolve(array("Q", [0, 1, BASE, 2**64 - 1]))
