# SPDX-License-Identifier: Apache-2.0
"""The daemon's configuration: which source wins, what each mistake is told as, and the example file."""

import os
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

from pyprof.daemon.config import Config, changes, load, readable_secrets
from pyprof.daemon.config_text import masked_url, render, template
from pyprof.daemon.settings import SETTINGS, Settings, parse_address
from pyprof.errors import ConfigError
from tests.support.profiling import ROOT


def load_text(folder: Path, text: str | bytes, **environ: str) -> Config:
    path = folder / "pyprof.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(str(path), environ, {})


def problem(folder: Path, text: str | bytes) -> str:
    """What is told of a file, without its name."""
    with pytest.raises(ConfigError) as caught:
        load_text(folder, text)
    return str(caught.value).removeprefix(f"{folder / 'pyprof.toml'}: ")


def test_defaults_hold_without_any_source(tmp_path: Path) -> None:
    config = load_text(tmp_path, "")
    assert config.settings == Settings()
    assert set(config.sources.values()) == {"default"}


def test_flags_win_over_variables_and_these_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "pyprof.toml"
    path.write_text('[sampling]\nhz = 1\n[export]\ninterval = 1\ntimeout = 1\n[log]\nlevel = "error"\n')
    environ = {"PYPROF_SAMPLING_HZ": "2", "PYPROF_EXPORT_INTERVAL": "2", "PYPROF_LOG_LEVEL": ""}
    config = load(str(path), environ, {"hz": "3", "interval": None})
    assert (config.settings.hz, config.settings.interval, config.settings.timeout) == (3, 2.0, 1.0)
    assert config.settings.log_level == "error"
    told = [config.sources[name] for name in ("hz", "interval", "timeout", "grace")]
    assert told == ["--frequency", "PYPROF_EXPORT_INTERVAL", str(path), "default"]
    assert [config.explicit(name) for name in ("hz", "grace")] == [True, False]


def test_variable_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "other.toml"
    path.write_text("[sampling]\nhz = 77\n")
    config = load(None, {"PYPROF_CONFIG": str(path)}, {})
    assert (config.settings.hz, config.file) == (77, str(path))


def test_each_kind_of_value_is_read_from_the_environment(tmp_path: Path) -> None:
    config = load_text(
        tmp_path,
        "",
        PYPROF_EXPORT_HEADERS="authorization=Bearer%20a%2Cb, x-scope = one,",
        PYPROF_EXPORT_INSECURE="True",
        PYPROF_SPOOL_MAX_AGE_HOURS="0.5",
        PYPROF_SPOOL_DIR="/srv/spool",
    )
    assert config.settings.headers == {"authorization": "Bearer a,b", "x-scope": "one"}
    assert config.settings.insecure is True
    assert (config.settings.spool_max_age_hours, config.settings.spool_dir) == (0.5, "/srv/spool")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[samplin]\nhz = 1", "there is no table [samplin]: did you mean [sampling]?"),
        ("[sampling]\nhrtz = 1", "there is no setting sampling.hrtz: did you mean sampling.hz?"),
        ("[log]\nxyzzy = 1", "there is no setting log.xyzzy"),
        ("[export]\nendpont = ''", "there is no setting export.endpont: did you mean export.endpoint?"),
        ("[sampling]\ninterval = 5", "there is no setting sampling.interval: did you mean export.interval?"),
        ("interval = 5", "there is no setting interval outside of the tables: did you mean export.interval?"),
        ("sampling = 5", "sampling is a table: write [sampling], then its keys below"),
        ("[[sampling]]\nhz = 1", "sampling is a table: write [sampling], then its keys below"),
        ("[sampling]\nhz = 0", "sampling.hz: 0 is not a whole number from 1 to 10000"),
        ("[sampling]\nhz = true", "sampling.hz: True is not a whole number from 1 to 10000"),
        ("[sampling]\nhz = 9.5", "sampling.hz: 9.5 is not a whole number from 1 to 10000"),
        ("[export]\ninterval = nan", "export.interval: nan is not a number from 1 to 3600 seconds"),
        ("[export]\ninterval = inf", "export.interval: inf is not a number from 1 to 3600 seconds"),
        (
            "[export]\ninterval = 1" + "0" * 400,
            "export.interval: inf is not a number from 1 to 3600 seconds",
        ),
        ("[export]\ninterval = '5'", "export.interval: '5' is not a number from 1 to 3600 seconds"),
        ("[export]\nprotocol = 'http'", 'export.protocol: \'http\' is not "http/protobuf" or "grpc"'),
        ("[export]\ninsecure = 1", "export.insecure: 1 is not true or false"),
        ("[export]\nca_file = 1", "export.ca_file: 1 is not text"),
        ('[export]\nca_file = "a\\u0000"', "export.ca_file: it has characters that cannot stand there"),
        ("[export]\nheaders = 'a=geheim'", "export.headers: that is not pairs of a name and a value"),
        ("[export.headers]\n'a b' = 'geheim'", "export.headers: 'a b' cannot be the name of a header"),
        ("[export.headers]\na = 1", "export.headers: the value of 'a' is not text in quotes"),
        (
            '[export.headers]\na = "geheim\\r\\n"',
            "export.headers: the value of 'a' has characters that no header can have",
        ),
        (
            "[export]\nclient_key = '/key'",
            "export.client_certificate and export.client_key go together: set both or none",
        ),
        ("[spool]\ndir = 'spool'", "spool.dir: 'spool' is not an absolute path"),
        ("[metrics]\nlisten = '9764'", "metrics.listen: '9764' is not of the form HOST:PORT"),
        ("[metrics]\nlisten = '::1:9764'", "metrics.listen: '::1:9764' is not of the form HOST:PORT"),
        ("[metrics]\nlisten = 'a:70000'", "metrics.listen: 'a:70000' is not of the form HOST:PORT"),
        ("[sampling\n", "Expected ']' at the end of a table declaration (at line 1, column 10)"),
        (b"[sampling]\n# \xff", "not UTF-8 at byte 13"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"#" * ((1 << 20) + 1), "larger than 1 MiB"),
    ],
)
def test_mistake_in_the_file_is_told_in_one_sentence(tmp_path: Path, text: str | bytes, told: str) -> None:
    assert problem(tmp_path, text) == told


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("hz", "fast", "--frequency: 'fast' is not a whole number from 1 to 10000"),
        ("hz", "0x10", "--frequency: '0x10' is not a whole number from 1 to 10000"),
        ("interval", "0.5", "--interval: 0.5 is not a number from 1 to 3600 seconds"),
        ("insecure", "yes", "--otlp-insecure: 'yes' is not true or false"),
        ("headers", "a=b,geheim", "--otlp-headers: part 2 is not of the form NAME=VALUE"),
        ("spool_dir", "/a\udcff", "--spool-dir: it has characters that cannot stand there"),
    ],
)
def test_mistake_on_the_command_line_is_told_with_its_flag(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    (tmp_path / "empty.toml").touch()
    with pytest.raises(ConfigError) as caught:
        load(str(tmp_path / "empty.toml"), {}, {name: text})
    assert str(caught.value) == told


def test_mistake_in_a_variable_is_told_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^PYPROF_SAMPLING_HZ: -3 is not a whole"):
        load_text(tmp_path, "", PYPROF_SAMPLING_HZ="-3")


def test_misspelt_variable_is_doubted_and_a_service_platforms_is_not(tmp_path: Path) -> None:
    config = load_text(
        tmp_path,
        "",
        PYPROF_EXPORT_ENDPONT="http://x:1",
        PYPROF_SERVICE_HOST="10.0.0.1",
        PYPROF_PORT_4318_TCP="x",
    )
    assert config.warnings == (
        "the variable PYPROF_EXPORT_ENDPONT sets nothing: did you mean PYPROF_EXPORT_ENDPOINT?",
    )


def test_file_that_was_named_and_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file or directory"):
        load(str(tmp_path / "none.toml"), {}, {})


def test_file_that_is_a_pipe_or_a_folder_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ConfigError, match=r"not a regular file|Is a directory"):
            load(str(path), {}, {})


