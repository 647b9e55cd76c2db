# SPDX-License-Identifier: Apache-2.0
"""Answers of collectors: what may be sent again, when, and what never will be taken."""

import subprocess
import sys
import time

import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from pyprof.export.otlp.answer import (
    MESSAGE_BAD,
    MESSAGE_TOO_LARGE,
    Accepted,
    Answer,
    Refused,
    Retry,
    accepted,
    of_grpc,
    of_http,
)
from pyprof.export.otlp.partial import rejected_samples
from pyprof.export.otlp.patience import Patience
from tests.support.otlp_batches import batch_of

PROTOBUF = {"Content-Type": "application/x-protobuf"}
DATE = "Sun, 06 Nov 1994 08:49:37 GMT"


def retried(answer: Answer) -> Retry:
    assert isinstance(answer, Retry)
    return answer


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, "retry") for status in (429, 502, 503, 504)),
        *((status, "slow") for status in (301, 302, 307, 308, 401, 403, 404, 405, 407)),
        *((status, MESSAGE_BAD) for status in (400, 406, 408, 415, 422, 500, 501)),
        (413, MESSAGE_TOO_LARGE),
    ],
)
def test_http_status_decides(status: int, kind: str) -> None:
    answer = of_http(status, {}, b"")
    assert f"HTTP {status}" in answer.reason if not isinstance(answer, Accepted) else False
    if isinstance(answer, Retry):
        assert kind == ("slow" if answer.slow else "retry")
    else:
        assert isinstance(answer, Refused) and answer.loss == kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        *((c, "retry") for c in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED", "OUT_OF_RANGE")),
        ("DATA_LOSS", "retry"),
        *((code, "slow") for code in ("UNIMPLEMENTED", "UNAUTHENTICATED", "PERMISSION_DENIED")),
        *((c, MESSAGE_BAD) for c in ("INVALID_ARGUMENT", "UNKNOWN", "INTERNAL", "FAILED_PRECONDITION")),
        *((code, MESSAGE_BAD) for code in ("NOT_FOUND", "ALREADY_EXISTS")),
        ("RESOURCE_EXHAUSTED", MESSAGE_TOO_LARGE),
    ],
)
def test_grpc_code_decides(code: str, kind: str) -> None:
    answer = of_grpc(code, "why", None)
    if isinstance(answer, Retry):
        assert kind == ("slow" if answer.slow else "retry")
    else:
        assert isinstance(answer, Refused) and answer.loss == kind
    assert f"{code}: why" in answer.reason


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": " 0 "}, 0.0),
        ({"Retry-After": "9" * 400}, 999999999.0),
        ({"Retry-After": DATE}, 0.0),
        ({"Retry-After": "Sun, 06 Nov 1994 08:50:07 GMT", "Date": DATE}, 30.0),
        ({"Retry-After": DATE, "Date": "Sun, 06 Nov 1994 08:50:07 GMT"}, 0.0),
        ({}, None),
        ({"Retry-After": ""}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "1.5"}, None),
        ({"Retry-After": "Sun, 99 Nov 1994 08:49:37 GMT"}, None),
        ({"Retry-After": "Sun, 06 Nov 99999999999999999999 08:49:37 GMT"}, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert retried(of_http(503, headers, b"")).after == seconds


def test_retry_after_date_is_taken_by_our_clock_where_the_response_has_none() -> None:
    at = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 100))
    after = retried(of_http(503, {"Retry-After": at}, b"")).after
    assert after is not None and 90 < after <= 100


def test_retry_info_is_found_among_other_details() -> None:
    status = Status(code=8)
    status.details.add().Pack(ErrorInfo(reason="x"))
    status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=2, nanos=500_000_000)))
    content = status.SerializeToString()
    assert retried(of_grpc("RESOURCE_EXHAUSTED", "", content)).after == 2.5
    assert retried(of_grpc("UNAVAILABLE", "", content)).after == 2.5


@pytest.mark.parametrize("content", [b"\xff\xff", b"\x1a\x02\x0a\x09", Status(code=8).SerializeToString()])
def test_status_without_retry_info_is_none(content: bytes) -> None:
    assert isinstance(of_grpc("RESOURCE_EXHAUSTED", "", content), Refused)
    assert retried(of_grpc("UNAVAILABLE", "", content)).after is None


@pytest.mark.parametrize(
    ("code", "details", "midway"),
    [
        ("UNAVAILABLE", "Socket closed", True),
        ("UNAVAILABLE", "recvmsg:Connection reset by peer", True),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", True),
        ("UNAVAILABLE", "failed to connect to all addresses", False),
        ("UNAVAILABLE", "queue is full", False),
        ("ABORTED", "", False),
    ],
)
def test_grpc_connection_that_breaks_may_be_the_messages_doing(code: str, details: str, midway: bool) -> None:
    assert retried(of_grpc(code, details, None)).midway == midway


