# SPDX-License-Identifier: Apache-2.0
"""A log that does not repeat itself."""

import logging
import time

QUIET = 60.0
"""Seconds between two lines on the same matter."""


class QuietLog:
    """Logs warnings, at most one a minute on the same matter."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._next: dict[str, float] = {}

    def warning(self, matter: str, text: str, *arguments: object) -> bool:
        """Logs `text` with its arguments, unless there was one on this matter a short time ago.

        Returns:
            Whether it did.
        """
        now = time.monotonic()
        if now < self._next.get(matter, 0.0):
            return False
        self._next[matter] = now + QUIET
        self._log.warning(text, *arguments)
        return True
