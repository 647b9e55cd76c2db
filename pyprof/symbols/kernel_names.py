# SPDX-License-Identifier: Apache-2.0
"""Names of kernel functions that were met, kept from one report to the next.

The functions that a host runs in are some hundred of a hundred thousand: most addresses lie in one that was
met. The list of all is read once, which takes 100 ms, and again when what is loaded has changed.
"""

import time
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pyprof.symbols.kernel import KernelSymbols, kernel_symbol
from pyprof.symbols.kernel_list import KernelList
from pyprof.symbols.symbol import Symbol

MODULES = Path("/proc/modules")

RELOAD_SHARE = 200
"""Reading it anew for what was loaded since may take a two-hundredth of a CPU."""


class _Piece(NamedTuple):
    """Code of one function, or of none. It counts as long as the generation is the same; 0 always is."""

    last: int
    address: int  # that `symbol` was found for
    symbol: Symbol | None
    generation: int


class KernelNames:
    """Names of kernel addresses. One thread at a time may use it.

    Attributes:
        problem: why kernel functions have no names, or "".
    """

    def __init__(self, most: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """most: functions that are kept; when there are more all are met anew."""
        self.problem = ""
        self._most = most
        self._clock = clock
        self._starts: list[int] = []
        """Where pieces begin, ascending."""
        self._pieces: dict[int, _Piece] = {}
        self._list: KernelList | None = None
        self._generation = 1
        """Number of what modules and BPF programs there are."""
        self._loaded: tuple[int, int] | None = None
        self._reload_after = 0
        self._counts = dict.fromkeys(
            ("hits", "misses", "inserts", "refused", "evict", "expire", "replace", "remove", "clear"), 0
        )

    def metrics(self) -> dict[str, int]:
        """As those of LruCache."""
        return self._counts | {"entries": len(self._pieces), "weight": len(self._pieces)}

    def resolve(self, addresses: Sequence[int], changes: int) -> list[Symbol | None]:
        """Names kernel addresses.

        Args:
            changes: how many kernel symbols came or went so far, as the side-band events tell.

        Returns:
            A symbol for each, in order; None where none covers it.
        """
        # What is found is taken at once: it may have to give way to what is found later.
        found: dict[int, Symbol | None] = {}
        missing = self._take(dict.fromkeys(addresses), 0, found)
        self._counts["misses"] += len(missing)
        self._counts["hits"] += len(found)
        if missing:
            # What is loaded and unloaded has names only as long as nothing changes.
            self._note_changes(changes)
            missing = self._take(missing, self._generation, found)
        if missing:
            self._read(missing, found)
        return [found[address] for address in addresses]

    def _take(self, addresses: Iterable[int], generation: int, found: dict[int, Symbol | None]) -> list[int]:
        """Adds to `found` what is known; the rest."""
        missing = []
        for address in addresses:
            piece = self._find(address, generation)
            if piece is None:
                missing.append(address)
            elif piece.symbol is None:
                found[address] = None
            else:
                found[address] = piece.symbol._replace(offset=piece.symbol.offset + address - piece.address)
        return missing

    def _find(self, address: int, generation: int) -> _Piece | None:
        at = bisect_right(self._starts, address)
        if not at:
            return None
        piece = self._pieces[self._starts[at - 1]]
        return piece if address <= piece.last and piece.generation in (0, generation) else None

    def _note_changes(self, changes: int) -> None:
        modules = b""
        with suppress(OSError):
            modules = MODULES.read_bytes()
        now = (changes, zlib.crc32(modules))
        if now == self._loaded or (self._loaded is not None and self._clock() < self._reload_after):
            return
        self._loaded = now
        self._list = None
        self._generation += 1

    def _read(self, missing: Sequence[int], found: dict[int, Symbol | None]) -> None:
        if self._list is None:
            before = time.thread_time_ns()
            symbols = KernelSymbols.load()
            self._list = symbols.compact()
            self.problem = symbols.problem
            self._reload_after = self._clock() + RELOAD_SHARE * (time.thread_time_ns() - before)
        for address in missing:
            first, last, text, offset = self._list.find(address)
            symbol = None if text is None else kernel_symbol(text, offset)
            found[address] = symbol
            own = symbol is not None and not symbol.module
            self._keep(first, _Piece(last, address, symbol, 0 if own else self._generation))

    def _keep(self, first: int, piece: _Piece) -> None:
        if len(self._pieces) >= self._most:
            self._counts["evict"] += len(self._pieces)
            self._pieces.clear()
            self._starts.clear()
        # What is loaded may come to lie in what had no name.
        at = bisect_right(self._starts, piece.last)
        while at and self._pieces[self._starts[at - 1]].last >= first:
            at -= 1
            del self._pieces[self._starts.pop(at)]
            self._counts["replace"] += 1
        self._starts.insert(at, first)
        self._pieces[first] = piece
        self._counts["inserts"] += 1
