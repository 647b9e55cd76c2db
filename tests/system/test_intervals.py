# SPDX-License-Identifier: Apache-2.0
"""Report after report from one session: nothing counted twice or left out, times true, processes known when
gone."""

import os
import subprocess
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from pyprof.export.otlp.encoder import Shape, encode
from pyprof.profile.model import Profile
from pyprof.session import Options, Session
from tests.support.otlp_validator import SeenSample, read
from tests.support.profiling import SCALE, build_target, running

pytestmark = pytest.mark.bpf

HZ = 499
SAMPLES = 150


def poll_for_samples(session: Session, count: int) -> None:
    """Polls until so many samples were reported in all."""
    deadline = time.monotonic() + 20 * SCALE
    while session.samples()["reported"] < count:
        assert time.monotonic() < deadline
        session.poll(0.05)


def poll_until_ended(session: Session, process: subprocess.Popen[bytes]) -> None:
    done = os.pidfd_open(process.pid)
    ended: list[bool] = []
    session.watch(done, lambda: ended.append(True))
    while not ended:
        session.poll()
    session.unwatch(done)
    os.close(done)
    assert process.wait() == 0


def encoded(profile: Profile, shape: Shape) -> list[SeenSample]:
    return [sample for batch in encode(profile, shape).batches for sample in read(batch.payload).samples]


def test_reports_add_up_and_their_times_are_true(tmp_path: Path) -> None:
    target = build_target(tmp_path, "chain.c")
    profiles: list[Profile] = []
    with running(target), Session(Options(hz=HZ, stamps=True)) as session:
        session.prepare()
        begun = time.time_ns()
        session.start()
        for number in range(1, 4):
            poll_for_samples(session, SAMPLES * number)
            profiles.append(session.take())
        session.stop()
        profiles.append(session.take())
        ended = time.time_ns()
        total = session.accounting()
    assert total.taken == total.reported
    assert sum(sum(profile.sample_count) for profile in profiles) == total.reported
    assert sum(profile.accounting.taken for profile in profiles) == total.taken
    assert sum(profile.accounting.reported for profile in profiles) == total.reported
    for profile in profiles:
        assert begun <= profile.started_at
        assert profile.started_at + profile.duration <= ended
        assert all(
            profile.started_at <= moment < profile.started_at + profile.duration for moment in profile.times
        )
        assert Counter(profile.time_samples) == Counter(
            {row: count for row, count in enumerate(profile.sample_count) if count}
        )
        for shape in Shape:
            assert sum(sample.count for sample in encoded(profile, shape)) == sum(profile.sample_count)
    # One after the other: reports cover the time without a gap.
    for one, other in pairwise(profiles):
        assert abs(one.started_at + one.duration - other.started_at) < 1_000_000_000


def test_programs_are_known_in_each_report_also_of_processes_that_are_gone(tmp_path: Path) -> None:
    brief = build_target(tmp_path, "brief.c")
    found: list[SeenSample] = []
    with Session(Options(hz=HZ, stamps=True, facts=True)) as session:
        session.prepare()
        session.start()
        for _ in range(2):
            with subprocess.Popen([brief, "10", "2"], stdout=subprocess.DEVNULL) as spawner:
                poll_until_ended(session, spawner)
            found += encoded(session.take(), Shape.TIMESTAMPS)
        session.stop()
    ours = [sample for sample in found if sample.resource.get("process.executable.path") == str(brief)]
    assert sum(sample.count for sample in ours) > HZ * 20 * 0.03 / 2
    assert {sample.resource["process.executable.name"] for sample in ours} == {"brief"}
    notes = subprocess.run(["readelf", "-n", brief], check=True, capture_output=True, text=True).stdout
    expected = notes.partition("Build ID: ")[2].split()[0]
    for sample in ours:
        for frame in sample.frames:
            if frame.filename == "brief":
                assert dict(frame.build_ids)["process.executable.build_id.gnu"] == expected
                assert len(dict(frame.build_ids)["process.executable.build_id.htlhash"]) == 32
    names = {frame.name for sample in ours for frame in sample.frames if frame.filename == "brief"}
    assert {"leaf", "middle", "outer"} <= names


def test_every_report_names_the_same_file_the_same_way_however_small_the_caches(tmp_path: Path) -> None:
    from pyprof.symbols.names import Limits

    target = build_target(tmp_path, "chain.c")
    with running(target), Session(Options(hz=HZ, names=Limits(names=8, tables=1, idle=0.001))) as session:
        session.prepare()
        session.start()
        for number in range(1, 5):
            poll_for_samples(session, SAMPLES * number)
            samples = encoded(session.take(), Shape.VALUES)
            ours = [sample for sample in samples if sample.resource.get("process.executable.name") == "chain"]
            assert ours
            assert all(frame.name for sample in ours for frame in sample.frames if frame.filename == "chain")
        session.stop()
