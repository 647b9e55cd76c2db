# SPDX-License-Identifier: Apache-2.0
"""`pyprof inspect maps`: what a running recorder holds, in the kernel and itself."""

import argparse
import json
import os
from collections.abc import Iterator

from pyprof import control
from pyprof.cli.arguments import process_id
from pyprof.errors import HostError, TargetError

EPILOG = """\
examples:
  sudo pyprof inspect maps               of the only running recorder
  sudo pyprof inspect maps --pid 4711    of one of several
  sudo pyprof inspect maps --json | jq .kernel.exec_mappings.entries

orphans are entries of the kernel's maps that nobody owns, missing are those that should be there and are not:
both must be 0. high_water is the most there was of each, as of once a second.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb."""
    parser.description = "Ask a running recorder what it holds: entries of kernel maps, processes, mappings."
    parser.epilog = EPILOG
    parser.add_argument("--pid", metavar="PID", type=process_id, help="which recorder, where several run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Prints what a recorder holds.

    Raises:
        TargetError: there is none, or several and none was named.
        HostError: it does not answer.
    """
    pid = choose(args.pid)
    answer = control.ask(pid)
    print(json.dumps({"pid": pid} | answer) if args.json else as_text(pid, answer))
    return 0


def choose(wanted: int | None) -> int:
    """The recorder to ask.

    Raises:
        TargetError: there is none, or several and none was named.
        HostError: only root may know.
    """
    if control.FOLDER.is_dir() and not os.access(control.FOLDER, os.R_OK | os.X_OK):
        raise HostError("only root may ask a recorder: run with sudo")
    pids = control.running()
    if not pids:
        raise TargetError("no recorder is running: start one, such as `pyprof record -d 60`")
    shown = ", ".join(map(str, pids))
    if wanted is not None and wanted not in pids:
        raise TargetError(f"process {wanted} is no running recorder; running: {shown}")
    if wanted is None and len(pids) > 1:
        raise TargetError(f"several recorders are running: name one with --pid, of {shown}")
    return pids[0] if wanted is None else wanted


def as_text(pid: int, answer: dict[str, object]) -> str:
    """One line a number, whatever else the recorder may tell."""
    lines = [f"recorder {pid}"]
    rows = [(" ".join(path), value) for path, value in leaves(answer)]
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        shown = f"{value:>12,}" if isinstance(value, int) else f"{value!s:>12}"
        warning = "  (must be 0: a defect)" if name in ("orphans", "missing") and value else ""
        lines.append(f"  {name:<{width}}  {shown}{warning}")
    return "\n".join(lines)


def leaves(tree: dict[str, object], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """The values of nested objects, each with the names that lead to it."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value
