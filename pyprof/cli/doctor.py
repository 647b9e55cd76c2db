# SPDX-License-Identifier: Apache-2.0
"""pyprof doctor: what this host offers, what is missing, how to get it."""

import argparse
import json
import os
import platform
import shutil
import sys
import textwrap
from contextlib import suppress
from typing import Any

from pyprof import __version__, control
from pyprof.bpf.library import libbpf_version
from pyprof.bpf.perf_events import online_cpus
from pyprof.errors import HostError
from pyprof.host import Check, State, check_host

DESCRIPTION = """\
Tries on this host what a recording does, and says what is missing and how to get it.
"""

EPILOG = """\
examples:
  sudo pyprof doctor            a report to read
  sudo pyprof doctor --json     {"can_profile": true, "kernel": "6.12.9", "checks": [...], ...}

ok: there; limited: pyprof profiles, but something is less good; missing: it cannot profile.
exit codes: 0 this host can be profiled; 1 something needed is missing.
"""

STATE_WIDTH = 9
NAME_WIDTH = 21


class Verb:
    """doctor"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.description = DESCRIPTION
        parser.epilog = EPILOG
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def run(self, args: argparse.Namespace) -> int:
        checks = check_host()
        can_profile = all(check.state is not State.MISSING for check in checks)
        facts: dict[str, Any] = {
            "can_profile": can_profile,
            "kernel": platform.release(),
            "machine": platform.machine(),
            "cpus": len(online_cpus()),
            "pyprof": __version__,
            "python": platform.python_version(),
            "libbpf": libbpf_version().removeprefix("v"),
            "recorders": recorders(),
        }
        if args.json:
            rows = [
                {"name": check.name, "state": check.state, "detail": check.detail, "remedy": check.remedy}
                for check in checks
            ]
            print(json.dumps(facts | {"checks": rows}))
        else:
            width = shutil.get_terminal_size().columns if os.isatty(1) else sys.maxsize
            print(as_text(facts, checks, width))
        return 0 if can_profile else 1


def recorders() -> list[dict[str, object]]:
    """What recorders that run now say of their samples: {"pid", "reported", "unwound_in_user_space"}."""
    found: list[dict[str, object]] = []
    if os.access(control.FOLDER, os.R_OK | os.X_OK):
        for pid in control.running():
            with suppress(HostError):
                samples = control.ask(pid).get("samples")
                found.append({"pid": pid, **(samples if isinstance(samples, dict) else {})})
    return found


def as_text(facts: dict[str, Any], checks: list[Check], width: int) -> str:
    """The report, in lines of at most `width` columns where the words allow."""
    lines = [
        f"pyprof {facts['pyprof']} (Python {facts['python']}, libbpf {facts['libbpf']})",
        f"Linux {facts['kernel']} on {facts['machine']}, {facts['cpus']} CPUs",
    ]
    for needed, title in ((True, "Needed:"), (False, "Good to have:")):
        lines += ["", title]
        for check in checks:
            if check.needed is needed:
                lines += check_lines(check, width)
    missing = ", ".join(check.name for check in checks if check.state is State.MISSING)
    verdict = (
        f"This host cannot be profiled; missing: {missing}." if missing else "This host can be profiled."
    )
    lines.append("")
    for recorder in facts.get("recorders", ()):
        lines.append(
            f"Recorder {recorder['pid']} is running: {recorder.get('reported', 0)} samples, "
            f"{recorder.get('unwound_in_user_space', 0)} of them unwound in user space."
        )
    lines.append(verdict)
    return "\n".join(lines)


def check_lines(check: Check, width: int) -> list[str]:
    head = f"  {check.state:<{STATE_WIDTH}}{check.name:<{NAME_WIDTH}}"
    indent = " " * len(head)
    width = max(width, len(head) + 20)
    lines = textwrap.wrap(check.detail, width, initial_indent=head, subsequent_indent=indent)
    if check.remedy:
        lines += textwrap.wrap(
            check.remedy, width, initial_indent=indent + "-> ", subsequent_indent=indent + "   "
        )
    return lines
