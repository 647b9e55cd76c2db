# SPDX-License-Identifier: Apache-2.0
"""The call frame decoder under address and undefined behaviour checks, on damaged pieces of real files."""

import subprocess
from pathlib import Path

from tests.fuzz import seeds
from tests.support.compile import run

ROOT = Path(__file__).parents[2]
FILES = ["/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "/bin/sh"]
TURNS = 3000


def test_damaged_input_breaks_no_memory_rule(tmp_path: Path) -> None:
    program = tmp_path / "cfi_fuzz"
    sources = [str(ROOT / "tests/fuzz/cfi_fuzz.c"), *map(str, sorted((ROOT / "csrc").glob("cfi*.c")))]
    flags = ["-std=c11", "-O1", "-g", "-DCFI_FUZZ_MAIN", f"-I{ROOT}/csrc", "-Wall", "-Wextra", "-Wconversion"]
    checks = ["-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    run("gcc", *flags, *checks, *sources, "-o", str(program))
    seeds.main(str(tmp_path / "seeds"), *FILES)
    inputs = sorted(map(str, (tmp_path / "seeds").iterdir()))
    assert len(inputs) >= 5
    done = subprocess.run(
        [str(program), str(TURNS), *inputs], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr[-4000:]
