# SPDX-License-Identifier: Apache-2.0
"""Go's program counter tables by hand, for `rows_of_go`."""

import struct
from typing import Any, NamedTuple

from pyprof._native.cfi import UnwindRows, rows_of_go
from pyprof.elf.file import EM_X86_64

TEXT = 0x400000
TOP_FRAME, STACK_WRITE = 1, 2


class Go(NamedTuple):
    """A function: its code, the stack pointer's distance from each offset on, and what else is told of it."""

    code: bytes
    steps: tuple[tuple[int, int], ...] = ((0, 0),)
    """(offset, distance): ascending. Empty: C code, for which there is no table."""
    name: str = "main.f"
    flags: int = 0


class Layout(NamedTuple):
    """Where in a function's description its parts are, by the Go release: src/runtime/runtime2.go."""

    width: int
    deltas_at: int
    flags_at: int
    size: int


GO_1_12 = Layout(8, 20, 0, 40)
GO_1_17 = Layout(8, 20, 41, 44)
GO_1_18 = Layout(4, 16, 37, 40)
GO_1_20 = Layout(4, 16, 41, 44)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def deltas(steps: tuple[tuple[int, int], ...], end: int, quantum: int = 1) -> bytes:
    """A table of values by address: pairs of (change as a zigzag number, distance), from -1 on; then 0."""
    out, value = b"", -1
    for index, (offset, distance) in enumerate(steps):
        change = distance - value
        until = steps[index + 1][0] if index + 1 < len(steps) else end
        out += uvarint(change << 1 if change >= 0 else (-change << 1) - 1) + uvarint(
            (until - offset) // quantum
        )
        value = distance
    return out + b"\0"


def table(functions: list[Go], layout: Layout = GO_1_20, quantum: int = 1, align: int = 16) -> dict[str, Any]:
    """Arguments for rows_of_go: functions one after another, each at a multiple of `align`."""
    code, described, names, values = b"", b"\0" * 8, b"\0", b"\0"
    pairs = []
    for function in functions:
        code += b"\xcc" * (-len(code) % align)
        pairs += [len(code), len(described)]
        description = bytearray(layout.size)
        struct.pack_into("<I", description, layout.width, len(names))
        if function.steps:
            struct.pack_into("<I", description, layout.deltas_at, len(values))
            values += deltas(function.steps, len(function.code), quantum)
        if layout.flags_at:
            description[layout.flags_at] = function.flags
        described += bytes(description)
        names += function.name.encode() + b"\0"
        code += function.code
    pairs.append(len(code))
    base = 0 if layout.width == 4 else TEXT
    pairs = [number + base * (index % 2 == 0) for index, number in enumerate(pairs)]
    return {
        "pairs": b"".join(number.to_bytes(layout.width, "little") for number in pairs),
        "width": layout.width,
        "text": TEXT - base,
        "functions": described,
        "deltas": values,
        "names": names,
        "code": code,
        "code_address": TEXT,
        "machine": EM_X86_64,
        "deltas_at": layout.deltas_at,
        "flags_at": layout.flags_at,
        "quantum": quantum,
    }


def shown(rows: UnwindRows) -> list[tuple[int, Any]]:
    """Offset in the code -> the rule (cfa, offset, fp, offset, ra, flags), or its kind where none."""
    found: list[tuple[int, Any]] = []
    for address, number in zip(rows.addresses, rows.numbers, strict=True):
        cfa, fp, ra, flags, _, cfa_offset, fp_offset, _ = rows.rule(number)
        if ra == "UNDEFINED":
            rule: Any = "END"
        elif cfa in ("NONE", "UNSUPPORTED"):
            rule = cfa
        else:
            rule = (cfa, cfa_offset, fp, fp_offset, ra, flags)
        found.append((address - TEXT, rule))
    return found


def go_rows(functions: list[Go], layout: Layout = GO_1_20, **more: Any) -> list[tuple[int, Any]]:
    """The rows of functions, as `shown`."""
    return shown(rows_of_go(**(table(functions, layout) | more)))
