# SPDX-License-Identifier: Apache-2.0
"""What an answer means for the batch: it arrived, it may be sent again, or it never will be taken.

Which codes are which: https://opentelemetry.io/docs/specs/otlp/#failures, #failures-1 for HTTP. Two kinds
of answers that the specification has clients drop are kept and tried again after a long time: that there is
no profiles service, and that our credentials are not good. They say nothing about the batch, and it is the
collector, or its settings, that will change.
"""

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

MESSAGE_BAD = "message refused by the collector"
MESSAGE_TOO_LARGE = "message too large for the collector"

NO_SERVICE = (
    "the collector has no profiles service: start it with --feature-gates=service.profilesSupport and give "
    "it a profiles pipeline; an older one may speak another version of the protocol"
)
BAD_CREDENTIALS = "the collector does not accept our credentials: see to headers and client certificate"

_MAX_TEXT = 200


class Headers(Protocol):
    """Of a response, looked up by names like "Content-Type"."""

    def get(self, name: str, failobj: str, /) -> str:
        """The value; `failobj` where there is none."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The collector has it.

    Attributes:
        rejected_profiles: profiles of the request that it did not take all the same.
        message: why not, or a warning; "" for none.
    """

    rejected_profiles: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Retry:
    """It may be sent again.

    Attributes:
        reason: what went wrong.
        after: seconds that the collector asks us to wait; None where it does not say.
        slow: it is not a matter of seconds: somebody has to change something.
        midway: the connection broke, or the answer did not come, after the request was on its way: where that
            goes on, it may be the message's own doing.
    """

    reason: str
    after: float | None = None
    slow: bool = False
    midway: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """This message will never be taken.

    Attributes:
        reason: what the collector says.
        loss: the reason under which its samples are counted as lost.
    """

    reason: str
    loss: str


Answer = Accepted | Retry | Refused


def of_http(status: int, headers: Headers, body: bytes) -> Answer:
    """What an HTTP response means.

    Args:
        status: its code.
        headers: its headers.
        body: its beginning.
    """
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if 200 <= status < 300:
        if kind == "text/html":
            return Retry("what answers is no collector: it sent a page of HTML", slow=True)
        return accepted(body if "json" not in kind and not kind.startswith("text/") else b"")
    said = _with(f"HTTP {status}", _error_text(kind, body))
    if status in {429, 502, 503, 504}:
        return Retry(said, _retry_after(headers))
    if 300 <= status < 400:
        where = cleaned(headers.get("Location", "").partition("?")[0]) or "its target"
        return Retry(f"redirects are not followed: make {where} the endpoint ({said})", slow=True)
    if status in {404, 405}:
        return Retry(f"{NO_SERVICE} ({said})", slow=True)
    if status in {401, 403, 407}:
        return Retry(f"{BAD_CREDENTIALS} ({said})", slow=True)
    # The OpenTelemetry Collector says 400, and why only in words.
    too_large = status == 413 or (status == 400 and "too large" in said)
    return Refused(said, MESSAGE_TOO_LARGE if too_large else MESSAGE_BAD)


def of_grpc(code: str, details: str, status: bytes | None) -> Answer:
    """What a gRPC status other than OK means.

    Args:
        code: its name, such as "UNAVAILABLE".
        details: its text.
        status: grpc-status-details-bin of the trailing metadata, a google.rpc.Status.
    """
    said = _with(code, cleaned(details))
    after = _retry_info(status) if status else None
    if code in {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED", "OUT_OF_RANGE", "DATA_LOSS"}:
        # gRPC has no code for a connection that breaks, only words.
        broken = "Socket closed" in details or "Connection reset" in details
        return Retry(said, after, midway=broken or code == "DEADLINE_EXCEEDED")
    if code == "RESOURCE_EXHAUSTED":
        return Refused(said, MESSAGE_TOO_LARGE) if after is None else Retry(said, after)
    if code == "UNIMPLEMENTED":
        return Retry(f"{NO_SERVICE} ({said})", slow=True)
    if code in {"UNAUTHENTICATED", "PERMISSION_DENIED"}:
        return Retry(f"{BAD_CREDENTIALS} ({said})", slow=True)
    return Refused(said, MESSAGE_BAD)


def accepted(body: bytes) -> Accepted:
    """The answer in an ExportProfilesServiceResponse. Nothing is lost where it cannot be read: that the batch
    was taken was said by the code."""
    if not body.strip(b"\0\n"):  # nothing, or an empty partial_success
        return Accepted()
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2

    try:
        partial = profiles_service_pb2.ExportProfilesServiceResponse.FromString(body).partial_success
    except DecodeError:
        return Accepted(message="the collector's answer is not one of OTLP")
    return Accepted(max(0, partial.rejected_profiles), cleaned(partial.error_message))


def cleaned(text: str) -> str:
    """A text of somebody else's, short and printable, on one line."""
    words = " ".join(text[: 4 * _MAX_TEXT].split())
    words = "".join(letter if letter.isprintable() else "?" for letter in words)
    return words if len(words) <= _MAX_TEXT else words[:_MAX_TEXT] + "..."


def _with(code: str, text: str) -> str:
    return f"{code}: {text}" if text else code


def _error_text(kind: str, body: bytes) -> str:
    """What the body of an error says: a google.rpc.Status, as OTLP has it, or text of a proxy."""
    if kind == "application/x-protobuf" and body:
        from google.protobuf.message import DecodeError
        from google.rpc import status_pb2

        with suppress(DecodeError):
            return cleaned(status_pb2.Status.FromString(body).message)
        return ""
    if kind in {"text/plain", "application/json"}:
        return cleaned(body[: 4 * _MAX_TEXT].decode(errors="replace"))
    return ""


def _retry_after(headers: Headers) -> float | None:
    """Seconds to wait, https://www.rfc-editor.org/rfc/rfc9110#field.retry-after; None where it says nothing.

    A date is taken relative to the response's own, where it has one, so that it need not be our clock's.
    """
    value = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"[0-9]+", value):
        return float(value[:9])
    at = _date(value)
    if at is None:
        return None
    now = _date(headers.get("Date", ""))
    return max(0.0, at - (time.time() if now is None else now))


def _date(text: str) -> float | None:
    """Seconds since 1970 of a date in a header."""
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):  # all that it is known to raise
        return None


def _retry_info(status: bytes) -> float | None:
    """Seconds of the google.rpc.RetryInfo in a google.rpc.Status; None where there is none."""
    from google.protobuf.message import DecodeError
    from google.rpc import error_details_pb2, status_pb2

    info = error_details_pb2.RetryInfo()
    try:
        for detail in status_pb2.Status.FromString(status).details:
            if detail.Is(info.DESCRIPTOR) and detail.Unpack(info):
                delay = info.retry_delay
                return max(0.0, float(delay.seconds + delay.nanos / 1e9))
    except DecodeError:
        return None
    return None
