# SPDX-License-Identifier: Apache-2.0
"""The socket of a running recorder: answers, privacy, what is left behind."""

import os
import select
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyprof import control
from pyprof.control import ControlSocket, ask, running
from pyprof.errors import HostError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "run"
    monkeypatch.setattr(control, "FOLDER", path)
    yield path


def ask_while_served(server: ControlSocket) -> dict[str, object]:
    answers: list[dict[str, object]] = []
    asking = threading.Thread(target=lambda: answers.append(ask(os.getpid())))
    asking.start()
    assert select.select([server.fd], [], [], 30)[0]
    server.serve()
    asking.join(30)
    return answers[0]


def raw_server(folder: Path, answer: bytes) -> threading.Thread:
    """Something else than a recorder in the place of one: it sends an answer to one client."""
    folder.mkdir(mode=0o700)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / f"{os.getpid()}.sock"))
    listening.listen(1)

    def serve() -> None:
        client, _ = listening.accept()
        with listening, client:
            client.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_answer_is_what_the_recorder_says(folder: Path) -> None:
    server = ControlSocket(lambda: {"processes": 3, "kernel": {"entries": 2**40}})
    try:
        assert ask_while_served(server) == {"processes": 3, "kernel": {"entries": 2**40}}
        assert ask_while_served(server)["processes"] == 3
    finally:
        server.close()


def test_answer_larger_than_a_socket_buffer_arrives(folder: Path) -> None:
    server = ControlSocket(lambda: {"text": "x" * (1 << 20)})
    try:
        assert ask_while_served(server) == {"text": "x" * (1 << 20)}
    finally:
        server.close()


def test_folder_and_socket_are_for_the_owner_only(folder: Path) -> None:
    server = ControlSocket(dict)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    server.close()


def test_folder_open_to_others_is_not_used(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    server = ControlSocket(dict)
    assert server.fd == -1
    assert "not private" in server.problem
    server.serve()
    server.close()


def test_folder_that_cannot_be_made_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(control, "FOLDER", tmp_path / "file" / "run")
    server = ControlSocket(dict)
    assert server.fd == -1
    assert server.problem.startswith("no `pyprof inspect maps`: ")


def test_running_recorder_is_listed_until_it_closes(folder: Path) -> None:
    assert running() == []
    server = ControlSocket(dict)
    assert running() == [os.getpid()]
    server.close()
    assert running() == []
    assert list(folder.iterdir()) == []


def test_socket_of_a_dead_recorder_is_removed(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    (folder / f"{pid}.sock").touch()
    (folder / "notes.sock").touch()
    assert running() == []
    assert [path.name for path in folder.iterdir()] == ["notes.sock"]


def test_socket_left_by_an_earlier_process_of_the_same_id_is_replaced(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / f"{os.getpid()}.sock").touch()
    server = ControlSocket(dict)
    try:
        assert ask_while_served(server) == {}
    finally:
        server.close()


def test_client_that_leaves_at_once_does_not_matter(folder: Path) -> None:
    server = ControlSocket(lambda: {"text": "x" * (1 << 22)})
    try:
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(folder / f"{os.getpid()}.sock"))
        client.close()
        server.serve()
        server.serve()  # nobody is there
    finally:
        server.close()


def test_client_that_does_not_read_holds_the_recorder_up_only_shortly(folder: Path) -> None:
    server = ControlSocket(lambda: {"text": "x" * (1 << 22)})
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(folder / f"{os.getpid()}.sock"))
            serving = threading.Thread(target=server.serve)
            serving.start()
            serving.join(10)
            assert not serving.is_alive()
    finally:
        server.close()


@pytest.mark.parametrize("answer", [b"", b"{", b"\xff\xfe", b"[]", b"3"])
def test_odd_answer_is_an_error(folder: Path, answer: bytes) -> None:
    serving = raw_server(folder, answer)
    with pytest.raises(HostError, match=r"does not answer"):
        ask(os.getpid())
    serving.join()


def test_answer_without_end_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_ANSWER", 1000)
    serving = raw_server(folder, b"x" * 1001)
    with pytest.raises(HostError, match="does not answer as pyprof does"):
        ask(os.getpid())
    serving.join()


def test_recorder_that_is_not_there_is_an_error(folder: Path) -> None:
    with pytest.raises(HostError, match=r"the recorder 1 does not answer: "):
        ask(1)


def test_recorder_that_does_not_answer_in_time_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "TIMEOUT", 0.05)
    server = ControlSocket(dict)
    try:
        with pytest.raises(HostError, match="does not answer: timed out"):
            ask(os.getpid())
    finally:
        server.close()
