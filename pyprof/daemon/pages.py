# SPDX-License-Identifier: Apache-2.0
"""The pages that the daemon serves."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from pyprof import __version__
from pyprof.daemon.board import Board
from pyprof.daemon.health import Health
from pyprof.daemon.snapshot import Snapshot
from pyprof.daemon.web import Answer, Page, text


def pages(board: Board, health: Health) -> Mapping[str, Page]:
    """By path."""
    return {"/metrics": _Metrics(board, health), "/healthz": lambda _: health_page(board, health)}


class _Metrics:
    """Loads what makes the page when it is first asked for: where nobody scrapes, it takes no memory."""

    def __init__(self, board: Board, health: Health) -> None:
        self._board = board
        self._health = health
        self._page: Page | None = None

    def __call__(self, accept: str) -> Answer:
        if self._page is None:
            try:
                from pyprof.daemon.metrics import MetricsPage
            except ImportError:
                return text(HTTPStatus.NOT_IMPLEMENTED, "prometheus-client is not installed")
            self._page = MetricsPage(self._board.current, lambda: self._health.uptime)
        return self._page(accept)


def health_page(board: Board, health: Health) -> Answer:
    """200 where all is well, 503 with the reasons where not; a JSON object either way."""
    problems = health.problems()
    body: dict[str, Any] = {
        "status": "failing" if problems else "ok",
        "problems": problems,
        "version": __version__,
        "uptime_seconds": round(health.uptime, 3),
    }
    # Whoever asks for health wants an answer also of a loop that hangs.
    snapshot = board.last() if problems else board.current()
    if snapshot is not None:
        body |= numbers(snapshot)
    status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
    return Answer(status, "application/json", json.dumps(body).encode() + b"\n")


def numbers(snapshot: Snapshot) -> dict[str, Any]:
    """What happened so far, in few numbers."""
    counts, export = snapshot.accounting, snapshot.export
    return {
        "samples": {
            "taken": counts.taken,
            "reported": counts.reported,
            "lost": counts.lost,
            "pending": snapshot.pending,
        },
        "export": {
            "submitted": export.submitted,
            "found": export.found,
            "sent": export.sent,
            "rejected": export.rejected,
            "waiting": {"memory": export.waiting_memory, "spool": export.waiting_spool},
            "lost": export.lost,
            "away": export.away,
            "last_error": export.last_error,
        },
    }
