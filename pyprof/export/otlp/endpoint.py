# SPDX-License-Identifier: Apache-2.0
"""Where profiles are sent, and how: from what was set explicitly, and from the environment.

Variables and their meaning: https://opentelemetry.io/docs/specs/otel/protocol/exporter/. For each setting,
what is explicit wins over OTEL_EXPORTER_OTLP_PROFILES_*, and that over OTEL_EXPORTER_OTLP_*; what is empty
counts as not set.
"""

import base64
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from pyprof.errors import ConfigError

HTTP = "http/protobuf"
GRPC = "grpc"
PATH = "/v1development/profiles"
"""Of the profiles service over HTTP, below a base URL."""

DEFAULT_TIMEOUT = 10.0
MAX_TIMEOUT = 3600.0

_DEFAULT_URL = {HTTP: "http://localhost:4318", GRPC: "http://localhost:4317"}
_SIGNAL = "OTEL_EXPORTER_OTLP_PROFILES_"
_GENERAL = "OTEL_EXPORTER_OTLP_"

# https://www.rfc-editor.org/rfc/rfc9110#name-tokens; gRPC's names are fewer:
# https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md#requests
_TOKEN = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_GRPC_NAME = re.compile(r"[a-z0-9_.-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")
_OURS = frozenset(
    ("connection", "content-encoding", "content-length", "content-type", "host", "te", "transfer-encoding")
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What was set explicitly, on a command line or in a file; None or empty where nothing was.

    Attributes:
        endpoint: a URL. For HTTP one without a path is a base, to which PATH is added; any other is used as
            it is.
        protocol: "http/protobuf" or "grpc".
        headers: sent with each request.
        compression: "gzip" or "none".
        timeout: seconds for one request.
        ca_file: PEM file of the certificates that a server's may be signed by.
        client_certificate: PEM file that we identify ourselves with.
        client_key: PEM file of its key.
        insecure: no TLS, for gRPC targets that are no http or https URL.
    """

    endpoint: str | None = None
    protocol: str | None = None
    headers: Mapping[str, str] | None = None
    compression: str | None = None
    timeout: float | None = None
    ca_file: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None
    insecure: bool | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Settings that can be used. What may be secret is not in its repr.

    Attributes:
        url: http or https URL without user and password; for gRPC also a target in gRPC's own notation.
        protocol: HTTP or GRPC.
        headers: (name in lower case, value), as they are sent.
        compression: "gzip" or "none".
        timeout: seconds for one request, from the first byte sent to the last received.
        ca_file: see Settings; "" for the system's certificates.
        client_certificate: see Settings; "" for none.
        client_key: see Settings; "" for none.
        insecure: see Settings.
    """

    url: str = field(repr=False)
    protocol: str = HTTP
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    compression: str = "gzip"
    timeout: float = DEFAULT_TIMEOUT
    ca_file: str = ""
    client_certificate: str = ""
    client_key: str = ""
    insecure: bool = False

    @property
    def secure(self) -> bool:
        """Whether TLS is used."""
        if self.url.startswith(("http://", "https://")):
            return self.url.startswith("https://")
        return not self.insecure

    @property
    def shown(self) -> str:
        """The URL for people: without a query, which may hold a key."""
        return self.url.partition("?")[0]

    @property
    def files(self) -> tuple[str, ...]:
        """The files of certificates and keys that were named."""
        return tuple(name for name in (self.ca_file, self.client_certificate, self.client_key) if name)


def endpoint_of(
    settings: Settings, environ: Mapping[str, str], named: Callable[[str], str] = "otlp.{}".format
) -> Endpoint:
    """Puts settings and environment together.

    Args:
        settings: what is explicit.
        environ: the environment.
        named: how the user calls a field of Settings, for messages.

    Raises:
        ConfigError: a value cannot be used.
    """
    return _Reader(settings, environ, named).endpoint()


class _Reader:
    """Looks settings up, and knows by what name each was found."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], named: Callable[[str], str]) -> None:
        self._settings = settings
        self._environ = environ
        self._named = named

    def _text(self, key: str, variable: str = "") -> tuple[str, str]:
        """(what it is called, value); ("", "") where it is not set."""
        explicit = getattr(self._settings, key)
        if explicit not in (None, "", {}):
            return self._named(key), str(explicit)
        for prefix in (_SIGNAL, _GENERAL):
            name = prefix + (variable or key.upper())
            value = self._environ.get(name, "").strip()
            if value:
                return name, value
        return "", ""

    def _choice(self, key: str, allowed: tuple[str, ...]) -> str:
        name, value = self._text(key)
        if name and value not in allowed:
            raise ConfigError(f"{name} is {_quoted(value)}, but has to be one of: {', '.join(allowed)}")
        return value or allowed[0]

    def endpoint(self) -> Endpoint:
        protocol = self._choice("protocol", (HTTP, GRPC))
        url, credentials = self._url(protocol)
        headers = self._headers(protocol)
        if credentials and not any(name == "authorization" for name, _ in headers):
            headers = (*headers, ("authorization", credentials))
        certificate, key = self._file("client_certificate"), self._file("client_key")
        if bool(certificate) != bool(key):
            given, missing = ("client_certificate", "client_key")[:: 1 if certificate else -1]
            raise ConfigError(f"{self._text(given)[0]} is of no use without {self._named(missing)}")
        return Endpoint(
            url,
            protocol,
            headers,
            self._choice("compression", ("gzip", "none")),
            self._timeout(),
            self._file("ca_file", "CERTIFICATE"),
            certificate,
            key,
            self._insecure(),
        )

    def _url(self, protocol: str) -> tuple[str, str]:
        """(URL without credentials, value of an Authorization header that they stand for)."""
        name, value = self._text("endpoint")
        base = not name or name == _GENERAL + "ENDPOINT"
        value = value or _DEFAULT_URL[protocol]
        if not re.fullmatch(r"[\x21-\x7e]+", value):
            raise ConfigError(f"{name or 'the endpoint'} has a character that no URL has: percent-encode it")
        if not re.match(r"https?://", value, re.IGNORECASE):
            return self._target(name, value, protocol), ""
        try:
            parts = urlsplit(value)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{name} is no URL: its host or port cannot be read") from error
        if not parts.hostname or port == 0:
            raise ConfigError(f"{name} names no host, or no port that there is")
        host = parts.netloc.rpartition("@")[2]
        path = parts.path
        if protocol == GRPC:
            if path not in {"", "/"} or parts.query:
                raise ConfigError(
                    f"{name} has a path, which gRPC has no use for: leave it out, or use protocol {HTTP}"
                )
            return f"{parts.scheme}://{host}", _credentials(parts)
        if base:
            path = path.rstrip("/") + PATH
        elif path in {"", "/"}:
            # The variable of the signal is used as it is: whoever sets it means the root.
            path = "/" if name.startswith(_SIGNAL) else PATH
        query = f"?{parts.query}" if parts.query else ""
        return f"{parts.scheme}://{host}{path}{query}", _credentials(parts)

    def _target(self, name: str, value: str, protocol: str) -> str:
        if protocol == HTTP:
            raise ConfigError(
                f"{name} has to be a URL that begins with http:// or https://; host:port alone is for gRPC"
            )
        if "@" in value or ("://" in value and not re.match(r"(dns|unix|ipv[46]):", value)):
            raise ConfigError(f"{name} is neither an http or https URL nor host:port nor unix:PATH")
        return value

    def _headers(self, protocol: str) -> tuple[tuple[str, str], ...]:
        if self._settings.headers:
            called = self._named("headers")
            pairs = list(self._settings.headers.items())
        else:
            called, text = self._text("headers")
            pairs = _baggage(called, text)
        found: dict[str, str] = {}
        for number, (given, value) in enumerate(pairs, 1):
            name = given.lower()
            if not (_GRPC_NAME if protocol == GRPC else _TOKEN).fullmatch(name):
                raise ConfigError(f"{called}: the name of header {number} has a character that may not be")
            if name in _OURS or (protocol == GRPC and name.startswith("grpc-")):
                raise ConfigError(f"{called}: {name} is not yours to set")
            if not _HEADER_VALUE.fullmatch(value):
                raise ConfigError(f"{called}: the value of {name} has to be printable ASCII")
            found[name] = value
        return tuple(found.items())

    def _timeout(self) -> float:
        explicit = self._settings.timeout
        if explicit is not None:
            name, seconds = self._named("timeout"), float(explicit)
            allowed = f"seconds, above 0 and up to {MAX_TIMEOUT:g}"
        else:
            name, value = self._text("timeout")
            if not name:
                return DEFAULT_TIMEOUT
            seconds = int(value) / 1000 if re.fullmatch(r"[0-9]{1,9}", value) else 0
            allowed = f"whole milliseconds, from 1 to {MAX_TIMEOUT * 1000:.0f}"
        if not 0 < seconds <= MAX_TIMEOUT:
            raise ConfigError(f"{name} has to be a number of {allowed}")
        return seconds

    def _insecure(self) -> bool:
        name, value = self._text("insecure")
        if value.lower() not in {"", "true", "false"}:
            raise ConfigError(f"{name} is {_quoted(value)}, but has to be true or false")
        return value.lower() == "true"

    def _file(self, key: str, variable: str = "") -> str:
        name, value = self._text(key, variable)
        if name:
            try:
                with open(value, "rb") as file:
                    file.read(1)
            except (OSError, ValueError) as error:
                reason = os.strerror(error.errno or 0) if isinstance(error, OSError) else "no path"
                raise ConfigError(f"{name}: {_quoted(value)} cannot be read: {reason}") from error
        return value


def _baggage(called: str, text: str) -> list[tuple[str, str]]:
    """Headers in the form of https://www.w3.org/TR/baggage/, which the specification takes for them, without
    properties.

    Raises:
        ConfigError: a part is not name=value.
    """
    pairs = []
    for number, member in enumerate(text.split(","), 1):
        if not member.strip():
            continue
        name, equals, value = member.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{called}: part {number} is not name=value (write a comma in a value as %2C)")
        pairs.append((unquote(name.strip()), unquote(value.strip())))
    return pairs


def _credentials(parts: SplitResult) -> str:
    """The Authorization header for a URL's user and password, https://www.rfc-editor.org/rfc/rfc7617."""
    if parts.username is None:
        return ""
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


def _quoted(text: str) -> str:
    """For messages, short and printable; only of values that are no secret."""
    return repr(text if len(text) <= 100 else text[:100] + "...")
