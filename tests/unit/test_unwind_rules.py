# SPDX-License-Identifier: Apache-2.0
"""One step by an unwind rule (bpf/unwind.h, host build) over hand-made stacks; rules: csrc/pyprof_rules.h."""

import struct

import pytest
from pyprof._native._libbpf import ffi, lib

from pyprof._native.cfi import CFA_NAMES, FP_NAMES, RA_NAMES
from tests.support.stacks import SIGNAL, rule
from tests.support.steps import (
    BASE,
    COMPLETE,
    FP,
    LOST,
    ORDER,
    RETURN,
    SIZE,
    SP,
    UNREADABLE,
    UNSUPPORTED,
    Frame,
    caller,
    step,
)


def test_a_cfa_by_the_stack_pointer_is_the_callers_stack_pointer() -> None:
    assert step(rule("SP", 0x18), Frame(), {SP + 0x10: RETURN}) == caller(SP + 0x18)


def test_a_cfa_by_the_frame_pointer_is_the_callers_stack_pointer() -> None:
    applied = rule("FP", 16, fp="AT_CFA", fp_offset=-16)
    assert step(applied, Frame(), {FP: 0x1234, FP + 8: RETURN}) == caller(FP + 16, 0x1234)


def test_a_cfa_by_a_lost_frame_pointer_is_none() -> None:
    assert step(rule("FP", 16), Frame(fp=None), {FP + 8: RETURN}) == LOST


@pytest.mark.parametrize("register", [0, 3, 10, 15])
def test_a_cfa_by_another_register_is_that_registers(register: int) -> None:
    applied = rule("REGISTER", 0x10, register=register)
    frame = Frame(registers={number: SP + 0x80 if number == register else 1 for number in range(16)})
    assert step(applied, frame, {SP + 0x88: RETURN}) == caller(SP + 0x90)


def test_a_cfa_by_another_register_with_the_return_address_elsewhere_is_that_registers() -> None:
    applied = rule("REGISTER", 0, register=10, ra="AT_CFA", other=0x20)
    assert step(applied, Frame(registers={10: SP + 0x80}), {SP + 0xA0: RETURN}) == caller(SP + 0x80)


def test_a_cfa_by_a_register_that_is_not_known_any_more_is_lost() -> None:
    assert step(rule("REGISTER", 0x10, register=3), Frame(registers=None), {SP + 8: RETURN}) == LOST


def test_a_cfa_that_is_saved_on_the_stack_is_read_there() -> None:
    applied = rule("AT_SP", 0x20, other=8)
    assert step(applied, Frame(), {SP + 0x20: SP + 0x40, SP + 0x40: RETURN}) == caller(SP + 0x48)


def test_a_cfa_that_is_saved_in_the_frame_is_read_there() -> None:
    # A function that realigns its stack: the old stack pointer lies just below the frame pointer.
    applied = rule("AT_FP", -8, fp="AT_FP")
    stack = {FP - 8: FP + 0x20, FP: 0x9999, FP + 0x18: RETURN}
    assert step(applied, Frame(), stack) == caller(FP + 0x20, 0x9999)


def test_a_cfa_that_is_saved_where_nothing_can_be_read_is_none() -> None:
    assert step(rule("AT_SP", SIZE), Frame(), {}) == UNREADABLE
    assert step(rule("AT_FP", SIZE), Frame(), {}) == UNREADABLE
    assert step(rule("AT_FP", 0), Frame(fp=None), {}) == LOST


@pytest.mark.parametrize("byte", range(16))
def test_in_an_entry_of_the_plt_the_cfa_moves_with_the_push(byte: int) -> None:
    # ld's entry: a jump of 6 bytes, a push of 5, a jump; behind the push 16 bytes lie on the stack.
    above = 16 if byte >= 11 else 8
    frame = Frame(pc=0x401020 + byte)
    assert step(rule("PLT", 8, other=11), frame, {SP + above - 8: RETURN}) == caller(SP + above)


