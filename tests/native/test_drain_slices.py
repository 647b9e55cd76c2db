# SPDX-License-Identifier: Apache-2.0
"""Walks that the kernel side could not finish go on in user space, from a copy of registers and stack."""

import random
from array import array
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rings import (
    DISCARD,
    KERNEL,
    NATIVE,
    UNKNOWN,
    World,
    comm,
    fork,
    leave,
    mmap2,
    sample,
    stack_slice,
)
from tests.support.stacks import NONE, SIGNAL, rule, words

COMPLETE, UNREADABLE, NO_MAPPING, TOO_DEEP, UNSUPPORTED, LOST, ORDER, NOT_LOADED, SHORT = (
    0, 2, 3, 4, 8, 9, 10, 11, 12,
)  # fmt: skip
PROGRAM, LIBRARY = 2, 3  # numbers of the executables
PROGRAM_AT, LIBRARY_AT = 0x400000, 0x7F0000000000
SIZE = 0x10000
BASE = 0x7FFC00000000
SP = BASE + 0x80
SLICE_PAGES = 7
OUTERMOST = rule("UNSUPPORTED", 0, ra="UNDEFINED")
PUSHED = rule("SP", 0x20, fp="AT_CFA", fp_offset=-16)
FRAMED = rule("FP", 16, fp="AT_CFA", fp_offset=-16)

# What lies at which offsets of both files.
ENTRY, MAIN, BY_FP, WORK, BAD = 0x100, 0x200, 0x300, 0x400, 0x500
RULES = [NONE, OUTERMOST, PUSHED, FRAMED, rule("SP", 8), rule("UNSUPPORTED", 0)]
ROWS = [(ENTRY, 1), (MAIN, 2), (BY_FP, 3), (WORK, 4), (BAD, 5), (0x600, 0)]


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        prepare(made)
        yield made


def prepare(world: World, pid: int = 1) -> None:
    """A process with a program and a library."""
    world.arena.add_chunk(bytearray(1 << 20))
    start(world, pid)
    world.run()


def start(world: World, pid: int, time: int = 1) -> None:
    world.events[0].put(
        comm(pid, time, is_exec=True),
        mmap2(pid, time, PROGRAM_AT, SIZE, path=b"/program"),
        mmap2(pid, time, LIBRARY_AT, SIZE, path=b"/library"),
    )


def load(world: World, *numbers: int) -> None:
    for number in numbers:
        assert world.arena.load(
            number,
            array("Q", [address for address, _ in ROWS]),
            array("I", [row for _, row in ROWS]),
            b"".join(RULES),
            [(0, SIZE, 0)],
            1,
        )


# The innermost function WORK of the library, called by MAIN of the program, called by its ENTRY.
WORDS = {SP: PROGRAM_AT + MAIN + 8, SP + 8 + 0x10: 0, SP + 8 + 0x18: PROGRAM_AT + ENTRY + 4}
STACK = words(BASE, WORDS, 0x200)
WHOLE = ((NATIVE, LIBRARY, WORK + 1), (NATIVE, PROGRAM, MAIN + 7), (NATIVE, PROGRAM, ENTRY + 3))


def copied(number: int = 1, cpu: int = 0, stack: bytes = STACK, size: int | None = None) -> bytes:
    return stack_slice(number, BASE, stack, pc=LIBRARY_AT + WORK + 1, sp=SP, cpu=cpu, size=size)


def taken(
    time: int = 9, *, pid: int = 1, number: int = 1, cpu: int = 0, kernel: list[int] | None = None
) -> bytes:
    """A sample of which the kernel side knew the innermost frame only."""
    user = [(LIBRARY_AT + WORK + 1, 0)]
    return sample(pid, time, user=user, end=NOT_LOADED, slice_number=number, cpu=cpu, kernel=kernel)


def only(world: World) -> tuple[tuple[int, int, int], ...]:
    ((key, count),) = world.take().items()
    assert count == 1
    return key[3]


