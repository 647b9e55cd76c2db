# SPDX-License-Identifier: Apache-2.0
"""Batches that wait on disk for a collector: in order, within bounds, and whole or not at all.

One file a batch (spool_file.py). It appears under its name only when its content is on disk, so that a crash
or a power cut leaves batches that are whole, and perhaps one with a temporary name: whole as well, and then
taken on, or torn, and then removed. What is damaged all the same is found by its checksums, removed and
counted. Whatever the disk does, the rest goes on: every sample that is given up is in `lost`, by reason.

A batch may be delivered twice, where pyprof or the host dies after it was sent and before its file was
removed.
"""

import errno
import logging
import os
import stat
import threading
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pyprof.errors import ConfigError, PyprofError
from pyprof.export.otlp.batch import Batch
from pyprof.export.otlp.spool_file import (
    MAX_SEQUENCE,
    DamagedFile,
    Name,
    decode,
    encode,
    name_of,
    name_of_temporary,
)
from pyprof.export.otlp.spool_folder import is_ours, open_folder, sync_folder

LOG = logging.getLogger(__name__)

MAX_BYTES = 256 << 20
MAX_AGE = 24 * 3600.0

SPOOL_FULL = "spool full"
TOO_OLD = "too old in the spool"
DAMAGED = "file of the spool damaged"
UNREADABLE = "file of the spool not readable"
CLOSED = "spool closed"
DISK_FULL = "disk of the spool full"
READ_ONLY = "disk of the spool read-only"
DISK_ERROR = "error on the disk of the spool"

