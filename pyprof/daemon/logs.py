# SPDX-License-Identifier: Apache-2.0
"""The daemon's log on standard error: for people or for machines, without repeats and without secrets."""

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TextIO

SYSLOG = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
"""Priorities as sd-daemon(3) has them."""

REPEATS = 3
"""Lines of one kind that are written within a window."""
WINDOW = 60.0
KINDS = 512
"""Kinds of lines that are remembered."""

MASK = "***"


class RepeatFilter(logging.Filter):
    """Lets few lines of one kind through in a minute, and says of the next how many were left out. A kind is
    a logger, a level and a text before its values are filled in."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        kind = (record.name, record.levelno, str(record.msg))
        with self._lock:
            begun, count = self._kinds.pop(kind, (now, 0))
            left_out = 0
            if now - begun >= WINDOW:
                left_out = max(count - REPEATS, 0)
                begun, count = now, 0
            if len(self._kinds) >= KINDS:
                # Kinds stand in the order of their last use.
                del self._kinds[next(iter(self._kinds))]
            self._kinds[kind] = (begun, count + 1)
        if left_out:
            record.left_out = left_out
        return count < REPEATS


class Lines(logging.Formatter):
    """Makes one line of a record.

    A record may have `fields`, by logging's `extra`: values that become members of the JSON object, or
    name=value at the end of the text.
    """

    def __init__(self, form: str, *, journal: bool, secrets: Iterable[str] = ()) -> None:
        """Args:
        form: "text" or "json".
        journal: whether lines of text begin with their priority, for the journal, and not with the time.
        secrets: texts that are never written, wherever they would turn up.
        """
        super().__init__()
        self._form = form
        self._journal = journal
        # The longest first: one may be part of another.
        self._secrets = sorted({secret for secret in secrets if secret}, key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        fields = dict(getattr(record, "fields", {}))
        left_out = getattr(record, "left_out", 0)
        if left_out:
            fields["left_out"] = left_out
        message = record.getMessage()
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if self._form == "json":
            return self._json(record, message, fields, trace)
        line = " ".join([message, *(f"{name}={_bare(value)}" for name, value in fields.items())])
        lines = [self._head(record) + one_line(self._without_secrets(line))]
        # A process's name may be part of a message: only what we made several lines of is such.
        lines += [
            self._head(record) + "  " + one_line(self._without_secrets(each)) for each in trace.splitlines()
        ]
        return "\n".join(lines)

    def _head(self, record: logging.LogRecord) -> str:
        if self._journal:
            return f"<{SYSLOG.get(record.levelno, 6)}>"
        return f"{utc(record.created)} {record.levelname.lower()} "

    def _json(self, record: logging.LogRecord, message: str, fields: Mapping[str, object], trace: str) -> str:
        line: dict[str, object] = {
            "time": utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._without_secrets(message),
        }
        line |= {
            name: value if isinstance(value, (int, float, bool)) else self._without_secrets(str(value))
            for name, value in fields.items()
            if name not in line
        }
        if trace:
            line["exception"] = self._without_secrets(trace)
        return json.dumps(line)

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text


def utc(seconds: float) -> str:
    """A time as RFC 3339 has it, with milliseconds."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds * 1000) % 1000:03d}Z"


def one_line(text: str) -> str:
    """A text with all that is no printable character escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode()
        for char in text
    )


def _bare(value: object) -> str:
    """A value for name=value, in quotes where it has spaces."""
    text = str(value)
    return json.dumps(text) if not text or any(char in ' "=' for char in text) else text


def goes_to_journal(environ: Mapping[str, str], fd: int) -> bool:
    """Whether a descriptor is the journal's: systemd.exec(5), $JOURNAL_STREAM."""
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM", "") == f"{status.st_dev}:{status.st_ino}"


class Handler(logging.StreamHandler[TextIO]):
    """Writes to standard error; where that is full or gone, lines are lost and nothing else."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Says nothing: there is nobody to say it to."""


def set_up(level: str, form: str, environ: Mapping[str, str], secrets: Iterable[str] = ()) -> None:
    """Logs to standard error from now on, at the start and whenever settings changed.

    Args:
        level: least level, "debug" to "error".
        form: "text" or "json".
        environ: the environment.
        secrets: texts that must not be written.
    """
    root = logging.getLogger()
    handler = next((each for each in root.handlers if isinstance(each, Handler)), None)
    if handler is None:
        handler = Handler(sys.stderr)
        handler.addFilter(RepeatFilter())
        root.addHandler(handler)
    handler.setFormatter(Lines(form, journal=goes_to_journal(environ, 2), secrets=secrets))
    root.setLevel(level.upper())
    logging.captureWarnings(True)
