# SPDX-License-Identifier: Apache-2.0
"""Processes, threads and files whose names hold what parsers and encoders stumble over."""

import shutil
from pathlib import Path

import pytest

from pyprof.export.formats import FORMATS, write_file
from pyprof.export.otlp.encoder import encode
from pyprof.profile.model import By
from tests.support.otlp_validator import read
from tests.support.profiling import build_target
from tests.support.scenes import follow, profile_of, recording

pytestmark = pytest.mark.bpf

MS = "600"

# What each is to look like is worked out by hand: valid UTF-8 as it is, every other byte by its number.
NAMES = {
    b"a) R 1 (\xff\n9": "a) R 1 (\\xff\n9",
    b") S 0 0 0 (": ") S 0 0 0 (",
    b"a;b c\t\x01": "a;b c\t\x01",
    "grün".encode(): "grün",
    "grün".encode()[:3]: "gr\\xc3",
}


@pytest.mark.parametrize("when", ["before the recording", "while it is recorded"])
@pytest.mark.parametrize("name", NAMES)
def test_process_and_thread_have_the_name_that_they_gave_themselves(
    tmp_path: Path, name: bytes, when: str
) -> None:
    target = build_target(tmp_path, "hostile.c", "-pthread")
    command = [str(target), name.hex(), MS]
    profile = profile_of(command, runs_before=when == "before the recording", says="ready", by=By.THREAD)
    ours = [sample for sample in profile.samples() if profile.processes[sample.process].path == str(target)]
    busy = [
        sample for sample in ours if "busy" in {profile.frames[i].name for i in profile.stack(sample.stack)}
    ]
    assert {profile.processes[sample.process].name for sample in busy} == {NAMES[name]}
    assert {profile.threads[sample.thread].name for sample in busy} == {NAMES[name]}
    assert len({profile.threads[sample.thread].tid for sample in busy}) == 2
    for form in FORMATS:
        write_file(profile, str(tmp_path / "out"), form)
    told = [sample for batch in encode(profile).batches for sample in read(batch.payload).samples]
    assert sum(sample.count for sample in told) == sum(profile.sample_count)
    assert NAMES[name] in {sample.attributes.get("thread.name") for sample in told}


def test_program_whose_path_is_no_text_is_named(tmp_path: Path) -> None:
    target = build_target(tmp_path, "hostile.c", "-pthread")
    folder = bytes(tmp_path) + b"/a\xff\nb (deleted"
    Path(folder.decode(errors="surrogateescape")).mkdir()
    path = Path((folder + b"/p\xfe").decode(errors="surrogateescape"))
    shutil.copy(target, path)
    with recording() as session:
        follow(session, path, b"name".hex(), MS)
        session.stop()
        profile = session.take()
    expected = str(tmp_path) + "/a\\xff\nb (deleted/p\\xfe"
    assert expected in {process.path for process in profile.processes}
    told = [sample for batch in encode(profile).batches for sample in read(batch.payload).samples]
    assert expected in {sample.resource.get("process.executable.path") for sample in told}
    assert "busy" in {frame.name for sample in told for frame in sample.frames if frame.filename == "p\\xfe"}
