# SPDX-License-Identifier: Apache-2.0
"""Batches on disk: what comes back is what was put there, or is counted."""

import errno
import os
import stat
import subprocess
import sys
import zlib
from pathlib import Path

import lz4.frame
import pytest

from pyprof.errors import ConfigError
from pyprof.export.otlp.batch import Batch
from pyprof.export.otlp.spool import (
    CLOSED,
    DAMAGED,
    DISK_FULL,
    READ_ONLY,
    SPOOL_FULL,
    TOO_OLD,
    UNREADABLE,
    NotKept,
    Spool,
)
from pyprof.export.otlp.spool_file import DamagedFile, Name, decode, encode, name_of, name_of_temporary
from tests.support.otlp_batches import batch_of
from tests.support.otlp_sending import small_disk

NOW = 1_700_000_000
BATCH = Batch(b"a request " * 20, 123, NOW * 10**9)


def opened(folder: Path, **settings: float) -> Spool:
    """A spool whose clocks stand still."""
    return Spool(folder, clock=lambda: 1000.0, wall=lambda: float(NOW), **settings)  # type: ignore[arg-type]


def emptied(spool: Spool) -> list[Batch]:
    """All that waits, in order; the spool is closed."""
    found = []
    while (first := spool.first()) is not None:
        found.append(first[1])
        spool.remove(first[0])
    assert (len(spool), spool.samples, spool.bytes) == (0, 0, 0)
    spool.close()
    return found


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def filled(folder: Path, *samples: int) -> list[Path]:
    """A closed spool with a batch for each number."""
    spool = opened(folder)
    for number in samples:
        spool.put(batch_of(number, time=NOW * 10**9))
    spool.close()
    return files(folder)


