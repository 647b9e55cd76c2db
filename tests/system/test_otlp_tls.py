# SPDX-License-Identifier: Apache-2.0
"""Profiles sent with TLS: the collector's certificate and ours, over both protocols."""

import ssl
from pathlib import Path

import grpc
import pytest

from pyprof.errors import ConfigError
from pyprof.export.otlp.answer import Accepted, Retry
from pyprof.export.otlp.endpoint import GRPC, HTTP, Settings, endpoint_of
from pyprof.export.otlp.transport import Line, open_transport
from tests.support.certificates import Authority, Pair
from tests.support.collector_stub import Collector, GrpcCollector, HttpCollector
from tests.support.otlp_batches import batch_of

PAYLOAD = batch_of(5).payload
protocols = pytest.mark.parametrize("protocol", [HTTP, GRPC])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Pair:
    return authority.sign("server")


@pytest.fixture(scope="module")
def client(authority: Authority) -> Pair:
    return authority.sign("client")


def collector_for(protocol: str, authority: Authority, server: Pair) -> HttpCollector | GrpcCollector:
    """One that takes requests only from clients that the authority knows."""
    if protocol == HTTP:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
        context.load_cert_chain(*server)
        context.verify_mode = ssl.CERT_REQUIRED
        return HttpCollector(tls=context)
    credentials = grpc.ssl_server_credentials(
        [(server.key.read_bytes(), server.certificate.read_bytes())],
        authority.certificate.read_bytes(),
        require_client_auth=True,
    )
    return GrpcCollector(tls=credentials)


def settings_for(
    collector: Collector, protocol: str, authority: Path | None, client: Pair | None = None
) -> Settings:
    return Settings(
        collector.url,
        protocol,
        ca_file=str(authority) if authority else None,
        client_certificate=str(client.certificate) if client else None,
        client_key=str(client.key) if client else None,
    )


@protocols
def test_profiles_arrive_where_both_sides_know_each_other(
    protocol: str, authority: Authority, server: Pair, client: Pair
) -> None:
    with collector_for(protocol, authority, server) as collector:
        transport = open_transport(
            endpoint_of(settings_for(collector, protocol, authority.certificate, client), {})
        )
        assert transport.send(PAYLOAD, 10) == Accepted()
        assert transport.send(PAYLOAD, 10) == Accepted()
        transport.close()
        assert collector.payloads == [PAYLOAD, PAYLOAD]


@protocols
@pytest.mark.parametrize("known", ["other", "system"])
def test_collector_of_an_unknown_authority_gets_nothing(
    protocol: str, known: str, authority: Authority, server: Pair, client: Pair, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other").certificate if known == "other" else None
    with collector_for(protocol, authority, server) as collector:
        transport = open_transport(endpoint_of(settings_for(collector, protocol, other, client), {}))
        answer = transport.send(PAYLOAD, 10)
        transport.close()
        assert isinstance(answer, Retry)
        assert "certificate" in answer.reason.lower()
        assert not collector.times


@protocols
def test_client_without_a_certificate_is_told(protocol: str, authority: Authority, server: Pair) -> None:
    with collector_for(protocol, authority, server) as collector:
        transport = open_transport(endpoint_of(settings_for(collector, protocol, authority.certificate), {}))
        answer = transport.send(PAYLOAD, 10)
        transport.close()
        assert isinstance(answer, Retry)
        assert not collector.times


@protocols
def test_server_without_tls_is_a_reason(protocol: str, authority: Authority) -> None:
    with HttpCollector() if protocol == HTTP else GrpcCollector() as collector:
        url = collector.url.replace("http:", "https:")
        transport = open_transport(
            endpoint_of(Settings(url, protocol, ca_file=str(authority.certificate)), {})
        )
        assert isinstance(transport.send(PAYLOAD, 10), Retry)
        transport.close()


@protocols
def test_certificates_that_are_replaced_are_used(
    protocol: str, authority: Authority, server: Pair, client: Pair, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "strangers").sign("stranger")
    mine = Pair(tmp_path / "mine.pem", tmp_path / "mine.key")

    def replace(pair: Pair) -> None:
        for old, new in zip(mine, pair, strict=True):
            (tmp_path / "new").write_bytes(new.read_bytes())
            (tmp_path / "new").rename(old)

    replace(stranger)
    with collector_for(protocol, authority, server) as collector:
        line = Line(endpoint_of(settings_for(collector, protocol, authority.certificate, mine), {}))
        assert isinstance(line.send(PAYLOAD, 10), Retry)
        replace(client)
        assert line.send(PAYLOAD, 10) == Accepted()
        mine.key.write_bytes(b"half")
        assert line.send(PAYLOAD, 10) == Accepted()
        line.close()


@protocols
@pytest.mark.parametrize("bad", ["ca_file", "client_key", "encrypted"])
def test_file_that_is_no_certificate_is_refused(
    protocol: str, bad: str, authority: Authority, client: Pair, tmp_path: Path
) -> None:
    files = {"ca_file": authority.certificate, "client_certificate": client[0], "client_key": client[1]}
    if bad == "encrypted":
        files["client_key"] = tmp_path / "encrypted.key"
        Authority.openssl(
            "ec", "-in", client.key, "-out", files["client_key"], "-aes256", "-passout", "pass:x"
        )
    else:
        files[bad] = tmp_path / "bad.pem"
        files[bad].write_text("-----BEGIN NOTHING-----\n")
    named = {key: str(path) for key, path in files.items()}
    endpoint = endpoint_of(Settings("https://127.0.0.1:1", protocol, **named), {})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="PEM form"):
        open_transport(endpoint)
