# SPDX-License-Identifier: Apache-2.0
"""The daemon's HTTP server: what it answers, and that no client keeps others waiting."""

import http.client
import socket
import time
from collections.abc import Iterator

import pytest

from pyprof.daemon import web
from pyprof.daemon.web import MAX_CLIENTS, MAX_REQUEST, Answer, WebServer, listen
from pyprof.errors import HostError


def fail(_: str) -> Answer:
    raise ValueError("no")


@pytest.fixture
def server() -> Iterator[WebServer]:
    made = WebServer(
        listen("127.0.0.1:0"),
        {
            "/page": lambda accept: Answer(200, "text/plain", b"hello " + accept.encode()),
            "/large": lambda _: Answer(200, "text/plain", b"x" * 20_000_000),
            "/broken": fail,
        },
    )
    made.start()
    yield made
    made.close()


def ask(server: WebServer, method: str, path: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


def raw(server: WebServer, request: bytes) -> bytes:
    """All that comes back for bytes that need be no request."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(request)
        parts = []
        while part := client.recv(65536):
            parts.append(part)
        return b"".join(parts)


def test_page_is_served_with_what_the_client_accepts(server: WebServer) -> None:
    status, body, headers = ask(server, "GET", "/page?x=1", Accept="text/x")
    assert (status, body) == (200, b"hello text/x")
    assert headers["Content-Length"] == "12"
    assert headers["Connection"] == "close"


def test_head_has_the_headers_and_no_body(server: WebServer) -> None:
    status, body, headers = ask(server, "HEAD", "/page")
    assert (status, body, headers["Content-Length"]) == (200, b"", "6")
    assert raw(server, b"HEAD /page HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(server: WebServer, method: str) -> None:
    status, _, headers = ask(server, method, "/page")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_unknown_path_is_told_what_there_is(server: WebServer) -> None:
    assert ask(server, "GET", "/")[:2] == (404, b"there are: /page, /large, /broken\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\r\n\r\n", b"400"),
        (b"GET /page\r\n\r\n", b"400"),
        (b"GET /page HTTP/2.0\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x00\xff\xfe\r\n\r\n", b"400"),
        (b"GET /page HTTP/1.1\r\nno colon\r\n\xff: \xff\r\n\r\n", b"200"),
        (b"GET /page HTTP/1.1\r\nX: " + b"x" * MAX_REQUEST, b"431"),
    ],
)
def test_what_is_no_request_is_answered_all_the_same(
    server: WebServer, request_: bytes, status: bytes
) -> None:
    assert raw(server, request_).split(b" ")[1] == status


def test_page_that_fails_costs_its_client_only(server: WebServer, caplog: pytest.LogCaptureFixture) -> None:
    assert ask(server, "GET", "/broken")[0] == 500
    assert "a page cannot be made" in caplog.text
    assert ask(server, "GET", "/page")[0] == 200


def test_request_in_pieces_is_put_together(server: WebServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in (b"GET /pa", b"ge HTTP/1.1\r", b"\n\r", b"\n"):
            client.sendall(piece)
            # Another client's whole request lies between.
            assert ask(server, "GET", "/page")[0] == 200
        assert client.recv(15) == b"HTTP/1.1 200 OK"


def test_silent_clients_do_not_keep_others_out(server: WebServer) -> None:
    silent = [
        socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(MAX_CLIENTS + 4)
    ]
    try:
        assert ask(server, "GET", "/page")[0] == 200
        # The oldest had to go.
        assert silent[0].recv(1) == b""
    finally:
        for client in silent:
            client.close()


def test_client_that_does_not_read_does_not_keep_others_waiting(server: WebServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        assert ask(server, "GET", "/page")[0] == 200


def test_client_that_is_slow_is_let_go_in_time(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "CLIENT_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        begun = time.monotonic()
        client.sendall(b"GET ")
        assert client.recv(1) == b""
        assert time.monotonic() - begun >= 0.1


def test_client_that_left_in_mid_answer_is_forgotten(server: WebServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        assert client.recv(1) == b"H"
    assert ask(server, "GET", "/page")[0] == 200


def test_address_in_use_is_told_in_one_sentence(server: WebServer) -> None:
    with pytest.raises(HostError, match=rf"^cannot listen on 127\.0\.0\.1:{server.port}: Address already"):
        listen(f"127.0.0.1:{server.port}")


def test_ipv6_is_listened_on_where_it_is_asked_for() -> None:
    try:
        listening = listen("[::1]:0")
    except HostError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with listening:
        assert listening.family == socket.AF_INET6
