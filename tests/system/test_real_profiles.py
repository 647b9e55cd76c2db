# SPDX-License-Identifier: Apache-2.0
"""A real recording in every format, read by the tools that people use."""

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest

from tests.support import browser, pprof_decoder
from tests.support.profiling import build_target, record, running

pytestmark = pytest.mark.bpf

CHAIN = ["main", "a", "b", "c"]
SCHEMA = json.loads((Path(__file__).parent.parent / "support" / "speedscope_schema.json").read_text())


@pytest.fixture(name="target", scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_target(tmp_path_factory.mktemp("target"), "chain.c", "-Wl,--build-id")


def build_id(path: Path) -> str:
    notes = subprocess.run(["readelf", "-n", path], check=True, capture_output=True, text=True).stdout
    found = re.search(r"Build ID: ([0-9a-f]+)", notes)
    assert found
    return found[1]


def test_pprof_of_a_recording_opens_in_go_tool(target: Path, tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed")
    with running(target) as process:
        got = record(tmp_path / "out.pb.gz", "-F", "499", "-d", "2", "-p", str(process.pid))
    printed = subprocess.run(
        [go, "tool", "pprof", "-top", "-sample_index=samples", got.output],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    line = next(line for line in printed.stdout.splitlines() if line.endswith(" c"))
    flat = int(line.split()[0])
    assert flat / got.report["samples"]["reported"] > 0.95
    assert f"Total samples = {got.report['samples']['reported']}" in printed.stdout
    assert "main" in printed.stdout


def test_pprof_of_a_recording_has_mappings_with_build_ids(target: Path, tmp_path: Path) -> None:
    with running(target) as process:
        got = record(tmp_path / "out.pb.gz", "-F", "499", "-d", "1", "-p", str(process.pid))
        nm = subprocess.run(["nm", "-S", target], check=True, capture_output=True, text=True).stdout
    decoded = pprof_decoder.decode(got.output.read_bytes())
    mapping = next(item for item in decoded.mappings if item.filename == str(target))
    assert mapping.build_id == build_id(target)
    start, size = (
        int(part, 16) for part in next(line for line in nm.splitlines() if line.endswith(" T c")).split()[:2]
    )
    leaf = Counter[bool]()
    for sample in decoded.samples:
        location = sample.locations[0]
        if [function.name for function, _ in location.lines] == ["c"]:
            leaf[start <= location.address < start + size] += sample.values[0]
    assert leaf[True] > 0
    assert leaf[False] == 0
    assert sum(sample.values[0] for sample in decoded.samples) == got.report["samples"]["reported"]


def test_speedscope_of_a_recording_is_valid(target: Path, tmp_path: Path) -> None:
    with running(target) as process:
        got = record(tmp_path / "out.json", "-F", "499", "-d", "1", "-p", str(process.pid))
    document = json.loads(got.output.read_text())
    jsonschema.validate(document, SCHEMA)
    names = [frame["name"] for frame in document["shared"]["frames"]]
    stacks = [[names[frame] for frame in stack] for stack in document["profiles"][0]["samples"]]
    assert any(stack[-4:] == CHAIN for stack in stacks)


def test_page_of_a_recording_draws_searches_and_stays_offline(target: Path, tmp_path: Path) -> None:
    if browser.missing():
        pytest.skip(f"not installed: {browser.missing()}")
    from tests.support.flamegraph_page import Page

    with running(target) as process:
        got = record(tmp_path / "out.html", "-F", "499", "-d", "1", "-p", str(process.pid))
    with browser.browser(tmp_path / "user") as driver:
        driver.get(got.output.as_uri())
        page = Page(driver, tmp_path)
        assert {"chain", *CHAIN} <= page.labels()
        share = page.search("c")
        assert "%" in share
        page.click("a")
        assert page.path_names()[-1] == "a"
        documents = {
            event["params"]["request"]["url"]
            for event in browser.network_events(driver)
            if event["method"] == "Network.requestWillBeSent"
        }
    assert documents <= {got.output.as_uri()}
