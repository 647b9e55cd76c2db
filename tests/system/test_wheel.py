# SPDX-License-Identifier: Apache-2.0
"""The wheel, as a stranger's machine gets it: what is in it, and that it works with nothing else there.

PYPROF_WHEEL names a ready wheel (its sdist beside it); without, both are built.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.pprof_decoder import decode
from tests.support.profiling import ROOT, running

pytestmark = pytest.mark.timeout(600)

RECORDED = ("record", "-d", "1", "-F", "199")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ready = os.environ.get("PYPROF_WHEEL")
    if ready:
        return Path(ready).resolve()
    folder = tmp_path_factory.mktemp("wheel")
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([ROOT / "packaging/build-wheel", folder], check=True, env=environment)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


class Installed(NamedTuple):
    """A virtual environment with the wheel and its dependencies, and nothing to build with in reach."""

    venv: Path
    elsewhere: Path

    def run(self, *command: str | Path, name: str = "pyprof") -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment from another folder, with a PATH of no use."""
        nothing = self.elsewhere / "empty"
        nothing.mkdir(exist_ok=True)
        return subprocess.run(
            [self.venv / "bin" / name, *command],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.elsewhere,
            env={"PATH": str(nothing), "HOME": str(nothing), "LANG": "C.UTF-8"},
        )

    def record(self, output: str) -> Path:
        """Records while something runs: an idle host gives no samples."""
        busy = [sys.executable, "-c", "print('ready', flush=True)\nwhile True: pass"]
        with running(*busy):
            done = self.run(*RECORDED, "-o", output)
        assert done.returncode == 0, done.stderr
        return self.elsewhere / output


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    venv = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin/pip", "install", "-q", "--disable-pip-version-check", wheel], check=True)
    return Installed(venv, tmp_path_factory.mktemp("elsewhere"))


def test_wheel_is_a_manylinux_wheel(wheel: Path) -> None:
    assert re.fullmatch(
        r"pyprof_ebpf-[0-9.]+-cp3\d+-cp3\d+-manylinux_2_\d+_(x86_64|aarch64)\.whl", wheel.name
    )


def test_wheel_has_every_module_with_its_types(contents: dict[str, bytes]) -> None:
    for path in (ROOT / "pyprof").rglob("*"):
        name = str(path.relative_to(ROOT))
        if path.suffix in (".py", ".pyi", ".typed"):
            assert contents[name] == path.read_bytes()
        if path.suffix == ".pyx":
            assert any(
                re.fullmatch(rf"{name.removesuffix('.pyx')}\.cpython-.*\.so", entry) for entry in contents
            )


def test_wheel_has_the_sampler_the_page_and_its_libraries(contents: dict[str, bytes]) -> None:
    assert contents["pyprof/bpf/sampler.bpf.o"].startswith(b"\x7fELF")
    assert contents["pyprof/export/flamegraph_template.html"].startswith(b"<!")
    grafted = {name for name in contents if name.startswith("pyprof_ebpf.libs/")}
    assert {re.sub(r".*/(lib\w+)-.*", r"\1", name) for name in grafted} == {"libbpf", "libelf"}


def test_wheel_has_the_licences_and_the_notice(contents: dict[str, bytes]) -> None:
    names = {name.split("/licenses/")[1] for name in contents if ".dist-info/licenses/" in name}
    assert names == {"NOTICE", *(f"LICENSES/{path.name}" for path in (ROOT / "LICENSES").iterdir())}


def test_wheel_has_no_sources_of_native_code_and_no_tests(contents: dict[str, bytes]) -> None:
    assert [name for name in contents if name.endswith((".pyx", ".pxd", ".c", ".h"))] == []
    top = {name.split("/")[0] for name in contents}
    assert {re.sub(r"-.*", "", name) for name in top} == {"pyprof", "pyprof_ebpf.libs", "pyprof_ebpf"}


def test_wheel_names_no_folder_of_the_machine_that_built_it(contents: dict[str, bytes]) -> None:
    """Debug information, run paths and assertions are where such names come from."""
    ours = {str(ROOT), str(Path.home()), "/root", "/home", "/tmp", sys.prefix, sys.base_prefix} - {
        "/",
        "/usr",
    }
    places = re.compile(b"|".join(re.escape(folder.encode()) + rb"/[\w.]" for folder in sorted(ours)))
    binaries = [name for name in contents if re.search(r"\.(so[.\d]*|o)$", name)]
    assert len(binaries) > 10
    found = {name: places.search(contents[name]) for name in binaries}
    assert {name: hit.group() for name, hit in found.items() if hit} == {}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout: what belongs in is not known")
def test_sdist_has_all_sources_and_nothing_that_was_built(wheel: Path) -> None:
    (sdist,) = wheel.parent.glob("pyprof_ebpf-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    built = re.compile(
        r"\.(so|o|py[cod]|whl)$|flamegraph_template\.html$|(^|/)(node_modules|dist|build|\.venv)(/|$)"
    )
    assert [name for name in names if built.search(name)] == []
    assert [
        name for name in names if name.endswith(".c") and not name.startswith(("bpf/", "csrc/", "tests/"))
    ] == []
    tracked = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    missing = {name for name in tracked.splitlines() if not name.startswith(".")} - names
    assert missing == set()


def test_installed_command_runs_where_nothing_else_is(installed: Installed, wheel: Path) -> None:
    done = installed.run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"pyprof {wheel.name.split('-')[1]}\n"


def test_installed_package_uses_the_libraries_of_the_wheel(installed: Installed) -> None:
    script = (
        "import pyprof._native._libbpf, pyprof\n"
        "print(pyprof.__file__)\n"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if '/lib' in line}, sep='\\n')"
    )
    done = installed.run("-I", "-c", script, name="python")
    assert done.returncode == 0, done.stderr
    package, *libraries = map(Path, done.stdout.splitlines())
    assert package.is_relative_to(installed.venv)
    loaded = [path for path in libraries if path.name.startswith(("libbpf", "libelf"))]
    assert {path.name.split("-")[0] for path in loaded} == {"libbpf", "libelf"}
    assert {path.parent.name for path in loaded} == {"pyprof_ebpf.libs"}


@pytest.mark.bpf
def test_installed_command_records_folded_stacks(installed: Installed) -> None:
    lines = installed.record("x.folded").read_text().splitlines()
    assert lines
    assert all(re.fullmatch(r".+ [1-9]\d*", line) for line in lines)


@pytest.mark.bpf
def test_installed_command_records_a_page(installed: Installed) -> None:
    page = installed.record("x.html").read_text()
    assert page.startswith("<!")
    assert "@PROFILE@" not in page


@pytest.mark.bpf
def test_installed_command_records_pprof(installed: Installed) -> None:
    assert decode(installed.record("x.pb.gz").read_bytes()).samples


@pytest.mark.bpf
def test_installed_doctor_finds_this_host_fit(installed: Installed) -> None:
    done = installed.run("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "This host can be profiled" in done.stdout


def test_installed_package_needs_no_tool_to_be_found(installed: Installed) -> None:
    assert shutil.which("clang", path=str(installed.elsewhere / "empty")) is None
    done = installed.run("record", "--help")
    assert done.returncode == 0, done.stderr
