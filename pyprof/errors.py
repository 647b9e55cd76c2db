# SPDX-License-Identifier: Apache-2.0
"""The errors that pyprof raises on purpose; everything else is a defect."""


class PyprofError(Exception):
    """Base of all: its text is one sentence for the operator, saying what is wrong and what to do."""


class HostError(PyprofError):
    """This host cannot profile: a privilege, kernel feature or file is missing."""


class TargetError(PyprofError):
    """A process or command that was named cannot be profiled."""


class ProcError(PyprofError):
    """A file below /proc has a form that we do not know."""


class ElfError(PyprofError):
    """An ELF file is not one, is damaged, or states what cannot be."""


class OutputError(PyprofError):
    """A profile cannot be written where it was asked for."""


class ConfigError(PyprofError):
    """A setting, variable or argument has a value that it cannot have, or there is no such setting."""
