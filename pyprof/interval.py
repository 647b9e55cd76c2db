# SPDX-License-Identifier: Apache-2.0
"""From what was counted since the last report to a Profile: times, names, what is known of processes."""

import struct
import time
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyprof.bpf.library import end_texts
from pyprof.clock import WallClock
from pyprof.process.facts import ProcessFacts
from pyprof.profile.builder import fill, process_rows
from pyprof.profile.model import Accounting, Profile
from pyprof.symbols.names import FrameNames, Limits

if TYPE_CHECKING:
    from pyprof.session import Session

_STAMP = struct.Struct("=QQ")


def difference(now: Accounting, before: Accounting) -> Accounting:
    """What was counted between two states of an accounting."""

    def less(counts: dict[str, int], old: dict[str, int]) -> dict[str, int]:
        found = {reason: count - old.get(reason, 0) for reason, count in counts.items()}
        return {reason: count for reason, count in found.items() if count}

    return Accounting(
        taken=now.taken - before.taken,
        reported=now.reported - before.reported,
        lost=less(now.lost, before.lost),
        incomplete=less(now.incomplete, before.incomplete),
    )


class Intervals:
    """Takes a session's samples, report by report. What it keeps from one to the next are names and facts."""

    def __init__(self, session: "Session", limits: Limits | None = None) -> None:
        self._session = session
        self.clock = WallClock()
        self.names = FrameNames(limits)
        self.facts = ProcessFacts(session.table)
        self._accounting = Accounting()
        self._since = 0  # CLOCK_MONOTONIC, ns

    def take(self, run: Callable[[Callable[[], None]], None]) -> Profile:
        """The profile of what was counted since the last call, or the start of sampling, named.

        Args:
            run: runs what takes long, while it keeps up with the rings.
        """
        session = self._session
        since = self._since or session.started
        until = session.stopped or time.monotonic_ns()
        accounting = session.accounting()
        # What was counted holds its processes and executables until it is named.
        session.table.take_counted()
        taken = session.aggregator.take()
        if session.options.facts:
            for row in process_rows(taken):
                self.facts.read(row.serial, row.pid, row.start_time, row.parent)
            session.reader.run()
            self.facts.confirm()
        # A sample may have waited for its unwind rows since before the last report.
        stamps = list(_STAMP.iter_unpack(taken["stamps"]))
        since = min([since, *(moment for moment, _ in stamps)])
        until = max([until, *(moment + 1 for moment, _ in stamps)])
        times = self.clock.wall([since, until, *(moment for moment, _ in stamps)])
        profile = Profile(
            started_at=times[0],
            duration=max(times[1] - times[0], 1),
            hz=session.options.hz,
            event=session.options.event,
            by=session.options.by,
            times=array("Q", times[2:]),
            time_samples=array("I", [row for _, row in stamps]),
            ends=end_texts(),
            accounting=difference(accounting, self._accounting),
        )
        changes = session.sideband.kernel_changes
        run(lambda: fill(profile, taken, session.files, self.names, self.facts, changes))
        session.table.sent(time.monotonic_ns())
        self.facts.forget_ended()
        self._accounting = accounting
        self._since = until
        return profile

    def discard(self) -> int:
        """Gives up what was counted since the last profile, also what one that failed had taken.

        Returns:
            Samples that will be in no profile.
        """
        session = self._session
        session.table.take_counted()
        session.aggregator.take()
        session.table.sent(time.monotonic_ns())
        before, self._accounting = self._accounting, session.accounting()
        self._since = time.monotonic_ns()
        return self._accounting.reported - before.reported
