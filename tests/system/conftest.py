# SPDX-License-Identifier: Apache-2.0
"""What system tests share."""

from collections.abc import Sequence

import pytest

from tests.support.profiling import SCALE
from tests.support.programs import Program, Recording, record_programs


@pytest.fixture(name="recording", scope="module")
def record_the_modules_programs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Recording:
    """The PROGRAMS of a test module, recorded together."""
    programs: Sequence[Program] = request.module.PROGRAMS
    # On a machine so slow that it is scaled, as few samples as are enough.
    return record_programs(tmp_path_factory.mktemp("programs"), programs, 10 if SCALE == 1 else SCALE / 2)
