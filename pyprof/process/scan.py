# SPDX-License-Identifier: Apache-2.0
"""Fills the process table from /proc: all at the start, single processes when events were missed."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pyprof._native.processes import ProcessTable
from pyprof.elf.file import open_regular
from pyprof.elf.identity import read_identity
from pyprof.errors import ElfError, ProcError
from pyprof.process.files import MappedFile, MappedFiles
from pyprof.process.maps import Mapping, map_file, read_maps
from pyprof.process.proc import Stat, list_pids, list_tids, read_stat

BUSY = 0.02
"""Part of a CPU from which a process counts as busy, though no look at it finds it running."""

MOST_SEEN = 1 << 12

PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


def path_in_root(pid: int, path: bytes) -> bytes:
    """A path of /proc/PID/maps as the process itself sees it, which is how mmap records name it: maps gives
    it as seen from our root, and the process may have a root below that."""
    root = b""
    with suppress(OSError):
        root = os.readlink(b"/proc/%d/root" % pid)  # noqa: PTH115 - Path knows no bytes
    return path[len(root) :] if len(root) > 1 and path.startswith(root + b"/") else path


def open_mapping(pid: int, mapping: Mapping) -> int:
    """Opens the file of a mapping.

    Raises:
        ElfError: it cannot be opened, or another file was mapped there since the maps were read.
    """
    place = map_file(pid, mapping.start, mapping.end)
    fd = open_regular(place)
    # Overlay file systems may have another inode number there than in maps, but the same name.
    if os.fstat(fd).st_ino != mapping.inode:
        name = b""
        with suppress(OSError):
            name = bytes(Path(place).readlink()).replace(b"\n", b"\\012")
        if name != mapping.path:
            os.close(fd)
            raise ElfError("another file was mapped there in the meantime")
    return fd


class _Seen(NamedTuple):
    """A file that was read, and what tells that it is the same still."""

    number: int
    serial: int
    mtime_ns: int
    size: int


class Scanner:
    """Reads processes into the table. One pass opens a file that many have mapped only once."""

    def __init__(self, table: ProcessTable, files: MappedFiles) -> None:
        self._table = table
        self._files = files
        self.unreadable = 0
        """Processes whose maps had a form that we do not know."""
        self._seen: dict[tuple[int, int, int, bytes], _Seen] = {}
        self._shares: dict[int, float] = {}
        self._parents: dict[int, int] = {}

    def scan_all(self) -> int:
        """Reads every process there is, and ends those that are not there any more; how many there are."""
        numbers: dict[tuple[int, int, int, bytes], int] = {}
        self._shares.clear()
        self._parents.clear()
        before = set(self._table.pids())
        pids = list_pids()
        for pid in pids:
            stat = self._scan(pid, numbers)
            if stat is not None:
                self._note_use(stat)
                self._parents[pid] = stat.ppid
        now = time.monotonic_ns()
        for pid in before.difference(pids):
            self._table.ended(pid, now)
        return len(pids)

    def busiest(self) -> list[int]:
        """Processes that will be sampled soon, by what the last look at all of them says: they run, or used
        enough of a CPU since they began; most CPU first."""
        return sorted(self._shares, key=lambda pid: -self._shares[pid])

    def descendants(self, pid: int) -> list[int]:
        """Children of a process, their children and so on, as the last look at all of them found them."""
        children: dict[int, list[int]] = {}
        for child, parent in self._parents.items():
            children.setdefault(parent, []).append(child)
        found = []
        # A look takes a while, in which PIDs may have been used again: what follows need not be a tree.
        todo = children.pop(pid, [])
        while todo:
            child = todo.pop()
            found.append(child)
            todo += children.pop(child, [])
        return found

    def _note_use(self, stat: Stat) -> None:
        if stat.is_kernel_thread:
            return
        age = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - stat.start_ns
        share = stat.cpu_ns / max(age, 1)
        if stat.state == "R" or share >= BUSY:
            self._shares[stat.pid] = share

    def scan(self, pid: int) -> bool:
        """Reads one process; False where it is gone."""
        return self._scan(pid, {}) is not None

    def _scan(self, pid: int, numbers: dict[tuple[int, int, int, bytes], int]) -> Stat | None:
        """What /proc says of a process in general; None where it is gone."""
        now = time.monotonic_ns()
        before = time.thread_time_ns()
        mappings: list[Mapping] | None = None
        stat = None
        with suppress(ProcError):
            stat = read_stat(pid)
        if stat is not None and not stat.is_kernel_thread:
            try:
                mappings = read_maps(pid) or self._maps_of_thread(pid, stat)
            except ProcError:
                self.unreadable += 1
        if stat is None or (stat.state in "ZX" and stat.num_threads <= 1):
            # Gone, or a zombie: it ran its last instruction, and no event will tell when it is reaped.
            self._table.scanned(pid, 1, None, now)
            return None
        read_at = time.monotonic_ns()
        # Of a kernel thread nothing is mapped, and that is all there is to know.
        ranges = [
            (mapping.start, mapping.end - 1, mapping.offset, self._number(pid, mapping, numbers))
            for mapping in mappings or []
        ]
        # What the kernel's own count of executable pages leaves out; [vsyscall] is no memory of the process.
        uncounted = sum(
            mapping.end - mapping.start
            for mapping in mappings or []
            if mapping.writable or mapping.path == b"[vsyscall]"
        )
        took = time.thread_time_ns() - before
        self._table.scanned(pid, stat.num_threads, ranges, now, took, uncounted // PAGE_SIZE, read_at)
        if stat.state in "ZX":
            self._table.watch_leader(pid)
        return stat

    def _maps_of_thread(self, pid: int, stat: Stat) -> list[Mapping] | None:
        """The maps by way of a thread: a leader that has exited has none, though its threads run on."""
        if stat.state not in "ZX" or stat.num_threads <= 1:
            return None
        for tid in list_tids(pid) or []:
            mappings = read_maps(tid, f"/proc/{pid}/task")
            if mappings:
                return mappings
        return None

    def _number(self, pid: int, mapping: Mapping, numbers: dict[tuple[int, int, int, bytes], int]) -> int:
        key = (mapping.dev_major, mapping.dev_minor, mapping.inode, mapping.path)
        number = numbers.get(key) if mapping.inode else None
        if number is None and key in self._seen:
            number = self._number_again(key)
        if number is not None:
            return number
        start, last = mapping.start, mapping.end - 1
        path = path_in_root(pid, mapping.path)
        file = MappedFile(path, b"", mapping.inode, pid, start, last)
        if mapping.inode:
            # The build ID is what mmap records name the file by.
            try:
                file.fd = open_mapping(pid, mapping)
                file.identity = read_identity(file.fd)
                file.build_id = bytes.fromhex(file.identity.build_id)[:20]
            except ElfError as error:
                file.close()
                file.problem = str(error)
        number = self._table.executable(
            file.build_id, mapping.dev_major, mapping.dev_minor, mapping.inode, path, pid, start, last
        )
        if number > 1 and number not in self._files:
            self._files.add(number, file)
        else:
            file.close()
        numbers[key] = number
        known = self._files.get(number)
        if mapping.inode and known is not None and known.fd >= 0:
            if len(self._seen) >= MOST_SEEN:
                self._seen.clear()
            status = os.fstat(known.fd)
            self._seen[key] = _Seen(number, known.serial, status.st_mtime_ns, status.st_size)
        return number

    def _number_again(self, key: tuple[int, int, int, bytes]) -> int | None:
        """The number of a file that was read before and has been open since, so that its inode number cannot
        have become another file's; None where it has to be read again."""
        seen = self._seen[key]
        file = self._files.get(seen.number)
        if file is not None and file.serial == seen.serial and file.fd >= 0:
            status = os.fstat(file.fd)
            if (status.st_ino, status.st_mtime_ns, status.st_size) == (key[2], seen.mtime_ns, seen.size):
                return seen.number
        del self._seen[key]
        return None
