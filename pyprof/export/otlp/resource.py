# SPDX-License-Identifier: Apache-2.0
"""Who a profile is of: attributes of processes and of the host.

Names: https://opentelemetry.io/docs/specs/semconv/registry/attributes/ (process, container, service, host,
os).
"""

import os
import socket
from contextlib import suppress
from pathlib import Path

from pyprof.profile.model import Process

Attributes = dict[str, str | int]

SCHEMA = "https://opentelemetry.io/schemas/1.37.0"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def host_attributes() -> Attributes:
    """Of this host: host.name, host.id, host.arch, os.type, os.name, os.version, os.description."""
    system = os.uname()
    release = _os_release()
    found: Attributes = {
        "host.name": socket.gethostname(),
        "host.id": _first_line("/etc/machine-id") or _first_line("/var/lib/dbus/machine-id"),
        "host.arch": _ARCHITECTURES.get(system.machine, system.machine),
        "os.type": "linux",
        "os.name": release.get("NAME", ""),
        "os.version": release.get("VERSION_ID", ""),
        "os.description": f"{release.get('PRETTY_NAME', 'Linux')} (Linux {system.release})",
    }
    return {key: value for key, value in found.items() if value != ""}


def process_attributes(process: Process) -> Attributes:
    """Of a process; what is not known is left out. A process without a path is the kernel's, or was gone
    too soon."""
    name = process.path.rpartition("/")[2] or process.name
    found: Attributes = {
        "process.pid": process.pid,
        "process.executable.name": name,
        "process.executable.path": process.path,
        "container.id": process.container_id,
        "service.name": process.service_name,
    }
    if not process.pid:
        return {}
    return {key: value for key, value in found.items() if value != ""}


def _first_line(path: str) -> str:
    with suppress(OSError, UnicodeDecodeError, IndexError):
        return Path(path).read_text().splitlines()[0].strip()
    return ""


def _os_release() -> dict[str, str]:
    """os-release(5)."""
    found: dict[str, str] = {}
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        with suppress(OSError, UnicodeDecodeError):
            for line in Path(path).read_text().splitlines():
                key, equals, value = line.partition("=")
                if equals:
                    found[key.strip()] = value.strip().strip("\"'")
            return found
    return found
