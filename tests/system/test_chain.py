# SPDX-License-Identifier: Apache-2.0
"""A program that knows its own stack: every sample must say the same."""

from pathlib import Path

import pytest

from tests.support.profiling import build_target, record, running

CHAIN = ("main", "a", "b", "c")

pytestmark = pytest.mark.bpf


def user_half(stack: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(frame for frame in stack if not frame.endswith("_[k]"))


@pytest.mark.parametrize(("compiler", "optimise"), [("gcc", "-O0"), ("clang-19", "-O0"), ("clang-19", "-O2")])
def test_chain_is_complete_down_to_main_when_burning_cpu(
    tmp_path: Path, compiler: str, optimise: str
) -> None:
    target = build_target(tmp_path, "chain.c", optimise, compiler=compiler)
    with running(target) as process:
        got = record(tmp_path / "out.folded", "-F", "999", "-d", "3", "-p", str(process.pid))
    stacks = got.folded()
    total = sum(stacks.values())
    right = sum(count for stack, count in stacks.items() if user_half(stack)[-4:] == CHAIN)
    assert total > 1000
    assert right / total > 0.99, stacks
    assert all(stack[0] == "chain" for stack in stacks)


def test_kernel_half_is_there_when_making_system_calls(tmp_path: Path) -> None:
    target = build_target(tmp_path, "chain.c")
    with running(target, "syscall") as process:
        got = record(tmp_path / "out.folded", "-F", "999", "-d", "3", "-p", str(process.pid))
    stacks = got.folded()
    total = sum(stacks.values())
    right = sum(count for stack, count in stacks.items() if user_half(stack)[-4:] == CHAIN)
    in_kernel = {stack: count for stack, count in stacks.items() if stack[-1].endswith("_[k]")}
    in_call = sum(count for stack, count in in_kernel.items() if any("getppid" in frame for frame in stack))
    assert total > 1000
    assert right / total > 0.99, stacks
    assert sum(in_kernel.values()) / total > 0.1
    assert in_call > 0
    for stack in in_kernel:
        first = next(i for i, frame in enumerate(stack) if frame.endswith("_[k]"))
        assert all(frame.endswith("_[k]") for frame in stack[first:]), "kernel frames lie above user frames"


def test_thread_name_stands_second_by_thread(tmp_path: Path) -> None:
    target = build_target(tmp_path, "chain.c")
    with running(target) as process:
        got = record(
            tmp_path / "out.folded", "-F", "199", "-d", "1", "-p", str(process.pid), "--by", "thread"
        )
    assert {stack[:2] for stack in got.folded()} == {("chain", "chain")}


def test_process_is_left_out_by_none(tmp_path: Path) -> None:
    target = build_target(tmp_path, "chain.c")
    with running(target) as process:
        got = record(tmp_path / "out.folded", "-F", "199", "-d", "1", "-p", str(process.pid), "--by", "none")
    assert all(stack[0] != "chain" for stack in got.folded())
