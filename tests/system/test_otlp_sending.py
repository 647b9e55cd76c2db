# SPDX-License-Identifier: Apache-2.0
"""Profiles sent to servers that refuse, hang, reset, and come back: no sample is lost without a count."""

import logging
import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceResponse,
)

from pyprof.export.otlp.answer import MESSAGE_BAD, MESSAGE_TOO_LARGE
from pyprof.export.otlp.endpoint import GRPC, HTTP, Settings, endpoint_of
from pyprof.export.otlp.sender import NOT_SENT, QUEUE_FULL, Sender
from pyprof.export.otlp.spool import Spool
from tests.support.collector_stub import (
    Drip,
    Fail,
    GrpcCollector,
    Hang,
    Hold,
    HttpCollector,
    Reply,
    Reset,
    Say,
    Step,
)
from tests.support.otlp_batches import balanced, batch_of
from tests.support.otlp_sending import NEVER, QUICK, endpoint_for, sending, settled, unused_port
from tests.support.profiling import wait_until

kinds = pytest.mark.parametrize("kind", [HttpCollector, GrpcCollector])
Kind = type[HttpCollector] | type[GrpcCollector]


@kinds
def test_batches_arrive_in_order(kind: Kind) -> None:
    with kind() as collector, sending(endpoint_for(collector)) as sender:
        for samples in (1, 2, 3):
            sender.submit(batch_of(samples))
        counts = settled(sender, 6)
        assert collector.payloads == [batch_of(n).payload for n in (1, 2, 3)]
        assert (counts.submitted, counts.requests, counts.retries, counts.last_error) == (6, 3, 0, "")
        assert counts.bytes == sum(len(batch_of(n).payload) for n in (1, 2, 3))
        assert counts.since_success is not None and counts.since_success < 20


@kinds
@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_payload_is_the_same_with_each_compression(kind: Kind, compression: str) -> None:
    batch = batch_of(5, size=100_000)
    with kind() as collector, sending(endpoint_for(collector, compression=compression)) as sender:
        sender.submit(batch)
        settled(sender, 5)
        assert collector.payloads == [batch.payload]


@kinds
def test_headers_of_the_endpoint_are_sent(kind: Kind) -> None:
    with kind() as collector:
        endpoint = endpoint_for(collector, headers={"X-Tenant": "blue", "authorization": "Bearer t"})
        with sending(endpoint) as sender:
            sender.submit(batch_of(1))
            settled(sender, 1)
        (headers,) = collector.headers
        assert (headers["x-tenant"], headers["authorization"]) == ("blue", "Bearer t")
        assert headers["user-agent"].startswith("pyprof/")


def test_http_connection_is_kept_for_the_next_request() -> None:
    with HttpCollector() as collector, sending(endpoint_for(collector)) as sender:
        for samples in range(1, 6):
            sender.submit(batch_of(samples))
        settled(sender, 15)
        assert len(collector.connections) == 1
        assert collector.headers[0]["content-type"] == "application/x-protobuf"


def test_request_goes_on_a_new_connection_where_the_kept_one_was_closed() -> None:
    with HttpCollector() as collector, sending(endpoint_for(collector), patience=NEVER) as sender:
        sender.submit(batch_of(1))
        settled(sender, 1)
        collector.drop_connections()
        sender.submit(batch_of(2))
        counts = settled(sender, 3)
        assert (len(collector.connections), counts.retries) == (2, 0)


@kinds
def test_nothing_is_lost_while_connections_are_refused(kind: Kind, tmp_path: Path) -> None:
    port = unused_port()
    with kind(port=port) as away:
        endpoint = endpoint_for(away)
    with sending(endpoint, Spool(tmp_path / "spool")) as sender:
        for samples in (1, 2, 3):
            sender.submit(batch_of(samples))
        wait_until(lambda: sender.counts().waiting_spool == 6, "all in the spool")
        counts = sender.counts()
        assert (counts.waiting_memory, counts.sent, counts.lost, counts.away) == (0, 0, {}, True)
        assert counts.last_error
        with kind(port=port) as collector:
            counts = settled(sender, 6)
            assert collector.payloads == [batch_of(n).payload for n in (1, 2, 3)]
            assert (counts.lost, counts.waiting_spool, counts.away) == ({}, 0, False)


