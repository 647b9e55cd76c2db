# SPDX-License-Identifier: Apache-2.0
"""Arguments that several verbs take."""

import argparse

MAX_PID = 2**22  # PID_MAX_LIMIT, include/linux/threads.h


def process_id(text: str) -> int:
    """A process ID.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text) < MAX_PID:
        raise argparse.ArgumentTypeError(f"{text!r} is not a process ID")
    return int(text)
