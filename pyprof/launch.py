# SPDX-License-Identifier: Apache-2.0
"""A command that is started stopped, so that it can be profiled from its first instruction."""

import errno
import os
import signal
from collections.abc import Sequence

from pyprof.errors import TargetError


class Launched:
    """A child process that waits, before its exec, until `release` is called.

    Attributes:
        pid: of the child; the command keeps it.
        fd: a pidfd, readable when the command has ended.
    """

    def __init__(self, command: Sequence[str], stdout: int | None = None) -> None:
        """Forks.

        Args:
            command: program, looked up in PATH, and arguments.
            stdout: descriptor that the command gets as standard output, by default ours.
        """
        self.command = list(command)
        self._status: int | None = None
        go_reader, self._go = os.pipe2(os.O_CLOEXEC)
        self._failed, failed_writer = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            self._become(go_reader, failed_writer, stdout)
        os.close(go_reader)
        os.close(failed_writer)
        self.fd = os.pidfd_open(self.pid)

    def _become(self, go: int, failed: int, stdout: int | None) -> None:
        """The child: waits for the word, then execs. Never returns."""
        try:
            os.close(self._go)
            if not os.read(go, 1):
                os._exit(0)  # the profiler gave up
            for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            if stdout is not None:
                os.dup2(stdout, 1)
            os.execvp(self.command[0], self.command)
        except OSError as error:
            os.write(failed, (error.errno or errno.EIO).to_bytes(4, "little"))
        except ValueError:  # a NUL byte in an argument
            os.write(failed, errno.EINVAL.to_bytes(4, "little"))
        finally:
            os._exit(127)

    def release(self) -> None:
        """Lets the command run.

        Raises:
            TargetError: it cannot be executed.
        """
        os.write(self._go, b"x")
        os.close(self._go)
        self._go = -1
        # The pipe closes with the exec; data before that is the error of a failed one.
        code = os.read(self._failed, 4)
        if code:
            self.wait()
            reason = os.strerror(int.from_bytes(code, "little"))
            raise TargetError(f"cannot run {self.command[0]!r}: {reason}")

    def signal(self, number: int) -> None:
        if self._status is None:
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Waits for the end; the exit status as a shell gives it: 128 + N for signal N."""
        if self._status is None:
            _, status = os.waitpid(self.pid, 0)
            self._status = os.waitstatus_to_exitcode(status)
        return self._status if self._status >= 0 else 128 - self._status

    def close(self) -> None:
        """Gives up a command that was not released, and the descriptors."""
        if self._go >= 0:
            os.close(self._go)
            self._go = -1
            self.wait()
        for fd in (self._failed, self.fd):
            if fd >= 0:
                os.close(fd)
        self._failed = self.fd = -1
