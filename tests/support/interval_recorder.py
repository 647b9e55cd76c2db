# SPDX-License-Identifier: Apache-2.0
"""A recorder that takes a profile every second, as a daemon does, and tells what it holds.

    python -m tests.support.interval_recorder HZ GRACE

Prints "ready", then a JSON object a line each second; ends when standard input does, with one more line,
written when nothing of the processes that ended is to be left.
"""

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyprof.profile.model import FrameKind, Profile
from pyprof.session import GRACE, SECOND, Options, Session

PAGE = os.sysconf("SC_PAGE_SIZE")


def anonymous_bytes() -> int:
    """Memory of this process that no file and no map of the kernel's stands behind."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no RssAnon")


def without_build_id(profile: Profile) -> dict[str, int]:
    """Executables of native frames that have no build ID: path -> frames."""
    found: dict[str, int] = {}
    for frame in profile.frames:
        if frame.kind is FrameKind.NATIVE:
            executable = profile.executables[frame.executable]
            if not executable.build_id and not executable.go_build_id:
                found[executable.path] = found.get(executable.path, 0) + 1
    return found


def tell(session: Session, profile: Profile) -> None:
    gc.collect()
    line: dict[str, Any] = {
        "time": time.monotonic(),
        "anonymous_bytes": anonymous_bytes(),
        "cpu_seconds": time.process_time(),
        "state": session.state(),
        "taken": profile.accounting.taken,
        "reported": profile.accounting.reported,
        "lost": profile.accounting.lost,
        "samples": sum(row.count for row in profile.samples()),
        "names": sorted({process.name for process in profile.processes}),
        "without_build_id": without_build_id(profile),
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    ended: list[bool] = []
    with Session(Options(hz=int(sys.argv[1]), grace=float(sys.argv[2]))) as session:
        session.prepare()
        session.start()
        session.watch(0, lambda: ended.append(True))
        print("ready", flush=True)
        due = time.monotonic() + 1
        while not ended:
            session.poll()
            if time.monotonic() >= due:
                due += 1
                tell(session, session.take())
        session.unwatch(0)
        session.take()
        # What the last profile named, what ended and what is on its way out of the kernel: all of it.
        deadline = time.monotonic_ns() + 2 * GRACE + 2 * int(session.options.grace * SECOND) + 2 * SECOND
        while time.monotonic_ns() < deadline:
            session.poll()
        tell(session, session.take())


if __name__ == "__main__":
    main()
