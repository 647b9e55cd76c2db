# SPDX-License-Identifier: Apache-2.0
"""Memory that only the start needed: pages of libraries that were read to link them and never again.

They count as ours until the kernel is short of memory. gRPC's library alone has 14 MiB of them.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from pyprof._native._libbpf import lib

_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ ([0-9]+) +(.*)")


def clean_mappings(smaps: str) -> Iterator[tuple[int, int]]:
    """Mappings of libraries that are as in the file: not writable, and nothing in them is anonymous, as
    relocated pages are (proc_pid_smaps(5)).

    Yields:
        (start, end) of each.
    """
    start = end = 0
    for line in smaps.splitlines():
        head = _HEAD.fullmatch(line)
        if head:
            library = ".so" in head[5] and head[4] != "0" and head[3][1] == "-"
            start, end = (int(head[1], 16), int(head[2], 16)) if library else (0, 0)
        elif line.startswith("Anonymous:") and end and line.split()[1] == "0":
            yield start, end


def drop_clean_pages(smaps: str = "/proc/self/smaps") -> int:
    """Drops them; what is used comes back. No library may be unloaded meanwhile. Bytes of their mappings."""
    dropped = 0
    try:
        text = Path(smaps).read_text(errors="replace")
    except OSError:
        return 0
    for start, end in clean_mappings(text):
        if lib.pyprof_heap_drop_file_pages(start, end - start) == 0:
            dropped += end - start
    return dropped
