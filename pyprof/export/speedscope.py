# SPDX-License-Identifier: Apache-2.0
"""speedscope's JSON, one "sampled" profile a process or thread.

Form: https://www.speedscope.app/file-format-schema.json
"""

import json
from datetime import UTC, datetime
from typing import Any, BinaryIO

import pyprof
from pyprof.export.names import UNKNOWN, encodable, where
from pyprof.profile.model import By, Profile

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write(profile: Profile, out: BinaryIO) -> None:
    """Write the file: weights in seconds of CPU time, stacks root first, the process with most samples first.

    Raises:
        OSError: `out` does not take it.
    """
    frames, frame_index = _frames(profile)
    started = datetime.fromtimestamp(profile.started_at // 1_000_000_000, UTC).isoformat()
    document = {
        "$schema": SCHEMA,
        "exporter": f"pyprof {pyprof.__version__}",
        "name": f"{profile.event} at {profile.hz} Hz, {started}",
        "activeProfileIndex": 0,
        "shared": {"frames": frames},
        "profiles": _profiles(profile, frame_index),
    }
    # Encoded at once, as only this uses json's C code.
    out.write(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())


def _frames(profile: Profile) -> tuple[list[dict[str, str]], list[int]]:
    """The shared frames, one a function, and which of them each frame of the profile is."""
    index: dict[tuple[str, str], int] = {}
    frame_index = [
        index.setdefault((encodable(frame.name) or UNKNOWN, encodable(where(profile, frame))), len(index))
        for frame in profile.frames
    ]
    return [{"name": name, "file": file} if file else {"name": name} for name, file in index], frame_index


def _profiles(profile: Profile, frame_index: list[int]) -> list[dict[str, Any]]:
    counts: dict[tuple[int, int], dict[int, int]] = {}
    for sample in profile.samples():
        stacks = counts.setdefault((sample.process, sample.thread if profile.by is By.THREAD else 0), {})
        stacks[sample.stack] = stacks.get(sample.stack, 0) + sample.count
    # Without any profile speedscope takes the file for a broken one.
    parts = sorted(counts.items(), key=lambda part: -sum(part[1].values())) or [((-1, -1), {})]
    stacks_shown: dict[int, list[int]] = {}
    for part in counts.values():
        for stack in part.keys() - stacks_shown.keys():
            stacks_shown[stack] = [frame_index[frame] for frame in reversed(profile.stack(stack))]
    return [_sampled(profile, process, thread, part, stacks_shown) for (process, thread), part in parts]


def _sampled(
    profile: Profile, process: int, thread: int, counts: dict[int, int], stacks: dict[int, list[int]]
) -> dict[str, Any]:
    # There is no order in time; sorted, stacks that begin alike lie side by side.
    order = sorted(counts, key=stacks.__getitem__)
    return {
        "type": "sampled",
        "name": _title(profile, process, thread),
        "unit": "seconds",
        "startValue": 0,
        "endValue": sum(counts.values()) / profile.hz,
        "samples": [stacks[stack] for stack in order],
        "weights": [counts[stack] / profile.hz for stack in order],
    }


def _title(profile: Profile, process: int, thread: int) -> str:
    if process < 0:
        return "no samples"
    if profile.by is By.NONE:
        return "all processes"
    title = _numbered(profile.processes[process].name, profile.processes[process].pid)
    if profile.by is By.THREAD:
        title += " / " + _numbered(profile.threads[thread].name, profile.threads[thread].tid)
    return title


def _numbered(name: str, number: int) -> str:
    return f"{encodable(name) or UNKNOWN} ({number})"
