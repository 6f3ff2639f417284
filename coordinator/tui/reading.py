"""Reads what a view of a run shows, in short transactions: new rows, or the state after a round."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from fairbed.coordinator.report.facts import RunFacts
from fairbed.coordinator.report.measures import own_numbers, own_numbers_of_devices
from fairbed.coordinator.report.privacy import privacy_summary
from fairbed.coordinator.store.reader import LIVE, Quality, RunInfo, RunReader, SelectionCounts
from fairbed.coordinator.store.tables import CommandRow, DeviceRow, TruthRow
from fairbed.coordinator.tui.view import (
    EVENTS_KEPT,
    JOINED,
    PACE_ROUNDS,
    ROUNDS_KEPT,
    UNKNOWN,
    Cursor,
    DeviceView,
    RoundView,
    RunView,
    Stragglers,
    ViewUpdate,
    fold,
    round_views,
)

ROUNDS_CACHED = 4 * ROUNDS_KEPT
"""Past rounds whose exchanges are remembered, so that a step reads those of one round."""
NO_ENERGY = 1e-9
"""Share of an energy that is left by rounding when all its parts were subtracted."""


class ViewReader:
    """Keeps a view up to date; used by other threads than that of the screen.

    At a time, one thread may read the newest view and one the view of a past round.

    Args:
        reader: Reads the run.
        reveals: Show malicious devices although the run is live.
    """

    def __init__(self, reader: RunReader, *, reveals: bool = False) -> None:
        self.reader, self._reveals = reader, reveals
        self._seen: tuple[int, bool] | None = None
        self._past: RunView | None = None
        """The last view of a past round, from which the totals of the next one are counted."""
        self._rounds: dict[int, RoundView] = {}
        self._fleet: tuple[Cursor, Sequence[DeviceRow], Sequence[TruthRow]] = (Cursor(), (), ())

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

    def at(self, round_id: int, now: RunView) -> RunView:
        """Return the view as it was when a past round had been closed and evaluated.

        Equal to the live view of that time, except for what the store does not hold: contexts
        that are no longer retained (the device is `unknown`), and changes after the round of data
        of a device or of the score of a personal model. Exchanges of a round are shown as they
        ended, even if they ended later; a time that was measured later is not known yet. A device
        that left more than `EVENTS_KEPT` events before is silent.

        Args:
            round_id: A closed round.
            now: The newest view.

        Raises:
            ValueError: The newest view has no such round.
            StoreError: The store cannot be read.
        """
        oldest = 1 if now.info is None else now.info.oldest_round
        if now.info is None or not oldest <= round_id <= now.cursor.round:
            raise ValueError(
                f"the round must be from {oldest} to {now.cursor.round}, the newest closed one, "
                f"got {round_id}"
            )
        if self._past is not None and self._past.cursor.resumes != now.cursor.resumes:
            self._past, self._rounds = None, {}
        with self.reader.snapshot():
            self._past = self._read_past(round_id, now, now.info)
        return self._past

    def _read_past(self, round_id: int, now: RunView, info: RunInfo) -> RunView:
        reader = self.reader
        (row,) = reader.rounds(round_id - 1, round_id)
        until_s = row.closed_at_s
        devices, truths = self._fleet_at(until_s, now)
        events = [
            (number, event)
            for number, event in reader.events(limit=EVENTS_KEPT, until_s=until_s)
            if event.at_s < until_s or (event.round or 0) <= round_id
        ]  # on a virtual clock the next round begins at the same instant
        telemetry = reader.telemetry_at(until_s)
        commands = reader.commands(until_s)
        metrics = now.metrics[: bisect_right(now.metrics, round_id, key=lambda row: row.round)]
        status = _status(commands)
        before = replace(
            self._totals_at(round_id, now, [device.name for device in devices]),
            cursor=Cursor(resumes=now.cursor.resumes),
            rounds=self._rounds_before(round_id, now, info),
            metrics=metrics,
            queues=now.queues[: bisect_right(now.queues, round_id - 1, key=lambda row: row[0])],
            stragglers=Stragglers(*reader.straggler_counts(round_id - 1)),
            closings_s=reader.closings_s(round_id - 1, PACE_ROUNDS + 1),
        )
        update = ViewUpdate(
            info=replace(
                info,
                row=replace(info.row, status=status, reason=""),
                status=status,
                is_alive=True,
                rounds_completed=len(before.queues) + 1,
                rounds_empty=row.rounds_empty,
                devices=len(devices),
                elapsed_s=until_s,
                accuracy_mean=metrics[-1].accuracy_mean if metrics else None,
                rmse_mean=metrics[-1].rmse_mean if metrics else None,
                alerts=tuple(reader.standing_alerts(until_s)),
            ),
            cursor=Cursor(
                resumes=now.cursor.resumes,
                round=round_id,
                metric=metrics[-1].round if metrics else 0,
                event=events[-1][0] if events else 0,
                telemetry=telemetry[-1][0] if telemetry else 0,
            ),
            devices=devices,
            truths=truths,
            malicious={x.name: x.malicious for x in now.devices if x.malicious is not None},
            rounds=(row,),
            exchanges=reader.exchanges(round_id - 1, round_id),
            measured=reader.measured_times(round_id),
            epsilon=_epsilon(reader, round_id),
            selections=reader.latest_selections(round_id),
            device_metrics=reader.device_metrics(metrics[-1].round) if metrics else (),
            personal_scores=reader.personal_scores(0, round_id),
            events=events,
            telemetry=[context for _, context in telemetry],
            commands=commands,
        )
        return replace(fold(before, update), until_round=round_id)

    def round_at(self, run_s: float) -> int:
        """Return the newest round that had been closed at an instant of the run clock; 0: none."""
        return self.reader.newest_round(run_s)

    def _fleet_at(
        self, until_s: float, now: RunView
    ) -> tuple[Sequence[DeviceRow], Sequence[TruthRow]]:
        """Return the devices that had joined until an instant."""
        cursor, devices, truths = self._fleet
        if cursor.event != now.cursor.event or cursor.resumes != now.cursor.resumes:
            devices, truths = self.reader.devices(), self.reader.truths()
            self._fleet = (now.cursor, devices, truths)
        return [row for row in devices if row.first_seen_s <= until_s], truths

    def _rounds_before(self, round_id: int, now: RunView, info: RunInfo) -> tuple[RoundView, ...]:
        """Return the rounds before one that are kept beside it."""
        self._rounds |= {one.round: one for one in now.rounds if one.status != "open"}
        wanted = range(max(1, round_id + 1 - ROUNDS_KEPT), round_id)
        missing = [number for number in wanted if number not in self._rounds]
        if missing:
            since, until = missing[0] - 1, missing[-1]
            rows = self.reader.rounds(since, until)
            exchanges = self.reader.exchanges(since, until)
            is_personal = info.plan.personalisation.method != "none"
            for view in round_views(rows, exchanges, is_personal=is_personal):
                self._rounds[view.round] = view
        for number in sorted(self._rounds, key=lambda number: -abs(number - round_id)):
            if len(self._rounds) <= ROUNDS_CACHED:
                break
            del self._rounds[number]
        return tuple(self._rounds[number] for number in wanted if number in self._rounds)

    def _totals_at(self, round_id: int, now: RunView, names: Sequence[str]) -> RunView:
        """Return a view with nothing but the totals after a round.

        They are those of the nearest known view, plus or minus the rounds between.
        """
        known = [RunView(), now, *([] if self._past is None else [self._past])]
        base = min(known, key=lambda view: abs(view.cursor.round - round_id))
        sign = 1 if base.cursor.round <= round_id else -1
        between = sorted((base.cursor.round, round_id))
        quality = self.reader.quality_by_device(*between)
        energy_j = self.reader.energy_j(*between)
        counts = {row.device: row for row in self.reader.selection_counts(*between)}
        state = JOINED if self.reader.has_all_contexts() else UNKNOWN
        none, devices = SelectionCounts("", 0, 0, 0, 0), {x.name: x for x in base.devices}
        totals = []
        for name in names:
            one, more = devices.get(name, DeviceView(name)), counts.get(name, none)
            totals.append(
                DeviceView(
                    name,
                    state=state,
                    selected=one.selected + sign * more.selected,
                    aggregated=one.aggregated + sign * more.aggregated,
                    rounds=one.rounds + sign * more.rounds,
                    energy_j=_sum(one.energy_j, energy_j.get(name), sign),
                    quality=_changed(one.quality, quality.get(name, Quality()), sign),
                )
            )
        return RunView(
            devices=tuple(totals),
            quality=_changed(base.quality, sum(quality.values(), Quality()), sign),
            device_s=base.device_s + sign * self.reader.device_s(*between),
        )

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
            is_changed = bool(rounds or metrics)
            facts = RunFacts(reader, info=info)
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
                measured=reader.measured_times() if cursor.round == 0 else {},
                selection_counts=reader.selection_counts(cursor.round) if rounds else (),
                quality=reader.quality_by_device(cursor.round) if rounds else {},
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
                measures=own_numbers(facts, "room") if is_changed else None,
                device_measures=own_numbers_of_devices(facts, "room") if is_changed else {},
            )


def _status(commands: Sequence[CommandRow]) -> str:
    """Return the status of a run with a live process from the commands that it executed."""
    switches = [row.action for row in commands if row.is_accepted]
    newest = next((x for x in reversed(switches) if x in ("pause", "resume")), "resume")
    return "paused" if newest == "pause" else "running"


def _changed(total: Quality, part: Quality, sign: int) -> Quality:
    """Return counts with those of a part added or subtracted."""
    return total + part if sign > 0 else total - part


def _sum(total: float | None, part: float | None, sign: int) -> float | None:
    """Return a total with a part added or subtracted; None if no part is left."""
    if part is None:
        return total
    changed = (total or 0.0) + sign * part
    return changed if sign > 0 or changed > NO_ENERGY * part else None


def _epsilon(reader: RunReader, until_round: int | None = None) -> float | None:
    """Return the largest epsilon of local noise; None without noise, or if it is unknown."""
    plan = reader.plan.privacy
    if plan.clip is None:
        return None
    summary = privacy_summary(plan, reader.releases(until_round).values())
    return None if summary is None else summary.epsilon_max
