# SPDX-License-Identifier: Apache-2.0
"""pyprof inspect process and maps, against what /proc, readelf and arithmetic say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import child
from tests.support.compile import compile_source, run
from tests.support.profiling import ROOT, pyprof, running, wait_until
from tests.support.terminal import recorder

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
NATIVE = r"""
#include <stdio.h>
int main(void) { puts("ready"); fflush(stdout); return getchar() == EOF; }
"""


def inspect(pid: int) -> dict[str, Any]:
    done = pyprof("inspect", "process", str(pid), "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def blocks(start: int, end: int) -> int:
    """The least number of aligned power-of-two blocks that cover a range exactly: greedy is best."""
    count = 0
    while start < end:
        size = start & -start or 1 << 63
        while start + size > end:
            size >>= 1
        start += size
        count += 1
    return count


@needs_root
def test_process_has_its_mappings_as_proc_lists_them() -> None:
    with child("") as pid:
        found = inspect(pid)
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        comm = Path(f"/proc/{pid}/comm").read_text().strip()
        exe = str(Path(f"/proc/{pid}/exe").readlink())
    expected = []
    for line in lines:
        addresses, permissions, offset, _, inode, *path = line.split(maxsplit=5)
        if "x" in permissions:
            start, end = (int(part, 16) for part in addresses.split("-"))
            expected.append((start, end, int(offset, 16), int(inode), path[0] if path else ""))
    shown = [
        (row["start"], row["end"], row["offset"], row["inode"], row["path"]) for row in found["mappings"]
    ]
    assert shown == expected
    assert (found["pid"], found["comm"], found["exe"], found["threads"]) == (pid, comm, exe, int(fields[17]))
    assert found["parent"] == os.getpid()
    assert found["start_ns"] == int(fields[19]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert found["kernel_thread"] is False
    assert [row["prefixes"] for row in found["mappings"]] == [
        blocks(start, end) for start, end, *_ in expected
    ]
    assert found["prefixes"] == sum(row["prefixes"] for row in found["mappings"])


@needs_root
def test_files_have_the_build_id_and_address_that_readelf_prints(tmp_path: Path) -> None:
    # Linked at an address of its own: offsets and addresses differ.
    program = compile_source(
        tmp_path, "target.c", NATIVE, "-no-pie", "-Wl,-Ttext-segment=0x10000000", "-Wl,--build-id=sha1"
    )
    notes = run("readelf", "-n", str(program))
    build_id = re.search(r"Build ID: ([0-9a-f]+)", notes)
    assert build_id is not None
    pipe = subprocess.PIPE
    with subprocess.Popen([program], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        rows = [row for row in inspect(process.pid)["mappings"] if row["path"] == str(program)]
        process.communicate("")
    [row] = rows
    assert (row["build_id"], row["readable"], row["note"]) == (build_id[1], True, "")
    # It is not relocated: its addresses in memory are those of the file.
    assert (row["elf_start"], row["elf_end"]) == (row["start"], row["end"])


@needs_root
def test_deleted_file_is_still_read(tmp_path: Path) -> None:
    program = compile_source(tmp_path, "target.c", NATIVE)
    pipe = subprocess.PIPE
    with subprocess.Popen([program], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        program.unlink()
        rows = [row for row in inspect(process.pid)["mappings"] if str(program) in row["path"]]
        process.communicate("")
    assert [(row["path"], row["readable"]) for row in rows] == [(f"{program} (deleted)", True)]


@needs_root
def test_memory_without_a_file_says_so() -> None:
    code = """
