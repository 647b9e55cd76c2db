# SPDX-License-Identifier: Apache-2.0
"""Each call frame instruction: hand-made bytes, rules worked out from the text of DWARF 5, 6.4.2."""

import struct

import pytest

from pyprof._native.cfi import SIGNAL_FRAME
from tests.support.dwarf import (
    DEREF,
    PLUS,
    REMEMBER,
    RESTORE,
    Frames,
    advance,
    breg,
    def_cfa,
    def_cfa_expression,
    def_cfa_offset,
    def_cfa_register,
    expression,
    offset,
    plus,
    register,
    restore,
    same_value,
    sleb,
    uleb,
    undefined,
    val_expression,
)
from tests.support.unwind_rows import START, only_rule, program_rows, rows_of, shown

RBP, RSP, RIP = 6, 7, 16
FIRST = (0, "rsp+8 u c-8")
PLT = bytes([0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x3B, 0x2A, 0x33, 0x24, 0x22])


def test_function_with_a_frame_pointer() -> None:
    program = advance(1) + def_cfa_offset(16) + offset(RBP, 2) + advance(3) + def_cfa_register(RBP)
    program += advance(0x80) + def_cfa(RSP, 8) + restore(RBP)
    assert program_rows(program) == [
        FIRST,
        (1, "rsp+16 c-16 c-8"),
        (4, "rbp+16 c-16 c-8"),
        (0x84, "rsp+8 u c-8"),
    ]


def test_registers_that_callers_do_not_need_make_no_row() -> None:
    assert program_rows(advance(1) + offset(3, 2) + advance(1) + restore(3) + b"\x2e\x10") == [FIRST]


@pytest.mark.parametrize(
    ("code", "delta"),
    [
        (b"\x41", 1),
        (b"\x7f", 0x3F),
        (b"\x02\xff", 0xFF),
        (b"\x03\x00\x01", 0x100),
        (b"\x04\x00\x00\x01\x00", 0x10000),
        (b"\x1d\x00\x00\x01\x00\x00\x00\x00\x00", 0x10000),
    ],
)
def test_advance_in_every_size(code: bytes, delta: int) -> None:
    assert program_rows(code + def_cfa_offset(16), 0x20000) == [FIRST, (delta, "rsp+16 u c-8")]


def test_advance_counts_in_units_of_the_code_alignment() -> None:
    frames = Frames()
    frames.fde(frames.cie(code_align=4), START, 0x100, advance(3) + def_cfa_offset(16))
    assert shown(rows_of(frames))[1] == (START + 12, "rsp+16 u c-8")


def test_set_loc_names_an_address_in_the_encoding_of_the_section() -> None:
    frames = Frames(address=0x100000)
    cie = frames.cie(augmentation=b"\x03")  # udata4, absolute
    program = b"\x01" + struct.pack("<I", START + 0x20) + def_cfa_offset(16)
    frames.fde(cie, START, 0x100, program, form="I", pcrel=False)
    assert shown(rows_of(frames))[1] == (START + 0x20, "rsp+16 u c-8")


def test_location_that_goes_back_is_unsupported_from_there_on() -> None:
    frames = Frames(address=0x100000)
    cie = frames.cie(augmentation=b"\x03")
    program = advance(8) + def_cfa_offset(16) + advance(8) + b"\x01" + struct.pack("<I", START)
    frames.fde(cie, START, 0x100, program, form="I", pcrel=False)
    assert shown(rows_of(frames)) == [
        (START, "rsp+8 u c-8"),
        (START + 8, "rsp+16 u c-8"),
        (START + 16, "call frame instructions go back"),
        (START + 0x100, "-"),
    ]


def test_advance_by_nothing_replaces_what_was_said() -> None:
    program = def_cfa_offset(24) + advance(0) + def_cfa_offset(16) + advance(1) + def_cfa_offset(8)
    assert program_rows(program) == [(0, "rsp+16 u c-8"), (1, "rsp+8 u c-8")]


@pytest.mark.parametrize("value", [0, 8, 0x7FFF, 0x8000, 0x10008, 1 << 20, 0x7FFFFFFF])
def test_cfa_offset_of_up_to_32_bits(value: int) -> None:
    assert program_rows(def_cfa_offset(value)) == [(0, f"rsp{value:+d} u c-8")]


