# SPDX-License-Identifier: Apache-2.0
"""Stacks to count, as columns: the same in every run."""

import random
from array import array
from dataclasses import dataclass
from itertools import accumulate

NATIVE, KERNEL = 1, 2


@dataclass
class Columns:
    """Stack i is [starts[i], starts[i + 1]) of the frames, leaf first."""

    starts: "array[int]"
    kinds: "array[int]"
    executables: "array[int]"
    addresses: "array[int]"

    def __len__(self) -> int:
        return len(self.starts) - 1


def distinct_stacks(chance: random.Random, count: int, depth: int) -> list[list[tuple[int, int, int]]]:
    """Stacks as a program of a dozen libraries has them: they share their roots, part ways somewhere, and
    many end in the kernel. Frames as (kind, executable, address)."""
    functions = [
        (NATIVE, chance.randrange(2, 14), 0x1000 + chance.randrange(0, 1 << 22)) for _ in range(6000)
    ]
    kernel = [(KERNEL, 0, 0xFFFFFFFF81000000 + chance.randrange(0, 1 << 24)) for _ in range(800)]
    stacks: dict[tuple[tuple[int, int, int], ...], None] = {}
    rooted = [[functions[0]]]  # root first
    while len(stacks) < count:
        stem = chance.choice(rooted)
        stack = stem[: chance.randrange(1, len(stem) + 1)]
        while len(stack) < depth:
            tail = chance.randrange(0, 5) == 0 and len(stack) >= depth - 8
            stack = [*stack, chance.choice(kernel if tail or stack[-1][0] == KERNEL else functions)]
        rooted.append(stack)
        stacks[tuple(reversed(stack))] = None
    return [list(stack) for stack in stacks]


def make_columns(count: int = 100_000, distinct: int = 2000, depth: int = 30) -> Columns:
    """`count` stacks of which some are far more frequent than others, as in any program."""
    chance = random.Random(20)
    stacks = distinct_stacks(chance, distinct, depth)
    weights = list(accumulate(1 / (rank + 3) for rank in range(distinct)))
    picked = [*range(distinct), *chance.choices(range(distinct), cum_weights=weights, k=count - distinct)]
    chance.shuffle(picked)
    columns = Columns(array("Q", [0]), array("I"), array("I"), array("Q"))
    for number in picked:
        for kind, executable, address in stacks[number]:
            columns.kinds.append(kind)
            columns.executables.append(executable)
            columns.addresses.append(address)
        columns.starts.append(len(columns.addresses))
    return columns
