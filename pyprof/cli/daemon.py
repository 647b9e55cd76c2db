# SPDX-License-Identifier: Apache-2.0
"""pyprof daemon: samples the host all the time and sends profiles to a collector."""

import argparse
import os
import sys

from pyprof.daemon.config import DEFAULT_FILE, FILE_VARIABLE, Config, load
from pyprof.daemon.config_text import render, template, toml
from pyprof.daemon.settings import TABLES, Setting

DESCRIPTION = """\
Samples all processes of this host and sends a profile each interval to an OpenTelemetry Collector, until
SIGTERM or Ctrl-C: then it sends what is left, within five seconds. SIGHUP has it read its configuration anew.

A collector that is away costs nothing: profiles wait in the spool, and are sent when it is back.
"""

EPILOG = f"""\
Each setting has three names: a key in the file ({DEFAULT_FILE}, --config or ${FILE_VARIABLE}), a
variable and a flag. Flags win over variables, and these over the file; below them count
OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS and the like. [live]: SIGHUP changes it; the
others need a restart.

examples:
  sudo pyprof daemon --otlp-endpoint http://collector:4318   profiles of the whole host, 19 Hz, each 5 s
  sudo pyprof daemon --check                                 what would hold, and whether it can
  pyprof daemon --example >/etc/pyprof/pyprof.toml           a file with every setting, explained
  systemctl reload pyprof                                    after a change of the file

exit codes: 0 stopped by a signal; 1 cannot (missing privilege, file, feature); 2 bad arguments or
configuration.
"""


def explain(each: Setting) -> str:
    """The help of a setting's flag."""
    choices = f" One of: {', '.join(each.choices)}." if each.choices else ""
    numbers = (
        f" {each.low} to {each.high}{f' {each.unit}' if each.unit else ''}."
        if each.kind in (int, float)
        else ""
    )
    default = "none" if each.default in ("", {}) else toml(each.default).strip('"')
    live = " [live]" if each.live else ""
    text = f"{each.doc}{choices}{numbers} Default: {default}. ${each.variable}{live}"
    return text.replace("%", "%%")


class Verb:
    """daemon"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.description = DESCRIPTION
        parser.epilog = EPILOG
        parser.usage = "pyprof daemon [--config FILE] [options]"
        parser.add_argument(
            "--config",
            metavar="FILE",
            help=f"configuration file (default {DEFAULT_FILE}, where there is one)",
        )
        parser.add_argument(
            "--check", action="store_true", help="only check the configuration and print what holds"
        )
        parser.add_argument(
            "--example", action="store_true", help="only print an example of a configuration file"
        )
        for table, settings in TABLES.items():
            group = parser.add_argument_group(f"[{table}]")
            for each in settings:
                # Texts: what they may be is checked with all the other sources.
                if each.kind is bool:
                    group.add_argument(
                        *each.flags, dest=each.name, action="store_const", const="true", help=explain(each)
                    )
                else:
                    group.add_argument(*each.flags, dest=each.name, metavar=each.metavar, help=explain(each))

    def run(self, args: argparse.Namespace) -> int:
        if args.example:
            print(template(), end="")
            return 0
        flags = {each.name: getattr(args, each.name) for settings in TABLES.values() for each in settings}

        def read() -> Config:
            return load(args.config, os.environ, flags)

        if args.check:
            self._check(read())
            return 0
        from pyprof.daemon.service import Service

        Service(read, os.environ).run()
        return 0

    def _check(self, config: Config) -> None:
        from pyprof.daemon.exporting import effective

        print(render(effective(config, os.environ)), end="")
        for warning in config.warnings:
            print(f"pyprof: {warning}", file=sys.stderr)
