# SPDX-License-Identifier: Apache-2.0
"""Collectors of profiles, over HTTP and over gRPC, that do as they are told: real servers on 127.0.0.1."""

import gzip
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, cast

import grpc

from pyprof.export.otlp.grpc import METHOD
from tests.support.otlp_batches import samples_in

PROTOBUF = "application/x-protobuf"


class Say(NamedTuple):
    """An HTTP response instead of 200."""

    status: int
    headers: dict[str, str] = {}  # noqa: RUF012  # never changed
    body: bytes = b""
    unread: bool = False  # answers, and closes, before the request was read
    takes: bool = False  # counts as received


class Hang:
    """No answer until the collector is closed."""


class Hold:
    """Takes the request when the collector's `release` is set."""


class Reset:
    """The connection is reset in the middle of the call."""


class Drip:
    """A byte of the answer now and then, without end."""


class Fail(NamedTuple):
    """A gRPC status instead of OK."""

    code: grpc.StatusCode
    details: str = ""
    status: bytes | None = None  # grpc-status-details-bin


class Reply(NamedTuple):
    """The bytes of a response that takes the request."""

    body: bytes


Step = Say | Hang | Hold | Reset | Drip | Fail | Reply


class Collector:
    """What both kinds have in common. A context manager; after `steps` every request is taken.

    Attributes:
        port: where it listens.
        payloads: requests that were taken, in order.
        times: when each request came, by time.monotonic().
        headers: of each request.
    """

    scheme = "http"

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self.steps = deque(steps)
        self.payloads: list[bytes] = []
        self.times: list[float] = []
        self.headers: list[dict[str, str]] = []
        self.closing = threading.Event()
        self.release = threading.Event()
        self.changed = threading.Condition()
        self.port = 0

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def samples(self) -> int:
        with self.changed:
            return sum(samples_in(payload) for payload in self.payloads)

    def came(self, headers: dict[str, str]) -> Step | None:
        with self.changed:
            self.times.append(time.monotonic())
            self.headers.append(headers)
            self.changed.notify_all()
            return self.steps.popleft() if self.steps else None

    def take(self, payload: bytes) -> None:
        with self.changed:
            self.payloads.append(payload)
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        """Until something that requests bring about."""
        with self.changed:
            assert self.changed.wait_for(condition, seconds), (
                len(self.times),
                len(self.payloads),
            )

    def wait_for_requests(self, count: int) -> None:
        self.wait(lambda: len(self.times) >= count)

    def wait_for_samples(self, count: int) -> None:
        self.wait(lambda: sum(samples_in(payload) for payload in self.payloads) >= count)


class HttpCollector(Collector):
    """OTLP over HTTP, with connections that are kept."""

    def __init__(
        self, steps: Iterable[Step] = (), *, port: int = 0, tls: ssl.SSLContext | None = None, limit: int = 0
    ) -> None:
        super().__init__(steps)
        self.limit = limit
        self.poison = 0
        """A request with so many samples resets the connection, each time."""
        self.connections: list[socket.socket] = []
        collector = self

        class Handler(_Handler):
            owner = collector

        self._server = _Server(("127.0.0.1", port), Handler)
        self._server.tls = tls
        self.scheme = "https" if tls else "http"
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> "HttpCollector":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        for connection in self.connections:
            _shut(connection)
        self._server.server_close()

    def drop_connections(self) -> None:
        """Closes what is kept, as servers do after a while."""
        for connection in self.connections:
            _shut(connection)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Server(ThreadingHTTPServer):
    tls: ssl.SSLContext | None = None
    daemon_threads = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that vanish are part of it."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: HttpCollector

    def setup(self) -> None:
        tls = cast(_Server, self.server).tls
        if tls is not None:
            self.request.settimeout(5)
            self.request = tls.wrap_socket(self.request, server_side=True)
            self.request.settimeout(None)
        self.owner.connections.append(self.request)
        super().setup()

    def finish(self) -> None:
        super().finish()
        if isinstance(self.request, ssl.SSLSocket):
            self.request.close()

    def log_message(self, *_: object) -> None:
        """Tests have no use for it."""

    def do_POST(self) -> None:
        owner = self.owner
        step = owner.came({name.lower(): value for name, value in self.headers.items()})
        if isinstance(step, Say) and step.unread:
            self._say(step)
            self.close_connection = True
            return
        length = int(self.headers["Content-Length"])
        if isinstance(step, Reset):
            self.rfile.read(min(length, 10))
            self._reset()
            return
        body = self.rfile.read(length)
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        if owner.poison and samples_in(body) == owner.poison:
            self._reset()
            return
        if isinstance(step, Hold):
            owner.release.wait()
        if isinstance(step, Hang):
            owner.closing.wait()
            self.close_connection = True
        elif isinstance(step, Drip):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not owner.closing.wait(0.05):
                self.wfile.write(b"x")
                self.wfile.flush()
        elif isinstance(step, Say):
            if step.takes:
                owner.take(body)
            self._say(step)
        elif owner.limit and len(body) > owner.limit:
            self._say(Say(413))
        else:
            owner.take(body)
            content = step.body if isinstance(step, Reply) else b""
            self._say(Say(200, {"Content-Type": PROTOBUF}, content))

    def _reset(self) -> None:
        # RST instead of FIN: struct linger {on, no seconds}.
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def _say(self, what: Say) -> None:
        self.send_response(what.status)
        for name, value in what.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(what.body)))
        self.end_headers()
        self.wfile.write(what.body)


class GrpcCollector(Collector):
    """OTLP over gRPC; a receiver of at most 4 MiB, which is what servers have unless told otherwise."""

    def __init__(
        self,
        steps: Iterable[Step] = (),
        *,
        port: int = 0,
        tls: Any = None,
        methods: Sequence[str] = (METHOD,),
    ) -> None:
        super().__init__(steps)
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((_Methods(self, methods),))
        address = f"127.0.0.1:{port}"
        self.scheme = "https" if tls else "http"
        if tls:
            self.port = self._server.add_secure_port(address, tls)
        else:
            self.port = self._server.add_insecure_port(address)

    def __enter__(self) -> "GrpcCollector":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.stop(0).wait()

    def export(self, payload: bytes, context: Any) -> bytes:
        step = self.came(dict(context.invocation_metadata()))
        if isinstance(step, Hold):
            self.release.wait()
        if isinstance(step, Hang):
            self.closing.wait()
        if isinstance(step, Fail):
            if step.status is not None:
                context.set_trailing_metadata((("grpc-status-details-bin", step.status),))
            context.abort(step.code, step.details)
        self.take(payload)
        return step.body if isinstance(step, Reply) else b""


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
    def __init__(self, owner: GrpcCollector, methods: Sequence[str]) -> None:
        self._owner = owner
        self._methods = methods

    def service(self, details: Any) -> Any:
        if details.method not in self._methods:
            return None
        return grpc.unary_unary_rpc_method_handler(self._owner.export)