def ends(world: World) -> dict[int, int]:
    return {end: count for end, count in enumerate(world.reader.ends()) if count}


def count(world: World, name: str) -> int:
    return world.reader.counts()[name]


def test_a_walk_goes_on_through_two_executables(world: World) -> None:
    load(world, PROGRAM, LIBRARY)
    world.run(copied(), taken(kernel=[0xFF]))
    assert only(world) == ((KERNEL, 0, 0xFF), *WHOLE)
    assert ends(world) == {COMPLETE: 1}
    assert count(world, "walked") == 1


def test_a_walk_goes_on_from_the_last_frame_of_the_sample(world: World) -> None:
    load(world, PROGRAM)
    sp = SP + 8
    world.run(
        stack_slice(1, BASE, STACK, pc=PROGRAM_AT + MAIN + 8, sp=sp, fp=None, exact=False),
        sample(
            1,
            9,
            user=[(LIBRARY_AT + WORK + 1, 0), (PROGRAM_AT + MAIN + 8, 0)],
            end=NOT_LOADED,
            slice_number=1,
        ),
    )
    assert only(world) == WHOLE
    assert ends(world) == {COMPLETE: 1}


def test_a_sample_waits_for_the_rows_of_one_executable_after_the_other(world: World) -> None:
    world.run(copied(), taken())
    assert world.take() == {}
    assert world.reader.waiting > len(STACK)
    assert world.arena.state(LIBRARY) == 1
    assert world.arena.wanted() == [LIBRARY]
    assert world.reader.replay(9) == 0
    assert world.arena.wanted() == [], "each is told once"
    load(world, LIBRARY)
    assert world.reader.replay(9) == 0
    assert world.arena.wanted() == [PROGRAM]
    load(world, PROGRAM)
    assert world.reader.replay(9) == 1
    assert only(world) == WHOLE
    assert ends(world) == {COMPLETE: 1}
    assert world.reader.waiting == 0
    assert world.reader.replay(9) == 0


def test_the_most_wanted_rows_come_first(world: World) -> None:
    load(world, LIBRARY)
    world.run(copied(), taken(), copied(2), taken(number=2))
    stack = words(BASE, {SP: LIBRARY_AT + MAIN}, 0x200)
    world.events[0].put(mmap2(1, 5, 0x500000, SIZE, path=b"/other"))
    for number in (3, 4, 5):
        world.run(
            stack_slice(number, BASE, stack, pc=0x500000, sp=SP),
            sample(1, 10, user=[(0x500000, 0)], slice_number=number, end=NOT_LOADED),
        )
    assert world.arena.wanted() == [4, PROGRAM]


def test_a_sample_that_waited_too_long_is_reported_as_far_as_it_is_known(world: World) -> None:
    load(world, LIBRARY)
    world.run(copied(), taken(9))
    assert world.reader.replay(9) == 0
    assert world.reader.replay(10) == 1
    assert only(world) == WHOLE[:2]
    assert ends(world) == {NOT_LOADED: 1}
    assert world.reader.waiting == 0


def test_at_the_end_nothing_waits_any_more(world: World) -> None:
    world.run(copied(), taken(9), copied(2), taken(2**63, number=2))
    assert world.reader.replay() == 2
    assert world.take() == {(1, 0, b"name", WHOLE[:1]): 2}
    assert ends(world) == {NOT_LOADED: 2}


def test_where_there_are_no_rows_frame_pointers_lead_on(world: World) -> None:
    world.arena.load_none(LIBRARY)
    load(world, PROGRAM)
    stack = words(BASE, {SP: 0, SP + 8: PROGRAM_AT + ENTRY + 1}, 0x200)
    world.run(
        stack_slice(1, BASE, stack, pc=LIBRARY_AT + WORK, sp=SP, fp=SP),
        sample(1, 9, user=[(LIBRARY_AT + WORK, 0)], end=NOT_LOADED, slice_number=1),
    )
    assert only(world) == ((NATIVE, LIBRARY, WORK), (NATIVE, PROGRAM, ENTRY))
    assert ends(world) == {COMPLETE: 1}


