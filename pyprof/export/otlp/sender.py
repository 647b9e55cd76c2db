# SPDX-License-Identifier: Apache-2.0
"""The thread that sends batches, and keeps them while that cannot be.

A batch waits in memory, then, once a try has failed, in the spool. While the collector is away all that comes
goes there at once, so that a crash loses nothing. When it is back, new batches and the spool's oldest take
turns.

One lock, the spool's where there is one, guards every count, so that a batch is at any moment in exactly one
place. The network is used, and files are written and read, without it.

A batch may arrive twice, where the collector took it and its answer was lost.
"""

import logging
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass

from pyprof.export.otlp.answer import Accepted, Answer, Refused, Retry
from pyprof.export.otlp.batch import Batch
from pyprof.export.otlp.counts import Counts
from pyprof.export.otlp.endpoint import Endpoint
from pyprof.export.otlp.partial import rejected_samples
from pyprof.export.otlp.patience import Patience
from pyprof.export.otlp.quiet import QuietLog
from pyprof.export.otlp.spool import SPOOL_FULL, Entry, NotKept, Spool
from pyprof.export.otlp.transport import Line

LOG = logging.getLogger(__name__)

QUEUE_BYTES = 16 << 20
QUEUE_FULL = "queue full"
NOT_SENT = "not sent before the end"

MIDWAY_TRIES = 5
"""So often a batch is tried that breaks connections, or gets no answer, before it has to let all others go
first, each time."""

_GRACE = 2.0
_NO_MEMORY = "no memory"


@dataclass(slots=True, eq=False)
class _Item:
    """A batch in memory."""

    batch: Batch
    sequence: int
    midway: int = 0  # such failures


@dataclass(slots=True)
class _Job:
    """What is being sent: `entry` where it is the spool's, else the first of the queue."""

    batch: Batch
    item: _Item | None
    entry: Entry | None


