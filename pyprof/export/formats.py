# SPDX-License-Identifier: Apache-2.0
"""Which formats there are, how a file's name chooses one, and how a profile gets into a file."""

import errno
import importlib
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from pyprof.errors import OutputError
from pyprof.profile.model import Profile

Writer = Callable[[Profile, BinaryIO], None]
"""Writes a profile to a binary stream; OSError where that does not take it."""

STDOUT = "-"

_STDOUT_FD = 1
# A file that may be written, but not replaced: its folder is read-only, or the file is a mount point.
_CANNOT_REPLACE = frozenset((errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY))


class Format(NamedTuple):
    """A format that profiles are written in.

    Attributes:
        name: what --format takes.
        suffix: how the names of such files end.
        module: where its ``write(profile, out)`` is; imported when used.
        title: what to call it in a help text.
    """

    name: str
    suffix: str
    module: str
    title: str

    def writer(self) -> Writer:
        """The format's writer."""
        write: Writer = importlib.import_module(self.module).write
        return write


FORMATS = (
    Format("html", ".html", "pyprof.export.flamegraph", "flame graph to open in a browser"),
    Format("folded", ".folded", "pyprof.export.folded", "folded stacks, for flamegraph.pl"),
    Format("pprof", ".pb.gz", "pyprof.export.pprof", "pprof, for go tool pprof"),
    Format("speedscope", ".json", "pyprof.export.speedscope", "speedscope"),
)


def format_for(path: str, explicit: str | None = None) -> Format:
    """The format named `explicit` (by name or suffix), else the one that `path` ends in.

    Raises:
        OutputError: there is none; the message lists the known ones.
    """
    known = ", ".join(f"{form.name} ({form.suffix})" for form in FORMATS)
    if explicit is not None:
        wanted = explicit.lower().removeprefix(".")
        for form in FORMATS:
            if wanted in (form.name, form.suffix[1:]):
                return form
        raise OutputError(f"there is no format {explicit!r}; known are {known}")
    for form in FORMATS:
        if path.lower().endswith(form.suffix):
            return form
    where = "standard output" if path == STDOUT else repr(path)
    raise OutputError(f"cannot tell the format of {where} by its name; name one with --format: {known}")


def write_file(profile: Profile, path: str, form: Format) -> None:
    """Write `profile` to `path`, or to standard output for ``-``.

    A regular file appears, or takes another one's place, only when it is complete; mode and owner of one
    that was there are kept. What is no regular file (a pipe, a terminal, /dev/stdout), or cannot be
    replaced, is written to directly.

    Raises:
        OutputError: it cannot be written; a file to be replaced is as it was, and nothing is left behind.
    """
    write = form.writer()
    try:
        if path == STDOUT:
            _write_stdout(profile, write)
            return
        target = Path(path)
        existing = target.stat() if target.exists() else None
        if existing is not None and _is_stdout(existing):
            _write_stdout(profile, write)
        elif _is_direct(target, existing):
            _write_direct(profile, target, write)
        else:
            _replace(profile, target, existing, write)
    except (OSError, ValueError) as error:
        where = "standard output" if path == STDOUT else repr(path)
        reason = error.strerror if isinstance(error, OSError) else error
        raise OutputError(f"cannot write the profile to {where}: {reason}") from error


def _is_stdout(existing: os.stat_result) -> bool:
    """Whether a path leads to what standard output is: /dev/stdout, or the file that it is redirected to."""
    try:
        return os.path.samestat(existing, os.fstat(_STDOUT_FD))
    except OSError:  # closed
        return False


def _is_direct(path: Path, existing: os.stat_result | None) -> bool:
    if existing is not None and not stat.S_ISREG(existing.st_mode):
        return True
    # Names of open descriptors: another file in the place of theirs would not reach who holds them.
    return any(path.absolute().is_relative_to(folder) for folder in ("/dev/fd", "/proc"))


def _write_stdout(profile: Profile, write: Writer) -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
    # A stream of its own: a reader that went away is noticed here and not again when Python exits.
    with open(_STDOUT_FD, "wb", closefd=False) as out:
        write(profile, out)


def _write_direct(profile: Profile, path: Path, write: Writer) -> None:
    with open(path, "wb") as out:
        write(profile, out)


def _replace(profile: Profile, path: Path, existing: os.stat_result | None, write: Writer) -> None:
    if existing is not None:
        # Where a link leads is replaced, not the link. A link that leads nowhere is replaced itself.
        path = path.resolve()
    temporary = path.with_name(f".pyprof-{os.urandom(8).hex()}.tmp")
    try:
        # The mode of any new file: the kernel applies the umask.
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if existing is None or error.errno not in _CANNOT_REPLACE:
            raise
        _write_direct(profile, path, write)
        return
    try:
        with open(fd, "wb") as out:
            if existing is not None:
                _take_over(fd, existing)
            write(profile, out)
        try:
            temporary.rename(path)
        except OSError as error:
            if existing is None or error.errno not in _CANNOT_REPLACE:
                raise
            _write_direct(profile, path, write)
    finally:
        temporary.unlink(missing_ok=True)


def _take_over(fd: int, existing: os.stat_result) -> None:
    """Give a new file the owner and mode of the one that it will replace, as far as that is allowed."""
    own = os.fstat(fd)
    if (own.st_uid, own.st_gid) != (existing.st_uid, existing.st_gid):
        with suppress(PermissionError):
            os.fchown(fd, existing.st_uid, existing.st_gid)
    with suppress(PermissionError):
        os.fchmod(fd, stat.S_IMODE(existing.st_mode) & 0o777)
