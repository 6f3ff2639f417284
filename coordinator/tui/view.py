"""State of the control room: one immutable value, folded from rows of the store. Pure.

`fold` adds the rows of a `ViewUpdate` to a view; `RunView.cursor` marks the newest rows in it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from msgspec import Struct, structs

from fairbed.coordinator.policy.live_settings import Change, accepted_changes, mean_beta
from fairbed.coordinator.report.measures import numbers_of
from fairbed.coordinator.report.measures.entry import Number
from fairbed.coordinator.report.quality import quality_of
from fairbed.coordinator.store.reader import Quality, RunInfo, SelectionCounts, profile_of
from fairbed.coordinator.store.tables import (
    CommandRow,
    DeviceMetricRow,
    DeviceRow,
    EventRow,
    ExchangeRow,
    MetricRow,
    PersonalScoreRow,
    RoundRow,
    SelectionRow,
    TelemetryRow,
    TruthRow,
)
from fairbed.coordinator.tui.phase_spans import PHASE_OF_STATE, Span, extend, spans_of

ROUNDS_KEPT = 24
"""Rounds whose exchanges are kept for the timeline."""
EVENTS_KEPT = 500
SILENT_AFTER_S = 3.0
"""A device whose last context is older than this is not available (design.md)."""

JOINED = "joined"
"""State of a device before its first context."""
UNKNOWN = "unknown"
"""State of a device in a past round from which no context is retained."""
BANNER_LINES = 3
"""Most lines above a screen that stay while something is wrong."""

JOINED_SHOWN = 12
"""Devices that the wait for round 1 names."""

PACE_ROUNDS = 10
"""Newest rounds whose pace is that of the rounds to come."""

ENDED = "ended"
"""State of a device that was there when the process of the run ended."""
ABSENT = frozenset({"gone", "silent"})
"""States of a device that the coordinator cannot reach."""
REVOKED = "revoked"
"""State of a device that has left the fleet: the broker refuses its identity."""


class DeviceView(Struct, frozen=True):
    """One line of the fleet table; a Struct, because a thousand are replaced every second."""

    name: str
    profile: str = ""
    n_k: int = 0
    state: str = JOINED
    """State of the agent's lifecycle, or excluded, gone, silent, unwilling, unknown, ended."""
    mu_cores: float | None = None
    downlink_bps: float | None = None
    uplink_bps: float | None = None
    tau_hat_s: float | None = None
    """Predicted exchange time at the last selection; None before the first measured exchange."""
    tau_s: float | None = None
    """Last measured exchange time."""
    selected: int = 0
    aggregated: int = 0
    rounds: int = 0
    """Rounds since it joined."""
    queue: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    auroc: float | None = None
    rmse: float | None = None
    test_n: int = 0
    """Examples of the test of these; 0 without one."""
    has_positions: bool = False
    """The accuracy is that of several positions per example."""
    personal: float | None = None
    """Accuracy of its personal model, or its RMSE in regression; None if it has none."""
    last_context_s: float | None = None
    """Run clock at its last context."""
    cpu_ratio: float | None = None
    rss_bytes: int | None = None
    temperature_celsius: float | None = None
    malicious: str | None = None
    """Kind of its malicious behaviour, if that may be shown."""
    kind: str = ""
    """physical, emulated or replayed."""
    energy_j: float | None = None
    """Known energy of its exchanges of closed rounds; None if it is unknown."""
    quality: Quality = Quality()
    """Quality of its exchanges of closed rounds."""
    clock_ratio: float | None = None
    """Clock under load / nominal clock."""
    throttled: str = ""
    """Causes that throttle its processor; empty: none is known."""
    measures: Mapping[str, Number] = {}
    """Measures of the catalogue without a field of their own; empty in a past round."""

    @property
    def selection_rate(self) -> float | None:
        """Selections per round since it joined."""
        return self.selected / self.rounds if self.rounds else None

    @property
    def aggregation_rate(self) -> float | None:
        """Aggregated updates per round since it joined."""
        return self.aggregated / self.rounds if self.rounds else None

    @property
    def is_working(self) -> bool:
        """An exchange is in progress."""
        return self.state in PHASE_OF_STATE


