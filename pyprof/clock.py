# SPDX-License-Identifier: Apache-2.0
"""From CLOCK_MONOTONIC, which samples are stamped with, to the time of day.

The monotonic clock stands while the host is suspended, and the time of day may be set. What was slept is
time that passed: stamps from before it keep their distance. Where the clock was set, the new setting is the
right one, for all stamps.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

MAX_SLEEPS = 64
"""Suspends that are remembered: more than one reporting interval can have."""

SLEPT_AT_LEAST = 10_000_000
"""Nanoseconds by which the clocks must have parted; two readings of them are some microseconds apart."""


class WallClock:
    """Knows the time of day of a reading of CLOCK_MONOTONIC. Call note() often: it is what tells when the
    host slept."""

    def __init__(
        self,
        monotonic: Callable[[], int] = time.monotonic_ns,
        boottime: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        realtime: Callable[[], int] = time.time_ns,
    ) -> None:
        self._monotonic = monotonic
        self._boottime = boottime
        self._realtime = realtime
        now = monotonic()
        self._since = [0]
        """Readings of the monotonic clock from which on..."""
        self._slept = [boottime() - now]
        """...so much had been slept in all."""

    def note(self) -> None:
        """Looks whether the host slept since the last look."""
        now = self._monotonic()
        slept = self._boottime() - now
        if slept - self._slept[-1] >= SLEPT_AT_LEAST:
            # Nothing runs while a host sleeps, so what was sampled since the last look came before.
            self._since.append(now)
            self._slept.append(slept)
            del self._since[1:-MAX_SLEEPS], self._slept[1:-MAX_SLEEPS]

    def wall(self, times: Sequence[int]) -> list[int]:
        """Nanoseconds since 1970 of readings of CLOCK_MONOTONIC, by the setting that the clock has now."""
        self.note()
        boot = self._realtime() - self._boottime()
        if len(self._since) == 1:
            offset = boot + self._slept[0]
            return [moment + offset for moment in times]
        return [moment + boot + self._slept[bisect_left(self._since, moment) - 1] for moment in times]
