# SPDX-License-Identifier: Apache-2.0
"""The table of docs/performance.md."""

from collections.abc import Iterable, Iterator

from benchmarks.peers.measure import Figures
from benchmarks.peers.profilers import OURS

COLUMNS = (
    "load", "Hz", "profiler", "BPF time a sample", "agent's CPU", "CPU to start", "RSS (peak)", "kernel maps",
    "delivered", "identified",
)  # fmt: skip
HEAD = ("| " + " | ".join(COLUMNS) + " |", "|---|--:|---" + "|--:" * 7 + "|")

BEGIN, END = "<!-- peers: begin -->\n", "<!-- peers: end -->\n"


def put(document: str, text: str) -> str:
    """A document with a text in the place that it marks.

    Raises:
        ValueError: it marks none.
    """
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there are no lines {BEGIN.strip()} and {END.strip()}")
    return before + BEGIN + text.rstrip("\n") + "\n" + END + after


def table(figures: Iterable[Figures]) -> Iterator[str]:
    """Lines of Markdown; behind the runs of one load and rate, our figures as a part of each other's."""
    yield from HEAD
    groups: dict[tuple[str, int], list[Figures]] = {}
    for each in figures:
        groups.setdefault((each.load, each.hz), []).append(each)
    for group in groups.values():
        yield from map(row, group)
        for ours in group:
            if ours.profiler.startswith(OURS):
                yield from (ratios(ours, other) for other in group if not other.profiler.startswith(OURS))


def row(each: Figures) -> str:
    """One run."""
    cells = (
        each.load,
        f"{each.hz}",
        each.profiler,
        f"{each.bpf_us_a_sample:.2f} us",
        f"{each.cpu_percent:.2f} %",
        f"{each.cpu_seconds_start:.2f} s",
        f"{each.rss_mib:.0f} ({each.rss_peak_mib:.0f}) MiB",
        f"{each.maps_mib:.1f} MiB",
        f"{each.delivered:.1%}",
        f"{each.identified:.1%}",
    )
    return "| " + " | ".join(cells) + " |"


def ratios(ours: Figures, other: Figures) -> str:
    """One run's figures as parts of another's."""

    def part(mine: float, theirs: float) -> str:
        return f"**{mine / theirs:.2f}**" if theirs else ""

    cells = [
        part(ours.bpf_us_a_sample, other.bpf_us_a_sample),
        part(ours.cpu_percent, other.cpu_percent),
        part(ours.cpu_seconds_start, other.cpu_seconds_start),
        part(ours.rss_mib, other.rss_mib),
        part(ours.maps_mib, other.maps_mib),
    ]
    return f"| {ours.load} | {ours.hz} | {ours.profiler} / {other.profiler} | {' | '.join(cells)} | | |"
