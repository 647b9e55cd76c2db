# SPDX-License-Identifier: Apache-2.0
"""Functions of loadable modules: this machine's root file system is one's work."""

import re
from pathlib import Path

import pytest

from tests.kernels.recording import record_process, stacks
from tests.support.profiling import running

pytestmark = pytest.mark.bpf

LOOK_UP = "echo ready; while :; do test -e /usr/lib/absent.$RANDOM; done"


def test_functions_of_modules_are_named_with_their_module() -> None:
    with running("/bin/bash", "-c", LOOK_UP) as process:
        found = stacks(record_process(process.pid))
    named = {name for stack in found for name in stack if name.endswith("]") and " [" in name}
    assert any(name.endswith(" [overlay]") for name in named)
    listed = {
        f"{name} {module}"
        for name, module in re.findall(
            r"^[0-9a-f]+ \w (\S+)\t(\[\w+\])$", Path("/proc/kallsyms").read_text(), re.MULTILINE
        )
    }
    assert named <= listed
