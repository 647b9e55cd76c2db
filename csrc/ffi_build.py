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
CONSTANTS = [
    "PYPROF_ABI_VERSION",
    "PYPROF_CHUNK_BYTES",
    "PYPROF_MAX_RULES",
    "PYPROF_PLAIN_LOOP_FRAMES",
    "PYPROF_MAX_USER_FRAMES",
    "PYPROF_MAX_KERNEL_FRAMES",
    "PYPROF_COUNTER_COUNT",
    "PYPROF_COUNTER_TAKEN",
    "PYPROF_COUNTER_IDLE",
    "PYPROF_COUNTER_RING_FULL",
    "PYPROF_COUNTER_SLICES",
    "PYPROF_COUNTER_SLICES_LOST",
    "PYPROF_COUNTER_FAILED",
    "PYPROF_END_COUNT",
]

ffibuilder.cdef("struct pyprof_mapping_key { uint32_t prefix_len; uint32_t pid; uint64_t address; };")
FLAGS = ["-std=gnu11", "-O2", "-g0", "-Wall", "-Wextra", "-Werror"]

ffibuilder.cdef("".join(map(declarations, ("loader.h", "unwind_host.h", "heap.h", "privileges.h"))))
ffibuilder.cdef("\n".join(f"#define {name} ..." for name in CONSTANTS))
ffibuilder.set_source(
    "pyprof._native._libbpf",
    '#include "loader.h"\n#include "heap.h"\n#include "privileges.h"',
    sources=["csrc/loader.c", "csrc/unwind_host.c", "csrc/heap.c", "csrc/privileges.c"],
    include_dirs=["csrc"],
    depends=[*sorted(f"csrc/{path.name}" for path in HERE.glob("*.h")), "bpf/unwind.h", "csrc/ffi_build.py"],
    extra_compile_args=[*pkg_config("--cflags", "libbpf"), *FLAGS],
    extra_link_args=pkg_config("--libs", "libbpf"),
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