@kinds
def test_collector_that_dies_and_comes_back_gets_everything(kind: Kind, tmp_path: Path) -> None:
    with kind() as first:
        endpoint = endpoint_for(first)
        sender = Sender(endpoint, Spool(tmp_path / "spool"), patience=QUICK)
        sender.start()
        sender.submit(batch_of(1))
        settled(sender, 1)
    for samples in (2, 3, 4):
        sender.submit(batch_of(samples))
    wait_until(lambda: sender.counts().waiting_spool == 9, "all in the spool")
    with kind(port=first.port) as second:
        settled(sender, 10)
        sender.drain(5)
        assert first.samples + second.samples == 10
        assert not sender.counts().lost


@kinds
def test_hang_is_given_up_after_the_timeout(kind: Kind, tmp_path: Path) -> None:
    with kind([Hang()]) as collector:
        with sending(endpoint_for(collector, timeout=1), Spool(tmp_path / "spool")) as sender:
            sender.submit(batch_of(3))
            counts = settled(sender, 3)
            assert 0.9 < collector.times[1] - collector.times[0] < 8
            assert (counts.retries, collector.samples, counts.lost) == (1, 3, {})


def test_answer_that_never_ends_is_given_up_after_the_timeout(tmp_path: Path) -> None:
    with HttpCollector([Drip()]) as collector:
        with sending(endpoint_for(collector, timeout=1), Spool(tmp_path / "spool")) as sender:
            sender.submit(batch_of(3))
            settled(sender, 3)
            assert 0.9 < collector.times[1] - collector.times[0] < 8


def test_reset_in_the_middle_of_a_call_is_tried_again(tmp_path: Path) -> None:
    with HttpCollector([Reset()]) as collector:
        with sending(endpoint_for(collector), Spool(tmp_path / "spool")) as sender:
            sender.submit(batch_of(3, size=3_000_000))
            counts = settled(sender, 3)
            assert (counts.retries, collector.samples, counts.lost) == (1, 3, {})


def test_grpc_connection_that_is_reset_is_tried_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        endpoint = endpoint_of(Settings(f"http://127.0.0.1:{port}", GRPC), {})
        with sending(endpoint, Spool(tmp_path / "spool")) as sender:
            sender.submit(batch_of(3))
            connection, _ = listener.accept()
            connection.recv(10)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.close()
            listener.close()
            wait_until(lambda: sender.counts().waiting_spool == 3, "in the spool")
            with GrpcCollector(port=port) as collector:
                settled(sender, 3)
                assert collector.samples == 3


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_busy_http_collector_is_asked_again(status: int) -> None:
    with HttpCollector([Say(status)]) as collector, sending(endpoint_for(collector)) as sender:
        sender.submit(batch_of(4))
        counts = settled(sender, 4)
        assert (counts.retries, counts.requests, counts.lost) == (1, 2, {})
        assert str(status) in counts.last_error


def test_retry_after_is_kept() -> None:
    with HttpCollector([Say(503, {"Retry-After": "1"})]) as collector:
        with sending(endpoint_for(collector)) as sender:
            sender.submit(batch_of(4))
            settled(sender, 4)
        assert 1 <= collector.times[1] - collector.times[0] < 8


def test_retry_info_is_kept() -> None:
    status = Status(code=8)
    status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=1)))
    step = Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "later", status.SerializeToString())
    with GrpcCollector([step]) as collector, sending(endpoint_for(collector)) as sender:
        sender.submit(batch_of(4))
        counts = settled(sender, 4)
        assert 1 <= collector.times[1] - collector.times[0] < 8
        assert (counts.retries, counts.lost) == (1, {})


@pytest.mark.parametrize(
    "name", ["UNAVAILABLE", "CANCELLED", "ABORTED", "OUT_OF_RANGE", "DATA_LOSS", "DEADLINE_EXCEEDED"]
)
def test_grpc_code_that_may_pass_is_tried_again(name: str) -> None:
    with GrpcCollector([Fail(grpc.StatusCode[name])]) as collector:
        with sending(endpoint_for(collector)) as sender:
            sender.submit(batch_of(4))
            counts = settled(sender, 4)
            assert (counts.retries, counts.lost) == (1, {})


