# SPDX-License-Identifier: Apache-2.0
"""The BPF object loads, has the maps that the ABI says, and leaves nothing behind."""

import re
from pathlib import Path

import pytest
from pyprof._native._libbpf import ffi, lib

from pyprof.bpf.library import (
    CHUNK_BYTES,
    PAGE_VALUE_SIZE,
    RULE_TABLE_BYTES,
    BpfObject,
    end_texts,
    probe_loop,
)
from pyprof.errors import HostError
from tests.support.bpf import held, left_after, shown
from tests.support.rings import sample

pytestmark = pytest.mark.bpf

RING = 256 * 1024
ROOT = Path(__file__).parents[2]
ABI = ROOT / "csrc" / "pyprof_abi.h"
SOURCES = sorted((ROOT / "bpf").glob("*.[ch]"))


@pytest.mark.parametrize("plain_loop", [False, True])
def test_the_sampler_loads_with_and_without_bpf_loop(plain_loop: bool) -> None:
    before = held("prog")
    with BpfObject(RING, RING // 4, 64, plain_loop):
        (number,) = held("prog") - before
        row = shown("prog")[number]
    assert row["type"] == "perf_event"
    assert row["name"] == "sample"


def test_the_maps_have_the_sizes_of_the_abi() -> None:
    before = held("map")
    with BpfObject(RING, RING // 4, 1000):
        rows = shown("map")
        maps = {rows[number]["name"]: rows[number] for number in held("map") - before}
    mappings = maps["exec_mappings"]
    assert mappings["type"] == "lpm_trie"
    assert mappings["bytes_key"] == ffi.sizeof("struct pyprof_mapping_key") == 16
    assert mappings["bytes_value"] == 32  # _Static_assert in the ABI header
    assert mappings["max_entries"] == 1000
    assert maps["samples"]["max_entries"] == RING
    assert maps["counters"]["max_entries"] == lib.PYPROF_COUNTER_COUNT
    # A sample's head and its frames, and the state of the walk; 32 KiB is what a per-CPU value may have.
    frames = 16 * lib.PYPROF_MAX_USER_FRAMES + 8 * lib.PYPROF_MAX_KERNEL_FRAMES
    assert len(sample(1, 1)) + frames <= maps["scratches"]["bytes_value"] <= 32768
    # The head of a slice and seven pages of stack.
    assert maps["slices"]["bytes_value"] == 184 + 7 * 4096


def test_the_maps_of_unwind_rows_have_the_sizes_of_the_abi() -> None:
    before = held("map")
    with BpfObject(RING, RING // 4, 1000):
        rows = shown("map")
        maps = {rows[number]["name"]: rows[number] for number in held("map") - before}
    pages, executables, rules, chunks = (maps[name] for name in ("pages", "executables", "rules", "chunks"))
    assert (pages["type"], pages["bytes_key"], pages["bytes_value"]) == ("hash", 8, PAGE_VALUE_SIZE)
    assert pages["max_entries"] == 65536
    assert (executables["type"], executables["bytes_key"], executables["bytes_value"]) == ("hash", 4, 4)
    assert (rules["type"], rules["bytes_value"], rules["max_entries"]) == ("array", 16, lib.PYPROF_MAX_RULES)
    assert (chunks["type"], chunks["bytes_value"], chunks["max_entries"]) == ("array_of_maps", 4, 1024)
    assert rules["bytes_value"] * rules["max_entries"] == RULE_TABLE_BYTES
    assert CHUNK_BYTES == lib.PYPROF_CHUNK_BYTES == 1 << 20


def test_closing_leaves_nothing_in_the_kernel() -> None:
    maps, programs = held("map"), held("prog")
    bpf = BpfObject(RING, RING // 4, 64)
    new_maps, new_programs = held("map") - maps, held("prog") - programs
    rows = shown("map")
    names = {rows[number]["name"] for number in new_maps}
    text = "".join(source.read_text() for source in SOURCES)
    declared = set(re.findall(r"^} (\w+) SEC\(\"\.maps\"\);$", text, re.MULTILINE))
    assert len(declared) == 9
    assert declared <= names
    assert all("." in name for name in names - declared), "sections of constants and variables"
    assert len(new_programs) == 1
    bpf.close()
    bpf.close()
    assert (held("map"), held("prog")) == (maps, programs)
    assert left_after("prog", new_programs) == set()
    assert left_after("map", new_maps) == set()


def test_counters_start_at_0() -> None:
    with BpfObject(RING, RING // 4, 64) as bpf:
        assert set(bpf.counters().values()) == {0}
        assert {"taken", "idle", "ring buffer full"} <= set(bpf.counters())


def test_a_ring_of_no_size_is_one_error_and_leaves_nothing() -> None:
    maps, programs = held("map"), held("prog")
    with pytest.raises(HostError):
        BpfObject(0, 0, 64)
    assert (held("map"), held("prog")) == (maps, programs)


def test_reasons_are_those_of_the_header() -> None:
    text = ABI.read_text()
    listed = re.findall(
        r'X\((\w+), "([^"]+)"\)', text.partition("#define PYPROF_ENDS")[2].partition("enum")[0]
    )
    assert end_texts() == [reason for _, reason in listed]
    assert len(listed) == lib.PYPROF_END_COUNT


def test_bpf_loop_is_probed_and_not_guessed() -> None:
    # Linux 5.17 brought it; every kernel's own list of helpers says whether it is there.
    names = Path("/proc/kallsyms").read_text()
    assert probe_loop() == bool(re.search(r" bpf_loop$", names, re.MULTILINE))