def test_secrets_are_masked_where_the_configuration_is_shown(tmp_path: Path) -> None:
    config = load_text(
        tmp_path,
        '[export]\nendpoint = "https://me:geheim@host:1/p?key=geheim3"\n'
        'headers = { authorization = "Bearer geheim2" }\n',
    )
    shown = render(config)
    assert "geheim" not in shown
    assert set(config.secrets()) == {"geheim", "Bearer geheim2", "key=geheim3"}
    parsed = tomllib.loads(shown)
    assert parsed["export"]["endpoint"] == "https://***@host:1/p?***"
    assert parsed["export"]["headers"] == {"authorization": "***"}


def test_url_is_masked_where_it_has_secrets() -> None:
    assert masked_url("http://[me:geheim@host") == "***"
    assert [masked_url(url) for url in ("http://host:1/p", "host:4317", "unix:/run/c", "")] == [
        "http://host:1/p",
        "host:4317",
        "unix:/run/c",
        "",
    ]


def test_configuration_that_is_shown_reads_back_the_same(tmp_path: Path) -> None:
    config = load_text(
        tmp_path, '[export]\nca_file = "/a \\"b\\" \\\\ é"\ntimeout = 2\n[metrics]\nlisten = ""\n'
    )
    assert load_text(tmp_path, render(config)).settings == config.settings


def test_headers_that_every_user_can_read_are_warned_of(tmp_path: Path) -> None:
    config = load_text(tmp_path, '[export]\nheaders = { a = "geheim" }\n')
    Path(config.file).chmod(0o644)
    assert (
        readable_secrets(config) == f"{config.file} has headers in it and every user can read it: chmod 600"
    )
    Path(config.file).chmod(0o600)
    assert readable_secrets(config) == ""


def test_example_file_is_what_the_table_says() -> None:
    assert (ROOT / "packaging" / "pyprof.toml").read_text() == template()


def test_example_file_has_every_setting_with_its_default(tmp_path: Path) -> None:
    text = (ROOT / "packaging" / "pyprof.toml").read_text()
    assert tomllib.loads(text) == {
        table: {} for table in ("sampling", "export", "spool", "memory", "metrics", "log")
    }
    lines = [
        line[1:] if line.startswith("#") and not line.startswith("# ") else line for line in text.splitlines()
    ]
    config = load_text(tmp_path, "\n".join(lines))
    assert config.settings == Settings()
    assert [name for name, source in config.sources.items() if source == "default"] == []


def test_settings_have_distinct_paths_variables_and_flags() -> None:
    assert len({each.path for each in SETTINGS}) == len(SETTINGS) == len(asdict(Settings()))
    assert len({each.variable for each in SETTINGS}) == len(SETTINGS)
    flags = [flag for each in SETTINGS for flag in each.flags]
    assert len(set(flags)) == len(flags)
    assert all(each.doc.endswith(".") and each.flags for each in SETTINGS)


def test_changes_say_what_a_reload_can_do() -> None:
    live, restart = changes(Settings(), Settings(hz=5, interval=9.0, log_level="debug", spool_dir=""))
    assert [each.path for each in live] == ["export.interval", "log.level"]
    assert [each.path for each in restart] == ["sampling.hz", "spool.dir"]


def test_address_of_both_families_is_taken_apart() -> None:
    assert parse_address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert parse_address("[::1]:9764") == ("::1", 9764)