def test_batches_come_back_in_order(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    batches = [batch_of(n, size=1000) for n in (3, 1, 2)]
    for batch in batches:
        spool.put(batch)
    assert (len(spool), spool.samples, spool.found, spool.lost) == (3, 6, 0, {})
    assert emptied(spool) == batches
    assert files(tmp_path) == []


def test_batches_come_back_in_order_after_a_restart(tmp_path: Path) -> None:
    batches = [Batch(b"%d" % n, n, NOW * 10**9 + n) for n in range(30)]
    for part in (batches[:10], batches[10:20], batches[20:]):
        spool = opened(tmp_path)
        for batch in part:
            spool.put(batch)
        spool.close()
    spool = opened(tmp_path)
    assert (len(spool), spool.samples, spool.found) == (30, sum(range(30)), sum(range(30)))
    assert emptied(spool) == batches


def test_order_is_that_of_the_sequence_and_not_of_writing(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    first, second = spool.next_sequence(), spool.next_sequence()
    spool.keep(spool.write(batch_of(2), second))
    spool.keep(spool.write(batch_of(1), first))
    assert [batch.samples for batch in emptied(spool)] == [1, 2]


def test_first_stays_until_it_is_removed(tmp_path: Path) -> None:
    filled(tmp_path, 7)
    spool = opened(tmp_path)
    for _ in range(2):
        found = spool.first()
        assert found is not None and found[1].samples == 7
        spool.release()
    assert [batch.samples for batch in emptied(spool)] == [7]


def test_postponed_batch_comes_last_also_after_a_restart(tmp_path: Path) -> None:
    filled(tmp_path, 1, 2, 3)
    spool = opened(tmp_path)
    first = spool.first()
    assert first is not None
    assert spool.postpone(first[0]).name.samples == 1
    spool.release()
    spool.close()
    spool = opened(tmp_path)
    assert [batch.samples for batch in emptied(spool)] == [2, 3, 1]


def test_file_is_laid_out_as_documented() -> None:
    name, content = encode(BATCH, 0xABC)
    frame = content[64:]
    assert str(name) == f"0000000000000abc-123-{len(content)}-{NOW}000000000.otlp.lz4"
    assert name.temporary == f".{name}.tmp"
    header = b"".join(
        (
            (0x184D2A57).to_bytes(4, "little"),  # magic number of a skippable frame
            (56).to_bytes(4, "little"),  # bytes of it that follow
            b"pyprofSP",
            (1).to_bytes(4, "little"),  # version
            zlib.crc32(frame).to_bytes(4, "little"),
            (123).to_bytes(8, "little"),  # samples
            (NOW * 10**9).to_bytes(8, "little"),  # time
            len(frame).to_bytes(8, "little"),
            len(BATCH.payload).to_bytes(8, "little"),
            bytes(4),
        )
    )
    assert content[:64] == header + zlib.crc32(header).to_bytes(4, "little")
    assert lz4.frame.decompress(frame) == BATCH.payload
    info = lz4.frame.get_frame_info(frame)
    assert info["content_checksum"] and info["content_size"] == len(BATCH.payload)
    assert decode(content, name) == BATCH


def test_lz4_tool_unpacks_a_file(tmp_path: Path) -> None:
    (path,) = filled(tmp_path, 5)
    done = subprocess.run(["lz4", "-dc", path], check=True, capture_output=True)
    assert done.stdout == batch_of(5).payload


@pytest.mark.parametrize("batch", [Batch(b"", 0, 0), Batch(bytes(5_000_000), 2**62, 2**62)])
def test_extreme_batch_comes_back(batch: Batch) -> None:
    name, content = encode(batch, 2**64 - 1)
    assert decode(content, name) == batch
    assert name_of(str(name)) == name
    assert name_of_temporary(name.temporary) == name


@pytest.mark.parametrize(
    "text",
    ["", "x", "0000000000000001-1-1-1.otlp.lz4.tmp", "1-1-1-1.otlp.lz4", "000000000000000A-1-1-1.otlp.lz4"],
)
def test_other_names_are_none_of_ours(text: str) -> None:
    assert name_of(text) is None
    assert name_of_temporary(text) is None


def test_every_flipped_bit_and_every_cut_is_found() -> None:
    name, content = encode(BATCH, 1)
    hurt = [content[:size] for size in range(len(content))] + [content + b"\0", b"", content * 2]
    for at in range(len(content)):
        for bit in (0, 7):
            changed = bytearray(content)
            changed[at] ^= 1 << bit
            hurt.append(bytes(changed))
    for data in hurt:
        with pytest.raises(DamagedFile):
            decode(data, name)


@pytest.mark.parametrize(
    "name", [Name(1, 124, 0, NOW * 10**9), Name(1, 123, 1, NOW * 10**9), Name(1, 123, 0, NOW * 10**9 + 1)]
)
def test_name_that_is_not_the_contents_is_found(name: Name) -> None:
    _, content = encode(BATCH, 1)
    with pytest.raises(DamagedFile, match="name"):
        decode(content, name._replace(size=len(content) + name.size))


@pytest.mark.parametrize("cut", [0, 1, 4, 63, 64, 65, -1])
def test_torn_file_is_counted_in_samples_and_the_rest_goes_on(cut: int, tmp_path: Path) -> None:
    paths = filled(tmp_path, 1, 20, 300)
    os.truncate(paths[1], cut if cut >= 0 else paths[1].stat().st_size + cut)
    spool = opened(tmp_path)
    assert spool.found == 321
    assert [batch.samples for batch in emptied(spool)] == [1, 300]
    assert spool.lost == {DAMAGED: 20}
    assert files(tmp_path) == []


def test_flipped_byte_is_counted_in_samples_and_the_rest_goes_on(tmp_path: Path) -> None:
    paths = filled(tmp_path, 1, 20, 300)
    content = bytearray(paths[1].read_bytes())
    content[70] ^= 1
    paths[1].write_bytes(content)
    spool = opened(tmp_path)
    assert [batch.samples for batch in emptied(spool)] == [1, 300]
    assert spool.lost == {DAMAGED: 20}


def test_file_that_vanished_is_counted(tmp_path: Path) -> None:
    paths = filled(tmp_path, 1, 20)
    spool = opened(tmp_path)
    paths[0].unlink()
    assert [batch.samples for batch in emptied(spool)] == [20]
    assert spool.lost == {UNREADABLE: 1}


def test_whole_file_with_a_temporary_name_is_taken_on(tmp_path: Path) -> None:
    paths = filled(tmp_path, 1, 20)
    paths[1].rename(tmp_path / f".{paths[1].name}.tmp")
    spool = opened(tmp_path)
    assert (spool.found, spool.torn) == (21, 0)
    assert files(tmp_path) == paths
    assert [batch.samples for batch in emptied(spool)] == [1, 20]


def test_torn_file_with_a_temporary_name_is_removed_and_counted(tmp_path: Path) -> None:
    paths = filled(tmp_path, 1, 20)
    os.truncate(paths[1], 70)
    paths[1].rename(tmp_path / f".{paths[1].name}.tmp")
    spool = opened(tmp_path)
    assert (spool.found, spool.torn, spool.lost) == (21, 1, {DAMAGED: 20})
    assert files(tmp_path) == paths[:1]
    assert [batch.samples for batch in emptied(spool)] == [1]


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    paths = filled(tmp_path, 1)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / Name(5, 5, 5, 5).temporary).mkdir()
    (tmp_path / str(Name(6, 6, 6, 6))).symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / str(Name(7, 7, 7, 7)))
    spool = opened(tmp_path)
    assert (spool.foreign, spool.found) == (4, 1)
    assert [batch.samples for batch in emptied(spool)] == [1]
    assert len(files(tmp_path)) == 4
    assert not paths[0].exists()


