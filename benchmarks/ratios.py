# SPDX-License-Identifier: Apache-2.0
"""Rivals in a benchmark group, and the factors that are printed at the end."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture

OURS = "pyprof"

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def time_rounds(
    benchmark: BenchmarkFixture, rounds: int, setup: Callable[[], Arguments], run: Callable[..., object]
) -> None:
    """Times run(*args) for so many rounds, one call each; setup makes its arguments and is not timed."""
    benchmark.pedantic(run, setup=setup, rounds=rounds)  # type: ignore[no-untyped-call]


def factors(seconds: Mapping[str, float]) -> dict[str, float]:
    """How many times longer than ours each rival takes. seconds: of the best round, which other load on the
    machine disturbs least, by name."""
    return {name: value / seconds[OURS] for name, value in seconds.items() if name != OURS}


def summary(groups: Mapping[str, Mapping[str, float]]) -> Iterable[str]:
    """One line for each group that was measured with us in it."""
    for group, seconds in groups.items():
        if OURS in seconds and len(seconds) > 1:
            parts = [f"{factor:.1f} x {name}" for name, factor in factors(seconds).items()]
            yield f"{group}: " + ", ".join(parts)
