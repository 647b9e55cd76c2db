# SPDX-License-Identifier: Apache-2.0
"""Lines of the daemon's log."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyprof.daemon.logs import KINDS, REPEATS, Lines, RepeatFilter, goes_to_journal, utc


def record(
    message: str, /, *values: object, level: int = logging.INFO, **fields: object
) -> logging.LogRecord:
    made = logging.LogRecord("pyprof.test", level, "file.py", 1, message, values, None)
    made.created = 1700000000.25
    made.fields = fields
    return made


def exception(text: str) -> Any:
    """What logging gets of an exception that was caught."""
    try:
        int(text)
    except ValueError:
        return sys.exc_info()


def test_text_has_time_level_and_fields() -> None:
    line = Lines("text", journal=False).format(record("sent %d", 3, batches=2, why="not now"))
    assert line == '2023-11-14T22:13:20.250Z info sent 3 batches=2 why="not now"'


def test_text_for_the_journal_has_its_priority_on_each_line() -> None:
    made = record("broken", level=logging.ERROR)
    made.exc_info = exception("a\nb")
    lines = Lines("text", journal=True).format(made).split("\n")
    assert lines[0] == "<3>broken"
    assert len(lines) > 3
    assert all(line.startswith("<3>  ") for line in lines[1:])


def test_message_cannot_begin_a_line_of_its_own() -> None:
    line = Lines("text", journal=True).format(record("process %s", "a\n<0>fake\x1b[1m\u2028"))
    assert line == "<6>process a\\n<0>fake\\x1b[1m\\u2028"


def test_json_is_one_object_a_line() -> None:
    line = Lines("json", journal=True).format(record("a\n%s", "b", samples=3, message="other", name="x"))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "info",
        "logger": "pyprof.test",
        "message": "a\nb",
        "samples": 3,
        "name": "x",
    }


def test_undecodable_bytes_are_written_escaped() -> None:
    for form in ("text", "json"):
        line = Lines(form, journal=False).format(record("file %s", os.fsdecode(b"/a\xff")))
        assert line.encode().isascii()
        assert "\\udcff" in line


def test_secrets_are_written_nowhere() -> None:
    made = record("sending %s", "Bearer geheim", header="geheim")
    made.exc_info = exception("geheim")
    for form in ("text", "json"):
        line = Lines(form, journal=False, secrets=["geheim", "Bearer geheim", ""]).format(made)
        assert "geheim" not in line
        assert "sending ***" in line


def test_repeats_are_left_out_and_counted() -> None:
    now = [0.0]
    repeats = RepeatFilter(lambda: now[0])
    passed = [repeats.filter(record("no room for %s", number)) for number in range(10)]
    assert passed == [True] * REPEATS + [False] * (10 - REPEATS)
    assert repeats.filter(record("something else"))
    assert repeats.filter(record("no room for %s", 1, level=logging.ERROR))
    now[0] = 61
    again = record("no room for %s", 10)
    assert repeats.filter(again)
    assert Lines("text", journal=True).format(again) == f"<6>no room for 10 left_out={10 - REPEATS}"
    assert "left_out" not in Lines("text", journal=True).format(record("no room for %s", 11))


def test_kinds_of_lines_are_remembered_within_bounds() -> None:
    repeats = RepeatFilter(lambda: 0.0)
    for _ in range(REPEATS):
        assert repeats.filter(record("often"))
    for number in range(KINDS - 1):
        assert repeats.filter(record(f"line {number}"))
    assert not repeats.filter(record("often"))
    for number in range(KINDS):
        repeats.filter(record(f"other {number}"))
    assert repeats.filter(record("often"))


def test_journal_is_told_from_a_file_by_its_inode(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as file:
        status = os.fstat(file.fileno())
        environ = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert goes_to_journal(environ, file.fileno())
        assert not goes_to_journal({}, file.fileno())
        assert not goes_to_journal({"JOURNAL_STREAM": f"{status.st_dev}:0"}, file.fileno())


def test_time_is_utc_wherever_we_are() -> None:
    assert utc(0.0) == "1970-01-01T00:00:00.000Z"


def test_full_standard_error_costs_lines_and_nothing_else() -> None:
    code = (
        "import logging; from pyprof.daemon.logs import set_up; set_up('info', 'text', {});"
        "logging.getLogger('x').info('lost'); print('alive')"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stderr=full, stdout=subprocess.PIPE, text=True, check=True
        )
    assert done.stdout == "alive\n"
