# SPDX-License-Identifier: Apache-2.0
"""Rows from Go's program counter table, by hand: prologues of all releases, switches of stacks, ends."""

import pytest

from pyprof._native.cfi import SIGNAL_FRAME, STACK_SWITCH, rows_of_go
from pyprof.errors import ElfError
from tests.support.dwarf import Frames, def_cfa_offset
from tests.support.gotable import (
    GO_1_12,
    GO_1_17,
    GO_1_18,
    GO_1_20,
    STACK_WRITE,
    TEXT,
    TOP_FRAME,
    Go,
    Layout,
    go_rows,
    shown,
    table,
)
from tests.support.unwind_rows import EM_AARCH64, rows_of

PUSH_RBP, MOV_RSP_RBP, POP_RBP, RET, NOP = b"\x55", b"\x48\x89\xe5", b"\x5d", b"\xc3", b"\x90"
SUB_16, ADD_16 = b"\x48\x83\xec\x10", b"\x48\x83\xc4\x10"
LOAD_RSP = b"\x48\x8b\x62\x38"  # mov 0x38(%rdx),%rsp

AT_ENTRY = ("SP", 8, "SAME", 0, "BELOW_CFA", 0)


def framed(distance: int, flags: int = 0) -> tuple[str, int, str, int, str, int]:
    return "SP", distance + 8, "AT_CFA", -16, "BELOW_CFA", flags


def frameless(distance: int) -> tuple[str, int, str, int, str, int]:
    return "SP", distance + 8, "UNDEFINED", 0, "BELOW_CFA", 0


SWITCHED = ("FP", 16, "AT_CFA", -16, "BELOW_CFA", STACK_SWITCH)

# push %rbp; mov %rsp,%rbp; sub $16,%rsp; nop; add $16,%rsp; pop %rbp; ret
FRAME = PUSH_RBP + MOV_RSP_RBP + SUB_16 + NOP + ADD_16 + POP_RBP + RET
FRAME_STEPS = ((0, 0), (1, 8), (8, 24), (13, 8), (14, 0))
FRAME_ROWS = [(0, AT_ENTRY), (1, framed(8)), (8, framed(24)), (13, framed(8)), (14, AT_ENTRY)]


@pytest.mark.parametrize("layout", [GO_1_12, GO_1_17, GO_1_18, GO_1_20])
def test_function_with_a_frame_has_rows_by_the_stack_pointer(layout: Layout) -> None:
    rows = go_rows([Go(FRAME, FRAME_STEPS)], layout)
    assert rows == [*FRAME_ROWS, (15, "NONE")]


def test_leaf_without_a_frame_has_its_return_address_at_the_stack_pointer() -> None:
    assert go_rows([Go(NOP + RET)]) == [(0, AT_ENTRY), (2, "NONE")]


def test_stack_check_before_the_frame_needs_no_rows_of_its_own() -> None:
    # cmp 0x10(%r14),%rsp; jbe; FRAME; then, where it returned from: call; jmp
    code = b"\x49\x3b\x66\x10\x76\x41" + FRAME + b"\xe8\0\0\0\0\xeb\xe4"
    steps = ((0, 0), *((offset + 6, distance) for offset, distance in FRAME_STEPS[1:]))
    expected = [(offset + 6 if offset else 0, rule) for offset, rule in FRAME_ROWS]
    # jbe's distance is 0x41: with the push behind it might be push %r13.
    assert go_rows([Go(code, steps)]) == [*expected, (len(code), "NONE")]


@pytest.mark.parametrize(
    ("store", "size"),
    [(b"\x48\x89\x2c\x24", 8), (b"\x48\x89\x6c\x24\x10", 24), (b"\x48\x89\xac\x24\xf8\x01\0\0", 512)],
)
def test_frame_pointer_is_unchanged_until_older_releases_have_stored_it(store: bytes, size: int) -> None:
    # sub $size,%rsp; mov %rbp,size-8(%rsp); nop; ret
    code = b"\x48\x81\xec" + size.to_bytes(4, "little") + store + NOP + RET
    rows = go_rows([Go(code, ((0, 0), (7, size)))])
    assert rows == [
        (0, AT_ENTRY),
        (7, ("SP", size + 8, "SAME", 0, "BELOW_CFA", 0)),
        (7 + len(store), framed(size)),
        (len(code), "NONE"),
    ]