def test_a_signal_frame_is_left_by_the_context_that_the_kernel_saved() -> None:
    applied = rule(
        "CONTEXT", 160, fp="AT_SP", fp_offset=120, ra="AT_SP", other=168, flags=SIGNAL
    )  # as glibc states it for __restore_rt
    stack = {SP + 160: 0x7000, SP + 120: 0x7100, SP + 168: RETURN}
    # The handler may run on a stack of its own, so the interrupted frame may lie anywhere.
    assert step(applied, Frame(fp=None, registers=None), stack) == caller(0x7000, 0x7100, exact=True)


@pytest.mark.parametrize("missing", [160, 120, 168])
def test_a_context_that_cannot_be_read_whole_is_none(missing: int) -> None:
    offsets = {160: 0x10, 120: 0x18, 168: 0x20}
    offsets[missing] = SIZE
    applied = rule(
        "CONTEXT", offsets[160], fp="AT_SP", fp_offset=offsets[120], ra="AT_SP", other=offsets[168]
    )
    assert step(applied, Frame(), {}) == UNREADABLE


@pytest.mark.parametrize("fp", [FP, None])
def test_a_frame_pointer_that_is_the_same_stays_known_or_lost(fp: int | None) -> None:
    assert step(rule("SP", 8), Frame(fp=fp), {SP: RETURN}) == caller(SP + 8, fp)


@pytest.mark.parametrize(
    "ra",
    [
        rule("SP", 0x20, fp="AT_CFA", fp_offset=-16),
        rule("SP", 0x20, fp="AT_CFA", fp_offset=-16, ra="AT_CFA", other=-8),
    ],
)
def test_a_frame_pointer_saved_next_to_the_return_address_is_read_with_it(ra: bytes) -> None:
    # Two ways to say the same: the first is read at one go.
    assert step(ra, Frame(fp=None), {SP + 0x10: 77, SP + 0x18: RETURN}) == caller(SP + 0x20, 77)


def test_a_frame_pointer_saved_elsewhere_below_the_cfa_is_read_there() -> None:
    applied = rule("SP", 0x20, fp="AT_CFA", fp_offset=-24)
    assert step(applied, Frame(fp=None), {SP + 8: 77, SP + 0x18: RETURN}) == caller(SP + 0x20, 77)


def test_a_frame_pointer_saved_by_the_stack_pointer_is_read_there() -> None:
    applied = rule("SP", 0x20, fp="AT_SP", fp_offset=8)
    assert step(applied, Frame(fp=None), {SP + 8: 77, SP + 0x18: RETURN}) == caller(SP + 0x20, 77)


def test_a_frame_pointer_saved_by_a_lost_one_is_lost_and_the_walk_goes_on() -> None:
    applied = rule("SP", 0x20, fp="AT_FP", fp_offset=0)
    assert step(applied, Frame(fp=None), {SP + 0x18: RETURN}) == caller(SP + 0x20, None)


def test_a_frame_pointer_relative_to_the_cfa_is_computed() -> None:
    applied = rule("SP", 0x20, fp="IS_CFA", fp_offset=-0x10)
    assert step(applied, Frame(fp=None), {SP + 0x18: RETURN}) == caller(SP + 0x20, SP + 0x10)


@pytest.mark.parametrize(("registers", "fp"), [({12: 0x4242}, 0x4242), (None, None)])
def test_a_frame_pointer_in_a_register_is_known_where_registers_are(
    registers: dict[int, int] | None, fp: int | None
) -> None:
    applied = rule("SP", 0x20, fp="IN_REGISTER", fp_offset=12)
    assert step(applied, Frame(registers=registers), {SP + 0x18: RETURN}) == caller(SP + 0x20, fp)


@pytest.mark.parametrize("fp", ["UNDEFINED", "UNSUPPORTED"])
def test_a_frame_pointer_that_is_lost_does_not_end_the_walk(fp: str) -> None:
    applied = rule("SP", 0x20, fp=fp, fp_offset=4)
    assert step(applied, Frame(), {SP + 0x18: RETURN}) == caller(SP + 0x20, None)


