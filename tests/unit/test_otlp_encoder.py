# SPDX-License-Identifier: Apache-2.0
"""OTLP requests: what they say, by the protocol's own rules, and how they are split."""

from array import array
from collections import Counter
from typing import Any

import pytest
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as service

import pyprof
from pyprof.export.otlp.encoder import MAX_MESSAGE, TOO_LARGE, Shape, encode
from pyprof.profile.model import By, Executable, Frame, FrameKind, Process, Profile, Thread
from tests.support.otlp_validator import Seen, SeenFrame, read
from tests.support.profiles import (
    APP,
    DURATION,
    HZ,
    JIT,
    LIBC,
    MAIN,
    READ,
    SPIN,
    STARTED_AT,
    VFS_READ,
    make_profile,
    two_processes,
)

HOST: dict[str, str | int] = {"host.name": "there", "os.type": "linux"}


def seen(profile: Profile, shape: Shape = Shape.VALUES, max_message: int = MAX_MESSAGE) -> Seen:
    encoded = encode(profile, shape, HOST, max_message, "cc" * 20)
    assert not encoded.lost
    found = Seen()
    for batch in encoded.batches:
        assert len(batch.payload) <= max_message
        assert batch.time == profile.started_at
        part = read(batch.payload)
        assert part.count == batch.samples
        found.samples += part.samples
        found.strings += part.strings
    return found


def with_times(profile: Profile) -> Profile:
    """Gives each sample a time: row i at i milliseconds after the start, then one microsecond later, and so
    on."""
    for row, count in enumerate(profile.sample_count):
        for again in range(count):
            profile.times.append(profile.started_at + row * 1_000_000 + again * 1000)
            profile.time_samples.append(row)
    return profile


def test_request_counts_every_sample_of_each_process() -> None:
    counts = Counter[object]()
    for sample in seen(two_processes()).samples:
        counts[sample.resource["process.pid"]] += sample.count
    profile = two_processes()
    expected = Counter[object]()
    for row in profile.samples():
        expected[profile.processes[row.process].pid] += row.count
    assert counts == expected


def test_frames_carry_names_kinds_files_and_build_ids() -> None:
    profile = make_profile(
        [(0, 0, [0, 1, 2, 3, 4], 1)],
        processes=[Process(7, "app", 5)],
        threads=[Thread(0, "")],
        executables=[APP, LIBC],
        frames=[VFS_READ, READ, SPIN, MAIN, JIT],
    )
    [sample] = seen(profile).samples
    app = (
        ("process.executable.build_id.gnu", "aa" * 20),
        ("process.executable.build_id.go", "go/1"),
        ("process.executable.build_id.htlhash", "11" * 16),
    )
    kernel = (("process.executable.build_id.gnu", "cc" * 20),)
    assert sample.frames == [
        SeenFrame("vfs_read", "vfs_read", VFS_READ.address, "kernel", "vmlinux", kernel),
        # No symbol: whoever has symbols for this build ID may find a name.
        SeenFrame(
            "", "", 0xF7A10, "native", "libc.so.6", (("process.executable.build_id.htlhash", "22" * 16),)
        ),
        SeenFrame("ns::spin(int)", "_ZN2ns4spinEi", 0x401200, "go", "app", app),
        SeenFrame("main", "main", 0x401136, "go", "app", app),
        SeenFrame("[unknown]", "", 0x7F0000001234, "unknown", "", ()),
    ]


def test_kernel_module_is_a_mapping_of_its_own() -> None:
    frame = Frame(FrameKind.KERNEL, -1, 0xFFFFFFFFC0001000, "xmit [net]", "xmit", "net")
    profile = make_profile(
        [(0, 0, [0], 1)], processes=[Process(7, "app", 5)], threads=[Thread(0, "")], frames=[frame]
    )
    [sample] = seen(profile).samples
    assert sample.frames == [SeenFrame("xmit [net]", "xmit", frame.address, "kernel", "net", ())]


