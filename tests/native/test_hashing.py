# SPDX-License-Identifier: Apache-2.0
"""The hash functions of csrc/hash.h against big-integer arithmetic, and fixed vectors: the functions may not
change by accident, nor differ between builds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof._native.hashing import hash_bytes, hash_two

MASK = 2**64 - 1
HASH_0 = 0x6A09E667F3BCC909
HASH_1 = 0xBB67AE8584CAA73B
HASH_2 = 0x3C6EF372FE94F82B
WORDS = st.one_of(st.integers(0, MASK), st.sampled_from([0, 1, MASK, HASH_0, HASH_1, HASH_2]))


def fold(a: int, b: int) -> int:
    product = a * b
    return product & MASK ^ product >> 64


def key_of(seed: int) -> int:
    return (seed << 32 & MASK | seed >> 32) ^ HASH_1


def model_two(a: int, b: int, seed: int) -> int:
    return fold(fold(a ^ seed ^ HASH_0, b ^ key_of(seed)), HASH_2)


def model_bytes(data: bytes, seed: int) -> int:
    value = seed ^ HASH_0
    for i in range(0, len(data), 16):
        pair = data[i : i + 16].ljust(16, b"\0")
        value = fold(
            int.from_bytes(pair[:8], "little") ^ value, int.from_bytes(pair[8:], "little") ^ key_of(seed)
        )
    return fold(value ^ len(data), HASH_2)


@pytest.mark.parametrize(
    ("a", "b", "seed", "expected"),
    [
        (0, 0, 0, 0x1EB244682E62CA05),
        (1, 2, 0, 0xC53C33DA07B07841),
        (1, 2, 3, 0x214536DED8160BB5),
        (0x7F0000001234, 1 << 32 | 7, 0x0123456789ABCDEF, 0x79717DDA2BC4A0C1),
    ],
)
def test_hash_two_has_its_published_values(a: int, b: int, seed: int, expected: int) -> None:
    assert hash_two(a, b, seed) == expected


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0xE087F6299FF1B481),
        (b"a", 0, 0x6D0E3D8705C62FC6),
        (b"a\0", 0, 0xBBDB166009871446),
        (b"0123456789abcdef", 0, 0xAEC3084E7ADCF7EC),
        (b"0123456789abcdef0", 1, 0x67C9664A18CE079C),
        (bytes(range(64)), 0x0123456789ABCDEF, 0x4F17553A1CB0E491),
    ],
)
def test_hash_bytes_has_its_published_values(data: bytes, seed: int, expected: int) -> None:
    assert hash_bytes(data, seed) == expected


@given(WORDS, WORDS, WORDS)
def test_hash_two_is_what_big_integers_give(a: int, b: int, seed: int) -> None:
    assert hash_two(a, b, seed) == model_two(a, b, seed)


@given(st.binary(max_size=100), WORDS)
def test_hash_bytes_is_what_big_integers_give(data: bytes, seed: int) -> None:
    assert hash_bytes(data, seed) == model_bytes(data, seed)


def test_zero_padding_does_not_make_inputs_equal() -> None:
    assert len({hash_bytes(bytes(size)) for size in range(50)}) == 50


def test_no_input_cancels_the_constants_of_a_seeded_hash() -> None:
    # Eight bytes that equal a constant of the function would make a factor 0, and with it the hash of all
    # that came before, were the seed not in both factors.
    blocks = [bytes([i]) * 8 + HASH_1.to_bytes(8, "little") for i in range(64)]
    assert len({hash_bytes(block, 0x5EED) for block in blocks}) == 64
    assert len({hash_two(i, HASH_1, 0x5EED) for i in range(64)}) == 64
