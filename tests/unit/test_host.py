# SPDX-License-Identifier: Apache-2.0
"""Checks of the host on hand-made /proc and /sys, and with a kernel that refuses."""

import errno
from pathlib import Path

import pytest

from pyprof import host
from pyprof.bpf.library import load_error
from pyprof.cli.doctor import as_text
from pyprof.errors import HostError
from pyprof.host import Check, State

ALL = 0x1FFFFFFFFFF
BPF, PERFMON, SYS_ADMIN, SYS_PTRACE = 1 << 39, 1 << 38, 1 << 21, 1 << 19  # linux/capability.h


def make_proc(
    folder: Path,
    *,
    effective: int = ALL,
    pid_namespace: str = host.HOST_PID_NAMESPACE,
    user_namespace: str = host.HOST_USER_NAMESPACE,
    nspid: str = "4711",
) -> Path:
    (folder / "self/ns").mkdir(parents=True)
    (folder / "self/ns/pid").symlink_to(pid_namespace)
    (folder / "self/ns/user").symlink_to(user_namespace)
    (folder / "self/status").write_text(
        f"Name:\tpyprof\nPid:\t4711\nNSpid:\t{nspid}\nCapPrm:\t{ALL:016x}\nCapEff:\t{effective:016x}\nSeccomp:\t0\n"
    )
    return folder


@pytest.mark.parametrize("effective", [ALL, BPF | PERFMON, SYS_ADMIN, BPF | PERFMON | SYS_PTRACE])
def test_privileges_suffice_with_both_capabilities_or_the_old_one(tmp_path: Path, effective: int) -> None:
    assert host.check_privileges(make_proc(tmp_path, effective=effective)).state is State.OK


@pytest.mark.parametrize(
    ("effective", "absent"),
    [
        (0, "CAP_BPF and CAP_PERFMON"),
        (BPF, "CAP_PERFMON"),
        (PERFMON, "CAP_BPF"),
        (ALL & ~SYS_ADMIN & ~BPF, "CAP_BPF"),
    ],
)
def test_absent_capabilities_are_named(tmp_path: Path, effective: int, absent: str) -> None:
    check = host.check_privileges(make_proc(tmp_path, effective=effective), uid=1000)
    assert check.state is State.MISSING
    assert check.sentence == f"profiling needs {absent}: run it as root, such as with sudo"


def test_confined_root_is_not_told_to_become_root(tmp_path: Path) -> None:
    check = host.check_privileges(make_proc(tmp_path, effective=0), uid=0)
    assert check.state is State.MISSING
    assert "--cap-add=BPF --cap-add=PERFMON" in check.remedy
    assert "sudo" not in check.remedy


def test_root_of_a_user_namespace_has_no_privileges(tmp_path: Path) -> None:
    check = host.check_privileges(make_proc(tmp_path, user_namespace="user:[4026532200]"), uid=0)
    assert check.state is State.MISSING
    assert "user namespace" in check.detail


def test_kernel_without_namespaces_is_the_host(tmp_path: Path) -> None:
    proc = make_proc(tmp_path)
    (proc / "self/ns/pid").unlink()
    (proc / "self/ns/user").unlink()
    assert host.check_privileges(proc).state is State.OK
    assert host.check_pid_namespace(proc).state is State.OK


@pytest.mark.parametrize("damage", ["CapEff:\tzz\n", "CapEff:\n", ""])
def test_status_without_capabilities_is_no_privilege(tmp_path: Path, damage: str) -> None:
    proc = make_proc(tmp_path)
    (proc / "self/status").write_text(damage)
    assert host.check_privileges(proc, uid=0).state is State.MISSING


@pytest.mark.parametrize(
    ("own", "nspid", "state"),
    [
        (host.HOST_PID_NAMESPACE, "4711", State.OK),
        ("pid:[4026532178]", "12", State.MISSING),
        ("pid:[4026532178]", "4711\t12", State.MISSING),
        (host.HOST_PID_NAMESPACE, "4711\t12", State.MISSING),
    ],
)
def test_other_pid_namespace_cannot_be_profiled_from(
    tmp_path: Path, own: str, nspid: str, state: State
) -> None:
    assert host.check_pid_namespace(make_proc(tmp_path, pid_namespace=own, nspid=nspid)).state is state


@pytest.mark.parametrize(
    ("text", "state", "detail"),
    [
        ("[none] integrity confidentiality\n", State.OK, "mode none"),
        ("none [integrity] confidentiality\n", State.OK, "mode integrity"),
        ("none integrity [confidentiality]\n", State.MISSING, "kernel lockdown forbids"),
        (None, State.OK, "none"),
    ],
)
def test_lockdown_forbids_only_in_mode_confidentiality(
    tmp_path: Path, text: str | None, state: State, detail: str
) -> None:
    (tmp_path / "kernel/security").mkdir(parents=True)
    if text is not None:
        (tmp_path / "kernel/security/lockdown").write_text(text)
    check = host.check_lockdown(tmp_path)
    assert check.state is state
    assert detail in check.detail


@pytest.mark.parametrize(
    ("there", "loads", "state"),
    [
        (True, True, State.OK),
        (True, False, State.OK),
        (False, True, State.OK),
        (False, False, State.MISSING),
    ],
)
def test_type_information_is_missing_where_nothing_loads_without(
    tmp_path: Path, there: bool, loads: bool, state: State
) -> None:
    if there:
        (tmp_path / "kernel/btf").mkdir(parents=True)
        (tmp_path / "kernel/btf/vmlinux").touch()
    check = host.check_btf(loads=loads, sys=tmp_path)
    assert check.state is state
    assert ("CONFIG_DEBUG_INFO_BTF" in check.remedy) is (state is State.MISSING)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (-errno.EPERM, "run pyprof as root of the host"),
        (-errno.ENOSYS, "CONFIG_BPF_SYSCALL"),
        (-errno.EINVAL, "CONFIG_BPF_EVENTS"),
    ],
)
def test_refused_program_has_a_remedy_by_the_error(
    monkeypatch: pytest.MonkeyPatch, code: int, remedy: str
) -> None:
    monkeypatch.setattr(host, "probe_program", lambda: code)
    monkeypatch.setattr(host, "status_field", lambda name: "0")
    check = host.check_program()
    assert check.state is State.MISSING
    assert remedy in check.remedy


