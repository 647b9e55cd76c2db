# SPDX-License-Identifier: Apache-2.0
"""The verb's arguments: what is checked, shown and refused before anything is sampled."""

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from pyprof.daemon.config import load
from pyprof.daemon.exporting import effective, endpoint_for, open_spool
from pyprof.daemon.settings import SETTINGS
from pyprof.errors import ConfigError
from tests.support.profiling import ROOT, pyprof


def daemon(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return pyprof("daemon", *arguments, env=clean | environ)


def file(folder: Path, text: str = "") -> Path:
    path = folder / "pyprof.toml"
    path.write_text(text)
    return path


def test_check_shows_what_holds_and_where_it_comes_from(tmp_path: Path) -> None:
    path = file(tmp_path, "[sampling]\nhz = 31\n")
    done = daemon(
        "--check", "--config", str(path), "--interval", "7",
        PYPROF_SPOOL_DIR="/srv/spool",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://collector:4318",
        OTEL_EXPORTER_OTLP_HEADERS="authorization=geheim",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "geheim" not in done.stdout
    lines = done.stdout.splitlines()
    for line in (
        f"hz = 31  # {path}",
        "interval = 7.0  # --interval",
        'dir = "/srv/spool"  # PYPROF_SPOOL_DIR',
        'endpoint = "http://collector:4318/v1development/profiles"  # OTEL_EXPORTER_OTLP_ENDPOINT',
        'headers = { "authorization" = "***" }  # OTEL_EXPORTER_OTLP_HEADERS',
        'level = "info"  # default',
    ):
        assert line in lines
    shown = tomllib.loads(done.stdout)
    assert sum(len(table) for table in shown.values()) == len(SETTINGS)


def test_check_refuses_what_cannot_be(tmp_path: Path) -> None:
    for arguments, environ, told in (
        (["--config", "/none.toml"], {}, "/none.toml: cannot be read: No such file or directory"),
        (["-F", "0"], {}, "--frequency: 0 is not a whole number from 1 to 10000"),
        (["--otlp-endpoint", "ftp://me:geheim@host"], {}, "--otlp-endpoint: export.endpoint "),
        ([], {"OTEL_EXPORTER_OTLP_PROTOCOL": "carrier pigeon"}, "OTEL_EXPORTER_OTLP_PROTOCOL is "),
    ):
        done = daemon("--check", *arguments, **environ)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"pyprof: {told}")
        assert done.stderr.count("\n") == 1
        assert "geheim" not in done.stderr


def test_unknown_flag_ends_with_the_same_code() -> None:
    done = daemon("--interv", "5")
    assert done.returncode == 2
    assert "unrecognized arguments: --interv" in done.stderr


def test_example_is_the_file_of_the_package() -> None:
    assert daemon("--example").stdout == (ROOT / "packaging" / "pyprof.toml").read_text()


def test_help_tells_every_setting() -> None:
    text = daemon("--help").stdout
    for each in SETTINGS:
        assert each.flags[-1] in text
        assert each.variable in text.replace("\n", "").replace(" ", "")


def test_own_settings_win_over_opentelemetrys_variables(tmp_path: Path) -> None:
    path = str(file(tmp_path, '[export]\nendpoint = "http://mine:1"\ntimeout = 3\nca_file = ""\n'))
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://general:1",
        "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT": "http://signal:1/x",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "7000",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "PYPROF_EXPORT_PROTOCOL": "grpc",
    }
    endpoint = endpoint_for(load(path, environ, {}), environ)
    assert (endpoint.url, endpoint.timeout, endpoint.compression) == ("http://mine:1", 3.0, "none")
    assert endpoint.protocol == "grpc"
    empty = str(file(tmp_path, '[export]\nendpoint = ""\n'))
    found = effective(load(empty, {}, {}), environ)
    assert found.settings.endpoint == "http://signal:1/x"
    assert found.sources["endpoint"] == "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT"
    assert found.sources["timeout"] == "OTEL_EXPORTER_OTLP_TIMEOUT"


def test_spool_that_was_named_has_to_be_usable(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    config = load(str(file(tmp_path)), {}, {"spool_dir": str(blocked / "spool")})
    with pytest.raises(ConfigError, match="spool folder"):
        open_spool(config)


def test_no_spool_is_opened_where_none_is_wanted(tmp_path: Path) -> None:
    assert open_spool(load(str(file(tmp_path)), {}, {"spool_dir": ""})) is None
