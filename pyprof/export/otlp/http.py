# SPDX-License-Identifier: Apache-2.0
"""OTLP over HTTP, https://opentelemetry.io/docs/specs/otlp/#otlphttp: one connection that is kept."""

import io
import select
import socket
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from pyprof import __version__
from pyprof.export.otlp.answer import Answer, Retry, cleaned, of_http
from pyprof.export.otlp.endpoint import Endpoint
from pyprof.export.otlp.http_client import http

if TYPE_CHECKING:
    import ssl

GZIP_LEVEL = 1
"""Of zlib, in gzip's format. Of a host's profile of 1.2 MB level 1 makes 358 KB in 11 ms, level 6 319 KB in
35 ms."""

_MAX_ANSWER = 64 << 10
_GZIP_WINDOW = 31  # zlib's number for 32 KiB and gzip's header and trailer


class HttpTransport:
    """See Transport."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Opens nothing yet.

        Raises:
            ConfigError: certificates or keys cannot be used.
        """
        parts = urlsplit(endpoint.url)
        self._target = parts.path + (f"?{parts.query}" if parts.query else "")
        self._compress = endpoint.compression == "gzip"
        self._headers = {
            "user-agent": f"pyprof/{__version__}",
            **dict(endpoint.headers),
            "content-type": "application/x-protobuf",
        }
        if self._compress:
            self._headers["content-encoding"] = "gzip"
        context = None
        if endpoint.secure:
            from pyprof.export.otlp.tls import context_of

            context = context_of(endpoint)
        self._connected = False
        """Whether the last request was on its way."""
        host = parts.hostname or ""
        self._connection = _Connection(host, parts.port or (443 if endpoint.secure else 80), context)

    def send(self, payload: bytes, timeout: float) -> Answer:
        """See Transport."""
        connection = self._connection
        connection.deadline = time.monotonic() + timeout
        body = zlib.compress(payload, GZIP_LEVEL, _GZIP_WINDOW) if self._compress else payload
        try:
            if connection.is_open():
                try:
                    return self._exchange(body)
                except (ConnectionError, http.client.BadStatusLine):
                    # The other side closes what was idle for long; that it did so just now says nothing yet.
                    connection.close()
            return self._exchange(body)
        except TimeoutError:
            connection.close()
            return Retry(f"no answer within {timeout:g} s", midway=self._connected)
        except (OSError, UnicodeError) as error:  # a name that cannot be resolved may be the latter
            connection.close()
            return Retry(cleaned(str(error)), slow=_is_certificate_problem(error), midway=self._connected)
        except http.client.HTTPException as error:
            connection.close()
            return Retry(f"what answers does not speak HTTP: {cleaned(str(error) or type(error).__name__)}")

    def _exchange(self, body: bytes) -> Answer:
        """One request and its answer.

        Raises:
            OSError, http.client.HTTPException: there was none.
        """
        connection = self._connection
        self._connected = connection.sock is not None
        if not self._connected:
            connection.connect()
            self._connected = True
        try:
            connection.request("POST", self._target, body, self._headers)
        except ConnectionError as error:
            # Who refuses what is too large may answer and close before all of it was sent.
            try:
                response = connection.getresponse()
            except (OSError, http.client.HTTPException):
                raise error from None
        else:
            response = connection.getresponse()
        content = response.read(_MAX_ANSWER)
        answer = of_http(response.status, response.headers, content)
        if not response.isclosed():  # there is more, which nobody needs
            connection.close()
        return answer

    def abort(self) -> None:
        """See Transport."""
        self._connection.abort()

    def close(self) -> None:
        """See Transport."""
        self._connection.close()


class _Connection(http.client.HTTPConnection):
    """A connection on which everything ends at one moment, `deadline`: http.client bounds each step alone, so
    that who sends a byte a second would never be given up."""

    deadline = 0.0

    def __init__(self, host: str, port: int, context: "ssl.SSLContext | None") -> None:
        super().__init__(host, port)
        self._context = context
        self._lock = threading.Lock()
        self._raw: socket.socket | None = None
        self._aborted = False

    def is_open(self) -> bool:
        """Whether there is a connection to use again: one that has something to say was closed, or is not in
        step."""
        if self.sock is None:
            return False
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        if poll.poll(0):
            self.close()
            return False
        return True

    def connect(self) -> None:
        """Tries each address of the host, with an equal share of the time that is left."""
        addresses = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        for number, (family, kind, protocol, _, address) in enumerate(addresses, 1):
            raw = socket.socket(family, kind, protocol)
            try:
                self._made(raw)
                raw.settimeout(self._left() / (len(addresses) - number + 1))
                raw.connect(address)
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._context is not None:
                    raw.settimeout(self._left())
                    raw = self._context.wrap_socket(raw, server_hostname=self.host)
                    self._made(raw)
            except OSError as error:
                raw.close()
                if number == len(addresses) or _is_certificate_problem(error):
                    raise
                continue
            self.sock = cast(socket.socket, _Bounded(raw, self._left))
            return
        raise OSError(f"{self.host} has no address")

    def abort(self) -> None:
        with self._lock:
            self._aborted = True
            if self._raw is not None:
                # Where it is not connected any more, or not yet, its time is bounded all the same.
                with suppress(OSError):
                    # Not SSLSocket's, which would take its state away under the other thread's feet.
                    socket.socket.shutdown(self._raw, socket.SHUT_RDWR)

    def _made(self, raw: socket.socket) -> None:
        with self._lock:
            self._raw = raw
            if self._aborted:
                raise ConnectionAbortedError("ended")

    def _left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class _Bounded:
    """As much of a socket as http.client uses."""

    def __init__(self, raw: socket.socket, left: Callable[[], float]) -> None:
        self._raw = raw
        self._left = left

    def fileno(self) -> int:
        return self._raw.fileno()

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self._raw.settimeout(self._left())
            rest = rest[self._raw.send(rest) :]

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_BoundedReader(self._raw, self._left))

    def close(self) -> None:
        self._raw.close()


class _BoundedReader(io.RawIOBase):
    """What a socket receives. The socket is open as long as one of both is: http.client closes it before the
    body is read, where the server is going to."""

    def __init__(self, raw: socket.socket, left: Callable[[], float]) -> None:
        super().__init__()
        self._raw = raw
        self._left = left
        self._file = raw.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._raw.settimeout(self._left())
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


def _is_certificate_problem(error: Exception) -> bool:
    """Whether somebody has to change a certificate or TLS version: a lost connection has other errors."""
    import ssl

    return isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
