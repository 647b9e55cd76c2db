# SPDX-License-Identifier: Apache-2.0
"""Code that comes and goes at one address, in every way that a program can bring it about: no sample is
ever named after what was there before."""

from typing import NamedTuple

import pytest

from pyprof.session import POLL_SECONDS
from tests.support.compile import nm_symbols
from tests.support.profiling import build_target
from tests.support.scenes import Truth, below_callers, follow, recording, stacks_of, twins

pytestmark = pytest.mark.bpf

PARTS = ("low", "busy", "high")
CLOCK = {"clock_gettime", "clock_gettime@plt", "printf", "printf@plt"}
ALLOWED = {
    f"call_{name}_{part}": {f"{name}_{part}"} | CLOCK for name in ("alpha", "omega") for part in PARTS
} | {"call_copied": {"[anon]"} | CLOCK}

Command = list[str]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The program, and what comes after scene, rounds and milliseconds."""
    folder = tmp_path_factory.mktemp("remaps")
    program = build_target(folder, "remaps.c", "-Wl,-z,now")
    alpha, omega = twins(folder, "plugin.c", "-shared", "-fPIC", "-nostdlib", "-Wl,--build-id")
    # In files that begin with their first segment at address 0, these are also the places in the file.
    places = [nm_symbols(alpha)[f"alpha_{part}"] for part in PARTS]
    assert places == [nm_symbols(omega)[f"omega_{part}"] for part in PARTS], "two of the same layout"
    return [str(program), str(alpha), str(omega), *map(hex, places)]


class Played(NamedTuple):
    """Attributes: truth: see below_callers; places: caller -> where what it called was."""

    truth: Truth
    places: dict[str, set[str]]


def play(command: Command, scene: str, rounds: int, ms: int, every: float = POLL_SECONDS) -> Played:
    program, *rest = command
    with recording() as session:
        lines = follow(session, program, scene, str(rounds), str(ms), *rest, every=every)
        session.stop()
        stacks = stacks_of(session.take())
    truth = below_callers({stack: n for stack, n in stacks.items() if stack[0] == "remaps"}, ALLOWED)
    assert truth.wrong == {}
    places: dict[str, set[str]] = {}
    for line in lines:
        caller, place = line.split()
        places.setdefault(caller, set()).add(place)
    return Played(truth, places)


@pytest.mark.parametrize(
    ("scene", "rounds"), [("dlopen", 500), ("fixed", 500), ("mprotect", 500), ("hole", 100)]
)
def test_libraries_that_take_turns_at_one_address_are_told_apart(
    command: Command, scene: str, rounds: int
) -> None:
    # Unmapping without an event costs the samples between two looks their names: more looks, fewer of them.
    truth, places = play(command, scene, rounds, 2, every=0.02 if scene == "hole" else POLL_SECONDS)
    assert len(places["alpha_busy"]) == 1
    assert places["alpha_busy"] == places["omega_busy"]
    assert truth["right"] > 500
    assert truth["right"] / truth.total() > 0.9


def test_a_piece_of_another_file_in_a_hole_leaves_what_is_around_it(command: Command) -> None:
    _, places = play(command, "hole", 50, 2)
    assert all(len(place) == 1 for place in places.values())
    assert set(places) == {f"{name}_{part}" for name in ("alpha", "omega") for part in PARTS}


def test_code_copied_to_memory_without_a_file_has_no_name_of_the_file_before(command: Command) -> None:
    truth, places = play(command, "copied", 500, 2)
    assert places["copied"] == places["alpha_busy"]
    # Until the kernel side knows, it walks by the file's rows: such stacks are cut above the copy.
    assert truth["right"] > 200


def test_what_a_child_maps_is_not_its_parents(command: Command) -> None:
    truth, places = play(command, "fork", 100, 2)
    assert places["alpha_busy"] == places["omega_busy"]
    assert truth["right"] > 500


def test_library_moved_to_where_another_one_was_unmapped_is_never_named_after_that(command: Command) -> None:
    """No event tells of either: samples that /proc cannot be asked about any more have no name."""
    truth, places = play(command, "mremap", 200, 2)
    assert places["alpha_busy"] == places["omega_busy"]
    assert len(places["alpha_busy"]) == 2
    assert truth.total() > 500


def test_library_that_moves_is_soon_named_where_it_is(command: Command) -> None:
    truth, places = play(command, "moves", 3, 1500)
    assert len(places["alpha_busy"]) == 3
    assert truth["right"] / truth.total() > 0.5
