"""The run's clock and its event log: one line in the store, one on stderr, per state change."""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Literal, TypeAlias

from fairbed.coordinator.state.rate_limit import RateLimit
from fairbed.coordinator.store.errors import StoreError
from fairbed.coordinator.store.store import Store
from fairbed.coordinator.store.tables import EventRow, Record

_LOG = logging.getLogger("coordinator")
Level: TypeAlias = Literal["info", "warning", "error"]

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

REPEAT_S = 600.0
"""Shortest time between two warnings of one kind about one device; the next has their number."""

MAX_KINDS = 10_000
"""Kinds and devices whose last warning is remembered; further devices share one line per kind."""

REPORTED_PER_S, REPORTED_BURST = 0.1, 50
"""Events that a device causes by itself, as when it joins and leaves: 50 at once, after that one
in 10 s. 1 MB a day at most."""


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
        self._dilation = store.dilation
        self._zero = now() - store.resume_offset_s()
        self._warned: dict[tuple[str, str | None], _Warned] = {}
        self._reported = RateLimit(REPORTED_PER_S, REPORTED_BURST)
        self._omitted: Counter[str] = Counter()
        """Events of each device that were left out since its last one."""

    def at_s(self, instant: float | None = None) -> float:
        """Return seconds since the run was created, for an instant of `now` (default: now)."""
        return (self.now() if instant is None else instant) - self._zero

    def clock(self, instant: float) -> str:
        """Return the time of day of an instant of `now`, with the date if it is another day."""
        now = datetime.now().astimezone()
        then = now - timedelta(seconds=(self.now() - instant) * self._dilation)
        return then.strftime("%H:%M:%S" if then.date() == now.date() else "%d %b %H:%M")

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
        if key not in self._warned and len(self._warned) >= MAX_KINDS:
            key = kind, None
        last = self._warned.get(key)
        if last is not None and now - last.at < REPEAT_S:
            last.omitted += 1
            return
        more = f" ({last.omitted} more since the last line)" if last and last.omitted else ""
        self._warned[key] = _Warned(now)
        self.event(kind, text + more, level="warning", device=device, round_id=round_id)

    def report(self, kind: str, text: str, *, device: str, level: Level = "info") -> None:
        """Write an event that a device can cause at will, at a bounded rate for each device."""
        if not self._reported.take(device, self.now()):
            self._omitted[device] += 1
            return
        omitted = self._omitted.pop(device, 0)
        more = f" ({omitted} events of this device were left out before)" if omitted else ""
        self.event(kind, text + more, level=level, device=device)

    def report_omitted(self) -> None:
        """Write one event for each device whose warnings have no line of their own."""
        texts = defaultdict[str | None, list[str]](list)
        for (kind, device), one in sorted(self._warned.items(), key=lambda item: item[0][0]):
            if one.omitted:
                texts[device].append(f"{kind} {one.omitted}")
        for device, text in texts.items():
            more = f"not listed one by one: {', '.join(text)}"
            self.event("refusals", more, level="warning", device=device)


@dataclass(slots=True)
class _Warned:
    at: float
    omitted: int = 0
