# SPDX-License-Identifier: Apache-2.0
"""Unwind rows kept on disk: what took long to make is made once.

An entry is found by the file's identity, and used only where the call frame information is, byte for byte,
what its rows were made from, and the code that made them is the code that would make them now. So neither a
build ID that lies, nor a file without one that was built again, nor another version of this package gets
wrong rows.

Everything here may fail: the rows are made then as without a cache, and `errors` counts it.
"""

import os
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pyprof.elf.file import ElfFile
from pyprof.elf.identity import Identity
from pyprof.unwind.go import GoSource, all_sources
from pyprof.unwind.row_entry import DamagedEntry, Rows, StoredRows, decode, encode, new_seal
from pyprof.unwind.rows import rows_of
from pyprof.unwind.tables import CfiSource

CAP_BYTES = 128 << 20
MAX_ENTRIES = 1024

MIN_SOURCE = 64 << 10
"""From this size on call frame information is worth an entry: its rows take about 1 ms to make (10 to 15 us a
KiB), and 0.2 ms to get from the cache. Below are most files of a host, and a small part of the time; at 4 KiB
both take the same 0.1 ms."""

_FAILURES = (OSError, MemoryError, ImportError)

_MAX_ENTRY = 64 << 20
_MAX_LISTED = 1 << 16
_LEFT_BEHIND = 600  # seconds, after which nobody is still writing a temporary file
_MAX_ID = 64

_ENTRY = re.compile(r"[0-9a-f]+-[0-9a-f]+-\d+\.(eh_frame|debug_frame|gopclntab)\.rows")
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.rows\.tmp")


class _Made(NamedTuple):
    """Rows that are to be written."""

    name: str
    seal: bytes
    rows: Rows


def default_folder(environ: Mapping[str, str]) -> str:
    """Where the cache is.

    Args:
        environ: the environment.

    Returns:
        $PYPROF_CACHE_DIR; else for root /var/cache/pyprof, for others pyprof in $XDG_CACHE_HOME or ~/.cache.
        "" where an empty PYPROF_CACHE_DIR turns it off, or there is no place for it.
    """
    if "PYPROF_CACHE_DIR" in environ:
        return environ["PYPROF_CACHE_DIR"]
    if os.geteuid() == 0:
        return "/var/cache/pyprof"
    # What is not absolute counts as not set: https://specifications.freedesktop.org/basedir-spec/latest/.
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path(environ.get("HOME", "")) / ".cache"
    return str(base / "pyprof") if base.is_absolute() else ""


def cache_key(identity: Identity) -> str:
    """What an entry is named by: the build ID, else the hash of the file's ends, and the file's size."""
    known = identity.build_id if 0 < len(identity.build_id) <= _MAX_ID else identity.htlhash
    return f"{known}-{identity.size:x}"


