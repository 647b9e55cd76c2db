# SPDX-License-Identifier: Apache-2.0
"""Settings of where profiles are sent: what wins, and what is refused, in the words of its sentence."""

from pathlib import Path

import pytest

from pyprof.errors import ConfigError
from pyprof.export.otlp.endpoint import GRPC, HTTP, Endpoint, Settings, endpoint_of

GENERAL = "OTEL_EXPORTER_OTLP_"
SIGNAL = "OTEL_EXPORTER_OTLP_PROFILES_"


def of_environment(**variables: str) -> Endpoint:
    return endpoint_of(Settings(), {GENERAL + name: value for name, value in variables.items()})


def test_defaults_are_those_of_the_specification() -> None:
    found = endpoint_of(Settings(), {})
    assert found == Endpoint("http://localhost:4318/v1development/profiles", HTTP, (), "gzip", 10.0)
    assert endpoint_of(Settings(protocol=GRPC), {}).url == "http://localhost:4317"


@pytest.mark.parametrize(
    ("general", "url"),
    [
        ("http://c:4318", "http://c:4318/v1development/profiles"),
        ("http://c:4318/", "http://c:4318/v1development/profiles"),
        ("https://c/otlp", "https://c/otlp/v1development/profiles"),
        ("https://c/otlp/", "https://c/otlp/v1development/profiles"),
        ("http://[::1]:4318", "http://[::1]:4318/v1development/profiles"),
        ("http://c/a?k=v", "http://c/a/v1development/profiles?k=v"),
        ("HTTPS://c", "https://c/v1development/profiles"),
        (" http://c ", "http://c/v1development/profiles"),
    ],
)
def test_general_endpoint_is_a_base(general: str, url: str) -> None:
    assert of_environment(ENDPOINT=general).url == url


@pytest.mark.parametrize(("given", "url"), [("http://c/own", "http://c/own"), ("http://c", "http://c/")])
def test_endpoint_of_the_signal_is_used_as_it_is(given: str, url: str) -> None:
    environ = {GENERAL + "ENDPOINT": "http://other", SIGNAL + "ENDPOINT": given}
    assert endpoint_of(Settings(), environ).url == url


@pytest.mark.parametrize(
    ("given", "url"),
    [("http://c:1", "http://c:1/v1development/profiles"), ("http://c:1/own/", "http://c:1/own/")],
)
def test_explicit_endpoint_wins_over_the_environment(given: str, url: str) -> None:
    environ = {GENERAL + "ENDPOINT": "http://a", SIGNAL + "ENDPOINT": "http://b/x"}
    assert endpoint_of(Settings(endpoint=given), environ).url == url


