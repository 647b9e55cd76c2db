# SPDX-License-Identifier: Apache-2.0
"""A way to a collector, of whichever protocol."""

from typing import Protocol

from pyprof.export.otlp.answer import Answer
from pyprof.export.otlp.endpoint import GRPC, Endpoint


class Transport(Protocol):
    """One connection, opened when it is first needed and again when it was lost; for one thread."""

    def send(self, payload: bytes, timeout: float) -> Answer:
        """Sends one request and waits for the answer.

        Args:
            payload: a serialised ExportProfilesServiceRequest.
            timeout: seconds after which it has failed, whatever the other side does; only a resolver of names may
                take longer.

        Returns:
            What came of it; no failure of network or collector is an exception.
        """

    def abort(self) -> None:
        """Has a `send` in another thread return now, and every later one at once."""

    def close(self) -> None:
        """Closes the connection; not while `send` is at work."""


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
