# SPDX-License-Identifier: Apache-2.0
"""What a service manager hears, on a real datagram socket."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pyprof.daemon.health import Health
from pyprof.daemon.notify import Notifier, ping_seconds
from pyprof.daemon.service import beat


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A manager's socket, and what $NOTIFY_SOCKET says of it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.settimeout(10)
        if request.param == "path":
            name = str(tmp_path / "notify")
            server.bind(name)
        else:
            name = f"@pyprof-test-{os.getpid()}"
            server.bind("\0" + name[1:])
        yield server, name


def test_states_arrive_as_lines(manager: tuple[socket.socket, str]) -> None:
    server, name = manager
    with closing(Notifier({"NOTIFY_SOCKET": name})) as notifier:
        notifier.ready("sampling 2 CPUs")
        notifier.stopping("")
        notifier.status("two\nlines")
        assert server.recv(4096) == b"READY=1\nSTATUS=sampling 2 CPUs"
        assert server.recv(4096) == b"STOPPING=1"
        assert server.recv(4096) == b"STATUS=two lines"
        assert notifier.failed == 0


def test_reload_tells_the_monotonic_time(manager: tuple[socket.socket, str]) -> None:
    server, name = manager
    before = time.monotonic_ns() // 1000
    with closing(Notifier({"NOTIFY_SOCKET": name})) as notifier:
        notifier.reloading("reading")
    state, usec, status = server.recv(4096).decode().split("\n")
    assert (state, status) == ("RELOADING=1", "STATUS=reading")
    assert before <= int(usec.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000


def test_watchdog_is_told_at_half_of_its_time_only(manager: tuple[socket.socket, str]) -> None:
    server, name = manager
    with closing(Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "4000000"})) as notifier:
        for now in (100.0, 100.5, 101.9, 102.0, 103.0, 104.1):
            notifier.watchdog(now)
        notifier.status("end")
    told = [server.recv(4096) for _ in range(4)]
    assert told == [b"WATCHDOG=1"] * 3 + [b"STATUS=end"]


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({"WATCHDOG_USEC": "-1"}, 0.0),
    ],
)
def test_watchdog_is_meant_for_us_or_not(environ: dict[str, str], seconds: float) -> None:
    assert ping_seconds(environ, 7) == seconds


@pytest.mark.parametrize("name", ["", "@", "relative", "vsock:2:1"])
def test_nothing_is_told_where_no_manager_is(name: str) -> None:
    with closing(Notifier({"NOTIFY_SOCKET": name})) as notifier:
        notifier.ready("x")
        assert notifier.failed == 0


def test_manager_that_is_gone_is_no_error(tmp_path: Path) -> None:
    with closing(Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})) as notifier:
        notifier.ready("x")
        assert notifier.failed == 1


def test_manager_that_does_not_read_does_not_stop_us(manager: tuple[socket.socket, str]) -> None:
    _, name = manager
    with closing(Notifier({"NOTIFY_SOCKET": name})) as notifier:
        for _ in range(5000):
            notifier.status("x" * 200)
        assert notifier.failed > 0


def test_watchdog_hears_nothing_where_no_profile_is_made(manager: tuple[socket.socket, str]) -> None:
    server, name = manager
    now = [1000.0]
    health = Health(5.0, lambda: now[0])
    with closing(Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "2"})) as notifier:
        beat(health, notifier)
        now[0] += 60
        # The loop turns, and no interval ends.
        beat(health, notifier)
        notifier.status("not said")
        health.profiled()
        beat(health, notifier)
    assert [server.recv(4096) for _ in range(3)] == [b"WATCHDOG=1", b"STATUS=not said", b"WATCHDOG=1"]
