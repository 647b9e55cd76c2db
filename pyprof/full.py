# SPDX-License-Identifier: Apache-2.0
"""Says in the log, once a minute at most, that maps of the kernel are full."""

import logging
from collections.abc import Mapping

LOG = logging.getLogger(__name__)

QUIET = 60_000_000_000
"""Nanoseconds between two lines."""


class FullMaps:
    """Watches how often something gave way in a map, or found no room."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, int]] = {}
        self._next = 0

    def look(self, now: int, counts: Mapping[str, tuple[int, int]]) -> None:
        """Logs what has grown since the last line.

        Args:
            now: CLOCK_MONOTONIC, ns.
            counts: (times that an owner of entries gave way, times that no room was found), by map.
        """
        if now < self._next:
            return
        parts = []
        for name, (evicted, refused) in counts.items():
            before = self._told.get(name, (0, 0))
            if (evicted, refused) != before:
                parts.append(f"{name} ({evicted - before[0]} gave way, {refused - before[1]} found no room)")
        if parts:
            self._told = dict(counts)
            self._next = now + QUIET
            LOG.warning(
                "kernel maps are full: %s; what is not in them is resolved and unwound in user space",
                ", ".join(parts),
            )
