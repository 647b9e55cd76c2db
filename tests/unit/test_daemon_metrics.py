# SPDX-License-Identifier: Apache-2.0
"""/metrics and /healthz of a snapshot whose numbers are known, and who may read snapshots when."""

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse

from pyprof._native.cache import LruCache
from pyprof.daemon.board import Board
from pyprof.daemon.health import Health
from pyprof.daemon.metrics import MetricsPage
from pyprof.daemon.pages import pages
from pyprof.daemon.snapshot import IntervalCounts, MapUse, Snapshot, adjusted
from pyprof.export.otlp.counts import Counts
from pyprof.profile.model import Accounting
from tests.support.profiling import ROOT


def snapshot() -> Snapshot:
    return Snapshot(
        caches={"names": LruCache(8).metrics()},
        time=time.monotonic(),
        accounting=Accounting(
            taken=100, reported=90, lost={"ring buffer full": 7}, incomplete={'odd "reason"\n\\': 2}
        ),
        unwound_in_user_space=5,
        stack_copies_lost=1,
        processes={"alive": 12, "exited": 3},
        held={"mappings": 40},
        high_water={"mappings": 50},
        maps={"pages": MapUse(10, 65536, 4096, 1, 2)},
        events=(1000, 4),
        rows={"cache_hits": 3, "cache_misses": 4, "failed": 0, "no_room": 6},
        intervals=IntervalCounts(8, 1, {"profile failed": 3}, 0.5, 0.1),
        export=Counts(
            submitted=80,
            found=10,
            sent=60,
            rejected=5,
            waiting_memory=10,
            waiting_spool=8,
            lost={"too old": 7},
            requests=20,
            bytes=12345,
            retries=2,
            away=False,
            last_error="",
            since_success=1.5,
        ),
    )


def page(accept: str = "") -> tuple[str, str]:
    answer = MetricsPage(snapshot, lambda: 60.0)(accept)
    assert answer.status == 200
    return answer.content_type, answer.body.decode()


