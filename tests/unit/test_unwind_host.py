# SPDX-License-Identifier: Apache-2.0
"""The frame-pointer walk of bpf/unwind.h, host build, over hand-made stacks."""

import struct

import pytest
from pyprof._native._libbpf import ffi, lib

from pyprof.bpf.library import end_texts

BASE = 0x7FFC00000000
COMPLETE = "complete"
FRAME_POINTER = "frame pointer does not lead on"
UNREADABLE = "stack memory not readable"
TOO_DEEP = "more frames than a sample holds"


def stack_of(words: dict[int, int], size: int = 0x100) -> bytes:
    """A slice of a stack from BASE on: words by address, zeros between."""
    data = bytearray(size)
    for address, word in words.items():
        struct.pack_into("<Q", data, address - BASE, word)
    return bytes(data)


def unwind(
    stack: bytes, fp: int, *, sp: int = BASE, pc: int = 0x401000, base: int = BASE, capacity: int = 64
) -> tuple[list[int], str]:
    """Program counters, leaf first, and why the walk ended."""
    pcs = ffi.new("uint64_t[]", capacity + 1)
    pcs[capacity] = 0x5A5A
    end = ffi.new("uint8_t *")
    count = lib.pyprof_unwind(pc, sp, fp, ffi.from_buffer(stack), base, len(stack), pcs, capacity, end)
    assert pcs[capacity] == 0x5A5A, "wrote past the capacity"
    return [int(pcs[i]) for i in range(count)], end_texts()[end[0]]


def chain(*frames: tuple[int, int, int]) -> dict[int, int]:
    """Frames as (address, saved frame pointer, return address)."""
    words = {}
    for address, saved, back in frames:
        words[address] = saved
        words[address + 8] = back
    return words


def test_a_chain_to_a_frame_pointer_of_0_is_complete() -> None:
    stack = stack_of(chain((BASE + 0x10, BASE + 0x30, 0x402000), (BASE + 0x30, 0, 0x403000)))
    assert unwind(stack, BASE + 0x10) == ([0x401000, 0x402000, 0x403000], COMPLETE)


def test_a_return_address_of_0_ends_a_complete_stack() -> None:
    stack = stack_of(chain((BASE, BASE + 0x20, 0x402000), (BASE + 0x20, BASE + 0x40, 0)))
    assert unwind(stack, BASE) == ([0x401000, 0x402000], COMPLETE)


def test_no_frame_pointer_at_all_is_the_outermost_frame() -> None:
    assert unwind(stack_of({}), 0) == ([0x401000], COMPLETE)


def test_a_frame_pointer_below_the_stack_pointer_is_none() -> None:
    stack = stack_of(chain((BASE, 0, 0x402000)))
    assert unwind(stack, BASE, sp=BASE + 8) == ([0x401000], FRAME_POINTER)


@pytest.mark.parametrize("offset", [1, 2, 4, 7])
def test_a_misaligned_frame_pointer_is_none(offset: int) -> None:
    assert unwind(stack_of({}), BASE + offset) == ([0x401000], FRAME_POINTER)


@pytest.mark.parametrize("saved", [BASE, BASE + 0x10, 8])
def test_a_saved_frame_pointer_that_is_not_above_gives_one_more_frame(saved: int) -> None:
    stack = stack_of(chain((BASE + 0x10, saved, 0x402000)))
    assert unwind(stack, BASE + 0x10) == ([0x401000, 0x402000], FRAME_POINTER)


@pytest.mark.parametrize(
    "fp",
    [
        BASE + 0x100,  # just past the slice
        BASE + 0xF8,  # half of the frame lies in it
        BASE + 0x10000,
        2**64 - 8,  # its frame would wrap around
    ],
)
def test_a_frame_outside_of_the_slice_is_unreadable(fp: int) -> None:
    assert unwind(stack_of({}), fp) == ([0x401000], UNREADABLE)


def test_the_last_frame_that_fits_into_the_slice_is_read() -> None:
    stack = stack_of(chain((BASE + 0xF0, 0, 0x402000)))
    assert unwind(stack, BASE + 0xF0) == ([0x401000, 0x402000], COMPLETE)


def test_a_chain_that_leaves_the_slice_keeps_what_was_found() -> None:
    stack = stack_of(chain((BASE, BASE + 0x1000, 0x402000)))
    assert unwind(stack, BASE) == ([0x401000, 0x402000], UNREADABLE)


def test_a_slice_that_begins_above_the_frame_is_unreadable() -> None:
    assert unwind(stack_of({}), BASE - 16, sp=BASE - 32) == ([0x401000], UNREADABLE)


def test_an_empty_slice_is_unreadable() -> None:
    assert unwind(b"", BASE) == ([0x401000], UNREADABLE)


def test_a_slice_at_the_end_of_the_address_space_does_not_wrap() -> None:
    base = 2**64 - 32
    stack = struct.pack("<QQQQ", 2**64 - 16, 0x402000, 1, 0x403000)
    assert unwind(stack, base, sp=base, base=base) == ([0x401000, 0x402000, 0x403000], FRAME_POINTER)


def deep(frames: int) -> bytes:
    """A chain of so many return addresses."""
    at = [BASE + 16 * i for i in range(frames)]
    linked = zip(at, [*at[1:], 0], range(1, frames + 1), strict=True)
    return stack_of(chain(*linked), 16 * frames)


def test_a_stack_deeper_than_the_capacity_is_cut_at_its_root() -> None:
    assert unwind(deep(20), BASE, pc=0x99, capacity=8) == ([0x99, *range(1, 8)], TOO_DEEP)


def test_a_stack_as_deep_as_the_capacity_is_complete() -> None:
    assert unwind(deep(7), BASE, pc=0x99, capacity=8) == ([0x99, *range(1, 8)], COMPLETE)


def test_a_stack_as_deep_as_a_sample_holds_is_complete() -> None:
    limit = int(lib.PYPROF_MAX_USER_FRAMES)
    pcs, end = unwind(deep(limit - 1), BASE, capacity=limit)
    assert (len(pcs), end) == (limit, COMPLETE)


def test_no_capacity_gives_no_frame() -> None:
    assert unwind(stack_of({}), 0, capacity=0) == ([], TOO_DEEP)
