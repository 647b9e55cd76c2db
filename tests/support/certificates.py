# SPDX-License-Identifier: Apache-2.0
"""A certificate authority of a test's own, made with openssl."""

import subprocess
from pathlib import Path
from typing import NamedTuple


class Pair(NamedTuple):
    """PEM files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates for 127.0.0.1."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self.certificate = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        self.openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", f"/CN={name}", "-days", "2", "-keyout", self._key, "-out", self.certificate),
        )

    def sign(self, name: str) -> Pair:
        """A certificate for servers on 127.0.0.1, and for clients."""
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request = self._folder / f"{name}.csr"
        extensions = self._folder / "extensions.cnf"
        extensions.write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
        self.openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", pair.key, "-out", request),
        )
        self.openssl(
            *("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key),
            *("-CAcreateserial", "-days", "2", "-extfile", extensions, "-out", pair.certificate),
        )
        return pair

    @staticmethod
    def openssl(*arguments: str | Path) -> None:
        """Runs a command of openssl."""
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)
