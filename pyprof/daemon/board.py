# SPDX-License-Identifier: Apache-2.0
"""Where the loop's thread leaves a snapshot for others, when one of them asks."""

import os
import threading
import time
from collections.abc import Callable

from pyprof.daemon.snapshot import Snapshot

FRESH_SECONDS = 1.0
"""How old a snapshot may be that is given again."""
WAIT_SECONDS = 0.5
"""How long is waited for a new one: the loop answers within milliseconds, unless it hangs."""


class Board:
    """Asked by any thread, answered by the loop's: what native code owns is read by no other thread. Where
    nobody asks it costs nothing.

    Attributes:
        fd: readable when the loop is to call answer(); -1 once closed.
    """

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take = take
        self._changed = threading.Condition()
        self._snapshot: Snapshot | None = None
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def close(self) -> None:
        with self._changed:
            fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def answer(self) -> None:
        """Takes a snapshot; by the loop's thread."""
        os.eventfd_read(self.fd)
        snapshot = self._take()
        with self._changed:
            self._snapshot = snapshot
            self._changed.notify_all()

    def last(self) -> Snapshot | None:
        """The latest there is, however old."""
        return self._snapshot

    def current(self) -> Snapshot | None:
        """A new one, the latest where the loop does not answer, None where there never was one."""
        asked = time.monotonic()
        with self._changed:
            found = self._snapshot
            if self.fd < 0 or (found is not None and asked - found.time < FRESH_SECONDS):
                return found
            os.eventfd_write(self.fd, 1)
            self._changed.wait_for(
                lambda: self._snapshot is not None and self._snapshot.time >= asked, WAIT_SECONDS
            )
            return self._snapshot
