"""Reads the rows of a run that a view does not contain yet, in one short transaction."""

from dataclasses import replace

from fairbed.coordinator.report.privacy import privacy_summary
from fairbed.coordinator.store.reader import LIVE, Quality, RunReader
from fairbed.coordinator.tui.view import (
    EVENTS_KEPT,
    ROUNDS_KEPT,
    Cursor,
    RunView,
    ViewUpdate,
    fold,
)


class ViewReader:
    """Keeps a view up to date; used by one thread at a time, never by the thread of the screen.

    Args:
        reader: Reads the run.
        reveals: Show malicious devices although the run is live.
    """

    def __init__(self, reader: RunReader, *, reveals: bool = False) -> None:
        self.reader, self._reveals = reader, reveals
        self._seen: tuple[int, bool] | None = None

    def refresh(self, view: RunView) -> RunView | None:
        """Return the next view, or None if the store has not changed since the last one.

        Raises:
            StoreError: The store cannot be read.
        """
        seen = (self.reader.data_version(), self.reader.is_alive())
        if seen == self._seen:
            return None
        view = fold(view, self._read_update(view.cursor))
        self._seen = seen
        return view

    def _read_update(self, cursor: Cursor) -> ViewUpdate:
        reader = self.reader
        with reader.snapshot():
            info = reader.run()
            if info.row.resumes != cursor.resumes:
                cursor = Cursor(resumes=info.row.resumes)
            rounds = reader.rounds(cursor.round)
            newest = rounds[-1].round if rounds else cursor.round
            metrics = reader.metrics(cursor.metric)
            events = reader.events(cursor.event, EVENTS_KEPT)
            telemetry = reader.telemetry_latest(cursor.telemetry)
            is_new = cursor.event == 0
            may_have_joined = is_new or bool(events)
            return ViewUpdate(
                info=info,
                cursor=replace(
                    cursor,
                    round=newest,
                    metric=metrics[-1].round if metrics else cursor.metric,
                    event=events[-1][0] if events else cursor.event,
                    telemetry=telemetry[-1][0] if telemetry else cursor.telemetry,
                ),
                devices=reader.devices() if may_have_joined else (),
                truths=reader.truths() if may_have_joined else (),
                malicious=reader.malicious() if self._reveals or info.status not in LIVE else {},
                rounds=rounds,
                exchanges=reader.exchanges(max(cursor.round, newest - ROUNDS_KEPT)),
                measured=reader.latest_exchanges() if cursor.round == 0 else (),
                selection_counts=reader.selection_counts(cursor.round) if rounds else (),
                quality=reader.quality(cursor.round) if rounds else Quality(),
                device_s=reader.device_s(cursor.round, newest) if rounds else 0.0,
                energy_j=reader.energy_j(cursor.round, newest) if rounds else {},
                epsilon=_epsilon(reader) if rounds else None,
                selections=reader.selections(newest) if rounds else (),
                metrics=metrics,
                device_metrics=reader.device_metrics(metrics[-1].round) if metrics else (),
                personal_scores=reader.personal_scores(cursor.round - ROUNDS_KEPT),
                events=events,
                telemetry=[row for _, row in telemetry],
                commands=reader.commands(),
            )


def _epsilon(reader: RunReader) -> float | None:
    """Return the largest epsilon of local noise; None without noise, or if it is unknown."""
    plan = reader.plan.privacy
    summary = None if plan.clip is None else privacy_summary(plan, reader.releases().values())
    return None if summary is None else summary.epsilon_max
