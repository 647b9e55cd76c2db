# SPDX-License-Identifier: Apache-2.0
"""Commands that are started stopped."""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pyprof.errors import TargetError
from pyprof.launch import Launched


@pytest.fixture(autouse=True)
def no_descriptor_is_left_open() -> Iterator[None]:
    before = sorted(Path("/proc/self/fd").iterdir())
    yield
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def run(*command: str) -> int:
    with closing(Launched(command)) as launched:
        launched.release()
        return launched.wait()


@pytest.mark.parametrize("status", [0, 1, 77, 255])
def test_exit_status_is_that_of_the_command(status: int) -> None:
    assert run("sh", "-c", f"exit {status}") == status


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE])
def test_status_is_128_and_the_signal_that_ended_the_command(number: int) -> None:
    assert run("sh", "-c", f"kill -{int(number)} $$") == 128 + number


def test_arguments_arrive_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "out"
    assert run("sh", "-c", 'printf "%s|" "$@" >"$0"', str(file), "a b", "", "--", "-x", "*") == 0
    assert file.read_text() == "a b||--|-x|*|"


def test_command_does_not_run_before_its_release(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with closing(Launched(["touch", str(mark)])) as launched:
        # The child is blocked or on its way to be: what it runs is still this program.
        assert Path(f"/proc/{launched.pid}/exe").readlink() == Path("/proc/self/exe").readlink()
        assert not mark.exists()
        launched.release()
        assert launched.wait() == 0
    assert mark.exists()


def test_command_keeps_the_process_id(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with closing(Launched(["sh", "-c", f"echo $$ >{file}"])) as launched:
        launched.release()
        launched.wait()
        assert int(file.read_text()) == launched.pid


def test_command_that_was_given_up_never_runs(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    launched = Launched(["touch", str(mark)])
    launched.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(launched.pid, os.WNOHANG)
    assert not mark.exists()


def test_closed_twice_is_closed() -> None:
    launched = Launched(["true"])
    launched.close()
    launched.close()


def test_descriptor_is_readable_when_the_command_has_ended() -> None:
    with closing(Launched(["sh", "-c", "read line"], None)) as launched:
        assert not select.select([launched.fd], [], [], 0)[0]
        launched.release()
        launched.signal(signal.SIGTERM)
        assert select.select([launched.fd], [], [], 30)[0]
        launched.wait()


def test_signal_after_the_end_goes_to_nobody() -> None:
    with closing(Launched(["true"])) as launched:
        launched.release()
        launched.wait()
        launched.signal(signal.SIGKILL)


def test_standard_output_goes_where_it_was_told() -> None:
    reader, writer = os.pipe()
    with closing(Launched(["echo", "out"], writer)) as launched:
        os.close(writer)
        launched.release()
        launched.wait()
        assert os.read(reader, 100) == b"out\n"
        assert os.read(reader, 100) == b""
    os.close(reader)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("no-such-command-anywhere", "No such file or directory"),
        ("/nowhere/command", "No such file or directory"),
        ("/etc/passwd", "Permission denied"),
        ("/tmp", "Permission denied"),
        ("a\0b", "Invalid argument"),
    ],
)
def test_command_that_cannot_be_executed_is_an_error(command: str, reason: str) -> None:
    with closing(Launched([command])) as launched:
        with pytest.raises(TargetError, match=rf"^cannot run .*: {reason}$"):
            launched.release()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGXFSZ])
def test_signal_that_python_or_the_recorder_handle_is_as_by_default(number: signal.Signals) -> None:
    reader, writer = os.pipe()
    old = signal.signal(number, signal.SIG_IGN)
    try:
        with closing(Launched(["grep", "SigIgn", "/proc/self/status"], writer)) as launched:
            os.close(writer)
            launched.release()
            assert launched.wait() == 0
    finally:
        signal.signal(number, old)
    with open(reader, "rb") as output:
        ignored = int(output.read().split()[1], 16)
    assert not ignored >> (number - 1) & 1
