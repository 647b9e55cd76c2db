# SPDX-License-Identifier: Apache-2.0
"""Times of day of monotonic times, through suspends and settings of the clock."""

import time

from pyprof.clock import WallClock

SECOND = 1_000_000_000
HOUR = 3600 * SECOND


class Clocks:
    """Three clocks that go as the kernel's do."""

    def __init__(self) -> None:
        self.monotonic, self.boottime, self.realtime = 100 * SECOND, 130 * SECOND, 1_700_000_000 * SECOND

    def wall_clock(self) -> WallClock:
        return WallClock(lambda: self.monotonic, lambda: self.boottime, lambda: self.realtime)

    def run(self, nanoseconds: int) -> int:
        """Lets time pass; the monotonic clock then."""
        self.monotonic += nanoseconds
        self.sleep(nanoseconds)
        return self.monotonic

    def sleep(self, nanoseconds: int) -> None:
        """Suspends the host: the monotonic clock stands."""
        self.boottime += nanoseconds
        self.realtime += nanoseconds


def test_time_of_day_of_this_host_is_right() -> None:
    clock = WallClock()
    before = time.time_ns()
    moment = time.monotonic_ns()
    after = time.time_ns()
    [wall] = clock.wall([moment])
    assert before - SECOND // 1000 <= wall <= after + SECOND // 1000


def test_suspend_of_eight_hours_moves_only_what_comes_after_it() -> None:
    clocks = Clocks()
    clock = clocks.wall_clock()
    early, early_wall = clocks.run(SECOND), clocks.realtime
    clock.note()
    clocks.sleep(8 * HOUR)
    clock.note()
    late, late_wall = clocks.run(SECOND), clocks.realtime
    assert clock.wall([early, late]) == [early_wall, late_wall]
    assert late_wall - early_wall == 8 * HOUR + SECOND


def test_many_suspends_keep_the_times_of_the_last_ones() -> None:
    clocks = Clocks()
    clock = clocks.wall_clock()
    moments = []
    for _ in range(200):
        moments.append((clocks.run(SECOND), clocks.realtime))
        clock.note()
        clocks.sleep(HOUR)
        clock.note()
    last = moments[-50:]
    assert clock.wall([moment for moment, _ in last]) == [wall for _, wall in last]


def test_clock_that_was_set_counts_for_all_times() -> None:
    for step in (HOUR, -HOUR):
        clocks = Clocks()
        clock = clocks.wall_clock()
        early = clocks.run(SECOND)
        clock.note()
        clocks.realtime += step
        late, late_wall = clocks.run(SECOND), clocks.realtime
        assert clock.wall([early, late]) == [late_wall - SECOND, late_wall]
