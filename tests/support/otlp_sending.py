# SPDX-License-Identifier: Apache-2.0
"""A sender for the time of a test, and the disks that it may meet."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyprof.export.otlp.counts import Counts
from pyprof.export.otlp.endpoint import GRPC, HTTP, Endpoint, Settings, endpoint_of
from pyprof.export.otlp.patience import Patience
from pyprof.export.otlp.sender import Sender
from pyprof.export.otlp.spool import Spool
from tests.support.collector_stub import Collector, GrpcCollector
from tests.support.otlp_batches import balanced
from tests.support.profiling import wait_until

QUICK = Patience(first=0.02, most=0.1, slow_first=0.02, slow_most=0.1)
NEVER = Patience(first=1000, most=1000, slow_first=1000, slow_most=1000)


def endpoint_for(collector: Collector, **settings: object) -> Endpoint:
    protocol = GRPC if isinstance(collector, GrpcCollector) else HTTP
    values = {"endpoint": collector.url, "protocol": protocol, **settings}
    return endpoint_of(Settings(**values), {})  # type: ignore[arg-type]


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def sending(
    endpoint: Endpoint,
    spool: Spool | None = None,
    *,
    patience: Patience = QUICK,
    queue_bytes: int = 16 << 20,
    drain: float = 5,
) -> Iterator[Sender]:
    sender = Sender(endpoint, spool, patience=patience, queue_bytes=queue_bytes)
    sender.start()
    try:
        yield sender
    finally:
        sender.drain(drain)
        assert balanced(sender.counts())


def settled(sender: Sender, sent: int) -> Counts:
    """The counts once so many samples were sent: the collector knows it a moment before the sender does."""
    wait_until(lambda: sender.counts().sent >= sent, f"{sent} samples sent")
    counts = sender.counts()
    assert balanced(counts)
    return counts


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """A tmpfs of its own."""
    if os.geteuid():
        pytest.skip("needs root, to mount a tmpfs")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=0700,{options}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
