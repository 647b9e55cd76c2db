# SPDX-License-Identifier: Apache-2.0
"""pyprof inspect: what the profiler knows of a file, of a process, or holds in a running recorder."""

import argparse

from pyprof.cli import inspect_elf, inspect_maps, inspect_process, inspect_unwind

EPILOG = """\
examples:
  pyprof inspect elf /usr/bin/python3      build IDs, segments, symbol tables
  pyprof inspect unwind /usr/bin/python3   how callers are found at each address
  sudo pyprof inspect process 4711         what of it is mapped, where its names come from
  sudo pyprof inspect maps --json          what the running recorder holds in the kernel
"""

SUBJECTS = {
    "elf": (inspect_elf, "what an executable or library is known by"),
    "unwind": (inspect_unwind, "how callers are found in an executable"),
    "process": (inspect_process, "what is known of a running process"),
    "maps": (inspect_maps, "what a running recorder holds"),
}


class Verb:
    """inspect"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.description = (
            "Show what pyprof knows of a file or a process, or what a running recorder holds."
        )
        parser.epilog = EPILOG
        subparsers = parser.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
        for name, (module, title) in SUBJECTS.items():
            sub = subparsers.add_parser(
                name,
                help=title,
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
            module.add_arguments(sub)

    def run(self, args: argparse.Namespace) -> int:
        status: int = SUBJECTS[args.subject][0].run(args)
        return status