def test_in_memory_without_a_file_frame_pointers_lead_on(world: World) -> None:
    load(world, PROGRAM)
    world.events[0].put(mmap2(1, 5, 0x10000, 0x1000, path=b"//anon"))
    stack = words(BASE, {SP: 0, SP + 8: PROGRAM_AT + ENTRY + 1}, 0x200)
    world.run(
        stack_slice(1, BASE, stack, pc=0x10010, sp=SP, fp=SP),
        sample(1, 9, user=[(0x10010, 0)], end=NOT_LOADED, slice_number=1),
    )
    assert only(world) == ((UNKNOWN, 1, 0), (NATIVE, PROGRAM, ENTRY))
    assert world.arena.wanted() == []


def test_a_frame_that_a_signal_interrupted_is_looked_up_as_it_is(world: World) -> None:
    world.arena.load(
        LIBRARY, array("Q", [0]), array("I", [0]), rule("SP", 8, flags=SIGNAL), [(0, SIZE, 0)], 1
    )
    load(world, PROGRAM)
    # ENTRY itself: one byte before, nothing is known.
    stack = words(BASE, {SP: PROGRAM_AT + ENTRY}, 0x200)
    world.run(copied(stack=stack), taken())
    assert only(world) == (WHOLE[0], (NATIVE, PROGRAM, ENTRY))
    assert ends(world) == {COMPLETE: 1}


def test_registers_of_the_innermost_frame_are_known_there_only(world: World) -> None:
    by_register = rule("REGISTER", 0x10, register=12)
    world.arena.load(LIBRARY, array("Q", [0]), array("I", [0]), by_register, [(0, SIZE, 0)], 1)
    stack = words(BASE, {SP + 0x48: LIBRARY_AT + WORK}, 0x200)
    world.run(
        stack_slice(1, BASE, stack, pc=LIBRARY_AT + WORK + 1, sp=SP, registers={12: SP + 0x40}), taken()
    )
    assert only(world) == (WHOLE[0], (NATIVE, LIBRARY, WORK - 1))
    assert ends(world) == {LOST: 1}


def test_a_rule_that_is_not_supported_ends_the_walk_and_says_so(world: World) -> None:
    load(world, LIBRARY)
    stack = words(BASE, {SP: LIBRARY_AT + BAD + 1}, 0x200)
    world.run(copied(stack=stack), taken())
    assert only(world) == (WHOLE[0], (NATIVE, LIBRARY, BAD))
    assert ends(world) == {UNSUPPORTED: 1}


def test_an_address_in_no_mapping_ends_the_walk(world: World) -> None:
    load(world, LIBRARY)
    world.run(copied(stack=words(BASE, {SP: 0x1234}, 0x200)), taken())
    assert only(world) == WHOLE[:1]
    assert ends(world) == {NO_MAPPING: 1}


def test_what_was_mapped_after_the_sample_does_not_lead_on(world: World) -> None:
    load(world, LIBRARY)
    world.events[0].put(mmap2(1, 50, 0x500000, SIZE, path=b"/later"))
    world.run()
    world.run(copied(stack=words(BASE, {SP: 0x500100}, 0x200)), taken(40))
    assert only(world) == WHOLE[:1]
    assert ends(world) == {NO_MAPPING: 1}


def test_slices_of_other_cpus_may_come_between(world: World) -> None:
    load(world, PROGRAM, LIBRARY)
    other = words(BASE, {SP: PROGRAM_AT + ENTRY + 9}, 0x200)
    world.run(copied(1, 0), copied(1, 63, other), taken(11, cpu=63), taken(10, cpu=0))
    assert world.take() == {
        (1, 0, b"name", WHOLE): 1,
        (1, 0, b"name", (WHOLE[0], (NATIVE, PROGRAM, ENTRY + 8))): 1,
    }
    assert count(world, "walked") == 2


