# SPDX-License-Identifier: Apache-2.0
"""The daemon: samples, makes a profile of each interval and hands it to the sender, until told to stop."""

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace

from pyprof import __version__
from pyprof.bpf.perf_events import online_cpus
from pyprof.control import ControlSocket
from pyprof.daemon import logs, privileges, snapshot
from pyprof.daemon.board import Board
from pyprof.daemon.config import Config, changes, readable_secrets
from pyprof.daemon.exporting import Exporter
from pyprof.daemon.health import Health
from pyprof.daemon.notify import Notifier
from pyprof.daemon.pages import pages
from pyprof.daemon.residence import drop_clean_pages
from pyprof.daemon.settings import MIB, Settings
from pyprof.daemon.web import WebServer, listen
from pyprof.errors import HostError, PyprofError
from pyprof.host import prepare
from pyprof.profile.model import By
from pyprof.session import PRIORITY, Options, Session, on_signals
from pyprof.symbols.names import Limits

LOG = logging.getLogger(__name__)

POLL_SECONDS = 0.5
"""Twice what a recording takes: a daemon samples seldom, and wakes up all day."""

STOP_SECONDS = 4.5
"""From the signal to the end, at most: of the five that are promised."""
LEAST_DRAIN_SECONDS = 0.2
DRAIN_GRACE = 2.0
"""So long after its time Sender.drain() may end."""

WARM = (0, 2)
"""Intervals after which clean pages are dropped: before the first, which reads all kernel symbols, and when
all that a usual one takes has been used."""

PROFILE_FAILED = "profile could not be made"
ENCODING_FAILED = "profile could not be encoded"


def options_of(settings: Settings) -> Options:
    return Options(
        hz=settings.hz,
        event=settings.event,
        by=By(settings.by),
        arena_bytes=settings.arena_mib * MIB,
        grace=settings.grace,
        stamps=settings.shape == "timestamps",
        facts=True,
        names=Limits(settings.names, settings.symbol_tables_mib * MIB, settings.idle),
    )


def beat(health: Health, notifier: Notifier) -> None:
    """Once a second, while the loop turns: says so, but to the watchdog only if profiles are made, too."""
    health.turned()
    if not health.wedged():
        notifier.watchdog(time.monotonic())


