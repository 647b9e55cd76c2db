# SPDX-License-Identifier: Apache-2.0
"""A way to a collector, of whichever protocol."""

import logging
from pathlib import Path
from typing import Protocol

from pyprof.errors import ConfigError
from pyprof.export.otlp.answer import Answer
from pyprof.export.otlp.endpoint import GRPC, Endpoint

LOG = logging.getLogger(__name__)


class Transport(Protocol):
    """One connection, opened when it is first needed and again when it was lost; for one thread."""

    def send(self, payload: bytes, timeout: float) -> Answer:
        """Sends one request and waits for the answer.

        Args:
            payload: a serialised ExportProfilesServiceRequest.
            timeout: seconds after which it has failed, whatever the other side does; only a resolver of names
                may take longer.

        Returns:
            What came of it; no failure of network or collector is an exception.
        """

    def abort(self) -> None:
        """Has a `send` in another thread return now, and every later one at once."""

    def close(self) -> None:
        """Closes the connection; not while `send` is at work."""


class Line:
    """An endpoint and the transport to it; it is opened anew when a certificate or key is another."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Connects to nothing yet.

        Raises:
            ConfigError: certificates or keys cannot be used.
        """
        self.endpoint = endpoint
        self._stamp = _stamp(endpoint)
        self._transport = open_transport(endpoint)

    def send(self, payload: bytes, timeout: float) -> Answer:
        """See Transport."""
        stamp = _stamp(self.endpoint)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                transport = open_transport(self.endpoint)
            except ConfigError as error:  # half of them is written: they will change again
                LOG.warning("%s", error)
            else:
                self._transport.close()
                self._transport = transport
        return self._transport.send(payload, timeout)

    def abort(self) -> None:
        """See Transport."""
        self._transport.abort()

    def close(self) -> None:
        """See Transport."""
        self._transport.close()


def _stamp(endpoint: Endpoint) -> tuple[tuple[int, int, int], ...]:
    """Changes when one of the endpoint's files does, as they do where certificates live for hours."""
    stamps = []
    for name in endpoint.files if endpoint.secure else ():
        try:
            status = Path(name).stat()
            stamps.append((status.st_ino, status.st_mtime_ns, status.st_size))
        except OSError:
            stamps.append((0, 0, 0))
    return tuple(stamps)


def open_transport(endpoint: Endpoint) -> Transport:
    """A transport for an endpoint; what its protocol needs is imported only now.

    Raises:
        ConfigError: certificates or keys cannot be used.
    """
    if endpoint.protocol == GRPC:
        from pyprof.export.otlp.grpc import GrpcTransport

        return GrpcTransport(endpoint)
    from pyprof.export.otlp.http import HttpTransport

    return HttpTransport(endpoint)
