# SPDX-License-Identifier: Apache-2.0
"""The command line without a kernel: arguments, help, exit codes, one-line errors."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyprof import __version__
from pyprof.cli.main import VERBS, main
from tests.support.profiling import ROOT, pyprof


def refused(*words: str) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    return caught.value.code


def test_version_is_printed_by_the_program() -> None:
    done = pyprof("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"pyprof {__version__}\n", "")


@pytest.mark.parametrize(
    "words",
    [
        (),
        *((verb,) for verb in VERBS),
        ("inspect", "process"),
        ("inspect", "maps"),
        ("inspect", "elf"),
    ],
    ids=lambda words: " ".join(words) or "pyprof",
)
def test_help_tells_what_a_verb_is_for(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(*words, "--help") == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"usage: {' '.join(('pyprof', *words))} ")
    assert shown.err == ""


@pytest.mark.parametrize("verb", ["", *VERBS, "inspect process", "inspect maps"])
def test_help_has_examples_that_name_the_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(*verb.split(), "--help") == 0
    examples = capsys.readouterr().out.partition("\nexamples:\n")[2].partition("\n\n")[0]
    assert f"  pyprof {verb}".rstrip() in examples or f"  sudo pyprof {verb}" in examples


@pytest.mark.parametrize(
    "words",
    [
        "",
        "frobnicate",
        "--frobnicate",
        "record --frobnicate",
        "record -d 0",
        "record -d -1",
        "record -d nan",
        "record -d inf",
        "record -d soon",
        "record -F 0",
        "record -F 10001",
        "record -F 1.5",
        "record -p 0",
        "record -p -5",
        "record -p 4194304",
        "record -p self",
        "record --by cpu",
        "record --format svg",
        "record -e instructions",
        "record --top many",
        "record -p 1 -- true",
        "record --json -o - --format folded",
        "record --dur 1",
        "doctor now",
        "inspect",
        "inspect frobnicate",
        "inspect elf",
        "inspect process",
        "inspect process self",
        "inspect process 0",
        "inspect process ²",
        "inspect maps --pid x",
        "inspect maps 4711",
    ],
)
def test_bad_arguments_give_2_and_the_usage(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(*words.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("usage: pyprof")
    assert ": error: " in shown.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("nowhere/x.html", "there is no folder"),
        ("taken.html", "it is a folder"),
        ("plain/x.html", "there is no folder"),
        ("x.svg", "cannot tell the format"),
    ],
)
def test_unwritable_output_is_told_before_the_recording(
    output: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken.html").mkdir()
    (tmp_path / "plain").touch()
    before = time.monotonic()
    assert main(["record", "-d", "1000", "-o", str(tmp_path / output)]) == 1
    assert time.monotonic() - before < 60
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("pyprof: ")
    assert reason in shown.err
    assert shown.err.count("\n") == 1


def test_errors_are_one_line_and_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "elf", "/nowhere/program"]) == 1
    assert capsys.readouterr().err == "pyprof: cannot open /nowhere/program: No such file or directory\n"


def test_reader_that_left_is_no_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "pyprof", "inspect", "elf", sys.executable],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1
