# SPDX-License-Identifier: Apache-2.0
"""All functions of the kernel in little memory: a third of what the table takes that they are read into.

A name is asked for rarely, and found by few bytes: names lie in blocks that are compressed.
"""

from array import array
from bisect import bisect_right

import lz4.block

from pyprof._native.symbols import SymbolTable

BLOCK = 1 << 14
NO_NAME = 0xFFFFFFFF
LAST = (1 << 64) - 1


class KernelList:
    """Functions by address. It does not change."""

    def __init__(self, table: SymbolTable) -> None:
        """table: of /proc/kallsyms."""
        starts, symbols, names, texts = table.flattened()
        self._starts = array("Q", starts)
        self._names = array("I", names)
        # A piece that does not begin where its symbol does lies behind one that is nested in that.
        self._symbols = {
            i: symbol
            for i, symbol in enumerate(array("Q", symbols))
            if symbol != self._starts[i] and self._names[i] != NO_NAME
        }
        self._blocks = [
            lz4.block.compress(texts[at : at + BLOCK], store_size=False) for at in range(0, len(texts), BLOCK)
        ]

    def find(self, address: int) -> tuple[int, int, bytes | None, int]:
        """What an address lies in.

        Returns:
            (first, last, name, offset): the addresses around it that have the same answer; the name as it
            stands in kallsyms, None for none; how far behind the symbol's start the address lies.
        """
        at = bisect_right(self._starts, address)
        first = self._starts[at - 1] if at else 0
        last = self._starts[at] - 1 if at < len(self._starts) else LAST
        if not at or self._names[at - 1] == NO_NAME:
            return first, last, None, 0
        return first, last, self._name(self._names[at - 1]), address - self._symbols.get(at - 1, first)

    def _name(self, position: int) -> bytes:
        number, at = divmod(position, BLOCK)
        text: bytes = b""
        while b"\0" not in text and number < len(self._blocks):
            block: bytes = lz4.block.decompress(self._blocks[number], uncompressed_size=BLOCK)
            text += block[at:]
            number, at = number + 1, 0
        return text.partition(b"\0")[0]
