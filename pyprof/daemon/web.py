# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server for /metrics and /healthz: one thread, few clients, each with little time.

http.server would need a thread a client, and takes 10 MiB with what it imports.
"""

import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

from pyprof.daemon.settings import parse_address
from pyprof.errors import HostError

LOG = logging.getLogger(__name__)

MAX_CLIENTS = 16
"""When one more comes, the oldest has to go."""
MAX_REQUEST = 8192
CLIENT_SECONDS = 5.0
"""From the connection to the last byte of the answer."""
FAILED_SECONDS = 0.1
"""A pause after what should not happen, so that it cannot happen all the time."""
END_OF_HEAD = b"\r\n\r\n"


class Answer(NamedTuple):
    """What a page says."""

    status: int
    content_type: str
    body: bytes


Page = Callable[[str], Answer]
"""Makes an answer; is given the value of the request's Accept header."""


def text(status: int, words: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", (words + "\n").encode())


@dataclass(slots=True)
class Client:
    """A connection: what came, and what is still to go out."""

    connection: socket.socket
    deadline: float
    request: bytearray = field(default_factory=bytearray)
    answer: memoryview | None = None


def listen(address: str) -> socket.socket:
    """A listening socket.

    Raises:
        HostError: it cannot be had.
    """
    host, port = parse_address(address)
    try:
        family, *_, name = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        server = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(name)
            server.listen(MAX_CLIENTS)
        except OSError:
            server.close()
            raise
    except OSError as error:
        raise HostError(f"cannot listen on {address}: {error.strerror or error}") from error
    return server


class WebServer:
    """Serves pages until it is closed."""

    def __init__(self, server: socket.socket, pages: Mapping[str, Page]) -> None:
        """Takes the socket over; start() begins to serve.

        Args:
            server: listens, and does not block.
            pages: by path.
        """
        self._server = server
        self._pages = pages
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, Client] = {}
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(server, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and all connections."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        if self._thread.is_alive():
            self._thread.join()
        for client in list(self._clients.values()):
            self._end(client)
        self._selector.close()
        self._server.close()
        os.close(self._wake)

    def _run(self) -> None:
        while not self._closing:
            try:
                self._turn()
            except Exception:
                # Whatever it is, it must cost neither the thread nor the profiler.
                LOG.exception("a request failed")
                time.sleep(FAILED_SECONDS)

    def _turn(self) -> None:
        now = time.monotonic()
        nearest = min((client.deadline for client in self._clients.values()), default=None)
        for key, _ in self._selector.select(None if nearest is None else max(nearest - now, 0)):
            if key.fileobj is self._server:
                self._accept()
            elif isinstance(key.data, Client) and key.fd in self._clients:
                self._serve(key.data)
        now = time.monotonic()
        for client in [client for client in self._clients.values() if client.deadline <= now]:
            self._end(client)

    def _accept(self) -> None:
        try:
            connection, _ = self._server.accept()
        except OSError:
            # Also where there are no descriptors left: the oldest connection's helps.
            if self._clients:
                self._end(next(iter(self._clients.values())))
            else:
                time.sleep(FAILED_SECONDS)
            return
        if len(self._clients) >= MAX_CLIENTS:
            self._end(next(iter(self._clients.values())))
        connection.setblocking(False)
        client = Client(connection, time.monotonic() + CLIENT_SECONDS)
        self._clients[connection.fileno()] = client
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _end(self, client: Client) -> None:
        del self._clients[client.connection.fileno()]
        self._selector.unregister(client.connection)
        client.connection.close()

    def _serve(self, client: Client) -> None:
        try:
            if client.answer is None and not self._read(client):
                return
            if client.answer is not None:
                client.answer = client.answer[client.connection.send(client.answer) :]
                if client.answer:
                    return
                client.connection.shutdown(socket.SHUT_WR)
            self._end(client)
        except BlockingIOError:
            return
        except OSError:
            self._end(client)

    def _read(self, client: Client) -> bool:
        """Reads; whether there is an answer now, or the client left."""
        data = client.connection.recv(MAX_REQUEST)
        client.request += data
        ended = END_OF_HEAD in client.request
        if data and not ended and len(client.request) <= MAX_REQUEST:
            return False
        if ended or len(client.request) > MAX_REQUEST:
            try:
                answer = respond(bytes(client.request), self._pages)
            except Exception:
                LOG.exception("a page cannot be made")
                answer = response(text(HTTPStatus.INTERNAL_SERVER_ERROR, "this page cannot be made"))
            client.answer = memoryview(answer)
            self._selector.modify(client.connection, selectors.EVENT_WRITE, client)
        return True


def respond(request: bytes, pages: Mapping[str, Page]) -> bytes:
    """The whole response to a request, by RFC 9112.

    Args:
        request: its head, and what came after.
        pages: by path.
    """
    head, end, _ = request.partition(END_OF_HEAD)
    if not end or len(head) > MAX_REQUEST:
        return response(text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too large"))
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return response(text(HTTPStatus.BAD_REQUEST, "that is no HTTP/1 request"))
    method, target, _ = words
    if method not in ("GET", "HEAD"):
        return response(text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD"), "Allow: GET, HEAD\r\n")
    page = pages.get(target.partition("?")[0])
    if page is None:
        return response(text(HTTPStatus.NOT_FOUND, f"there are: {', '.join(pages)}"))
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    whole = response(page(headers.get("accept", "")))
    return whole[: whole.index(END_OF_HEAD) + len(END_OF_HEAD)] if method == "HEAD" else whole


def response(answer: Answer, more: str = "") -> bytes:
    phrase = ""
    with suppress(ValueError):
        phrase = HTTPStatus(answer.status).phrase
    head = (
        f"HTTP/1.1 {answer.status:d} {phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        f"Cache-Control: no-store\r\n{more}Connection: close\r\n\r\n"
    )
    return head.encode() + answer.body