def test_each_variable_of_the_signal_wins_over_the_general_one(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text("a")
    (tmp_path / "b.pem").write_text("b")
    keys = ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")
    environ = {GENERAL + key: str(tmp_path / "a.pem") for key in keys}
    environ |= {SIGNAL + key: str(tmp_path / "b.pem") for key in keys}
    for key, general, signal in (
        ("PROTOCOL", "http/protobuf", "grpc"),
        ("HEADERS", "a=1", "b=2"),
        ("COMPRESSION", "gzip", "none"),
        ("TIMEOUT", "1000", "2500"),
        ("INSECURE", "false", "TRUE"),
        ("ENDPOINT", "http://a", "http://b:4317"),
    ):
        environ |= {GENERAL + key: general, SIGNAL + key: signal}
    file = str(tmp_path / "b.pem")
    assert endpoint_of(Settings(), environ) == Endpoint(
        "http://b:4317", GRPC, (("b", "2"),), "none", 2.5, file, file, file, True
    )


def test_explicit_values_win_over_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "c.pem"
    file.write_text("c")
    settings = Settings("http://c", HTTP, {"C": "3"}, "none", 3, str(file), str(file), str(file), False)
    keys = {"PROTOCOL": "grpc", "HEADERS": "a=1", "COMPRESSION": "gzip", "TIMEOUT": "1", "INSECURE": "true"}
    found = endpoint_of(settings, {SIGNAL + key: value for key, value in keys.items()})
    path = str(file)
    assert found == Endpoint(
        "http://c/v1development/profiles", HTTP, (("c", "3"),), "none", 3.0, path, path, path, False
    )


def test_empty_variable_counts_as_not_set() -> None:
    environ = {SIGNAL + "ENDPOINT": "", GENERAL + "ENDPOINT": "http://a", GENERAL + "TIMEOUT": ""}
    found = endpoint_of(Settings(endpoint="", ca_file="", headers={}), environ)
    assert (found.url, found.timeout) == ("http://a/v1development/profiles", 10.0)


def test_headers_are_percent_decoded() -> None:
    found = of_environment(HEADERS="Authorization=Basic%20YTpi==, x-tenant = a%2Cb%3D ,,")
    assert found.headers == (("authorization", "Basic YTpi=="), ("x-tenant", "a,b="))


def test_credentials_of_the_url_become_a_header() -> None:
    found = of_environment(ENDPOINT="http://user:p%40ss@c:1/")
    assert found.url == "http://c:1/v1development/profiles"
    # echo -n user:p@ss | base64
    assert found.headers == (("authorization", "Basic dXNlcjpwQHNz"),)


def test_authorization_header_wins_over_credentials_of_the_url() -> None:
    assert of_environment(ENDPOINT="http://u:p@c", HEADERS="authorization=x").headers == (
        ("authorization", "x"),
    )


def test_secrets_are_not_in_the_repr() -> None:
    found = of_environment(ENDPOINT="http://u:secret1@c/?key=secret2", HEADERS="k=secret3")
    assert "secret" not in repr(found) + str(found) + found.shown
    assert found.shown == "http://c/v1development/profiles"


@pytest.mark.parametrize(
    ("target", "insecure", "secure"),
    [
        ("http://c:1", False, False),
        ("https://c:1", True, True),
        ("c:4317", False, True),
        ("c:4317", True, False),
        ("unix:/run/c.sock", True, False),
        ("dns:///c:4317", True, False),
    ],
)
def test_scheme_wins_over_insecure(target: str, insecure: bool, secure: bool) -> None:
    found = endpoint_of(Settings(target, GRPC, insecure=insecure), {})
    assert (found.url, found.secure) == (target, secure)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"ENDPOINT": "c:4318"}, "http:// or https://"),
        ({"ENDPOINT": "ftp://c"}, "http:// or https://"),
        ({"ENDPOINT": "http://"}, "no host"),
        ({"ENDPOINT": "http://c:99999"}, "port"),
        ({"ENDPOINT": "http://c:0"}, "port"),
        ({"ENDPOINT": "http://c:x"}, "port"),
        ({"ENDPOINT": "http://[::1"}, "host"),
        ({"ENDPOINT": "http://c/\r\nX: y"}, "percent-encode"),
        ({"ENDPOINT": "http://bücher"}, "percent-encode"),
        ({"ENDPOINT": "http://c/path", "PROTOCOL": "grpc"}, "path"),
        ({"ENDPOINT": "ftp://c", "PROTOCOL": "grpc"}, "host:port"),
        ({"PROTOCOL": "http/json"}, "http/protobuf, grpc"),
        ({"COMPRESSION": "zstd"}, "gzip, none"),
        ({"TIMEOUT": "0"}, "from 1 to 3600000"),
        ({"TIMEOUT": "10s"}, "from 1 to 3600000"),
        ({"TIMEOUT": "-1"}, "from 1 to 3600000"),
        ({"TIMEOUT": "3600001"}, "from 1 to 3600000"),
        ({"INSECURE": "yes"}, "true or false"),
        ({"HEADERS": "a=1,b"}, "part 2"),
        ({"HEADERS": "=1"}, "part 1"),
        ({"HEADERS": "a b=1"}, "header 1"),
        ({"HEADERS": "a=x%0d%0ay"}, "printable ASCII"),
        ({"HEADERS": "a=%C3%BC"}, "printable ASCII"),
        ({"HEADERS": "Content-Length=1"}, "content-length"),
        ({"HEADERS": "grpc-timeout=1", "PROTOCOL": "grpc"}, "grpc-timeout"),
        ({"CERTIFICATE": "/no/such/file"}, "No such file"),
        ({"CERTIFICATE": "/"}, "Is a directory"),
        ({"CLIENT_CERTIFICATE": "/etc/passwd"}, "client_key"),
        ({"CLIENT_KEY": "/etc/passwd"}, "client_certificate"),
    ],
)
def test_bad_value_is_refused_by_the_name_of_its_variable(variables: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        of_environment(**variables)
    text = str(raised.value)
    assert said in text
    assert any(GENERAL + name in text for name in variables)
    assert "\n" not in text


@pytest.mark.parametrize(
    "settings",
    [Settings(protocol="carrier pigeon"), Settings(timeout=float("nan")), Settings(timeout=1e9)],
)
def test_bad_explicit_value_is_refused_by_the_users_name_for_it(settings: Settings) -> None:
    with pytest.raises(ConfigError, match=r"^--otlp-(protocol|timeout) "):
        endpoint_of(settings, {}, "--otlp-{}".format)


@pytest.mark.parametrize(
    "variables",
    [
        {"HEADERS": "secret"},
        {"HEADERS": "a=secret\x01"},
        {"HEADERS": "content-type=secret"},
        {"ENDPOINT": "http://u:secret@c:99999"},
        {"ENDPOINT": "ftp://u:secret@c"},
        {"ENDPOINT": "ftp://u:secret@c", "PROTOCOL": "grpc"},
        {"ENDPOINT": "http://u:secret@c/path", "PROTOCOL": "grpc"},
    ],
)
def test_secrets_are_not_in_what_is_said_of_them(variables: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as raised:
        of_environment(**variables)
    assert "secret" not in str(raised.value)