@pytest.mark.parametrize("push", [b"\x53", b"\x90\x41\x55"], ids=["rbx", "r13"])
def test_frame_pointer_is_unknown_where_the_frame_does_not_hold_it(push: bytes) -> None:
    rows = go_rows([Go(push + NOP + b"\x5b" + RET, ((0, 0), (len(push), 8), (len(push) + 2, 0)))])
    assert rows[:3] == [(0, AT_ENTRY), (len(push), frameless(8)), (len(push) + 2, AT_ENTRY)]


@pytest.mark.parametrize(
    ("pop", "register"), [(b"\x41\x5c", 12), (b"\x41\x59", 9), (b"\x5b", 3), (b"\x5e", 4)]
)
def test_popped_return_address_is_in_its_register(pop: bytes, register: int) -> None:
    # As syscall.rawVforkSyscall does: pop; syscall; push %r12; ret
    size = len(pop)
    code = pop + b"\x0f\x05" + b"\x41\x54" + RET
    rows = rows_of_go(**table([Go(code, ((0, 0), (size, -8), (size + 4, 0)))]))
    assert rows.rule(rows.numbers[1])[:3] == ("SP", "SAME", "IN_REGISTER")
    assert rows.rule(rows.numbers[1])[5:] == (0, 0, register)
    assert list(rows.addresses) == [TEXT, TEXT + size, TEXT + size + 4, TEXT + len(code)]


def test_stack_pointer_above_the_return_address_is_no_rule_unless_it_was_popped() -> None:
    rows = go_rows([Go(b"\x48\x83\xc4\x08" + NOP * 4 + RET, ((0, 0), (4, -8), (8, 0)))])
    assert rows == [(0, AT_ENTRY), (4, "UNSUPPORTED"), (8, AT_ENTRY), (9, "NONE")]


@pytest.mark.parametrize(
    ("name", "flags", "layout"),
    [
        ("runtime.goexit", 0, GO_1_12),
        ("runtime.mstart", 0, GO_1_17),
        ("main.f", TOP_FRAME, GO_1_17),
        ("main.f", TOP_FRAME, GO_1_18),
        ("main.f", TOP_FRAME | STACK_WRITE, GO_1_20),
    ],
)
def test_outermost_function_ends_the_stack(name: str, flags: int, layout: Layout) -> None:
    assert go_rows([Go(FRAME, FRAME_STEPS, name, flags)], layout) == [(0, "END"), (15, "NONE")]


def test_signal_handler_leads_on_to_its_trampoline_though_it_is_flagged_as_outermost() -> None:
    rows = go_rows([Go(FRAME, FRAME_STEPS, "runtime.sigtramp", TOP_FRAME)])
    assert rows == [*FRAME_ROWS, (15, "NONE")]


@pytest.mark.parametrize("name", ["runtime.sigreturn", "runtime.sigreturn__sigaction"])
def test_trampoline_has_the_context_of_the_signal_from_one_byte_before_on(name: str) -> None:
    # mov $15,%rax; syscall; int3
    code = b"\x48\xc7\xc0\x0f\0\0\0\x0f\x05\xcc"
    context = ("CONTEXT", 160, "AT_SP", 120, "AT_SP", SIGNAL_FRAME)
    after_a_gap = go_rows([Go(NOP + RET), Go(code, name=name)])
    assert after_a_gap == [(0, AT_ENTRY), (15, context), (26, "NONE")]
    without = go_rows([Go(NOP * 15 + RET), Go(code, name=name)])
    assert without == [(0, AT_ENTRY), (15, context), (26, "NONE")]
    assert go_rows([Go(code, name=name)]) == [(0, context), (10, "NONE")]


@pytest.mark.parametrize("name", ["runtime.sigpanic", "runtime.asyncPreempt", "runtime.debugCallV2"])
def test_call_that_a_signal_made_up_returns_to_an_exact_address(name: str) -> None:
    rows = go_rows([Go(FRAME, FRAME_STEPS, name)])
    assert {rule[-1] for _, rule in rows[:-1]} == {SIGNAL_FRAME}