def values(text: str) -> dict[tuple[str, ...], float]:
    """(name, values of labels...) -> value, as Prometheus's own parser reads it."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def test_metrics_are_what_the_snapshot_says() -> None:
    found = values(page()[1])
    assert found["pyprof_samples_taken_total",] == 100
    assert found["pyprof_samples_reported_total",] == 90
    assert found["pyprof_samples_lost_total", "ring buffer full"] == 7
    assert found["pyprof_samples_pending",] == 3
    assert found["pyprof_samples_incomplete_total", 'odd "reason"\n\\'] == 2
    assert found["pyprof_processes", "alive"] == 12
    assert found["pyprof_held_high_water", "mappings"] == 50
    assert found["pyprof_map_entries", "pages"] == 10
    assert found["pyprof_map_capacity", "pages"] == 65536
    assert found["pyprof_map_evictions_total", "pages"] == 1
    assert found["pyprof_map_refusals_total", "pages"] == 2
    assert found["pyprof_row_cache_lookups_total", "hit"] == 3
    assert found["pyprof_intervals_total", "failed"] == 1
    assert found["pyprof_export_samples_waiting", "spool"] == 8
    assert found["pyprof_export_bytes_total",] == 12345
    assert found["pyprof_export_idle_seconds",] == 1.5
    assert found["pyprof_uptime_seconds",] == 60
    assert found["process_resident_memory_bytes",] > 1 << 20
    assert found["process_cpu_seconds_total",] > 0


def test_samples_add_up_in_the_metrics() -> None:
    found = values(page()[1])

    def total(prefix: str) -> float:
        return sum(value for key, value in found.items() if key[0] == prefix)

    assert total("pyprof_samples_taken_total") == (
        total("pyprof_samples_reported_total")
        + total("pyprof_samples_lost_total")
        + total("pyprof_samples_pending")
    )
    handed = total("pyprof_export_samples_submitted_total") + total("pyprof_export_samples_found_total")
    assert handed == (
        total("pyprof_export_samples_sent_total")
        + total("pyprof_export_samples_rejected_total")
        + total("pyprof_export_samples_waiting")
        + total("pyprof_export_samples_lost_total")
    )


def test_open_metrics_are_given_to_whom_asks_for_them() -> None:
    content_type, text = page("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    names = {family.name for family in parse_openmetrics(text)}  # type: ignore[no-untyped-call]
    assert {"pyprof_samples_taken", "pyprof_build"} <= names


def test_metrics_are_there_before_the_first_snapshot() -> None:
    answer = MetricsPage(lambda: None, lambda: 0.0)("")
    assert ("pyprof_uptime_seconds",) in values(answer.body.decode())


def test_what_intervals_lost_is_lost_and_not_reported() -> None:
    counts = adjusted(Accounting(taken=10, reported=9, lost={"a": 1}), IntervalCounts(lost={"a": 2, "b": 3}))
    assert (counts.taken, counts.reported, counts.lost) == (10, 4, {"a": 3, "b": 3})


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_health_is_lost_when_the_loop_does_not_turn_and_returns_with_it() -> None:
    clock = Clock()
    health = Health(5.0, clock)
    clock.now += 9
    assert health.wedged() == []
    clock.now += 2
    assert health.wedged() == ["the loop has not turned for 11 s"]
    health.turned()
    assert health.wedged() == []


def test_health_is_lost_when_no_interval_ends() -> None:
    clock = Clock()
    health = Health(20.0, clock)
    clock.now += 79
    health.turned()
    assert health.wedged() == []
    clock.now += 2
    health.turned()
    assert health.wedged() == ["no interval has ended for 81 s"]
    health.profiled()
    assert health.wedged() == []


def test_intervals_that_fail_in_a_row_are_a_problem_and_no_wedge() -> None:
    health = Health(5.0)
    for _ in range(2):
        health.failed("ValueError")
    assert health.problems() == []
    health.failed("ValueError")
    assert health.problems() == ["the last 3 intervals failed: ValueError"]
    assert health.wedged() == []
    health.profiled()
    assert health.problems() == []


@contextmanager
def answered(board: Board) -> Iterator[None]:
    """Another thread in the place of the loop."""
    ended = os.eventfd(0)

    def loop() -> None:
        while ended not in select.select([board.fd, ended], [], [])[0]:
            board.answer()

    thread = threading.Thread(target=loop)
    thread.start()
    yield
    os.eventfd_write(ended, 1)
    thread.join(30)
    os.close(ended)


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board(snapshot)
    yield made
    made.close()


def test_snapshot_is_taken_by_the_thread_that_answers() -> None:
    threads = []

    def take() -> Snapshot:
        threads.append(threading.get_ident())
        return snapshot()

    with closing(Board(take)) as board:
        with answered(board):
            got = board.current()
            # Fresh as it is, it is given again, and nobody is asked.
            assert board.current() is got is not None
        assert len(threads) == 1
        assert threads != [threading.get_ident()]


def test_loop_that_does_not_answer_is_not_waited_for_long(board: Board) -> None:
    begun = time.monotonic()
    assert board.current() is None
    assert time.monotonic() - begun < 10


def health_of(board: Board, health: Health) -> tuple[int, dict[str, Any]]:
    answer = pages(board, health)["/healthz"]("")
    assert answer.content_type == "application/json"
    return answer.status, json.loads(answer.body)


def test_health_page_tells_numbers_and_reasons(board: Board) -> None:
    clock = Clock()
    health = Health(5.0, clock)
    with answered(board):
        status, body = health_of(board, health)
    assert (status, body["status"], body["problems"]) == (200, "ok", [])
    assert body["samples"] == {"taken": 100, "reported": 90, "lost": {"ring buffer full": 7}, "pending": 3}
    clock.now += 60
    status, body = health_of(board, health)
    assert (status, body["status"], len(body["problems"])) == (503, "failing", 2)
    assert body["samples"]["taken"] == 100


def test_nothing_of_prometheus_is_loaded_before_somebody_scrapes() -> None:
    code = (
        "import sys\n"
        "from pyprof.daemon.pages import pages\n"
        "from pyprof.daemon.web import WebServer\n"
        "print([name for name in sys.modules if name.startswith(('prometheus', 'http.', 'grpc'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"
