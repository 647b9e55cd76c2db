# SPDX-License-Identifier: Apache-2.0
"""Batches that are real requests, and how many samples a request holds as a collector reads it."""

import os
from time import time_ns

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from pyprof.export.otlp.batch import Batch
from pyprof.export.otlp.counts import Counts


def batch_of(*profiles: int, size: int = 0, time: int | None = None) -> Batch:
    """A request with one profile for each number, which is its samples.

    Args:
        profiles: samples of each.
        size: bytes of it that cannot be compressed.
        time: of the batch, nanoseconds since 1970, which is not in the payload; now where there is none.
    """
    request = ExportProfilesServiceRequest()
    scope = request.resource_profiles.add().scope_profiles.add()
    for samples in profiles:
        scope.profiles.add().samples.add(values=[samples])
    if size:
        scope.profiles[0].original_payload = os.urandom(size)
    return Batch(request.SerializeToString(), sum(profiles), time_ns() if time is None else time)


def samples_in(payload: bytes) -> int:
    """The samples that a request holds."""
    request = ExportProfilesServiceRequest.FromString(payload)
    return sum(
        sum(sample.values) or len(sample.timestamps_unix_nano)
        for resource in request.resource_profiles
        for scope in resource.scope_profiles
        for profile in scope.profiles
        for sample in profile.samples
    )


def balanced(counts: Counts) -> bool:
    """Whether every sample is somewhere, once."""
    return counts.submitted + counts.found == (
        counts.sent
        + counts.rejected
        + counts.waiting_memory
        + counts.waiting_spool
        + sum(counts.lost.values())
    )