def test_file_that_became_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (path,) = filled(tmp_path / "spool", 1)
    spool = opened(tmp_path / "spool")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert emptied(spool) == []
    assert spool.lost == {UNREADABLE: 1}
    assert (tmp_path / "elsewhere").exists()


def test_oldest_give_way_to_stay_within_the_bytes(tmp_path: Path) -> None:
    spool = opened(tmp_path, max_bytes=3 * 4096)
    for samples in range(1, 6):
        spool.put(batch_of(samples, time=NOW * 10**9))
        assert sum(path.stat().st_blocks * 512 for path in files(tmp_path)) <= 3 * 4096
    assert spool.lost == {SPOOL_FULL: 3}
    assert [batch.samples for batch in emptied(spool)] == [3, 4, 5]


def test_what_is_being_sent_does_not_give_way(tmp_path: Path) -> None:
    spool = opened(tmp_path, max_bytes=2 * 4096)
    for samples in (1, 2):
        spool.put(batch_of(samples))
    first = spool.first()
    assert first is not None
    spool.put(batch_of(3))
    assert spool.lost == {SPOOL_FULL: 2}
    spool.remove(first[0])
    assert [batch.samples for batch in emptied(spool)] == [3]


def test_batch_larger_than_the_spool_is_not_kept_and_drives_nothing_out(tmp_path: Path) -> None:
    spool = opened(tmp_path, max_bytes=8192)
    spool.put(batch_of(1))
    with pytest.raises(NotKept) as raised:
        spool.put(batch_of(2, size=9000))
    assert raised.value.reason == SPOOL_FULL
    assert [batch.samples for batch in emptied(spool)] == [1]
    assert not spool.lost


def test_smaller_bounds_hold_at_once(tmp_path: Path) -> None:
    filled(tmp_path, 1, 2, 3)
    spool = opened(tmp_path, max_bytes=2 * 4096)
    assert (spool.samples, spool.found, spool.lost) == (5, 6, {SPOOL_FULL: 1})
    spool.limit(4096, 1000)
    assert (spool.samples, spool.lost) == (3, {SPOOL_FULL: 3})
    spool.close()


class Clocks:
    """A spool's clocks, which the test sets."""

    def __init__(self) -> None:
        self.since_boot, self.wall = 5000.0, float(NOW)

    def spool(self, folder: Path) -> Spool:
        return Spool(folder, max_age=100, clock=lambda: self.since_boot, wall=lambda: self.wall)


def test_batches_older_than_the_bound_are_given_up(tmp_path: Path) -> None:
    clocks = Clocks()
    spool = clocks.spool(tmp_path)
    spool.put(batch_of(1))
    clocks.since_boot += 60
    spool.put(batch_of(2))
    clocks.since_boot += 41
    assert [batch.samples for batch in emptied(spool)] == [2]
    assert spool.lost == {TOO_OLD: 1}
    assert files(tmp_path) == []


