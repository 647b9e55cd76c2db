# SPDX-License-Identifier: Apache-2.0
"""Native build steps: BPF objects, Cython modules, libbpf binding, web page. Metadata: pyproject.toml."""

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import ClassVar

from Cython.Build import cythonize
from setuptools import Command, Extension, setup
from setuptools.command.build import build
from setuptools.errors import ExecError

ROOT = Path(__file__).parent
DEBUG = os.environ.get("PYPROF_DEBUG") == "1"
BPF_ARCH = {"x86_64": "x86", "aarch64": "arm64"}
CYTHON_DIR = "build/cython-debug" if DEBUG else "build/cython"
HEADERS = [*sorted(Path("csrc").glob("*.h")), *sorted(Path("bpf").glob("*.h"))]


class GeneratedFiles(Command):
    """Base of the steps that make package files from other sources (setuptools' SubCommand protocol)."""

    user_options: ClassVar = [
        ("build-lib=", "d", "where built modules go"),
        ("inplace", "i", "write into the source tree"),
    ]
    boolean_options: ClassVar = ["inplace"]

    def initialize_options(self) -> None:
        self.build_lib: str | None = None
        self.inplace = False
        self.editable_mode = False
        self.force: bool | None = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"), ("force", "force"))

    def products(self) -> dict[str, list[str]]:
        """Package-relative path of each file made -> its sources."""
        raise NotImplementedError

    def make(self, target: str, dest: Path) -> None:
        raise NotImplementedError

    def run(self) -> None:
        base = Path() if self.inplace or self.editable_mode else Path(str(self.build_lib))
        for target, sources in self.products().items():
            dest = base / target
            dest.parent.mkdir(parents=True, exist_ok=True)
            self.make_file(sources, str(dest), self.make, (target, dest), exec_msg=f"making {dest}")

    def get_source_files(self) -> list[str]:
        return sorted({source for sources in self.products().values() for source in sources})

    def get_outputs(self) -> list[str]:
        return [str(Path(str(self.build_lib)) / target) for target in self.products()]

    def get_output_mapping(self) -> dict[str, str]:
        return {str(Path(str(self.build_lib)) / target): target for target in self.products()}


class build_bpf(GeneratedFiles):
    """Compile bpf/*.bpf.c; PYPROF_BPF_OBJECT_DIR names a folder with ready objects where clang is missing."""

    description = "compile the BPF programs into pyprof/bpf/*.bpf.o"

    def products(self) -> dict[str, list[str]]:
        headers = [str(header) for header in HEADERS]
        return {
            f"pyprof/bpf/{source.stem}.o": [str(source), *headers, "setup.py"]
            for source in sorted(Path("bpf").glob("*.bpf.c"))
        }

    def make(self, target: str, dest: Path) -> None:
        prebuilt = os.environ.get("PYPROF_BPF_OBJECT_DIR")
        if prebuilt:
            shutil.copyfile(Path(prebuilt) / dest.name, dest)
            return
        clang = os.environ.get("CLANG") or shutil.which("clang-19") or "clang"
        if shutil.which(clang) is None:
            raise ExecError(f"{clang} not found: install clang, or set CLANG or PYPROF_BPF_OBJECT_DIR")
        source = Path("bpf") / f"{Path(target).stem}.c"
        multiarch = f"/usr/include/{platform.machine()}-linux-gnu"
        subprocess.check_call(
            [
                clang, "--target=bpf", "-mcpu=v3", "-g", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror",
                f"-D__TARGET_ARCH_{BPF_ARCH[platform.machine()]}", f"-ffile-prefix-map={ROOT}=.",
                "-Ibpf", "-Icsrc", f"-I{multiarch}", "-c", str(source), "-o", str(dest),
            ]
        )  # fmt: skip
        strip = os.environ.get("LLVM_STRIP") or shutil.which("llvm-strip-19") or shutil.which("llvm-strip")
        if strip:  # drops DWARF, keeps BTF
            subprocess.check_call([strip, "-g", str(dest)])


class build_web(GeneratedFiles):
    """Bundle web/ (npm packages pinned by its lock file) into the template of the flame graph page."""

    description = "bundle the flame graph page into pyprof/export/flamegraph_template.html"

    def products(self) -> dict[str, list[str]]:
        made = {"node_modules", "dist"}
        sources = [path for path in Path("web").rglob("*") if path.is_file() and not made & set(path.parts)]
        return {"pyprof/export/flamegraph_template.html": sorted(map(str, sources))}

    def make(self, target: str, dest: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise ExecError("npm not found: install nodejs and npm (they bundle the flame graph page)")
        subprocess.check_call([npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"], cwd="web")
        subprocess.check_call([npm, "run", "--silent", "build"], cwd="web")
        shutil.copyfile("web/dist/flamegraph_template.html", dest)


class build_all(build):
    sub_commands: ClassVar = [("build_bpf", None), ("build_web", None), *build.sub_commands]


def extension(path: Path) -> Extension:
    return Extension(
        ".".join(path.with_suffix("").parts),
        [str(path)],
        include_dirs=["csrc", "bpf"],
        depends=[*map(str, HEADERS), "setup.py"],
        define_macros=[("PYPROF_DEBUG", "1")] if DEBUG else [],
        # Cython's own output is not clean under -Wextra; what we write in C is, and is compiled so.
        # No debug information in what is shipped: it names folders of the machine that built it.
        extra_compile_args=[
            *(["-O1", "-g"] if DEBUG else ["-O3", "-g0"]),
            "-Wall",
            "-Werror",
            "-Wno-unused-function",
        ],
    )


setup(
    ext_modules=cythonize(  # type: ignore[no-untyped-call]
        [extension(path) for path in sorted(Path("pyprof/_native").glob("*.pyx"))],
        build_dir=CYTHON_DIR,
        compiler_directives={
            "language_level": "3",
            "embedsignature": True,
            "boundscheck": DEBUG,
            "wraparound": False,
            "initializedcheck": DEBUG,
            "cdivision": True,
        },
    ),
    cffi_modules=["csrc/ffi_build.py:ffibuilder"],
    cmdclass={"build": build_all, "build_bpf": build_bpf, "build_web": build_web},
)
