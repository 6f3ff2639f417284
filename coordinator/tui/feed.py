"""Reads what a view does not contain yet, in one short transaction."""

from dataclasses import replace

from coordinator.store.reader import Quality, RunReader
from coordinator.tui.view import EVENTS_KEPT, ROUNDS_KEPT, Cursor, News, RunView, fold


class Feed:
    """Keeps a view up to date; used by one thread at a time, never by the screen's."""

    def __init__(self, reader: RunReader) -> None:
        self.reader = reader
        self._seen: tuple[int, bool] | None = None

    def refresh(self, view: RunView) -> RunView | None:
        """Return the next view, or None when nothing was written since the last one.

        Raises:
            StoreError: The store cannot be read.
        """
        seen = (self.reader.data_version(), self.reader.is_alive())
        if seen == self._seen:
            return None
        view = fold(view, self._news(view.cursor))
        self._seen = seen
        return view

    def _news(self, cursor: Cursor) -> News:
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
            return News(
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
                rounds=rounds,
                exchanges=reader.exchanges(max(cursor.round, newest - ROUNDS_KEPT)),
                measured=reader.latest_exchanges() if cursor.round == 0 else (),
                tallies=reader.tallies(cursor.round) if rounds else (),
                quality=reader.quality(cursor.round) if rounds else Quality(),
                selections=reader.selections(newest) if rounds else (),
                metrics=metrics,
                device_metrics=reader.device_metrics(metrics[-1].round) if metrics else (),
                events=events,
                telemetry=[row for _, row in telemetry],
                commands=reader.commands(),
            )