# push %rbp; mov %rsp,%rbp; mov 0x38(%rdx),%rsp; nop; mov 0x38(%rdx),%rsp; pop %rbp; ret
SWITCHING = PUSH_RBP + MOV_RSP_RBP + LOAD_RSP + NOP + LOAD_RSP + POP_RBP + RET
SWITCHING_STEPS = ((0, 0), (1, 8), (14, 0))


@pytest.mark.parametrize(("flags", "layout"), [(STACK_WRITE, GO_1_20), (STACK_WRITE, GO_1_17), (0, GO_1_12)])
def test_frame_is_found_by_frame_pointer_once_the_stack_pointer_leads_elsewhere(
    flags: int, layout: Layout
) -> None:
    rows = go_rows([Go(SWITCHING, SWITCHING_STEPS, "runtime.systemstack", flags)], layout)
    # At the instruction itself it has not happened.
    assert rows == [(0, AT_ENTRY), (1, framed(8)), (5, SWITCHED), (14, AT_ENTRY), (15, "NONE")]


def test_same_code_without_the_flag_is_a_frame_like_others() -> None:
    rows = go_rows([Go(SWITCHING, SWITCHING_STEPS)])
    assert rows == [(0, AT_ENTRY), (1, framed(8)), (14, AT_ENTRY), (15, "NONE")]


def test_assembly_that_is_not_of_the_runtime_may_use_the_frame_pointer_for_other_things() -> None:
    rows = go_rows([Go(SWITCHING, SWITCHING_STEPS, "main.aligned", STACK_WRITE)])
    assert rows == [(0, AT_ENTRY), (1, framed(8)), (5, "UNSUPPORTED"), (14, AT_ENTRY), (15, "NONE")]


@pytest.mark.parametrize("name", ["runtime.mcall", "runtime.morestack", "runtime.clone"])
def test_switch_for_good_is_the_end_of_the_other_stack(name: str) -> None:
    rows = go_rows([Go(SWITCHING, SWITCHING_STEPS, name, STACK_WRITE)])
    assert rows == [(0, AT_ENTRY), (1, framed(8)), (5, "END"), (15, "NONE")]


def test_switch_without_a_frame_has_no_rule_behind_it() -> None:
    rows = rows_of_go(**table([Go(NOP + LOAD_RSP + b"\xff\xe3", name="gogo", flags=STACK_WRITE)]))
    assert shown(rows) == [(0, AT_ENTRY), (2, "UNSUPPORTED"), (7, "NONE")]
    assert rows.unsupported == {"stack pointer set to what is not stated": 1}


@pytest.mark.parametrize(
    "write",
    [
        b"\x48\x89\xf4",  # mov %rsi,%rsp
        b"\x4c\x89\xe4",  # mov %r12,%rsp
        b"\x48\x8b\xe3",  # mov %rbx,%rsp, the other way to write it
        b"\x49\x8b\x66\x08",  # mov 8(%r14),%rsp
        b"\x48\x83\xe4\xf0",  # and $-16,%rsp
        b"\x48\x81\xe4\xc0\xff\xff\xff",  # and $-64,%rsp
        b"\x48\x83\xec\x10",  # sub $16,%rsp, which the table does not know of
        b"\x48\x8d\x64\x24\xf0",  # lea -16(%rsp),%rsp
        b"\x48\x29\xc4",  # sub %rax,%rsp
        b"\x48\x2b\xe0",  # sub %rax,%rsp, the other way to write it
        b"\x48\x87\xe0",  # xchg %rsp,%rax
    ],
)
def test_every_way_to_set_the_stack_pointer_is_noticed(write: bytes) -> None:
    rows = go_rows([Go(NOP + write + RET, name="f", flags=STACK_WRITE)])
    assert rows[:2] == [(0, AT_ENTRY), (2, "UNSUPPORTED")]


