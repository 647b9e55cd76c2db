# SPDX-License-Identifier: Apache-2.0
"""Unwind rows as GNU readelf decodes them, and their comparison with ours."""

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pyprof._native.cfi import UnwindRows
from pyprof.unwind.rows import Notation

Key = tuple[str, str, str]
"""CFA, frame pointer and return address in readelf's notation."""

_CIE = re.compile(r"^([0-9a-f]+) [0-9a-f]+ [0-9a-f]+ CIE ")
_FDE = re.compile(r"^[0-9a-f]+ [0-9a-f]+ [0-9a-f]+ FDE cie=([0-9a-f]+) pc=([0-9a-f]+)\.\.([0-9a-f]+)")
# In a column for a register, readelf writes one as "r5 (rdi)" or "r9 (r9)".
_REGISTER = re.compile(r"r\d+ \((\w+)\)")
_ADDRESS = re.compile(r"^[0-9a-f]{16} ")
# "same value" and "unmentioned" come to the same.
_SAME = {"s": "u", "vexp": "exp"}


class Step(NamedTuple):
    """From `addr` on, `key` holds: None where no unwind information is."""

    addr: int
    key: Key | None


class _Function:
    def __init__(self, start: int, end: int, initial: Key) -> None:
        self.start = start
        self.end = end
        self.rows = [Step(start, initial)]


def readelf_steps(path: Path | str, fp: str = "rbp", section: str = ".eh_frame") -> list[Step]:
    """What holds at each address, as readelf says: ascending, no two neighbours equal.

    Args:
        path: an ELF file.
        fp: name of the column of the frame pointer.
        section: of which of its sections.
    """
    command = ["readelf", "--wide", "--debug-dump=frames-interp", str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
        errors="surrogateescape", env={"LC_ALL": "C"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        return list(_merge(_flatten(_functions(process.stdout, fp, section))))


def _functions(lines: Iterable[str], fp: str, section: str) -> list[_Function]:
    initial: dict[int, Key] = {}
    functions: list[_Function] = []
    columns: list[str] = []
    cie: int | None = None
    wanted = True
    for line in lines:
        if _ADDRESS.match(line):
            key = _key(line, columns, fp)
            address = int(line[:16], 16)
            if not wanted:
                continue
            if cie is not None:
                initial[cie] = key
            elif functions[-1].rows[-1].addr == address:
                functions[-1].rows[-1] = Step(address, key)
            else:
                functions[-1].rows.append(Step(address, key))
        elif line.startswith("   LOC"):
            columns = line.split()
        elif fde := _FDE.match(line):
            cie = None
            number, start, end = (int(part, 16) for part in fde.groups())
            if wanted:
                functions.append(_Function(start, end, initial.get(number, ("none", "u", "u"))))
        elif match := _CIE.match(line):
            cie = int(match[1], 16)
        elif line.startswith("Contents of the "):
            wanted = line.split()[3] == section
    return functions


def _key(line: str, columns: list[str], fp: str) -> Key:
    values = dict(zip(columns, _REGISTER.sub(r"\1", line).split(), strict=True))
    values = {name: _SAME.get(value, value) for name, value in values.items()}
    return values["CFA"], values.get(fp, "u"), values.get("ra", "u")


def _flatten(functions: list[_Function]) -> Iterator[Step]:
    """One function an address: the one that begins first, and of those that begin together the first."""
    covered = 0
    for function in sorted(functions, key=lambda function: function.start):
        # What a linker leaves of a function that it removed.
        if function.start == 0 or function.end <= max(covered, function.start):
            continue
        if function.start > covered:
            yield Step(covered, None)
        for row, behind in zip(function.rows, [*function.rows[1:], Step(function.end, None)], strict=True):
            if behind.addr > covered and row.addr < function.end:
                yield Step(max(row.addr, covered), row.key)
        covered = function.end
    yield Step(covered, None)


def _merge(steps: Iterable[Step]) -> Iterator[Step]:
    last: Key | None = None
    for step in steps:
        if step.key != last:
            yield step
            last = step.key


class OurStep(NamedTuple):
    """As Step; where `reason` is not empty, the rule is marked as unsupported."""

    addr: int
    key: Key | None
    reason: str


def our_steps(rows: UnwindRows, machine: int) -> list[OurStep]:
    """What holds at each address, as we say; neighbours may be equal."""
    notation = Notation(rows, machine)
    steps = []
    for index, address in enumerate(rows.addresses):
        text = notation.row(index)
        if text is None:
            steps.append(OurStep(address, None, ""))
        else:
            steps.append(OurStep(address, (text.cfa, text.fp, text.ra), text.reason))
    return steps


def differences(theirs: list[Step], ours: list[OurStep], *, only_theirs: bool = False) -> list[str]:
    """Where the two do not agree, one sentence an address; what we mark as unsupported is left out.

    only_theirs: leaves out, too, what readelf says nothing of.
    """
    found = []
    i = j = 0
    their_key: Key | None = None
    our_step = OurStep(0, None, "")
    while i < len(theirs) or j < len(ours):
        their_next = theirs[i].addr if i < len(theirs) else 1 << 64
        our_next = ours[j].addr if j < len(ours) else 1 << 64
        address = min(their_next, our_next)
        if their_next == address:
            their_key = theirs[i].key
            i += 1
        if our_next == address:
            our_step = ours[j]
            j += 1
        if only_theirs and their_key is None:
            continue
        if their_key != our_step.key and not our_step.reason:
            found.append(f"{address:#x}: readelf {their_key}, ours {our_step.key}")
    return found
