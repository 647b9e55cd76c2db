# SPDX-License-Identifier: Apache-2.0
"""The command line: finds the verb, runs it, turns errors into one sentence and an exit code."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Protocol

from pyprof import __version__
from pyprof.errors import ConfigError, PyprofError

EPILOG = """\
examples:
  pyprof record -d 10                          profile the whole host for 10 s into flamegraph.html
  pyprof record -F 999 -p 4711 -o web.pb.gz    one process and its children, for `go tool pprof`
  pyprof record -o build.folded -- make -j8    a command from its first instruction until it ends
  pyprof daemon --otlp-endpoint http://HOST:4318   the whole host, all the time, to a collector
  pyprof doctor                                what this host offers, what is missing, how to get it

exit codes: 0 done; 1 cannot (missing privilege, file, feature); 2 bad arguments or configuration;
`record -- COMMAND` passes the command's own on.
"""


class Verb(Protocol):
    """A verb's module has a class Verb with these."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


VERBS = {
    "record": "sample the host, some processes or a command; write a profile",
    "daemon": "sample the host all the time; send profiles to an OpenTelemetry Collector",
    "doctor": "say what this host offers for profiling and what is missing",
    "inspect": "show what pyprof knows of a file, a process or a running recorder",
}


def make_parser(wanted: str | None) -> tuple[argparse.ArgumentParser, Verb | None]:
    """The parser, with the arguments of the wanted verb only: the other verbs' modules stay unloaded."""
    parser = argparse.ArgumentParser(
        prog="pyprof",
        description="Whole-host profiler: every process, kernel and user, by eBPF.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pyprof {__version__}")
    subparsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    verb: Verb | None = None
    for name, title in VERBS.items():
        sub = subparsers.add_parser(
            name, help=title, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        if name == wanted:
            verb = importlib.import_module(f"pyprof.cli.{name}").Verb()
            verb.prepare_parser(sub)
    return parser, verb


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    wanted = next((word for word in words if not word.startswith("-")), None)
    parser, verb = make_parser(wanted)
    args = parser.parse_args(words)
    if verb is None:
        parser.error(f"no such verb: {wanted}")
    try:
        code = verb.run(args)
        sys.stdout.flush()  # here, not at exit: its errors are to be handled below
    except PyprofError as error:
        print(f"pyprof: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except BrokenPipeError:
        # Who read our output is gone; nothing more can be said to it, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
