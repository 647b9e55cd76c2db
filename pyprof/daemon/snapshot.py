# SPDX-License-Identifier: Apache-2.0
"""What the daemon tells of itself at one moment: taken by the loop's thread, read by any."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pyprof.bpf.library import CHUNK_BYTES, MAX_RULES, PAGE_ENTRIES
from pyprof.export.otlp.counts import Counts
from pyprof.profile.model import Accounting
from pyprof.state import full_counts

if TYPE_CHECKING:
    from pyprof.session import Session


class MapUse(NamedTuple):
    """A kernel map. evicted, refused: times that an owner gave way, and that there was no room."""

    entries: int
    capacity: int
    bytes: int
    evicted: int
    refused: int


@dataclass(slots=True)
class IntervalCounts:
    """What became of intervals.

    Attributes:
        done: intervals that were handed to the sender.
        failed: intervals that were not, for an error.
        lost: samples of the failed ones, and of those that fit in no message, by reason.
        seconds: spent on naming and encoding, in all.
        last_seconds: the same of the last one.
    """

    done: int = 0
    failed: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    last_seconds: float = 0.0

    def lose(self, reason: str, samples: int) -> None:
        if samples:
            self.lost[reason] = self.lost.get(reason, 0) + samples


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Numbers of one moment.

    Attributes:
        time: time.monotonic() of it.
        accounting: samples since the start. reported + lost are taken, but for those on their way from the
            kernel; what an interval lost counts as lost here, not as reported.
        unwound_in_user_space: reported samples whose stack was, all or part.
        stack_copies_lost: copies of stacks that found no room in the ring.
        processes: by state, alive or exited.
        held: how many there are of other things, by name.
        high_water: the most that there were, by name.
        maps: of the kernel, by name.
        events: records of processes that were applied, and lost.
        rows: what became of making unwind rows, by name.
        caches: metrics of the caches of names (LruCache.metrics), by name of the cache.
        intervals: what became of intervals.
        export: the sender's counts.
    """

    time: float
    accounting: Accounting
    unwound_in_user_space: int
    stack_copies_lost: int
    processes: Mapping[str, int]
    held: Mapping[str, int]
    high_water: Mapping[str, int]
    maps: Mapping[str, MapUse]
    events: tuple[int, int]
    rows: Mapping[str, int]
    caches: Mapping[str, Mapping[str, int]]
    intervals: IntervalCounts
    export: Counts

    @property
    def pending(self) -> int:
        """Samples on their way from the kernel."""
        counts = self.accounting
        return counts.taken - counts.reported - sum(counts.lost.values())


def adjusted(accounting: Accounting, intervals: IntervalCounts) -> Accounting:
    """The accounting of a session, with what intervals lost moved from reported to lost."""
    lost = dict(accounting.lost)
    for reason, samples in intervals.lost.items():
        lost[reason] = lost.get(reason, 0) + samples
    return Accounting(
        taken=accounting.taken,
        reported=accounting.reported - sum(intervals.lost.values()),
        lost=lost,
        incomplete=accounting.incomplete,
    )


def map_use(session: "Session") -> dict[str, MapUse]:
    """The maps by what their owners have in them: the kernel's own lists are not read for it."""
    rows = session.arena.counts()
    trie = session.trie.counts()
    full = full_counts(session)
    bpf = session.bpf
    chunks = max(session.options.arena_bytes // CHUNK_BYTES, 1)
    return {
        "exec_mappings": MapUse(
            trie["prefixes"], bpf.mapping_entries, bpf.map_bytes("exec_mappings"), *full["exec_mappings"]
        ),
        "pages": MapUse(rows["pages"], PAGE_ENTRIES, bpf.map_bytes("pages"), *full["pages"]),
        "executables": MapUse(rows["told"], PAGE_ENTRIES, bpf.map_bytes("executables"), *full["executables"]),
        "chunks": MapUse(rows["chunks"], chunks, rows["bytes"], *full["chunks"]),
        "rules": MapUse(rows["rules"], MAX_RULES, bpf.map_bytes("rules"), *full["rules"]),
    }


def take(session: "Session", intervals: IntervalCounts, export: Counts) -> Snapshot:
    """The numbers of now; to be called where the session's loop runs."""
    samples = session.samples()
    table = session.table.counts()
    trie = session.trie.counts()
    return Snapshot(
        time=time.monotonic(),
        accounting=adjusted(session.accounting(), intervals),
        unwound_in_user_space=samples["unwound_in_user_space"],
        stack_copies_lost=samples["stack_copies_without_room"],
        processes={"alive": table["processes"] - table["exited"], "exited": table["exited"]},
        held={
            "mappings": table["mappings"],
            "executables": table["executables"],
            "published_processes": trie["processes"],
            "published_mappings": trie["mappings"],
            "open_files": session.files.open,
            "unreadable_files": session.files.unreadable,
        },
        high_water=dict(session.high_water.marks),
        maps=map_use(session),
        events=(table["events"], table["lost_events"]),
        rows=session.row_counts(),
        caches=session.intervals.names.counts(),
        intervals=IntervalCounts(
            intervals.done, intervals.failed, dict(intervals.lost), intervals.seconds, intervals.last_seconds
        ),
        export=export,
    )
