# SPDX-License-Identifier: Apache-2.0
"""Compares what is known of processes with /proc, since no event tells what is unmapped."""

import time

from pyprof._native.processes import ProcessTable
from pyprof.process.scan import Scanner

SHARE = 1 / 500
"""How much of a CPU the comparisons may take in the long run."""

MOST_SAVED = 20_000_000
"""Nanoseconds of CPU time that may be used at once after a time of rest."""


class Resync:
    """Reads the maps of processes that are due, as long as the time for it lasts.

    Which ones are due the process table knows: the longer nothing was found to have changed, the later is a
    process looked at again.
    """

    def __init__(self, table: ProcessTable, scanner: Scanner) -> None:
        self._table = table
        self._scanner = scanner
        self._saved = float(MOST_SAVED)
        self._last = 0
        self.scans = 0

    def run(self, now: int) -> None:
        """now: CLOCK_MONOTONIC, ns."""
        if self._last:
            self._saved = min(self._saved + (now - self._last) * SHARE, MOST_SAVED)
        self._last = now
        # One that takes longer than was saved is paid off before the next.
        while self._saved > 0 and (pid := self._table.resync_due(now)):
            before = time.thread_time_ns()
            self._scanner.scan(pid)
            self._saved -= time.thread_time_ns() - before
            self.scans += 1