def test_a_return_address_elsewhere_is_read_by_its_offset_from_the_cfa() -> None:
    applied = rule("SP", 0x10, ra="AT_CFA", other=-16)
    assert step(applied, Frame(), {SP: RETURN}) == caller(SP + 0x10)


def test_a_return_address_in_a_register_leaves_the_stack_pointer_as_it_is() -> None:
    # vfork pops its return address: the caller's stack pointer is the callee's.
    applied = rule("SP", 0, ra="IN_REGISTER", other=5)
    assert step(applied, Frame(registers={5: RETURN}), {}) == caller(SP)


def test_a_return_address_in_a_register_that_is_not_known_is_lost() -> None:
    assert step(rule("SP", 0, ra="IN_REGISTER", other=5), Frame(registers=None), {}) == LOST


@pytest.mark.parametrize("cfa", ["NONE", "SP", "FP", "REGISTER", "UNSUPPORTED", "CONTEXT"])
def test_no_return_address_is_the_outermost_frame_whatever_the_cfa(cfa: str) -> None:
    assert step(rule(cfa, 16, ra="UNDEFINED"), Frame(fp=None, registers=None), {}) == COMPLETE


@pytest.mark.parametrize(
    "applied",
    [
        rule("SP", 8),
        rule("SP", 8, ra="AT_CFA", other=-8),
        rule("FP", 16, fp="AT_CFA", fp_offset=-16),
    ],
)
def test_a_return_address_of_0_is_the_end_of_a_complete_stack(applied: bytes) -> None:
    assert step(applied, Frame(), {}) == COMPLETE


@pytest.mark.parametrize(
    "applied",
    [
        rule("UNSUPPORTED", 0, other=2),
        rule("NONE", 0),
        rule("SP", 8, ra="AT_SP"),  # only in a context
        rule("SP", 8, ra="LINK"),  # x86-64 has no such register
    ],
)
def test_a_rule_that_cannot_be_applied_is_never_the_end_of_a_complete_stack(applied: bytes) -> None:
    assert step(applied, Frame(registers={}), {}) == UNSUPPORTED


def test_kinds_that_do_not_exist_end_the_walk_or_lose_a_register() -> None:
    for cfa in range(len(CFA_NAMES), 256):
        assert step(bytes([cfa]) + rule()[1:], Frame(), {SP: RETURN}) == UNSUPPORTED
    for fp in range(len(FP_NAMES), 256):
        applied = rule()
        assert step(applied[:1] + bytes([fp]) + applied[2:], Frame(), {SP: RETURN}) == caller(SP + 8, None)
    for ra in range(len(RA_NAMES), 16):
        applied = rule()
        assert step(applied[:2] + bytes([ra]) + applied[3:], Frame(), {SP: RETURN}) == UNSUPPORTED


@pytest.mark.parametrize(
    ("applied", "frame"),
    [
        (rule("SP", -8), Frame()),
        (rule("FP", 16), Frame(fp=SP - 0x40)),
        (rule("REGISTER", 8, register=10), Frame(registers={10: SP - 0x10})),
        (rule("AT_SP", 0, other=0), Frame()),  # reads SP - 8
        (rule("SP", 16), Frame(sp=2**64 - 8)),  # wraps around
    ],
)
def test_a_cfa_below_the_stack_pointer_is_out_of_order(applied: bytes, frame: Frame) -> None:
    assert step(applied, frame, {SP: SP - 8, SP - 0x18: RETURN}) == ORDER


def test_a_cfa_equal_to_the_stack_pointer_is_in_order() -> None:
    assert step(rule("SP", 0), Frame(), {SP - 8: RETURN}) == caller(SP)


@pytest.mark.parametrize("offset", [0x7FFFFFF8, 0x12345678])
def test_offsets_have_32_bits(offset: int) -> None:
    far = {BASE + offset - 8: RETURN}
    assert step(rule("SP", offset), Frame(sp=BASE), far, base=BASE + offset - 0x40, size=0x40) == caller(
        BASE + offset
    )
    low = BASE - offset
    applied = rule("SP", 8, fp="AT_CFA", fp_offset=-offset - 8, ra="AT_CFA", other=-offset)
    found = step(applied, Frame(sp=BASE), {low: 77, low + 8: RETURN}, base=low, size=0x10)
    assert found == caller(BASE + 8, 77)


