# SPDX-License-Identifier: Apache-2.0
"""Some seconds of coverage-guided fuzzing, from the seeds on: what a change breaks grossly is found."""

import os
import re
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 15


def findings(folder: Path) -> str:
    """The inputs that were found, since the folder goes with the test."""
    names = [
        path for path in folder.iterdir() if path.name.startswith(("crash-", "timeout-", "oom-", "leak-"))
    ]
    return "\n".join(f"{path.name}, base64: {b64encode(path.read_bytes()).decode()}" for path in names)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("decoder", "reached"), [("cfi", 300), ("go", 200)])
def test_no_input_breaks_a_decoder(tmp_path: Path, decoder: str, reached: int) -> None:
    done = subprocess.run(
        ["tests/fuzz/run", str(SECONDS), str(tmp_path), decoder],
        cwd=ROOT,
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, f"{findings(tmp_path)}\n{done.stderr[-6000:]}"
    runs = re.search(r"stat::number_of_executed_units:\s+(\d+)", done.stderr)
    covered = [int(number) for number in re.findall(r"\bcov: (\d+)", done.stderr)]
    assert runs is not None, done.stderr[-2000:]
    assert int(runs[1]) > 1000, "hardly anything was tried"
    assert covered[-1] > reached, "the seeds do not reach what decodes"
