# SPDX-License-Identifier: Apache-2.0
"""The daemon's settings: one table, from which come the keys of its file, its variables, flags and help."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import unquote

from pyprof.errors import ConfigError
from pyprof.host import MAX_HZ

Value = int | float | str | bool | dict[str, str]

TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A header's name: RFC 9110, section 5.6.2."""

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        name: attribute of Settings.
        table: table of the file, without brackets.
        key: key in that table.
        kind: type of the value; a float takes whole numbers, too.
        default: what holds where nothing is set.
        doc: what it does, for help and the file; whole sentences.
        low: least number.
        high: highest number.
        unit: of the number.
        choices: the strings that are allowed.
        check: what is wrong with a string, "" for nothing.
        flags: on the command line.
        metavar: what its help calls the value.
        live: a reload changes it; else the daemon must be restarted.
        secret: never shown.
    """

    name: str
    table: str
    key: str
    kind: type
    default: Value
    doc: str
    low: float = -math.inf
    high: float = math.inf
    unit: str = ""
    choices: tuple[str, ...] = ()
    check: Callable[[str], str] | None = None
    flags: tuple[str, ...] = ()
    metavar: str = ""
    live: bool = False
    secret: bool = False

    @property
    def path(self) -> str:
        """As it is named in messages: table.key."""
        return f"{self.table}.{self.key}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"PYPROF_{self.table}_{self.key}".upper()

    @property
    def allowed(self) -> str:
        """What may stand there, in words; "" where anything may."""
        if self.choices:
            return " or ".join(f'"{choice}"' for choice in self.choices)
        if self.kind in (int, float):
            unit = f" {self.unit}" if self.unit else ""
            number = "a whole number" if self.kind is int else "a number"
            return f"{number} from {self.low} to {self.high}{unit}"
        return {bool: "true or false", dict: "pairs of a name and a value", str: "text"}[self.kind]

    def of_value(self, value: object, where: str) -> Value:
        """A value of the configuration file, checked.

        Args:
            value: as the TOML parser gives it.
            where: what the error names.

        Raises:
            ConfigError: of another type, or not allowed.
        """
        if self.kind is dict:
            return self._pairs(value, where)
        if self.kind is float and type(value) is int:
            value = float(value) if abs(value) < 2**53 else math.inf
        if type(value) is not self.kind:
            raise ConfigError(f"{where}: {_shown(value, self.secret)} is not {self.allowed}")
        if isinstance(value, str):
            problem = self._problem(value)
            if problem:
                raise ConfigError(f"{where}: {problem}")
            return value
        if not isinstance(value, bool):
            # Written so that NaN is refused.
            if not (isinstance(value, (int, float)) and self.low <= value <= self.high):
                raise ConfigError(f"{where}: {_shown(value, self.secret)} is not {self.allowed}")
            return value
        return value

    def of_text(self, text: str, where: str) -> Value:
        """A value of an environment variable or of the command line, checked.

        Raises:
            ConfigError: it is not what it should be.
        """
        refused = ConfigError(f"{where}: {_shown(text, self.secret)} is not {self.allowed}")
        if self.kind is bool:
            if text.lower() not in ("true", "false"):
                raise refused
            return text.lower() == "true"
        if self.kind is dict:
            return self._pairs(parse_pairs(text, where), where)
        if self.kind is str:
            return self.of_value(text, where)
        try:
            value = self.kind(text)
        except ValueError:
            raise refused from None
        return self.of_value(value, where)

    def _problem(self, value: str) -> str:
        if self.choices and value not in self.choices:
            return f"{_shown(value, self.secret)} is not {self.allowed}"
        if not value.isprintable():
            # Also bytes of the environment that are not UTF-8.
            return "it has characters that cannot stand there"
        return self.check(value) if self.check else ""

    def _pairs(self, value: object, where: str) -> dict[str, str]:
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: that is not {self.allowed}")
        for name, text in value.items():
            if not TOKEN.fullmatch(name):
                raise ConfigError(f"{where}: {name!r} cannot be the name of a header")
            if not isinstance(text, str):
                raise ConfigError(f"{where}: the value of {name!r} is not text in quotes")
            if not text.isprintable() or not text.isascii():
                raise ConfigError(f"{where}: the value of {name!r} has characters that no header can have")
        return {str(name): str(text) for name, text in value.items()}


def _shown(value: object, secret: bool) -> str:
    return "the value" if secret else repr(value)


def parse_pairs(text: str, where: str) -> dict[str, str]:
    """Pairs as OTEL_EXPORTER_OTLP_HEADERS has them: ``name=value,name=value``, percent-encoded.

    Raises:
        ConfigError: a part has no "=". The part is not named: it may be a secret.
    """
    pairs = {}
    for number, part in enumerate(text.split(","), 1):
        if not part.strip():
            continue
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"{where}: part {number} is not of the form NAME=VALUE")
        pairs[unquote(name.strip())] = unquote(value.strip())
    return pairs


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``[V6]:PORT``.

    Raises:
        ValueError: it has another form.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address stands in brackets")
    if not (colon and host and port.isascii() and port.isdecimal()) or int(port) > 0xFFFF:
        raise ValueError("no host and port")
    return host, int(port)


def check_address(text: str) -> str:
    if not text:
        return ""
    try:
        parse_address(text)
    except ValueError:
        return f"{text!r} is not of the form HOST:PORT"
    return ""


def check_folder(text: str) -> str:
    return "" if not text or text.startswith("/") else f"{text!r} is not an absolute path"


def _setting(table: str, key: str, default: Value, doc: str, **rest: Any) -> Any:
    """A field of Settings; its type is the default's."""
    made = {"table": table, "key": key, "kind": type(default), "default": default, "doc": doc, **rest}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={"setting": made})
    return field(default=default, metadata={"setting": made})


