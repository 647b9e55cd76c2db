# SPDX-License-Identifier: Apache-2.0
"""Prints, at the end, notes of the benchmarks, and how many times faster than each rival we are."""

import pytest

from benchmarks.ratios import IN_TURN, Best, summary


@pytest.hookimpl(trylast=True)  # after the tables
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    session = getattr(config, "_benchmarksession", None)
    groups: dict[str, dict[str, Best]] = {}
    for result in session.benchmarks if session is not None else []:
        rival = (result.params or {}).get("rival")
        if rival is not None and not result.has_error:
            best = Best(result.stats.min, result.extra_info.get(IN_TURN))
            groups.setdefault(result.group, {})[rival] = best
    notes = [
        result.extra_info["note"]
        for result in (session.benchmarks if session is not None else [])
        if "note" in result.extra_info
    ]
    if notes:
        terminalreporter.section("measured")
    for note in notes:
        terminalreporter.write_line(note)
    lines = list(summary(groups))
    if lines:
        terminalreporter.section("times as fast as")
    for line in lines:
        terminalreporter.write_line(line)
