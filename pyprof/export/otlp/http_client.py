# SPDX-License-Identifier: Apache-2.0
"""http.client without OpenSSL, 3 MiB, which it loads for its class of HTTPS connections.

TLS is loaded by who uses it (tls.py). What else in this process asks for that class gets another.
"""

import sys
from typing import Any, cast

_unloaded = "ssl" not in sys.modules
if _unloaded:
    sys.modules["ssl"] = cast(Any, None)
try:
    import http.client
finally:
    if _unloaded:
        del sys.modules["ssl"]

__all__ = ["http"]


class HTTPSConnection(http.client.HTTPConnection):
    """See http.client.HTTPSConnection."""

    default_port = http.client.HTTPS_PORT

    def __init__(self, host: str, port: int | None = None, *, context: Any = None, **rest: Any) -> None:
        import ssl

        super().__init__(host, port, **rest)
        self._context = context or ssl.create_default_context()

    def connect(self) -> None:
        """Connects, and checks the server's certificate."""
        super().connect()
        self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host)


if not hasattr(http.client, "HTTPSConnection"):
    http.client.HTTPSConnection = HTTPSConnection  # type: ignore[misc,assignment]
