# SPDX-License-Identifier: Apache-2.0
"""From a profile to the collector: what the daemon's settings mean for encoder, sender and spool."""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from pyprof.daemon.config import DEFAULT, Config
from pyprof.daemon.settings import MIB, SETTINGS, Settings
from pyprof.elf.identity import kernel_build_id
from pyprof.errors import ConfigError
from pyprof.export.otlp.counts import Counts
from pyprof.export.otlp.encoder import Shape, encode
from pyprof.export.otlp.endpoint import Endpoint, endpoint_of
from pyprof.export.otlp.endpoint import Settings as EndpointSettings
from pyprof.export.otlp.resource import host_attributes
from pyprof.export.otlp.sender import Sender
from pyprof.export.otlp.spool import Spool
from pyprof.profile.model import Profile

LOG = logging.getLogger(__name__)

NOT_SUBMITTED = "not handed to the sender"

ENDPOINT = (
    "endpoint", "protocol", "headers", "compression", "timeout", "ca_file", "client_certificate",
    "client_key", "insecure",
)  # fmt: skip
"""Settings that OpenTelemetry's variables set, too, and what its names for them end in."""


def endpoint_for(config: Config, environ: Mapping[str, str]) -> Endpoint:
    """The endpoint by our own settings, then OTEL_EXPORTER_OTLP_PROFILES_* and OTEL_EXPORTER_OTLP_*.

    Raises:
        ConfigError: a value cannot be used.
    """
    paths = {each.name: each.path for each in SETTINGS}

    def named(name: str) -> str:
        source = config.sources[name]
        return paths[name] if source == DEFAULT else f"{source}: {paths[name]}"

    explicit = {name: getattr(config.settings, name) for name in ENDPOINT if _is_set(config, name)}
    return endpoint_of(EndpointSettings(**explicit), environ, named)


def _is_set(config: Config, name: str) -> bool:
    # The empty text is how a file says that nothing is set.
    return config.explicit(name) and getattr(config.settings, name) != ""


def effective(config: Config, environ: Mapping[str, str]) -> Config:
    """A configuration with what OpenTelemetry's variables, and defaults that depend on others, make of it.

    Raises:
        ConfigError: a value cannot be used.
    """
    endpoint = endpoint_for(config, environ)
    found = {name: getattr(endpoint, "url" if name == "endpoint" else name) for name in ENDPOINT}
    found["headers"] = dict(endpoint.headers)
    sources = dict(config.sources)
    otel = {each.name: each.key.upper() for each in SETTINGS if each.name in ENDPOINT}
    otel["ca_file"] = "CERTIFICATE"
    for name in ENDPOINT:
        for prefix in ("OTEL_EXPORTER_OTLP_PROFILES_", "OTEL_EXPORTER_OTLP_"):
            if not _is_set(config, name) and environ.get(prefix + otel[name]):
                sources[name] = prefix + otel[name]
                break
    return replace(config, settings=replace(config.settings, **found), sources=sources)


def open_spool(config: Config) -> Spool | None:
    """The spool, None where none is wanted, or the default folder cannot be used.

    Raises:
        ConfigError: the folder was named and cannot be used.
    """
    settings = config.settings
    if not settings.spool_dir:
        return None
    try:
        return Spool(settings.spool_dir, settings.spool_max_mib * MIB, settings.spool_max_age_hours * 3600)
    except ConfigError as error:
        if config.explicit("spool_dir"):
            raise
        LOG.warning("no spool, so what cannot be sent is lost: %s", error)
        return None


class Exporter:
    """Encodes profiles and hands them to the sender."""

    def __init__(self, config: Config, environ: Mapping[str, str]) -> None:
        """Starts to send what an earlier run left.

        Raises:
            ConfigError: endpoint or spool cannot be used.
        """
        self._environ = environ
        self._settings = config.settings
        self.endpoint = endpoint_for(config, environ)
        self._spool = open_spool(config)
        self._sender = Sender(self.endpoint, self._spool, queue_bytes=config.settings.queue_mib * MIB)
        self._host = host_attributes()
        self._kernel_build_id = kernel_build_id()
        self._sender.start()

    def submit(self, profile: Profile) -> dict[str, int]:
        """Encodes a profile and hands it over; by any thread.

        Returns:
            Samples that could not be, by reason.
        """
        encoded = encode(
            profile,
            Shape(self._settings.shape),
            self._host,
            self._settings.max_message_bytes,
            self._kernel_build_id,
        )
        lost = Counter(encoded.lost)
        for batch in encoded.batches:
            try:
                self._sender.submit(batch)
            except Exception:
                # The others have been, or can be, handed over.
                LOG.exception("a part of a profile cannot be handed to the sender")
                lost[NOT_SUBMITTED] += batch.samples
        return dict(lost)

    def reload(self, config: Config, settings: Settings) -> None:
        """Sends as a new configuration says.

        Args:
            config: as it was read.
            settings: those that hold now: what needs a restart is as before.

        Raises:
            ConfigError: it cannot be used; all stays as it was.
        """
        endpoint = endpoint_for(config, self._environ)
        self._sender.reload(endpoint)
        self.endpoint = endpoint
        self._settings = settings
        if self._spool is not None:
            self._spool.limit(settings.spool_max_mib * MIB, settings.spool_max_age_hours * 3600)

    def counts(self) -> Counts:
        return self._sender.counts()

    def drain(self, seconds: float) -> None:
        """Sends what it can within the time, keeps the rest in the spool, and ends."""
        self._sender.drain(seconds)
