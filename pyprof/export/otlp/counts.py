# SPDX-License-Identifier: Apache-2.0
"""What became of the samples that were to be sent."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """At one moment. In samples, always:
    ``submitted + found == sent + rejected + waiting_memory + waiting_spool + sum(lost.values())``.

    Attributes:
        submitted: by the encoder.
        found: in the spool at the start, from an earlier run.
        sent: taken by the collector.
        rejected: of batches that it took, those that it says it did not, at most.
        waiting_memory: in memory, also those that are being sent.
        waiting_spool: on disk.
        lost: given up, by reason.
        requests: that were sent, whatever came of them.
        bytes: of requests that the collector took, not compressed.
        retries: requests that failed and are to be sent again.
        away: whether the collector was away at the last try.
        last_error: of the last request that failed; "" where none did.
        since_success: seconds since the collector took a request; None where it took none yet.
    """

    submitted: int
    found: int
    sent: int
    rejected: int
    waiting_memory: int
    waiting_spool: int
    lost: dict[str, int]
    requests: int
    bytes: int
    retries: int
    away: bool
    last_error: str
    since_success: float | None
