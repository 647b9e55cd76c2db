# SPDX-License-Identifier: Apache-2.0
"""What the daemon reported is what the collector received, whatever happens between the two.

PYPROF_TEST_OUTAGE and PYPROF_TEST_HANG say how many seconds the collector is away, and gives no answer: 3 and
2 where they do not; 600 and 60 take a quarter of an hour.
"""

import os
import time
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from tests.support.collector_stub import (
    Collector,
    Fail,
    GrpcCollector,
    Hang,
    HttpCollector,
    Reset,
    Say,
    Step,
)
from tests.support.daemon import Daemon, ready
from tests.support.otlp_validator import read
from tests.support.profiling import SCALE, build_target, running, wait_until

OUTAGE = float(os.environ.get("PYPROF_TEST_OUTAGE", "3"))
HANG = float(os.environ.get("PYPROF_TEST_HANG", "2"))

pytestmark = [pytest.mark.bpf, pytest.mark.timeout((OUTAGE * 2 + HANG * 4 + 200) * SCALE)]

HZ = "97"


def collector(protocol: str, steps: list[Step], port: int = 0) -> HttpCollector | GrpcCollector:
    return HttpCollector(steps, port=port) if protocol == "http/protobuf" else GrpcCollector(steps, port=port)


def troubles(protocol: str) -> list[Step]:
    """Answers to the first requests; what is refused for good is not among them."""
    if protocol == "http/protobuf":
        return [Say(503), Reset(), Say(429, {"Retry-After": "1"}), Hang()]
    unavailable, late = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED
    return [Fail(unavailable), Fail(late), Hang()]


def received(*collectors: Collector) -> int:
    """Samples, in messages that all are valid. What was taken and not answered in time comes again."""
    payloads = {payload for each in collectors for payload in each.payloads}
    return sum(read(payload).count for payload in payloads)


def spooled(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "spool").iterdir() if path.is_file() and path.stat().st_size)


def wait_for(daemon: Daemon, name: str, at_least: float, *labels: str) -> None:
    wait_until(lambda: daemon.metrics().get((f"pyprof_{name}", *labels), 0) >= at_least, name, 60)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_all_samples_arrive_through_troubles_an_outage_and_a_restart(tmp_path: Path, protocol: str) -> None:
    folder = tmp_path / "daemon"
    totals = []
    with running(build_target(tmp_path, "chain.c")):
        with ExitStack() as ended:
            first = ended.enter_context(collector(protocol, troubles(protocol)))
            options = ["-F", HZ, "--interval", "1", "--otlp-timeout", str(HANG), "--otlp-protocol", protocol]
            options += ["--otlp-endpoint", first.url]
            port = first.port
            with ready(folder, *options) as daemon:
                first.wait(lambda: len(first.times) > len(troubles(protocol)), 90 * SCALE)
                wait_for(daemon, "export_samples_sent_total", 1)
                ended.close()  # the collector dies...
                wait_for(daemon, "export_samples_waiting", 1, "spool")
                until = time.monotonic() + OUTAGE / 2
                wait_until(lambda: time.monotonic() >= until, "it stays away", OUTAGE + 10)
                code, seconds = daemon.end()
                assert (code, seconds < 5 * SCALE) == (0, True)
                totals.append(daemon.totals())
        (folder / "notify").unlink()
        with ready(folder, *options) as daemon:  # ...and the daemon is restarted meanwhile
            assert daemon.metrics()["pyprof_export_samples_found_total",] == totals[0]["spooled"] > 0
            until = time.monotonic() + OUTAGE / 2
            wait_until(lambda: time.monotonic() >= until, "it stays away", OUTAGE + 10)
            with collector(protocol, [], port) as second:
                wait_until(lambda: waiting(daemon) == 0, "all is sent", 90)
                assert daemon.end()[0] == 0
                totals.append(daemon.totals())
    assert sum(total["lost"] + total["not_sent"] + total["rejected"] for total in totals) == 0
    assert totals[1]["spooled"] == 0
    assert received(first, second) == sum(total["reported"] for total in totals)
    assert all(total["taken"] == total["reported"] for total in totals)


def waiting(daemon: Daemon) -> float:
    metrics = daemon.metrics()
    return sum(metrics["pyprof_export_samples_waiting", where] for where in ("memory", "spool"))


def test_torn_file_of_the_spool_is_a_counted_loss(tmp_path: Path) -> None:
    folder = tmp_path / "daemon"
    options = ["-F", HZ, "--interval", "1", "--otlp-endpoint", "http://127.0.0.1:1"]
    with running(build_target(tmp_path, "chain.c")):
        with ready(folder, *options) as daemon:
            wait_until(lambda: len(spooled(folder)) >= 3, "profiles wait", 60)
            assert daemon.end()[0] == 0
            first = daemon.totals()
        victim = spooled(folder)[1]
        victim.write_bytes(victim.read_bytes()[:-100])
        with HttpCollector() as collector:
            (folder / "notify").unlink()
            with ready(folder, *options[:-1], collector.url) as daemon:
                wait_until(lambda: waiting(daemon) == 0, "all is sent", 60)
                losses = {
                    name: value for name, value in daemon.metrics().items()
                    if name[0] == "pyprof_export_samples_lost_total"
                }  # fmt: skip
                assert daemon.end()[0] == 0
                second = daemon.totals()
    lost = sum(losses.values())
    assert lost > 0
    assert received(collector) + lost == first["reported"] + second["reported"]


def test_full_disk_of_the_spool_is_a_counted_loss(tmp_path: Path) -> None:
    folder = tmp_path / "daemon"
    small = tmp_path / "small"
    small.mkdir()
    assert os.system(f"mount -t tmpfs -o size=32k,mode=0700 small {small}") == 0
    try:
        options = ["-F", HZ, "--interval", "1", "--queue-mib", "1", "--spool-dir", str(small / "spool")]
        with running(build_target(tmp_path, "chain.c")):
            with ready(folder, *options, "--otlp-endpoint", "http://127.0.0.1:1") as daemon:
                lost = ("pyprof_export_samples_lost_total", "disk of the spool full")
                wait_until(lambda: daemon.metrics().get(lost, 0) > 0, "a loss", 60)
                code, seconds = daemon.end()
                assert (code, seconds < 5 * SCALE) == (0, True)
                totals = daemon.totals()
    finally:
        os.system(f"umount --lazy {small}")
    assert totals["reported"] == totals["sent"] + totals["spooled"] + totals["not_sent"]
    assert totals["not_sent"] > 0
