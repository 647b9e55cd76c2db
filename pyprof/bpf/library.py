# SPDX-License-Identifier: Apache-2.0
"""The BPF object in the kernel: load it, reach its maps. With perf_events.py the only user of libbpf."""

import errno
import mmap
import os
import re
import struct
import time
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Self

from pyprof._native._libbpf import ffi, lib
from pyprof._native.arena import RowArena
from pyprof._native.trie import MappingTrie
from pyprof.errors import HostError

MAPPING_ENTRIES = 262_144
KEY_SIZE = 16
MAPPING_VALUE_SIZE = 32
PAGE_VALUE_SIZE = 40
PAGE_ENTRIES = 65_536
CHUNK_BYTES = int(lib.PYPROF_CHUNK_BYTES)
_MAPPING_KEY = struct.Struct("=I4s8s")  # struct pyprof_mapping_key
_PAGE_KEY = struct.Struct("=II")  # struct pyprof_page_key
_NUMBER = struct.Struct("=I")
MAX_RULES = int(lib.PYPROF_MAX_RULES)
RULE_TABLE_BYTES = 16 * MAX_RULES

# kernel/bpf/verifier.c: the first two until Linux 6.11, the third from there on.
UNKNOWN_HELPER = re.compile(r"(?:invalid func|unknown func|cannot use helper) (\w+)#([0-9]+)")
BPF_LOOP = 181
LATE_HELPERS = {158: "bpf_get_current_task_btf", 175: "bpf_task_pt_regs", BPF_LOOP: "bpf_loop"}  # linux/bpf.h
BOILERPLATE = re.compile(
    r"processed [0-9]+ insns|.*-- END PROG LOAD LOG"
    r"|libbpf: (?:prog '.*': failed to load|failed to load object)"
)


def error_text(code: int) -> str:
    """What a negative errno means, in words."""
    return os.strerror(-code) if code < 0 else os.strerror(code)


def end_texts() -> list[str]:
    """Why stacks end, by enum pyprof_end; the first one stands for complete stacks."""
    return [ffi.string(lib.pyprof_end_text(i)).decode() for i in range(lib.PYPROF_END_COUNT)]


def return_memory() -> None:
    """Has the C library give freed memory back to the kernel, for the rest of the process's life."""
    lib.pyprof_heap_return_memory()


def libbpf_version() -> str:
    return str(ffi.string(lib.pyprof_libbpf_version()).decode())


def probe_program() -> int:
    """0 where a perf_event program can be loaded, else a negative errno."""
    return int(lib.pyprof_probe_program())


def probe_helper(number: int) -> bool:
    """Whether perf_event programs can call a helper, by its number in linux/bpf.h."""
    return bool(lib.pyprof_probe_helper(number) == 1)


def probe_loop() -> bool:
    """Whether perf_event programs can call bpf_loop()."""
    return probe_helper(BPF_LOOP)


def missing_helper(log: str) -> str:
    """The BPF helper that the verifier does not know or allow, "" where its log names none."""
    found = UNKNOWN_HELPER.search(log)
    if found is None:
        return ""
    # A kernel does not know the names of helpers that came after it.
    return LATE_HELPERS.get(int(found[2]), found[1] if found[1] != "unknown" else f"number {found[2]}")


def load_error(code: int, log: str) -> HostError:
    """The sentence for a refused load."""
    helper = missing_helper(log)
    if helper:
        return HostError(f"the kernel lacks the BPF helper {helper}: pyprof needs Linux 5.15 or newer")
    # EACCES is the verifier's as well, for memory that a program may not touch.
    if code == -errno.EPERM or (code == -errno.EACCES and "PROG LOAD LOG" not in log):
        return HostError(
            "the kernel refuses BPF programs: run as root (or with CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE), "
            "and not under kernel lockdown"
        )
    if code in (-errno.ENOSYS, -errno.ESRCH):
        return HostError(
            "the kernel has no BPF type information: it needs CONFIG_BPF_SYSCALL and CONFIG_DEBUG_INFO_BTF"
        )
    if code == -errno.ENOMEM:
        return HostError("no memory for the BPF maps: free some, or raise the memory limit of the cgroup")
    # Older kernels stumble over something else first, and their logs do not tell the helper.
    lacking = [
        name for number, name in LATE_HELPERS.items() if number != BPF_LOOP and not probe_helper(number)
    ]
    if lacking:
        return HostError(
            f"the kernel lacks the BPF helper {' and '.join(lacking)}: pyprof needs Linux 5.15 or newer"
        )
    lines = [line.strip() for line in log.splitlines() if line.strip() and not BOILERPLATE.match(line)]
    tail = f": {lines[-1]}" if lines else ""
    return HostError(
        f"the kernel refuses the sampler ({error_text(code)}), pyprof needs Linux 5.15 or newer{tail}"
    )


