# SPDX-License-Identifier: Apache-2.0
"""How long to wait for a collector before it is asked again."""

import os
from dataclasses import dataclass

from pyprof.export.otlp.answer import Retry


@dataclass(frozen=True, slots=True)
class Patience:
    """Bounds, all in seconds. Pauses are random below a bound that doubles ("full jitter"), so that a fleet
    does not come back in one moment: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/.

    Attributes:
        first: bound of the first pause.
        most: bound of every later one.
        slow_first: the same where somebody has to change something.
        slow_most: the same.
        asked_most: a pause that the collector asks for is kept up to here.
    """

    first: float = 1.0
    most: float = 60.0
    slow_first: float = 30.0
    slow_most: float = 600.0
    asked_most: float = 300.0

    def pause(self, failures: int, answer: Retry) -> float:
        """Seconds until the next try.

        Args:
            failures: tries that failed since the last that did not, this one included.
            answer: to this one.
        """
        jitter = int.from_bytes(os.urandom(4), "little") / 2**32
        if answer.after is not None and not answer.slow:
            return min(answer.after, self.asked_most) + self.first * jitter
        first, most = (self.slow_first, self.slow_most) if answer.slow else (self.first, self.most)
        bound = min(most, first * 2.0 ** min(failures - 1, 32))
        least = bound / 2 if answer.slow else first / 10
        return least + (bound - least) * jitter
