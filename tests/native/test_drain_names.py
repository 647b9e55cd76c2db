# SPDX-License-Identifier: Apache-2.0
"""Names of processes and threads, as samples tell them."""

import pytest

from tests.support.rings import World, comm, mmap2, sample

START = 0x7F0000001000


def program(world: World, time: int) -> None:
    world.events[0].put(comm(1, time, is_exec=True), mmap2(1, time + 1, START, 0x2000))


def names(world: World) -> list[bytes]:
    return [key[2] for key in world.take()]


@pytest.mark.parametrize("frames", [[], [(START, 0)]])
def test_name_that_an_exec_has_set_already_is_not_the_old_programs(
    frames: list[tuple[int, int]],
) -> None:
    with World() as world:
        program(world, 1)
        world.run(
            sample(1, 5, user=[(START, 0)], name=b"old"),
            sample(1, 6, user=frames, kernel=[1], in_kernel=True, name=b"new"),
        )
        assert names(world) == [b"old", b"old"]
        program(world, 7)
        world.run(sample(1, 9, user=[(START, 0)], name=b"new"))
        assert names(world) == [b"new"]


def test_process_has_the_latest_name_that_it_gave_itself() -> None:
    with World("thread") as world:
        program(world, 1)
        world.run(
            sample(1, 5, user=[(START, 0)], name=b"first", thread_name=b"first"),
            sample(1, 6, user=[(START, 0), (START, 0)], kernel=[1], in_kernel=True, name=b"second",
                   thread_name=b"second"),
        )  # fmt: skip
        assert names(world) == [b"second", b"second"]


def test_kernel_thread_has_the_latest_name_that_it_gave_itself() -> None:
    with World() as world:
        world.run(
            sample(2, 5, kernel=[1], in_kernel=True, kernel_thread=True, name=b"kworker/0:1"),
            sample(2, 6, kernel=[1], in_kernel=True, kernel_thread=True, name=b"kworker/0:1-events"[:15]),
        )
        assert names(world) == [b"kworker/0:1-eve"]
