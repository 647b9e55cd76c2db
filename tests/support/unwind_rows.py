# SPDX-License-Identifier: Apache-2.0
"""Short forms for tests of unwind rows."""

from pyprof._native.cfi import UnwindRows
from pyprof.unwind.rows import Notation
from tests.support.dwarf import ARM64_INITIAL, Frames

EM_X86_64, EM_AARCH64 = 62, 183
START = 0x1000

Row = tuple[int, str]


def rows_of(frames: Frames, machine: int = EM_X86_64, **options: int) -> UnwindRows:
    """Decodes a section."""
    given: dict[str, int] = {"debug_frame": frames.debug, **options}
    return UnwindRows(bytes(frames.data), frames.address, machine, **given)  # type: ignore[arg-type]


def shown(rows: UnwindRows, machine: int = EM_X86_64) -> list[Row]:
    """Each row as (address, "CFA FP RA"), "-" where no unwind information is, the reason if unsupported."""
    notation = Notation(rows, machine)
    out: list[Row] = []
    for index, address in enumerate(rows.addresses):
        row = notation.row(index)
        if row is None:
            out.append((address, "-"))
        elif row.cfa == "?":
            out.append((address, row.reason))
        else:
            out.append((address, f"{row.cfa} {row.fp} {row.ra}"))
    return out


def program_rows(program: bytes, size: int = 0x100) -> list[Row]:
    """Rows of one x86-64 function at START, addresses relative to it, without what follows it."""
    frames = Frames()
    frames.fde(frames.cie(), START, size, program)
    rows = shown(rows_of(frames))
    assert rows[-1] == (START + size, "-")
    return [(address - START, text) for address, text in rows[:-1]]


def only_rule(program: bytes) -> tuple[object, ...]:
    """The rule of a function of 16 bytes with one row."""
    frames = Frames()
    frames.fde(frames.cie(), START, 16, program)
    rows = rows_of(frames)
    assert list(rows.addresses) == [START, START + 16]
    return rows.rule(rows.numbers[0])


def arm64_rows(program: bytes, letters: bytes = b"zR", augmentation: bytes = b"\x1b") -> UnwindRows:
    """Rows of one arm64 function of 256 bytes at START: instructions of 4 bytes, 8-byte registers."""
    frames = Frames()
    cie = frames.cie(ARM64_INITIAL, letters, augmentation, code_align=4, ra=30)
    frames.fde(cie, START, 0x100, program)
    return rows_of(frames, EM_AARCH64)