class Sender:
    """Sends batches to a collector; see Counts for what it tells.

    The spool, where there is one, is the sender's from then on: `drain` closes it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        spool: Spool | None = None,
        *,
        queue_bytes: int = QUEUE_BYTES,
        patience: Patience | None = None,
    ) -> None:
        """Connects to nothing yet.

        Args:
            endpoint: where to send.
            spool: keeps what cannot be sent now; without, it waits in memory as far as that goes.
            queue_bytes: most bytes of batches in memory; one may be there whatever its size.
            patience: pauses between tries.

        Raises:
            ConfigError: certificates or keys cannot be used.
        """
        self._line = Line(endpoint)
        self._next_line: Line | None = None
        self._spool = spool
        self._lock = spool.lock if spool is not None else threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._queue_bytes = queue_bytes
        self._patience = patience or Patience()
        self._queue: deque[_Item] = deque()
        self._queued_bytes = 0
        self._sequence = 0
        self._spools_turn = False
        self._thread: threading.Thread | None = None

        self._away_since = 0.0
        self._away = False
        self._failures = 0
        self._retry_at = 0.0
        self._stop_at: float | None = None
        self._finishing = False
        self._abandoned = False

        # Also what already gave way.
        self._found = spool.samples + sum(spool.lost.values()) if spool is not None else 0
        self._submitted = self._sent = self._rejected = self._in_memory = 0
        self._lost: Counter[str] = Counter()
        self._requests = self._bytes = self._retries = 0
        self._last_error = ""
        self._last_success: float | None = None
        self._quiet = QuietLog(LOG)
        self._midway: dict[int, int] = {}  # such failures, by sequence of a batch in the spool
        self._told_away = False

    def start(self) -> None:
        """Starts the thread. What was submitted before waits for it."""
        self._thread = threading.Thread(target=self._run, name="otlp-sender", daemon=True)
        self._thread.start()

    def submit(self, batch: Batch) -> None:
        """Takes a batch over; never waits for the network.

        Only where the queue is full is it written to the spool here, without waiting until it is on disk.
        """
        with self._changed:
            self._submitted += batch.samples
            self._in_memory += batch.samples
            item = _Item(batch, self._spool.next_sequence() if self._spool is not None else 0)
            fits = not self._queue or self._queued_bytes + len(batch.payload) <= self._queue_bytes
            if self._stop_at is None and fits:
                self._queue.append(item)
                self._queued_bytes += len(batch.payload)
                self._changed.notify_all()
                return
            stopped = self._stop_at is not None
        reason = self._put_away(item, sync=stopped)
        if reason:
            with self._lock:
                self._lose(item, reason if self._spool is not None else NOT_SENT if stopped else QUEUE_FULL)

    def reload(self, endpoint: Endpoint) -> None:
        """Sends to another endpoint from the next request on, and tries it at once.

        Raises:
            ConfigError: certificates or keys cannot be used; all stays as it was.
        """
        line = Line(endpoint)
        with self._changed:
            self._next_line = line
            self._changed.notify_all()

    def drain(self, seconds: float) -> None:
        """Ends: sends what is in memory; what cannot be sent in time goes into the spool, which is closed.

        Args:
            seconds: to try so long; a little more may pass until all is on disk.
        """
        with self._changed:
            if self._stop_at is None:
                self._stop_at = time.monotonic() + seconds
            self._retry_at = 0.0
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive() and not self._finishing:
                self._line.abort()
                self._thread.join(_GRACE)
        with self._lock:
            # A thread that still waits for a resolver of names has nothing to say any more.
            self._abandoned = not self._finishing
        if self._abandoned:
            self._finish()
        elif self._thread is not None:
            self._thread.join()
        if self._spool is not None:
            self._spool.close()

    def counts(self) -> Counts:
        """What became of all samples so far."""
        with self._lock:
            spool, since = self._spool, self._last_success
            return Counts(
                self._submitted,
                self._found,
                self._sent,
                self._rejected,
                self._in_memory,
                spool.samples if spool is not None else 0,
                dict(self._lost + spool.lost if spool is not None else self._lost),
                self._requests,
                self._bytes,
                self._retries,
                self._away,
                self._last_error,
                None if since is None else time.monotonic() - since,
            )

    def _run(self) -> None:
        going_on = True
        while going_on:
            try:
                going_on = self._turn()
            except Exception as error:  # a defect, or no memory: the thread has to live on
                LOG.exception("sending failed in a way that was not foreseen")
                with self._lock:
                    if self._spool is not None:
                        self._spool.release()
                    self._went_away(Retry(f"{type(error).__name__}: {error}", slow=True))
                    self._changed.wait(1.0)  # whatever it was, not at full speed
        with self._lock:
            self._finishing = not self._abandoned
        if self._finishing:
            self._finish()
        self._line.close()

    def _turn(self) -> bool:
        """One wait, or one request. False when it is time to end."""
        stowed = self._stow() if self._away else True
        with self._changed:
            self._take_next_line()
            now = time.monotonic()
            until = self._retry_at if self._away else 0.0
            if self._abandoned:
                return False
            if self._stop_at is not None:
                kept = self._away and stowed and self._spool is not None
                if kept or not self._queue or now >= self._stop_at:
                    return False
                until = min(until, self._stop_at)
            if self._away and self._spool is not None and self._queue and stowed:
                return True  # it came meanwhile
            if until > now:
                self._changed.wait(until - now)
                return True
            from_spool = self._is_spools_turn()
            if not from_spool and not self._queue:
                self._changed.wait()
                return True
            item = None if from_spool else self._queue[0]
        job = self._job(item)
        if job is not None:
            self._settle(job, self._ask(job.batch))
        return True

    def _take_next_line(self) -> None:
        if self._next_line is not None:
            self._line.close()
            self._line, self._next_line = self._next_line, None
            self._failures, self._retry_at = 0, 0.0

    def _is_spools_turn(self) -> bool:
        if self._spool is None or not len(self._spool) or self._stop_at is not None:
            return False
        self._spools_turn = not self._queue or not self._spools_turn
        return self._spools_turn

    def _job(self, item: _Item | None) -> _Job | None:
        if item is not None:
            return _Job(item.batch, item, None)
        first = self._spool.first() if self._spool is not None else None
        return _Job(first[1], None, first[0]) if first is not None else None

    def _ask(self, batch: Batch) -> Answer:
        timeout = self._line.endpoint.timeout
        if self._stop_at is not None:
            timeout = max(0.1, min(timeout, self._stop_at - time.monotonic()))
        return self._line.send(batch.payload, timeout)

    def _settle(self, job: _Job, answer: Answer) -> None:
        rejected = 0
        if isinstance(answer, Accepted):
            rejected = rejected_samples(job.batch, answer.rejected_profiles)
        with self._lock:
            if self._abandoned:
                return  # another thread took it over
            self._requests += 1
            if isinstance(answer, Retry):
                self._put_back(job, answer.midway)
                self._retries += 1
                self._went_away(answer)
                return
            self._came_back()
            if job.item is not None:
                self._forget(job.item)
            elif job.entry is not None and self._spool is not None:
                self._spool.remove(job.entry)
                self._midway.pop(job.entry.name.sequence, None)
                if not len(self._spool):
                    self._midway.clear()  # also those of what gave way
            if isinstance(answer, Refused):
                self._last_error = answer.reason
                self._lost[answer.loss] += job.batch.samples
                self._quiet.warning("refused", "%d samples are lost: %s", job.batch.samples, answer.reason)
                return
            self._last_success = time.monotonic()
            self._bytes += len(job.batch.payload)
            self._sent += job.batch.samples - rejected
            self._rejected += rejected
            if answer.rejected_profiles or answer.message:
                text = "the collector took a request, but rejected %d profiles (at most %d samples) of it: %s"
                self._quiet.warning(
                    "rejected", text, answer.rejected_profiles, rejected, answer.message or "no reason"
                )

    def _put_back(self, job: _Job, midway: bool) -> None:
        """What may be a batch's own doing must not hold up all the others."""
        if job.entry is not None and self._spool is not None:
            entry = job.entry
            tries = self._midway.pop(entry.name.sequence, 0) + midway
            if midway and tries >= MIDWAY_TRIES:
                entry = self._spool.postpone(entry)
            self._spool.release()
            if tries:
                self._midway[entry.name.sequence] = tries
        elif job.item is not None:
            job.item.midway += midway
            if midway and job.item.midway >= MIDWAY_TRIES:
                self._queue.rotate(-1)

    def _stow(self) -> bool:
        """Puts the queue into the spool. False where that cannot be done now."""
        if self._spool is None:
            return True
        with self._lock:
            items = list(self._queue)
        stowed = True
        for item in items:
            if self._abandoned:
                break
            reason = self._put_away(item)
            if reason:
                stowed = False
                self._quiet.warning("spool", "profiles wait in memory as far as that goes: %s", reason)
            if reason not in {"", SPOOL_FULL}:
                break  # which is the disk's, and not of this batch alone
        return stowed

    def _put_away(self, item: _Item, *, sync: bool = True) -> str:
        """Writes a batch to the spool; the reason where it cannot be."""
        if self._spool is None:
            return NOT_SENT
        try:
            entry = self._spool.write(item.batch, item.sequence, sync=sync)
        except NotKept as error:
            return error.reason
        except MemoryError:
            return _NO_MEMORY
        with self._lock:
            self._spool.keep(entry)
            self._forget(item)
            self._changed.notify_all()
        return ""

    def _forget(self, item: _Item) -> None:
        """Out of memory: it is elsewhere, or nowhere."""
        self._in_memory -= item.batch.samples
        if item in self._queue:
            self._queue.remove(item)
            self._queued_bytes -= len(item.batch.payload)

    def _lose(self, item: _Item, reason: str) -> None:
        self._forget(item)
        self._lost[reason] += item.batch.samples
        self._quiet.warning("lost", "%d samples are lost: %s", item.batch.samples, reason)

    def _finish(self) -> None:
        """Puts away, or gives up, what is still in memory."""
        while True:
            with self._lock:
                if not self._queue:
                    return
                item = self._queue[0]
            reason = self._put_away(item)
            if reason:
                with self._lock:
                    self._lose(item, reason)

    def _went_away(self, answer: Retry) -> None:
        now = time.monotonic()
        self._failures += 1
        self._retry_at = now + self._patience.pause(self._failures, answer)
        self._last_error = answer.reason
        if not self._away:
            self._away, self._away_since = True, now
        place = "in memory" if self._spool is None else "in the spool"
        text = "nothing can be sent to %s, profiles wait %s: %s"
        if self._quiet.warning("away", text, self._shown, place, answer.reason):
            self._told_away = True

    def _came_back(self) -> None:
        self._failures = 0
        if self._away:
            self._away = False
            if not self._told_away:
                return
            self._told_away = False
            waiting = self._in_memory + (self._spool.samples if self._spool is not None else 0)
            seconds = time.monotonic() - self._away_since
            LOG.info("%s answers again after %.0f s: %d samples wait", self._shown, seconds, waiting)

    @property
    def _shown(self) -> str:
        return self._line.endpoint.shown
