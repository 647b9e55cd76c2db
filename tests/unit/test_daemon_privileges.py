# SPDX-License-Identifier: Apache-2.0
"""What a process may do after it has given up privileges, as the kernel tells it."""

import json
import os
import subprocess
import sys

import pytest

from pyprof.host import status_field
from tests.support.profiling import ROOT

NEEDED = 1 << 2 | 1 << 19 | 1 << 34 | 1 << 38 | 1 << 39 | 1 << 40
"""CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_SYSLOG, CAP_PERFMON, CAP_BPF, CAP_CHECKPOINT_RESTORE: by the
numbers of linux/capability.h, which has them since Linux 5.9."""

DROP = """
import json, subprocess, sys, threading
from pathlib import Path
from pyprof.daemon.privileges import drop

def fields(path):
    lines = dict(line.split(":", 1) for line in Path(path).read_text().splitlines())
    return {name: lines[name].strip() for name in lines if name.startswith("Cap") or name == "NoNewPrivs"}

dropped = drop()
found = []
thread = threading.Thread(target=lambda: found.append(fields("/proc/thread-self/status")))
thread.start()
thread.join()
child = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
print(json.dumps({
    "kept": dropped.kept, "unbounded": dropped.unbounded,
    "main": fields("/proc/self/status"), "thread": found[0],
    "child": [line.split()[1] for line in child.splitlines() if line.startswith("CapEff")][0],
}))
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: there is nothing to give up")


def run(code: str, *prefix: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=ROOT
    )


def test_only_what_profiling_needs_is_left_in_all_threads_and_no_child_gains() -> None:
    done = run(DROP)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    mine = int(status_field("CapEff"), 16)
    for thread in (told["main"], told["thread"]):
        assert int(thread["CapEff"], 16) == NEEDED & mine
        assert int(thread["CapPrm"], 16) == NEEDED & mine
        assert int(thread["CapBnd"], 16) == int(thread["CapInh"], 16) == int(thread["CapAmb"], 16) == 0
        assert thread["NoNewPrivs"] == "1"
    assert int(told["child"], 16) == 0
    assert told["unbounded"] == 0
    assert len(told["kept"]) == (NEEDED & mine).bit_count()


def test_what_cannot_leave_the_bounding_set_is_counted_and_no_child_gains() -> None:
    done = run(DROP, "setpriv", "--bounding-set", "-all,+bpf,+perfmon,+sys_admin")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["unbounded"] == 3
    assert int(told["main"]["CapEff"], 16) == 1 << 38 | 1 << 39
    assert int(told["child"], 16) & ~(1 << 38 | 1 << 39) == 0


def test_threads_that_run_already_are_refused() -> None:
    done = run(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()\n" + DROP
    )
    assert done.returncode == 1
    assert done.stderr.endswith("HostError: privileges cannot be given up: threads run already\n")