@dataclass(frozen=True, slots=True)
class Settings:
    """The values that hold. See SETTINGS for what each means."""

    hz: int = _setting(
        "sampling", "hz", 19,
        "Samples a second on each CPU. Not a round number, so that sampling does not keep step with what "
        "the host does a hundred times a second.",
        low=1, high=MAX_HZ, flags=("-F", "--frequency"), metavar="HZ",
    )  # fmt: skip
    event: str = _setting(
        "sampling", "event", "cpu-clock", "What drives the sampling; cycles needs a hardware counter.",
        choices=("cpu-clock", "cycles"), flags=("-e", "--event"), metavar="EVENT",
    )  # fmt: skip
    by: str = _setting(
        "sampling", "by", "process",
        "What stacks are kept apart by. With thread, samples carry their thread.",
        choices=("process", "thread"), flags=("--by",), metavar="WHAT",
    )  # fmt: skip
    interval: float = _setting(
        "export", "interval", 5.0, "How long each profile is.",
        low=1, high=3600, unit="seconds", flags=("--interval",), metavar="SECONDS", live=True,
    )  # fmt: skip
    endpoint: str = _setting(
        "export", "endpoint", "",
        "URL of the OpenTelemetry Collector, http://HOST:PORT. Where it is empty the OTEL_EXPORTER_OTLP_* "
        "variables say, else it is this host, port 4318 for http/protobuf and 4317 for grpc. "
        "Over HTTP a URL without a path gets /v1development/profiles.",
        flags=("--otlp-endpoint",), metavar="URL", live=True,
    )  # fmt: skip
    protocol: str = _setting(
        "export", "protocol", "http/protobuf", "How profiles travel. grpc takes some 17 MiB more memory.",
        choices=("http/protobuf", "grpc"), flags=("--otlp-protocol",), metavar="PROTOCOL", live=True,
    )  # fmt: skip
    headers: dict[str, str] = _setting(  # noqa: RUF009  # it makes a field()
        "export", "headers", {},
        "Headers sent with each request, such as credentials. On the command line and in variables: "
        "NAME=VALUE,NAME=VALUE, percent-encoded. Every user can read a command line: better here or in "
        "a variable.",
        flags=("--otlp-headers",), metavar="PAIRS", live=True, secret=True,
    )  # fmt: skip
    compression: str = _setting(
        "export", "compression", "gzip", "How requests are compressed.",
        choices=("gzip", "none"), flags=("--otlp-compression",), metavar="HOW", live=True,
    )  # fmt: skip
    timeout: float = _setting(
        "export", "timeout", 10.0, "How long an answer is waited for.",
        low=0.1, high=600, unit="seconds", flags=("--otlp-timeout",), metavar="SECONDS", live=True,
    )  # fmt: skip
    insecure: bool = _setting(
        "export", "insecure", False, "For grpc with an endpoint that names no scheme: do without TLS.",
        flags=("--otlp-insecure",), metavar="BOOL", live=True,
    )  # fmt: skip
    ca_file: str = _setting(
        "export", "ca_file", "",
        "PEM file of the authorities that the collector's certificate is checked with; empty: those of "
        "the system.",
        flags=("--otlp-ca-file",), metavar="FILE", live=True,
    )  # fmt: skip
    client_certificate: str = _setting(
        "export", "client_certificate", "",
        "PEM file of the certificate that this host shows to the collector.",
        flags=("--otlp-client-certificate",), metavar="FILE", live=True,
    )  # fmt: skip
    client_key: str = _setting(
        "export", "client_key", "", "PEM file of the key of that certificate.",
        flags=("--otlp-client-key",), metavar="FILE", live=True,
    )  # fmt: skip
    shape: str = _setting(
        "export", "shape", "values",
        "How a sample is told: values are counts of equal stacks, and smallest; timestamps say when each "
        "was taken.",
        choices=("values", "timestamps"), flags=("--shape",), metavar="SHAPE",
    )  # fmt: skip
    max_message_bytes: int = _setting(
        "export", "max_message_bytes", 4_000_000,
        "Largest message, not compressed; what is larger is split. Collectors refuse more than 4 MiB "
        "unless they are told otherwise (max_recv_msg_size_mib).",
        low=65_536, high=1 << 30, unit="bytes", flags=("--max-message-bytes",), metavar="BYTES", live=True,
    )  # fmt: skip
    queue_mib: int = _setting(
        "export", "queue_mib", 16,
        "Most memory for profiles on their way; what does not fit goes to the spool.",
        low=1, high=1024, unit="MiB", flags=("--queue-mib",), metavar="MIB",
    )  # fmt: skip
    spool_dir: str = _setting(
        "spool", "dir", "/var/lib/pyprof/spool",
        "Folder for profiles that the collector does not take now; they are sent when it does, also after a "
        "restart. Empty: no spool, and what cannot be sent is lost and counted.",
        check=check_folder, flags=("--spool-dir",), metavar="DIR",
    )  # fmt: skip
    spool_max_mib: int = _setting(
        "spool", "max_mib", 256, "Most disk space of the spool; the oldest give way.",
        low=1, high=1 << 20, unit="MiB", flags=("--spool-max-mib",), metavar="MIB", live=True,
    )  # fmt: skip
    spool_max_age_hours: float = _setting(
        "spool", "max_age_hours", 24.0, "How old a profile may get in the spool.",
        low=0.01, high=8760, unit="hours", flags=("--spool-max-age-hours",), metavar="HOURS", live=True,
    )  # fmt: skip
    arena_mib: int = _setting(
        "memory", "arena_mib", 64,
        "Most kernel memory for unwind rows; what was sampled least recently gives way.",
        low=1, high=1024, unit="MiB", flags=("--arena-mib",), metavar="MIB",
    )  # fmt: skip
    grace: float = _setting(
        "memory", "grace", 20.0,
        "How long an executable that no process maps any more, and a process that ended, are kept after "
        "the last sample of them was reported.",
        low=0, high=86_400, unit="seconds", flags=("--grace",), metavar="SECONDS",
    )  # fmt: skip
    names: int = _setting(
        "memory", "names", 8192,
        "Most names of addresses that are kept from one profile to the next. What is not there is looked up: "
        "fewer cost CPU, not names.",
        low=1, high=1 << 24, flags=("--names",), metavar="COUNT",
    )  # fmt: skip
    symbol_tables_mib: int = _setting(
        "memory", "symbol_tables_mib", 4,
        "Most memory for symbol tables that are kept from one profile to the next. With 0 each is read again "
        "when an address without a name is met.",
        low=0, high=4096, unit="MiB", flags=("--symbol-tables-mib",), metavar="MIB",
    )  # fmt: skip
    idle: float = _setting(
        "memory", "idle", 60.0, "How long names and symbol tables are kept that no profile needs.",
        low=0.001, high=86_400, unit="seconds", flags=("--idle",), metavar="SECONDS",
    )  # fmt: skip
    metrics_listen: str = _setting(
        "metrics", "listen", "127.0.0.1:9764",
        "Where /metrics and /healthz are served. Empty: nowhere. Anyone who reaches it can read them.",
        check=check_address, flags=("--metrics-listen",), metavar="HOST:PORT",
    )  # fmt: skip
    log_level: str = _setting(
        "log", "level", "info", "What is logged: this and what is graver.",
        choices=("debug", "info", "warning", "error"), flags=("--log-level",), metavar="LEVEL", live=True,
    )  # fmt: skip
    log_format: str = _setting(
        "log", "format", "text",
        "Lines for people (in the journal with their priority), or one JSON object a line.",
        choices=("text", "json"), flags=("--log-format",), metavar="FORMAT", live=True,
    )  # fmt: skip


SETTINGS: tuple[Setting, ...] = tuple(
    Setting(name=each.name, **each.metadata["setting"]) for each in fields(Settings)
)
TABLES: Mapping[str, tuple[Setting, ...]] = {
    table: tuple(each for each in SETTINGS if each.table == table)
    for table in dict.fromkeys(each.table for each in SETTINGS)
}
