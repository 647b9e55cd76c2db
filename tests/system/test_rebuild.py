# SPDX-License-Identifier: Apache-2.0
"""What is up to date is not built again, what is not is: on a copy of this checkout and its build.

Compilers are replaced: all they do is to write down the call and to leave an empty file.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.profiling import ROOT

pytestmark = pytest.mark.timeout(600)

COMPILERS = (
    *("gcc", "cc", "x86_64-linux-gnu-gcc", "aarch64-linux-gnu-gcc", "clang", "clang-19"),
    *("llvm-strip", "llvm-strip-19"),
)
COMPILER = """\
#!/bin/sh
echo "$0 $*" >>{log}
while [ $# -gt 1 ]; do
    if [ "$1" = -o ]; then : >"$2"; fi
    shift
done
"""
NPM = """\
#!/bin/sh
echo "$0 $*" >>{log}
exec {npm} "$@"
"""
LEFT_OUT = shutil.ignore_patterns(
    ".*", "node_modules", "__pycache__", "tests", "benchmarks", "docs", "*.egg-info"
)


class Copy:
    """A checkout, and the tools that are called for it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self._log = folder / "log"
        self._tools = folder / "tools"
        shutil.copytree(ROOT, self.root, ignore=LEFT_OUT)
        self._tools.mkdir()
        for name in COMPILERS:
            self._add_tool(name, COMPILER.format(log=self._log))
        self._add_tool("npm", NPM.format(log=self._log, npm=shutil.which("npm")))

    def _add_tool(self, name: str, script: str) -> None:
        tool = self._tools / name
        tool.write_text(script)
        tool.chmod(0o755)

    def build(self) -> list[str]:
        """Builds; the calls of tools that this took."""
        self._log.write_text("")
        steps = "build_bpf --inplace build_web --inplace build_ext --inplace -j2"
        environment = {**os.environ, "PATH": f"{self._tools}:{os.environ['PATH']}"}
        subprocess.run(
            [sys.executable, "setup.py", "-q", *steps.split()], check=True, cwd=self.root, env=environment
        )
        return self._log.read_text().splitlines()

    def touch(self, name: str) -> None:
        os.utime(self.root / name)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    copy = Copy(tmp_path_factory.mktemp("rebuild"))
    copy.build()
    return copy


def sources(calls: list[str]) -> set[str]:
    """Names of the C files that compilers were called for, without their endings."""
    return {
        Path(word).stem.removesuffix(".bpf")
        for call in calls
        for word in call.split()[1:]
        if word.endswith(".c") and " -c " in call
    }


def test_second_build_calls_no_tool(built: Copy) -> None:
    assert built.build() == []


def test_changed_declarations_rebuild_their_users_only(built: Copy) -> None:
    built.touch("pyprof/_native/trie.pxd")
    compiled = sources(built.build())
    assert {"trie", "processes"} <= compiled
    assert not compiled & {"kallsyms", "symbols", "sampler", "loader"}


def test_changed_bpf_program_is_compiled_alone(built: Copy) -> None:
    built.touch("bpf/sampler.bpf.c")
    assert sources(built.build()) == {"sampler"}


def test_changed_shim_is_compiled_with_its_binding(built: Copy) -> None:
    built.touch("csrc/loader.c")
    assert "loader" in (compiled := sources(built.build()))
    assert not compiled & {"trie", "sampler"}


def test_changed_abi_header_rebuilds_the_program_and_the_binding(built: Copy) -> None:
    built.touch("csrc/pyprof_abi.h")
    assert {"sampler", "loader", "drain"} <= sources(built.build())


def test_changed_page_is_bundled(built: Copy) -> None:
    built.touch("web/src/page.css")
    assert any(call.split()[0].endswith("/npm") for call in built.build())
