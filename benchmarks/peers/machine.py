# SPDX-License-Identifier: Apache-2.0
"""What the kernel says about a profiler: its CPU time and memory, its BPF programs and maps."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its descendants, those included that were waited for."""
    total = 0
    for each in tree(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / TICKS


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident memory of a process and its descendants, now and at most."""
    now = peak = 0
    for each in tree(pid):
        with suppress(OSError):
            for line in Path(f"/proc/{each}/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name == "VmRSS":
                    now += int(value.split()[0])
                elif name == "VmHWM":
                    peak += int(value.split()[0])
    return now / 1024, peak / 1024


class Memory(NamedTuple):
    """Resident memory of one process by what it is, MiB."""

    anonymous: float
    """Its own."""
    files: float
    """Of programs and libraries, shared with whoever else uses them."""
    maps: float
    """Of BPF maps, shared with the kernel."""


HEADER = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)")


def memory_by_kind(pid: int) -> Memory:
    """Of a process without its descendants, from its smaps.

    Raises:
        OSError: it ended.
    """
    anonymous = files = maps = rss = 0
    path = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Rss":
            rss = int(value.split()[0])
        elif name == "Anonymous":
            own = int(value.split()[0])
            anonymous += own
            if path.startswith("anon_inode:"):
                maps += rss - own
            else:
                files += rss - own
        elif header := HEADER.fullmatch(line):
            path = header[1]
    return Memory(anonymous / 1024, files / 1024, maps / 1024)


def busy_seconds() -> float:
    """CPU time, of all CPUs since boot, in which something ran."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _wait, irq, softirq = map(int, fields[:7])
    return (user + nice + system + irq + softirq) / TICKS


@contextmanager
def run_times() -> Iterator[None]:
    """Has the kernel count how long BPF programs run (it costs a few tens of nanoseconds a run)."""
    before = STATS.read_text()
    STATS.write_text("1")
    try:
        yield
    finally:
        STATS.write_text(before)


def _listed(kind: str) -> list[dict[str, Any]]:
    """Raises subprocess.CalledProcessError where bpftool may not."""
    shown = subprocess.run(["bpftool", "-j", kind, "show"], check=True, capture_output=True, text=True)
    found: list[dict[str, Any]] = json.loads(shown.stdout or "[]")
    return found


@dataclass
class BpfUse:
    """BPF programs and maps of a profiler.

    Attributes:
        runs, nanoseconds: of its programs so far, by id.
        maps: bytes of kernel memory, by id.
    """

    runs: dict[int, int] = field(default_factory=dict)
    nanoseconds: dict[int, int] = field(default_factory=dict)
    maps: dict[int, int] = field(default_factory=dict)

    def since(self, earlier: "BpfUse") -> tuple[int, int]:
        """(runs of the sampling program, nanoseconds of all programs) since an earlier look. The sampling
        program is the one that ran most time; what it calls by tail calls is a part of its own runs."""
        spent = {each: self.nanoseconds[each] - earlier.nanoseconds.get(each, 0) for each in self.runs}
        if not spent:
            return 0, 0
        busiest = max(spent, key=lambda each: spent[each])
        return self.runs[busiest] - earlier.runs.get(busiest, 0), sum(spent.values())


class BpfWatch:
    """Tells a profiler's programs and maps from those that were there before it. What comes later from other
    processes is left out as far as the kernel tells whose it is."""

    def __init__(self) -> None:
        self._before = {kind: {entry["id"] for entry in _listed(kind)} for kind in ("prog", "map")}

    def look(self, pid: int) -> BpfUse:
        """pid: the profiler's."""
        own = set(tree(pid))
        use = BpfUse()
        for kind in ("prog", "map"):
            for entry in _listed(kind):
                holders = {holder["pid"] for holder in entry.get("pids", [])}
                if entry["id"] in self._before[kind] or (holders and not holders & own):
                    continue
                if kind == "map":
                    use.maps[entry["id"]] = entry.get("bytes_memlock", 0)
                else:
                    use.runs[entry["id"]] = entry.get("run_cnt", 0)
                    use.nanoseconds[entry["id"]] = entry.get("run_time_ns", 0)
        return use
