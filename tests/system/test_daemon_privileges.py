# SPDX-License-Identifier: Apache-2.0
"""What the daemon may still do while it runs, and that it profiles all the same."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from pyprof.bpf.perf_events import online_cpus
from tests.support.collector_stub import HttpCollector
from tests.support.daemon import ready
from tests.support.profiling import ROOT, build_target, pyprof, running

pytestmark = pytest.mark.bpf

UNIT = ROOT / "packaging" / "pyprof.service"
NEEDED = {
    "bpf": 39,
    "checkpoint_restore": 40,
    "dac_read_search": 2,
    "perfmon": 38,
    "sys_ptrace": 19,
    "syslog": 34,
}
"""By the numbers of linux/capability.h."""

SYSTEM_CALL = {"do_syscall_64", "el0t_64_sync_handler"}
"""The kernel's function that any system call goes through, on x86-64 and on arm64."""

OTHER_USER = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"]

# PR_SET_MDWE (linux/prctl.h, Linux 6.3) does what MemoryDenyWriteExecute= of systemd does by a filter.
NO_WRITABLE_CODE = """
import ctypes, os, sys
if ctypes.CDLL(None, use_errno=True).prctl(65, 1, 0, 0, 0):
    sys.exit(f"PR_SET_MDWE: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[1], sys.argv[1:])
"""

SWITCHES = sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/online"))


def effective(pid: int) -> list[int]:
    """The capabilities in effect and permitted, and the bounding set, of all threads of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines())
        found += [int(fields[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")]
        assert fields["NoNewPrivs"] == "1"
    return found


def names_of(payloads: Sequence[bytes], command: str) -> set[str]:
    """The names of functions in the samples of processes with a name, as a collector reads them."""
    found: set[str] = set()
    for payload in payloads:
        request = ExportProfilesServiceRequest.FromString(payload)
        tables = request.dictionary
        for resource in request.resource_profiles:
            values = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            if values.get("process.executable.name") != command:
                continue
            for profile in (each for scope in resource.scope_profiles for each in scope.profiles):
                for sample in profile.samples:
                    for location in tables.stack_table[sample.stack_index].location_indices:
                        for line in tables.location_table[location].lines:
                            function = tables.function_table[line.function_index]
                            found.add(tables.string_table[function.name_strindex])
    return found


def arrives(collector: HttpCollector, command: str, names: set[str]) -> None:
    collector.wait(lambda: names <= names_of(collector.payloads, command))


@pytest.fixture(name="private")
def build_a_program_of_another_user(tmp_path: Path) -> Path:
    """A program in a folder that only its owner may enter."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    # No frame pointers, so that its stacks are whole only where its file was read.
    target = build_target(folder, "chain.c", "-fomit-frame-pointer")
    for path in (target, folder):
        os.chown(path, 12345, 12345)
    # The folders of pytest are not for others either.
    for parent in list(folder.parents)[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)
    return target


def profile_other_users_program(folder: Path, collector: HttpCollector, program: Path) -> None:
    """A process that begins now, whose file root may read only by privilege."""
    with running(*OTHER_USER, program):
        arrives(collector, "chain", {"main", "a", "b", "c"})
        # The kernel's maps were written, too, and hold just what they should.
        done = pyprof("inspect", "maps", "--json", env=os.environ | {"PYPROF_RUN_DIR": str(folder / "run")})
        assert done.returncode == 0, done.stderr
        state = json.loads(done.stdout)
        assert state["kernel"]["exec_mappings"]["entries"] > 0
        assert (state["missing"], state["orphans"]) == (0, 0)
    # So are the kernel's own names.
    with running("sh", "-c", "echo ready && exec head -c 1T /dev/zero >/dev/null"):
        collector.wait(lambda: not names_of(collector.payloads, "head").isdisjoint(SYSTEM_CALL))


def test_daemon_keeps_no_more_than_it_needs_and_profiles_on(tmp_path: Path, private: Path) -> None:
    with HttpCollector() as collector:
        with ready(
            tmp_path / "run", "-F", "99", "--interval", "1", "--otlp-endpoint", collector.url
        ) as daemon:
            profile_other_users_program(tmp_path / "run", collector, private)
            mine = int(re.search(r"CapEff:\t(\w+)", Path("/proc/self/status").read_text())[1], 16)  # type: ignore[index]
            allowed = sum(1 << number for number in NEEDED.values())
            # As many threads as there are now: naming, sending, serving, making rows.
            assert set(effective(daemon.process.pid)) == {allowed & mine, 0}
            assert daemon.end()[0] == 0
    assert daemon.totals()["taken"] == daemon.totals()["reported"] + daemon.totals()["lost"]


def test_daemon_profiles_within_what_its_unit_allows(tmp_path: Path, private: Path) -> None:
    allowed = ",".join(f"+{name}" for name in NEEDED)
    confined = [
        "setpriv", "--bounding-set", f"-all,{allowed}", "--no-new-privs",
        sys.executable, "-c", NO_WRITABLE_CODE,
    ]  # fmt: skip
    if subprocess.run([*confined, "true"], check=False).returncode:
        pytest.skip("the kernel cannot forbid writable code: it needs Linux 6.3")
    with HttpCollector() as collector:
        with ready(
            tmp_path / "run", "-F", "99", "--interval", "1", "--otlp-endpoint", collector.url, prefix=confined
        ) as daemon:
            profile_other_users_program(tmp_path / "run", collector, private)
            assert daemon.end()[0] == 0


@pytest.fixture
def switch() -> Iterator[Path]:
    path = [path for path in SWITCHES if os.access(path, os.W_OK)][-1]
    yield path
    path.write_text("1")


@pytest.mark.skipif(
    len(online_cpus()) < 2 or not any(os.access(path, os.W_OK) for path in SWITCHES),
    reason="no CPU can be taken offline here: /sys/devices/system/cpu/cpu*/online is not writable",
)
def test_cpu_that_returns_is_sampled_without_the_privileges(tmp_path: Path, switch: Path) -> None:
    cpu = int(switch.parent.name.removeprefix("cpu"))
    target = build_target(tmp_path, "chain.c")
    with HttpCollector() as collector:
        with ready(
            tmp_path / "run", "-F", "99", "--interval", "1", "--otlp-endpoint", collector.url
        ) as daemon:
            collector.wait_for_samples(1)
            switch.write_text("0")
            # Two profiles later its events are gone.
            collector.wait_for_requests(len(collector.times) + 2)
            switch.write_text("1")
            # They are opened again within a second; what runs before is not seen to begin.
            collector.wait_for_requests(len(collector.times) + 3)
            with running("taskset", "-c", str(cpu), target):
                arrives(collector, "chain", {"main", "c"})
            assert daemon.end()[0] == 0


def unit_setting(name: str) -> str:
    return str(re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)[0])


def test_unit_gives_what_the_daemon_keeps() -> None:
    assert set(unit_setting("CapabilityBoundingSet").lower().split()) == {f"cap_{name}" for name in NEEDED}


def test_unit_is_what_systemd_takes(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / "pyprof.service"
    # It looks for the program.
    copy.write_text(UNIT.read_text().replace("/opt/pyprof/bin/pyprof", sys.executable))
    done = subprocess.run([tool, "verify", str(copy)], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
