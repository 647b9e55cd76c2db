# SPDX-License-Identifier: Apache-2.0
"""TLS as an endpoint asks for it."""

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
                f"{endpoint.client_certificate} and {endpoint.client_key} are no certificate and key that "
                f"belong together, in PEM form and unencrypted: {error}"
            ) from error
    return context


def system_roots() -> bytes | None:
    """The system's certificates, for who does not look for them himself; None where there are none."""
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