def test_text_of_an_http_error_is_that_of_its_status() -> None:
    body = Status(message="queue\nis\x00full").SerializeToString()
    assert retried(of_http(503, PROTOBUF, body)).reason == "HTTP 503: queue is?full"
    assert (
        retried(of_http(503, {"Content-Type": "text/plain; charset=x"}, b"a\xff b")).reason
        == "HTTP 503: a� b"
    )
    assert retried(of_http(503, PROTOBUF, b"\xff\xff")).reason == "HTTP 503"
    assert len(retried(of_http(503, {"Content-Type": "text/plain"}, b"x" * 9999)).reason) < 250


def test_too_large_is_recognised_where_the_collector_says_400() -> None:
    body = Status(message="http: request body too large").SerializeToString()  # 0.159, over 20 MiB
    answer = of_http(400, PROTOBUF, body)
    assert isinstance(answer, Refused) and answer.loss == MESSAGE_TOO_LARGE


@pytest.mark.parametrize("body", [b"", b"\x0a\x00"])
def test_success_is_accepted_whole(body: bytes) -> None:
    assert of_http(200, PROTOBUF, body) == Accepted()


def test_partial_success_is_read() -> None:
    # field 1 {field 1: 3, field 2: "no"}
    assert accepted(b"\x0a\x06\x08\x03\x12\x02no") == Accepted(3, "no")


def test_negative_rejection_counts_as_none() -> None:
    # int64 -1 is ten bytes on the wire.
    assert accepted(b"\x0a\x0b\x08" + b"\xff" * 9 + b"\x01").rejected_profiles == 0


def test_success_that_cannot_be_read_is_one_all_the_same() -> None:
    answer = of_http(200, PROTOBUF, b"\xff\xff")
    assert isinstance(answer, Accepted) and answer.rejected_profiles == 0 and answer.message


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_success_of_another_kind_is_accepted(kind: str) -> None:
    assert of_http(202, {"Content-Type": kind}, b'{"partialSuccess":{}}') == Accepted()


@pytest.mark.parametrize(("profiles", "samples"), [(-1, 0), (0, 0), (1, 9), (2, 14), (3, 17), (99, 17)])
def test_rejected_samples_are_the_most_that_so_many_profiles_hold(profiles: int, samples: int) -> None:
    assert rejected_samples(batch_of(5, 9, 3), profiles) == samples


def test_pause_doubles_up_to_its_bound() -> None:
    patience = Patience(first=1, most=60)
    for failures, bound in ((1, 1), (2, 2), (4, 8), (7, 60), (10_000, 60)):
        pauses = [patience.pause(failures, Retry("")) for _ in range(200)]
        assert min(pauses) > 0 and max(pauses) <= bound
        assert max(pauses) > bound * 0.8, "jitter over the whole of it"
        assert min(pauses) < max(bound * 0.2, 0.3)


def test_pause_is_at_least_what_the_collector_asks_for_and_capped() -> None:
    patience = Patience(asked_most=300)
    assert all(7 <= patience.pause(1, Retry("", 7.0)) <= 8 for _ in range(50))
    assert all(300 <= patience.pause(1, Retry("", 1e9)) <= 301 for _ in range(50))


def test_pause_is_long_where_somebody_has_to_change_something() -> None:
    patience = Patience()
    assert all(15 <= patience.pause(1, Retry("", None, True)) <= 30 for _ in range(50))
    assert all(300 <= patience.pause(50, Retry("", 1.0, True)) <= 600 for _ in range(50))


@pytest.mark.parametrize(
    ("code", "imported"),
    [
        ("import pyprof.session, pyprof.cli.main", False),
        ("from pyprof.export.otlp.sender import Sender", False),
        (
            "from pyprof.export.otlp import endpoint, transport\n"
            "where = endpoint.endpoint_of(endpoint.Settings('http://127.0.0.1:1'), {})\n"
            "assert transport.open_transport(where).send(b'', 1).reason",
            False,
        ),
        (
            "from pyprof.export.otlp import endpoint, transport\n"
            "where = endpoint.endpoint_of(endpoint.Settings('http://127.0.0.1:1', 'grpc'), {})\n"
            "assert transport.open_transport(where).send(b'', 1).reason",
            True,
        ),
    ],
)
def test_grpc_is_imported_only_where_it_is_used(code: str, imported: bool) -> None:
    code += "\nimport sys\nprint('grpc' in sys.modules, 'google.rpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(imported), "False"]