from mmap import *
kept = mmap(-1, 8192, prot=PROT_READ | PROT_EXEC, flags=MAP_PRIVATE | MAP_ANONYMOUS)
"""
    with child(code) as pid:
        rows = [row for row in inspect(pid)["mappings"] if not row["path"]]
    assert [(row["readable"], row["elf_start"], row["inode"]) for row in rows] == [(False, None, 0)]
    assert "memory without a file" in rows[0]["note"]


@needs_root
def test_text_of_a_process_has_every_file_once() -> None:
    with child("") as pid:
        shown = pyprof("inspect", "process", str(pid)).stdout
        found = inspect(pid)
    assert shown.startswith(f"process {pid} (")
    for row in found["mappings"]:
        assert f"{row['start']:x}-{row['end']:x}" in shown
    for build_id in {row["build_id"] for row in found["mappings"]} - {""}:
        assert shown.count(build_id) == 1


@needs_root
def test_own_namespace_shows_the_pid_inside() -> None:
    with child("", prefix=("unshare", "--pid", "--fork", "--kill-child")) as parent:
        pid = int(Path(f"/proc/{parent}/task/{parent}/children").read_text())
        assert inspect(pid)["namespace_pids"] == [pid, 1]


@needs_root
def test_kernel_thread_is_told_to_be_one() -> None:
    pid = next(
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdigit() and path.joinpath("comm").read_text() == "kthreadd\n"
    )
    found = inspect(pid)
    assert (found["kernel_thread"], found["exe"], found["mappings"]) == (True, None, [])
    shown = pyprof("inspect", "process", str(pid))
    assert shown.returncode == 0
    assert "kernel thread" in shown.stdout


@needs_root
def test_zombie_has_nothing_mapped() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    try:
        done = pyprof("inspect", "process", str(process.pid))
        assert done.returncode == 0
        assert "It has ended" in done.stdout
        assert inspect(process.pid)["mappings"] == []
    finally:
        process.wait()


def test_thread_is_told_to_be_of_its_process() -> None:
    code = """
import threading
held = threading.Event()
thread = threading.Thread(target=held.wait, daemon=True)
thread.start()
"""
    with child(code) as pid:
        [tid] = {int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()} - {pid}
        done = pyprof("inspect", "process", str(tid))
    assert done.returncode == 1
    assert done.stderr == f"pyprof: {tid} is a thread of process {pid}: inspect that\n"


@needs_root
def test_process_that_may_not_be_looked_at_is_one_sentence() -> None:
    with child("") as pid:
        command = ["setpriv", "--bounding-set", "-all", sys.executable, "-m", "pyprof", "inspect", "process"]
        done = subprocess.run([*command, str(pid)], check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "may not be read: that takes root with CAP_SYS_PTRACE" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.bpf
def test_maps_tell_what_the_running_recorder_holds(tmp_path: Path) -> None:
    environment = os.environ | {"PYPROF_RUN_DIR": str(tmp_path)}

    def held() -> dict[str, Any]:
        done = pyprof("inspect", "maps", "--json", env=environment)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    output = str(tmp_path / "x.folded")
    # Only what was sampled is in the kernel.
    busy = running("bash", "-c", "echo ready; while :; do :; done")
    with busy, recorder("-o", output, run_folder=tmp_path) as recording:
        wait_until(lambda: held()["kernel"]["exec_mappings"]["entries"] > 0, "a process is published")
        shown = held()
        text = pyprof("inspect", "maps", "--pid", str(recording.process.pid), env=environment)
    assert shown["pid"] == recording.process.pid
    mappings = shown["kernel"]["exec_mappings"]
    assert set(mappings) == {"entries", "capacity", "bytes", "evicted", "refused"}
    assert 0 < mappings["entries"] < mappings["capacity"]
    assert (shown["orphans"], shown["missing"]) == (0, 0)
    assert shown["processes"]["alive"] >= shown["processes"]["published"] > 0
    assert shown["mappings"]["known"] >= shown["mappings"]["published"] > 0
    assert shown["executables"]["known"] > 0
    assert text.returncode == 0
    assert text.stdout.startswith(f"recorder {recording.process.pid}\n  kernel exec_mappings entries ")


@pytest.mark.bpf
def test_one_of_two_recorders_must_be_named(tmp_path: Path) -> None:
    environment = os.environ | {"PYPROF_RUN_DIR": str(tmp_path)}
    first, second = ("-o", str(tmp_path / "x.folded")), ("-o", str(tmp_path / "y.folded"))
    with recorder(*first, run_folder=tmp_path) as one, recorder(*second, run_folder=tmp_path) as two:
        done = pyprof("inspect", "maps", env=environment)
        named = pyprof("inspect", "maps", "--json", "--pid", str(two.process.pid), env=environment)
    assert done.returncode == 1
    assert done.stdout == ""
    shown = ", ".join(map(str, sorted((one.process.pid, two.process.pid))))
    assert done.stderr == f"pyprof: several recorders are running: name one with --pid, of {shown}\n"
    assert json.loads(named.stdout)["pid"] == two.process.pid


def test_maps_without_a_recorder_is_one_sentence(tmp_path: Path) -> None:
    done = pyprof("inspect", "maps", "--json", env=os.environ | {"PYPROF_RUN_DIR": str(tmp_path)})
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "pyprof: no recorder is running: start one, such as `pyprof record -d 60`\n"
