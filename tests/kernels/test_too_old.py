# SPDX-License-Identifier: Apache-2.0
"""A kernel that lacks what pyprof needs gets one sentence."""

from pathlib import Path

from tests.support.profiling import pyprof


def test_record_works_or_says_in_one_sentence_what_is_missing(tmp_path: Path) -> None:
    output = tmp_path / "out.folded"
    done = pyprof("record", "-d", "1", "-o", output)
    if done.returncode == 0:
        assert output.exists()
        return
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("pyprof: ")
    assert done.stderr.count("\n") == 1
    assert "Linux 5.15" in done.stderr
    assert not output.exists()
