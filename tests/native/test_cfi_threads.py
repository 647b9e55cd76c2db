# SPDX-License-Identifier: Apache-2.0
"""Rows are made without the GIL: a large file does not delay other threads."""

import sys
import threading

from pyprof._native.cfi import UnwindRows
from tests.support.dwarf import Frames, advance, def_cfa_offset
from tests.support.unwind_rows import EM_X86_64, START


def overtakes(data: bytes, address: int) -> bool:
    """True where this thread went on before another one had made its rows."""
    started, done = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        UnwindRows(data, address, EM_X86_64)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    overtaken = not done.is_set()
    thread.join()
    return overtaken


def test_other_threads_run_while_rows_are_made() -> None:
    frames = Frames()
    program = (advance(1) + def_cfa_offset(16) + advance(1) + def_cfa_offset(8)) * 2_000_000
    frames.fde(frames.cie(), START, 1 << 30, program)
    data = bytes(frames.data)
    interval = sys.getswitchinterval()
    # A thread that keeps the GIL is never asked to give it away.
    sys.setswitchinterval(100)
    try:
        # On a busy machine this thread may be kept waiting by others.
        assert any(overtakes(data, frames.address) for _ in range(5))
    finally:
        sys.setswitchinterval(interval)