@pytest.mark.parametrize(
    "other",
    [
        b"\x48\x89\xe3",  # mov %rsp,%rbx
        b"\x49\x89\xdc",  # mov %rbx,%r12
        b"\x4c\x8b\x60\x08",  # mov 8(%rax),%r12
        b"\x48\x83\xfc\x10",  # cmp $16,%rsp
        b"\x48\x39\xc4",  # cmp %rax,%rsp
        b"\x48\x89\x04\x24",  # mov %rax,(%rsp)
        b"\x49\x83\xec\x10",  # sub $16,%r12
    ],
)
def test_other_uses_of_the_stack_pointer_set_nothing(other: bytes) -> None:
    code = NOP + other + RET
    assert go_rows([Go(code, name="f", flags=STACK_WRITE)]) == [(0, AT_ENTRY), (len(code), "NONE")]


def test_frame_that_the_table_knows_of_sets_nothing() -> None:
    rows = go_rows([Go(FRAME, FRAME_STEPS, "runtime.f", STACK_WRITE)])
    assert rows == [*FRAME_ROWS, (15, "NONE")]


def test_padding_between_functions_has_no_rows_but_a_gap_has() -> None:
    near = go_rows([Go(NOP + RET), Go(NOP + RET)])
    assert near == [(0, AT_ENTRY), (18, "NONE")]
    far = rows_of_go(**table([Go(NOP + RET), Go(NOP + RET)], align=64))
    assert shown(far) == [(0, AT_ENTRY), (2, "NONE"), (64, AT_ENTRY), (66, "NONE")]


def test_c_code_has_the_rows_of_its_call_frame_information() -> None:
    frames = Frames()
    frames.fde(frames.cie(), TEXT + 16, 8, def_cfa_offset(48))
    functions = [Go(NOP + RET), Go(NOP * 12 + RET, ()), Go(NOP + RET)]
    rows = shown(rows_of_go(**table(functions), other=rows_of(frames)))
    c_code = ("SP", 48, "SAME", 0, "BELOW_CFA", 0)
    assert rows == [(0, AT_ENTRY), (16, c_code), (24, "UNSUPPORTED"), (32, AT_ENTRY), (34, "NONE")]


STR_LR, STUR_FP, MOV_SP = b"\xfe\x0f\x1e\xf8", b"\xfd\x83\x1f\xf8", b"\x1f\x00\x00\x91"
ARM_NOP, ARM_RET = b"\x1f\x20\x03\xd5", b"\xc0\x03\x5f\xd6"


def test_arm64_saves_the_link_register_first_and_the_frame_pointer_next() -> None:
    # str x30,[sp,#-32]!; stur x29,[sp,#-8]; nop; ret
    code = STR_LR + STUR_FP + ARM_NOP + ARM_RET
    arguments = table([Go(code, ((0, 0), (4, 32), (12, 0)))], quantum=4)
    rows = rows_of_go(**(arguments | {"machine": EM_AARCH64}))
    rules = [rows.rule(number) for number in rows.numbers]
    assert [address - TEXT for address in rows.addresses] == [0, 4, 8, 12, 16]
    assert rules[0] == rules[3] == ("SP", "SAME", "LINK", 0, 0, 0, 0, 0)
    assert rules[1] == ("SP", "SAME", "AT_CFA", 0, 0, 32, 0, -32)
    assert rules[2] == ("SP", "AT_CFA", "AT_CFA", 0, 0, 32, -40, -32)


def test_arm64_finds_the_frame_by_frame_pointer_after_a_switch() -> None:
    # The same with mov sp, x0: from there on x29 is 8 below the frame's stack pointer.
    code = STR_LR + STUR_FP + MOV_SP + ARM_NOP + ARM_RET
    function = Go(code, ((0, 0), (4, 16), (16, 0)), "runtime.systemstack", STACK_WRITE)
    rows = rows_of_go(**(table([function], quantum=4) | {"machine": EM_AARCH64}))
    switched = rows.rule(rows.numbers[rows.find(TEXT + 12)])
    assert switched == ("FP", "AT_CFA", "AT_CFA", STACK_SWITCH, 0, 24, -24, -16)


def test_other_machines_are_refused() -> None:
    with pytest.raises(ElfError):
        rows_of_go(**(table([Go(RET)]) | {"machine": 8}))
    with pytest.raises(ValueError, match="4 or 8"):
        rows_of_go(**(table([Go(RET)]) | {"width": 2}))
