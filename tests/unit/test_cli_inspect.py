# SPDX-License-Identifier: Apache-2.0
"""pyprof inspect maps and process: choice of a recorder, texts, odd processes."""

import os
from pathlib import Path

import pytest

from pyprof import control
from pyprof.cli.inspect_maps import as_text, choose
from pyprof.cli.inspect_process import printable
from pyprof.cli.main import main
from pyprof.errors import TargetError


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(control, "FOLDER", tmp_path)
    return tmp_path


def test_no_recorder_is_a_sentence(run_folder: Path) -> None:
    with pytest.raises(TargetError, match=r"^no recorder is running: start one"):
        choose(None)


def test_no_folder_is_no_recorder(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "FOLDER", run_folder / "nowhere")
    with pytest.raises(TargetError, match="no recorder is running"):
        choose(None)


def test_only_recorder_need_not_be_named(run_folder: Path) -> None:
    (run_folder / f"{os.getpid()}.sock").touch()
    assert choose(None) == os.getpid()


def test_one_of_several_recorders_must_be_named(run_folder: Path) -> None:
    first, second = sorted((os.getpid(), os.getppid()))
    for pid in (first, second):
        (run_folder / f"{pid}.sock").touch()
    with pytest.raises(TargetError, match=rf"name one with --pid, of {first}, {second}$"):
        choose(None)
    assert choose(second) == second


def test_named_process_that_is_no_recorder_is_a_sentence(run_folder: Path) -> None:
    (run_folder / f"{os.getpid()}.sock").touch()
    with pytest.raises(TargetError, match=rf"1 is no running recorder; running: {os.getpid()}$"):
        choose(1)


def test_table_has_a_line_a_number() -> None:
    answer: dict[str, object] = {
        "kernel": {"exec_mappings": {"entries": 1234, "capacity": 262144}},
        "processes": 7,
        "orphans": 0,
    }
    assert as_text(4711, answer).splitlines() == [
        "recorder 4711",
        "  kernel exec_mappings entries          1,234",
        "  kernel exec_mappings capacity       262,144",
        "  processes                                 7",
        "  orphans                                   0",
    ]


def test_table_marks_orphans() -> None:
    assert as_text(1, {"orphans": 2}).splitlines()[1].endswith("2  (must be 0: a defect)")


def test_names_cannot_steer_a_terminal() -> None:
    assert printable(b"a\x1b[31m\n\xff") == "a\\x1b[31m\\x0a\\xff"


def test_process_that_is_not_there_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert main(["inspect", "process", str(pid)]) == 1
    assert capsys.readouterr() == ("", f"pyprof: there is no process {pid}\n")