@dataclass(frozen=True, slots=True)
class ExchangeView:
    """One line of the timeline."""

    device: str
    outcome: str
    """Outcome as stored; empty while the exchange is open."""
    tau_s: float | None
    tau_hat_s: float | None
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class RoundView:
    """One round on the timeline."""

    round: int
    status: str
    """done, void, or open."""
    duration_s: float
    """Duration so far for an open round."""
    exchanges: tuple[ExchangeView, ...]


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Counts of exchanges that did not finish within their round, by outcome."""

    aggregated: int = 0
    """Aggregated in a later round."""
    dropped: int = 0
    cancelled: int = 0
    """Cancelled because enough other updates had arrived."""

    def __bool__(self) -> bool:
        """Return whether any count is above 0."""
        return bool(self.aggregated or self.dropped or self.cancelled)

    def plus(self, rows: Sequence[RoundRow]) -> "Stragglers":
        """Return the counts with those of more rounds."""
        return Stragglers(
            self.aggregated + sum(row.aggregated_late for row in rows),
            self.dropped + sum(row.dropped_late for row in rows),
            self.cancelled + sum(row.cancelled for row in rows),
        )


@dataclass(frozen=True, slots=True)
class Cursor:
    """The newest rows that a view contains."""

    resumes: int = -1
    """Resumes of the run; if it changes, rows became void and the view starts empty."""
    round: int = 0
    metric: int = 0
    event: int = 0
    telemetry: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewUpdate:
    """Rows that a view does not contain yet."""

    info: RunInfo
    cursor: Cursor
    """Cursor after these rows."""
    devices: Sequence[DeviceRow] = ()
    """All devices; empty if no device can have joined."""
    truths: Sequence[TruthRow] = ()
    malicious: Mapping[str, str] = field(default_factory=dict)
    """Kinds of malicious behaviour by device, if they may be shown."""
    rounds: Sequence[RoundRow] = ()
    exchanges: Sequence[ExchangeRow] = ()
    """Exchanges of `rounds`, and closed exchanges of the open round."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Last measured exchange time of each device, for an empty view."""
    selection_counts: Sequence[SelectionCounts] = ()
    quality: Mapping[str, Quality] = field(default_factory=dict)
    """Quality of the exchanges of `rounds`, by device."""
    device_s: float = 0.0
    """Device-seconds of `rounds`."""
    energy_j: Mapping[str, float] = field(default_factory=dict)
    """Known energy of the exchanges of `rounds`, by device."""
    epsilon: float | None = None
    """Largest epsilon of local noise after `rounds`; None without rounds, noise or accountant."""
    selections: Sequence[SelectionRow] = ()
    """Selection of the newest round."""
    metrics: Sequence[MetricRow] = ()
    device_metrics: Sequence[DeviceMetricRow] = ()
    """Metrics of the newest evaluation."""
    personal_scores: Sequence[PersonalScoreRow] = ()
    """Latest new score of each personal model."""
    events: Sequence[tuple[int, EventRow]] = ()
    telemetry: Sequence[TelemetryRow] = ()
    """Latest row of each device with new telemetry."""
    commands: Sequence[CommandRow] = ()
    """All commands of the run."""
    measures: Mapping[str, Number] | None = None
    """Measures of the catalogue without a place of their own in the view; None: not read."""
    device_measures: Mapping[str, Mapping[str, Number]] = field(default_factory=dict)
    """Those of devices, by key and device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """Everything that the screens show of a run."""

    info: RunInfo | None = None
    """None before the first read."""
    cursor: Cursor = Cursor()
    elapsed_s: float = 0.0
    """Newest time of the run clock in any row, seconds."""
    devices: tuple[DeviceView, ...] = ()
    """Devices in the order of their rows."""
    rounds: tuple[RoundView, ...] = ()
    """Newest rounds, oldest first; the open round, if any, is the last."""
    metrics: tuple[MetricRow, ...] = ()
    queues: tuple[tuple[int, float, float], ...] = ()
    """Round, sum of Z, largest Z."""
    quality: Quality = field(default_factory=Quality)
    """Quality of all exchanges of closed rounds."""
    device_s: float = 0.0
    """Device-seconds of all closed rounds."""
    epsilon: float | None = None
    """Largest epsilon of local noise; None without noise, or if it is unknown."""
    stragglers: Stragglers = Stragglers()
    """Late exchanges of all closed rounds."""
    measures: Mapping[str, Number] = field(default_factory=dict)
    """Measures of the catalogue without a place of their own here; empty in a past round."""
    events: tuple[tuple[int, EventRow], ...] = ()
    changes: tuple[Change, ...] = ()
    """Settings that operators changed, oldest first."""
    closings_s: tuple[float, ...] = ()
    """Run clock at the ends of the newest closed rounds, oldest first."""
    open_since_s: float | None = None
    """Run clock at the dispatch of the open round; None between rounds."""
    open_spans: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)
    """Phases of each device in the open round, from telemetry."""
    until_round: int | None = None
    """The past round after which the view stops, as for reads of a `RunReader`; None: none."""

    @property
    def reveals(self) -> bool:
        """Whether a device is shown as malicious."""
        return any(device.malicious for device in self.devices)

    @property
    def is_mixed(self) -> bool:
        """Whether devices of several kinds take part."""
        return len({device.kind for device in self.devices}) > 1

    @property
    def task(self) -> str:
        """What the model predicts; classification before the first read."""
        return self.info.row.task if self.info else "classification"

    @property
    def energy_j(self) -> float | None:
        """Known energy of the exchanges of all closed rounds; None if it is unknown."""
        known = [device.energy_j for device in self.devices if device.energy_j is not None]
        return sum(known) if known else None

    @property
    def waiting(self) -> str:
        """The wait for round 1, line by line; empty once there is a round.

        The newest report of the coordinator, the devices that have joined, and how to add one.
        """
        reports = (event.text for _, event in reversed(self.events) if event.kind == "waiting")
        report = "" if self.rounds else next(reports, "")
        if not report or self.info is None:
            return ""
        lines = [part for part in report.split("; ") if not part.startswith("start one")]
        joined = [f"{device.name} ({device.state})" for device in self.devices[:JOINED_SHOWN]]
        more = len(self.devices) - len(joined)
        if joined:
            lines.append(f"joined: {', '.join(joined)}{f' and {more} more' if more else ''}")
        if command := self.info.enrol_command:
            lines.append(f"add a device by the command that this prints: {command}")
        return "\n".join(lines)

    @property
    def left_s(self) -> float | None:
        """Estimated time until the last round ends, in seconds of this machine.

        The rounds to come take the median time between the ends of the newest ones that were not
        empty, evaluation and waits included. None for a run that is not running, or has too few
        rounds yet, and while the run waits for devices: it may wait for ever.
        """
        info, ends = self.info, self.closings_s
        if info is None or info.status != "running" or info.waiting:
            return None
        if not info.last_round or len(ends) < 2:
            return None
        pace_s = median(later - earlier for earlier, later in pairwise(ends))
        rounds = info.last_round - info.rounds_completed
        begun_s = min(max(self.elapsed_s - ends[-1], 0.0), pace_s)
        return max(rounds * pace_s - begun_s, 0.0) * info.row.dilation

    @property
    def beta(self) -> float | None:
        """Guaranteed selection rate of a device that took part in all closed rounds."""
        return self._mean_beta(self.cursor.round)

    def guaranteed(self, device: DeviceView) -> float | None:
        """Return the guaranteed selection rate of a device, a mean over its rounds.

        None without a guarantee, and for a device that has left the fleet.
        """
        return None if device.state == REVOKED else self._mean_beta(device.rounds)

    def _mean_beta(self, rounds: int) -> float | None:
        """Return the mean of the guaranteed rate over the newest closed rounds."""
        planned = self.info.plan.beta if self.info else None
        if planned is None or not self.changes or not rounds:
            return planned
        last = self.cursor.round
        return mean_beta(planned, self.changes, last + 1 - rounds, last)

    def device(self, name: str) -> DeviceView | None:
        """Return a device by name."""
        return next((device for device in self.devices if device.name == name), None)


def banner(info: RunInfo | None) -> str:
    """Return one line about a run that ended early: why, and how to continue; otherwise nothing."""
    if info is None or not info.resume_command:
        return ""
    reasons = {"interrupted": "its process ended without closing it"}
    reason = info.row.reason or reasons.get(info.status, "")
    return f"{info.status}{f': {reason}' if reason else ''}; continue with: {info.resume_command}"


def banner_lines(info: RunInfo | None) -> list[str]:
    """Return at most `BANNER_LINES` lines: how a run ended early, or its alerts that stand."""
    if info is None:
        return []
    ended = banner(info)
    lines = [ended] if ended else []
    alerts = [f"! {alert.kind}: {alert.text}" for alert in info.alerts]
    room = BANNER_LINES - len(lines)
    if len(alerts) <= room:
        return lines + alerts
    rest = ", ".join(alert.kind for alert in info.alerts[room - 1 :])
    return [*lines, *alerts[: room - 1], f"! and {len(alerts) - room + 1} more: {rest}"]


def fold(view: RunView, update: ViewUpdate) -> RunView:
    """Return the view after an update; `view` is not changed."""
    if update.cursor.resumes != view.cursor.resumes:
        view = RunView()
    closed_s = max((row.closed_at_s for row in update.rounds), default=None)
    open_since_s, open_spans = _open_round(view, update, closed_s)
    elapsed_s = max(
        [
            view.elapsed_s,
            update.info.elapsed_s,
            *(row.at_s for row in update.telemetry),
            *(row.at_s for _, row in update.events),
        ]
    )
    queues = tuple((row.round, row.queue_total, row.queue_max) for row in update.rounds)
    return RunView(
        info=update.info,
        cursor=update.cursor,
        elapsed_s=elapsed_s,
        devices=_devices(view, update, elapsed_s),
        rounds=_rounds(view, update, open_since_s, open_spans, elapsed_s),
        metrics=view.metrics + tuple(update.metrics),
        queues=view.queues + queues,
        quality=sum(update.quality.values(), view.quality),
        device_s=view.device_s + update.device_s,
        epsilon=view.epsilon if update.epsilon is None else update.epsilon,
        stragglers=view.stragglers.plus(update.rounds),
        measures=view.measures if update.measures is None else update.measures,
        events=(view.events + tuple(update.events))[-EVENTS_KEPT:],
        changes=tuple(accepted_changes(update.commands)),
        closings_s=(
            view.closings_s + tuple(row.closed_at_s for row in update.rounds if not row.is_empty)
        )[-PACE_ROUNDS - 1 :],
        open_since_s=open_since_s,
        open_spans=open_spans,
    )


def _open_round(
    view: RunView, update: ViewUpdate, closed_s: float | None
) -> tuple[float | None, Mapping[str, tuple[Span, ...]]]:
    """Return the dispatch time of the open round, run clock, and the spans of its devices."""
    since_s, spans = view.open_since_s, dict(view.open_spans)
    if closed_s is not None:
        since_s, spans = None, {}
    if not update.info.is_alive:
        return None, {}
    for _, event in update.events:
        if event.kind == "dispatched" and (event.round or 0) > update.cursor.round:
            since_s = event.at_s
    for row in sorted(update.telemetry, key=lambda row: row.at_s):
        if closed_s is not None and row.at_s <= closed_s:
            continue
        is_working = row.phase in PHASE_OF_STATE
        if is_working and since_s is None:
            since_s = row.at_s
        if since_s is not None and (is_working or row.device in spans):
            spans[row.device] = extend(spans.get(row.device, ()), row.phase, row.at_s - since_s)
    return since_s, spans


def _rounds(
    view: RunView,
    update: ViewUpdate,
    open_since_s: float | None,
    open_spans: Mapping[str, tuple[Span, ...]],
    elapsed_s: float,
) -> tuple[RoundView, ...]:
    is_personal = update.info.plan.personalisation.method != "none"
    kept = [row for row in view.rounds if row.status != "open"]
    kept += round_views(update.rounds[-ROUNDS_KEPT:], update.exchanges, is_personal=is_personal)
    if open_since_s is not None:
        lasted_s = max(elapsed_s - open_since_s, 0.0)
        closed = {
            x.device: _exchange(x, open_since_s, lasted_s, is_personal)
            for x in update.exchanges
            if x.round > update.cursor.round
        }
        working = {
            name: ExchangeView(name, "", None, None, spans) for name, spans in open_spans.items()
        }
        exchanges = [*{**working, **closed}.values()]
        kept.append(RoundView(update.cursor.round + 1, "open", lasted_s, tuple(exchanges)))
    return tuple(kept[-ROUNDS_KEPT:])


def round_views(
    rounds: Sequence[RoundRow], exchanges: Sequence[ExchangeRow], *, is_personal: bool
) -> list[RoundView]:
    """Return closed rounds with their exchanges.

    Args:
        rounds: The rounds.
        exchanges: Exchanges of these rounds and of others.
        is_personal: Devices train personal models.
    """
    of_rounds = defaultdict(list)
    for x in exchanges:
        of_rounds[x.round, x.attempt].append(x)
    return [
        RoundView(
            row.round,
            row.status,
            row.duration_s,
            tuple(
                _exchange(x, row.dispatched_at_s, row.duration_s, is_personal)
                for x in of_rounds[row.round, row.attempt]
            ),
        )
        for row in rounds
    ]


def known_prediction(tau_hat_s: float | None) -> float | None:
    """Return a predicted time; None for 0, the prediction before the first exchange."""
    return tau_hat_s or None


def _exchange(
    row: ExchangeRow, round_start_s: float, round_s: float, is_personal: bool
) -> ExchangeView:
    spans = spans_of(row, round_start_s, round_s, is_personal=is_personal)
    tau_hat_s = known_prediction(row.tau_hat_s)
    return ExchangeView(row.device, row.outcome, row.tau_s, tau_hat_s, spans)


def _devices(view: RunView, update: ViewUpdate, elapsed_s: float) -> tuple[DeviceView, ...]:
    devices = {device.name: device for device in view.devices}
    changes: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    truths = {truth.name: truth for truth in update.truths}
    for row in update.devices:
        devices.setdefault(row.name, DeviceView(row.name))
        profile = profile_of(row, truths.get(row.name))
        changes[row.name] |= {"profile": profile, "n_k": row.n_k, "kind": row.kind}
    for command in update.commands:
        if command.is_accepted and command.action == "profile" and command.device:
            changes[command.device]["profile"] = command.name or ""
    for name, kind in update.malicious.items():
        changes[name]["malicious"] = kind
    for name, tau_s in update.measured.items():
        changes[name]["tau_s"] = tau_s
    for x in update.exchanges:
        if x.tau_s is not None:
            changes[x.device]["tau_s"] = x.tau_s
    for counts in update.selection_counts:
        if (known := devices.get(counts.device)) is not None:
            changes[counts.device] |= {
                "selected": known.selected + counts.selected,
                "aggregated": known.aggregated + counts.aggregated,
                "rounds": known.rounds + counts.rounds,
            }
    for name, joules in update.energy_j.items():
        if (known := devices.get(name)) is not None:
            changes[name]["energy_j"] = (known.energy_j or 0.0) + joules
    for name, quality in update.quality.items():
        if (known := devices.get(name)) is not None:
            changes[name]["quality"] = known.quality + quality
    for chosen in update.selections:
        changes[chosen.device] |= {
            "tau_hat_s": known_prediction(chosen.tau_hat_s),
            "queue": chosen.queue,
        }
    if update.metrics:  # a device without a score in the newest evaluation has none
        for name in devices:
            changes[name] |= dict.fromkeys(("loss", "accuracy", "auroc", "rmse")) | {"test_n": 0}
    for metric in update.device_metrics:
        scored = ("loss", "accuracy", "auroc", "rmse")
        changes[metric.device] |= {key: getattr(metric, key) for key in scored}
        changes[metric.device]["test_n"] = metric.n
        changes[metric.device]["has_positions"] = metric.positions is not None
    for name in devices if update.device_measures else ():
        changes[name]["measures"] = numbers_of(name, update.device_measures)
    for score in update.personal_scores:
        changes[score.device]["personal"] = quality_of(score)
    for context in update.telemetry:
        changes[context.device] |= {
            "state": context.phase,
            "mu_cores": context.mu_cores,
            "downlink_bps": context.downlink_bps,
            "uplink_bps": context.uplink_bps,
            "last_context_s": context.at_s,
            "cpu_ratio": context.cpu_ratio,
            "rss_bytes": context.rss_bytes,
            "temperature_celsius": context.temperature_celsius,
            "clock_ratio": context.clock_ratio,
            "throttled": context.throttled or "",
        }
    for name in devices.keys() & changes.keys():
        devices[name] = structs.replace(devices[name], **changes[name])
    _note_absence(devices, update, elapsed_s)
    return tuple(devices.values())


def _note_absence(devices: dict[str, DeviceView], update: ViewUpdate, elapsed_s: float) -> None:
    """Replace the reported state of a device that is excluded, gone or silent, or of an ended run.

    At the end of a run absence is what it was at the last context of any device: the devices of a
    run end before its last event.
    """
    commanded = {
        row.device: row.action
        for row in update.commands
        if row.is_accepted and row.action in ("exclude", "include")
    }
    left = {row.device: row.at_s for _, row in update.events if row.kind == "left" and row.device}
    revoked = {
        row.device: row.at_s for _, row in update.events if row.kind == REVOKED and row.device
    }
    now_s = elapsed_s
    if not update.info.is_alive:
        now_s = max((device.last_context_s or 0.0 for device in devices.values()), default=0.0)
    for name, device in devices.items():
        state = device.state
        last_s = device.last_context_s
        if commanded.get(name) == "exclude":
            state = "excluded"
        elif revoked.get(name, -1.0) >= (last_s or 0.0):
            state = REVOKED
        elif state == REVOKED:
            pass
        elif left.get(name, -1.0) >= (last_s or 0.0):
            state = "gone"
        elif last_s is not None and now_s - last_s > SILENT_AFTER_S:
            state = state if state in ABSENT else "silent"
        elif state == "excluded" and commanded.get(name) == "include":
            state = "idle"
        if not update.info.is_alive and state not in (*ABSENT, "excluded", REVOKED):
            state = ENDED
        if state != device.state:
            devices[name] = structs.replace(device, state=state)
