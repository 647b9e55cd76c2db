# SPDX-License-Identifier: Apache-2.0
"""Pages of libraries that are dropped: only those that are as in the file, and the program goes on."""

import json
import subprocess
import sys
from pathlib import Path

from pyprof.daemon.residence import clean_mappings, drop_clean_pages
from tests.support.profiling import ROOT

SMAPS = """\
7f0000000000-7f0000001000 r-xp 00001000 08:01 11                 /lib/libclean.so.1
Rss:                   4 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
7f0000001000-7f0000002000 r--p 00002000 08:01 11                 /lib/librelocated.so.1
Rss:                   4 kB
Anonymous:             4 kB
7f0000002000-7f0000003000 rw-p 00003000 08:01 11                 /lib/libclean.so.1
Anonymous:             0 kB
7f0000003000-7f0000004000 r--p 00000000 00:00 0
Anonymous:             0 kB
7f0000004000-7f0000005000 r--p 00000000 08:01 12                 /usr/lib/locale/locale-archive
Anonymous:             0 kB
7f0000005000-7f0000007000 r--p 00000000 08:01 13                 /a b.so (deleted)
Anonymous:             0 kB
7ffff0000000-7ffff0001000 r-xp 00000000 00:00 0                  [vdso]
Anonymous:             0 kB
"""

WORK = """
import json, sys, zlib, sqlite3
from pyprof.daemon.residence import drop_clean_pages
def resident():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile:"))
before = resident()
dropped = drop_clean_pages()
after = resident()
data = bytes(range(256)) * 1000
found = sqlite3.connect(":memory:").execute("select 6 * 7").fetchone()[0]
print(json.dumps([before, after, dropped, found, zlib.decompress(zlib.compress(data)) == data]))
"""


def test_only_unchanged_mappings_of_libraries_are_dropped() -> None:
    assert list(clean_mappings(SMAPS)) == [
        (0x7F0000000000, 0x7F0000001000), (0x7F0000005000, 0x7F0000007000)
    ]  # fmt: skip


def test_program_goes_on_with_fewer_pages() -> None:
    done = subprocess.run([sys.executable, "-c", WORK], check=True, capture_output=True, text=True, cwd=ROOT)
    before, after, dropped, found, same = json.loads(done.stdout)
    assert after < before / 2
    assert dropped > 1 << 20
    assert (found, same) == (42, True)


def test_host_without_smaps_drops_nothing(tmp_path: Path) -> None:
    assert drop_clean_pages(str(tmp_path / "none")) == 0
