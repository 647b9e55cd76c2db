# SPDX-License-Identifier: Apache-2.0
"""What the kernel side counts as lost is in the session's accounting."""

import subprocess

import pytest
from pyprof._native._libbpf import lib

from pyprof.session import Options, Session
from tests.support.bpf import held, shown

pytestmark = pytest.mark.bpf


@pytest.mark.parametrize(
    ("counter", "reason"),
    [
        (lib.PYPROF_COUNTER_RING_FULL, "ring buffer full"),
        (lib.PYPROF_COUNTER_FAILED, "sampler failed"),
    ],
)
def test_samples_that_the_kernel_side_lost_are_counted_by_reason(counter: int, reason: str) -> None:
    before = held("map")
    with Session(Options(hz=1)) as session:
        session.prepare()
        rows = shown("map")
        (number,) = (n for n in held("map") - before if rows[n]["name"] == "counters")
        for key, value in ((lib.PYPROF_COUNTER_TAKEN, 5), (counter, 2)):
            # Of a per-CPU map bpftool sets the value of each CPU.
            named = ["id", str(number), "key", str(key), "0", "0", "0", "value", str(value), *("0" * 7)]
            subprocess.run(["bpftool", "map", "update", *named], check=True)
        accounting = session.accounting()
    cpus = accounting.taken // 5
    assert cpus >= 1
    assert accounting.lost == {reason: 2 * cpus}