@kinds
def test_message_that_is_too_large_is_counted_and_the_next_goes_on(kind: Kind, tmp_path: Path) -> None:
    with HttpCollector(limit=4 << 20) if kind is HttpCollector else GrpcCollector() as collector:
        with sending(endpoint_for(collector), Spool(tmp_path / "spool")) as sender:
            sender.submit(batch_of(7, size=(4 << 20) + 1))
            sender.submit(batch_of(2))
            counts = settled(sender, 2)
            assert counts.lost == {MESSAGE_TOO_LARGE: 7}
            assert (collector.samples, counts.retries) == (2, 0)


def test_http_answer_that_comes_before_all_was_sent_is_read(tmp_path: Path) -> None:
    with HttpCollector([Say(413, unread=True)]) as collector:
        with sending(endpoint_for(collector, compression="none")) as sender:
            sender.submit(batch_of(7, size=200_000))
            wait_until(lambda: sum(sender.counts().lost.values()) == 7, "counted")
            assert sender.counts().lost == {MESSAGE_TOO_LARGE: 7}


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        (HttpCollector, Say(400)),
        (HttpCollector, Say(500)),
        (GrpcCollector, Fail(grpc.StatusCode.INVALID_ARGUMENT)),
        (GrpcCollector, Fail(grpc.StatusCode.INTERNAL)),
    ],
)
def test_message_that_is_refused_is_counted_and_the_next_goes_on(kind: Kind, step: Step) -> None:
    with kind([step]) as collector, sending(endpoint_for(collector)) as sender:
        sender.submit(batch_of(7))
        sender.submit(batch_of(2))
        counts = settled(sender, 2)
        assert (counts.lost, collector.samples) == ({MESSAGE_BAD: 7}, 2)