class Service:
    """One run of the daemon."""

    def __init__(self, load: Callable[[], Config], environ: Mapping[str, str]) -> None:
        """Args:
        load: reads the configuration; called again at each reload.
        environ: the environment.

        Raises:
            ConfigError: the configuration cannot be used.
        """
        self._load = load
        self._environ = environ
        self._config = load()
        self._settings = self._config.settings
        self._intervals = snapshot.IntervalCounts()
        self._ending_since: float | None = None
        self._reload_wanted = False

    def run(self) -> None:
        """Runs until SIGTERM or SIGINT.

        Raises:
            ConfigError: a setting cannot be used.
            HostError: this host cannot profile.
        """
        # Until it can be followed, a wish to reload must not end us; the configuration has just been read.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._log_as_set()
        for warning in (*self._config.warnings, readable_secrets(self._config)):
            if warning:
                LOG.warning("%s", warning)
        with ExitStack() as stack:
            self._notifier = Notifier(self._environ)
            stack.callback(self._notifier.close)
            server = self._listen()
            if server is not None:
                stack.callback(server.close)
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
            # No thread runs yet, so all that will be started have no more than this.
            self._drop_privileges()
            self._exporter = Exporter(self._config, self._environ)
            drain = stack.enter_context(ExitStack())
            # However it ends, what was handed over is sent or kept.
            drain.callback(self._drain)
            self._session = session = stack.enter_context(Session(options_of(self._settings)))
            signals = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
            stack.callback(on_signals(session, signals, self._signalled))
            prepare(session)
            self._health = Health(self._settings.interval)
            session.each_second.append(lambda _: beat(self._health, self._notifier))
            self._serve_control(stack)
            self._serve_pages(stack, server)
            session.start()
            self._say_hello()
            self._loop()
            self._stop()

    def _log_as_set(self) -> None:
        settings = self._settings
        logs.set_up(settings.log_level, settings.log_format, self._environ, self._config.secrets())

    def _listen(self) -> socket.socket | None:
        if not self._settings.metrics_listen:
            return None
        try:
            return listen(self._settings.metrics_listen)
        except HostError as error:
            # A profiler without metrics is better than none.
            LOG.warning("no /metrics and no /healthz: %s", error)
            return None

    def _drop_privileges(self) -> None:
        try:
            LOG.info("%s", privileges.drop())
        except HostError as error:
            LOG.warning("%s", error)

    def _serve_control(self, stack: ExitStack) -> None:
        control = ControlSocket(self._session.state)
        stack.callback(control.close)
        if control.fd >= 0:
            self._session.watch(control.fd, control.serve)
        else:
            LOG.warning("%s", control.problem)

    def _serve_pages(self, stack: ExitStack, server: socket.socket | None) -> None:
        if server is None:
            return
        board = Board(self._snapshot)
        stack.callback(board.close)
        self._session.watch(board.fd, board.answer)
        web = WebServer(server, pages(board, self._health))
        stack.callback(web.close)
        web.start()
        LOG.info("serving /metrics and /healthz at port %d", web.port)

    def _snapshot(self) -> snapshot.Snapshot:
        return snapshot.take(self._session, self._intervals, self._exporter.counts())

    def _say_hello(self) -> None:
        settings = self._settings
        status = f"sampling {len(online_cpus())} CPUs at {settings.hz} Hz"
        LOG.info(
            "pyprof %s: %s, a profile each %g s to %s (%s)", __version__, status, settings.interval,
            self._exporter.endpoint.shown, self._exporter.endpoint.protocol,
        )  # fmt: skip
        self._notifier.ready(status)

    def _signalled(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._reload_wanted = True
        elif self._ending_since is None:
            self._ending_since = time.monotonic()
            # The next one is not to be waited for: nothing of us outlives the process.
            for each in (signal.SIGTERM, signal.SIGINT):
                signal.signal(each, signal.SIG_DFL)

    def _loop(self) -> None:
        due = time.monotonic() + self._settings.interval
        while self._ending_since is None:
            if self._reload_wanted:
                self._reload_wanted = False
                self._reload()
                due = min(due, time.monotonic() + self._settings.interval)
            now = time.monotonic()
            if now >= due:
                self._interval()
                # Where one took longer than an interval the next ones are not made up for.
                due = max(due + self._settings.interval, time.monotonic())
                continue
            self._session.poll(min(due - now, POLL_SECONDS))

    def _interval(self) -> None:
        """Makes a profile of what was sampled since the last one. What goes wrong costs its samples only."""
        begun = time.monotonic()
        counts = self._intervals
        if counts.done in WARM:
            drop_clean_pages()
        try:
            profile = self._session.take()
        except Exception as error:
            LOG.exception("a profile cannot be made")
            counts.lose(PROFILE_FAILED, self._session.discard())
            self._failed(error)
            return
        try:
            lost: list[dict[str, int]] = []
            self._session.aside(lambda: lost.append(self._exporter.submit(profile)))
        except Exception as error:
            LOG.exception("a profile cannot be encoded")
            counts.lose(ENCODING_FAILED, profile.accounting.reported)
            self._failed(error)
            return
        for reason, samples in lost[0].items():
            counts.lose(reason, samples)
        counts.done += 1
        counts.last_seconds = time.monotonic() - begun
        counts.seconds += counts.last_seconds
        self._health.profiled()
        self._tell(profile.accounting.reported)

    def _failed(self, error: Exception) -> None:
        self._intervals.failed += 1
        self._health.failed(f"{type(error).__name__}: {error}")

    def _tell(self, samples: int) -> None:
        counts = self._exporter.counts()
        waiting = counts.waiting_memory + counts.waiting_spool
        collector = f"collector away, {waiting} samples wait" if counts.away else "collector answers"
        if counts.since_success is None and not counts.away:
            collector = "nothing sent yet"
        LOG.debug("%d samples in the last interval", samples)
        self._notifier.status(f"{samples} samples in the last interval; {collector}")

    def _reload(self) -> None:
        self._notifier.reloading("reading the configuration")
        try:
            config = self._load()
            live, restart = changes(self._settings, config.settings)
            kept = {each.name: getattr(self._settings, each.name) for each in restart}
            settings = replace(config.settings, **kept)
            self._exporter.reload(config, settings)
        except PyprofError as error:
            LOG.error("the configuration stays as it was: %s", error)  # noqa: TRY400  # the text says it all
            self._notifier.ready("the configuration could not be read anew: see the log")
            return
        self._config, self._settings = config, settings
        self._log_as_set()
        self._health.interval = settings.interval
        LOG.info("configuration read anew, changed: %s", ", ".join(each.path for each in live) or "nothing")
        if restart:
            LOG.warning("changed only by a restart: %s", ", ".join(each.path for each in restart))
        self._notifier.ready("configuration read anew")

    def _stop(self) -> None:
        self._notifier.stopping("sending what is left")
        self._session.stop()
        self._interval()
        self._drain()
        counts = snapshot.adjusted(self._session.accounting(), self._intervals)
        export = self._exporter.counts()
        LOG.info(
            "stopped", extra={"fields": {
                "taken": counts.taken, "reported": counts.reported, "lost": sum(counts.lost.values()),
                "sent": export.sent, "rejected": export.rejected, "spooled": export.waiting_spool,
                "not_sent": sum(export.lost.values()),
            }},
        )  # fmt: skip

    def _drain(self) -> None:
        """Ends sending; what was drained is."""
        since = time.monotonic() if self._ending_since is None else self._ending_since
        left = since + STOP_SECONDS - DRAIN_GRACE - time.monotonic()
        self._exporter.drain(max(left, LEAST_DRAIN_SECONDS))