def test_samples_without_a_slice_may_come_between(world: World) -> None:
    load(world, PROGRAM, LIBRARY)
    world.run(copied(), sample(1, 8, user=[(PROGRAM_AT, 0)], cpu=0), taken())
    assert sorted(len(key[3]) for key in world.take()) == [1, 3]


@pytest.mark.parametrize("number", [0, 2, 0xFFFFFFFF])
def test_a_slice_of_another_number_is_not_the_samples(world: World, number: int) -> None:
    load(world, PROGRAM, LIBRARY)
    world.run(copied(1), taken(number=number))
    assert only(world) == WHOLE[:1]
    assert ends(world) == {NOT_LOADED: 1}
    assert count(world, "walked") == 0


@pytest.mark.parametrize("cpu", [1, 15, 16, 0xFFFFFFFF])
def test_a_slice_of_another_cpu_is_not_the_samples(world: World, cpu: int) -> None:
    load(world, PROGRAM, LIBRARY)
    world.run(copied(1, 0), taken(cpu=cpu))
    assert only(world) == WHOLE[:1]


@pytest.mark.parametrize(
    "data",
    [
        copied()[:-1],
        copied()[:184],
        copied()[:183],
        copied()[:4],
        copied(size=0xFFFFFFFF),
        copied(size=7 * 4096 + 1, stack=bytes(7 * 4096 + 1)),
        copied(cpu=1 << 16),
        copied(cpu=0xFFFFFFFF),
    ],
)
def test_a_malformed_slice_is_counted_and_its_sample_reported_without_it(world: World, data: bytes) -> None:
    load(world, PROGRAM, LIBRARY)
    world.run(data, taken())
    assert only(world) == WHOLE[:1]
    assert count(world, "malformed_slices") == 1
    assert count(world, "malformed") == 0
    world.run(copied(2), taken(10, number=2))
    assert only(world) == WHOLE


def test_a_malformed_slice_does_not_leave_an_older_one_to_its_sample(world: World) -> None:
    load(world, PROGRAM, LIBRARY)
    world.run(copied(1), copied(2)[:-1], taken(number=2))
    assert only(world) == WHOLE[:1]


def test_a_discarded_slice_is_none(world: World) -> None:
    load(world, PROGRAM, LIBRARY)
    world.samples.put(copied(), DISCARD)
    world.run(taken())
    assert only(world) == WHOLE[:1]
    assert count(world, "malformed_slices") == 0


@pytest.mark.parametrize(
    ("pages", "end"), [(SLICE_PAGES, SHORT), (SLICE_PAGES - 1, UNREADABLE), (1, UNREADABLE)]
)
def test_a_stack_beyond_a_full_copy_is_told_from_one_that_cannot_be_read(
    world: World, pages: int, end: int
) -> None:
    load(world, LIBRARY)
    # Frames of MAIN all the way: 0x20 bytes each.
    size = pages * 4096
    frames = dict.fromkeys(range(SP, BASE + size - 7, 8), LIBRARY_AT + MAIN + 8)
    world.run(copied(stack=words(BASE, frames, size)), taken())
    assert len(only(world)) == 2 + (BASE + size - SP - 8) // 0x20
    assert ends(world) == {end: 1}


def test_a_page_that_was_not_there_is_no_end_of_the_copy(world: World) -> None:
    load(world, LIBRARY)
    frames = dict.fromkeys(range(SP, BASE + 3 * 4096, 8), LIBRARY_AT + MAIN + 8)
    world.run(
        stack_slice(1, BASE, words(BASE, frames, 3 * 4096), pc=LIBRARY_AT + WORK + 1, sp=SP, holes=0b010),
        taken(),
    )
    assert len(only(world)) == 2 + (4096 - 0x80 - 8) // 0x20
    assert ends(world) == {UNREADABLE: 1}


