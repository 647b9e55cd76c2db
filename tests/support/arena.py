# SPDX-License-Identifier: Apache-2.0
"""The arena of unwind rows beside a kernel made of dictionaries, and rows beside a naive model."""

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable

from pyprof._native.arena import RowArena
from tests.support.stacks import NONE, RULE_BYTES

CHUNK = 1 << 20
PAGE = 1 << 16
MAX_RULES = 32768
NOT_LOADED, WANTED, LOADED, NO_ROWS = range(4)

Rows = list[tuple[int, int]]
"""(ELF address, number of the rule)."""
Segments = list[tuple[int, int, int]]
"""(file offset, size, ELF address)."""


def number_rule(number: int) -> bytes:
    """A rule that shows its number; that of 0 is NONE."""
    return struct.pack("=BBBBiii", 1, 0, 0, 0, number, 0, 0) if number else NONE


class Holder:
    """An arena with chunks of ordinary memory, and what the kernel would have been told."""

    def __init__(
        self,
        chunks: int = 1,
        kind: type[RowArena] = RowArena,
        max_pages: int = 65_000,
        max_executables: int = 65_000,
    ) -> None:
        self.rules = bytearray(RULE_BYTES * MAX_RULES)
        self.arena = kind(self.rules, max_pages, max_executables)
        self.chunks: list[bytearray] = []
        for _ in range(chunks):
            self.add_chunk()
        self.pages: dict[tuple[int, int], tuple[int, ...]] = {}
        self.loaded: set[int] = set()

    def add_chunk(self) -> None:
        self.chunks.append(bytearray(CHUNK))
        self.arena.add_chunk(self.chunks[-1])

    # What a loader of rows calls of a BpfObject.

    def make_chunk(self, index: int) -> bytearray:
        assert index == len(self.chunks)
        self.chunks.append(bytearray(CHUNK))
        return self.chunks[-1]

    def write_rows(self, arena: RowArena, now: int) -> int:
        assert arena is self.arena
        self.flush(now)
        return 0

    def load(
        self,
        executable: int,
        rows: Rows,
        segments: Segments,
        *,
        rules: Iterable[bytes] | None = None,
        now: int = 1,
        partial: bool = False,
    ) -> bool:
        """Places rows; the rules are those of number_rule unless others are given."""
        if rules is None:
            rules = [number_rule(i) for i in range(max((number for _, number in rows), default=0) + 1)]
        return self.arena.load(
            executable,
            array("Q", [address for address, _ in rows]),
            array("I", [number for _, number in rows]),
            b"".join(rules),
            segments,
            now,
            partial,
        )

    def flush(self, now: int = 1) -> None:
        """Has the kernel told what is pending, in the order of writing."""
        deletes, gone, keys, values, loaded = self.arena.pending()
        self.loaded -= set(array("I", gone))
        for key in struct.iter_unpack("=II", deletes):
            self.pages.pop(key, None)
        self.pages.update(
            zip(struct.iter_unpack("=II", keys), struct.iter_unpack("=IHH16H", values), strict=True)
        )
        self.loaded |= set(array("I", loaded))
        self.arena.flushed(now)

    def rows_of(self, executable: int, page: int) -> list[tuple[int, int]]:
        """(offset in the page, number of the rule in the table) of a page that the kernel knows."""
        at, chunk, last, *_ = self.pages[executable, page]
        offsets = struct.unpack_from(f"<{last + 1}H", self.chunks[chunk], at)
        numbers = struct.unpack_from(f"<{last + 1}H", self.chunks[chunk], at + 2 * (last + 1))
        return list(zip(offsets, numbers, strict=True))

    def kernel_rule(self, executable: int, offset: int) -> bytes | None:
        """The rule as the kernel side has to find it; None where it has to ask."""
        if (executable, offset // PAGE) not in self.pages:
            return NONE if executable in self.loaded else None
        at, chunk, last, *_ = self.pages[executable, offset // PAGE]
        words = memoryview(self.chunks[chunk])[at : at + 4 * (last + 1)].cast("H")
        row = bisect_right(words, offset % PAGE, 0, last + 1) - 1
        number = words[last + 1 + row]
        return bytes(self.rules[RULE_BYTES * number : RULE_BYTES * (number + 1)])

    def rule(self, executable: int, offset: int) -> bytes | None:
        """The same of the arena."""
        found = self.arena.rule(executable, offset)
        return None if found is None else struct.pack("=BBBBiii", *found)


def model_rule(rows: Rows, segments: Segments, offset: int) -> bytes:
    """The rule of a file offset: the first segment that holds it tells the address, the row before that the
    rule."""
    for start, size, vaddr in sorted(segments):
        if start <= offset < start + size:
            at = bisect_right(rows, (vaddr + offset - start, MAX_RULES))
            return number_rule(rows[at - 1][1]) if at else NONE
    return NONE


def interesting(rows: Rows, segments: Segments) -> list[int]:
    """File offsets around every border of a row, a segment, a page and its parts."""
    found: set[int] = {0}
    for start, size, vaddr in segments:
        found |= {start, start + size}
        found |= {start + address - vaddr for address, _ in rows if vaddr <= address <= vaddr + size}
        found |= set(range(start // 4096 * 4096, min(start + size, start + 40 * PAGE) + 4096, 4096))
    near = sorted({at + near for at in found for near in (-1, 0, 1) if at + near >= 0})
    return near[:: 1 + len(near) // 20_000]