_REASONS = {errno.ENOSPC: DISK_FULL, errno.EDQUOT: DISK_FULL, errno.EROFS: READ_ONLY}
_BLOCK = 4096
_MAX_FILE = 1 << 30
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class NotKept(PyprofError):
    """A batch cannot be kept on disk.

    Attributes:
        reason: under which its samples are counted where they are lost.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class Entry(NamedTuple):
    """A file that waits. Sorts by the order of sending.

    Attributes:
        name: the file's.
        born: when its profile began, on the spool's own clock, seconds.
    """

    name: Name
    born: float

    @property
    def cost(self) -> int:
        """Bytes that it takes on disk, in whole blocks."""
        return -(-self.name.size // _BLOCK) * _BLOCK


def _since_boot() -> float:
    """Seconds, on while the host sleeps, never set by anybody."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Spool:
    """Files of one folder, which nobody else may use. Threads may share it.

    Attributes:
        lock: guards all that can be read here; whoever counts along may hold it around several calls.
        found: samples that were there when it was opened.
        samples: that wait.
        bytes: that they take on disk.
        lost: samples of what was given up, by reason.
        torn: files that were being written when an earlier run died, and were removed.
        foreign: files of the folder that are not the spool's and were left alone.
        errors: files that could not be removed; they are not sent again before the next start.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        max_bytes: int = MAX_BYTES,
        max_age: float = MAX_AGE,
        *,
        clock: Callable[[], float] = _since_boot,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Opens the folder, makes it where there is none, and lists it; contents are not read.

        Args:
            folder: where.
            max_bytes: most bytes on disk; the oldest give way.
            max_age: seconds after which a batch is given up.
            clock: seconds, never set. Ages go by it, so that nothing is lost when the host's clock is set;
                only how old files are when they are found is told by `wall`.
            wall: seconds since 1970.

        Raises:
            ConfigError: the folder cannot be used, is not only ours, or another process uses it.
        """
        self.lock = threading.RLock()
        self.found = self.samples = self.bytes = self.torn = self.foreign = self.errors = 0
        self.lost: Counter[str] = Counter()
        self._folder = str(Path(folder).absolute())
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._clock = clock
        self._wall = wall
        self._entries: list[Entry] = []
        self._pinned: Entry | None = None
        self._reserved = 0
        self._fd = open_folder(self._folder)
        try:
            self._list()
        except OSError as error:
            self.close()
            raise ConfigError(f"the spool folder {self._folder} cannot be read: {error.strerror}") from error
        last = self._entries[-1].name.sequence if self._entries else 0
        self._next = min(last + 1, MAX_SEQUENCE)
        with self.lock:
            self._make_room(0)

    def __len__(self) -> int:
        """Batches that wait."""
        return len(self._entries)

    def close(self) -> None:
        """Lets others use the folder; all that waits stays in it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def limit(self, max_bytes: int, max_age: float) -> None:
        """Sets other bounds, see __init__."""
        with self.lock:
            self._max_bytes, self._max_age = max_bytes, max_age
            self._make_room(0)

    def next_sequence(self) -> int:
        """The next place in the order of sending, for a `write` that may come much later."""
        with self.lock:
            sequence = self._next
            self._next = min(self._next + 1, MAX_SEQUENCE)
            return sequence

    def put(self, batch: Batch) -> None:
        """Keeps a batch, behind all others.

        Raises:
            NotKept: it cannot be written.
        """
        self.keep(self.write(batch, self.next_sequence()))

    def write(self, batch: Batch, sequence: int, *, sync: bool = True) -> Entry:
        """Writes a batch; it waits only from `keep` on, which a caller can make one step with his own counts.

        Args:
            batch: the batch.
            sequence: its place in the order, by `next_sequence`.
            sync: whether to wait until it is on disk, which takes milliseconds; a power cut may tear it else.

        Raises:
            NotKept: it cannot be written, or is larger than all of the spool may be.
        """
        if self._fd < 0:
            raise NotKept(CLOSED)
        name, content = encode(batch, sequence)
        entry = Entry(name, self._clock())
        with self.lock:
            if not self._make_room(entry.cost):
                raise NotKept(SPOOL_FULL)
            self._reserved += entry.cost
        try:
            self._write(name, content, sync)
        except OSError as error:
            with self.lock:
                self._reserved -= entry.cost
            raise NotKept(_reason(error), str(error)) from error
        return entry

    def keep(self, entry: Entry) -> None:
        """Has what was written wait with the others."""
        with self.lock:
            self._reserved -= entry.cost
            self._add(entry)

    def first(self) -> tuple[Entry, Batch] | None:
        """The oldest batch; None where none waits.

        It is there, and does not give way, until it goes to `remove` or `release`. For one thread at a time.
        """
        while True:
            with self.lock:
                self._drop_old()
                if not self._entries or self._fd < 0:
                    return None
                entry = self._pinned = self._entries[0]
            try:
                return entry, self._read(entry.name)
            except DamagedFile as error:
                reason, text = DAMAGED, str(error)
            except OSError as error:
                reason, text = UNREADABLE, str(error)
            LOG.warning("%s/%s is given up: %s", self._folder, entry.name, text)
            with self.lock:
                self._pinned = None
                self._lose(entry, reason)

    def remove(self, entry: Entry) -> None:
        """Takes away what `first` gave: it was sent, or never will be."""
        with self.lock:
            self._pinned = None
            self._forget(entry)

    def release(self) -> None:
        """Leaves what `first` gave for another time."""
        with self.lock:
            self._pinned = None

    def postpone(self, entry: Entry) -> Entry:
        """Puts what `first` gave behind all others; `release` has to follow.

        Returns:
            It, with its new name, or as it was where the file cannot be renamed.
        """
        with self.lock:
            name = entry.name._replace(sequence=self.next_sequence())
            try:
                os.rename(str(entry.name), str(name), src_dir_fd=self._fd, dst_dir_fd=self._fd)
            except OSError:
                return entry
            del self._entries[bisect_left(self._entries, entry)]
            entry = entry._replace(name=name)
            insort(self._entries, entry)
            return entry

    def _list(self) -> None:
        now, wall = self._clock(), self._wall()
        with os.scandir(self._fd) as listing:
            items = [(item.name, item.is_file(follow_symlinks=False)) for item in listing]
        names: list[Name] = []
        for text, regular in items:
            name = name_of(text)
            unfinished = name_of_temporary(text)
            if not regular or (name or unfinished) is None:
                self.foreign += 1
            elif name is not None:
                names.append(name)
            elif unfinished is not None and self._finish(unfinished):
                names.append(unfinished)
            elif unfinished is not None:
                self.torn += 1
                self.found += unfinished.samples
                self.lost[DAMAGED] += unfinished.samples
        for name in sorted(names):
            self.found += name.samples
            self._add(Entry(name, now - max(0.0, wall - name.time / 1e9)))

    def _finish(self, name: Name) -> bool:
        """Puts a file in its place that was being written when an earlier run died; one that is not whole is
        removed."""
        try:
            decode(self._content(name.temporary, name.size), name)
            os.rename(name.temporary, str(name), src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except (DamagedFile, OSError):
            with suppress(OSError):
                os.unlink(name.temporary, dir_fd=self._fd)
            return False
        return True

    def _add(self, entry: Entry) -> None:
        insort(self._entries, entry)
        self.bytes += entry.cost
        self.samples += entry.name.samples

    def _forget(self, entry: Entry) -> None:
        """Out of the list and the folder."""
        at = bisect_left(self._entries, entry)
        del self._entries[at]
        self.bytes -= entry.cost
        self.samples -= entry.name.samples
        try:
            os.unlink(str(entry.name), dir_fd=self._fd)
        except FileNotFoundError:
            pass
        except OSError:
            self.errors += 1

    def _lose(self, entry: Entry, reason: str) -> None:
        self._forget(entry)
        self.lost[reason] += entry.name.samples

    def _drop_old(self) -> None:
        limit = self._clock() - self._max_age
        while (entry := self._oldest()) is not None and entry.born < limit:
            self._lose(entry, TOO_OLD)

    def _make_room(self, cost: int) -> bool:
        """Has the oldest give way until so many bytes fit. False where they never will."""
        self._drop_old()
        if cost > self._max_bytes:
            return False
        while self.bytes + self._reserved + cost > self._max_bytes:
            entry = self._oldest()
            if entry is None:
                return False
            self._lose(entry, SPOOL_FULL)
        return True

    def _oldest(self) -> Entry | None:
        """The first that is not being sent."""
        for entry in self._entries[:2]:
            if entry is not self._pinned:
                return entry
        return None

    def _write(self, name: Name, content: bytes, sync: bool) -> None:
        """Makes a file, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        temporary = name.temporary
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=self._fd)
        try:
            try:
                rest = memoryview(content)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                if sync:
                    os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(temporary, str(name), src_dir_fd=self._fd, dst_dir_fd=self._fd)
            if sync:
                sync_folder(self._fd)
        except OSError:
            for left in (temporary, str(name)):
                with suppress(OSError):
                    os.unlink(left, dir_fd=self._fd)
            raise

    def _read(self, name: Name) -> Batch:
        return decode(self._content(str(name), name.size), name)

    def _content(self, text: str, size: int) -> bytes:
        """A file's content, if it is a regular one of ours and so large.

        Raises:
            OSError: it cannot be read.
            DamagedFile: it is something else.
        """
        if size > _MAX_FILE:
            raise DamagedFile("it is larger than any that is written")
        fd = os.open(text, os.O_RDONLY | _OPEN, dir_fd=self._fd)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or not is_ours(status) or status.st_size != size:
                raise DamagedFile("it is not the file that was written")
            parts = []
            while size > 0 and (part := os.read(fd, size)):
                parts.append(part)
                size -= len(part)
            return b"".join(parts)
        finally:
            os.close(fd)


def _reason(error: OSError) -> str:
    return _REASONS.get(error.errno or 0, DISK_ERROR)