@pytest.mark.parametrize("value", [0x80000000, 1 << 40])
def test_cfa_offset_of_more_bits_is_unsupported(value: int) -> None:
    assert program_rows(def_cfa_offset(value)) == [(0, "offset of more than 32 bits")]


def test_cfa_offset_wraps_as_addresses_do() -> None:
    assert program_rows(def_cfa_offset((1 << 64) - 8)) == [(0, "rsp-8 u c-8")]


def test_cfa_offset_that_fits_again_is_good() -> None:
    program = def_cfa_offset(1 << 40) + advance(1) + def_cfa_offset(16)
    assert program_rows(program) == [(0, "offset of more than 32 bits"), (1, "rsp+16 u c-8")]


def test_signed_forms_count_in_units_of_the_data_alignment() -> None:
    assert program_rows(b"\x12\x07" + sleb(-3)) == [(0, "rsp+24 u c-8")]  # def_cfa_sf rsp
    assert program_rows(b"\x13" + sleb(-4)) == [(0, "rsp+32 u c-8")]  # def_cfa_offset_sf
    assert program_rows(offset(RBP, -2)) == [(0, "rsp+8 c+16 c-8")]
    assert program_rows(b"\x2f" + uleb(RBP) + uleb(2)) == [(0, "rsp+8 c+16 c-8")]  # GNU_negative_offset


def test_extended_forms_are_the_short_ones() -> None:
    assert program_rows(b"\x05\x06\x02") == [(0, "rsp+8 c-16 c-8")]
    assert program_rows(offset(RBP, 2) + advance(1) + b"\x06\x06") == [
        (0, "rsp+8 c-16 c-8"),
        (1, "rsp+8 u c-8"),
    ]


def test_value_relative_to_the_cfa() -> None:
    assert program_rows(b"\x14\x06\x02") == [(0, "rsp+8 v-16 c-8")]
    assert program_rows(b"\x15\x06" + sleb(-1)) == [(0, "rsp+8 v+8 c-8")]


@pytest.mark.parametrize(
    ("number", "name"), [(0, "rax"), (1, "rdx"), (2, "rcx"), (5, "rdi"), (10, "r10"), (15, "r15")]
)
def test_cfa_by_any_register(number: int, name: str) -> None:
    assert program_rows(def_cfa(number, 16)) == [(0, f"{name}+16 u c-8")]


@pytest.mark.parametrize("number", [16, 17, 33, 255, 256 + 7, 1 << 40])
def test_cfa_by_a_register_that_samples_do_not_hold(number: int) -> None:
    assert program_rows(def_cfa(number, 16)) == [(0, "CFA by a register that is not saved in samples")]


def test_return_address_and_frame_pointer_in_registers() -> None:
    program = def_cfa_offset(0) + register(RIP, 5) + advance(1) + register(RBP, 9)
    assert program_rows(program) == [(0, "rsp+0 u rdi"), (1, "rsp+0 r9 rdi")]


def test_registers_that_samples_do_not_hold() -> None:
    assert program_rows(register(RIP, 17)) == [
        (0, "return address in a register that is not saved in samples")
    ]
    frames = Frames()
    frames.fde(frames.cie(), START, 16, register(RBP, 17))
    rows = rows_of(frames)
    assert shown(rows)[0] == (START, "rsp+8 exp c-8")
    assert rows.unsupported == {"frame pointer in a register that is not saved in samples": 1}


def test_undefined_return_address_is_the_end_of_the_stack() -> None:
    frames = Frames()
    frames.fde(frames.cie(), START, 16, undefined(RIP) + advance(1) + def_cfa_expression(b"\x96"))
    rows = rows_of(frames)
    assert [rows.rule(number)[2] for number in rows.numbers] == ["UNDEFINED", "UNDEFINED", "BELOW_CFA"]
    assert shown(rows)[:2] == [(START, "rsp+8 u u"), (START + 1, "exp u u")]
    assert rows.unsupported == {}


def test_undefined_frame_pointer_is_not_the_end() -> None:
    frames = Frames()
    frames.fde(frames.cie(), START, 16, undefined(RBP) + advance(1) + same_value(RBP))
    rows = rows_of(frames)
    assert [rows.rule(number)[:3] for number in rows.numbers[:2]] == [
        ("SP", "UNDEFINED", "BELOW_CFA"),
        ("SP", "SAME", "BELOW_CFA"),
    ]


# remember_state and restore_state


