# SPDX-License-Identifier: Apache-2.0
"""Names of addresses, kept from one report to the next.

Everything here can be made again from the files, so it is bounded and may be dropped at any time: a name that
is not there is looked up, never left out.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyprof._native.cache import LruCache
from pyprof.process.files import MappedFiles
from pyprof.symbols.kernel_names import KernelNames
from pyprof.symbols.native import NativeSymbols
from pyprof.symbols.symbol import Symbol

SECOND = 1_000_000_000

MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Limits:
    """names: most names kept; tables: bytes of symbol tables kept; idle: seconds after which what was not
    used goes."""

    names: int = 1 << 13
    tables: int = 4 << 20
    idle: float = 60.0


class FrameNames:
    """Names of native and kernel addresses. One thread at a time may use it."""

    def __init__(self, limits: Limits | None = None, clock: Callable[[], int] = time.monotonic_ns) -> None:
        limits = limits or Limits()
        idle = int(limits.idle * SECOND)
        self._names: LruCache[tuple[int, int], Symbol | None] = LruCache(limits.names, idle=idle, clock=clock)
        self._tables: LruCache[int, NativeSymbols] = LruCache(
            1 << 10, weight_limit=max(limits.tables, 1), idle=idle, clock=clock
        )
        self._largest = limits.tables
        self._kernel = KernelNames(limits.names, clock)

    def tick(self) -> None:
        """Begins a report: lifetimes are as of now."""
        for cache in (self._names, self._tables):
            cache.tick()
            cache.purge()

    def counts(self) -> dict[str, dict[str, int]]:
        """Metrics of the caches, by the name of the cache."""
        return {
            "names": self._names.metrics(),
            "symbol_tables": self._tables.metrics(),
            "kernel_functions": self._kernel.metrics(),
        }

    def native(self, files: MappedFiles, number: int, addresses: Sequence[int]) -> list[Symbol | None]:
        """Names addresses in a file.

        Args:
            number: of the file in the process table.
            addresses: ELF virtual addresses.

        Returns:
            A symbol for each, in order; None where no symbol covers it, or the file cannot be read any more.
        """
        file = files.get(number)
        if file is None:
            return [None] * len(addresses)
        found, missing = self._known(file.serial, addresses)
        if missing:
            table = self._table(files, number, file.serial)
            if table is not None:
                # Whether a file that cannot be read may be read next time is not known: that is not kept.
                for address, symbol in zip(missing, table.resolve(missing), strict=True):
                    found[address] = symbol
                    self._names.put((file.serial, address), symbol)
        return [found.get(address) for address in addresses]

    def kernel(self, addresses: Sequence[int], changes: int = 0) -> list[Symbol | None]:
        """Names kernel addresses.

        Args:
            changes: how many kernel symbols came or went so far, as the side-band events tell.

        Returns:
            A symbol for each, in order; None where none covers it.
        """
        return self._kernel.resolve(addresses, changes) if addresses else []

    @property
    def problem(self) -> str:
        """Why kernel functions have no names, or ""."""
        return self._kernel.problem

    def _known(self, place: int, addresses: Sequence[int]) -> tuple[dict[int, Symbol | None], list[int]]:
        """(names by address, addresses without)."""
        found: dict[int, Symbol | None] = {}
        missing = []
        get = self._names.get
        for address in addresses:
            hit = get((place, address), MISSING)
            if hit is MISSING:
                missing.append(address)
            else:
                found[address] = hit
        return found, missing

    def _table(self, files: MappedFiles, number: int, serial: int) -> NativeSymbols | None:
        table = self._tables.get(serial)
        if table is None:
            elf = files.elf(number)
            if elf is None:
                return None
            table = NativeSymbols(elf)
            if table.nbytes <= self._largest:
                self._tables.put(serial, table, weight=table.nbytes)
        return table
