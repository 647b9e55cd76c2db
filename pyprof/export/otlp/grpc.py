# SPDX-License-Identifier: Apache-2.0
"""OTLP over gRPC, https://opentelemetry.io/docs/specs/otlp/#otlpgrpc: requests go as the bytes they are."""

import threading
from typing import Any
from urllib.parse import urlsplit

import grpc

from pyprof import __version__
from pyprof.export.otlp.answer import Answer, Retry, accepted, of_grpc
from pyprof.export.otlp.endpoint import Endpoint

METHOD = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"

_OPTIONS = (
    ("grpc.primary_user_agent", f"pyprof/{__version__}"),
    # When to try again is decided in one place, not here.
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    # Otherwise a new channel would inherit how long an earlier one to the same address waits.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),  # as over HTTP
)


class GrpcTransport:
    """See Transport."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Opens nothing yet.

        Raises:
            ConfigError: certificates or keys cannot be used.
        """
        self._target = _target(endpoint)
        self._metadata = tuple(
            (name, value.encode() if name.endswith("-bin") else value) for name, value in endpoint.headers
        )
        self._compression = grpc.Compression.Gzip if endpoint.compression == "gzip" else None
        self._credentials = _credentials(endpoint) if endpoint.secure else None
        self._lock = threading.Lock()
        self._channel: Any = None
        self._aborted = False

    def send(self, payload: bytes, timeout: float) -> Answer:
        """See Transport."""
        with self._lock:
            if self._aborted:
                return Retry("ended")
            if self._channel is None:
                self._channel = self._open()
            export = self._channel.unary_unary(METHOD)
        try:
            response, _ = export.with_call(
                payload, timeout=timeout, metadata=self._metadata, compression=self._compression
            )
        except grpc.RpcError as error:
            answer = of_grpc(error.code().name, error.details() or "", _status(error))
            if isinstance(answer, Retry):
                # A channel that is kept would go on connecting in the background.
                self.close()
            return answer
        except ValueError:  # closed by `abort` before the call began
            return Retry("ended")
        return accepted(response)

    def abort(self) -> None:
        """See Transport."""
        with self._lock:
            self._aborted = True
        self.close()  # which cancels the call

    def close(self) -> None:
        """See Transport."""
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _open(self) -> Any:
        if self._credentials is None:
            return grpc.insecure_channel(self._target, _OPTIONS)
        return grpc.secure_channel(self._target, self._credentials, _OPTIONS)


def _target(endpoint: Endpoint) -> str:
    """The endpoint in gRPC's notation, https://github.com/grpc/grpc/blob/master/doc/naming.md."""
    if not endpoint.url.startswith(("http://", "https://")):
        return endpoint.url
    parts = urlsplit(endpoint.url)
    host = parts.hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{parts.port or (443 if endpoint.secure else 80)}"


def _credentials(endpoint: Endpoint) -> Any:
    from pyprof.export.otlp.tls import context_of, system_roots

    context_of(endpoint)  # gRPC tells only when it connects, and then not much
    return grpc.ssl_channel_credentials(
        _content(endpoint.ca_file) or system_roots(),
        _content(endpoint.client_key),
        _content(endpoint.client_certificate),
    )


def _content(name: str) -> bytes | None:
    if not name:
        return None
    with open(name, "rb") as file:
        return file.read()


def _status(error: Any) -> bytes | None:
    """The google.rpc.Status that came with an error."""
    for name, value in error.trailing_metadata() or ():
        if name == "grpc-status-details-bin":
            return bytes(value)
    return None