@pytest.mark.parametrize(("known", "end"), [(1000, TOO_DEEP), (1023, TOO_DEEP), (1024, TOO_DEEP)])
def test_a_stack_of_more_frames_than_a_sample_holds_is_cut(world: World, known: int, end: int) -> None:
    load(world, LIBRARY)
    frames = dict.fromkeys(range(SP, BASE + 4096, 8), LIBRARY_AT + WORK + 8)
    world.run(
        copied(stack=words(BASE, frames, 0x1000)),
        sample(
            1, 9, user=[(LIBRARY_AT + WORK + 1, 0)] * known, end=NOT_LOADED, slice_number=1,
            kernel=list(range(1, 100)),
        ),
    )  # fmt: skip
    assert len(only(world)) == 99 + 1024
    assert ends(world) == {end: 1}


def test_a_stack_of_as_many_frames_as_a_sample_holds_is_complete(world: World) -> None:
    load(world, LIBRARY)
    at = [SP + 8 * i for i in range(23)]
    frames = dict.fromkeys(at, LIBRARY_AT + WORK + 8) | {at[-1]: LIBRARY_AT + ENTRY + 8}
    world.run(
        copied(stack=words(BASE, frames, 0x1000)),
        sample(1, 9, user=[(LIBRARY_AT + WORK + 1, 0)] * 1001, end=NOT_LOADED, slice_number=1),
    )
    assert len(only(world)) == 1024
    assert ends(world) == {COMPLETE: 1}


def test_a_sample_of_an_unknown_process_waits_with_its_slice(world: World) -> None:
    load(world, PROGRAM, LIBRARY)
    world.run(copied(), taken(pid=5))
    assert world.take() == {}
    world.run(copied(2), taken(10))  # the CPU's next
    world.take()
    world.table.scanned(
        5, 1,
        [(PROGRAM_AT, PROGRAM_AT + SIZE - 1, 0, PROGRAM), (LIBRARY_AT, LIBRARY_AT + SIZE - 1, 0, LIBRARY)],
        11,
    )  # fmt: skip
    assert world.reader.replay(0) == 1
    assert only(world) == WHOLE


def test_a_sample_that_waits_for_rows_is_of_the_program_before_the_exec(world: World) -> None:
    load(world, LIBRARY)
    world.run(copied(), taken(9), copied(2), taken(10, number=2))
    world.events[0].put(
        comm(1, 20, is_exec=True), mmap2(1, 21, LIBRARY_AT, SIZE, path=b"/b"),
        mmap2(1, 22, PROGRAM_AT, SIZE, path=b"/c"),
    )  # fmt: skip
    world.run(sample(1, 30, user=[(LIBRARY_AT + 5, 0)], name=b"after"))
    assert world.take() == {(1, 0, b"after", ((NATIVE, 4, 5),)): 1}
    load(world, PROGRAM)
    assert world.reader.replay(0) == 2
    assert world.take() == {(1, 0, b"name", WHOLE): 2}
    assert ends(world) == {COMPLETE: 3}


def test_a_sample_that_waits_for_rows_has_the_mappings_of_its_time(world: World) -> None:
    load(world, LIBRARY)
    world.run(copied(), taken(9))
    # dlclose and dlopen of something else at the same place.
    world.events[0].put(mmap2(1, 20, LIBRARY_AT, SIZE, path=b"/b"))
    world.run()
    load(world, PROGRAM)
    assert world.reader.replay(0) == 1
    assert only(world) == WHOLE


def test_a_sample_that_waits_for_rows_outlives_its_process_and_the_next_of_its_pid(world: World) -> None:
    load(world, LIBRARY)
    start(world, 5)
    world.run(copied(), taken(9, pid=5))
    world.events[0].put(leave(5, 5, 20), fork(5, 1, 30))
    world.run()
    world.table.forget_exited(100)
    before = world.table.process(5)
    load(world, PROGRAM)
    assert world.reader.replay(0) == 1
    assert only(world) == WHOLE
    assert world.table.process(5) == before


def test_samples_that_wait_when_the_reader_goes_are_freed() -> None:
    with World() as world:
        prepare(world)
        for number in range(1, 20):
            world.run(copied(number), taken(number=number))
        assert world.reader.waiting > 0


