# SPDX-License-Identifier: Apache-2.0
"""What is known of an executable is told as long as it is sampled, whatever caches do.

All lifetimes are turned down to two seconds and all caches to eight entries. PYPROF_TEST_METADATA_SECONDS
says how long it runs, 15 s where it does not; a release takes 300.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.collector_stub import GrpcCollector
from tests.support.daemon import ready
from tests.support.otlp_witness import Witness
from tests.support.profiling import SCALE, build_target, running

SECONDS = float(os.environ.get("PYPROF_TEST_METADATA_SECONDS", "15"))

pytestmark = [pytest.mark.bpf, pytest.mark.timeout((SECONDS * 2 + 120) * SCALE)]

PYTHON_LOAD = """
import json, zlib, hashlib, time
print("ready", flush=True)
while True:
    data = json.dumps(list(range(3000))).encode()
    hashlib.sha256(zlib.compress(data)).hexdigest()
    time.sleep(0.002)
"""


@contextmanager
def busy_host(folder: Path) -> Iterator[None]:
    """A program that runs on, one that pauses for long, Python, and programs that come and go."""
    with ExitStack() as stack:
        stack.enter_context(running(build_target(folder, "chain.c")))
        stack.enter_context(running(sys.executable, "-c", PYTHON_LOAD))
        loops = [
            "while :; do for i in 1 2 3 4 5 6 7 8; do /bin/true; done; ls -l /usr/lib >/dev/null; done",
            "while :; do sort /etc/services | sha256sum >/dev/null; sleep 0.1; done",
            # Longer than any lifetime: what was forgotten is met again.
            "while :; do head -c 60000000 /dev/zero | md5sum >/dev/null; sleep 5; done",
        ]
        for loop in loops:
            shell = subprocess.Popen(["sh", "-c", loop], start_new_session=True)
            stack.callback(shell.wait)
            stack.callback(os.killpg, shell.pid, 9)
        yield


def test_receiver_that_remembers_has_nothing_to_complain_about(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    limits = ["--grace", "2", "--names", "8", "--symbol-tables-mib", "0", "--idle", "2"]
    with busy_host(tmp_path), GrpcCollector() as collector:
        options = ["-F", "97", "--interval", "1", "--otlp-endpoint", collector.url, "--otlp-protocol", "grpc"]
        with ready(tmp_path / "daemon", *options, *limits) as daemon:
            deadline = time.monotonic() + SECONDS
            collector.wait(lambda: time.monotonic() >= deadline, SECONDS + 30 * SCALE)
            metrics = daemon.metrics()
            assert daemon.end()[0] == 0
            totals = daemon.totals()
        witness = Witness()
        for payload in collector.payloads:
            witness.take(payload)
    with capfd.disabled():
        print(
            f"\n{witness.requests} requests, {witness.samples} samples, "
            f"{len(witness.executables)} executables, {len(witness.names)} named addresses, "
            f"{witness.count} complaints; "
            f"{witness.nameless_processes} samples of processes whose program is not known"
        )
    assert witness.complaints == []
    assert witness.samples == totals["sent"] == totals["reported"]
    assert totals["taken"] == totals["reported"] + totals["lost"]
    assert len(witness.executables) > 8, "more than a cache holds"
    # The caches were as small as they were told to be, and lifetimes were over.
    assert metrics["pyprof_cache_events_total", "names", "evict"] > 100
