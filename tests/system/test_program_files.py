# SPDX-License-Identifier: Apache-2.0
"""Programs whose files are not, or not any more, what stands at their paths: names and build IDs are those
of what runs."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pyprof.profile.model import Profile
from tests.support.compile import run
from tests.support.profiling import build_target
from tests.support.scenes import follow, profile_of, recording, twins

pytestmark = pytest.mark.bpf

MS = "600"


def build_id(path: Path) -> str:
    """As readelf prints it."""
    for line in run("readelf", "-n", str(path)).splitlines():
        if "Build ID:" in line:
            return line.split()[-1]
    raise AssertionError(f"{path} has no build ID")


class Place(NamedTuple):
    """Where samples of a function lie."""

    path: str
    build_id: str


def places(profile: Profile, process: str) -> dict[str, set[Place]]:
    """Function -> files that its samples were found in, of processes with a name."""
    found: dict[str, set[Place]] = {}
    for one in profile.samples():
        if profile.processes[one.process].name != process:
            continue
        for i in profile.stack(one.stack):
            frame = profile.frames[i]
            if frame.executable >= 0:
                file = profile.executables[frame.executable]
                found.setdefault(frame.name, set()).add(Place(file.path, file.build_id))
    return found


def remove(path: Path, other: Path) -> None:
    path.unlink()


def replace(path: Path, other: Path) -> None:
    shutil.copy(other, path.with_name("new"))
    path.with_name("new").rename(path)


@pytest.mark.parametrize("change", [remove, replace])
@pytest.mark.parametrize("when", ["before the recording", "while it is recorded"])
def test_program_whose_file_was_changed_while_it_runs_has_its_own_names(
    tmp_path: Path, change: Callable[[Path, Path], None], when: str
) -> None:
    alpha, omega = twins(tmp_path, "identity.c", "-no-pie", "-Wl,--build-id")
    path = tmp_path / "program"
    shutil.copy(alpha, path)
    with subprocess.Popen([path, "0", MS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("alpha")
        if when == "before the recording":
            change(path, omega)
        with recording() as session:
            if when != "before the recording":
                change(path, omega)
            while process.poll() is None:
                session.poll(0.05)
            session.stop()
            found = places(session.take(), "program")
    assert {place.build_id for place in found["alpha_busy"]} == {build_id(alpha)}
    assert "omega_busy" not in found
    assert build_id(omega) not in {place.build_id for files in found.values() for place in files}


def test_new_program_at_the_path_of_one_that_still_runs_is_another_one(tmp_path: Path) -> None:
    alpha, omega = twins(tmp_path, "identity.c", "-no-pie", "-Wl,--build-id")
    path = tmp_path / "program"
    shutil.copy(alpha, path)
    with recording() as session:
        with subprocess.Popen([path, "0", MS], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("alpha")
            replace(path, omega)
            follow(session, path, "0", MS)
            while process.poll() is None:
                session.poll(0.05)
        session.stop()
        found = places(session.take(), "program")
    assert {place.build_id for place in found["alpha_busy"]} == {build_id(alpha)}
    assert {place.build_id for place in found["omega_busy"]} == {build_id(omega)}


LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
LIBRARY = LIBRARIES / "libm.so.6"


def make_root(folder: Path) -> Path:
    """A file system of one program, whose libm.so.6 is another one than the host's; the library."""
    root = folder / "root"
    libraries = root / LIBRARIES.relative_to("/")
    libraries.mkdir(parents=True)
    (root / "lib64").mkdir()
    shutil.copy(LIBRARIES / "libc.so.6", libraries)
    shutil.copy("/lib64/ld-linux-x86-64.so.2", root / "lib64")
    (library,) = twins(
        folder, "plugin.c", "-shared", "-fPIC", "-nostdlib", "-Wl,--build-id,-soname,libm.so.6",
        names=["rooted"],
    )  # fmt: skip
    library = library.rename(libraries / LIBRARY.name)
    build_target(root, "rooted.c", str(library), "-Wl,-z,now")
    return library


@pytest.mark.skipif(not LIBRARY.exists(), reason=f"the host has no {LIBRARY}")
@pytest.mark.parametrize("when", ["before the recording", "while it is recorded"])
def test_library_of_another_root_is_not_the_hosts_at_the_same_path(tmp_path: Path, when: str) -> None:
    library = make_root(tmp_path)
    command = ["unshare", "-m", "chroot", str(tmp_path / "root"), "/rooted", MS]
    profile = profile_of(command, runs_before=when == "before the recording", says="ready")
    found = places(profile, "rooted")
    wanted = build_id(library)
    assert wanted != build_id(LIBRARY)
    assert found["rooted_busy"] == {Place(str(LIBRARY), wanted)}
    assert build_id(LIBRARY) not in {place.build_id for files in found.values() for place in files}


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Path]:
    """An overlay file system, as containers have: what it shows lies in another one, with other device
    numbers."""
    lower, merged = tmp_path / "lower", tmp_path / "merged"
    layers = tmp_path / "layers"
    for folder in (lower, merged, layers):
        folder.mkdir()
    # The upper layer must not lie in an overlay itself.
    run("mount", "-t", "tmpfs", "layers", str(layers))
    try:
        (layers / "upper").mkdir()
        (layers / "work").mkdir()
        options = f"lowerdir={lower},upperdir={layers}/upper,workdir={layers}/work"
        mounted = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, merged], check=False)
        if mounted.returncode != 0:
            pytest.skip("this kernel mounts no overlay file system")
        try:
            yield merged
        finally:
            run("umount", "--lazy", str(merged))
    finally:
        run("umount", "--lazy", str(layers))


@pytest.mark.parametrize("flags", ["-Wl,--build-id", "-Wl,--build-id=none"])
@pytest.mark.parametrize("when", ["before the recording", "while it is recorded"])
def test_program_in_an_overlay_has_its_names(tmp_path: Path, overlay: Path, flags: str, when: str) -> None:
    alpha, _ = twins(tmp_path, "identity.c", "-no-pie", flags)
    for layer in (tmp_path / "lower", overlay):  # one file of each layer
        path = layer / f"program-{layer.name}"
        shutil.copy(alpha, path)
        program = overlay / path.name
        command = [str(program), "0", MS]
        profile = profile_of(command, runs_before=when == "before the recording", says="alpha.*")
        found = places(profile, program.name[:15])
        expected = build_id(alpha) if flags.endswith("build-id") else ""
        assert found["alpha_busy"] == {Place(str(program), expected)}
