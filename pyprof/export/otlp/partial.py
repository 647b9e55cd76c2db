# SPDX-License-Identifier: Apache-2.0
"""How many samples a collector rejected, which says only how many profiles it did."""

from pyprof.export.otlp.batch import Batch


def rejected_samples(batch: Batch, profiles: int) -> int:
    """The most samples that so many of a batch's profiles may hold: which they are is not said.

    Args:
        batch: what was sent.
        profiles: rejected_profiles of the answer.
    """
    if profiles <= 0:
        return 0
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2

    try:
        request = profiles_service_pb2.ExportProfilesServiceRequest.FromString(batch.payload)
    except DecodeError:
        return batch.samples
    counts = sorted(
        (
            sum(len(sample.timestamps_unix_nano) or sum(sample.values) for sample in profile.samples)
            for resource in request.resource_profiles
            for scope in resource.scope_profiles
            for profile in scope.profiles
        ),
        reverse=True,
    )
    return min(batch.samples, sum(counts[:profiles])) if sum(counts) == batch.samples else batch.samples
