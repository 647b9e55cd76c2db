# SPDX-License-Identifier: Apache-2.0
"""The socket through which a running recorder tells what it holds: /run/pyprof/PID.sock, for root only.

A client connects and reads one JSON object until the end of the stream.
"""

import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pyprof.errors import HostError

FOLDER = Path(os.environ.get("PYPROF_RUN_DIR", "/run/pyprof"))
TIMEOUT = 2.0
MAX_ANSWER = 16 << 20


class ControlSocket:
    """The listening end. Where the folder cannot be made there is none, and `fd` is -1: a recording does not
    fail for that."""

    def __init__(self, answer: Callable[[], dict[str, object]]) -> None:
        self._answer = answer
        self._path = FOLDER / f"{os.getpid()}.sock"
        self._socket: socket.socket | None = None
        self.problem = ""
        try:
            FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
            if FOLDER.stat().st_uid != os.geteuid() or FOLDER.stat().st_mode & 0o077:
                self.problem = f"{FOLDER} is not private to us: no `pyprof inspect maps`"
                return
            self._path.unlink(missing_ok=True)
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            server.bind(str(self._path))
            server.listen(4)
            server.setblocking(False)
            self._socket = server
        except OSError as error:
            self.problem = f"no `pyprof inspect maps`: {error}"

    @property
    def fd(self) -> int:
        return self._socket.fileno() if self._socket else -1

    def serve(self) -> None:
        """Answers one client; a slow or vanished one does not matter."""
        if self._socket is None:
            return
        with suppress(OSError):
            client, _ = self._socket.accept()
            with client:
                client.settimeout(0.2)
                client.sendall(json.dumps(self._answer()).encode())

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._path.unlink(missing_ok=True)


def running() -> list[int]:
    """Process IDs of recorders that have a socket, dead ones' sockets removed."""
    pids = []
    for path in FOLDER.glob("*.sock") if FOLDER.is_dir() else ():
        if not path.stem.isdigit():
            continue
        if Path(f"/proc/{path.stem}").exists():
            pids.append(int(path.stem))
        else:
            with suppress(OSError):
                path.unlink()
    return sorted(pids)


def ask(pid: int) -> dict[str, object]:
    """What a recorder holds.

    Raises:
        HostError: it does not answer.
    """
    parts = []
    size = 0
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as client:
            client.settimeout(TIMEOUT)
            client.connect(str(FOLDER / f"{pid}.sock"))
            while part := client.recv(1 << 16):
                parts.append(part)
                size += len(part)
                if size > MAX_ANSWER:
                    raise HostError(f"process {pid} does not answer as pyprof does")
        answer = json.loads(b"".join(parts))
    except PermissionError as error:
        raise HostError(f"only root may ask the recorder {pid}: run with sudo") from error
    except (OSError, ValueError) as error:
        raise HostError(f"the recorder {pid} does not answer: {error}") from error
    if not isinstance(answer, dict):
        raise HostError(f"process {pid} does not answer as pyprof does")
    return answer
