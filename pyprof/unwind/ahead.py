# SPDX-License-Identifier: Apache-2.0
"""What will be sampled first gets its mappings and unwind rows before sampling begins.

A first sample of a process or file costs a copy of its stack, and as many follow as are taken until user
space has acted: at 997 Hz some hundred of each process.
"""

import os
import time
from collections.abc import Iterable

from pyprof._native.arena import RowArena
from pyprof._native.processes import ProcessTable
from pyprof.unwind.loader import RowLoader

ANONYMOUS = 1
"""Up to here numbers of the process table stand for no file."""


def load_ahead(
    table: ProcessTable, arena: RowArena, rows: RowLoader, pids: Iterable[int], seconds: float
) -> None:
    """Queues the mappings of processes to be published, and loads the rows of their files in time.

    Args:
        table, arena, rows: of the session.
        pids: the processes, most important first; those that are gone, and our own, are left out.
        seconds: how long it may wait. Then the files of the process that it is at are still being loaded, off
            the main loop, and those of further ones when they are sampled.
    """
    deadline = time.monotonic() + seconds
    for pid in pids:
        if pid == os.getpid() or not table.publish_ahead(pid):
            continue
        process = table.process(pid)
        if process is None or time.monotonic() > deadline:
            continue
        # One process at a time: what a sample asks for soon must not wait behind all of them.
        for _, _, _, executable in process["ranges"]:
            if executable > ANONYMOUS:
                arena.want(executable)
        rows.request()
        rows.finish(deadline - time.monotonic())
