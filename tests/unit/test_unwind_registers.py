# SPDX-License-Identifier: Apache-2.0
"""Steps by rules that follow rbx, or find the stack pointer elsewhere than in the CFA."""

import pytest

from tests.support.stacks import SIGNAL, rule
from tests.support.steps import BASE, LOST, RBX, RETURN, SAME, SIZE, SP, UNREADABLE, Frame, caller, step

# rbx, from frame to frame


@pytest.mark.parametrize("frame", [Frame(registers={RBX: 0x77}), Frame(registers=None, rbx=0x77)])
def test_rbx_that_is_the_same_stays_known(frame: Frame) -> None:
    assert step(rule("SP", 8, rbx=SAME), frame, {SP: RETURN}) == caller(SP + 8, rbx=0x77)


def test_rbx_that_is_the_same_stays_lost() -> None:
    assert step(rule("SP", 8, rbx=SAME), Frame(registers=None), {SP: RETURN}) == caller(SP + 8)


@pytest.mark.parametrize("words_below", range(2, 16))
@pytest.mark.parametrize("frame", [Frame(registers={RBX: 0x77}), Frame(registers=None)])
def test_rbx_that_is_saved_is_read_below_the_cfa(words_below: int, frame: Frame) -> None:
    applied = rule("SP", 0x80, rbx=words_below)
    stack = {SP + 0x80 - 8 * words_below: 0x4242, SP + 0x78: RETURN}
    assert step(applied, frame, stack) == caller(SP + 0x80, rbx=0x4242)


def test_rbx_is_read_beside_a_frame_pointer_that_is_saved_next_to_the_return_address() -> None:
    applied = rule("SP", 0x20, fp="AT_CFA", fp_offset=-16, rbx=3)
    stack = {SP + 8: 0x4242, SP + 0x10: 77, SP + 0x18: RETURN}
    assert step(applied, Frame(fp=None), stack) == caller(SP + 0x20, 77, rbx=0x4242)


def test_rbx_that_cannot_be_read_is_lost_and_the_walk_goes_on() -> None:
    applied = rule("SP", 8, rbx=2)  # below the slice's first word
    frame = Frame(sp=BASE, registers={RBX: 1})
    assert step(applied, frame, {BASE: RETURN}) == caller(BASE + 8)


def test_rbx_of_which_a_rule_says_nothing_is_lost() -> None:
    assert step(rule("SP", 8), Frame(registers=None, rbx=0x77), {SP: RETURN}) == caller(SP + 8)


def test_a_cfa_by_rbx_that_was_followed_is_that_registers() -> None:
    # _dl_runtime_resolve of ld.so, seen from what it calls: rbx + 32, rbx itself saved 4 words below.
    applied = rule("REGISTER", 32, register=RBX, rbx=4)
    stack = {SP + 0x80: 0x4242, SP + 0x98: RETURN}
    assert step(applied, Frame(registers=None, rbx=SP + 0x80), stack) == caller(SP + 0xA0, rbx=0x4242)


@pytest.mark.parametrize(
    "applied",
    [
        rule("REGISTER", 0, register=12),
        rule("SP", 0, ra="IN_REGISTER", other=12),
        rule("JUMP", 0, register=RBX, ra="IN_REGISTER", other=RBX | RBX << 8),
        rule("CONTEXT_AT", 0, fp="AT_CFA", ra="AT_CFA", register=12),
    ],
)
def test_registers_other_than_rbx_are_lost_where_rbx_is_known(applied: bytes) -> None:
    assert step(applied, Frame(registers=None, rbx=SP), {}) == LOST


def test_a_frame_pointer_in_another_register_is_lost_where_rbx_is_known() -> None:
    applied = rule("SP", 8, fp="IN_REGISTER", fp_offset=12)
    assert step(applied, Frame(registers=None, rbx=SP), {SP: RETURN}) == caller(SP + 8, None)


def test_a_signal_frame_holds_rbx_next_to_the_frame_pointer() -> None:
    applied = rule("CONTEXT", 160, fp="AT_SP", fp_offset=120, ra="AT_SP", other=168, flags=SIGNAL, rbx=SAME)
    stack = {SP + 160: 0x7000, SP + 120: 0x7100, SP + 128: 0x7200, SP + 168: RETURN}
    expected = caller(0x7000, 0x7100, exact=True, rbx=0x7200)
    assert step(applied, Frame(registers=None), stack) == expected


# Jumps: the caller's stack pointer is not the CFA


@pytest.mark.parametrize("target", [SP + 0x80, SP - 0x80, 0x7000])
def test_a_jump_leads_to_the_stack_pointer_in_its_register(target: int) -> None:
    # __longjmp: rdi+0, with sp in r8, the frame pointer in r9, pc in rdx. It may leave for another stack.
    applied = rule("JUMP", 0, register=5, fp="IN_REGISTER", fp_offset=9, ra="IN_REGISTER", other=1 | 8 << 8)
    frame = Frame(registers={1: RETURN, 5: 0xBAD, 8: target, 9: 0x7100})
    assert step(applied, frame, {}) == caller(target, 0x7100)


@pytest.mark.parametrize(("flags", "exact"), [(0, False), (SIGNAL, True)])
def test_a_context_in_a_register_leads_to_what_it_holds(flags: int, exact: bool) -> None:
    # swapcontext: rdx+0, with sp, the frame pointer and pc saved there.
    applied = rule(
        "CONTEXT_AT", 160, register=1, fp="AT_CFA", fp_offset=120, ra="AT_CFA", other=168, flags=flags
    )
    stack = {SP + 0x40 + 160: 0x7000, SP + 0x40 + 120: 0x7100, SP + 0x40 + 168: RETURN}
    assert step(applied, Frame(registers={1: SP + 0x40}), stack) == caller(0x7000, 0x7100, exact=exact)


def test_a_context_in_a_register_that_cannot_be_read_is_none() -> None:
    applied = rule("CONTEXT_AT", 160, register=1, fp="AT_CFA", fp_offset=120, ra="AT_CFA", other=168)
    assert step(applied, Frame(registers={1: BASE + SIZE}), {}) == UNREADABLE