class BpfObject:
    """The loaded programs and maps; all of it goes when the process ends, however it ends."""

    def __init__(
        self,
        ring_bytes: int,
        wakeup_bytes: int,
        mapping_entries: int = MAPPING_ENTRIES,
        plain_loop: bool = False,
    ) -> None:
        """Loads and verifies.

        Args:
            ring_bytes: size of the sample ring, a power of two of pages.
            wakeup_bytes: unread bytes in it from which a reader is woken.
            mapping_entries: prefixes that exec_mappings can hold.
            plain_loop: do without bpf_loop() (Linux 5.17) even where it is.

        Raises:
            HostError: the kernel does not take it.
        """
        self._bpf = ffi.NULL
        image = resources.files("pyprof.bpf").joinpath("sampler.bpf.o")
        if not image.is_file():
            raise HostError(
                "sampler.bpf.o is missing from the installation: build it (`make build`) or reinstall"
            )
        data = image.read_bytes()
        out = ffi.new("struct pyprof_bpf **")
        code = lib.pyprof_bpf_load(
            data, len(data), ring_bytes, wakeup_bytes, mapping_entries, plain_loop, out
        )
        if code:
            raise load_error(code, ffi.string(lib.pyprof_bpf_log()).decode(errors="replace"))
        self._bpf = out[0]
        self.ring_bytes = ring_bytes
        self.mapping_entries = mapping_entries
        self.program_fd = int(lib.pyprof_bpf_program_fd(self._bpf, b"sample"))
        try:
            self.ring_fd = self._map("samples")
            self._counters_fd = self._map("counters")
            self._mappings_fd = self._map("exec_mappings")
        except HostError:
            self.close()
            raise

    def _map(self, name: str) -> int:
        fd = int(lib.pyprof_bpf_map_fd(self._bpf, name.encode()))
        if fd < 0:
            raise HostError(f"the BPF object has no map {name}: reinstall pyprof")
        return fd

    def close(self) -> None:
        bpf, self._bpf = self._bpf, ffi.NULL
        lib.pyprof_bpf_close(bpf)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def counters(self) -> dict[str, int]:
        """The kernel side's counters, summed over all CPUs, by their texts in csrc/pyprof_abi.h."""
        totals = ffi.new("uint64_t[]", lib.PYPROF_COUNTER_COUNT)
        code = lib.pyprof_counters_read(self._counters_fd, totals)
        if code:
            raise HostError(f"cannot read the sampler's counters: {error_text(code)}")
        return {
            ffi.string(lib.pyprof_counter_text(i)).decode(): int(totals[i])
            for i in range(lib.PYPROF_COUNTER_COUNT)
        }

    def _delete(self, name: str, keys: bytes, key_size: int) -> None:
        done = ffi.new("uint32_t *")
        count = len(keys) // key_size
        code = lib.pyprof_map_delete(self._map(name), ffi.from_buffer(keys), key_size, count, done)
        if code:
            raise HostError(f"cannot delete from {name}: {error_text(code)}")

    def _update(self, name: str, keys: bytes, key_size: int, values: bytes, value_size: int) -> int:
        """How many entries found room."""
        done = ffi.new("uint32_t *")
        count = len(keys) // key_size
        code = lib.pyprof_map_update(
            self._map(name), ffi.from_buffer(keys), key_size, ffi.from_buffer(values), value_size, count, done
        )
        if code and code not in (-errno.ENOSPC, -errno.ENOMEM, -errno.E2BIG):
            raise HostError(f"cannot write to {name}: {error_text(code)}")
        return count if not code else int(done[0])

    def rule_table(self) -> mmap.mmap:
        """The memory of the table of unwind rules."""
        return mmap.mmap(self._map("rules"), RULE_TABLE_BYTES)

    def make_chunk(self, index: int) -> mmap.mmap:
        """A new chunk of the arena of unwind rows, as memory that the programs see.

        Raises:
            HostError: no memory for it.
        """
        fd = int(lib.pyprof_chunk_create(self._map("chunks"), index))
        if fd < 0:
            raise HostError(f"no memory for unwind rows: {error_text(fd)}")
        try:
            return mmap.mmap(fd, CHUNK_BYTES)
        finally:
            os.close(fd)

    def write_rows(self, arena: RowArena, now: int) -> int:
        """Writes what is pending in the arena to the maps of pages and executables; how many pages had no
        room."""
        deletes, gone, keys, values, loaded = arena.pending()
        if not (deletes or gone or keys or loaded):
            arena.flushed(max(now, time.monotonic_ns()))
            return 0
        self._delete("executables", gone, 4)
        self._delete("pages", deletes, 8)
        pages = self._update("pages", keys, 8, values, PAGE_VALUE_SIZE)
        if pages == len(keys) // 8:
            # Else what has no page is taken for not loaded, and unwound in user space.
            self._update("executables", loaded, 4, len(loaded) // 4 * b"\1\0\0\0", 4)
        lib.pyprof_bpf_changed(self._bpf)
        # Reading may go on until now, whenever this began.
        arena.flushed(max(now, time.monotonic_ns()))
        return len(keys) // 8 - pages

    def write_mappings(self, trie: MappingTrie, now: int) -> list[int]:
        """Writes what is pending in the trie to exec_mappings.

        Returns:
            Processes that did not fit: they are out of the kernel whole.

        Raises:
            HostError: the kernel refuses for another reason than want of room.
        """
        refused: list[int] = []
        while True:
            deletes, keys, values = trie.pending()
            self._delete("exec_mappings", deletes, KEY_SIZE)
            written = self._update("exec_mappings", keys, KEY_SIZE, values, MAPPING_VALUE_SIZE)
            lib.pyprof_bpf_changed(self._bpf)
            failed = trie.flushed(now, written)
            if not failed:
                return refused
            refused += failed

    def map_bytes(self, name: str) -> int:
        """Kernel memory that a map takes, as the kernel counts it."""
        for line in Path(f"/proc/self/fdinfo/{self._map(name)}").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "memlock":
                return int(value)
        return 0

    def keys(self, name: str, key_size: int, capacity: int) -> bytes:
        """The keys that are in a map now, one after the other.

        Args:
            name: of the map.
            key_size: bytes a key.
            capacity: most entries that the map can have.

        Raises:
            HostError: the kernel does not tell.
        """
        keys = ffi.new("uint8_t[]", capacity * key_size)
        count = ffi.new("uint32_t *")
        code = lib.pyprof_map_keys(self._map(name), key_size, keys, capacity, count)
        if code:
            raise HostError(f"cannot list {name}: {error_text(code)}")
        return bytes(ffi.buffer(keys, min(int(count[0]), capacity) * key_size))

    def mapping_keys(self) -> list[tuple[int, int, int]]:
        """What is in exec_mappings: (pid, prefix length in the address, address)."""
        keys = self.keys("exec_mappings", KEY_SIZE, self.mapping_entries)
        return [
            (int.from_bytes(pid, "big"), length - 32, int.from_bytes(address, "big"))
            for length, pid, address in _MAPPING_KEY.iter_unpack(keys)
        ]

    def page_keys(self) -> list[tuple[int, int]]:
        """What is in pages: (executable, page)."""
        return list(_PAGE_KEY.iter_unpack(self.keys("pages", 8, PAGE_ENTRIES)))

    def settled(self) -> list[int]:
        """What is in executables: the numbers of those whose rows are there, or which have none."""
        return [number for (number,) in _NUMBER.iter_unpack(self.keys("executables", 4, PAGE_ENTRIES))]

    def lookup_mapping(self, pid: int, address: int) -> int:
        """The kernel's own look-up: number of the mapping, 0 where there is none."""
        mapping = ffi.new("uint32_t *")
        code = lib.pyprof_mappings_lookup(self._mappings_fd, pid, address, mapping)
        if code == -errno.ENOENT:
            return 0
        if code:
            raise HostError(f"cannot look up in exec_mappings: {error_text(code)}")
        return int(mapping[0])
