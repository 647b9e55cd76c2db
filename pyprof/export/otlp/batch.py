# SPDX-License-Identifier: Apache-2.0
"""What goes from the encoder to whoever sends it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Batch:
    """One self-contained export request.

    Attributes:
        payload: a serialised ExportProfilesServiceRequest, not compressed, below the receiver's limit.
        samples: samples in it, each as often as it was taken.
        time: when its profile began, nanoseconds since 1970.
    """

    payload: bytes
    samples: int
    time: int
