# SPDX-License-Identifier: Apache-2.0
"""Choice of a format, and how a profile gets into a file."""

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

import pytest

from pyprof.errors import OutputError
from pyprof.export.formats import FORMATS, Format, format_for, write_file
from pyprof.profile.model import Profile
from tests.support.profiles import make_profile, two_processes

FOLDED = format_for("x.folded")
TEXT = "app;main;libc.so.6+0xf7a10;vfs_read_[k] 1\napp;main;ns::spin(int) 5\nsh;[unknown] 4\n"
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("out.html", "html"),
        ("out.folded", "folded"),
        ("out.pb.gz", "pprof"),
        ("out.json", "speedscope"),
        ("/a.b/OUT.PB.GZ", "pprof"),
        ("out.html.json", "speedscope"),
    ],
)
def test_format_is_told_by_the_file_name(path: str, name: str) -> None:
    assert format_for(path).name == name


@pytest.mark.parametrize("explicit", ["pprof", "PPROF", "pb.gz", ".pb.gz"])
def test_explicit_format_wins_over_the_file_name(explicit: str) -> None:
    assert format_for("out.html", explicit).name == "pprof"


@pytest.mark.parametrize("path", ["out.txt", "-", "out", "", "folded", "/x.folded/out"])
def test_unknown_file_name_is_an_error_that_lists_the_formats(path: str) -> None:
    with pytest.raises(OutputError) as caught:
        format_for(path)
    for known in ("html (.html)", "folded (.folded)", "pprof (.pb.gz)", "speedscope (.json)"):
        assert known in str(caught.value)


def test_unknown_explicit_format_is_an_error_that_lists_the_formats() -> None:
    with pytest.raises(OutputError, match=r"no format 'svg'; known are html .*speedscope"):
        format_for("out.html", "svg")


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("profile", [make_profile(), two_processes()], ids=["empty", "full"])
def test_each_format_writes_a_file(tmp_path: Path, form: Format, profile: Profile) -> None:
    if form.name == "html" and not (ROOT / "pyprof/export/flamegraph_template.html").exists():
        pytest.skip("the flame graph page is not built")
    path = tmp_path / f"out{form.suffix}"
    write_file(profile, str(path), form)
    assert path.exists()
    assert (path.stat().st_size == 0) == (form.name == "folded" and not profile.frames)


def test_writers_are_imported_when_used() -> None:
    program = (
        "import sys, pyprof.export.formats as f; f.format_for('x.json');"
        "print([m for m in sys.modules if m.startswith(('google', 'json', 'pyprof.export.'))])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout == "['pyprof.export.formats']\n"


def test_new_file_has_the_mode_that_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(two_processes(), str(tmp_path / "out.folded"), FOLDED)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out.folded").stat().st_mode) == 0o640
    assert (tmp_path / "out.folded").read_text() == TEXT


def test_file_that_was_there_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "out.folded"
    path.write_text("old")
    path.chmod(0o600)
    with path.open() as old:
        write_file(two_processes(), str(path), FOLDED)
        assert old.read() == "old"
    assert path.read_text() == TEXT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.folded"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_file_that_was_there_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "out.folded"
    path.write_text("old")
    os.chown(path, 1234, 2345)
    write_file(two_processes(), str(path), FOLDED)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


def test_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "real", tmp_path / "out.folded"
    target.write_text("old")
    link.symlink_to(target)
    write_file(two_processes(), str(link), FOLDED)
    assert link.is_symlink()
    assert target.read_text() == TEXT


def test_relative_path_is_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_file(two_processes(), "out.folded", FOLDED)
    assert (tmp_path / "out.folded").read_text() == TEXT


def test_longest_file_name_is_possible(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 248 + ".folded")
    write_file(two_processes(), str(path), FOLDED)
    assert path.read_text() == TEXT


@pytest.fixture
def failing_format(monkeypatch: pytest.MonkeyPatch) -> Iterator[Format]:
    """A format whose writer fails half-way, as on a full disk."""

    def write(_: Profile, out: BinaryIO) -> None:
        out.write(b"half")
        out.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    module = ModuleType("failing_writer")
    module.write = write  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "failing_writer", module)
    yield Format("failing", ".failing", "failing_writer", "fails")


def test_failure_half_way_leaves_what_was_there(tmp_path: Path, failing_format: Format) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(OutputError, match=r"cannot write the profile to '.*/out': No space left on device"):
        write_file(two_processes(), str(path), failing_format)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_failure_half_way_leaves_nothing_new(tmp_path: Path, failing_format: Format) -> None:
    with pytest.raises(OutputError):
        write_file(two_processes(), str(tmp_path / "out"), failing_format)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing/out.folded", "No such file or directory"),
        (".", "Is a directory"),
        ("", "Is a directory"),
        ("file/out.folded", "Not a directory"),
        ("/dev/full", "No space left on device"),
        ("n" * 256, "File name too long"),
        ("a\0b", "null"),
    ],
)
def test_path_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=reason):
        write_file(two_processes(), path, FOLDED)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_fifo_is_written_directly(tmp_path: Path) -> None:
    path = tmp_path / "out.folded"
    os.mkfifo(path)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    write_file(two_processes(), str(path), FOLDED)
    reader.join()
    assert read == [TEXT]
    assert path.is_fifo()


def test_descriptor_path_reaches_who_holds_the_file(tmp_path: Path) -> None:
    with (tmp_path / "held").open("w+") as held:
        write_file(two_processes(), f"/dev/fd/{held.fileno()}", FOLDED)
        assert held.read() == TEXT


PROGRAM = """
import sys
from pyprof.errors import OutputError
from pyprof.export.formats import format_for, write_file
from tests.support.profiles import two_processes
print("before")
try:
    write_file(two_processes(), sys.argv[1], format_for("-", "folded"))
except OutputError as error:
    print(error, file=sys.stderr)
    sys.exit(3)
print("after")
"""


# Says nothing before: what fails is the profile, not Python's own output.
SILENT_PROGRAM = PROGRAM.replace('print("before")', "")


@pytest.mark.parametrize("path", ["-", "/dev/stdout", "/proc/self/fd/1"])
def test_standard_output_is_written_in_order(path: str) -> None:
    command = [sys.executable, "-c", PROGRAM, path]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == f"before\n{TEXT}after\n"


@pytest.mark.parametrize("path", ["-", "/dev/stdout"])
def test_standard_output_in_a_file_is_appended_to(tmp_path: Path, path: str) -> None:
    with (tmp_path / "log").open("w") as log:
        log.write("earlier\n")
        log.flush()
        subprocess.run([sys.executable, "-c", PROGRAM, path], cwd=ROOT, stdout=log, check=True)
    assert (tmp_path / "log").read_text() == f"earlier\nbefore\n{TEXT}after\n"


def test_reader_that_went_away_is_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(
        [sys.executable, "-c", SILENT_PROGRAM, "-"],
        cwd=ROOT,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (result.returncode, result.stderr) == (
        3,
        "cannot write the profile to standard output: Broken pipe\n",
    )


def test_closed_standard_output_is_an_error() -> None:
    command = [
        "sh",
        "-c",
        'exec "$@" >&-',
        "sh",
        sys.executable,
        "-c",
        SILENT_PROGRAM,
        "-",
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (
        3,
        "cannot write the profile to standard output: Bad file descriptor\n",
    )
