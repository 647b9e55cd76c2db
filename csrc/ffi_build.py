# SPDX-License-Identifier: Apache-2.0
"""cffi binding to the libbpf shim: builds pyprof/_native/_libbpf (API mode)."""

import os
import re
import shlex
import subprocess
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).parent


def pkg_config(*args: str) -> list[str]:
    tool = os.environ.get("PKG_CONFIG", "pkg-config")
    return shlex.split(subprocess.check_output([tool, *args], text=True))


def declarations(header: str) -> str:
    """The part of a header between its cffi marks, which is plain enough for cffi's parser."""
    text = (HERE / header).read_text()
    parts = re.findall(r"/\* cffi begin \*/(.*?)/\* cffi end \*/", text, re.DOTALL)
    return "\n".join(parts)


ffibuilder = FFI()
ffibuilder.cdef(declarations("loader.h"))
ffibuilder.set_source(
    "pyprof._native._libbpf",
    '#include "loader.h"',
    sources=["csrc/loader.c"],
    include_dirs=["csrc"],
    depends=sorted(str(path.relative_to(HERE.parent)) for path in HERE.glob("*.h")),
    extra_compile_args=[*pkg_config("--cflags", "libbpf"), "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"],
    extra_link_args=pkg_config("--libs", "libbpf"),
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
