# SPDX-License-Identifier: Apache-2.0
"""Rows of signal trampolines that no call frame information covers."""

from array import array

import pytest

from pyprof._native.cfi import SIGNAL_FRAME, UnwindRows
from tests.support.dwarf import Frames, def_cfa
from tests.support.unwind_rows import EM_AARCH64, EM_X86_64, shown

SIGNAL = "exp exp exp"
PLAIN = "rsp+8 u c-8"


def rows(
    functions: list[tuple[int, int]], trampolines: list[int], machine: int = EM_X86_64, extra: bytes = b""
) -> UnwindRows:
    """Rows of functions, (start, end), and trampolines, one number after the other."""
    frames = Frames()
    cie = frames.cie(letters=b"zR")
    for start, end in functions:
        frames.fde(cie, start, end - start, extra)
    data = bytes(frames.data) if functions else b""
    return UnwindRows(data, frames.address, machine, trampolines=array("Q", trampolines))


def test_a_trampoline_without_any_information_has_a_row_from_one_byte_before() -> None:
    found = rows([], [0x1000, 0x1009])
    assert shown(found) == [(0xFFF, SIGNAL), (0x1009, "-")]
    # As glibc states it: offsets of rsp, rbp and rip in struct ucontext.
    assert found.rule(1) == ("CONTEXT", "AT_SP", "AT_SP", SIGNAL_FRAME, 0, 160, 120, 168)
    assert found.rules[16 + 2] >> 4 == 1  # rbx is saved beside


def test_a_trampoline_between_functions_is_told_apart_from_them() -> None:
    found = rows([(0x1000, 0x1010), (0x1020, 0x1030)], [0x1014, 0x101D])
    assert shown(found) == [
        (0x1000, PLAIN), (0x1010, "-"), (0x1013, SIGNAL), (0x101D, "-"), (0x1020, PLAIN), (0x1030, "-"),
    ]  # fmt: skip


def test_a_trampoline_next_to_functions_leaves_them_as_they_are() -> None:
    found = rows([(0x1000, 0x1010), (0x1019, 0x1030)], [0x1010, 0x1019])
    assert shown(found) == [(0x1000, PLAIN), (0x1010, SIGNAL), (0x1019, PLAIN), (0x1030, "-")]


@pytest.mark.parametrize("start", [0x0FF8, 0x1000, 0x1004, 0x1007, 0x100F])
def test_what_a_function_covers_is_the_functions(start: int) -> None:
    found = rows([(0x1000, 0x1010)], [start, start + 9])
    assert shown(found) == [(0x1000, PLAIN), (0x1010, "-")]


def test_trampolines_before_and_behind_all_functions_have_rows() -> None:
    found = rows([(0x1000, 0x1010)], [0x800, 0x809, 0x2000, 0x2007, 0x2007, 0x2010])
    assert shown(found) == [
        (0x7FF, SIGNAL), (0x809, "-"), (0x1000, PLAIN), (0x1010, "-"), (0x1FFF, SIGNAL), (0x2010, "-"),
    ]  # fmt: skip


def test_trampolines_stay_where_rows_are_made_twice() -> None:
    found = rows([(0x1000, 0x1010)], [0x800, 0x809], extra=def_cfa(3, 8))  # by rbx
    assert shown(found) == [(0x7FF, SIGNAL), (0x809, "-"), (0x1000, "rbx+8 u c-8"), (0x1010, "-")]


def test_arm64_trampoline_has_that_machines_context() -> None:
    found = rows([], [0x1000, 0x1008], EM_AARCH64)
    assert shown(found, EM_AARCH64) == [(0xFFF, SIGNAL), (0x1008, "-")]
    # struct rt_sigframe: siginfo, then mcontext at 176 with fault_address, regs[31], sp, pc.
    assert found.rule(1)[5:] == (128 + 176 + 8 + 8 * 31, 128 + 176 + 8 + 8 * 29, 128 + 176 + 8 + 8 * 32)


@pytest.mark.parametrize(
    "trampolines", [[0x1000], [0x1000, 0x1000], [0x1009, 0x1000], [0, 9], [2**64 - 9, 2**64 - 1]]
)
def test_odd_pairs_are_survived(trampolines: list[int]) -> None:
    found = rows([], trampolines)
    assert list(found.addresses) == sorted(set(found.addresses))
    assert not len(found) or found.numbers[-1] == 0


def test_trampolines_out_of_order_are_survived() -> None:
    found = rows([(0x1000, 0x1010)], [0x3000, 0x3009, 0x2000, 0x2009, 0x800, 0x809])
    assert list(found.addresses) == sorted(set(found.addresses))
