# SPDX-License-Identifier: Apache-2.0
"""What is counted of processes beside their names: the program that they run, their parent; and samples'
times."""

import struct

from pyprof.profile.builder import ProcessRow, process_rows
from tests.support.rings import World, comm, fork, mmap2, record, sample

START = 0x7F0000001000
LIBRARY = 0x7F0000101000
PROGRAM_ID, OTHER_ID, LIBRARY_ID = (bytes([n]) * 20 for n in (1, 2, 3))


def begin(world: World, pid: int, time: int, build_id: bytes) -> None:
    """An exec: the kernel maps the program first, then the dynamic linker."""
    world.events[0].put(
        comm(pid, time, is_exec=True),
        mmap2(pid, time + 1, START, 0x2000, build_id=build_id),
        mmap2(pid, time + 2, LIBRARY, 0x2000, build_id=LIBRARY_ID),
    )


def number_of(world: World, build_id: bytes) -> int:
    """The number that the table gave to an executable."""
    return world.table.executable(build_id, 0, 0, 0, b"/x", 1, START, START)


def rows(world: World) -> list[ProcessRow]:
    return process_rows(world.aggregator.take())


def test_program_is_what_the_exec_mapped_first() -> None:
    with World() as world:
        begin(world, 1, 1, PROGRAM_ID)
        world.run(sample(1, 5, user=[(LIBRARY, 0)]))
        [row] = rows(world)
        assert row.program == number_of(world, PROGRAM_ID)
        begin(world, 1, 6, OTHER_ID)
        world.run(sample(1, 9, user=[(START, 0)]))
        [row] = rows(world)
        assert row.program == number_of(world, OTHER_ID)


def test_fork_runs_its_parents_program_until_it_execs() -> None:
    with World() as world:
        begin(world, 1, 1, PROGRAM_ID)
        world.events[0].put(fork(2, 1, 4))
        world.run(sample(2, 5, user=[(START, 0)]))
        [row] = rows(world)
        assert (row.program, row.parent) == (number_of(world, PROGRAM_ID), 1)
        begin(world, 2, 6, OTHER_ID)
        world.run(sample(2, 9, user=[(START, 0)]))
        [row] = rows(world)
        assert (row.program, row.parent) == (number_of(world, OTHER_ID), 1)


def test_program_of_a_process_that_was_looked_at_is_its_lowest_file() -> None:
    with World() as world:
        program, library = number_of(world, PROGRAM_ID), number_of(world, LIBRARY_ID)
        world.table.scanned(
            1,
            1,
            [
                (LIBRARY, LIBRARY + 0xFFF, 0, library),
                (START, START + 0xFFF, 0, program),
                (0x1000, 0x1FFF, 0, 1),
            ],
            1,
        )
        world.run(sample(1, 5, user=[(START, 0)]))
        [row] = rows(world)
        assert row.program == program


def test_library_of_a_process_whose_fork_was_lost_is_not_its_program() -> None:
    with World() as world:
        world.events[0].put(mmap2(1, 1, LIBRARY, 0x2000, build_id=LIBRARY_ID))
        world.table.scanned(1, 1, [(START, START + 0xFFF, 0, number_of(world, PROGRAM_ID))], 3)
        world.run(sample(1, 5, user=[(START, 0)]))
        [row] = rows(world)
        assert row.program == number_of(world, PROGRAM_ID)


def test_program_whose_exec_was_not_told_is_found_by_a_look() -> None:
    with World() as world:
        begin(world, 1, 1, PROGRAM_ID)
        world.run()
        other = number_of(world, OTHER_ID)
        world.table.scanned(1, 1, [(START, START + 0xFFF, 0, other)], 5)
        world.run(sample(1, 8, user=[(START, 0)]))
        [row] = rows(world)
        assert row.program == other


def test_program_stays_the_same_when_a_look_finds_what_lies_below_it() -> None:
    with World() as world:
        begin(world, 1, 1, PROGRAM_ID)
        world.run()
        program, other = number_of(world, PROGRAM_ID), number_of(world, OTHER_ID)
        spans = [(START - 0x1000, START - 1, 0, other), (START, START + 0x1FFF, 0, program)]
        world.table.scanned(1, 1, spans, 5)
        world.run(sample(1, 8, user=[(START, 0)]))
        [row] = rows(world)
        assert row.program == program


def test_times_of_samples_are_kept_where_wanted() -> None:
    with World(stamped=True) as world:
        begin(world, 1, 1, PROGRAM_ID)
        world.run(
            sample(1, 5, user=[(START, 0)]),
            sample(1, 7, user=[(LIBRARY, 0)]),
            sample(1, 8, user=[(START, 0)]),
        )
        taken = world.aggregator.take()
        assert list(struct.iter_unpack("=QQ", taken["stamps"])) == [(5, 0), (7, 1), (8, 0)]
        assert world.aggregator.take()["stamps"] == b""


def test_times_are_not_kept_unless_wanted() -> None:
    with World() as world:
        begin(world, 1, 1, PROGRAM_ID)
        world.run(sample(1, 5, user=[(START, 0)]))
        assert world.aggregator.take()["stamps"] == b""


def test_kernel_symbols_that_come_are_counted() -> None:
    with World() as world:
        # PERF_RECORD_KSYMBOL: {u64 address; u32 length; u16 type, flags; name}
        world.events[0].put(
            record(17, struct.pack("<QIHH", 1 << 63, 64, 1, 0) + b"bpf_prog\0\0\0\0\0\0\0\0", 1)
        )
        world.run()
        assert world.sideband.kernel_changes == 1
        assert world.table.counts()["processes"] == 0
