# SPDX-License-Identifier: Apache-2.0
"""Call frame information on the stack pointer and on rbx: rules worked out from DWARF 5, 6.4.2."""

import pytest

from pyprof._native.cfi import RULE_SIZE
from tests.support.dwarf import (
    Frames,
    advance,
    breg,
    def_cfa,
    def_cfa_offset,
    expression,
    offset,
    register,
    restore,
    same_value,
    sleb,
    undefined,
    val_expression,
)
from tests.support.unwind_rows import START, only_rule, program_rows, rows_of

RBX, RBP, RSP, RIP = 3, 6, 7, 16
FIRST = (0, "rsp+8 u c-8")


def test_a_stack_pointer_in_a_register_as_longjmp_has_it() -> None:
    program = def_cfa(5, 0) + register(RIP, 1) + register(RBP, 9) + register(RSP, 8) + offset(RBX, 0)
    assert program_rows(program) == [(0, "rdi+0 r9 rdx")]
    assert only_rule(program) == ("JUMP", "IN_REGISTER", "IN_REGISTER", 0, 5, 0, 9, 1 | 8 << 8)


def test_a_stack_pointer_in_a_context_as_swapcontext_has_it() -> None:
    program = def_cfa(1, 0) + offset(RBX, -16) + offset(RBP, -15) + offset(RSP, -20) + offset(RIP, -21)
    assert program_rows(program) == [(0, "rdx+0 c+120 c+168")]
    assert only_rule(program) == ("CONTEXT_AT", "AT_CFA", "AT_CFA", 0, 1, 160, 120, 168)


@pytest.mark.parametrize("state_sp", [val_expression(RSP, breg(RSP, 16440)), b"\x15\x07" + sleb(-2055)])
def test_a_stack_pointer_above_the_cfa_is_what_counts(state_sp: bytes) -> None:
    # StgRunJmp of Haskell's run-time system: 16 KiB of the frame lie between. -2055 is factored by -8.
    program = def_cfa_offset(0) + offset(RBP, -2049) + offset(RIP, -2054) + state_sp
    assert program_rows(program) == [(0, "rsp+0 c+16392 c+16432")]
    assert only_rule(program) == ("SP", "AT_CFA", "BELOW_CFA", 0, 0, 16440, -48, 16440)


@pytest.mark.parametrize(
    "state_sp",
    [same_value(RSP), register(RSP, RSP), val_expression(RSP, breg(RSP, 8)), b"\x15\x07\x00"],
)
def test_a_stack_pointer_that_is_said_to_be_the_cfa_makes_no_difference(state_sp: bytes) -> None:
    assert only_rule(state_sp) == ("SP", "SAME", "BELOW_CFA", 0, 0, 8, 0, 0)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (offset(RSP, 2), "CFA and return address too special for one rule"),
        (register(RSP, 8), "CFA and return address too special for one rule"),
        (register(RSP, 8) + register(RIP, 17), "CFA and return address too special for one rule"),
        (register(RSP, 17), "stack pointer saved in an unknown way"),
        (undefined(RSP), "stack pointer saved in an unknown way"),
        (expression(RSP, breg(RBP, 8)), "stack pointer saved in an unknown way"),
        (val_expression(RSP, breg(RBP, 8)), "stack pointer saved in an unknown way"),
        (val_expression(RSP, b"\x96" * 3 + b"\x1a"), "stack pointer saved in an unknown way"),
        (val_expression(RSP, breg(RSP, 24)), "stack pointer saved in an unknown way"),
    ],
)
def test_a_stack_pointer_that_no_rule_can_state_is_unsupported(program: bytes, reason: str) -> None:
    # In the last one the return address is not where a call puts it.
    assert program_rows(program) == [(0, reason)]


def test_the_end_of_the_stack_needs_no_stack_pointer() -> None:
    assert only_rule(undefined(RSP) + undefined(RIP))[2] == "UNDEFINED"


# rbx, followed where a CFA is by it


def rbx_places(program: bytes, size: int = 0x100) -> list[tuple[int, int]]:
    """(address from START, place of rbx) of each row of a function, in a file where a CFA is by rbx."""
    frames = Frames()
    cie = frames.cie()
    frames.fde(cie, START, size, program)
    frames.fde(cie, START + 0x1000, 16, def_cfa(RBX, 8))
    rows = rows_of(frames)
    places = [
        (a - START, rows.rules[RULE_SIZE * n + 2] >> 4)
        for a, n in zip(rows.addresses, rows.numbers, strict=True)
    ]
    return [place for place in places if place[0] < size]


def test_rbx_is_followed_where_a_cfa_is_by_it() -> None:
    program = advance(1) + def_cfa_offset(16) + offset(RBX, 2) + advance(9) + def_cfa_offset(24)
    program += offset(RBX, 15) + advance(1) + restore(RBX) + advance(1) + undefined(RBX)
    program += advance(1) + same_value(RBX)
    assert rbx_places(program) == [(0, 1), (1, 2), (10, 15), (11, 1), (12, 0), (13, 1)]


@pytest.mark.parametrize(
    "program",
    [
        offset(RBX, 1),  # the return address is there
        offset(RBX, 16),
        offset(RBX, -2),
        register(RBX, 12),
        expression(RBX, breg(RSP, 8)),
        b"\x14\x03\x02",  # val_offset: 16 below the CFA itself
    ],
)
def test_rbx_elsewhere_than_right_below_the_cfa_is_lost(program: bytes) -> None:
    assert rbx_places(program) == [(0, 0)]


def test_rbx_makes_no_rows_where_no_cfa_is_by_it() -> None:
    program = advance(1) + offset(RBX, 2) + advance(1) + restore(RBX)
    assert program_rows(program) == [FIRST]
    assert only_rule(program) == ("SP", "SAME", "BELOW_CFA", 0, 0, 8, 0, 0)


def test_counts_of_a_file_where_rbx_is_followed_are_of_one_pass() -> None:
    frames = Frames()
    cie = frames.cie()
    frames.fde(cie, START, 32, def_cfa(RBX, 8))
    frames.fde(cie, START + 16, 32)
    rows = rows_of(frames)
    assert (rows.overlaps, rows.fde_count, rows.rule_count) == (1, 2, 3)