def test_resource_tells_process_container_service_and_host() -> None:
    process = Process(7, "app-main", 5, "/usr/bin/app", "ab" * 32, "shop")
    profile = make_profile(
        [(0, 0, [0], 1)], processes=[process], threads=[Thread(0, "")], executables=[APP], frames=[MAIN]
    )
    [sample] = seen(profile).samples
    assert sample.resource == HOST | {
        "process.pid": 7,
        "process.executable.name": "app",
        "process.executable.path": "/usr/bin/app",
        "container.id": "ab" * 32,
        "service.name": "shop",
    }


def test_header_states_period_time_and_types() -> None:
    request = service.ExportProfilesServiceRequest()
    request.ParseFromString(encode(two_processes()).batches[0].payload)
    scope = request.resource_profiles[0].scope_profiles[0]
    message = scope.profiles[0]
    strings = request.dictionary.string_table
    assert (scope.scope.name, scope.scope.version) == ("pyprof", pyprof.__version__)
    assert strings[message.sample_type.type_strindex] == "samples"
    assert strings[message.sample_type.unit_strindex] == "count"
    assert strings[message.period_type.type_strindex] == "cpu"
    assert strings[message.period_type.unit_strindex] == "nanoseconds"
    assert message.period == 1_000_000_000 // HZ
    assert (message.time_unix_nano, message.duration_nano) == (STARTED_AT, DURATION)


def test_no_samples_make_no_request() -> None:
    assert encode(make_profile()).batches == []


def test_threads_are_attributes_of_their_samples() -> None:
    names = {
        (sample.attributes.get("thread.id"), sample.attributes.get("thread.name"))
        for sample in seen(two_processes(By.THREAD)).samples
    }
    profile = two_processes(By.THREAD)
    assert names == {
        (profile.threads[row.thread].tid, profile.threads[row.thread].name) for row in profile.samples()
    }


def test_timestamps_are_each_sample_s_own() -> None:
    profile = with_times(two_processes())
    found = sorted(time for sample in seen(profile, Shape.TIMESTAMPS).samples for time in sample.times)
    assert found == sorted(profile.times)
    assert all(not sample.times for sample in seen(profile, Shape.VALUES).samples)


def test_stacks_that_ended_differently_are_one_sample() -> None:
    profile = make_profile(
        [(0, 0, [0], 2), (0, 0, [0], 3)],
        processes=[Process(7, "app", 5)], threads=[Thread(0, "")], executables=[APP], frames=[MAIN],
    )  # fmt: skip
    profile.sample_end = array("B", [0, 1])
    profile.ends.append("too deep")
    [sample] = seen(with_times(profile), Shape.TIMESTAMPS).samples
    assert sample.count == 5
    assert sample.times == sorted(profile.times)


def test_equal_executables_and_frames_are_one_entry() -> None:
    profile = make_profile(
        [(0, 0, [0], 1), (0, 0, [1], 1)],
        processes=[Process(7, "app", 5)], threads=[Thread(0, "")], executables=[APP, APP],
        frames=[MAIN, MAIN._replace(executable=1)],
    )  # fmt: skip
    [sample] = seen(profile).samples
    assert sample.count == 2


def test_names_that_are_not_utf8_survive_apart() -> None:
    names = ["a\udcffb", "a\udcfeb"]
    profile = make_profile(
        [(0, i, [i], 1) for i in range(2)],
        by=By.THREAD,
        processes=[Process(7, "p\udcff", 5, "/tmp/\udcff", "", "\udcff")],
        threads=[Thread(i, name) for i, name in enumerate(names, start=1)],
        executables=[Executable("/lib/\udcff.so", memory_limit=1 << 40)],
        frames=[Frame(FrameKind.NATIVE, 0, 0x1000 + i, name, name) for i, name in enumerate(names)],
    )
    found = seen(profile)
    assert found.count == 2
    assert {sample.attributes["thread.name"] for sample in found.samples} == {"a\\xffb", "a\\xfeb"}
    assert {sample.frames[0].name for sample in found.samples} == {"a\\xffb", "a\\xfeb"}
    assert found.samples[0].resource["process.executable.path"] == "/tmp/\\xff"


