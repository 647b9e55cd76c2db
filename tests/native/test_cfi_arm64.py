# SPDX-License-Identifier: Apache-2.0
"""Call frame information of arm64: hand-made bytes, as GCC writes them."""

from pyprof._native.cfi import SIGNAL_FRAME, SIGNED
from tests.support.dwarf import (
    REMEMBER,
    RESTORE,
    advance,
    def_cfa,
    def_cfa_offset,
    def_cfa_register,
    offset,
    restore,
)
from tests.support.unwind_rows import EM_AARCH64, START, arm64_rows, shown


def test_arm64_function_with_a_frame_record() -> None:
    # stp x29, x30, [sp, -32]!; mov x29, sp; ...; ldp x29, x30, [sp], 32; ret
    program = (
        advance(1) + def_cfa_offset(32) + offset(29, 4) + offset(30, 3) + advance(1) + def_cfa_register(29)
    )
    program += advance(8) + restore(30) + restore(29) + def_cfa(31, 0)
    rows = arm64_rows(program)
    assert shown(rows, EM_AARCH64) == [
        (START, "sp+0 u x30"),
        (START + 4, "sp+32 c-32 c-24"),
        (START + 8, "x29+32 c-32 c-24"),
        (START + 40, "sp+0 u x30"),
        (START + 0x100, "-"),
    ]
    assert rows.rule(rows.numbers[0])[2] == "LINK"


def test_arm64_frame_above_64_kib_has_its_record_at_the_bottom() -> None:
    rows = arm64_rows(def_cfa_offset(65584) + offset(29, 8198) + offset(30, 8197))
    assert shown(rows, EM_AARCH64)[0] == (START, "sp+65584 c-65584 c-65576")


def test_arm64_signed_return_address_is_flagged_and_remembered() -> None:
    rows = arm64_rows(advance(1) + b"\x2d" + REMEMBER + advance(1) + b"\x2d" + advance(1) + RESTORE, b"zRB")
    flags = [rows.rule(number)[3] for number in rows.numbers]
    assert flags == [0, SIGNED, 0, SIGNED, 0]
    assert list(rows.addresses) == [START + at for at in (0, 4, 8, 12, 0x100)]


def test_arm64_probed_stack_has_cfa_by_a_scratch_register_and_return_address_in_the_link_register() -> None:
    rows = arm64_rows(def_cfa(12, 65536))
    assert shown(rows, EM_AARCH64)[0] == (START, "x12+65536 u x30")


def test_arm64_signal_trampoline_leads_to_the_saved_context() -> None:
    # The kernel's own: CFA x29, its frame record there. struct rt_sigframe: siginfo 128 bytes, ucontext's
    # mcontext at 176 with fault_address, regs[31], sp, pc.
    rows = arm64_rows(def_cfa(29, 0) + offset(29, 0) + offset(30, -1), b"zRS")
    assert rows.rule(rows.numbers[0]) == (
        "CONTEXT", "AT_SP", "AT_SP", SIGNAL_FRAME, 0,
        128 + 176 + 8 + 8 * 31, 128 + 176 + 8 + 8 * 29, 128 + 176 + 8 + 8 * 32,
    )  # fmt: skip
