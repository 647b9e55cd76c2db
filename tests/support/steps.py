# SPDX-License-Identifier: Apache-2.0
"""One step by an unwind rule (bpf/unwind.h, host build) over a hand-made stack."""

from dataclasses import dataclass, field

from pyprof._native._libbpf import ffi, lib

from pyprof.bpf.library import end_texts
from tests.support.stacks import words

BASE = 0x7FFC00000000
SP = BASE + 0x100
FP = BASE + 0x180
SIZE = 0x400
RETURN = 0x402345
COMPLETE = "complete"
UNREADABLE = "stack memory not readable"
UNSUPPORTED = "unwind rule not supported"
LOST = "unwind rule needs a register that is lost"
ORDER = "caller's frame does not lie above"
RBX = 3
KNOWN_NONE, KNOWN_ALL, KNOWN_RBX = range(3)
SAME = 1  # PYPROF_RBX_SAME


@dataclass
class Frame:
    """Registers; `fp` is None where it is lost, `registers` where they are not known.

    `rbx` is known where `registers` are not.
    """

    pc: int = 0x401000
    sp: int = SP
    fp: int | None = FP
    registers: dict[int, int] | None = field(default_factory=dict)
    exact: bool = True
    rbx: int | None = None


def step(
    applied: bytes, frame: Frame, stack: dict[int, int], *, base: int = BASE, size: int = SIZE
) -> Frame | str:
    """The caller's frame, or why there is none."""
    regs = ffi.new("struct pyprof_host_regs *")
    regs.pc, regs.sp, regs.exact, regs.by_fp = frame.pc, frame.sp, frame.exact, 1
    regs.fp, regs.has_fp = (0xDEAD, 0) if frame.fp is None else (frame.fp, 1)
    regs.has_registers = KNOWN_NONE if frame.registers is None else KNOWN_ALL
    if frame.rbx is not None:
        regs.has_registers, regs.registers[RBX] = KNOWN_RBX, frame.rbx
    for number, value in (frame.registers or {}).items():
        regs.registers[number] = value
    end = ffi.new("uint8_t *", 0xEE)
    data = words(base, stack, size)
    if not lib.pyprof_unwind_step(regs, applied, ffi.from_buffer(data), base, len(data), end):
        return end_texts()[int(end[0])]
    assert end[0] == 0xEE, "a step that leads on has no reason to end"
    assert regs.has_registers in (KNOWN_NONE, KNOWN_RBX)
    assert not regs.by_fp
    fp = int(regs.fp) if regs.has_fp else None
    rbx = int(regs.registers[RBX]) if regs.has_registers else None
    return Frame(int(regs.pc), int(regs.sp), fp, None, bool(regs.exact), rbx)


def caller(
    sp: int, fp: int | None = FP, *, pc: int = RETURN, exact: bool = False, rbx: int | None = None
) -> Frame:
    return Frame(pc, sp, fp, None, exact, rbx)
