# SPDX-License-Identifier: Apache-2.0
"""What a session holds, in the kernel and itself, and the audit: the kernel has nothing that nobody owns."""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyprof.bpf.library import CHUNK_BYTES, MAX_RULES, PAGE_ENTRIES

if TYPE_CHECKING:
    from pyprof.session import Session

MOST_TOLD = 20


class HighWater:
    """The highest value that each number has had when it was noted, once a second."""

    def __init__(self) -> None:
        self.marks: dict[str, int] = {}

    def note(self, values: dict[str, int]) -> None:
        for name, value in values.items():
            self.marks[name] = max(self.marks.get(name, 0), value)


def held(session: "Session") -> dict[str, int]:
    """How many there are of each kind of thing that a session holds, and bytes of what is measured so."""
    table = session.table.counts()
    trie = session.trie.counts()
    rows = session.arena.counts()
    return {
        "processes": table["processes"],
        "mappings": table["mappings"],
        "executables": table["executables"],
        "published_processes": trie["processes"],
        "published_mappings": trie["mappings"],
        "prefixes": trie["prefixes"],
        "retired_mappings": trie["retired"],
        "rows": rows["rows"],
        "row_bytes": rows["bytes"] - rows["free_bytes"],
        "waiting_bytes": session.reader.waiting,
        "open_files": session.files.open,
    }


def full_counts(session: "Session") -> dict[str, tuple[int, int]]:
    """(times that an owner of entries gave way, times that no room was found), by map of the kernel."""
    table = session.table.counts()
    rows = session.row_shortages()
    return {"exec_mappings": (table["evicted"], table["refused"] + session.full)} | rows


@dataclass(frozen=True, slots=True)
class Audit:
    """The kernel's maps compared with what is owned here, key by key.

    Attributes:
        entries: how many the kernel has, by map.
        orphans: of these, how many nobody owns, by map.
        missing: how many are owned and not there, by map.
        orphans_by_pid: those of exec_mappings by process, the MOST_TOLD that have most.
        missing_by_pid: the same of what is missing.
    """

    entries: dict[str, int]
    orphans: dict[str, int]
    missing: dict[str, int]
    orphans_by_pid: dict[str, int]
    missing_by_pid: dict[str, int]


def audit(session: "Session") -> Audit:
    """Compares. What is on its way to the kernel must have been written before."""
    mappings = set(session.bpf.mapping_keys())
    owned = {(pid, *key) for pid in session.trie.pids() for key in session.trie.keys(pid)}
    pages, owned_pages = set(session.bpf.page_keys()), set(session.arena.page_keys())
    settled, owned_settled = set(session.bpf.settled()), set(session.arena.settled())
    return Audit(
        entries={"exec_mappings": len(mappings), "pages": len(pages), "executables": len(settled)},
        orphans={
            "exec_mappings": len(mappings - owned),
            "pages": len(pages - owned_pages),
            "executables": len(settled - owned_settled),
        },
        missing={
            "exec_mappings": len(owned - mappings),
            "pages": len(owned_pages - pages),
            "executables": len(owned_settled - settled),
        },
        orphans_by_pid=_by_pid(mappings - owned),
        missing_by_pid=_by_pid(owned - mappings),
    )


def _by_pid(keys: set[tuple[int, int, int]]) -> dict[str, int]:
    return {str(pid): count for pid, count in Counter(pid for pid, _, _ in keys).most_common(MOST_TOLD)}


def state_of(session: "Session") -> dict[str, object]:
    """All of it, as `pyprof inspect maps` shows it."""
    bpf = session.bpf
    counts = session.table.counts()
    trie = session.trie.counts()
    rows = session.arena.counts()
    audited = audit(session)
    full = full_counts(session)

    def of_map(name: str, entries: int, capacity: int, size: int | None = None) -> dict[str, int]:
        evicted, refused = full[name]
        return {
            "entries": entries,
            "capacity": capacity,
            "bytes": bpf.map_bytes(name) if size is None else size,
            "evicted": evicted,
            "refused": refused,
        }

    chunks = max(session.options.arena_bytes // CHUNK_BYTES, 1)
    maps = (
        ("exec_mappings", audited.entries["exec_mappings"], bpf.mapping_entries),
        ("pages", audited.entries["pages"], PAGE_ENTRIES),
        ("executables", audited.entries["executables"], PAGE_ENTRIES),
        # The map of chunks has but their numbers: what they take is their own size.
        ("chunks", rows["chunks"], chunks, rows["bytes"]),
        ("rules", rows["rules"], MAX_RULES),
    )
    return {
        "kernel": {name: of_map(name, *numbers) for name, *numbers in maps},
        "processes": {
            "alive": counts["processes"] - counts["exited"],
            "exited": counts["exited"],
            "published": trie["processes"],
        },
        "mappings": {
            "known": counts["mappings"],
            "published": trie["mappings"],
            "retired": trie["retired"],
            "prefixes": trie["prefixes"],
        },
        "executables": {
            "known": counts["executables"],
            "unused": counts["unused_executables"],
            "open_files": session.files.open,
            "unreadable": session.files.unreadable,
        },
        "events": {"applied": counts["events"], "lost": counts["lost_events"]},
        "samples": session.samples(),
        "arena": rows | session.row_counts(),
        "high_water": dict(session.high_water.marks),
        "orphans": sum(audited.orphans.values()),
        "missing": sum(audited.missing.values()),
        "audit": {
            "orphans": audited.orphans,
            "missing": audited.missing,
            "orphans_by_pid": audited.orphans_by_pid,
            "missing_by_pid": audited.missing_by_pid,
        },
    }


def one_line(state: dict[str, object], prefix: str = "") -> str:
    """The numbers of a state in one line, name=value, for a log."""
    parts = []
    for name, value in state.items():
        if isinstance(value, dict):
            parts.append(one_line(value, f"{prefix}{name}."))
        else:
            parts.append(f"{prefix}{name}={value}")
    return " ".join(part for part in parts if part)
