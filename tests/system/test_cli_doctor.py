# SPDX-License-Identifier: Apache-2.0
"""pyprof doctor on this host, and what is said where rights are taken away."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.profiling import ROOT, pyprof
from tests.support.terminal import recorder

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give rights up")
STATES = {"ok", "limited", "missing"}
# Root that a container confines: no capability in effect, none to be had.
WITHOUT_CAPABILITIES = ("setpriv", "--bounding-set", "-all", "--inh-caps", "-all")
IN_USER_NAMESPACE = ("unshare", "--user", "--map-root-user")
IN_PID_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")


def run(prefix: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-m", "pyprof", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=60)


def states(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return {check["name"]: check["state"] for check in json.loads(done.stdout)["checks"]}


@pytest.mark.bpf
def test_host_that_can_profile_gives_0() -> None:
    done = pyprof("doctor")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "This host can be profiled."
    assert f"Linux {platform.release()} on {platform.machine()}" in done.stdout


@pytest.mark.bpf
def test_json_is_one_object_with_every_check() -> None:
    done = pyprof("doctor", "--json")
    report = json.loads(done.stdout)
    assert report["can_profile"] is True
    assert report["kernel"] == os.uname().release
    assert report["machine"] == os.uname().machine
    for check in report["checks"]:
        assert set(check) == {"name", "state", "detail", "remedy"}
        assert check["state"] in STATES
        assert check["detail"]
    names = [check["name"] for check in report["checks"]]
    assert len(set(names)) == len(names)
    assert {check["state"] for check in report["checks"]} <= {"ok", "limited"}


@needs_root
def test_json_without_capabilities_says_what_is_missing() -> None:
    done = run(WITHOUT_CAPABILITIES, "doctor", "--json")
    assert done.returncode == 1
    assert done.stderr == ""
    assert json.loads(done.stdout)["can_profile"] is False
    found = states(done)
    assert {found["privileges"], found["BPF programs"], found["sampler"]} == {"missing"}
    assert found["mapped files"] == "limited"
    assert found["kernel names"] == "limited"


@needs_root
def test_text_without_capabilities_ends_with_the_verdict() -> None:
    done = run(WITHOUT_CAPABILITIES, "doctor")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("This host cannot be profiled; missing: privileges, ")
    assert "-> " in done.stdout


@needs_root
@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        (WITHOUT_CAPABILITIES, ("CAP_BPF and CAP_PERFMON", "--privileged")),
        (IN_USER_NAMESPACE, ("user namespace", "as root of the host")),
        (IN_PID_NAMESPACE, ("PID namespace", "--pid=host")),
    ],
    ids=["no capabilities", "user namespace", "PID namespace"],
)
def test_record_says_in_one_line_what_is_missing(
    prefix: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    done = run(prefix, "record", "-d", "1", "-o", str(tmp_path / "x.folded"))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("pyprof: ")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr
    assert list(tmp_path.iterdir()) == []


@needs_root
def test_record_that_cannot_profile_does_not_run_the_command(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    output = str(tmp_path / "x.folded")
    done = run(WITHOUT_CAPABILITIES, "record", "-o", output, "--", "touch", str(mark))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert not mark.exists()


@needs_root
@pytest.mark.bpf
def test_some_capabilities_suffice_and_the_rest_is_limited() -> None:
    wanted = "-all,+bpf,+perfmon"
    done = run(("setpriv", "--bounding-set", wanted, "--inh-caps", "-all"), "doctor", "--json")
    found = states(done)
    assert done.returncode == 0, done.stdout
    assert found["privileges"] == "ok"
    assert found["mapped files"] == "limited"


@needs_root
def test_mappings_are_told_to_be_unreadable_without_ptrace() -> None:
    done = run(("setpriv", "--bounding-set", "-all,+bpf,+perfmon", "--inh-caps", "-all"), "doctor", "--json")
    # Of root's own processes with more rights than that, such as this one.
    assert states(done)["mappings"] == "limited"


@needs_root
@pytest.mark.bpf
def test_helper_that_the_kernel_lacks_is_named(tmp_path: Path) -> None:
    # The sampler as built, with one call of a helper that no kernel has: bytes of a BPF call instruction
    # are opcode 0x85, registers 0, offset 0 (2 bytes), the helper's number (4 bytes).
    code = """
import sys
from pathlib import Path
from importlib import resources
from pyprof.bpf import library
image = resources.files("pyprof.bpf").joinpath("sampler.bpf.o").read_bytes()
call = bytes([0x85, 0, 0, 0])
changed = image.replace(call + (158).to_bytes(4, "little"), call + (9999).to_bytes(4, "little"))
assert changed != image
path = Path(sys.argv[1])
path.joinpath("sampler.bpf.o").write_bytes(changed)
library.resources.files = lambda package: path
from pyprof.host import try_sampler
print(try_sampler()[0].detail)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == "the kernel lacks the BPF helper number 9999: pyprof needs Linux 5.15 or newer\n"


@pytest.mark.bpf
def test_running_recorder_tells_how_many_stacks_user_space_unwound(tmp_path: Path) -> None:
    environment = os.environ | {"PYPROF_RUN_DIR": str(tmp_path)}
    with recorder("-F", "499", "-o", str(tmp_path / "x.folded"), run_folder=tmp_path) as recording:
        told = json.loads(pyprof("doctor", "--json", env=environment).stdout)["recorders"]
        text = pyprof("doctor", env=environment).stdout
    assert [item["pid"] for item in told] == [recording.process.pid]
    assert 0 <= told[0]["unwound_in_user_space"] <= told[0]["reported"]
    assert f"Recorder {recording.process.pid} is running: " in text
