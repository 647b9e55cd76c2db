# SPDX-License-Identifier: Apache-2.0
"""Settings as text: what holds, with secrets masked, and the example file."""

import textwrap
from urllib.parse import urlsplit, urlunsplit

from pyprof.daemon.config import DEFAULT_FILE, Config
from pyprof.daemon.settings import TABLES, Setting, Value

MASK = "***"
WIDTH = 100

EXAMPLE_HEAD = f"""\
# SPDX-License-Identifier: Apache-2.0
# Configuration of `pyprof daemon`: every setting, with its default. Copy it to
# {DEFAULT_FILE} and take away the "#" before what you change. The variable and the flag that stand
# above a setting set it, too; variables win over this file, and flags over variables.
# `pyprof daemon --check` shows what holds. What is marked "restart" is read at the start only, the rest
# also on SIGHUP (systemctl reload pyprof).
"""


def masked_url(url: str) -> str:
    """A URL without user, password and query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    host = parts.netloc.rpartition("@")[2]
    user = f"{MASK}@" if host != parts.netloc else ""
    return urlunsplit(parts._replace(netloc=user + host, query=MASK if parts.query else ""))


def masked(each: Setting, value: Value) -> Value:
    """What may be shown of a value."""
    if isinstance(value, dict):
        return dict.fromkeys(value, MASK) if each.secret else value
    if each.secret:
        return MASK
    return masked_url(value) if each.name == "endpoint" and isinstance(value, str) else value


def toml(value: Value) -> str:
    """A value as TOML has it (https://toml.io/en/v1.0.0)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        pairs = ", ".join(f"{_quoted(name)} = {_quoted(text)}" for name, text in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    return repr(value)


def _quoted(text: str) -> str:
    escapes = {'"': '\\"', "\\": "\\\\"}
    return '"' + "".join(
        escapes.get(char, char if char.isprintable() else f"\\U{ord(char):08x}") for char in text
    ) + '"'  # fmt: skip


def render(config: Config) -> str:
    """What holds, as a TOML file with where each value comes from; secrets masked."""
    lines: list[str] = []
    for table, settings in TABLES.items():
        lines += ["", f"[{table}]"] if lines else [f"[{table}]"]
        for each in settings:
            value = masked(each, getattr(config.settings, each.name))
            lines.append(f"{each.key} = {toml(value)}  # {config.sources[each.name]}")
    return "\n".join(lines) + "\n"


def template() -> str:
    """An example file: every setting, explained, with its default, commented out."""
    lines = [EXAMPLE_HEAD.rstrip()]
    for table, settings in TABLES.items():
        lines += ["", f"[{table}]"]
        for each in settings:
            lines += ["", *_comment(each), f"#{each.key} = {toml(each.default)}"]
    return "\n".join(lines) + "\n"


def _comment(each: Setting) -> list[str]:
    restart = "" if each.live else "; restart"
    allowed = (
        f" {each.allowed[0].upper()}{each.allowed[1:]}."
        if each.choices or each.unit or each.kind is int
        else ""
    )
    text = textwrap.wrap(each.doc + allowed, WIDTH - 2)
    return [f"# {line}" for line in [*text, f"{each.variable}, {each.flags[-1]}{restart}"]]