@pytest.mark.parametrize(
    "applied",
    [
        rule("SP", SIZE - 0x100 + 8),  # the word behind the last
        rule("SP", SIZE - 0x100 + 1),  # half of it in the slice
        rule("SP", 0x7FFFFFFF),
        rule("SP", 8, ra="AT_CFA", other=-0x7FFFFFFF),
        rule("SP", 8, fp="AT_CFA", fp_offset=SIZE),
        rule("SP", SIZE - 0x100 + 8, fp="AT_CFA", fp_offset=-16),
        rule("FP", 16, fp="AT_FP", fp_offset=SIZE),
        rule("SP", 8, fp="AT_SP", fp_offset=-0x108),
    ],
)
def test_a_read_outside_of_the_slice_is_unreadable(applied: bytes) -> None:
    assert step(applied, Frame(), {SP: RETURN, FP + 8: RETURN}) == UNREADABLE


def test_the_last_word_of_the_slice_is_read() -> None:
    last = BASE + SIZE - 8
    assert step(rule("SP", last + 8 - SP), Frame(), {last: RETURN}) == caller(BASE + SIZE)


def test_an_empty_slice_is_unreadable() -> None:
    assert step(rule(), Frame(), {}, size=0) == UNREADABLE


def test_the_caller_of_a_signal_frame_is_where_it_was_interrupted() -> None:
    assert step(rule("SP", 8, flags=SIGNAL), Frame(), {SP: RETURN}) == caller(SP + 8, exact=True)


@pytest.mark.parametrize(("exact", "address"), [(True, 0x401000), (False, 0x400FFF)])
def test_a_return_address_is_looked_up_one_byte_before(exact: bool, address: int) -> None:
    regs = ffi.new("struct pyprof_host_regs *", {"pc": 0x401000, "exact": exact})
    assert lib.pyprof_unwind_lookup_pc(regs) == address


def page(offsets: list[int], at: int) -> tuple[bytes, bytes]:
    """struct pyprof_page, and a chunk in which its rows lie; a row's rule is its number, plus one."""
    starts = [max(i for i, offset in enumerate(offsets) if offset <= part << 12) for part in range(16)]
    rows = struct.pack(f"<{len(offsets)}H", *offsets)
    rules = struct.pack(f"<{len(offsets)}H", *((i + 1) & 0xFFFF for i in range(len(offsets))))
    chunk = bytearray(b"\xff" * lib.PYPROF_CHUNK_BYTES)
    chunk[at : at + 4 * len(offsets)] = rows + rules
    return struct.pack("<IHH16H", at, 0, len(offsets) - 1, *starts), bytes(chunk)


@pytest.mark.parametrize(
    "offsets",
    [
        [0],
        [0, 65535],
        [0, 4095, 4096, 4097],
        list(range(0, 65536, 4096)),
        list(range(4096)),  # one part full
        [0, *range(61440, 65536)],  # the last one
        list(range(0, 65536, 16)),  # 256 rows a part
        list(range(0, 65536, 13)),
        list(range(65536)),  # a row a byte
    ],
)
@pytest.mark.parametrize("in_chunk", ["start", "end"])
def test_the_row_that_holds_is_found_for_every_byte(offsets: list[int], in_chunk: str) -> None:
    size = (4 * len(offsets) + 63) // 64 * 64
    entry, chunk = page(offsets, 0 if in_chunk == "start" else int(lib.PYPROF_CHUNK_BYTES) - size)
    row = 0
    memory, kept = ffi.from_buffer(chunk), ffi.from_buffer(entry)
    for offset in range(65536):
        row += row + 1 < len(offsets) and offsets[row + 1] <= offset
        assert lib.pyprof_unwind_rule_number(kept, memory, offset) == (row + 1) & 0xFFFF
