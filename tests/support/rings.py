# SPDX-License-Identifier: Apache-2.0
"""Rings of the kernel laid out in memory files, with records made by hand.

Layouts: include/uapi/linux/perf_event.h (struct perf_event_mmap_page, enum perf_event_type) and
kernel/bpf/ringbuf.c (struct bpf_ringbuf_hdr); samples: csrc/pyprof_abi.h.
"""

import mmap
import os
import struct
from array import array
from collections import Counter
from types import TracebackType
from typing import Self

from pyprof._native.aggregate import Aggregator
from pyprof._native.arena import RowArena
from pyprof._native.drain import SampleReader
from pyprof._native.processes import ProcessTable
from pyprof._native.sideband import SidebandReader
from pyprof._native.trie import MappingTrie
from pyprof.profile.builder import ProcessRow, process_rows

PAGE = mmap.PAGESIZE
BUSY = 1 << 31
DISCARD = 1 << 30
COMM_EXEC = 1 << 13
MMAP_BUILD_ID = 1 << 14
NATIVE, KERNEL, UNKNOWN = 1, 2, 3

Key = tuple[int, int, bytes, tuple[tuple[int, int, int], ...]]
"""pid, tid (0 where threads are not kept apart), process name, frames as (kind, executable, address)."""


class MemoryFile:
    def __init__(self, size: int) -> None:
        self.fd = os.memfd_create("ring")
        os.ftruncate(self.fd, size)
        self.memory = mmap.mmap(self.fd, size)

    def close(self) -> None:
        self.memory.close()
        os.close(self.fd)

    def word(self, at: int) -> int:
        return int(struct.unpack_from("<Q", self.memory, at)[0])

    def set_word(self, at: int, value: int) -> None:
        struct.pack_into("<Q", self.memory, at, value)


class PerfRing(MemoryFile):
    """A page of struct perf_event_mmap_page, then the data."""

    HEAD, TAIL = 1024, 1032

    def __init__(self, size: int = PAGE) -> None:
        super().__init__(PAGE + size)
        self.size = size

    @property
    def head(self) -> int:
        return self.word(self.HEAD)

    @head.setter
    def head(self, value: int) -> None:
        self.set_word(self.HEAD, value)

    @property
    def tail(self) -> int:
        return self.word(self.TAIL)

    def put(self, *records: bytes) -> None:
        for record in records:
            at = self.head
            for i, byte in enumerate(record):
                self.memory[PAGE + (at + i) % self.size] = byte
            self.head = at + len(record)


class SampleRing(MemoryFile):
    """The consumer's page, the producer's page, and the data twice."""

    def __init__(self, size: int = 16 * PAGE) -> None:
        super().__init__(2 * PAGE + 2 * size)
        self.size = size

    @property
    def consumer(self) -> int:
        return self.word(0)

    @property
    def producer(self) -> int:
        return self.word(PAGE)

    @producer.setter
    def producer(self, value: int) -> None:
        self.set_word(PAGE, value)

    def store(self, at: int, data: bytes) -> None:
        """Writes at a position of the ring, in both copies."""
        for i, byte in enumerate(data):
            self.memory[2 * PAGE + (at + i) % self.size] = byte
            self.memory[2 * PAGE + self.size + (at + i) % self.size] = byte

    def put(self, data: bytes, flags: int = 0, length: int | None = None) -> int:
        """Appends a record, whose header may state another length; its position."""
        at = self.producer
        self.store(at, struct.pack("<II", (len(data) if length is None else length) | flags, 0) + data)
        self.producer = at + (8 + len(data) + 7) // 8 * 8
        return at


def sample(
    pid: int,
    time: int,
    *,
    tid: int = 0,
    start_time: int = 0,
    user: list[tuple[int, int]] | None = None,
    kernel: list[int] | None = None,
    end: int = 0,
    in_kernel: bool = False,
    kernel_thread: bool = False,
    name: bytes = b"name",
    thread_name: bytes = b"thread",
    slice_number: int = 0,
    cpu: int = 0,
    exec_id: int = 0,
    exec_pages: int = 0,
) -> bytes:
    """struct pyprof_sample with its frames. user: (pc, number of the mapping or 0)."""
    user, kernel = user or [], kernel or []
    head = struct.pack(
        "=IIQQIIHHBBBBIIII16s16s",
        1, slice_number, time, start_time, pid, tid or pid, len(user), len(kernel), end, in_kernel,
        kernel_thread, 0, cpu, exec_id, exec_pages, 0, name, thread_name,
    )  # fmt: skip
    # The first frame's pc is exact, the others are return addresses.
    frames = b"".join(struct.pack("=QII", pc, mapping, i == 0) for i, (pc, mapping) in enumerate(user))
    return head + frames + array("Q", kernel).tobytes()


