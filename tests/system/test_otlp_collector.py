# SPDX-License-Identifier: Apache-2.0
"""A real OpenTelemetry Collector takes what is sent, over gRPC and HTTP, also when it ends and comes back."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from pyprof.elf.identity import kernel_build_id
from pyprof.export.otlp.batch import Batch
from pyprof.export.otlp.encoder import Shape, encode
from pyprof.export.otlp.endpoint import Settings, endpoint_of
from pyprof.export.otlp.patience import Patience
from pyprof.export.otlp.resource import host_attributes
from pyprof.export.otlp.sender import Sender
from pyprof.export.otlp.spool import Spool
from pyprof.profile.model import By
from pyprof.session import Options, Session
from tests.support.collector import Collector, running_collector
from tests.support.compile import run
from tests.support.otlp_validator import read
from tests.support.profiling import SCALE, build_target, running, wait_until

# The first of them builds the collector.
pytestmark = [pytest.mark.bpf, pytest.mark.timeout(900 * SCALE)]

HZ = 499
SAMPLES = 100
"""Of a report, at least."""


class Reports:
    """A session that makes reports, and what was in them."""

    def __init__(self, session: Session, shape: Shape) -> None:
        self._session = session
        self._shape = shape
        self._wanted = 0
        self.batches: list[Batch] = []

    def report(self, sender: Sender) -> None:
        self._wanted += SAMPLES
        wait_until(self._has_enough, "samples were taken", 30)
        profile = self._session.take()
        encoded = encode(profile, self._shape, host_attributes(), kernel_build_id=kernel_build_id())
        assert not encoded.lost
        for batch in encoded.batches:
            sender.submit(batch)
        self.batches += encoded.batches

    def _has_enough(self) -> bool:
        self._session.poll(0.05)
        return self._session.samples()["reported"] >= self._wanted


def tally(requests: Iterable[bytes]) -> Counter[object]:
    """Samples by all that is said of them."""
    counts = Counter[object]()
    for request in requests:
        for sample in read(request).samples:
            who = tuple(sorted({**sample.resource, **sample.attributes}.items()))
            counts[who, tuple(sample.frames), tuple(sample.times)] += sample.count
    return counts


@pytest.mark.parametrize(
    ("protocol", "shape"),
    [("http/protobuf", Shape.TIMESTAMPS), ("grpc", Shape.VALUES), ("grpc", Shape.TIMESTAMPS)],
)
def test_collector_has_all_that_was_reported_across_its_restart(
    tmp_path: Path, protocol: str, shape: Shape
) -> None:
    target = build_target(tmp_path, "chain.c", "-Wl,--build-id")
    with running_collector(tmp_path) as collector, running(target) as process:
        reports = send_reports(tmp_path, collector, protocol, shape)
        collector.stop()
        received = collector.requests()
    expected = tally(batch.payload for batch in reports.batches)
    assert tally(received) == expected
    # And what was reported is right: the target's functions are there, with the build ID of its file.
    notes = run("readelf", "-n", str(target))
    build_id = notes.partition("Build ID: ")[2].split()[0]
    frames = {
        frame for request in received for sample in read(request).samples
        for frame in sample.frames if sample.resource.get("process.pid") == process.pid
    }  # fmt: skip
    ours = {frame for frame in frames if frame.filename == "chain"}
    assert {"main", "a", "b", "c"} <= {frame.name for frame in ours}
    assert {dict(frame.build_ids)["process.executable.build_id.gnu"] for frame in ours} == {build_id}


def send_reports(folder: Path, collector: Collector, protocol: str, shape: Shape) -> Reports:
    """Two reports while it is there, two while it is not, one when it is back."""
    port = collector.grpc if protocol == "grpc" else collector.http
    endpoint = endpoint_of(Settings(endpoint=f"http://127.0.0.1:{port}", protocol=protocol), {})
    sender = Sender(endpoint, Spool(folder / "spool"), patience=Patience(first=0.1, most=0.5))
    sender.start()
    with Session(Options(hz=HZ, by=By.THREAD, stamps=shape is Shape.TIMESTAMPS, facts=True)) as session:
        session.prepare()
        session.start()
        reports = Reports(session, shape)
        reports.report(sender)
        reports.report(sender)
        wait_until(lambda: sender.counts().sent == sender.counts().submitted, "all is sent")
        collector.stop()
        reports.report(sender)
        wait_until(lambda: sender.counts().away, "the sender has noticed")
        reports.report(sender)
        assert sender.counts().waiting_spool > 0
        collector.start()
        reports.report(sender)
        wait_until(lambda: sender.counts().sent == sender.counts().submitted, "all is sent", 30)
        session.stop()
    sender.drain(5)
    counts = sender.counts()
    assert (counts.lost, counts.rejected) == ({}, 0)
    assert counts.sent == sum(batch.samples for batch in reports.batches)
    return reports
