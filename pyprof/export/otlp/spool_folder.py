# SPDX-License-Identifier: Apache-2.0
"""The folder of a spool: only root's, and only one process's at a time."""

import errno
import fcntl
import os
import stat
from pathlib import Path

from pyprof.errors import ConfigError


def open_folder(folder: str) -> int:
    """A descriptor of the folder, which is made where there is none, and locked.

    Raises:
        ConfigError: it cannot be used, others can write to it, or another process uses it.
    """
    try:
        path = Path(folder)
        if not path.exists():
            path.mkdir(0o700, parents=True, exist_ok=True)
            parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                sync_folder(parent)
            finally:
                os.close(parent)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno or 0) if isinstance(error, OSError) else "it is no path"
        raise ConfigError(f"the spool folder {folder} cannot be used: {reason}") from error
    try:
        _claim(fd, folder)
    except ConfigError:
        os.close(fd)
        raise
    return fd


def _claim(fd: int, folder: str) -> None:
    if not is_ours(os.fstat(fd)):
        raise ConfigError(
            f"others can write to the spool folder {folder}: make it root's own (mode 0700), or name another"
        )
    try:
        # On the folder itself: also where the disk is full or read-only.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConfigError(
            f"the spool folder {folder} is in use by another pyprof: stop that one, or name another folder"
            if error.errno == errno.EWOULDBLOCK
            else f"the spool folder {folder} cannot be locked: {error.strerror}"
        ) from error


def sync_folder(fd: int) -> None:
    """Waits until the names in a folder are on disk.

    Raises:
        OSError: they cannot be written.
    """
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # file systems that have no such thing
            raise


def is_ours(status: os.stat_result) -> bool:
    """Whether nobody else can write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