def stack_slice(
    number: int,
    base: int,
    stack: bytes,
    *,
    pc: int,
    sp: int,
    fp: int | None = 0,
    registers: dict[int, int] | None = None,
    exact: bool = True,
    cpu: int = 0,
    size: int | None = None,
    holes: int = 0,
) -> bytes:
    """struct pyprof_slice with the stack behind it. fp: None where it is lost; size: what the head states."""
    head = struct.pack(
        "=IIIIQQQQ16QBBBB4x",
        2, number, cpu, len(stack) if size is None else size, base, pc, sp, fp or 0,
        *((registers or {}).get(i, 0) for i in range(16)),
        registers is not None, fp is not None, exact, holes,
    )  # fmt: skip
    return head + stack


def record(kind: int, body: bytes, time: int, misc: int = 0) -> bytes:
    """A perf record: {u32 type; u16 misc; u16 size}, the body, and the time that sample_id_all adds."""
    return struct.pack("<IHH", kind, misc, 8 + len(body) + 8) + body + struct.pack("<Q", time)


def padded(path: bytes) -> bytes:
    """A name as the kernel writes it: ended by a NUL and filled up to 8 bytes."""
    return path + b"\0" * (8 - len(path) % 8)


def mmap2(
    pid: int,
    time: int,
    start: int,
    length: int,
    *,
    offset: int = 0,
    path: bytes = b"/bin/x",
    build_id: bytes = b"",
    inode: tuple[int, int, int] = (0, 0, 0),
) -> bytes:
    """PERF_RECORD_MMAP2. inode: (major, minor, inode)."""
    if build_id:
        identity = struct.pack("<BBH20s", len(build_id), 0, 0, build_id)
    else:
        identity = struct.pack("<IIQQ", *inode, 0)
    body = struct.pack("<IIQQQ", pid, pid, start, length, offset) + identity + struct.pack("<II", 5, 2)
    return record(10, body + padded(path), time, MMAP_BUILD_ID if build_id else 0)


def fork(pid: int, parent: int, time: int, tid: int = 0) -> bytes:
    """PERF_RECORD_FORK; a thread where pid and parent are the same."""
    return record(7, struct.pack("<IIIIQ", pid, parent, tid or pid, parent, time), time)


def leave(pid: int, tid: int, time: int) -> bytes:
    """PERF_RECORD_EXIT."""
    return record(4, struct.pack("<IIIIQ", pid, pid, tid, tid, time), time)


def comm(pid: int, time: int, *, is_exec: bool, name: bytes = b"new") -> bytes:
    """PERF_RECORD_COMM."""
    return record(3, struct.pack("<II", pid, pid) + padded(name), time, COMM_EXEC if is_exec else 0)


def lost(count: int, time: int) -> bytes:
    """PERF_RECORD_LOST."""
    return record(2, struct.pack("<QQ", 0, count), time)


class World:
    """All that a session has between the kernel and the profile, over hand-made rings. A context manager."""

    def __init__(
        self,
        by: str = "process",
        cpus: int = 1,
        ring_size: int = 16 * PAGE,
        capacity: int = 1 << 40,
        stamped: bool = False,
    ) -> None:
        self.trie = MappingTrie(capacity)
        self.table = ProcessTable(self.trie)
        self.sideband = SidebandReader(self.table)
        self.aggregator = Aggregator(1, stamped)
        self.taken_ends: Counter[int] = Counter()
        self.events = [PerfRing(16 * PAGE) for _ in range(cpus)]
        for ring in self.events:
            self.sideband.add(ring.fd, ring.size)
        self.samples = SampleRing(ring_size)
        self.arena = RowArena(bytearray(16 * 32768))
        self.reader = SampleReader(
            self.samples.fd, ring_size, self.table, self.sideband, self.aggregator, self.arena, by
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for ring in (*self.events, self.samples):
            ring.close()

    def run(self, *samples: bytes) -> None:
        """Puts samples into the ring and reads all that is there."""
        for data in samples:
            self.samples.put(data)
        self.reader.run()

    def flush(self, now: int) -> None:
        """Lets the kernel have all that is to be written."""
        self.table.publish(now)
        self.trie.flushed(now, len(self.trie.pending()[1]) // 16)

    def sent(self, now: int = 1) -> None:
        """Says that all that was counted is sent."""
        self.table.take_counted()
        self.table.sent(now)

    def take(self) -> dict[Key, int]:
        """What was counted since the last call, wherever the stacks ended: taken_ends adds that up."""
        taken = self.aggregator.take()
        frames = [
            (kind, number, address) for address, number, kind in struct.iter_unpack("=QII", taken["frames"])
        ]
        pool = array("I", taken["pool"])
        stacks = [
            tuple(frames[i] for i in pool[start : start + length])
            for start, length, _ in struct.iter_unpack("=QII", taken["stacks"])
        ]
        processes = process_rows(taken) or [ProcessRow(0, 0, 0, 0, 0, b"")]
        threads = list(struct.iter_unpack("=II16s", taken["threads"])) or [(0, 0, b"")]
        found: dict[Key, int] = {}
        for count, process, thread, stack, end in struct.iter_unpack("=QIIII", taken["samples"]):
            self.taken_ends[end] += count
            row = processes[process]
            key = (row.pid, threads[thread][1], row.name.rstrip(b"\0"), stacks[stack])
            found[key] = found.get(key, 0) + count
        return found
