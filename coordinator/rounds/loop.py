"""The training loop of a live run: the driver of the rounds' script, round after round.

Start reading at `coordinator.script.round.RoundScript.round`: it is one complete round. What each
of its steps does in a live run is in `TrainingLoop`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread
import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Ints, Vector
from fairbed.coordinator.algorithms.selection.rbcs_f import FREEZE_AFTER
from fairbed.coordinator.fleet.codec_agreement import CodecAgreement
from fairbed.coordinator.fleet.membership import Fleet
from fairbed.coordinator.messaging.blobs import SideTraffic
from fairbed.coordinator.policy.config import CoordinatorConfig, mini_batch_problem
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.policy.selection import Selection
from fairbed.coordinator.ports import Evaluator, RunWatcher, Score
from fairbed.coordinator.records.rows import (
    ended_columns,
    exchange_row,
    fleet_rows,
    metric_rows,
    release_row,
    round_row,
    round_times,
    selection_rows,
)
from fairbed.coordinator.rounds.assignments import Assignment, Assignments, pulled_blobs
from fairbed.coordinator.rounds.executor import Receiver, RoundExecutor
from fairbed.coordinator.rounds.loop_lag import LagMeter
from fairbed.coordinator.rounds.merging import RoundMerge
from fairbed.coordinator.rounds.model_versions import ModelVersions
from fairbed.coordinator.rounds.update_store import UpdateStore
from fairbed.coordinator.script.round import (
    AwaitChange,
    AwaitDevices,
    Close,
    ClosedRound,
    Collect,
    Dispatch,
    Evaluate,
    GiveUp,
    Instant,
    Merge,
    Observe,
    ObservedFleet,
    Prepare,
    QueryLosses,
    Record,
    Release,
    RoundScript,
    ScorePersonal,
    Shown,
    Step,
    first_table,
)
from fairbed.coordinator.state.exchange import DRAINING, Exchange, ExchangeState, upload_slots
from fairbed.coordinator.state.registry import Registry
from fairbed.coordinator.state.round import Round
from fairbed.coordinator.state.waits import Waits, some
from fairbed.coordinator.store.event_log import EventLog
from fairbed.coordinator.store.tables import MetricPhase, MetricRow, RoundRow
from fairbed.wire.messages import Train

if TYPE_CHECKING:
    from fairbed.coordinator.records.client_metrics import ClientMetrics
    from fairbed.coordinator.records.named_metrics import NamedMetrics
    from fairbed.coordinator.rounds.loss_query import LossQueries, LossQueryExecutor
    from fairbed.coordinator.rounds.own_data import OwnDataTests
    from fairbed.coordinator.rounds.personal_scores import PersonalScores
    from fairbed.coordinator.rounds.raw_updates import RawMerger


class FleetMissingError(Exception):
    """Too few devices joined in time."""


class NothingAggregatedError(Exception):
    """The run is over, and no update of any device entered the model."""

    def __init__(self, rounds: int) -> None:
        super().__init__(
            f"no update was aggregated in {rounds} rounds, so the model is still the first one; "
            "`fairbed watch` shows why each exchange failed; raise round.deadline_s if they are "
            "late, or see the devices' logs: fairbed logs NAME"
        )


T = TypeVar("T")

REPORT_CHANGE_S, REPORT_REPEAT_S = 3.0, 10.0
"""Least time between two reports of a wait: with another and with the same number."""


CONTACT_POLL_S = 1.0
"""Longest time between two looks for devices in contact."""


class _Reports:
    """When a wait for devices is reported: soon after a change, and at intervals."""

    def __init__(self, began: float) -> None:
        self._at, self._number = began, -1

    def due(self, number: int) -> float:
        """Return the instant of the next report, if this many devices are there until then."""
        return self._at + (REPORT_REPEAT_S if number == self._number else REPORT_CHANGE_S)

    def is_due(self, number: int, now: float) -> bool:
        """Return whether a report is due; then it counts as made."""
        if now < self.due(number):
            return False
        self._at, self._number = now, number
        return True


def waiting_line(registry: Registry, now: float, wanted: int, left_s: float) -> str:
    """Return one line: which devices round 1 waits for, and how to start one.

    Args:
        registry: The devices that have joined or are expected.
        now: On the coordinator's clock.
        wanted: Number of ready devices with which round 1 begins.
        left_s: Seconds until the run fails.
    """
    is_ready = registry.available(now)
    line = f"{is_ready.sum()} of {wanted} devices are ready for round 1, {left_s:.0f} s left"
    missing = registry.missing_physical
    if missing:
        line += f"; physical devices missing: {some(missing)}"
    unready = [
        f"{x.name} {x.status(now)}"
        for x, ready in zip(registry, is_ready, strict=True)
        if not ready and x.name not in missing
    ]
    if unready:
        line += f"; not ready: {some(unready)}"
    if len(registry) < wanted:
        line += "; start one by the command that this prints: fairbed enroll NAME"
    return line


def empty_line(registry: Registry, now: float, round_id: int) -> str:
    """Return one line: why no device can be selected for a round, and what the round counts for."""
    statuses = Counter(device.status(now) for device in registry)
    found = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    return (
        f"no device can be selected for round {round_id} ({found}); rounds without one count for "
        "the queues, not as rounds of the experiment"
    )


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """A closed round, for progress lines and tests."""

    round: RoundRow
    cohort: tuple[str, ...]
    metric: MetricRow | None
    is_repeated: bool = False
    """The round is empty, as the one before: a stretch of them has one progress line."""
    planned: int | None = None
    """Rounds that an application plans, 0 if it states none; None: those of the experiment."""

    def line(self, rounds: int) -> str:
        """Return the progress line of the round, in an experiment of so many `rounds`."""
        row = self.round
        rounds = rounds if self.planned is None else self.planned
        last = rounds + row.rounds_empty
        head = f"round {row.round:>{len(str(last))}}/{last}" if rounds else f"round {row.round}"
        if row.is_empty:
            return (
                f"{head}  void: no device available, so it counts only for the queues, "
                f"not as one of {rounds} rounds  queues {row.queue_total:.2f}"
            )
        if row.status == "void":
            return f"{head}  void: no update, same model  queues {row.queue_total:.2f}"
        quality = "accuracy -"
        if self.metric is not None:
            quality = _quality(self.metric)
        lost = row.selected - row.aggregated
        missing = f" ({lost} not aggregated)" if lost > 0 else ""
        return (
            f"{head}  tau {row.tau_max_s:6.2f} s  {quality}  "
            f"queues {row.queue_total:5.2f}  slowest {row.slowest}  "
            f"cohort {' '.join(self.cohort)}{missing}"
        )


def _quality(metric: MetricRow) -> str:
    """Return the accuracy, the error or, of a client that measures neither, the loss."""
    if metric.accuracy_mean is not None:
        return f"accuracy {metric.accuracy_mean:.3f}"
    if metric.mae_mean is None and metric.loss_mean is not None:
        return f"loss {metric.loss_mean:.3f}"
    return f"RMSE {'-' if metric.rmse_mean is None else format(metric.rmse_mean, '.3f')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServices:
    """The parts of a run that every round uses; each lives as long as the coordinator process."""

    decisions: Decisions
    fleet: Fleet
    agreement: CodecAgreement
    versions: ModelVersions
    assignments: Assignments
    waits: Waits
    loss_queries: "LossQueries | None"
    """None: the selector needs no losses."""
    personal_scores: "PersonalScores | None"
    """None: no device has a personal model."""
    own_data_tests: "OwnDataTests | None"
    """None: devices with own data hold out nothing."""
    query_executor: "LossQueryExecutor | None"
    """What sends the requests of both; None: there are none."""
    receivers: Sequence[Receiver]
    """Of these, the ones that wait for messages of devices."""
    executor: RoundExecutor
    event_log: EventLog
    loop_lag: LagMeter
    side_traffic: SideTraffic
    raw_merger: "RawMerger | None"
    """None: versions and updates have no raw part."""
    client_metrics: "ClientMetrics | None"
    """None: the task has no client."""
    named_metrics: "NamedMetrics | None"
    """None: `evaluation.metrics` names none."""
    watchers: Sequence[RunWatcher]
    evaluator: Evaluator | None
    on_progress: Callable[[RoundProgress], None]
    on_waiting: Callable[[str], None]
    """Receives the reports of a wait for devices."""


@dataclass(slots=True)
class OpenRound:
    """What the driver keeps of a round from one step to another."""

    merge: RoundMerge
    observed_at: float = 0.0
    """When the fleet was last observed, on the coordinator's clock."""
    collected: float = 0.0
    """End of collecting, when merging begins."""
    lag_p99_s: float = 0.0
    assignments: dict[tuple[str, int], Assignment] = field(default_factory=dict)
    """Assignments of all exchanges, open ones included, by device and round."""
    row: RoundRow | None = None
    metric: MetricRow | None = None

    def assignment(self, x: Exchange) -> Assignment:
        """Return the assignment of an exchange."""
        return self.assignments[x.device, x.round]


