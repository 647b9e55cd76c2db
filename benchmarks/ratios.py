# SPDX-License-Identifier: Apache-2.0
"""Rivals in a benchmark group, and the factors that are printed at the end."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pytest_benchmark.fixture import BenchmarkFixture

OURS = "pyprof"
IN_TURN = "seconds of ours in turn"

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def time_rounds(
    benchmark: BenchmarkFixture,
    rounds: int,
    setup: Callable[[], Arguments],
    run: Callable[..., object],
    ours: Callable[[], Arguments] | None = None,
) -> None:
    """Times run(*args) for so many rounds, one call each; setup makes its arguments and is not timed.

    With `ours`, which makes arguments of ours, run is timed with them before each round, too: what else the
    machine does meanwhile is then the same for both. The best time is kept for the factor of this rival.
    """
    best = math.inf

    def before_a_round() -> Arguments:
        nonlocal best
        if ours is not None:
            arguments, named = ours()
            start = time.perf_counter()
            run(*arguments, **named)
            best = min(best, time.perf_counter() - start)
        return setup()

    benchmark.pedantic(run, setup=before_a_round, rounds=rounds)  # type: ignore[no-untyped-call]
    if ours is not None:
        benchmark.extra_info[IN_TURN] = best


class Best(NamedTuple):
    """Seconds of best rounds, which other load on the machine disturbs least; of ours, if in turn."""

    seconds: float
    ours: float | None = None


def factors(rivals: Mapping[str, Best]) -> dict[str, float]:
    """How many times longer than ours each rival takes, by name."""
    return {
        name: best.seconds / (best.ours or rivals[OURS].seconds)
        for name, best in rivals.items()
        if name != OURS
    }


def summary(groups: Mapping[str, Mapping[str, Best]]) -> Iterable[str]:
    """One line for each group that was measured with us in it."""
    for group, rivals in groups.items():
        if OURS in rivals and len(rivals) > 1:
            parts = [f"{factor:.2f} x {name}" for name, factor in factors(rivals).items()]
            yield f"{group}: " + ", ".join(parts)