def test_more_samples_than_may_wait_for_rows_are_reported_as_they_are(world: World) -> None:
    load(world, LIBRARY)
    stack = words(BASE, WORDS, 7 * 4096)
    for number in range(1, 701):  # 28 KiB each; 16 MiB may wait
        world.run(copied(number, stack=stack), taken(number, number=number))
    reported = count(world, "reported")
    assert 100 < reported < 150
    assert world.take() == {(1, 0, b"name", WHOLE[:2]): reported}
    assert ends(world) == {NOT_LOADED: reported}
    load(world, PROGRAM)
    assert world.reader.replay(0) == 700 - reported
    assert world.take() == {(1, 0, b"name", WHOLE): 700 - reported}


def test_what_is_sampled_is_used_and_what_waited_does_not_look_older(world: World) -> None:
    load(world, LIBRARY, PROGRAM)
    assert world.arena.oldest(5) == PROGRAM
    world.run(sample(1, 50, user=[(PROGRAM_AT, 0)]), copied(), taken(40))
    assert world.arena.oldest(41) == LIBRARY
    assert world.arena.oldest(40) == 0


def test_accounts_add_up_over_walks_of_every_kind() -> None:
    chance = random.Random(1)
    with World() as world:
        prepare(world)
        slices = 0
        for step in range(300):
            number = step + 1
            frames = {
                at: chance.choice((LIBRARY_AT, PROGRAM_AT, PROGRAM_AT, 0x999)) + chance.randrange(0x700)
                for at in range(SP, BASE + 0x400, 8)
            }
            data = copied(number, stack=words(BASE, frames, 0x400))
            bad = chance.random() < 0.1
            slices += bad
            world.run(data[:-1] if bad else data, taken(number, number=number + (chance.random() < 0.1)))
            if chance.random() < 0.05:
                world.reader.replay(step)
            if step == 100:
                load(world, PROGRAM)
            if step == 200:
                load(world, LIBRARY)
        world.reader.replay()
        assert count(world, "reported") == 300 == sum(world.reader.ends())
        assert count(world, "malformed_slices") == slices
        assert sum(world.take().values()) == 300
        assert ends(world).keys() >= {NO_MAPPING, NOT_LOADED}


U64 = st.integers(0, 2**64 - 1) | st.sampled_from([BASE, SP, 2**64 - 1, PROGRAM_AT + MAIN, LIBRARY_AT + WORK])
WORD = U64 | st.sampled_from([PROGRAM_AT + BY_FP, LIBRARY_AT + BY_FP, BASE + 0x40, 0])


@given(
    st.lists(WORD, max_size=24),
    st.tuples(U64, U64, U64, U64),
    st.integers(0, 255),
    st.lists(st.binary(min_size=16, max_size=16), max_size=5),
)
def test_no_registers_stack_or_rules_at_all_stop_the_reader(
    stack: list[int], registers: tuple[int, int, int, int], flags: int, rules: list[bytes]
) -> None:
    base, pc, sp, fp = registers
    with World() as world:
        prepare(world)
        load(world, LIBRARY)
        made = [NONE, *rules]
        rows = [(0x80 * i, i) for i in range(len(made))]
        world.arena.load(
            PROGRAM, array("Q", [row[0] for row in rows]), array("I", [row[1] for row in rows]),
            b"".join(made), [(0, SIZE, 0)], 1,
        )  # fmt: skip
        data = bytearray(stack_slice(1, base, array("Q", stack).tobytes(), pc=pc, sp=sp, fp=fp))
        data[176:180] = bytes([flags & 1, flags >> 1 & 1, flags >> 2 & 1, flags])
        world.run(bytes(data), sample(1, 9, user=[(PROGRAM_AT + 5, 0)], slice_number=1, end=NOT_LOADED))
        world.reader.replay()
        assert count(world, "reported") == sum(world.reader.ends()) == 1
