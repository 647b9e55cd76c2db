# SPDX-License-Identifier: Apache-2.0
"""Decoders of unwind information with checks of memory and arithmetic, on damaged pieces of real files."""

import subprocess
from pathlib import Path

from tests.fuzz import go_seeds, seeds
from tests.support.compile import run
from tests.support.gobinaries import PLAIN, build

ROOT = Path(__file__).parents[2]
FILES = ["/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "/bin/sh"]
TURNS = 3000


def survive(folder: Path, harness: str, turns: int) -> None:
    """Builds a harness with checks, and runs it on the seeds in a folder."""
    program = folder / harness
    sources = sorted([*(ROOT / "csrc").glob("cfi*.c"), *(ROOT / "csrc").glob("gopclntab*.c")])
    flags = ["-std=c11", "-O1", "-g", "-DFUZZ_MAIN", f"-I{ROOT}/csrc", "-Wall", "-Wextra", "-Wconversion"]
    checks = ["-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    run("gcc", *flags, *checks, str(ROOT / f"tests/fuzz/{harness}.c"), *map(str, sources), "-o", str(program))
    inputs = sorted(map(str, (folder / "seeds").iterdir()))
    assert len(inputs) >= 5
    done = subprocess.run(
        [str(program), str(turns), *inputs], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_damaged_call_frame_information_breaks_no_memory_rule(tmp_path: Path) -> None:
    seeds.main(str(tmp_path / "seeds"), *FILES)
    survive(tmp_path, "cfi_fuzz", TURNS)


def test_damaged_go_table_breaks_no_memory_rule(tmp_path: Path) -> None:
    go_seeds.main(str(tmp_path / "seeds"), str(build(tmp_path, PLAIN, "plain")))
    survive(tmp_path, "go_fuzz", TURNS // 4)