def test_age_goes_on_over_a_restart(tmp_path: Path) -> None:
    clocks = Clocks()
    spool = clocks.spool(tmp_path)
    spool.put(batch_of(1, time=NOW * 10**9))
    spool.put(batch_of(2, time=(NOW + 50) * 10**9))
    spool.close()
    clocks.since_boot, clocks.wall = 3.0, NOW + 101  # after a restart of the host
    spool = clocks.spool(tmp_path)
    assert [batch.samples for batch in emptied(spool)] == [2]
    assert (spool.found, spool.lost) == (3, {TOO_OLD: 1})


@pytest.mark.parametrize("step", [10**9, -(10**9)])
def test_setting_the_hosts_clock_makes_nothing_old(step: int, tmp_path: Path) -> None:
    clocks = Clocks()
    spool = clocks.spool(tmp_path)
    spool.put(batch_of(1, time=NOW * 10**9))
    clocks.wall += step
    spool.put(batch_of(2, time=(NOW + step) * 10**9))
    clocks.since_boot += 99
    assert [batch.samples for batch in emptied(spool)] == [1, 2]


def test_files_and_folder_are_for_root_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        paths = filled(tmp_path / "a" / "spool", 1)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a" / "spool").stat().st_mode) == 0o700
    assert stat.S_IMODE(paths[0].stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702, 0o1777])
def test_folder_that_others_can_write_to_is_refused(mode: int, tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool").chmod(mode)
    with pytest.raises(ConfigError, match="others can write"):
        Spool(tmp_path / "spool")


def test_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root")
    (tmp_path / "spool").mkdir(0o700)
    os.chown(tmp_path / "spool", 12345, 12345)
    with pytest.raises(ConfigError, match="others can write"):
        Spool(tmp_path / "spool")


@pytest.mark.parametrize("make", ["file", "link", "below a file", "with a zero"])
def test_what_is_no_folder_is_refused(make: str, tmp_path: Path) -> None:
    path = tmp_path / "spool"
    if make == "file":
        path.touch()
    elif make == "link":
        path.symlink_to("/tmp")
    elif make == "below a file":
        path.touch()
        path /= "spool"
    else:
        path = tmp_path / "a\0b"
    with pytest.raises(ConfigError, match="cannot be used"):
        Spool(path)


def test_second_process_on_one_folder_is_refused(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    code = f"from pyprof.export.otlp.spool import Spool\nSpool({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "ConfigError" in done.stderr and "in use by another pyprof" in done.stderr
    spool.close()
    subprocess.run([sys.executable, "-c", code], check=True)


def test_closed_spool_keeps_nothing(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    spool = opened(tmp_path)
    spool.close()
    with pytest.raises(NotKept, match=CLOSED):
        spool.put(batch_of(2))
    assert spool.first() is None
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("options", ["size=256k", "nr_inodes=5"])
def test_full_disk_is_a_reason_and_leaves_nothing_half(options: str, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", options) as disk:
        spool = Spool(disk)
        kept = 0
        with pytest.raises(NotKept) as raised:
            while kept < 10:
                spool.put(batch_of(1, size=60_000))
                kept += 1
        assert raised.value.reason == DISK_FULL
        assert 0 < kept == len(spool) == len(files(disk))
        first = spool.first()
        assert first is not None
        spool.remove(first[0])
        spool.put(batch_of(5, size=1000))  # there is room again
        assert [batch.samples for batch in emptied(spool)] == [*(kept - 1) * [1], 5]
        assert not spool.lost


def test_read_only_disk_is_a_reason_and_what_waits_can_be_sent(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=1m") as disk:
        filled(disk, 1)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        spool = opened(disk)
        with pytest.raises(NotKept) as raised:
            spool.put(batch_of(2))
        assert raised.value.reason == READ_ONLY
        assert [batch.samples for batch in emptied(spool)] == [1]
        assert spool.errors == 1


def test_disk_error_is_a_reason(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    (tmp_path / "spool").rmdir()
    with pytest.raises(NotKept) as raised:
        spool.put(batch_of(2))
    assert os.strerror(errno.ENOENT) in str(raised.value)
    assert (spool.samples, spool.bytes) == (0, 0)
    spool.close()
