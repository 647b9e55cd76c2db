# SPDX-License-Identifier: Apache-2.0
"""Whether the loop really turns: for /healthz and the service manager's watchdog."""

import threading
import time
from collections.abc import Callable

TURN_SECONDS = 10.0
"""The loop turns four times a second, or more often."""
INTERVALS = 4
LEAST_INTERVAL_SECONDS = 30.0
"""A profile is late after so many intervals, or so long where that is more."""
FAILURES = 3
"""So many intervals in a row that failed are no accident."""


class Health:
    """Notes of the loop; any thread may ask for problems."""

    def __init__(self, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Args:
        interval: seconds that a profile is long; may be set anew.
        clock: monotonic seconds.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self.interval = interval
        self.started = self._turned = self._profiled = clock()
        self._failures = 0
        self._failure = ""

    @property
    def uptime(self) -> float:
        return self._clock() - self.started

    def turned(self) -> None:
        """The loop has done one turn."""
        with self._lock:
            self._turned = self._clock()

    def profiled(self) -> None:
        """An interval became a profile and went to the sender."""
        with self._lock:
            self._profiled = self._clock()
            self._failures = 0

    def failed(self, failure: str) -> None:
        """An interval did not."""
        with self._lock:
            self._profiled = self._clock()
            self._failures += 1
            self._failure = failure

    def wedged(self) -> list[str]:
        """What has stopped and would go on after a restart; empty where nothing has."""
        with self._lock:
            now = self._clock()
            found = []
            if now - self._turned > TURN_SECONDS:
                found.append(f"the loop has not turned for {now - self._turned:.0f} s")
            if now - self._profiled > max(INTERVALS * self.interval, LEAST_INTERVAL_SECONDS):
                found.append(f"no interval has ended for {now - self._profiled:.0f} s")
            return found

    def problems(self) -> list[str]:
        """What is wrong, in words; empty where all is well. That a collector is away is not wrong here."""
        found = self.wedged()
        with self._lock:
            if self._failures >= FAILURES:
                found.append(f"the last {self._failures} intervals failed: {self._failure}")
        return found
