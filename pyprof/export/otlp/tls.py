# SPDX-License-Identifier: Apache-2.0
"""TLS as an endpoint asks for it."""

import os
import ssl

from pyprof.errors import ConfigError
from pyprof.export.otlp.endpoint import Endpoint


def context_of(endpoint: Endpoint) -> ssl.SSLContext:
    """A context that checks the server's name and certificate.

    Raises:
        ConfigError: a file is not a certificate or key, or these do not belong together.
    """
    try:
        context = ssl.create_default_context(cafile=endpoint.ca_file or None)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"{endpoint.ca_file} holds no certificates in PEM form: {error}") from error
    if endpoint.client_certificate:
        try:
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(endpoint.client_certificate, endpoint.client_key, password="")
        except OSError as error:
            raise ConfigError(
                f"{endpoint.client_certificate} and {endpoint.client_key} are no certificate and key in PEM form, "
                f"unencrypted, that belong together: {error}"
            ) from error
    return context


def stamp_of(endpoint: Endpoint) -> tuple[tuple[int, int, int], ...]:
    """Changes when one of the endpoint's files does, as they do where certificates live for hours."""
    if not endpoint.secure:
        return ()
    stamps = []
    for name in endpoint.files:
        try:
            status = os.stat(name)
            stamps.append((status.st_ino, status.st_mtime_ns, status.st_size))
        except OSError:
            stamps.append((0, 0, 0))
    return tuple(stamps)


def system_roots() -> bytes | None:
    """The system's certificates for libraries that do not look for them themselves; None where there are none."""
    paths = ssl.get_default_verify_paths()
    # Where distributions put their bundle, for an OpenSSL that was built for another one.
    for name in (paths.cafile, "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"):
        if name:
            try:
                with open(name, "rb") as file:
                    return file.read() or None
            except OSError:
                continue
    return None
