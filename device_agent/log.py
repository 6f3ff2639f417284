"""The agent's log: lines on stderr, and the newest of them for the coordinator.

Only lines of this package are kept for the coordinator: those of `wire` name the broker and the
client id, and a plug-in may write what its owner does not want to share.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fairbed.device_agent.config import SentLevel
from fairbed.wire.console import log_lines
from fairbed.wire.messages import (
    LOG_INTERVAL_S,
    MAX_LOG_LINES,
    MAX_LOG_TEXT,
    LogLevel,
    LogLine,
    LogLines,
)

MAX_UNSENT = 64
"""Lines that wait to be sent, about 10 KB; the oldest are lost first."""

_PACKAGE = logging.getLogger(__package__)


def log_to_stderr(level: str) -> None:
    """Configure logging: one line per state change, on stderr."""
    log_lines(level, "%(asctime)s %(levelname)-7s %(message)s", anew=True)


class RecentLog(logging.Handler):
    """The lines of the log of one agent that were not sent yet, at most `MAX_UNSENT`.

    Args:
        name: Name of the device; lines are kept without it.
        level: Least level that is kept.
        now: Clock of the device, seconds.
    """

    def __init__(self, name: str, level: SentLevel, now: Callable[[], float]) -> None:
        super().__init__(logging.CRITICAL + 1 if level == "off" else level.upper())
        self._name = name
        self._now = now
        self._lines: deque[tuple[float, LogLevel, str]] = deque(maxlen=MAX_UNSENT)
        self._count = 0
        """Lines since the start of the process."""
        self._sent_at = float("-inf")

    @contextmanager
    def attached(self) -> Iterator["RecentLog"]:
        """Keep the lines of this package for the duration of a block."""
        _PACKAGE.addHandler(self)
        try:
            yield self
        finally:
            _PACKAGE.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line; any thread may log."""
        try:
            text = " ".join(record.getMessage().split())
        except Exception:  # as every handler does: a bad call of the log must not end the agent
            self.handleError(record)
            return
        text = text.removeprefix(f"{self._name}: ").removeprefix(f"{self._name} ")
        if len(text) > MAX_LOG_TEXT:
            text = text[: MAX_LOG_TEXT - 1] + "…"
        self._lines.append((self._now(), _level(record.levelno), text))
        self._count += 1

    def take(self, boot: int) -> LogLines | None:
        """Return the next lines to send; None if there are none, or the last ones are too recent.

        Args:
            boot: Number of the agent process.
        """
        now = self._now()
        if not self._lines or now - self._sent_at < LOG_INTERVAL_S:
            return None
        self._sent_at = now
        with self._locked():
            first = self._count - len(self._lines)
            taken = [self._lines.popleft() for _ in range(min(MAX_LOG_LINES, len(self._lines)))]
        lines = tuple(
            LogLine(level=level, age_s=max(0.0, now - at_s), text=text)
            for at_s, level, text in taken
        )
        return LogLines(boot=boot, first=first, lines=lines)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()


def _level(number: int) -> LogLevel:
    if number >= logging.ERROR:
        return "error"
    return "warning" if number >= logging.WARNING else "info"
