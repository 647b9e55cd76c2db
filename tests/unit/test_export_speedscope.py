# SPDX-License-Identifier: Apache-2.0
"""speedscope files against the format's own schema, and their content worked out by hand."""

import io
import json
import time
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

import pyprof
from pyprof.export import speedscope
from pyprof.profile.model import By, Executable, Frame, FrameKind, Process, Profile, Thread
from tests.support.profiles import make_profile, many_stacks, one_stack, two_processes

SCHEMA = json.loads((Path(__file__).parent.parent / "support" / "speedscope_schema.json").read_text())


def written(profile: Profile) -> Any:
    out = io.BytesIO()
    speedscope.write(profile, out)
    return json.loads(out.getvalue().decode())


def checked(profile: Profile) -> Any:
    """The document, after checks that hold for any."""
    document = written(profile)
    jsonschema.validate(document, SCHEMA)
    frames = document["shared"]["frames"]
    for part in document["profiles"]:
        assert len(part["samples"]) == len(part["weights"])
        assert part["endValue"] == pytest.approx(sum(part["weights"]))
        for stack in part["samples"]:
            assert all(0 <= frame < len(frames) for frame in stack)
    return document


def stacks(document: Any, part: Any) -> dict[tuple[str, ...], float]:
    names = [frame["name"] for frame in document["shared"]["frames"]]
    return {
        tuple(names[frame] for frame in stack): weight
        for stack, weight in zip(part["samples"], part["weights"], strict=True)
    }


def test_head_names_schema_exporter_and_time() -> None:
    document = checked(two_processes())
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert document["exporter"] == f"pyprof {pyprof.__version__}"
    assert document["name"] == "cpu-clock at 20 Hz, 2023-11-14T22:13:20+00:00"
    assert document["activeProfileIndex"] == 0


def test_frames_have_the_file_they_lie_in() -> None:
    assert checked(two_processes())["shared"]["frames"] == [
        {"name": "main", "file": "/usr/bin/app"},
        {"name": "ns::spin(int)", "file": "/usr/bin/app"},
        {"name": "libc.so.6+0xf7a10", "file": "/lib/libc.so.6"},
        {"name": "vfs_read", "file": "[kernel]"},
        {"name": "[unknown]"},
    ]


def test_profiles_by_process_are_root_first_in_seconds() -> None:
    document = checked(two_processes())
    app, shell = document["profiles"]
    assert (app["name"], app["type"], app["unit"], app["startValue"]) == (
        "app (100)",
        "sampled",
        "seconds",
        0,
    )
    assert stacks(document, app) == {
        ("main", "ns::spin(int)"): pytest.approx(5 / 20),
        ("main", "libc.so.6+0xf7a10", "vfs_read"): pytest.approx(1 / 20),
    }
    assert shell["name"] == "sh (200)"
    assert stacks(document, shell) == {("[unknown]",): pytest.approx(4 / 20)}


def test_profiles_by_thread_name_process_and_thread() -> None:
    document = checked(two_processes(By.THREAD))
    weights = {part["name"]: part["endValue"] for part in document["profiles"]}
    assert weights == {
        "sh (200) / sh (200)": pytest.approx(4 / 20),
        "app (100) / main (100)": pytest.approx(3 / 20),
        "app (100) / io (101)": pytest.approx(3 / 20),
    }
    assert document["profiles"][0]["name"] == "sh (200) / sh (200)"


def test_profiles_by_none_are_one() -> None:
    document = checked(two_processes(By.NONE))
    assert [part["name"] for part in document["profiles"]] == ["all processes"]
    assert document["profiles"][0]["endValue"] == pytest.approx(10 / 20)


@pytest.mark.parametrize("by", list(By))
def test_weights_sum_to_the_samples_reported(by: By) -> None:
    profile = two_processes(by)
    weight = sum(sum(part["weights"]) for part in checked(profile)["profiles"])
    assert round(weight * profile.hz, 6) == profile.accounting.reported


def test_two_processes_of_one_name_stay_apart() -> None:
    profile = make_profile(
        [(0, 0, (0,), 2), (1, 0, (0,), 3)],
        processes=[Process(7, "worker", 0), Process(8, "worker", 0)],
        threads=[Thread(0, "")],
        frames=[Frame(FrameKind.KERNEL, -1, 1 << 63, "idle", "idle")],
    )
    assert [part["name"] for part in checked(profile)["profiles"]] == ["worker (8)", "worker (7)"]


def test_addresses_of_one_function_are_one_frame() -> None:
    profile = make_profile(
        [(0, 0, (0,), 1), (0, 0, (1,), 1)],
        processes=[Process(1, "p", 0)],
        threads=[Thread(0, "")],
        executables=[Executable("/a")],
        frames=[Frame(FrameKind.NATIVE, 0, 0x10, "f", "f"), Frame(FrameKind.NATIVE, 0, 0x20, "f", "f")],
    )
    assert checked(profile)["shared"]["frames"] == [{"name": "f", "file": "/a"}]


def test_empty_profile_is_one_without_samples() -> None:
    document = checked(make_profile())
    assert document["shared"]["frames"] == []
    assert [(part["name"], part["samples"], part["endValue"]) for part in document["profiles"]] == [
        ("no samples", [], 0)
    ]


def test_odd_names_are_escaped_and_stay_apart() -> None:
    document = checked(one_stack("p\udcff", ["a\udcffb", "a\udcfeb", "a\ud800", 'é;\n"\\'], thread="t\udc80"))
    assert document["profiles"][0]["name"] == "p\\xff (1) / t\\x80 (1)"
    assert [frame["name"] for frame in document["shared"]["frames"]] == [
        "a\\xffb",
        "a\\xfeb",
        "a\\xed\\xa0\\x80",
        'é;\n"\\',
    ]


def test_100_000_stacks_take_bounded_time(capsys: pytest.CaptureFixture[str]) -> None:
    profile = many_stacks(100_000)
    out = io.BytesIO()
    start = time.perf_counter()
    speedscope.write(profile, out)
    seconds = time.perf_counter() - start
    with capsys.disabled():
        print(f"\nspeedscope: 100,000 stacks of 30 frames in {seconds:.2f} s, {len(out.getvalue())} bytes")
    document = json.loads(out.getvalue())
    assert sum(len(part["samples"]) for part in document["profiles"]) == 100_000
    assert seconds < 30
