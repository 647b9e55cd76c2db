# SPDX-License-Identifier: Apache-2.0
"""Profiles sent while disk, resolver or collector fail: what was sent and what is lost are all there were."""

import random
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pytest

from pyprof.export.otlp.batch import Batch
from pyprof.export.otlp.endpoint import Settings, endpoint_of
from pyprof.export.otlp.sender import Sender
from pyprof.export.otlp.spool import DISK_FULL, Spool
from tests.support.collector_stub import Fail, GrpcCollector, HttpCollector, Reset, Say, Step
from tests.support.otlp_batches import balanced, batch_of
from tests.support.otlp_sending import QUICK, endpoint_for, sending, settled, small_disk, unused_port
from tests.support.profiling import wait_until

Kind = type[HttpCollector] | type[GrpcCollector]


def test_full_disk_is_a_counted_loss_and_sending_goes_on(tmp_path: Path) -> None:
    port = unused_port()
    nowhere = endpoint_of(Settings(f"http://127.0.0.1:{port}"), {})
    with small_disk(tmp_path / "disk", "size=512k") as disk:
        with sending(nowhere, Spool(disk), queue_bytes=250_000) as sender:
            # What the disk does not hold waits in memory, as far as that goes.
            for _ in range(15):
                sender.submit(batch_of(1, size=100_000))
                counts = sender.counts()
                assert balanced(counts)
            wait_until(lambda: sender.counts().waiting_spool > 0, "some on the disk")
            counts = sender.counts()
            assert 0 < counts.lost[DISK_FULL] < 15
            assert counts.waiting_memory <= 2
            with HttpCollector(port=port) as collector:
                lost = counts.lost[DISK_FULL]
                counts = settled(sender, 15 - lost)
                assert (collector.samples, counts.lost) == (15 - lost, {DISK_FULL: lost})
                sender.submit(batch_of(7, size=100_000))
                settled(sender, 15 - lost + 7)


def test_full_disk_at_the_end_is_a_counted_loss(tmp_path: Path) -> None:
    nowhere = endpoint_of(Settings(f"http://127.0.0.1:{unused_port()}"), {})
    with small_disk(tmp_path / "disk", "size=64k") as disk:
        with sending(nowhere, Spool(disk), drain=0.2) as sender:
            sender.submit(batch_of(3, size=100_000))
            wait_until(lambda: sender.counts().retries > 0, "tried")
        counts = sender.counts()
        assert (counts.lost, counts.waiting_memory, counts.waiting_spool) == ({DISK_FULL: 3}, 0, 0)


# Port 53 of a network of its own takes queries, and never answers.
DEAF_RESOLVER = """
import pathlib, socket, subprocess, sys, time
from pyprof.export.otlp.endpoint import Settings, endpoint_of
from pyprof.export.otlp.sender import Sender
from pyprof.export.otlp.spool import Spool
from tests.support.otlp_batches import balanced, batch_of

folder = pathlib.Path(sys.argv[1])
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
deaf = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
deaf.bind(("127.0.0.1", 53))
(folder / "resolv.conf").write_text("nameserver 127.0.0.1\\n")
subprocess.run(["mount", "--bind", folder / "resolv.conf", "/etc/resolv.conf"], check=True)
sender = Sender(endpoint_of(Settings("http://collector.example.com:4318"), {}), Spool(folder / "spool"))
sender.start()
sender.submit(batch_of(3))
deaf.recv(512)
sender.submit(batch_of(4))
before = time.monotonic()
sender.drain(0.2)
counts = sender.counts()
assert time.monotonic() - before < 5, "waits for the resolver"
assert counts.waiting_spool == 7 and balanced(counts), counts
"""


def test_end_does_not_wait_for_a_resolver_of_names(tmp_path: Path) -> None:
    done = subprocess.run(
        ["unshare", "--mount", "--net", sys.executable, "-c", DEAF_RESOLVER, tmp_path],
        check=False,
        capture_output=True,
        text=True,
    )
    if "unshare failed" in done.stderr:
        pytest.skip("needs the privilege to have a network of its own")
    assert done.returncode == 0, done.stderr
    spool = Spool(tmp_path / "spool")
    assert spool.found == 7
    spool.close()


def trouble(kind: Kind, seed: int) -> list[Step]:
    """Fifty answers in random order, a third of them good."""
    chance = random.Random(seed)
    http: list[Step] = [Say(503), Say(400), Reset(), Say(404), Say(503, {"Retry-After": "0"})]
    codes = ("UNAVAILABLE", "INVALID_ARGUMENT", "ABORTED", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED")
    bad = http if kind is HttpCollector else [Fail(grpc.StatusCode[code]) for code in codes]
    good: Step = Say(200, takes=True)
    return [chance.choice([*bad, *3 * [good]]) for _ in range(50)]


@pytest.mark.parametrize("kind", [HttpCollector, GrpcCollector])
@pytest.mark.parametrize("spooled", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_sample_is_received_or_counted_through_random_trouble(
    kind: Kind, spooled: bool, seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    spool = Spool(tmp_path / "spool", max_bytes=20 * 4096) if spooled else None
    batches = [batch_of(chance.randrange(1, 1000), size=chance.randrange(3000)) for _ in range(80)]
    total = sum(batch.samples for batch in batches)
    with kind(trouble(kind, seed)) as collector:
        sender = Sender(endpoint_for(collector), spool, patience=QUICK, queue_bytes=30_000)
        sender.start()
        threads = [threading.Thread(target=submit_all, args=(sender, batches[part::4])) for part in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert balanced(sender.counts())
        for thread in threads:
            thread.join()
        wait_until(lambda: not waiting(sender), "nothing waits any more")
        sender.drain(1)
        counts = sender.counts()
        assert counts.submitted == total
        assert collector.samples == counts.sent
        assert counts.sent + sum(counts.lost.values()) == total
        assert counts.sent > 0 and counts.retries > 0


def submit_all(sender: Sender, batches: list[Batch]) -> None:
    for batch in batches:
        sender.submit(batch)


def waiting(sender: Sender) -> int:
    counts = sender.counts()
    assert balanced(counts)
    return counts.waiting_memory + counts.waiting_spool
