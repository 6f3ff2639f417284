"""The run's clock and its event log: one line in the store, one on stderr, per state change."""

import logging
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Literal, TypeAlias

from fairbed.coordinator.store.errors import StoreError
from fairbed.coordinator.store.store import Store
from fairbed.coordinator.store.tables import EventRow, Record

_LOG = logging.getLogger("coordinator")
Level: TypeAlias = Literal["info", "warning", "error"]

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

REPEAT_S = 10.0
"""Shortest time between two warnings of one kind about one device."""


class EventLog:
    """The clock of a run, and the writer of its rows and events.

    Args:
        store: Where the rows are written.
        now: Monotonic clock, seconds.
        on_failure: Called when the store cannot take a row any more; callers of `add` need not
            handle the error.
    """

    def __init__(
        self, store: Store, now: Callable[[], float], on_failure: Callable[[StoreError], None]
    ) -> None:
        self.store = store
        self.now = now
        self._on_failure = on_failure
        self._zero = now() - store.resume_offset_s()
        self._warned_at: dict[tuple[str, str | None], float] = {}

    def at_s(self, instant: float | None = None) -> float:
        """Return seconds since the run was created, for an instant of `now` (default: now)."""
        return (self.now() if instant is None else instant) - self._zero

    def add(self, record: Record) -> None:
        """Queue a row."""
        try:
            self.store.add(record)
        except StoreError as exc:
            self._on_failure(exc)

    def event(
        self,
        kind: str,
        text: str,
        *,
        level: Level = "info",
        device: str | None = None,
        round_id: int | None = None,
        is_logged: bool = True,
    ) -> None:
        """Write an event to the store and, unless it is reported otherwise, to the log."""
        self.add(
            EventRow(
                at_s=self.at_s(),
                wall=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
                level=level,
                kind=kind,
                round=round_id,
                device=device,
                text=text,
            )
        )
        if not is_logged:
            return
        where = " ".join(
            part for part in (f"round {round_id}" if round_id else "", device or "") if part
        )
        _LOG.log(_LEVELS[level], "%s%s: %s", f"{where} " if where else "", kind, text)

    def warn(
        self, kind: str, text: str, *, device: str | None = None, round_id: int | None = None
    ) -> None:
        """Write a warning about a peer, at most once per `REPEAT_S` for each kind and device."""
        now, key = self.now(), (kind, device)
        if now - self._warned_at.get(key, float("-inf")) < REPEAT_S:
            return
        if len(self._warned_at) > 10_000:
            self._warned_at.clear()
        self._warned_at[key] = now
        self.event(kind, text, level="warning", device=device, round_id=round_id)