@kinds
def test_rejected_profiles_are_counted_in_samples(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    response = ExportProfilesServiceResponse()
    response.partial_success.rejected_profiles = 2
    response.partial_success.error_message = "no such\nprofile type"
    with kind([Reply(response.SerializeToString())]) as collector:
        with sending(endpoint_for(collector)) as sender:
            sender.submit(batch_of(5, 1, 3))
            counts = settled(sender, 1)
            # Which two they are is not said: at most 5 + 3.
            assert (counts.sent, counts.rejected, counts.lost) == (1, 8, {})
    assert "no such profile type" in caplog.text


@pytest.mark.parametrize(
    ("kind", "step", "explained"),
    [
        (HttpCollector, Say(404), "service.profilesSupport"),
        (HttpCollector, Say(401), "credentials"),
        (HttpCollector, Say(403), "credentials"),
        (HttpCollector, Say(307, {"Location": "http://elsewhere/x?key=secret"}), "http://elsewhere/x"),
        (HttpCollector, Say(200, {"Content-Type": "text/html"}, b"<html>"), "no collector"),
        (GrpcCollector, Fail(grpc.StatusCode.UNIMPLEMENTED), "service.profilesSupport"),
        (GrpcCollector, Fail(grpc.StatusCode.UNAUTHENTICATED), "credentials"),
        (GrpcCollector, Fail(grpc.StatusCode.PERMISSION_DENIED), "credentials"),
    ],
)
def test_what_somebody_has_to_change_is_explained_and_kept(
    kind: Kind, step: Step, explained: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with kind([step]) as collector:
        with sending(endpoint_for(collector), Spool(tmp_path / "spool")) as sender:
            sender.submit(batch_of(7))
            counts = settled(sender, 7)
            assert (collector.samples, counts.lost, counts.retries) == (7, {}, 1)
            assert explained in counts.last_error
    assert explained in caplog.text
    assert "secret" not in caplog.text


def test_collector_without_the_service_is_waited_for(tmp_path: Path) -> None:
    with GrpcCollector(methods=()) as old:
        endpoint = endpoint_for(old)
        sender = Sender(endpoint, Spool(tmp_path / "spool"), patience=QUICK)
        sender.start()
        sender.submit(batch_of(7))
        wait_until(lambda: sender.counts().waiting_spool == 7, "in the spool")
    with GrpcCollector(port=old.port) as upgraded:
        settled(sender, 7)
        sender.drain(5)
        assert upgraded.samples == 7


@kinds
def test_new_batches_and_the_spool_take_turns(kind: Kind, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    for _ in range(20):
        spool.put(batch_of(1))
    with kind([Hold()]) as collector, sending(endpoint_for(collector), spool) as sender:
        collector.wait_for_requests(1)
        for _ in range(3):
            sender.submit(batch_of(100))
        collector.release.set()
        settled(sender, 320)
        old, new = batch_of(1).payload, batch_of(100).payload
        assert collector.payloads == [old, new, old, new, old, new, *17 * [old]]


def test_log_says_once_that_the_collector_is_away_and_that_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with HttpCollector([Say(503)] * 5) as collector:
        with sending(endpoint_for(collector), Spool(tmp_path / "spool")) as sender:
            sender.submit(batch_of(4))
            assert settled(sender, 4).retries == 5
    texts = [record.getMessage() for record in caplog.records]
    assert len([text for text in texts if "nothing can be sent" in text and "HTTP 503" in text]) == 1
    assert len([text for text in texts if "answers again" in text and "4 samples wait" in text]) == 1
    assert len(texts) == 2


def test_queue_is_bounded_without_a_spool() -> None:
    with HttpCollector([Hang()]) as collector:
        with sending(endpoint_for(collector), queue_bytes=250_000, drain=1) as sender:
            for _ in range(5):
                sender.submit(batch_of(3, size=100_000))
            assert sender.counts().lost == {QUEUE_FULL: 9}
            assert sender.counts().waiting_memory == 6
            collector.closing.set()
        assert sender.counts().sent + sum(sender.counts().lost.values()) == 15


def test_what_does_not_fit_in_the_queue_goes_to_the_spool(tmp_path: Path) -> None:
    with HttpCollector([Hang()]) as collector:
        endpoint = endpoint_for(collector, timeout=1)
        with sending(endpoint, Spool(tmp_path / "spool"), queue_bytes=250_000) as sender:
            collector_hangs = batch_of(3, size=100_000)
            sender.submit(collector_hangs)
            collector.wait_for_requests(1)
            for _ in range(4):
                sender.submit(batch_of(3, size=100_000))
            assert (sender.counts().waiting_memory, sender.counts().waiting_spool) == (6, 9)
            counts = settled(sender, 15)
            assert (counts.lost, collector.samples) == ({}, 15)
            assert collector.payloads[0] == collector_hangs.payload


def test_batch_larger_than_the_queue_is_sent() -> None:
    with HttpCollector() as collector:
        with sending(endpoint_for(collector), queue_bytes=1000) as sender:
            sender.submit(batch_of(3, size=100_000))
            assert settled(sender, 3).lost == {}


def test_batch_larger_than_the_spool_waits_in_memory_and_the_others_on_disk(tmp_path: Path) -> None:
    port = unused_port()
    nowhere = endpoint_of(Settings(f"http://127.0.0.1:{port}"), {})
    with sending(nowhere, Spool(tmp_path / "spool", max_bytes=5 * 4096)) as sender:
        sender.submit(batch_of(100, size=100_000))
        for _ in range(5):
            sender.submit(batch_of(1))
        wait_until(lambda: sender.counts().waiting_spool == 5, "small ones in the spool")
        assert sender.counts().waiting_memory == 100
        with HttpCollector(port=port) as collector:
            assert settled(sender, 105).lost == {}
            assert collector.samples == 105


@pytest.mark.parametrize("spooled", [True, False])
def test_batch_that_breaks_every_connection_does_not_hold_up_the_others(
    spooled: bool, tmp_path: Path
) -> None:
    spool = Spool(tmp_path / "spool") if spooled else None
    with HttpCollector() as collector:
        collector.poison = 1000
        with sending(endpoint_for(collector), spool, drain=0.2) as sender:
            for samples in (1, 1000, 2, 3):
                sender.submit(batch_of(samples))
            counts = settled(sender, 6)
            assert counts.waiting_memory + counts.waiting_spool == 1000
            sender.submit(batch_of(4))
            settled(sender, 10)
            assert collector.payloads == [batch_of(n).payload for n in (1, 2, 3, 4)]
            collector.poison = 0
            assert settled(sender, 1010).lost == {}


@kinds
def test_drain_sends_what_is_queued(kind: Kind, tmp_path: Path) -> None:
    with kind() as collector:
        sender = Sender(endpoint_for(collector), Spool(tmp_path / "spool"))
        for samples in range(1, 11):
            sender.submit(batch_of(samples))
        sender.start()
        sender.drain(20)
        assert collector.samples == 55
        assert (sender.counts().sent, sender.counts().waiting_spool) == (55, 0)


@kinds
def test_drain_puts_into_the_spool_what_a_hanging_collector_does_not_take(kind: Kind, tmp_path: Path) -> None:
    with kind([Hang()]) as collector:
        sender = Sender(endpoint_for(collector, timeout=600), Spool(tmp_path / "spool"))
        sender.start()
        sender.submit(batch_of(1))
        collector.wait_for_requests(1)
        sender.submit(batch_of(2))
        sender.drain(0.2)
        counts = sender.counts()
        assert (counts.waiting_memory, counts.waiting_spool, counts.lost) == (0, 3, {})
        assert balanced(counts)
    spool = Spool(tmp_path / "spool")
    assert spool.found == 3
    spool.close()


def test_drain_counts_what_nobody_keeps() -> None:
    with HttpCollector([Say(503)] * 1000) as collector:
        sender = Sender(endpoint_for(collector), patience=QUICK)
        sender.start()
        sender.submit(batch_of(5))
        collector.wait_for_requests(1)
        sender.drain(0.2)
        sender.submit(batch_of(6))
        assert sender.counts().lost == {NOT_SENT: 11}
        assert balanced(sender.counts())


def test_reload_sends_to_the_new_endpoint_at_once(tmp_path: Path) -> None:
    nowhere = endpoint_of(Settings(f"http://127.0.0.1:{unused_port()}"), {})
    with HttpCollector() as collector:
        with sending(nowhere, Spool(tmp_path / "spool"), patience=NEVER) as sender:
            sender.submit(batch_of(5))
            wait_until(lambda: sender.counts().waiting_spool == 5, "in the spool")
            sender.reload(endpoint_for(collector))
            settled(sender, 5)
        assert collector.samples == 5


CRASHING = """
import sys
from pyprof.export.otlp.endpoint import Settings, endpoint_of
from pyprof.export.otlp.patience import Patience
from pyprof.export.otlp.sender import Sender
from pyprof.export.otlp.spool import Spool
from tests.support.otlp_batches import batch_of

endpoint = endpoint_of(Settings(sys.argv[1], sys.argv[2]), {})
sender = Sender(endpoint, Spool(sys.argv[3]), patience=Patience(first=0.02, most=0.1))
sender.start()
for samples in range(1, 11):
    sender.submit(batch_of(samples))
while sender.counts().waiting_spool < 55:
    pass
print("kept", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("kind", "protocol"), [(HttpCollector, HTTP), (GrpcCollector, GRPC)])
def test_spool_of_a_killed_process_is_sent_by_the_next(kind: Kind, protocol: str, tmp_path: Path) -> None:
    port = unused_port()
    arguments = (f"http://127.0.0.1:{port}", protocol, str(tmp_path / "spool"))
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", CRASHING, *arguments], stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "kept\n"
        process.send_signal(signal.SIGKILL)
        process.communicate()
    with kind(port=port) as collector, sending(endpoint_for(collector), Spool(tmp_path / "spool")) as sender:
        counts = settled(sender, 55)
        assert (counts.found, counts.submitted, counts.lost, collector.samples) == (55, 0, {}, 55)
        assert collector.payloads == [batch_of(n).payload for n in range(1, 11)]
