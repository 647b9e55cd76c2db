# SPDX-License-Identifier: Apache-2.0
"""Static programs of musl, whose signal trampoline has no call frame information."""

from pathlib import Path

import pytest

from tests.support.programs import Program, Recording, check
from tests.support.truth import Chain, Some, build, tool

pytestmark = [pytest.mark.bpf, pytest.mark.timeout(300)]

# The start-up code has neither call frame information nor frame pointers: who calls it is lost.
VICTIM: Chain = ("libc_start_main_stage2", "main", "outer", "victim")
# No symbol covers the byte before the trampoline.
TRAMPOLINE = Some(r"__restore_rt|musl(-alt)?\+0x[0-9a-f]+")


def made(folder: Path) -> Path:
    tool("musl-gcc")
    return build(folder, "signals.c", ["-static"], "musl-gcc")


def musl(name: str, *arguments: str) -> Program:
    chains = (VICTIM, (*VICTIM, TRAMPOLINE), (*VICTIM, TRAMPOLINE, "handler", Some("handled", 0)))
    return Program(name, made, chains, arguments)


PROGRAMS = [musl("musl"), musl("musl-alt", "alt")]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_signal_handler_is_left_for_what_it_interrupted(recording: Recording, program: Program) -> None:
    check(recording, program)
    stacks = recording.rest[program.name].stacks
    assert sum(n for stack, n in stacks.items() if "handled" in stack) > 3, stacks
