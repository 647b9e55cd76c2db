# SPDX-License-Identifier: Apache-2.0
"""A recorder that takes what was counted every second, as a daemon does, and tells what it holds.

    python -m tests.support.interval_recorder HZ GRACE

Prints "ready", then a JSON object a line each second; ends when standard input does, with one more line,
written when nothing of the processes that ended is to be left.
"""

import gc
import json
import struct
import sys
import time
from pathlib import Path
from typing import Any

from pyprof.profile.builder import process_rows
from pyprof.session import GRACE, SECOND, Options, Session

NATIVE = 1
MISSING = "(released)"


def anonymous_bytes() -> int:
    """Memory of this process that no file and no map of the kernel's stands behind."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no RssAnon")


def without_build_id(session: Session, taken: dict[str, bytes]) -> list[str]:
    """Paths of executables of native frames that have no build ID."""
    numbers = {number for _, number, kind in struct.iter_unpack("=QII", taken["frames"]) if kind == NATIVE}
    files = [session.files.get(number) for number in numbers]
    described = [file.describe() for file in files if file is not None]
    return [MISSING] * files.count(None) + [
        executable.path for executable in described if not executable.build_id and not executable.go_build_id
    ]


def tell(session: Session) -> None:
    """Takes what was counted, looks at the executables of its frames, and says so."""
    session.table.take_counted()
    taken = session.aggregator.take()
    processes = process_rows(taken)
    nameless = without_build_id(session, taken)
    session.table.sent(time.monotonic_ns())
    gc.collect()
    accounting = session.accounting()
    line: dict[str, Any] = {
        "time": time.monotonic(),
        "anonymous_bytes": anonymous_bytes(),
        "cpu_seconds": time.process_time(),
        "state": session.state(),
        "taken": accounting.taken,
        "reported": accounting.reported,
        "lost": accounting.lost,
        "names": sorted({row.name.rstrip(b"\0").decode(errors="replace") for row in processes}),
        "without_build_id": nameless,
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
                tell(session)
        session.unwatch(0)
        session.table.take_counted()
        session.aggregator.take()
        session.table.sent(time.monotonic_ns())
        # What the last profile named, what ended and what is on its way out of the kernel: all of it.
        deadline = time.monotonic_ns() + 2 * GRACE + 2 * int(session.options.grace * SECOND) + 2 * SECOND
        while time.monotonic_ns() < deadline:
            session.poll()
        session.stop()
        tell(session)


if __name__ == "__main__":
    main()
