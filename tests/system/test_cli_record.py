# SPDX-License-Identifier: Apache-2.0
"""pyprof record as a command: exit statuses, Ctrl-C, what goes to which stream."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.profiling import ROOT, pyprof
from tests.support.terminal import TerminalRecorder, recorder

pytestmark = pytest.mark.bpf


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_exit_status_of_the_command_is_passed_on(script: str, status: int, tmp_path: Path) -> None:
    output = tmp_path / "x.folded"
    done = pyprof("record", "-o", output, "--", "sh", "-c", script)
    assert done.returncode == status
    assert output.exists()


def test_command_that_cannot_run_is_one_line(tmp_path: Path) -> None:
    done = pyprof("record", "-o", tmp_path / "x.folded", "--", "/nowhere/command")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "pyprof: cannot run '/nowhere/command': No such file or directory\n"
    assert list(tmp_path.iterdir()) == []


def test_arguments_of_the_command_are_left_alone(tmp_path: Path) -> None:
    script = 'printf "%s|" "$@"'
    done = pyprof(
        "record", "-o", tmp_path / "x.folded", "--", "sh", "-c", script, "sh", "-d", "--", "--json", "a b"
    )
    assert done.returncode == 0
    assert done.stdout == "-d|--|--json|a b|"


def test_json_is_all_of_standard_output_when_the_command_prints(tmp_path: Path) -> None:
    done = pyprof("record", "--json", "-o", tmp_path / "x.folded", "--", "echo", "noise")
    report = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert report["output"] == str(tmp_path / "x.folded")
    assert "noise\n" in done.stderr


def test_profile_is_all_of_standard_output_when_it_goes_there() -> None:
    script = "import time\nprint('noise')\nt = time.process_time()\nwhile time.process_time() < t + 0.5: pass"
    done = pyprof("record", "-F", "499", "--format", "folded", "-o", "-", "--", sys.executable, "-c", script)
    assert done.returncode == 0
    assert "noise" not in done.stdout
    assert "noise\n" in done.stderr
    assert done.stdout
    for line in done.stdout.splitlines():
        assert line.rpartition(" ")[2].isdecimal()


def test_output_that_cannot_be_written_keeps_the_command_from_running(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    done = pyprof("record", "-o", tmp_path / "nowhere" / "x.html", "--", "touch", mark)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert not mark.exists()


def test_interrupt_ends_a_recording_and_writes_it(tmp_path: Path) -> None:
    output = tmp_path / "x.folded"
    with recorder("-d", "1000", "-o", str(output), run_folder=tmp_path / "run") as running:
        running.interrupt()
        status, _ = running.finish()
    assert status == 0
    assert output.exists()
    assert f"wrote {output}" in running.shown
    assert "Traceback" not in running.shown


def test_terminal_shows_progress_and_it_goes_away(tmp_path: Path) -> None:
    output = tmp_path / "x.folded"
    with recorder("-d", "1000", "-o", str(output), run_folder=tmp_path / "run") as running:
        running.read_until("/1000 s ")
        running.read_until(" lost  (Ctrl-C ends)")
        running.interrupt()
        running.finish()
    # What was drawn is erased before the summary, which begins at the start of the line.
    before, _, summary = running.shown.rpartition("\r\x1b[K")
    assert "(Ctrl-C ends)" in before
    assert "samples taken in" in summary.splitlines()[0]


def test_no_progress_where_there_is_no_terminal(tmp_path: Path) -> None:
    done = pyprof("record", "-d", "0.6", "-o", tmp_path / "x.folded")
    assert done.returncode == 0
    assert "\r" not in done.stderr
    assert "\x1b" not in done.stderr


def test_first_interrupt_goes_to_the_command(tmp_path: Path) -> None:
    output = tmp_path / "x.folded"
    script = "sleep 1000 & trap 'kill $!; exit 7' INT; echo ready; wait"
    started = TerminalRecorder(("-o", str(output), "--", "sh", "-c", script), tmp_path / "run")
    try:
        assert started.process.stdout is not None
        assert started.process.stdout.readline() == b"ready\n"
        started.interrupt()
        status, _ = started.finish()
    finally:
        started.close()
    assert status == 7
    assert output.exists()


def test_socket_is_gone_after_the_recording(tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    with recorder("-o", str(tmp_path / "x.folded"), run_folder=run_folder) as running:
        assert [path.name for path in run_folder.iterdir()] == [f"{running.process.pid}.sock"]
        running.interrupt()
        running.finish()
        assert list(run_folder.iterdir()) == []


def test_terminate_ends_a_recording_and_writes_it(tmp_path: Path) -> None:
    output = tmp_path / "x.folded"
    with recorder("-o", str(output), run_folder=tmp_path / "run") as running:
        running.process.send_signal(signal.SIGTERM)
        status, _ = running.finish()
    assert status == 0
    assert output.exists()


def test_recording_goes_on_where_the_run_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-m", "pyprof", "record", "-d", "0.3", "-o", str(tmp_path / "x.folded")],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYPROF_RUN_DIR": str(tmp_path / "file" / "run")},
    )
    assert done.returncode == 0, done.stderr
