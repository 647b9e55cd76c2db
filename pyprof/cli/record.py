# SPDX-License-Identifier: Apache-2.0
"""pyprof record: sample, name, write."""

import argparse
import json
import logging
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from pyprof.cli.arguments import process_id
from pyprof.control import ControlSocket
from pyprof.errors import OutputError, TargetError
from pyprof.export.formats import FORMATS, STDOUT, format_for, write_file
from pyprof.launch import Launched
from pyprof.profile import completeness
from pyprof.profile.model import By, Profile
from pyprof.session import ARENA_BYTES, POLL_SECONDS, Options, Session, on_signals

DESCRIPTION = """\
Samples what runs on every CPU, kernel and user, and writes a profile. Without -d and COMMAND it goes on until
Ctrl-C, which ends a recording early and still writes it.
"""

EPILOG = """\
examples:
  sudo pyprof record -d 10                        the whole host for 10 s, into flamegraph.html
  sudo pyprof record -F 999 -p 4711 --top 20      one process and its children, until Ctrl-C
  sudo pyprof record -o build.folded -- make -j8  a command, from its first instruction to its end

formats, by the ending of FILE: {formats}; `-` is standard output.

A folded line is `process;root frame;...;leaf frame COUNT`; kernel frames end in _[k].
With --json, or -o -, COMMAND's standard output goes to standard error.
"""


def rate(text: str) -> int:
    hz = int(text)
    if not 1 <= hz <= 10_000:
        raise argparse.ArgumentTypeError(f"{hz} is not between 1 and 10000")
    return hz


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 10**7:
        raise argparse.ArgumentTypeError(f"{text} is not a time")
    return value


def mebibytes(text: str) -> int:
    size = int(text)
    if not 1 <= size <= 1024:
        raise argparse.ArgumentTypeError(f"{size} is not between 1 and 1024")
    return size