def many_stacks(samples: int, stacks: int, times: bool = False) -> Profile:
    frames = [
        Frame(FrameKind.NATIVE, 0, 0x401000 + i, f"function_number_{i}", f"function_number_{i}")
        for i in range(stacks)
    ]
    each = samples // stacks
    profile = make_profile(
        [(i % 5, 0, [i, *range(i % 20)], each) for i in range(stacks)],
        processes=[Process(100 + i, f"app{i}", 5) for i in range(5)],
        threads=[Thread(0, "")],
        executables=[APP],
        frames=frames,
    )
    return with_times(profile) if times else profile


@pytest.mark.parametrize("shape", list(Shape))
def test_large_profile_is_split_below_the_limit_without_a_loss(shape: Shape) -> None:
    profile = many_stacks(10_000, 1_000, times=True)
    whole = encode(profile, shape).batches
    limit = len(whole[0].payload) // 7
    parts = encode(profile, shape, max_message=limit).batches
    assert len(parts) >= 7
    found = seen(profile, shape, limit)
    assert found.count == 10_000

    def tally(found: Seen) -> Counter[object]:
        counts = Counter[object]()
        for sample in found.samples:
            counts[(sample.resource["process.pid"], tuple(sample.frames))] += sample.count
        return counts

    assert tally(found) == tally(seen(profile, shape))


def test_times_of_one_stack_that_fill_several_messages_are_split() -> None:
    profile = make_profile(
        [(0, 0, [0], 3000)],
        processes=[Process(7, "app", 5)], threads=[Thread(0, "")], executables=[APP], frames=[MAIN],
    )  # fmt: skip
    profile.sample_count[0] = 3000
    with_times(profile)
    found = seen(profile, Shape.TIMESTAMPS, 8000)
    assert len(found.samples) > 3
    assert sorted(time for sample in found.samples for time in sample.times) == sorted(profile.times)


def test_sample_that_fits_into_no_message_is_a_counted_loss() -> None:
    name = "x" * 5000
    profile = make_profile(
        [(0, 0, [0], 2), (0, 0, [1], 1)],
        processes=[Process(7, "app", 5)], threads=[Thread(0, "")], executables=[APP],
        frames=[Frame(FrameKind.NATIVE, 0, 0x401000, name, name), MAIN],
    )  # fmt: skip
    encoded = encode(profile, max_message=4000)
    assert encoded.lost == {TOO_LARGE: 2}
    assert [read(batch.payload).count for batch in encoded.batches] == [1]


class CountedHost(dict[str, str | int]):
    """Attributes of a host that know in how many resources they were."""

    resources = 0

    def __ror__(self, other: Any) -> Any:
        self.resources += 1
        return other | dict(self)


def one_row(times: int, name: str) -> Profile:
    profile = make_profile(
        [(0, 0, [0], times)],
        processes=[Process(7, "app", 5)], threads=[Thread(0, "")], executables=[APP],
        frames=[Frame(FrameKind.NATIVE, 0, 0x401000, name, name)],
    )  # fmt: skip
    profile.times = array("Q", range(STARTED_AT, STARTED_AT + times))
    profile.time_samples = array("I", bytes(4 * times))
    return profile


@pytest.mark.parametrize("shape", list(Shape))
def test_stack_that_fits_into_no_message_is_lost_at_once(shape: Shape) -> None:
    host = CountedHost(HOST)
    encoded = encode(one_row(1_000_000, "x" * 50_000), shape, host, max_message=40_000)
    assert encoded.lost == {TOO_LARGE: 1_000_000}
    assert encoded.batches == []
    # Its times were not halved down to the last.
    assert host.resources == 1


def test_stack_that_hardly_fits_is_lost_at_once_or_not_at_all() -> None:
    name = "x" * 20_000
    [alone] = encode(one_row(1, name), Shape.TIMESTAMPS, HOST).batches
    for spare in range(-10, 40):
        host = CountedHost(HOST)
        encoded = encode(one_row(300, name), Shape.TIMESTAMPS, host, len(alone.payload) + spare)
        reported = sum(batch.samples for batch in encoded.batches)
        assert reported + encoded.lost.get(TOO_LARGE, 0) == 300
        if spare < 0 or encoded.lost:
            # With room for one more time all are reported, if in many messages.
            assert spare < 32
            assert (host.resources, reported) == (1, 0)


