# SPDX-License-Identifier: Apache-2.0
"""Whole recordings: rates, accounting, cost, commands, and what stays behind."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyprof.session import Options, Session
from tests.support.profiling import (
    ROOT,
    bpf_ids,
    build_target,
    cpu_ticks,
    pyprof,
    record,
    running,
    wait_until,
)

pytestmark = pytest.mark.bpf


def busy_host(stack: ExitStack, target: Path) -> int:
    """Keeps every CPU busy; how many there are."""
    cpus = sorted(os.sched_getaffinity(0))
    for cpu in cpus:
        process = stack.enter_context(running(target))
        os.sched_setaffinity(process.pid, {cpu})
    return len(cpus)


def test_rate_and_cost_on_busy_cores(tmp_path: Path) -> None:
    target = build_target(tmp_path, "chain.c")
    with ExitStack() as stack:
        cpus = busy_host(stack, target)
        got = record(tmp_path / "out.folded", "-F", "999", "-d", "10")
    samples = got.report["samples"]
    expected = cpus * 999 * 10
    assert abs(samples["taken"] - expected) / expected < 0.02
    assert samples["lost"] == {}
    assert got.report["cpu_seconds_sampling"] / got.report["seconds"] < 0.03
    assert got.report["cpu_seconds"] < 1.2


def test_nothing_is_sampled_after_the_end_when_much_is_due(tmp_path: Path) -> None:
    with running(build_target(tmp_path, "chain.c")) as process, Session(Options(hz=499)) as session:
        session.prepare()
        session.start()
        # What is done each second is due when the recording ends.
        wait_until(lambda: time.monotonic_ns() > session.started + 1_200_000_000, "1.2 s later")
        session.stop()
        accounting = session.accounting()
        ticks = cpu_ticks(process.pid)
        wait_until(lambda: cpu_ticks(process.pid) > ticks + 20, "0.2 s of a busy program")
        assert session.reader.unread == 0
        assert session.accounting() == accounting
        assert accounting.taken == accounting.reported + sum(accounting.lost.values()) > 100


@pytest.mark.parametrize("by", ["process", "thread", "none"])
def test_samples_add_up(tmp_path: Path, by: str) -> None:
    target = build_target(tmp_path, "spawner.c")
    got = record(tmp_path / "out.folded", "-F", "2000", "--by", by, "--", target, "100", "4")
    samples = got.report["samples"]
    assert samples["taken"] == samples["reported"] + sum(samples["lost"].values())
    assert sum(got.folded().values()) == samples["reported"]
    assert sum(got.report["incomplete"].values()) <= samples["reported"]
    # 100 processes of 5 ms at 2000 Hz are 1000 samples, fewer where the machine itself has to wait.
    assert samples["reported"] > 500


def test_command_is_profiled_from_start_to_end(tmp_path: Path) -> None:
    """The samples of a command's processes are as many as the CPU time that it used."""
    target = build_target(tmp_path, "spawner.c")
    before = os.times()
    subprocess.run([target, "60", "2"], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    got = record(tmp_path / "out.folded", "-F", "2000", "--", target, "60", "2")
    assert 0.5 < got.report["samples"]["reported"] / (2000 * used) < 2
    stacks = got.folded()
    assert {stack[0] for stack in stacks} == {"spawner"}
    # From the first instructions in the dynamic loader on.
    assert any("_dl_start" in frame or "ld-linux" in frame for stack in stacks for frame in stack)
    assert any(stack[-1] == "work" for stack in stacks)


def test_lost_samples_are_counted_when_the_ring_is_full(tmp_path: Path) -> None:
    """A recorder that is stopped cannot read: the kernel side counts what does not fit."""
    target = build_target(tmp_path, "chain.c")
    output = tmp_path / "out.folded"
    with ExitStack() as stack:
        busy_host(stack, target)
        recorder = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "pyprof", "record", "--json", "-F", "10000", "-o", output],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        wait_until(lambda: sampler_runs(recorder.pid), "the recorder samples")
        recorder.send_signal(signal.SIGSTOP)
        wait_until(lambda: ring_is_full(recorder.pid), "the ring is full", seconds=60)
        recorder.send_signal(signal.SIGCONT)
        recorder.send_signal(signal.SIGINT)
        out, _ = recorder.communicate()
    samples = json.loads(out)["samples"]
    assert samples["lost"]["ring buffer full"] > 0
    assert samples["taken"] == samples["reported"] + sum(samples["lost"].values())
    assert (
        sum(int(line.rpartition(" ")[2]) for line in output.read_text().splitlines()) == samples["reported"]
    )


def sampler_fds(pid: int) -> dict[str, int]:
    """Names of the BPF objects that a process holds -> their IDs."""
    found: dict[str, int] = {}
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        text = entry.read_text()
        for line in text.splitlines():
            if line.startswith(("map_id:", "prog_id:")):
                kind, _, number = line.partition(":")
                found[f"{kind}{len(found)}"] = int(number)
    return found


def sampler_runs(pid: int) -> bool:
    try:
        links = [entry.readlink() for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return sum("perf_event" in str(link) for link in links) >= 2 * len(os.sched_getaffinity(0))


def ring_is_full(pid: int) -> bool:
    """Whether the counter of refused samples is above 0, read by bpftool."""
    for number in sampler_fds(pid).values():
        done = subprocess.run(
            ["bpftool", "-j", "map", "show", "id", str(number)],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode or json.loads(done.stdout).get("name") != "counters":
            continue
        dump = subprocess.run(
            ["bpftool", "-j", "map", "lookup", "id", str(number), "key", "2", "0", "0", "0"],
            check=True,
            capture_output=True,
            text=True,
        )
        values = json.loads(dump.stdout)["values"]
        return any(int(byte, 16) for value in values for byte in value["value"])
    return False


def test_nothing_stays_in_the_kernel_when_the_recorder_is_killed(tmp_path: Path) -> None:
    before = bpf_ids("prog"), bpf_ids("map")
    with subprocess.Popen(
        [sys.executable, "-m", "pyprof", "record", "-o", tmp_path / "out.folded"],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    ) as recorder:
        wait_until(lambda: sampler_runs(recorder.pid), "the recorder samples")
        assert bpf_ids("prog") > before[0]
        recorder.kill()
    # The kernel frees programs and maps after a grace period of RCU.
    wait_until(lambda: bpf_ids("prog") <= before[0] and bpf_ids("map") <= before[1], "all is freed")


def test_recording_works_without_optional_privileges_and_files(tmp_path: Path) -> None:
    """No CAP_SYS_RESOURCE, no locked memory to spare, no tracefs, no list of modules."""
    script = (
        "for d in debug tracing; do mount -t tmpfs none /sys/kernel/$d; done; "
        "for f in modules kcore; do test -e /proc/$f && mount --bind /dev/null /proc/$f; done; "
        "ulimit -l 0; "
        'exec setpriv --bounding-set -sys_resource --inh-caps -sys_resource "$@"'
    )
    output = tmp_path / "out.folded"
    command = [sys.executable, "-m", "pyprof", "record", "-d", "1", "-F", "499", "--json", "-o", str(output)]
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", script, "-", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["samples"]["reported"] > 0


def test_pid_that_is_not_there_is_one_sentence() -> None:
    done = pyprof("record", "-d", "1", "-p", "4194303")
    assert done.returncode == 1
    assert done.stderr == "pyprof: there is no process 4194303\n"