class TrainingLoop:
    """Runs the rounds of one run.

    An application with a strategy of its own is a subclass. It answers `_wait_to_begin` (what the
    next round waits for), `_prepare` and `_contents` (what a cohort is sent), `_new_merge` and
    `_next_version` (what becomes of the updates), `_evaluate`, `_is_over`, and `_begun` at the
    start.

    Args:
        services: The parts that the rounds use.
        attempt: How often the first round was attempted before: 0 unless the run is resumed.
    """

    prepares = False
    """The rounds have the step `Prepare`."""

    def __init__(self, services: RunServices, attempt: int) -> None:
        self._decisions = services.decisions
        self._fleet = services.fleet
        self._registry = services.fleet.registry
        self._versions = services.versions
        self._executor = services.executor
        self._event_log = services.event_log
        self._services = services
        self._attempt = attempt
        self._script = RoundScript(
            self._decisions,
            self._open_first,
            explains=self._config.operator.reasons,
            prepares=self.prepares,
        )
        self._next_merge = self._new_merge()
        """The merge of the next round, whose table accepts events already."""
        self._frozen: set[str] = set()
        """Devices whose virtual queue was frozen after the last round."""
        self._mini_batched = 0
        """Devices whose mini-batches were reported to be too small for the rule."""
        self._may_run = anyio.Event()
        self._may_run.set()
        self._open_round: int | None = None
        self._first_round = 1
        self._empty_reports: _Reports | None = None
        """Reports of a stretch of empty rounds; None outside one."""

    @property
    def _config(self) -> CoordinatorConfig:
        """The configuration of the open round, which an operator may change between rounds."""
        return self._decisions.config

    @property
    def _planned(self) -> int | None:
        """Rounds that an application plans, 0 if it states none; None: those of the experiment."""
        return None

    @property
    def next_config(self) -> CoordinatorConfig:
        """The configuration of the next round."""
        return self._script.next_config or self._config

    @property
    def next_round(self) -> int:
        """The next round to begin."""
        return self._first_round if self._open_round is None else self._open_round + 1

    def change(self, config: CoordinatorConfig) -> None:
        """Take another configuration of the same algorithms when the next round begins.

        A wait for devices takes its numbers at once.
        """
        self._script.next_config = config
        self._set_wanted(config)
        self._fleet.notify()

    def _set_wanted(self, config: CoordinatorConfig) -> None:
        """Note how many devices a round needs."""
        waits = self._services.waits
        waits.min_ready, waits.min_linked = config.min_devices, config.min_linked

    def still_waits(self) -> str:
        """Return what the next round waits for, as the end of an answer; empty if nothing."""
        return self._services.waits.still(self._registry, self._event_log.now())

    def stop_after_round(self) -> int | None:
        """End the run after the open round; return it, or None if no round is open."""
        self._script.last_round = self._open_round
        return self._open_round

    async def run(self, first_round: int) -> None:
        """Run the rounds from `first_round` on until the run is over.

        Raises:
            FleetMissingError: Too few devices joined in time.
            NothingAggregatedError: No update entered the model in any round.
        """
        is_over = first_round > self._script.end_of_run
        waits = self._services.waits
        self._set_wanted(self._config)
        waits.next_round = first_round
        self._first_round = first_round
        with waits.waiting("fleet", first_round, lambda: self._registry.names()):
            await self._wait_for_fleet(is_first=first_round == 1, is_over=is_over)
        for watcher in self._services.watchers:
            watcher.begin_training()
        # The model of a checkpoint was encoded before, so it is published unchanged.
        rng = self._decisions.encoding_stream(0) if first_round == 1 else None
        await self._versions.publish(self._versions.vector, rng)
        if self._event_log.store.evaluated_round() < first_round - 1:  # killed before it was done
            await self._evaluate_again(first_round - 1)
        await self._begun(first_round)
        round_id = first_round
        while not self._is_over(round_id):
            self._first_round = round_id
            await self._wait_to_begin(round_id)
            if self._is_over(round_id):
                break
            self._open_round, waits.next_round = round_id, round_id + 1
            await self.run_round(round_id)
            self._open_round, self._attempt = None, 0
            if self._script.last_round is not None:
                return
            round_id += 1
        if all(device.aggregated_round is None for device in self._registry):
            raise NothingAggregatedError(self._config.rounds)

    def _is_over(self, next_round: int) -> bool:
        """Return whether no further round begins: `config.rounds` were not empty."""
        return next_round > self._script.end_of_run

    async def _begun(self, first_round: int) -> None:
        """The fleet is there and the first version is published; rounds follow."""

    async def run_round(self, round_id: int) -> None:
        """Run one round, as its script demands."""
        current, script, answer = OpenRound(self._next_merge), self._script.round(), None
        while True:
            try:
                step = script.send(answer)
            except StopIteration as end:
                closed: ClosedRound = end.value
                break
            if isinstance(step, Instant):
                answer = self._at_once(current, step)
            else:
                answer = await self._wait_for(current, step)
        assert current.row is not None, "a round is recorded"
        cohort = tuple(closed.table.exchanges)
        progress = RoundProgress(
            current.row, cohort, current.metric, closed.is_repeated, self._planned
        )
        self._services.on_progress(progress)

    def _at_once(self, current: OpenRound, step: Instant[Any]) -> Any:
        """Let happen what takes no time; return the answer.

        A plain function, which cannot wait: no event is lost between two tables.
        """
        match step:
            case Observe():
                return self._observe(current)
            case Dispatch():
                self._dispatch(current, step)
            case Release(exchanges=exchanges):
                self._release(exchanges)
            case GiveUp(reason=reason):
                self._executor.end_all(reason)
            case Close():
                self._close(current, step)
        return None

    async def _wait_for(self, current: OpenRound, step: Step[Any]) -> Any:
        """Let happen what takes time; return the answer."""
        match step:
            case Prepare(selection=selection):
                await self._prepare(self._table, selection)
            case Collect():
                await self._executor.wait_over(self._table)
            case AwaitChange():
                await self._executor.wait_changed(self._config.round.void_wait_s)
                return self._executor.in_memory
            case AwaitDevices():
                await self._await_devices(self._table)
            case Merge(closed=closed):
                return await self._merge(current, closed)
            case Record():
                await self._record(current, step)
            case Evaluate(closed=closed, is_last=is_last):
                table = closed.table
                current.metric = await self._evaluate(table.id, table.attempt, is_last=is_last)
            case QueryLosses():
                await self._query_losses(step)
            case ScorePersonal(closed=closed):
                await self._wait_for_personal_scores(closed)
        return None

    @property
    def _table(self) -> Round:
        """The open table."""
        assert self._script.table is not None, "a round has begun"
        return self._script.table

    def pause(self) -> None:
        """Begin no further round; the open round ends as usual."""
        if self._may_run.is_set():
            self._may_run = anyio.Event()
            self._event_log.store.set_status("paused")

    def resume(self) -> None:
        """Begin rounds again."""
        if not self._may_run.is_set():
            self._may_run.set()
            self._event_log.store.set_status("running")

    def checkpoint(self) -> bytes:
        """Return the state that a restarted coordinator needs, without the model."""
        return msgspec.msgpack.encode(
            {
                "decisions": self._decisions.to_state(),
                "registry": self._registry.to_state(),
                "rounds_empty": self._script.rounds_empty,
            }
        )

    def restore(self, state: bytes) -> None:
        """Load the state of a checkpoint."""
        saved = msgspec.msgpack.decode(state)
        self._registry.load_state(saved["registry"])
        self._decisions.load_state(saved["decisions"])
        self._script.rounds_empty = saved["rounds_empty"]

    async def _wait_to_begin(self, round_id: int) -> None:
        """Wait for the link, the operator and the devices without which no round begins.

        Without devices in contact there is nothing to select from: no round begins, however long
        that lasts. A round of devices in contact that are all unwilling or at work is empty.
        """
        began = self._event_log.now()
        reports = _Reports(began)
        while True:
            settling = self._event_log.now()
            await self._fleet.wait_settled()
            now = self._event_log.now()
            began += now - settling  # nothing is known of devices without the link
            self._fleet.apply_renames()
            wanted = self._registry.attainable(self.next_config.min_linked)
            linked = self._registry.linked(now)
            if not self._may_run.is_set():
                await self._may_run.wait()
                began = self._event_log.now()
            elif linked >= wanted:
                return
            elif not self._give_up(round_id, linked, now - began):
                if reports.is_due(linked, now):
                    self._report_wait(round_id, now)
                await self._fleet.wait_change(CONTACT_POLL_S)

    def _report_wait(self, round_id: int, now: float) -> None:
        wait = self._services.waits.find(self._registry, (), now)
        if wait is not None:
            self._event_log.event("waiting", wait.text, round_id=round_id)
            self._services.on_waiting(wait.text)

    def _give_up(self, round_id: int, linked: int, waited_s: float) -> bool:
        """Go on without the missing devices if the wait is over that the experiment allows.

        Args:
            round_id: The round that waits.
            linked: Devices in contact; without one there is nothing to select from.
            waited_s: How long it has waited.

        Returns:
            Whether the round begins without them.
        """
        limit_s = self.next_config.round.give_up_after_s
        if limit_s is None or waited_s < limit_s or not linked:
            return False
        missing = self._registry.unlinked(self._event_log.now())
        for device in missing:
            device.is_given_up_on = True
            text = f"waited {limit_s:g} s for it; rounds begin without it until it is back"
            self._event_log.event(
                "given up on", text, level="warning", device=device.name, round_id=round_id
            )
        return bool(missing)

    async def _wait_for_fleet(self, *, is_first: bool, is_over: bool) -> None:
        """Wait for the devices of round 1; report it when their number changes, and at intervals.

        A resumed run waits for them, too, but they need not be willing: its rounds may be empty.

        Args:
            is_first: The next round is the first of the run.
            is_over: No round is left, so devices are only needed if they test the last model.

        Raises:
            FleetMissingError: Too few devices were ready in time, and a round is left.
        """
        if is_over and self._config.held_out is None:
            return
        limit = self._config.join_timeout_s
        began = self._event_log.now()
        reports, deadline = _Reports(began), began + limit
        while True:
            self._fleet.apply_renames()
            now = self._event_log.now()
            wanted = self._registry.attainable(self.next_config.min_devices)
            ready, left = int(self._registry.available(now).sum()), deadline - now
            is_enough = ready >= wanted
            if not (is_first or is_over):
                is_enough = self._registry.linked(now) >= wanted
            if is_enough:
                return
            if left <= 0 and is_over:
                return
            linked = self._registry.linked(now)
            if not (is_first or is_over) and self._give_up(self._first_round, linked, now - began):
                continue
            if left <= 0:
                missing = self._registry.missing_physical
                absent = f" (physical devices missing: {some(missing)})" if missing else ""
                troubles = [f"{x.name}: {x.trouble.text}" for x in self._registry if x.trouble]
                absent += f" ({some(troubles)})" if troubles else ""
                raise FleetMissingError(
                    f"fleet: {wanted} devices must be ready within {limit:g} s, got {ready} ready "
                    f"of {self._registry.joined} joined{absent}; read their logs, lower "
                    "round.min_devices, or raise round.join_timeout_s"
                )
            if not reports.is_due(ready, now):
                until_report_s = reports.due(ready) - now
                await self._fleet.wait_change(min(left, until_report_s, CONTACT_POLL_S))
                continue
            line = waiting_line(self._registry, now, wanted, left)
            self._event_log.event("waiting", line)
            self._services.on_waiting(line)

    async def _query_losses(self, step: QueryLosses) -> None:
        """Query devices for the losses that the selector needs."""
        query, queries = step.query, self._services.loss_queries
        assert queries is not None, "the selector needs losses"
        with self._services.waits.waiting("losses", query.round, queries.open_devices):
            await queries.run(step.demand, query)
        await self._fleet.wait_settled()  # The link may have been down during the query.

    def _observe(self, current: OpenRound) -> ObservedFleet:
        """Return the fleet at this instant."""
        registry, now = self._registry, self._event_log.now()
        current.observed_at = now
        return ObservedFleet(
            roster=registry,
            now=now,
            transfer_bits=self._versions.transfer_bits(),
            absences=lambda is_available: registry.absences(is_available, now),
        )

    def _dispatch(self, current: OpenRound, step: Dispatch) -> None:
        """Send a cohort its `Train` messages."""
        table, query, is_first = self._table, step.query, not step.selections_before
        has_reported = set[str]() if query is None else query.answered()
        trains = self._services.assignments.assign(
            table, step.selection, current.observed_at, has_reported, self._contents(table)
        )
        if is_first:
            self._begin_merge(table.id, current.merge)  # After the selection: it counts devices.
            if self._services.loss_queries is not None:
                dismissed = sorted(has_reported.difference(trains))
                self._services.loss_queries.dismiss(table.id, dismissed)
            self._report_mini_batches(table.id, step.selection.n_k)
            self._services.loop_lag.start()
        if trains:
            kind = "dispatched" if is_first else "replacement"
            self._event_log.event(kind, " ".join(trains), round_id=table.id)
        if trains or (is_first and table.is_buffered):
            self._send(table, trains)

    async def _prepare(self, table: Round, selection: Selection) -> None:
        """Make what a cohort is sent; called with `prepares` alone."""

    def _contents(self, table: Round) -> Mapping[str, Mapping[str, Any]]:
        """Return fields of `Train` that replace those of the configuration, by device."""
        return {}

    def _new_merge(self) -> RoundMerge:
        """Return what receives the updates of one round."""
        return RoundMerge(None, self._registry)

    def _release(self, exchanges: Sequence[Exchange]) -> None:
        """Let devices be selected again in this round."""
        for x in exchanges:
            self._registry.release(
                x.device, has_trained=x.offer is not None, is_draining=x.state in DRAINING
            )

    def _send(self, table: Round, trains: dict[str, Train]) -> None:
        """Open the exchanges of devices and send them their `Train` messages."""
        self._executor.dispatch(table, trains, self._versions.vector)
        if self._services.personal_scores is not None:
            self._services.personal_scores.expect(trains)
        self._record_releases([table.exchanges[device] for device in trains])

    def _record_releases(self, exchanges: Sequence[Exchange]) -> None:
        """Record which updates with local noise may have left their devices."""
        if self._config.privacy.is_on:
            for x in exchanges:
                self._event_log.add(release_row(x, x.device))

    async def _await_devices(self, table: Round) -> None:
        """Wait until the availability changes or a late exchange ends, at most for `deadline_s`."""
        fleet, settings = self._fleet, self._config.round
        if not table.exchanges:
            self._report_no_cohort(table.id)
        if table.is_idle:
            await fleet.wait_change(settings.void_wait_s)
            return
        async with anyio.create_task_group() as group:

            async def wait_change() -> None:
                await fleet.wait_change(settings.deadline_s)
                group.cancel_scope.cancel()

            group.start_soon(wait_change)
            await self._executor.wait_exchange_end(table)
            group.cancel_scope.cancel()

    def _report_no_cohort(self, round_id: int) -> None:
        """Report a round without a cohort: a stretch of empty ones at its start and at intervals.

        A fleet may be unwilling for days, at a round per second.
        """
        log, registry, now = self._event_log, self._registry, self._event_log.now()
        queries = self._services.loss_queries
        if queries is not None and queries.rows:
            log.event("void", "no device answered the loss query", round_id=round_id)
        elif self._empty_reports is None:
            log.event("void", "no device was available", round_id=round_id)
            self._empty_reports = _Reports(now)
        elif self._empty_reports.is_due(registry.linked(now), now):
            line = empty_line(registry, now, round_id)
            log.event("waiting", line, round_id=round_id)
            self._services.on_waiting(line)

    def _close(self, current: OpenRound, step: Close) -> None:
        """Open the next table: each event belongs to one of the two."""
        current.collected = self._event_log.now()
        current.lag_p99_s = self._services.loop_lag.p99_s()
        if not step.closed.is_empty:
            self._empty_reports = None
        self._next_merge = self._new_merge()
        self._executor.open(step.successor, self._next_merge)
        current.assignments = self._services.assignments.close(step.closed.ended)

    async def _merge(self, current: OpenRound, closed: ClosedRound) -> Shown:
        """Finish the merge and publish the next version."""
        table = closed.table
        await self._next_version(current, closed, pulled_blobs(current.assignments, table))
        if table.exchanges and not closed.merged:
            self._event_log.event(
                "void",
                "no update arrived; the model is unchanged",
                level="warning",
                round_id=table.id,
            )
        closed_at = self._event_log.now()
        ended = ended_columns(
            closed.ended,
            [self._registry[x.device].row for x in closed.ended],
            [current.assignment(x).context_before(table.id) for x in closed.ended],
        )
        return Shown(ended, closed_at, self._registry.left())

    async def _next_version(
        self, current: OpenRound, closed: ClosedRound, pulled: Collection[bytes]
    ) -> None:
        """Finish the merge and publish the next version, if an update arrived.

        Args:
            current: The round.
            closed: The same, after its end.
            pulled: Ids of blobs that devices may still be downloading.
        """
        table = closed.table
        if not closed.merged:
            await self._versions.retire_all_but(pulled)
            return
        merge = await current.merge.finish()
        for note in merge.notes:
            text = note.about(self._registry.names())
            self._event_log.event(note.kind, text, level="warning", round_id=table.id)
        await self._versions.publish(
            merge.vector, self._decisions.encoding_stream(table.id), pulled, current.merge.raw
        )

    async def _record(self, current: OpenRound, step: Record) -> None:
        """Write the rows and the checkpoint of a round in one transaction."""
        closed, shown, why, log = step.closed, step.shown, step.why, self._event_log
        table, selection, ended = closed.table, closed.selection, closed.ended
        self._report_frozen(table.id)
        self._report_misses(table.id)
        self._report_context_changes(table.id)
        self._registry.close_round(
            table.exchanges,
            trained=[x.device for x in ended if x.offer is not None],
            draining=[x.device for x in ended if x.state in DRAINING],
            over=[x.device for x in ended if table.find(x.device) is x],
        )
        names, n, left = self._registry.names(), len(selection.is_available), shown.left
        here = np.delete(np.arange(n, dtype=np.int64), list(left))
        queues = self._decisions.selector.queues(n)
        queues[list(left)] = 0.0  # outside of the guarantee
        selections = selection_rows(selection, names, self._decisions, closed.merged, why, here)
        open_late = [x for x in table.exchanges.values() if x.is_open_late]
        exchanges = []
        for x in [*ended, *open_late]:
            of = current.assignment(x)
            exchanges.append(
                exchange_row(
                    x,
                    table,
                    of.known,
                    train=of.train,
                    dispatched_at_s=log.at_s(x.dispatched),
                    has_reported_loss=of.has_reported_loss,
                )
            )
        bytes_down = sum([row.bytes_down for row in exchanges[: len(ended)]])
        other_down, other_up = self._services.side_traffic.take()
        loss_query_s, queries = 0.0, self._services.loss_queries
        if queries is not None:
            loss_query_s = queries.duration_s(closed.started)
            bytes_down += queries.bytes_down
        sha256 = self._versions.manifest.sha256
        row = current.row = round_row(
            closed,
            round_times(
                closed,
                dispatched_at_s=log.at_s(closed.started),
                ended_at_s=log.at_s(current.collected),
                closed_at_s=log.at_s(shown.closed_at),
                loss_query_s=loss_query_s,
            ),
            self._decisions,
            names,
            why=why,
            queues=queues,
            bytes_down=bytes_down + other_down,
            bytes_up=sum([x.bytes_up for x in ended]) + other_up,
            lag_p99_s=current.lag_p99_s,
            model_sha256=sha256.hex() if sha256 is not None else "",
            coordinator_encode_s=self._versions.encode_s if closed.merged else None,
        )
        for record in (*fleet_rows(selection), *(() if queries is None else queries.rows)):
            log.add(record)
        self._record_releases(ended)
        for x in ended:
            if x.state is ExchangeState.DONE and x.offer is not None and x.offer.metrics:
                self._record_metrics(x.round, x.device, "fit", x.offer.metrics, x.offer.n_k)
        model, raw = self._versions.vector, self._versions.raw
        await anyio.to_thread.run_sync(
            log.store.close_round, row, selections, exchanges, self.checkpoint(), model, raw
        )
        for watcher in self._services.watchers:
            watcher.close_round(table.id, exchanges, closed.rounds_empty)

    def _record_metrics(
        self,
        round_id: int,
        device: str,
        phase: MetricPhase,
        metrics: Mapping[str, float],
        n: int,
    ) -> None:
        """Write what a client measured, by its own names; without a client there is nothing."""
        rows = self._services.client_metrics
        if rows is None:
            return
        for row in rows.rows(round_id, device, phase, metrics, n):
            self._event_log.add(row)
        if (problem := rows.warning(metrics)) is not None:
            self._event_log.event("metrics", problem, level="warning", round_id=round_id)

    async def _evaluate_again(self, round_id: int) -> None:
        """Evaluate the model of a checkpoint whose process was killed before it was done."""
        is_last = round_id == self._script.end_of_run
        if self._config.evaluation.is_due(round_id, is_last=is_last):
            await self._evaluate(round_id, self._attempt, is_last=is_last)

    async def _evaluate(self, round_id: int, attempt: int, *, is_last: bool) -> MetricRow | None:
        """Evaluate the model after a round: last, because no duration may include it."""
        log, evaluator = self._event_log, self._services.evaluator
        started = log.now()
        services = self._services
        scores: dict[str, Score] = {}
        tests = services.own_data_tests
        if tests is not None:
            with services.waits.waiting("tests", round_id, tests.open_devices):
                scores = await tests.run(
                    round_id, attempt, limit_s=self._config.test_timeout_s, is_last=is_last
                )
            for name, score in scores.items():
                if score.metrics:
                    self._record_metrics(round_id, name, "evaluate", score.metrics, score.n)
        test_set: Score | None = None
        if evaluator is not None:
            model = self._versions.vector
            none: Mapping[str, Score] = {}
            of_shards = await evaluate_shards(evaluator.evaluate, none, log, round_id, model)
            if self._config.evaluation.own_data == "server-test-set":
                test_set = await evaluate_shards(evaluator.test, None, log, round_id, model)
            scores |= {
                name: score
                for name, score in of_shards.items()
                if (device := self._registry.get(name)) is None or not device.has_own_data
            }
        return self._record_scores(round_id, scores, started, test_set)

    def _record_scores(
        self,
        round_id: int,
        scores: Mapping[str, Score],
        started: float,
        test_set: Score | None = None,
    ) -> MetricRow | None:
        """Write the rows of an evaluation that was `started` then; None without a score."""
        log = self._event_log
        took_s = log.now() - started
        devices, metric = metric_rows(round_id, scores, log.at_s(), took_s, test_set)
        for row in devices:
            log.add(row)
        named = self._services.named_metrics
        if named is not None and metric is not None:
            for each in named.rows(round_id, scores, test_set):
                log.add(each)
            metric = named.of_worst(metric, scores, test_set)
        if metric is not None:
            log.add(metric)
            for watcher in self._services.watchers:
                watcher.evaluate(metric)
        return metric

    async def _wait_for_personal_scores(self, closed: ClosedRound) -> None:
        """Wait until the devices of this round have scored their personal models.

        Asynchronous rounds do not wait, because their devices work on.
        """
        limits, scores = self._config.round, self._services.personal_scores
        if scores is not None and not limits.is_buffered:
            with self._services.waits.waiting("scores", closed.table.id, scores.waited_for):
                await scores.wait(closed.merged, limits.deadline_s)

    def _open_first(self) -> Round:
        """Open the table of the first round of this process."""
        slots = upload_slots(self._services.agreement.memory_bytes + len(self._versions.raw))
        table = first_table(self._config, self._first_round, self._attempt, slots)
        self._executor.open(table, self._next_merge)
        return table

    def _begin_merge(self, round_id: int, merge: RoundMerge) -> None:
        agreement, model = self._services.agreement, self._versions.vector
        layout = agreement.layout
        accumulator = self._decisions.begin_merge(
            round_id,
            model,
            layout.n_params,
            lambda: UpdateStore(self._event_log.store.folder, agreement.up_layout.n_values),
            layout.local,
        )
        raw, merger = None, self._services.raw_merger
        if merger is not None:
            raw = merger.begin(self._versions.raw, self._event_log.store.folder)
        merge.begin(accumulator, model, layout.n_params, self._decisions.staleness_rule, raw)

    def _report_mini_batches(self, round_id: int, n_k: Ints) -> None:
        """Write an event if more devices than before have too many examples for one mini-batch.

        Args:
            round_id: The round.
            n_k: Training examples of each device, shape (N,).
        """
        training = self._config.training
        problem = mini_batch_problem(self._config.aggregation, training, n_k)
        above = int(np.count_nonzero(n_k > training.batch_size))
        if problem and above > self._mini_batched:
            self._event_log.event("mini-batch", problem, level="warning", round_id=round_id)
            self._mini_batched = above

    def _report_frozen(self, round_id: int) -> None:
        """Write an event for each device whose virtual queue has been frozen in this round."""
        frozen = {self._registry.names()[row] for row in self._decisions.frozen()}
        for name in sorted(frozen - self._frozen):
            self._event_log.event(
                "frozen",
                f"failed {FREEZE_AFTER} times in a row; its virtual queue is frozen until it "
                "succeeds",
                level="warning",
                device=name,
                round_id=round_id,
            )
        self._frozen = frozen

    def _report_misses(self, round_id: int) -> None:
        """Write an event for each device that has reached a miss limit for the first time."""
        names = self._registry.names()
        for row, text in self._decisions.reached_limits:
            self._event_log.event(
                "misses", text, level="warning", device=names[row], round_id=round_id
            )

    def _report_context_changes(self, round_id: int) -> None:
        """Write an event for each claim that the context check began or ceased to replace."""
        names = self._registry.names()
        for change in self._decisions.context_changes:
            device, text = names[change.row], change.text()
            self._event_log.event(
                "context check", text, level="warning", device=device, round_id=round_id
            )


async def evaluate_shards(
    evaluate: Callable[[Vector], T],
    otherwise: T,
    event_log: EventLog,
    round_id: int,
    vector: Vector,
) -> T:
    """Return what `evaluate` returns for a model, shape (n_values,), off the event loop.

    `otherwise` if it failed, with an event: training continues without it.
    """
    try:
        return await anyio.to_thread.run_sync(evaluate, vector, abandon_on_cancel=True)
    except Exception as exc:  # any error: evaluation must not end the run
        text = f"{type(exc).__name__}: {exc}"
        event_log.event("not evaluated", text, level="warning", round_id=round_id)
        return otherwise
