# SPDX-License-Identifier: Apache-2.0
"""The daemon as it is run: started before its collector, told by signals, watched by a service manager."""

import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.collector_stub import Hang, HttpCollector
from tests.support.daemon import ready, started
from tests.support.profiling import SCALE, build_target, pyprof, running, wait_until

pytestmark = pytest.mark.bpf

STOP_SECONDS = 5


@pytest.fixture(name="busy", scope="module", autouse=True)
def keep_a_program_busy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """So that there are samples on a quiet machine, too."""
    with running("nice", build_target(tmp_path_factory.mktemp("target"), "chain.c")) as process:
        yield process


def config(folder: Path, endpoint: str, more: str = "") -> Path:
    path = folder / "pyprof.toml"
    path.write_text(f'[export]\nendpoint = "{endpoint}"\ninterval = 1\n{more}')
    return path


def total(metrics: dict[tuple[str, ...], float], name: str) -> float:
    return sum(value for key, value in metrics.items() if key[0] == name)


def test_every_sample_arrives_and_adds_up(tmp_path: Path) -> None:
    with HttpCollector() as collector:
        with ready(tmp_path, "--interval", "1", "-F", "99", "--otlp-endpoint", collector.url) as daemon:
            collector.wait_for_samples(100)
            metrics = daemon.metrics()
            health = daemon.health()
            assert daemon.end()[0] == 0
        totals = daemon.totals()
        received = collector.samples
    assert total(metrics, "pyprof_samples_taken_total") == (
        total(metrics, "pyprof_samples_reported_total")
        + total(metrics, "pyprof_samples_lost_total")
        + total(metrics, "pyprof_samples_pending")
    )
    assert total(metrics, "pyprof_export_samples_submitted_total") == (
        total(metrics, "pyprof_export_samples_sent_total")
        + total(metrics, "pyprof_export_samples_waiting")
        + total(metrics, "pyprof_export_samples_lost_total")
    )
    assert metrics["pyprof_intervals_total", "done"] >= 1
    assert metrics["pyprof_export_requests_total",] >= 1
    assert metrics["pyprof_map_entries", "exec_mappings"] > 0
    assert metrics["process_resident_memory_bytes",] > 10 << 20
    assert (health["status"], health["problems"]) == ("ok", [])
    assert totals["taken"] == totals["reported"] + totals["lost"]
    assert totals["reported"] == totals["sent"] == received >= 100


def test_samples_taken_before_the_collector_is_there_arrive(tmp_path: Path) -> None:
    with socket.socket() as reserved:
        # Bound but not listening: connections are refused, and nobody else takes the port.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with ready(tmp_path, "--interval", "1", "--otlp-endpoint", f"http://127.0.0.1:{port}") as daemon:
            wait_until(lambda: daemon.health()["export"]["waiting"]["spool"] > 0, "samples in the spool")
            assert daemon.health()["export"]["away"] is True
            assert daemon.health()["status"] == "ok"
            reserved.close()
            with HttpCollector(port=port) as collector:
                collector.wait_for_samples(1)
                wait_until(lambda: daemon.health()["export"]["waiting"]["spool"] == 0, "an empty spool", 30)
                assert daemon.end()[0] == 0
                totals = daemon.totals()
                assert totals["reported"] == totals["sent"] == collector.samples
    assert totals["not_sent"] == totals["spooled"] == 0


def test_end_is_in_time_and_loses_nothing_where_the_collector_hangs(tmp_path: Path) -> None:
    with HttpCollector([Hang()] * 100) as hanging:
        with ready(tmp_path, "--interval", "1", "--otlp-endpoint", hanging.url) as daemon:
            hanging.wait_for_requests(1)
            code, seconds = daemon.end()
            daemon.wait_for("STOPPING=1")
        totals = daemon.totals()
    assert code == 0
    assert seconds < STOP_SECONDS * SCALE
    assert totals["sent"] == totals["not_sent"] == 0
    assert totals["spooled"] == totals["reported"] > 0
    # The next run sends it.
    (tmp_path / "notify").unlink()
    with HttpCollector() as collector, ready(tmp_path, "--otlp-endpoint", collector.url) as again:
        collector.wait_for_samples(totals["spooled"])
        again.end()


def test_second_signal_ends_at_once(tmp_path: Path) -> None:
    with HttpCollector([Hang()] * 100) as hanging:
        with ready(tmp_path, "--interval", "1", "--otlp-endpoint", hanging.url) as daemon:
            hanging.wait_for_requests(1)
            daemon.process.send_signal(signal.SIGTERM)
            daemon.wait_for("STOPPING=1")
            code, seconds = daemon.end(signal.SIGINT)
    assert code == -signal.SIGINT
    assert seconds < 1 * SCALE


def test_interrupt_ends_as_the_other_signal_does(tmp_path: Path) -> None:
    with HttpCollector() as collector, ready(tmp_path, "--otlp-endpoint", collector.url) as daemon:
        assert daemon.end(signal.SIGINT)[0] == 0
    assert daemon.totals()["taken"] >= 0


