# SPDX-License-Identifier: Apache-2.0
"""The functions that most samples were taken in, as a table for a terminal."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from pyprof.export.names import KERNEL, UNKNOWN, printable, where
from pyprof.profile.model import Profile

_BAR_WIDTH = 10


class Hot(NamedTuple):
    """A function and its samples.

    Attributes:
        name: as in its frames.
        where: path of the executable, ``[kernel]``, or "" for code of no file.
        self_count: samples taken in the function itself.
        total_count: samples with the function anywhere on the stack, each counted once.
    """

    name: str
    where: str
    self_count: int
    total_count: int


def hottest(profile: Profile, n: int) -> list[Hot]:
    """The `n` functions with most samples of their own, then most in total, most first."""
    functions: dict[tuple[str, str], int] = {}
    function_of = [
        functions.setdefault((frame.name or UNKNOWN, where(profile, frame)), len(functions))
        for frame in profile.frames
    ]
    counts: Counter[int] = Counter()
    for sample in profile.samples():
        counts[sample.stack] += sample.count
    own, total = [0] * len(functions), [0] * len(functions)
    for stack, count in counts.items():
        on_stack = [function_of[frame] for frame in profile.stack(stack)]
        if on_stack:
            own[on_stack[0]] += count
        # A function that calls itself is there several times, but the sample only once.
        for function in set(on_stack):
            total[function] += count
    rows = [Hot(name, path, own[index], total[index]) for (name, path), index in functions.items()]
    rows.sort(key=lambda hot: (-hot.self_count, -hot.total_count, hot.name, hot.where))
    return [hot for hot in rows if hot.total_count][:n]


def render(rows: Sequence[Hot], reported: int, width: int = 100) -> str:
    """A table of `rows`, in lines of at most `width` characters; percentages are of `reported` samples."""
    lines = [f"{'samples':>8}  {'self%':>6} {'total%':>6}  {'':{_BAR_WIDTH}}  function [where]"]
    for hot in rows:
        share, total_share = (count / max(reported, 1) for count in (hot.self_count, hot.total_count))
        bar = "#" * round(share * _BAR_WIDTH)
        start = f"{hot.self_count:>8}  {share:>6.1%} {total_share:>6.1%}  {bar:{_BAR_WIDTH}}  "
        lines.append(start + _label(hot, max(width - len(start), 20)))
    return "".join(line[:width].rstrip() + "\n" for line in lines)


def _label(hot: Hot, width: int) -> str:
    """``function [file]``; what is too long is cut in the function's name, where C++ has templates."""
    place = hot.where if hot.where in (KERNEL, "") else f"[{printable(hot.where.rpartition('/')[2])}]"
    name = printable(hot.name)
    room = width - len(place) - 1 if place else width
    if len(name) > room:
        name = name[: max(room - 3, 1)] + "..."
    return f"{name} {place}" if place else name