def check_writable(output: str) -> None:
    """Tells before a recording, not after it, that its file cannot be written.

    Raises:
        OutputError: there is no such folder, or no right to write there.
    """
    path = Path(output)
    if output == STDOUT:
        return
    if path.is_dir():
        raise OutputError(f"cannot write the profile to {output!r}: it is a folder")
    if not path.parent.is_dir():
        raise OutputError(f"cannot write the profile to {output!r}: there is no folder {str(path.parent)!r}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OutputError(f"cannot write the profile to {output!r}: no right to")


class Verb:
    """record"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.description = DESCRIPTION
        parser.epilog = EPILOG.format(formats=", ".join(f"{form.suffix} {form.title}" for form in FORMATS))
        parser.usage = "pyprof record [options] [-- COMMAND ...]"
        parser.add_argument("-d", "--duration", type=seconds, metavar="SECONDS", help="how long to sample")
        parser.add_argument(
            "-F", "--frequency", type=rate, default=99, metavar="HZ",
            help="samples a second on each CPU, 1 to 10000 (default 99)",
        )  # fmt: skip
        parser.add_argument(
            "-p", "--pid", type=process_id, action="append", default=[], metavar="PID",
            help="only this process and its descendants; may be repeated",
        )  # fmt: skip
        parser.add_argument(
            "-o", "--output", default="flamegraph.html", metavar="FILE",
            help="where to write the profile (default flamegraph.html)",
        )  # fmt: skip
        parser.add_argument(
            "--format", metavar="F", choices=[form.name for form in FORMATS],
            help="format, where FILE does not tell: " + ", ".join(form.name for form in FORMATS),
        )  # fmt: skip
        parser.add_argument(
            "--by", type=By, choices=list(By), default=By.PROCESS,
            help="what stacks are kept apart by (default process)",
        )  # fmt: skip
        parser.add_argument(
            "-e", "--event", choices=["cpu-clock", "cycles"], default="cpu-clock",
            help="what drives the sampling; cycles needs a hardware counter (default cpu-clock)",
        )  # fmt: skip
        parser.add_argument(
            "--top", type=int, default=0, metavar="N", help="also print the N hottest functions"
        )
        parser.add_argument(
            "--completeness", action="store_true",
            help="also print, by process and by executable, how many stacks reach their thread's start, and "
            "why others do not; with --json, as its member \"completeness\"",
        )  # fmt: skip
        parser.add_argument(
            "--arena-mib", type=mebibytes, default=ARENA_BYTES >> 20, metavar="MIB",
            help="most kernel memory for unwind rows, 1 to 1024 (default 64); what was sampled least "
            "recently gives way",
        )  # fmt: skip
        parser.add_argument("--json", action="store_true", help="print a summary as one JSON object")
        parser.add_argument(
            "-v", "--verbose", action="store_true",
            help="every 5 s a line on standard error of all that is held, as `pyprof inspect maps` tells it",
        )  # fmt: skip
        parser.add_argument("command", nargs="*", metavar="COMMAND", help=argparse.SUPPRESS)
        self._parser = parser

    def run(self, args: argparse.Namespace) -> int:
        form = format_for(args.output, args.format)
        if args.json and args.output == STDOUT:
            self._parser.error("--json and -o - both want standard output")
        if args.command and args.pid:
            self._parser.error("name processes with -p or give a COMMAND, not both")
        check_writable(args.output)
        logging.basicConfig(
            format="pyprof: %(message)s", level=logging.DEBUG if args.verbose else logging.WARNING
        )
        recording = Recording(args)
        status = recording.run()
        # Ctrl-C that comes when sampling is over must not cost the profile; a second one may.
        signal.signal(signal.SIGINT, lambda *_: signal.signal(signal.SIGINT, signal.default_int_handler))
        write_file(recording.profile, args.output, form)
        recording.summarise()
        return status


class Recording:
    """One recording, from the first event to the summary."""

    profile: Profile

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._ending = False
        self._interrupts = 0
        self._command: Launched | None = None
        self._cpu_sampling = 0.0
        self._names_problem = ""
        self._first: dict[str, int] = {}
        self._progress = Progress(args.duration, enabled=sys.stderr.isatty())

    def run(self) -> int:
        """Records; COMMAND's exit status, 0 without one.

        Raises:
            HostError: this host cannot profile.
            TargetError: the process or command is not there.
        """
        args = self._args
        options = Options(
            hz=args.frequency, event=args.event, by=args.by, pids=args.pid, arena_bytes=args.arena_mib << 20
        )
        with ExitStack() as stack:
            if args.command:
                redirected = 2 if args.json or args.output == STDOUT else None
                self._command = Launched(args.command, redirected)
                stack.callback(self._command.close)
            session = stack.enter_context(Session(options))
            from pyprof.host import prepare

            prepare(session)
            stack.callback(on_signals(session, (signal.SIGINT, signal.SIGTERM), self._interrupt))
            control = ControlSocket(session.state)
            stack.callback(control.close)
            if control.fd >= 0:
                session.watch(control.fd, control.serve)
            self._sample(session)
            self.profile = session.take()
            self._names_problem = session.kernel_names_problem
            self._first = session.samples()
        return self._command.wait() if self._command else 0

    def _sample(self, session: Session) -> None:
        command = self._command
        if command:
            session.table.set_only_targets()
            if not session.table.set_target(command.pid, on_exec=True):
                raise TargetError("the command is gone before it began")
            session.watch(command.fd, self._end)
        session.start()
        before = time.process_time()
        if command:
            command.release()
            session.follow_start(command.pid)
        deadline = time.monotonic() + self._args.duration if self._args.duration else None
        while not self._ending:
            left = deadline - time.monotonic() if deadline else POLL_SECONDS
            if left <= 0:
                break
            session.poll(min(left, POLL_SECONDS))
            self._progress.show(session)
        session.stop()
        self._cpu_sampling = time.process_time() - before
        self._progress.clear()
        if command and not self._ending:
            session.unwatch(command.fd)

    def _end(self) -> None:
        self._ending = True

    def _interrupt(self, number: int) -> None:
        """A first Ctrl-C ends a recording, or goes to the command, whose end ends the recording; a second
        one ends both."""
        self._interrupts += 1
        if self._command is None:
            self._ending = True
        elif self._interrupts == 1:
            # From a terminal Ctrl-C goes to the command as well.
            if number != signal.SIGINT or not sys.stdin.isatty():
                self._command.signal(number)
        else:
            self._command.signal(signal.SIGKILL)

    def summarise(self) -> None:
        """Says on standard error, or as JSON on standard output, what was recorded and what it cost."""
        args, profile = self._args, self.profile
        counts = profile.accounting
        duration = profile.duration / 1e9
        if args.top > 0:
            from pyprof.profile.hottest import hottest, render

            self._print_table(render(hottest(profile, args.top), counts.reported))
        if args.completeness and not args.json:
            self._print_table(completeness.render(completeness.completeness(profile)))
        cpu = time.process_time()
        if args.json:
            report = {
                "samples": {"taken": counts.taken, "reported": counts.reported, "lost": counts.lost},
                "incomplete": counts.incomplete,
                "seconds": round(duration, 3),
                "hz": profile.hz,
                "cpu_seconds": round(cpu, 3),
                "cpu_seconds_sampling": round(self._cpu_sampling, 3),
                "unwound_in_user_space": self._first["unwound_in_user_space"],
                "stack_copies_without_room": self._first["stack_copies_without_room"],
                "output": args.output,
            }
            if args.completeness:
                report["completeness"] = completeness.as_json(completeness.completeness(profile))
            print(json.dumps(report), flush=True)
            return
        lost = sum(counts.lost.values())
        incomplete = sum(counts.incomplete.values())
        say(
            f"{counts.taken} samples taken in {duration:.1f} s, {counts.reported} reported, "
            f"{lost} lost{reasons(counts.lost)}"
        )
        first, no_room = self._first["unwound_in_user_space"], self._first["stack_copies_without_room"]
        if first or no_room:
            text = f"{first} first samples of a process or file were unwound in user space"
            say(text + (f", {no_room} could not: no room for the copy of the stack" if no_room else ""))
        if incomplete:
            share = incomplete / max(counts.reported, 1)
            say(f"{share:.2%} of the stacks do not reach their thread's start{reasons(counts.incomplete)}")
        say(
            f"pyprof's own CPU: {self._cpu_sampling:.2f} s while sampling "
            f"({self._cpu_sampling / duration:.1%} of one core), {cpu:.2f} s in all"
        )
        if self._names_problem:
            say(self._names_problem)
        if args.output != STDOUT:
            say(f"wrote {args.output}")

    def _print_table(self, table: str) -> None:
        taken = self._args.json or self._args.output == STDOUT
        print(table, end="", file=sys.stderr if taken else sys.stdout, flush=True)


def say(text: str) -> None:
    print(text, file=sys.stderr)


def reasons(counts: dict[str, int]) -> str:
    """Counts by reason, in brackets, most first."""
    if not counts:
        return ""
    parts = sorted(counts.items(), key=lambda item: -item[1])
    return " (" + ", ".join(f"{reason}: {count}" for reason, count in parts) + ")"


class Progress:
    """The line on a terminal that says how far a recording is."""

    def __init__(self, duration: float | None, *, enabled: bool) -> None:
        self._duration = duration
        self._enabled = enabled
        self._begun = 0.0

    def show(self, session: Session) -> None:
        if not self._enabled:
            return
        now = time.monotonic()
        self._begun = self._begun or now
        passed = now - self._begun
        counts = session.accounting()
        total = f"/{self._duration:g}" if self._duration else ""
        lost = sum(counts.lost.values())
        line = f"{passed:.1f}{total} s  {counts.reported} samples  {lost} lost  (Ctrl-C ends)"
        # A terminal whose size nobody set, such as a serial console, says 0.
        width = (os.get_terminal_size(2).columns if os.isatty(2) else 0) or 80
        sys.stderr.write("\r" + line[: max(width - 1, 10)] + "\x1b[K")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._enabled:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