def test_restore_state_gives_back_cfa_and_registers_but_not_the_location() -> None:
    program = advance(1) + def_cfa_offset(16) + offset(RBP, 2) + advance(1) + REMEMBER
    program += def_cfa_offset(8) + restore(RBP) + advance(1) + RESTORE
    assert program_rows(program) == [
        FIRST,
        (1, "rsp+16 c-16 c-8"),
        (2, "rsp+8 u c-8"),
        (3, "rsp+16 c-16 c-8"),
    ]


def test_nested_states_are_copies() -> None:
    program = def_cfa_offset(16) + REMEMBER + def_cfa_offset(24) + REMEMBER + def_cfa_offset(32)
    program += advance(1) + RESTORE + advance(1) + def_cfa_offset(40) + advance(1) + RESTORE
    assert program_rows(program) == [
        (0, "rsp+32 u c-8"), (1, "rsp+24 u c-8"), (2, "rsp+40 u c-8"), (3, "rsp+16 u c-8"),
    ]  # fmt: skip


def test_states_nested_sixteen_deep_and_no_deeper() -> None:
    assert program_rows(REMEMBER * 16 + RESTORE * 16) == [FIRST]
    assert program_rows(REMEMBER * 17) == [(0, "remembered states unbalanced or too deep")]


def test_restore_without_remember_is_unsupported() -> None:
    assert program_rows(advance(4) + RESTORE) == [FIRST, (4, "remembered states unbalanced or too deep")]


# Expressions


@pytest.mark.parametrize(
    "code", [breg(RSP, 24), b"\x92\x07\x18", breg(RSP, 16) + plus(8), breg(RSP, 8) + b"\x08\x10\x22"]
)
def test_cfa_expression_that_is_a_sum_is_an_ordinary_rule(code: bytes) -> None:
    assert program_rows(def_cfa_expression(code)) == [(0, "rsp+24 u c-8")]


def test_cfa_saved_on_the_stack() -> None:
    got = only_rule(def_cfa_expression(breg(RSP, 152) + DEREF + plus(8)) + offset(RBP, 3))
    assert got == ("AT_SP", "AT_CFA", "BELOW_CFA", 0, 0, 152, -24, 8)
    assert only_rule(def_cfa_expression(breg(RSP, 0) + DEREF + b"\x38\x1c"))[-3:] == (0, 0, -8)  # lit8, minus


def test_cfa_of_a_realigned_frame() -> None:
    got = only_rule(def_cfa_expression(breg(RBP, -8) + DEREF) + expression(RBP, breg(RBP, 0)))
    assert got == ("AT_FP", "AT_FP", "BELOW_CFA", 0, 0, -8, 0, 0)


@pytest.mark.parametrize("threshold", range(16))
def test_procedure_linkage_table_with_any_threshold(threshold: int) -> None:
    code = PLT[:6] + bytes([0x30 + threshold]) + PLT[7:]
    assert only_rule(def_cfa_expression(code)) == ("PLT", "SAME", "BELOW_CFA", 0, 0, 8, 0, threshold)


@pytest.mark.parametrize("at", range(len(PLT)))
def test_procedure_linkage_table_of_another_form_is_unsupported(at: int) -> None:
    code = bytearray(PLT)
    code[at] ^= 0x40
    assert program_rows(def_cfa_expression(bytes(code))) == [(0, "CFA by an expression of unknown form")]


@pytest.mark.parametrize(
    "code",
    [
        b"",
        PLUS,
        b"\x06",
        b"\x38" * 5,  # more constants than any rule needs
        breg(RSP, 0) + DEREF + DEREF,
        breg(RSP, 0) + breg(RBP, 0) + PLUS,
        breg(9, 0) + DEREF,
        breg(RSP, 8)
        + breg(9, 0)
        + b"\x38\x1e\x22\x06"
        + plus(8),  # *(rsp + 8 + r9 * 8) + 8, as OpenSSL has it
        breg(RSP, 1 << 31),
        breg(RSP, 0x7FFFFFFF) + plus(1),
        b"\x38",  # a constant
        b"\x92\xfe\x01\x00",  # register 254
        b"\x77",  # cut off
    ],
)
def test_cfa_by_any_other_expression_is_unsupported(code: bytes) -> None:
    assert program_rows(def_cfa_expression(code)) == [(0, "CFA by an expression of unknown form")]


