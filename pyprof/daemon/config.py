# SPDX-License-Identifier: Apache-2.0
"""Where settings come from: defaults, the file, PYPROF_* variables, the command line; the later wins."""

import difflib
import os
import stat
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pyprof.daemon.settings import SETTINGS, TABLES, Setting, Settings, Value
from pyprof.errors import ConfigError

DEFAULT_FILE = "/etc/pyprof/pyprof.toml"
FILE_VARIABLE = "PYPROF_CONFIG"
MAX_FILE = 1 << 20
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Config:
    """Settings, and where each comes from.

    Attributes:
        settings: the values.
        sources: by name of the setting: "default", the file, the variable or the flag.
        file: the configuration file that was read, "" for none.
        warnings: what looks like a mistake and is none for certain.
    """

    settings: Settings
    sources: Mapping[str, str]
    file: str = ""
    warnings: tuple[str, ...] = ()

    def explicit(self, name: str) -> bool:
        """Whether somebody set it."""
        return self.sources[name] != DEFAULT

    def secrets(self) -> tuple[str, ...]:
        """Texts that must never be shown."""
        secrets = [*self.settings.headers.values()]
        with suppress(ValueError):
            url = urlsplit(self.settings.endpoint)
            secrets += [url.password or "", url.query]
        return tuple(filter(None, secrets))


def load(path: str | None, environ: Mapping[str, str], flags: Mapping[str, str | None]) -> Config:
    """Reads all sources.

    Args:
        path: the file that was named; None for $PYPROF_CONFIG, else DEFAULT_FILE where there is one.
        environ: the environment.
        flags: texts from the command line by name of the setting, None where not given.

    Raises:
        ConfigError: something in it is wrong; the sentence says where.
    """
    named = path if path is not None else environ.get(FILE_VARIABLE)
    file = named if named is not None else DEFAULT_FILE
    values: dict[str, Value] = {}
    sources = {each.name: DEFAULT for each in SETTINGS}
    if named is not None or Path(file).exists():
        values = read_file(file)
        sources |= dict.fromkeys(values, file)
    else:
        file = ""
    for each in SETTINGS:
        # An empty variable counts as not set: OpenTelemetry says the same of its own.
        if environ.get(each.variable):
            values[each.name] = each.of_text(environ[each.variable], each.variable)
            sources[each.name] = each.variable
        text = flags.get(each.name)
        if text is not None:
            flag = each.flags[-1]
            values[each.name] = each.of_text(text, flag)
            sources[each.name] = flag
    settings = Settings(**values)  # type: ignore[arg-type]  # each was checked against its field
    _check_together(settings)
    return Config(settings, sources, file, tuple(_doubtful(environ)))


def _check_together(settings: Settings) -> None:
    if bool(settings.client_certificate) != bool(settings.client_key):
        raise ConfigError("export.client_certificate and export.client_key go together: set both or none")


def _doubtful(environ: Mapping[str, str]) -> list[str]:
    """Variables that may be misspelt. No error: others may have set them, as container platforms do for
    a service that is called pyprof."""
    known = [each.variable for each in SETTINGS]
    found = []
    for name in sorted(environ):
        if name not in known and name.startswith(tuple(f"PYPROF_{table}_".upper() for table in TABLES)):
            near = difflib.get_close_matches(name, known, 1)
            if near:
                found.append(f"the variable {name} sets nothing: did you mean {near[0]}?")
    return found


def read_file(path: str) -> dict[str, Value]:
    """The settings that a file has, by name.

    Raises:
        ConfigError: it cannot be read, is no TOML, or has keys or values that it cannot have.
    """
    try:
        document = tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None
    values: dict[str, Value] = {}
    for table, content in document.items():
        if table not in TABLES:
            raise ConfigError(f"{path}: {_unknown(table, content)}")
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: {table} is a table: write [{table}], then its keys below")
        known = {each.key: each for each in TABLES[table]}
        for key, value in content.items():
            if key not in known:
                near = _nearest(f"{table}.{key}")
                raise ConfigError(f"{path}: there is no setting {table}.{key}{near}")
            values[known[key].name] = known[key].of_value(value, f"{path}: {table}.{key}")
    return values


def _unknown(table: str, content: object) -> str:
    """The sentence for what stands at the top of a file and is no table of ours."""
    if isinstance(content, dict):
        near = difflib.get_close_matches(table, TABLES, 1)
        return f"there is no table [{table}]" + (f": did you mean [{near[0]}]?" if near else "")
    return f"there is no setting {table} outside of the tables{_nearest(table)}"


def _nearest(path: str) -> str:
    """`: did you mean ...?` of what is likely meant by a path of table and key, or by a key alone."""
    known = [each.path for each in SETTINGS]
    same_key = [each.path for each in SETTINGS if each.key == path.rpartition(".")[2]]
    near = same_key or difflib.get_close_matches(path, known, 1)
    if not near:
        keys = {each.key: each.path for each in SETTINGS}
        near = [keys[key] for key in difflib.get_close_matches(path.rpartition(".")[2], keys, 1)]
    return f": did you mean {near[0]}?" if near else ""


def _text(path: str) -> str:
    """A file as text; not one that never ends, and not one that waits for somebody to write to it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ConfigError(f"{path}: not a regular file")
            data = file.read(MAX_FILE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    if len(data) > MAX_FILE:
        raise ConfigError(f"{path}: larger than {MAX_FILE >> 20} MiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None


def readable_secrets(config: Config) -> str:
    """A warning where users other than its owner can read headers in the file, else ""."""
    if config.sources["headers"] != config.file or not config.settings.headers:
        return ""
    try:
        mode = Path(config.file).stat().st_mode
    except OSError:
        return ""
    return f"{config.file} has headers in it and every user can read it: chmod 600" if mode & 0o004 else ""


def changes(old: Settings, new: Settings) -> tuple[list[Setting], list[Setting]]:
    """(what a reload changes, what it cannot change) between two settings."""
    differ = [each for each in SETTINGS if getattr(old, each.name) != getattr(new, each.name)]
    return [each for each in differ if each.live], [each for each in differ if not each.live]
