# SPDX-License-Identifier: Apache-2.0
"""python -m benchmarks.peers: runs the profilers one after another and prints what each cost and brought."""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.peers.loads import LOADS, build, running
from benchmarks.peers.machine import run_times
from benchmarks.peers.measure import Figures, host, measure
from benchmarks.peers.profilers import OpenTelemetry, Profiler, Pyprof
from benchmarks.peers.report import put, table
from pyprof.export.otlp.endpoint import GRPC, HTTP

PEER = Path("build/peers/otel-profiler")
EPILOG = """\
Needs root, bpftool and g++. Nothing else that loads BPF programs should start meanwhile, and figures mean
something on a quiet machine only. benchmarks/peers/build-opentelemetry builds the other profiler.
"""


def words(allowed: list[str]) -> Callable[[str], list[str]]:
    """Takes a list apart whose words are of these."""

    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        for word in chosen:
            if word not in allowed:
                raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(allowed)}")
        return chosen

    return parse


def main() -> int:
    """Prints a table, or JSON; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", epilog=EPILOG)
    parser.add_argument(
        "--loads", type=words(list(LOADS)), default=["native", "steady", "churn"], help=", ".join(LOADS)
    )
    parser.add_argument(
        "--rates",
        default=[19, 199, 997],
        type=lambda text: [int(rate) for rate in text.split(",")],
        help="samples a second on each CPU (default 19,199,997)",
    )
    parser.add_argument("--seconds", type=int, default=30, help="that are measured of each run (default 30)")
    parser.add_argument(
        "--opentelemetry",
        type=Path,
        default=PEER,
        metavar="FILE",
        help=f"its program (default {PEER}); without it pyprof runs alone",
    )
    parser.add_argument(
        "--into", type=Path, metavar="FILE", help="also put the table into a document, between its marks"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("needs root")
    figures: list[Figures] = []
    problem = ""
    try:
        for each in runs(args):
            figures.append(each)
    except RuntimeError as error:
        problem = str(error)
        print(problem, file=sys.stderr)
    if args.json:
        entries = [each.as_dict() for each in figures]
        print(json.dumps({"host": host(), "seconds": args.seconds, "runs": entries, "problem": problem}))
    else:
        text = f"{host()}; {args.seconds} s a run, {time.strftime('%Y-%m-%d')}:\n\n" + "\n".join(
            table(figures)
        )
        print(text)
        if args.into and not problem:
            args.into.write_text(put(args.into.read_text(), text))
    return 1 if problem else 0


def runs(args: argparse.Namespace) -> Iterator[Figures]:
    """Measures one after another.

    Raises:
        RuntimeError: a profiler does not run.
    """
    with tempfile.TemporaryDirectory(prefix="pyprof-loads-") as folder, run_times():
        program = build(Path(folder))
        for load in args.loads:
            for hz in args.rates:
                with running(load, program):
                    for profiler in profilers(args.opentelemetry):
                        print(f"{load}, {hz} Hz: {profiler.name} ...", file=sys.stderr, flush=True)
                        yield measure(profiler, load, hz, args.seconds)


def profilers(peer: Path) -> list[Profiler]:
    """Those that can be run, each to be run once."""
    found: list[Profiler] = [Pyprof(HTTP), Pyprof(GRPC)]
    if peer.exists():
        found.append(OpenTelemetry(peer))
    return found


if __name__ == "__main__":
    sys.exit(main())