class RowCache:
    """Rows of files, from a folder where they are there, else made and kept for the next time.

    Threads may share it, and processes the folder.

    Attributes:
        hits: rows that came from the folder.
        misses: rows that were made, though worth an entry.
        errors: times that the folder or an entry could not be read, trusted or written.
        evicted: entries that were removed for others.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        cap_bytes: int = CAP_BYTES,
        max_entries: int = MAX_ENTRIES,
        min_source: int = MIN_SOURCE,
    ) -> None:
        """Opens nothing yet; the folder is made when there is something to keep.

        Args:
            folder: where; "" for no cache.
            cap_bytes: most bytes of all entries together.
            max_entries: most entries.
            min_source: bytes from which on call frame information is worth an entry.
        """
        self._folder = str(Path(folder).absolute()) if os.fspath(folder) else ""
        self._cap_bytes = cap_bytes
        self._max_entries = max_entries
        self._min_source = min_source
        self._made: deque[_Made] = deque()
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0
        self.errors = 0
        self.evicted = 0

    @classmethod
    def of_environment(cls) -> "RowCache":
        """The cache in the default folder of this process."""
        return cls(default_folder(os.environ))

    def rows(self, file: ElfFile, key: str) -> Rows | None:
        """The rows of a file, as `read_rows` makes them; those that are worth an entry wait for `flush`.

        Args:
            file: the file.
            key: of its identity, by `cache_key`.

        Returns:
            The rows; None where there are none.

        Raises:
            ElfError: as for `rows_of`.
        """
        for source in all_sources(file, []):
            rows = self._rows(source, file.machine, key)
            if len(rows):
                return rows
        return None

    def flush(self) -> None:
        """Writes what was made. Apart from `rows`, so that these need not wait for it."""
        while self._made:
            with suppress(IndexError):  # another thread's
                made = self._made.popleft()
                try:
                    self._store(made)
                except _FAILURES:
                    self._count("errors")

    def _rows(self, source: CfiSource | GoSource, machine: int, key: str) -> Rows:
        if not self._folder or len(source.data) < self._min_source:
            return rows_of(source, machine)
        name = f"{key}-{machine}{source.name}.rows"
        try:
            found = self._load(name, source, machine)
        except (*_FAILURES, DamagedEntry):
            self._count("errors")
        else:
            if found is not None:
                self._count("hits")
                return found
        self._count("misses")
        rows = rows_of(source, machine)
        if len(rows):
            with suppress(OSError):
                self._made.append(_Made(name, new_seal(source, machine), rows))
        return rows

    def _count(self, counter: str) -> None:
        with self._lock:
            setattr(self, counter, getattr(self, counter) + 1)

    def _open_folder(self) -> int:
        """The folder, if only we can write to it.

        Raises:
            OSError: it is not there, or others can.
        """
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not _is_ours(os.fstat(fd)):
            os.close(fd)
            raise PermissionError(f"others can write to {self._folder}")
        return fd

    def _load(self, name: str, source: CfiSource | GoSource, machine: int) -> StoredRows | None:
        """Rows of an entry; None where there is none, or it was made from something else.

        Raises:
            OSError, DamagedEntry: it cannot be read, or not be trusted.
        """
        try:
            folder = self._open_folder()
        except FileNotFoundError:
            return None
        try:
            # Whatever is there: what blocks, or leads elsewhere, is not opened.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            fd = os.open(name, flags, dir_fd=folder)
        except FileNotFoundError:
            return None
        finally:
            os.close(folder)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or not _is_ours(status) or status.st_size > _MAX_ENTRY:
                raise DamagedEntry(f"{name} is not an entry of ours")
            rows = decode(os.pread(fd, status.st_size, 0), source, machine)
            if rows is not None:
                os.utime(fd)
            return rows
        finally:
            os.close(fd)

    def _store(self, made: _Made) -> None:
        entry = encode(made.rows, made.seal)
        if entry is None or len(entry) > min(self._cap_bytes, _MAX_ENTRY):
            return
        Path(self._folder).mkdir(0o700, parents=True, exist_ok=True)
        folder = self._open_folder()
        try:
            _write(folder, made.name, entry)
            self._trim(folder)
        finally:
            os.close(folder)

    def _trim(self, folder: int) -> None:
        """Removes entries used longest ago until the rest is within bounds."""
        entries = []
        total = 0
        with os.scandir(folder) as listing:
            for item in islice(listing, _MAX_LISTED):
                is_entry = _ENTRY.fullmatch(item.name)
                if not is_entry and not _TEMPORARY.fullmatch(item.name):
                    continue  # not of this cache: a folder that was named may have other uses
                with suppress(FileNotFoundError):  # another process was faster
                    status = item.stat(follow_symlinks=False)
                    if is_entry:
                        entries.append((status.st_mtime_ns, item.name, status.st_size))
                        total += status.st_size
                    elif time.time() - status.st_mtime > _LEFT_BEHIND:
                        os.unlink(item.name, dir_fd=folder)
        count = len(entries)
        for _, name, size in sorted(entries):
            if total <= self._cap_bytes and count <= self._max_entries:
                break
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
                self._count("evicted")
            total -= size
            count -= 1


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _write(folder: int, name: str, data: bytes) -> None:
    """Puts a file into a folder, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    temporary = f".{os.urandom(8).hex()}.rows.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