def test_reload_changes_what_can_be_and_names_what_cannot(tmp_path: Path) -> None:
    with HttpCollector() as first, HttpCollector() as second:
        path = config(tmp_path, first.url)
        with ready(tmp_path, "--config", str(path)) as daemon:
            first.wait_for_samples(1)
            config(
                tmp_path,
                second.url,
                'headers = { x-key = "geheim-1" }\n[log]\nlevel = "debug"\n[sampling]\nhz = 49\n',
            )
            daemon.process.send_signal(signal.SIGHUP)
            daemon.wait_for("READY=1", 2)
            second.wait_for_samples(1)
            assert second.headers[-1]["x-key"] == "geheim-1"
            assert daemon.end()[0] == 0
        assert daemon.totals()["sent"] == first.samples + second.samples
    reloading = next(told for told in daemon.said if told.startswith("RELOADING=1\nMONOTONIC_USEC="))
    assert daemon.said.index(reloading) > 0
    messages = daemon.messages()
    assert "configuration read anew, changed: export.endpoint, export.headers, log.level" in messages
    assert "changed only by a restart: sampling.hz" in messages
    assert any(line["level"] == "debug" for line in daemon.log())
    assert "geheim" not in daemon.log_text()


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("[sampling", "Expected ']' at the end of a table declaration"),
        ("[sampling]\nherz = 1\n", "there is no setting sampling.herz: did you mean sampling.hz?"),
        ('[export]\nca_file = "/none.pem"\n', "/none.pem"),
    ],
)
def test_broken_file_keeps_the_old_configuration(tmp_path: Path, broken: str, told: str) -> None:
    with HttpCollector() as collector:
        path = config(tmp_path, collector.url)
        with ready(tmp_path, "--config", str(path)) as daemon:
            path.write_text(broken)
            daemon.process.send_signal(signal.SIGHUP)
            daemon.wait_for("READY=1", 2)
            before = collector.samples
            collector.wait_for_samples(before + 1)
            assert daemon.end()[0] == 0
    error = next(line for line in daemon.log() if line["level"] == "error")
    assert error["message"].startswith("the configuration stays as it was: ")
    assert told in error["message"]


def test_watchdog_hears_of_the_turning_loop(tmp_path: Path) -> None:
    with HttpCollector() as collector:
        with ready(
            tmp_path, "--otlp-endpoint", collector.url, environ={"WATCHDOG_USEC": "2000000"}
        ) as daemon:
            begun = time.monotonic()
            daemon.wait_for("WATCHDOG=1", 3)
            # Once a second: half of the time that it has.
            assert time.monotonic() - begun > 1
            daemon.end()


def test_command_line_asks_the_daemon_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYPROF_RUN_DIR", str(tmp_path / "run"))
    with HttpCollector() as collector, ready(tmp_path, "--otlp-endpoint", collector.url) as daemon:
        done = pyprof("inspect", "maps", "--json")
        assert done.returncode == 0, done.stderr
        assert '"orphans": 0' in done.stdout
        daemon.end()
    assert not list((tmp_path / "run").iterdir())


def test_address_that_is_taken_costs_the_metrics_only(tmp_path: Path) -> None:
    with socket.socket() as taken, HttpCollector() as collector:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with ready(
            tmp_path, "--metrics-listen", address, "--interval", "1", "--otlp-endpoint", collector.url
        ) as daemon:
            collector.wait_for_samples(1)
            assert daemon.end()[0] == 0
    assert f"no /metrics and no /healthz: cannot listen on {address}: Address already in use" in (
        daemon.messages()
    )


def test_profile_that_cannot_be_made_costs_its_samples_only(tmp_path: Path) -> None:
    with HttpCollector() as collector:
        with started(
            tmp_path, "--interval", "1", "-F", "99", "--otlp-endpoint", collector.url,
            module="tests.support.failing_daemon", defects=True,
        ) as daemon:  # fmt: skip
            daemon.wait_for("READY=1")
            wait_until(lambda: daemon.health()["samples"]["lost"] != {}, "a profile that fails")
            wait_until(lambda: daemon.metrics()["pyprof_intervals_total", "done"] >= 3, "profiles after it")
            metrics = daemon.metrics()
            assert daemon.end()[0] == 0
            totals = daemon.totals()
            received = collector.samples
    assert metrics["pyprof_intervals_total", "failed"] == 2
    assert metrics["pyprof_samples_lost_total", "profile could not be made"] > 0
    assert metrics["pyprof_samples_lost_total", "profile could not be encoded"] > 0
    assert totals["taken"] == totals["reported"] + totals["lost"]
    assert totals["reported"] == totals["sent"] == received


def test_host_without_the_privilege_is_told_in_one_sentence(tmp_path: Path) -> None:
    with started(tmp_path, prefix=["setpriv", "--bounding-set", "-all"]) as daemon:
        assert daemon.process.wait(30) == 1
        lines = daemon.log_text().splitlines()
    assert lines[-1].startswith("pyprof: profiling needs CAP_BPF and CAP_PERFMON: ")
