# SPDX-License-Identifier: Apache-2.0
"""Real processes for tests: a Python child that prepares something, says so, and stays until told to go."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_WAIT = "\nimport sys\nprint('ready', flush=True)\nsys.stdin.read()\n"


@contextmanager
def child(code: str, *arguments: str, prefix: Sequence[str] = ()) -> Iterator[int]:
    """Run `code` in a child and give its pid once the code is through; the child lives as long as the block.

    Args:
        code: Python source; `arguments` are its sys.argv[1:].
        arguments: see `code`.
        prefix: a command that runs the child in turn, such as unshare; the pid is then the prefix's own.
    """
    command = [*prefix, sys.executable, "-c", code + _WAIT, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.communicate("")
