# SPDX-License-Identifier: Apache-2.0
"""A real OpenTelemetry Collector with the profiles signal, built on first use (3 minutes) and kept below
build/."""

import base64
import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from tests.support.profiling import ROOT, SCALE, wait_until

VERSION = "0.159.0"
FOLDER = ROOT / "build" / f"otelcol-{VERSION}"
MANIFEST = f"""\
dist: {{name: otelcol, output_path: ./dist}}
receivers: [{{gomod: go.opentelemetry.io/collector/receiver/otlpreceiver v{VERSION}}}]
exporters:
  - gomod: github.com/open-telemetry/opentelemetry-collector-contrib/exporter/fileexporter v{VERSION}
"""
CONFIGURATION = """\
receivers:
  otlp:
    protocols:
      grpc: {{endpoint: "127.0.0.1:{grpc}"}}
      http: {{endpoint: "127.0.0.1:{http}"}}
exporters:
  file: {{path: "{output}", append: true}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    profiles: {{receivers: [otlp], exporters: [file]}}
"""


def collector() -> Path:
    """The program."""
    if shutil.which("go") is None:
        pytest.skip("building an OpenTelemetry Collector takes Go")
    version = subprocess.run(["go", "env", "GOVERSION"], check=True, capture_output=True, text=True).stdout
    # Go 1.21 and later fetch the newer one that the collector asks for.
    if tuple(map(int, re.findall(r"[0-9]+", version)[:2])) < (1, 21):
        pytest.skip(f"building an OpenTelemetry Collector takes Go 1.21, this is {version.strip()}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    program = FOLDER / "dist" / "otelcol"
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            manifest = FOLDER / "builder.yaml"
            manifest.write_text(MANIFEST)
            builder = f"go.opentelemetry.io/collector/cmd/builder@v{VERSION}"
            command = ["go", "run", builder, f"--config={manifest}"]
            environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}
            subprocess.run(command, check=True, cwd=FOLDER, env=environment, capture_output=True)
    return program


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Collector:
    """One that can be stopped and started again at the same ports, and what it wrote."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._program = collector()
        self.grpc, self.http = free_port(), free_port()
        self._output = folder / "profiles.json"
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "collector.yaml").write_text(
            CONFIGURATION.format(grpc=self.grpc, http=self.http, output=self._output)
        )

    def start(self) -> None:
        command = [str(self._program), f"--config={self._folder}/collector.yaml"]
        with (self._folder / "collector.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--feature-gates=service.profilesSupport"], stdout=log, stderr=log
            )
        wait_until(lambda: self._answers(self.grpc) and self._answers(self.http), "the collector listens", 30)

    def _answers(self, port: int) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "collector.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def stop(self) -> None:
        """Ends it; what it took is in its file then."""
        if self._process is not None:
            self._process.terminate()
            assert self._process.wait(30 * SCALE) == 0
            self._process = None

    def requests(self) -> list[bytes]:
        """What it wrote, as requests. To be called when it is stopped."""
        if not self._output.exists():
            return []
        return [_request(json.loads(line)) for line in self._output.read_text().splitlines()]


def _request(written: dict[str, Any]) -> bytes:
    """The message of a line of the file exporter: JSON as the OTLP specification has it, where IDs are
    hexadecimal."""
    for resource in written.get("resourceProfiles", []):
        for scope in resource.get("scopeProfiles", []):
            for profile in scope.get("profiles", []):
                profile["profileId"] = base64.b64encode(bytes.fromhex(profile["profileId"])).decode()
    # A field of no content that it writes all the same.
    first = written["dictionary"]["attributeTable"][0]
    if first.get("value") == {}:
        del first["value"]
    message = ExportProfilesServiceRequest()
    json_format.ParseDict(written, message)
    return message.SerializeToString()


@contextmanager
def running_collector(folder: Path) -> Iterator[Collector]:
    made = Collector(folder)
    made.start()
    try:
        yield made
    finally:
        made.stop()