def test_thread_without_a_name_has_its_number() -> None:
    profile = make_profile(
        [(0, 0, [0], 1), (0, 1, [0], 2)],
        by=By.THREAD,
        processes=[Process(7, "app", 5)], threads=[Thread(8, ""), Thread(9, "worker")], executables=[APP],
        frames=[MAIN],
    )  # fmt: skip
    assert [(sample.attributes, sample.count) for sample in seen(profile).samples] == [
        ({"thread.id": 8}, 1),
        ({"thread.id": 9, "thread.name": "worker"}, 2),
    ]


def test_threads_that_look_alike_are_one_sample() -> None:
    # Of one number and name are a thread before and after it was made anew.
    profile = make_profile(
        [(0, 0, [0], 1), (0, 1, [0], 2), (1, 2, [0], 4)],
        by=By.THREAD,
        processes=[Process(7, "app", 5), Process(8, "app", 6)],
        threads=[Thread(8, "worker")] * 3, executables=[APP], frames=[MAIN],
    )  # fmt: skip
    found = seen(with_times(profile), Shape.TIMESTAMPS)
    assert [(sample.resource["process.pid"], sample.count) for sample in found.samples] == [(7, 3), (8, 4)]
    assert [sample.times for sample in found.samples] == [
        profile.times[:3].tolist(),
        profile.times[3:].tolist(),
    ]


def test_each_kind_of_mapping_is_one_entry_for_all_its_frames() -> None:
    module = Frame(FrameKind.KERNEL, -1, 0xFFFFFFFFC0001000, "xmit [net]", "xmit", "net")
    frames = [
        VFS_READ, VFS_READ._replace(address=VFS_READ.address + 1, name="f", system_name="f"),
        module, module._replace(address=module.address + 1), READ, READ._replace(address=READ.address + 1),
        SPIN, MAIN, JIT,
    ]  # fmt: skip
    profile = make_profile(
        [(0, 0, range(len(frames)), 1)],
        processes=[Process(7, "app", 5)], threads=[Thread(0, "")], executables=[APP, LIBC], frames=frames,
    )  # fmt: skip
    files = ["vmlinux"] * 2 + ["net"] * 2 + ["libc.so.6"] * 2 + ["app"] * 2 + [""]
    assert [frame.filename for frame in seen(profile).samples[0].frames] == files
    request = service.ExportProfilesServiceRequest()
    request.ParseFromString(encode(profile).batches[0].payload)
    # The first stands for none.
    assert len(request.dictionary.mapping_table) == 1 + len({*files} - {""})


def test_sample_of_which_not_all_times_are_known_has_a_value() -> None:
    profile = with_times(
        make_profile(
            [(0, 0, [0], 2), (0, 0, [1], 3)],
            processes=[Process(7, "app", 5)], threads=[Thread(0, "")], executables=[APP], frames=[MAIN, SPIN],
        )
    )  # fmt: skip
    del profile.times[-1], profile.time_samples[-1]
    known, unknown = seen(profile, Shape.TIMESTAMPS).samples
    assert (known.count, len(known.times)) == (2, 2)
    assert (unknown.count, unknown.times) == (3, [])


def test_message_has_only_the_threads_of_its_own_samples() -> None:
    profile = make_profile(
        [(0, i, [i % 2], 1) for i in range(200)],
        by=By.THREAD,
        processes=[Process(7, "app", 5)], threads=[Thread(i + 8, f"worker {i}") for i in range(200)],
        executables=[APP], frames=[MAIN, SPIN],
    )  # fmt: skip
    found = seen(profile, max_message=2000)
    assert len(encode(profile, max_message=2000).batches) > 1
    assert {sample.attributes["thread.id"] for sample in found.samples} == set(range(8, 208))
