# SPDX-License-Identifier: Apache-2.0
"""What the service manager is told: the protocol of sd_notify(3), lines of NAME=VALUE in a datagram."""

import os
import socket
import time
from collections.abc import Mapping

STATUS_MOST = 300
"""Characters of a status: more is of no use in `systemctl status`."""


class Notifier:
    """Tells the manager of $NOTIFY_SOCKET; without one, does nothing. Never waits and never fails."""

    def __init__(self, environ: Mapping[str, str], pid: int | None = None) -> None:
        """Takes the address from the environment.

        Args:
            environ: the environment.
            pid: whom a watchdog is meant for, by $WATCHDOG_PID; None for this process.
        """
        self._address = socket_address(environ.get("NOTIFY_SOCKET", ""))
        self._socket: socket.socket | None = None
        self._next_ping = 0.0
        self.ping_seconds = ping_seconds(environ, os.getpid() if pid is None else pid)
        """How often the watchdog wants to hear of us; 0.0 for never."""
        self.failed = 0
        """Messages that did not get through."""
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            # A manager that does not read must not stop the profiler.
            self._socket.setblocking(False)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ready(self, status: str) -> None:
        """The start, or a reload, is done."""
        self._send("READY=1", status)

    def reloading(self, status: str) -> None:
        """A reload begins. The time lets the manager tell it from an earlier one (Type=notify-reload)."""
        usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={usec}", status)

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", status)

    def status(self, status: str) -> None:
        """One line for `systemctl status`."""
        self._send("", status)

    def watchdog(self, now: float) -> None:
        """Says that all goes on, if it is time to.

        Args:
            now: time.monotonic().
        """
        if self.ping_seconds and now >= self._next_ping:
            self._next_ping = now + self.ping_seconds
            self._send("WATCHDOG=1", "")

    def _send(self, state: str, status: str) -> None:
        if self._socket is None:
            return
        lines = [state] if state else []
        if status:
            lines.append("STATUS=" + " ".join(status.split())[:STATUS_MOST])
        try:
            self._socket.sendto("\n".join(lines).encode(errors="replace"), self._address)
        except OSError:
            self.failed += 1


def socket_address(text: str) -> str | bytes:
    """The address of a $NOTIFY_SOCKET: a path, or "@NAME" in the abstract namespace; "" for none that we
    could use."""
    if text.startswith("@") and len(text) > 1:
        return b"\0" + os.fsencode(text[1:])
    return text if text.startswith("/") else ""


def ping_seconds(environ: Mapping[str, str], pid: int) -> float:
    """Half of the watchdog's time, as sd_watchdog_enabled(3) advises; 0.0 where there is none for us."""
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0.0
    text = environ.get("WATCHDOG_USEC", "")
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        return 0.0
    return int(text) / 2e6
