# SPDX-License-Identifier: Apache-2.0
"""/metrics: a snapshot in the form that Prometheus reads. Imports prometheus_client, 6 MiB: when asked."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from pyprof import __version__
from pyprof.daemon.snapshot import IntervalCounts, Snapshot
from pyprof.daemon.web import Answer
from pyprof.export.otlp.counts import Counts

CACHE_EVENTS = ("hits", "misses", "inserts", "evict", "expire", "replace", "remove")


def counter(name: str, doc: str, value: float) -> Metric:
    return CounterMetricFamily(f"pyprof_{name}", doc, value)


def gauge(name: str, doc: str, value: float) -> Metric:
    return GaugeMetricFamily(f"pyprof_{name}", doc, value)


def counters(name: str, doc: str, label: str, values: Mapping[str, float]) -> Metric:
    """A counter for each value of a label."""
    family = CounterMetricFamily(f"pyprof_{name}", doc, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def gauges(name: str, doc: str, label: str, values: Mapping[str, float]) -> Metric:
    """A gauge for each value of a label."""
    family = GaugeMetricFamily(f"pyprof_{name}", doc, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


class Collector:
    """Makes metrics of the newest snapshot whenever they are read."""

    def __init__(self, current: Callable[[], Snapshot | None], uptime: Callable[[], float]) -> None:
        self._current = current
        self._uptime = uptime

    def describe(self) -> list[Metric]:
        """Nothing ahead: else the registry would collect to find names out."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("pyprof_build", "What runs here.", {"version": __version__})
        yield gauge("uptime_seconds", "Since the daemon started.", self._uptime())
        snapshot = self._current()
        if snapshot is not None:
            yield from of_samples(snapshot)
            yield from of_holdings(snapshot)
            yield from of_intervals(snapshot.intervals)
            yield from of_export(snapshot.export)


def of_samples(snapshot: Snapshot) -> Iterator[Metric]:
    counts = snapshot.accounting
    yield counter(
        "samples_taken", "Samples that the kernel took. Taken = reported + lost + pending.", counts.taken
    )
    yield counter("samples_reported", "Samples that are, or will be, in a profile.", counts.reported)
    yield counters("samples_lost", "Samples in no profile.", "reason", counts.lost)
    yield gauge("samples_pending", "Samples on their way from the kernel.", snapshot.pending)
    yield counters(
        "samples_incomplete", "Reported samples whose stack ends before its thread's start.", "reason",
        counts.incomplete,
    )  # fmt: skip
    yield counter(
        "samples_unwound_in_user_space", "Reported samples whose stack was unwound from a copy, all or part.",
        snapshot.unwound_in_user_space,
    )  # fmt: skip
    yield counter(
        "stack_copies_lost", "Copies of stacks that found no room in the ring.", snapshot.stack_copies_lost
    )
    yield counter("process_events", "Records of processes that were applied.", snapshot.events[0])
    yield counter(
        "process_events_lost", "Records of processes that the kernel had no room for.", snapshot.events[1]
    )


def of_holdings(snapshot: Snapshot) -> Iterator[Metric]:
    yield gauges("processes", "Processes that are known.", "state", snapshot.processes)
    yield gauges("held", "Things that are held, by kind.", "kind", snapshot.held)
    yield gauges(
        "held_high_water", "The most that there were, looked at once a second.", "kind", snapshot.high_water
    )
    maps = snapshot.maps
    yield gauges(
        "map_entries", "Entries of a kernel map.", "map", {name: m.entries for name, m in maps.items()}
    )
    yield gauges(
        "map_capacity", "Most entries of a kernel map.", "map", {name: m.capacity for name, m in maps.items()}
    )
    yield gauges("map_bytes", "Kernel memory of a map.", "map", {name: m.bytes for name, m in maps.items()})
    yield counters(
        "map_evictions", "Times that an owner of entries gave way to another.", "map",
        {name: m.evicted for name, m in maps.items()},
    )  # fmt: skip
    yield counters(
        "map_refusals", "Times that no owner of entries gave way.", "map",
        {name: m.refused for name, m in maps.items()},
    )  # fmt: skip
    yield from of_caches(snapshot.caches)
    rows = snapshot.rows
    yield counters(
        "row_cache_lookups", "Files whose unwind rows were looked for on disk.", "result",
        {"hit": rows["cache_hits"], "miss": rows["cache_misses"]},
    )  # fmt: skip
    yield counters(
        "rows_not_loaded", "Times that the unwind rows of a file could not be made or placed.", "reason",
        {"failed": rows["failed"], "no room": rows["no_room"]},
    )  # fmt: skip


def of_caches(caches: Mapping[str, Mapping[str, int]]) -> Iterator[Metric]:
    events = CounterMetricFamily(
        "pyprof_cache_events", "What happened in a cache of names.", labels=["cache", "event"]
    )
    for name, counts in caches.items():
        for event in CACHE_EVENTS:
            events.add_metric([name, event], counts[event])
    yield events
    for what, doc in (
        ("entries", "Entries of a cache of names."),
        ("weight", "What they weigh, bytes or entries."),
    ):
        yield gauges(f"cache_{what}", doc, "cache", {name: counts[what] for name, counts in caches.items()})


def of_intervals(intervals: IntervalCounts) -> Iterator[Metric]:
    yield counters(
        "intervals", "Intervals that ended.", "result", {"done": intervals.done, "failed": intervals.failed}
    )
    yield counter("interval_work_seconds", "Time spent on naming and encoding profiles.", intervals.seconds)
    yield gauge("interval_last_work_seconds", "The same, for the last profile.", intervals.last_seconds)


def of_export(counts: Counts) -> Iterator[Metric]:
    yield counter(
        "export_samples_submitted",
        "Samples handed to the sender. Submitted + found = sent + rejected + lost + waiting.",
        counts.submitted,
    )
    yield counter("export_samples_found", "Samples found in the spool at the start.", counts.found)
    yield counter("export_samples_sent", "Samples that the collector took.", counts.sent)
    yield counter("export_samples_rejected", "Samples that the collector did not keep.", counts.rejected)
    yield counters("export_samples_lost", "Samples that were given up.", "reason", counts.lost)
    yield gauges("export_samples_waiting", "Samples that wait for the collector.", "where", waiting(counts))
    yield counter("export_requests", "Requests to the collector.", counts.requests)
    yield counter("export_retries", "Requests that failed and are sent again.", counts.retries)
    yield counter("export_bytes", "Bytes that the collector took, before compression.", counts.bytes)
    yield gauge("export_away", "1 where the collector was away at the last try.", counts.away)
    if counts.since_success is not None:
        yield gauge("export_idle_seconds", "Since the collector last took something.", counts.since_success)


def waiting(counts: Counts) -> dict[str, float]:
    return {"memory": counts.waiting_memory, "spool": counts.waiting_spool}


class MetricsPage:
    """The page: in the form that the request's Accept header asks for."""

    def __init__(self, current: Callable[[], Snapshot | None], uptime: Callable[[], float]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(Collector(current, uptime))
        # CPU seconds, memory, descriptors of this process, by the names that everybody uses.
        ProcessCollector(registry=self._registry)

    def __call__(self, accept: str) -> Answer:
        encode, content_type = choose_encoder(accept)
        return Answer(200, content_type, encode(self._registry))
