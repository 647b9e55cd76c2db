# SPDX-License-Identifier: Apache-2.0
"""What all tests share: tests marked `bpf` run only where the kernel lets us."""

import os
from functools import cache

import hypothesis
import pytest
from pyprof._native._libbpf import lib

from pyprof.bpf.library import error_text, probe_program
from pyprof.bpf.perf_events import online_cpus

# How long an example takes says more about what else the machine does than about us.
hypothesis.settings.register_profile("pyprof", deadline=None)
hypothesis.settings.load_profile("pyprof")


@cache
def bpf_problem() -> str:
    """Why BPF programs or perf events cannot be used here; "" where they can."""
    code = probe_program()
    if code:
        return f"BPF programs cannot be loaded: {error_text(code)}"
    fd = int(lib.pyprof_perf_sideband(online_cpus()[0], 0, 4096))
    if fd < 0:
        return f"perf events cannot be opened: {error_text(fd)}"
    os.close(fd)
    return ""


@pytest.fixture(autouse=True, scope="session")
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps unwind rows that tests make out of the host's cache."""
    os.environ["PYPROF_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("bpf") is None or not bpf_problem():
        return
    if os.environ.get("PYPROF_REQUIRE_BPF") == "1":
        pytest.fail(bpf_problem(), pytrace=False)
    pytest.skip(bpf_problem())
