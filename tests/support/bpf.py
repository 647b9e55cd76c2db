# SPDX-License-Identifier: Apache-2.0
"""What is in the kernel, as /proc and bpftool tell it."""

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any


def held(kind: str) -> set[int]:
    """Numbers of the objects ("map", "prog", "link") of which this process has a descriptor."""
    found: set[int] = set()
    for file in Path("/proc/self/fdinfo").iterdir():
        try:
            text = file.read_text()
        except FileNotFoundError:  # the directory's own descriptor
            continue
        found.update(int(number) for number in re.findall(rf"^{kind}_id:\t([0-9]+)$", text, re.MULTILINE))
    return found


def shown(kind: str) -> dict[int, dict[str, Any]]:
    """All objects of the kernel by number."""
    out = subprocess.run(
        ["bpftool", "--json", kind, "show"], check=True, capture_output=True, text=True
    ).stdout
    return {row["id"]: row for row in json.loads(out)}


def left_after(kind: str, numbers: set[int], seconds: float = 30) -> set[int]:
    """Which objects do not go within so many seconds: programs, and the maps that they hold, are freed only
    after an RCU grace period."""
    limit = time.monotonic() + seconds
    left = numbers & shown(kind).keys()
    while left and time.monotonic() < limit:
        left = numbers & shown(kind).keys()
    return left