def test_frame_pointer_by_another_expression_leaves_the_rest_good() -> None:
    frames = Frames()
    frames.fde(frames.cie(), START, 16, expression(RBP, breg(0, 0)))
    rows = rows_of(frames)
    assert rows.rule(rows.numbers[0])[:3] == ("SP", "UNSUPPORTED", "BELOW_CFA")
    assert rows.unsupported == {"frame pointer by an expression of unknown form": 1}


def test_expressions_of_registers_may_begin_with_the_cfa() -> None:
    assert program_rows(expression(RBP, b"\x40\x1c")) == [(0, "rsp+8 c-16 c-8")]  # lit16, minus
    assert program_rows(val_expression(RBP, b"\x40\x1c")) == [(0, "rsp+8 v-16 c-8")]
    assert only_rule(val_expression(RBP, breg(RBP, 8) + DEREF))[1] == "AT_FP"


def test_return_address_by_an_expression_is_unsupported() -> None:
    assert program_rows(expression(RIP, breg(RSP, 8))) == [
        (0, "return address by an expression of unknown form")
    ]


def test_register_ends_a_cfa_by_expression_and_an_offset_does_not() -> None:
    program = def_cfa_expression(PLT) + def_cfa_offset(16) + advance(1) + def_cfa_register(RSP)
    assert program_rows(program) == [(0, "exp u c-8"), (1, "rsp+16 u c-8")]


def test_cfa_and_return_address_that_do_not_fit_one_rule() -> None:
    program = def_cfa_expression(breg(RSP, 0) + DEREF + plus(8)) + register(RIP, 5)
    assert program_rows(program) == [(0, "CFA and return address too special for one rule")]


def test_signal_trampoline() -> None:
    frames = Frames()
    cie = frames.cie(letters=b"zRS")
    program = def_cfa_expression(breg(RSP, 160) + DEREF)
    program += b"".join(expression(reg, breg(RSP, 40 + 8 * reg)) for reg in (8, 9, 3))
    program += (
        expression(RBP, breg(RSP, 120)) + expression(RSP, breg(RSP, 160)) + expression(RIP, breg(RSP, 168))
    )
    frames.fde(cie, START, 16, program)
    rows = rows_of(frames)
    assert rows.rule(rows.numbers[0]) == ("CONTEXT", "AT_SP", "AT_SP", SIGNAL_FRAME, 0, 160, 120, 168)


# What cannot be decoded


@pytest.mark.parametrize("op", [0x17, 0x1C, 0x2B, 0x2C, 0x2D, 0x30, 0x3F])
def test_unknown_instruction_is_unsupported_up_to_the_end_of_the_function(op: int) -> None:
    program = advance(4) + bytes([op]) + advance(4) + def_cfa_offset(16)
    assert program_rows(program) == [FIRST, (4, "unknown call frame instruction")]


@pytest.mark.parametrize(
    "program", [b"\x0c\x07", b"\x0e", b"\x02", b"\x04\x01\x00", b"\x0f\x05\x77", b"\x0e\x80\x80"]
)
def test_instruction_cut_off_is_unsupported(program: bytes) -> None:
    # Padded with bytes that go on, so that the entry's end cuts.
    body = program + b"\x80" * (-(len(program) + 13) % 8) if program == b"\x0e\x80\x80" else program
    frames = Frames()
    cie = frames.cie()
    padding = -(4 + 8 + 1 + len(body)) % 8  # pad in front instead of behind
    frames.fde(cie, START, 16, b"\0" * padding + body)
    assert shown(rows_of(frames))[0] == (START, "call frame instructions end early")


def test_advance_beyond_the_function_ends_it() -> None:
    assert program_rows(advance(0x100) + def_cfa_offset(16)) == [FIRST]
    assert program_rows(advance(0xFF) + def_cfa_offset(16)) == [FIRST, (0xFF, "rsp+16 u c-8")]


def test_function_without_a_cfa_is_unsupported() -> None:
    frames = Frames()
    frames.fde(frames.cie(initial=offset(RIP, 1)), START, 16)
    assert shown(rows_of(frames))[0] == (START, "no CFA stated")


def test_function_without_a_return_address_is_unsupported() -> None:
    frames = Frames()
    frames.fde(frames.cie(initial=def_cfa(RSP, 8)), START, 16)
    assert shown(rows_of(frames))[0] == (START, "no return address stated")