def test_refused_program_blames_the_seccomp_filter_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "probe_program", lambda: -errno.EPERM)
    monkeypatch.setattr(host, "status_field", lambda name: {"Seccomp": "2"}[name])
    assert "seccomp" in host.check_program().remedy


def test_nothing_is_tried_that_a_refused_program_keeps_from_working(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "probe_program", lambda: -errno.EPERM)
    checks = {check.name: check for check in host.check_host()}
    for name in ("sampler", "cpu-clock"):
        assert checks[name].state is State.MISSING
        assert checks[name].detail == "cannot be tried without BPF programs"
    assert checks["cycles"].state is State.LIMITED
    assert checks["bpf_loop"].state is State.LIMITED


def test_refused_sampler_is_said_in_the_loaders_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise HostError("the kernel lacks it")

    monkeypatch.setattr(host, "BpfObject", refuse)
    sampler, clock, *_ = host.try_sampler()
    assert (sampler.state, sampler.detail) == (State.MISSING, "the kernel lacks it")
    assert clock.detail == "cannot be tried without the sampler"


def test_sentence_is_of_the_first_missing_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [
        Check("a", State.LIMITED, "a is less good"),
        Check("b", State.MISSING, "there is no b", "buy one", needed=True),
        Check("c", State.MISSING, "there is no c", needed=True),
    ]
    monkeypatch.setattr(host, "check_host", lambda: checks)
    assert host.explain_missing() == "there is no b: buy one"
    monkeypatch.setattr(host, "check_host", lambda: checks[:1])
    assert host.explain_missing() is None


@pytest.mark.parametrize(
    ("text", "state"), [("100000", State.OK), ("10000", State.OK), ("9999", State.LIMITED), ("x", State.OK)]
)
def test_rate_is_limited_below_what_record_takes(tmp_path: Path, text: str, state: State) -> None:
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/perf_event_max_sample_rate").write_text(text + "\n")
    assert host.check_rate_limit(tmp_path).state is state


def test_what_other_profilers_need_is_told_not_to_be_needed(tmp_path: Path) -> None:
    checks = host.check_not_needed(make_proc(tmp_path, effective=0), tmp_path)
    assert {check.name for check in checks} == {
        "tracefs",
        "loadable modules",
        "/proc/kcore",
        "CAP_SYS_RESOURCE",
    }
    for check in checks:
        assert (check.state, check.detail) == (State.OK, "absent, not needed")


# What kernels say, from their sources (kernel/bpf/verifier.c) and from loads on 5.10 and 6.18.
@pytest.mark.parametrize(
    ("line", "helper"),
    [
        ("invalid func unknown#175", "bpf_task_pt_regs"),
        ("invalid func unknown#158", "bpf_get_current_task_btf"),
        ("invalid func unknown#9999", "number 9999"),
        ("unknown func bpf_task_pt_regs#175", "bpf_task_pt_regs"),
        ("program of this type cannot use helper bpf_ringbuf_query#134", "bpf_ringbuf_query"),
    ],
)
def test_refused_load_names_the_helper_that_is_lacking(line: str, helper: str) -> None:
    log = (
        f"libbpf: prog 'sample': -- BEGIN PROG LOAD LOG --\n1: (85) call unknown\n{line}\nprocessed 2 insns\n"
    )
    assert str(load_error(-errno.EINVAL, log)) == (
        f"the kernel lacks the BPF helper {helper}: pyprof needs Linux 5.15 or newer"
    )


def test_refused_load_ends_with_what_the_verifier_said_last() -> None:
    log = """\
libbpf: prog 'sample': BPF program load failed: Invalid argument
libbpf: prog 'sample': -- BEGIN PROG LOAD LOG --
number of funcs in func_info doesn't match number of subprogs
processed 0 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0
-- END PROG LOAD LOG --
libbpf: prog 'sample': failed to load: -22
libbpf: failed to load object 'pyprof'
"""
    assert str(load_error(-errno.EINVAL, log)).endswith(
        "needs Linux 5.15 or newer: number of funcs in func_info doesn't match number of subprogs"
    )


def test_memory_that_a_program_may_not_touch_is_no_lack_of_privilege() -> None:
    log = "libbpf: prog 'sample': -- BEGIN PROG LOAD LOG --\nR1 invalid mem access 'inv'\n"
    assert "R1 invalid mem access 'inv'" in str(load_error(-errno.EACCES, log))
    assert "run as root" in str(load_error(-errno.EACCES, ""))
    assert "run as root" in str(load_error(-errno.EPERM, ""))


def test_report_keeps_to_the_width_and_loses_no_word() -> None:
    facts: dict[str, object] = dict.fromkeys(("kernel", "machine", "cpus", "pyprof", "python", "libbpf"), "1")
    checks = [Check("privileges", State.MISSING, "word " * 40, "remedy " * 20, needed=True)]
    lines = as_text(facts, checks, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert "\n".join(lines).count("word") == 40
    assert "\n".join(lines).count("remedy") == 20
    assert lines[-1] == "This host cannot be profiled; missing: privileges."
