"""The rounds of a run whose strategy is that of a Flower app.

The driver is the training loop of a live run with other answers to some steps of the script:

    Observe, select   policy "app": the devices to which the app has pushed messages; any other
                      policy: ours, when the app's strategy asks for a cohort
    Prepare           the messages for the cohort, and their arrays as blobs
    Dispatch          `Train` with the blob, the configuration and the deadline of each message
    Merge             replies go to the app as they arrive, errors when the round closes; the
                      result of the app, or of our rule, is the next version
    Evaluate          all messages of other types, until the app trains again

Messages of one group and type are one round. So a device gets at most one message of a round: a
second one for it waits for the next round.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

import anyio
import anyio.to_thread
import msgspec
import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Merge as MergeResult
from fairbed.coordinator.algorithms.aggregation.base import Report, Stack
from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.algorithms.selection.application import ApplicationCohort
from fairbed.coordinator.policy.selection import Selection
from fairbed.coordinator.ports import Score
from fairbed.coordinator.rounds.loop import (
    NothingAggregatedError,
    OpenRound,
    RunServices,
    TrainingLoop,
)
from fairbed.coordinator.rounds.merging import NO_RAW, RoundMerge
from fairbed.coordinator.rounds.own_data import score_of
from fairbed.coordinator.script.round import ClosedRound
from fairbed.coordinator.state.exchange import Exchange, ExchangeState
from fairbed.coordinator.state.loss_query import LossQuery, QueryOutcome
from fairbed.coordinator.state.registry import Device, Registry
from fairbed.coordinator.state.round import Round
from fairbed.coordinator.store.event_log import Level
from fairbed.coordinator.store.tables import MetricPhase, MetricRow
from fairbed.device_agent.clients.child.flower import node_id
from fairbed.device_agent.clients.child.kinds import ClientError
from fairbed.testbed.flower.raw import AppArrays
from fairbed.testbed.flower.server import AppError, AppMessage, Group, Push, ServerApp
from fairbed.wire.evaluation import OF_CLIENT
from fairbed.wire.messages import EvaluateRequest, Manifest
from fairbed.wire.records import RecordsError, decode_records

NODES_S: Final = 1.0
"""Longest time between two looks for the devices that the app may use."""
SHORTEST_LOOK_S: Final = 0.05

IDLE_WAIT_S: Final = 3.0
"""Longest wait for devices that are about to end earlier work."""

UNKNOWN, RAISED, NO_REPLY, NO_NODE = 0, 2, 4, 5
"""Codes of `flwr.common.constant.ErrorCode`."""
CODES: Final[Mapping[ExchangeState, int]] = {
    ExchangeState.FAILED: RAISED,
    ExchangeState.LOST: NO_NODE,
    ExchangeState.LATE: NO_REPLY,
    ExchangeState.CANCELLED: NO_REPLY,
    ExchangeState.REJECTED: UNKNOWN,
}
QUERY_CODES: Final[Mapping[QueryOutcome, int]] = {
    QueryOutcome.FAILED: RAISED,
    QueryOutcome.LOST: NO_NODE,
    QueryOutcome.LATE: NO_REPLY,
    QueryOutcome.REFUSED: UNKNOWN,
}

TRAIN: Final = "train"
LOSSES: Final = frozenset({"loss", "eval_loss", "eval-loss"})
"""Metrics that are the loss of an evaluation (`device_agent/clients/child/flower.py`); without one,
an evaluation is no score of a device."""
UNBOUNDED: Final = 1 << 30
"""Rounds of an app: it ends by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSettings:
    """What the driver must know of `[flower]`."""

    timeout_s: float
    """Longest time between two actions of the app, seconds."""
    rounds: int = 0
    """Rounds by the configuration of the app; 0 is unknown."""
    arrays: AppArrays | None = None
    """Arrays of which a rule of ours merges the floats; None: the app merges."""


@dataclass(slots=True)
class _Cohort:
    """The messages of the open round, by device."""

    messages: dict[str, AppMessage] = field(default_factory=dict)
    group: Group | None = None
    contents: dict[str, dict[str, Any]] = field(default_factory=dict)


class _StrategyMerges:
    """The accumulator of a round that the app merges: updates have no vector."""

    def add(self, report: Report) -> None:
        """Do nothing."""

    def add_all(self, stack: Stack) -> None:
        """Do nothing."""

    def finish(self) -> MergeResult:
        """Is not called."""
        raise AssertionError("the app merges")


class AppMerge(RoundMerge):
    """Passes each accepted update on to the app, one at a time, while it is in memory."""

    def __init__(self, registry: Registry, loop: "AppLoop") -> None:
        super().__init__(None, registry)
        self._loop = loop

    async def add(
        self,
        exchange: Exchange,
        model: Vector,
        base: Vector | None = None,
        raw: memoryview = NO_RAW,
    ) -> None:
        """Send the records of an update to the app; `lock` must be held."""
        await self._loop.reply(exchange, model, raw)
        await super().add(exchange, model, base, raw)


class AppLoop(TrainingLoop):
    """Runs the rounds that an app wants.

    Args:
        services: The parts that the rounds use.
        attempt: How often the first round was attempted before.
        app: The process of the app.
        settings: See there.
    """

    prepares = True

    def __init__(
        self, services: RunServices, attempt: int, app: ServerApp, settings: AppSettings
    ) -> None:
        self._app, self._settings = app, settings
        self._cohort = _Cohort()
        self._pushed: Group | None = None
        """The group that the next round trains, with policy "app"."""
        self._queries = 0
        """Groups of other messages so far."""
        self._sent: dict[tuple[str, int], str] = {}
        """Id of the message of each exchange, by device and round."""
        self._last_round = 0
        self._shown = services.versions.vector
        """The vector that the app has; a codec may have rounded that of the devices."""
        super().__init__(services, attempt)
        self._script.planned = UNBOUNDED

    # The run.

    async def run(self, first_round: int) -> None:
        """Run rounds until the app is done.

        Raises:
            AppError: The app has failed, or broke a rule.
            FleetMissingError: Too few devices joined in time.
        """
        self._last_round = first_round - 1
        failure: Exception | None = None
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                await super().run(first_round)
            except NothingAggregatedError:
                failure = AppError(
                    "app: must train devices, got its end without the reply of one; `fairbed "
                    "watch` shows why each exchange failed"
                )
            except Exception as exc:  # raised below: the group would wrap it
                failure = exc
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _begun(self, first_round: int) -> None:
        if first_round > 1:
            self._report_resumed(first_round)
        self._group.start_soon(self._report_nodes, name="app.nodes")

    def _report_resumed(self, first_round: int) -> None:
        """Report with what the app goes on after a resume, and what is lost."""
        pending = self._app.pending
        level: Level = "info"
        strategy = pending.strategy
        if strategy is not None and strategy.first_round > 1:
            text = (
                f"the app goes on with its round {strategy.first_round} from the last global "
                f"arrays; lost: {strategy.lost}"
            )
        elif pending.resumed_from is not None:
            text = (
                f"the app goes on with its round {pending.resumed_from} from the last global "
                f"arrays; lost: {pending.lost}"
            )
        else:
            level = "warning"
            text = (
                "the app starts again with its first round and its first arrays, as it does not "
                "call fairbed_flower.resumed (docs/flower.md)"
            )
        self._event_log.event("resumed", text, level=level, round_id=first_round)

    async def _report_nodes(self) -> None:
        """Send the app the devices that it may use, whenever that changes."""
        sent_last: list[int] | None = None
        while True:
            now = self._event_log.now()
            nodes = [node_id(x.name) for x in self._registry if _is_willing(x, now)]
            if nodes != sent_last:
                await self._app.send({"do": "nodes", "nodes": nodes})
                sent_last = nodes
            await anyio.sleep(SHORTEST_LOOK_S)
            await self._fleet.wait_change(NODES_S)

    def _is_over(self, next_round: int) -> bool:
        pending = self._app.pending
        if self._script.last_round is not None:
            return next_round > self._script.last_round
        return pending.is_done and not pending.groups

    @property
    def _planned(self) -> int | None:
        strategy = self._app.pending.strategy
        return self._settings.rounds if strategy is None else strategy.num_rounds

    @property
    def _selects_itself(self) -> bool:
        return isinstance(self._decisions.selector, ApplicationCohort)

    @property
    def _merges_itself(self) -> bool:
        return self._settings.arrays is None

    # Between rounds.

    async def _wait_to_begin(self, round_id: int) -> None:
        """Serve the app until it trains; then wait for what each round waits for."""
        self._last_round = round_id - 1
        while True:
            await self._serve()
            if self._is_over(round_id):
                return
            await super()._wait_to_begin(round_id)
            if not self._selects_itself or await self._take_group():
                return

    async def _take_group(self) -> bool:
        """Take the next group of training; return whether one of its devices is available."""
        group = self._app.pending.groups.popleft()
        first = _first_of_each_node(group)
        if len(first) < len(group.push.messages):
            taken = {message.id for message in first}
            rest = [message for message in group.push.messages if message.id not in taken]
            self._app.pending.groups.appendleft(_with_messages(group, rest))
            group = _with_messages(group, first)
        devices = self._by_node()
        named = [devices[x.node] for x in first if x.node in devices]
        await self._wait_idle(named)
        now = self._event_log.now()
        rows = [device.row for device in named if device.is_available(now)]
        if not rows:
            for message in first:
                await self._refuse(message, devices.get(message.node))
            return False
        assert isinstance(self._decisions.selector, ApplicationCohort)
        self._decisions.selector.rows, self._pushed = rows, group
        return True

    async def _serve(self) -> MetricRow | None:
        """Send messages that are not training until the app trains or is done."""
        metric: MetricRow | None = None
        while True:
            wish = await self._app.wait(
                self._wish, self._settings.timeout_s, "push messages, or end"
            )
            self._note_app_metrics()
            if wish == "waits":
                self._report_app_waits()
            elif wish == "ask":
                found = await self._ask(self._app.pending.groups.popleft())
                metric = found or metric
            else:
                return metric

    def _wish(self) -> str | None:
        """Return what the app wants next; None: nothing yet."""
        pending = self._app.pending
        if pending.groups:
            return "train" if pending.groups[0].kind == TRAIN else "ask"
        if pending.cohort_round is not None:
            return "train"
        if pending.is_done:
            return "done"
        return "waits" if pending.waits is not None else None

    def _report_app_waits(self) -> None:
        waits, self._app.pending.waits = self._app.pending.waits, None
        assert waits is not None
        if not waits.waited_s:  # it waited for the fleet, as the run does
            return
        needed = f" of {waits.needed}" if waits.needed else ""
        line = (
            f"the app waits for devices: {waits.offered}{needed} are willing, for "
            f"{waits.waited_s:.0f} s"
        )
        if waits.needed > len(self._registry):
            line += (
                f"; the fleet has {len(self._registry)}: lower min-available-nodes, or add devices"
            )
        limit_s = self._settings.timeout_s
        if waits.waited_s > limit_s:
            raise AppError(
                f"app: must push messages, or end within {limit_s:g} s (flower.timeout_s), got "
                f"polls: {line}"
            )
        self._event_log.event("waiting", line)
        self._services.on_waiting(line)

    def _note_app_metrics(self) -> None:
        """Store what the app has measured, or merged, of the last version."""
        metrics, self._app.pending.metrics = self._app.pending.metrics, []
        for one in metrics:
            phase: MetricPhase = "central" if one.where == "server" else "merged evaluate"
            self._record_metrics(self._last_round, "", phase, one.metrics, 0)

    # A round.

    async def _prepare(self, table: Round, selection: Selection) -> None:
        """Get the messages for a cohort, and publish their arrays."""
        names = self._registry.names()
        cohort = [names[row] for row in selection.rows.tolist()]
        self._cohort = _Cohort()
        if not cohort:
            return
        if self._selects_itself:
            group, self._pushed = self._pushed, None
            assert group is not None, "a round begins with a group"
        else:
            group = await self._push_for(cohort)
        devices = self._by_node()
        for message in group.push.messages:
            device = devices.get(message.node)
            if device is None or device.name not in cohort:
                await self._refuse(message, device)
            else:
                self._cohort.messages[device.name] = message
        self._cohort.group = group
        messages = self._cohort.messages
        manifests = await self._publish(group, messages.values())
        settings = self._config.round
        limits = [settings.deadline_s, group.push.timeout_s or inf]
        limits += [message.ttl_s for message in messages.values() if message.ttl_s > 0.0]
        updates = len(messages) if self._selects_itself else self._config.updates_per_version
        table.set_limits(min(limits), min(updates, len(messages)))
        for name, message in messages.items():
            self._cohort.contents[name] = {
                "model": manifests[message.payload],
                "config": group.config(message),
                "deadline_s": min(limits),
            }
            self._sent[name, table.id] = message.id

    async def _push_for(self, cohort: Sequence[str]) -> Group:
        """Offer a cohort to the strategy; return the messages that it pushes.

        Raises:
            AppError: It pushes none in time, or to others.
        """
        pending = self._app.pending
        ids = [node_id(name) for name in cohort]
        number, pending.cohort_round = pending.cohort_round, None
        await self._app.send({"do": "cohort", "round": number, "nodes": ids})
        await self._app.wait(
            lambda: True if pending.groups or pending.is_done else None,
            self._settings.timeout_s,
            "push the messages of training for its cohort (set min-train-nodes and "
            "min-available-nodes to at most selection.per_round)",
        )
        group = pending.groups.popleft() if pending.groups else None
        pushed = [] if group is None else [message.node for message in group.push.messages]
        if group is None or group.kind != TRAIN or sorted(pushed) != sorted(ids):
            raise AppError(
                f"selection: the strategy must train the {len(ids)} devices of the cohort, once "
                f'each, got {len(pushed)} messages; set fraction-train = 1.0, or policy = "app"'
            )
        return group

    async def _publish(self, group: Group, messages: Collection[AppMessage]) -> dict[int, Manifest]:
        """Publish each different payload of a group once; return where devices find it.

        Raises:
            AppError: A rule of ours merges, and a payload is not the version that it made.
        """
        used = sorted({message.payload for message in messages})
        if self._settings.arrays is not None:
            for number in used:
                self._check_version(self._settings.arrays, group.payloads[number])
            return {number: self._versions.manifest for number in used}
        if len(used) == 1 and group.payloads[used[0]] != self._versions.raw:
            raw = group.payloads[used[0]]
            await self._versions.publish(self._versions.vector, None, raw=raw)
        found: dict[int, Manifest] = {}
        for number in used:
            raw = group.payloads[number]
            is_version = raw == self._versions.raw
            found[number] = (
                self._versions.manifest if is_version else await self._versions.publish_beside(raw)
            )
        return found

    def _check_version(self, arrays: AppArrays, payload: bytes) -> None:
        try:
            vector, raw = arrays.split(decode_records(payload))
        except (RecordsError, ClientError) as exc:
            raise AppError(f"app: {exc}") from exc
        if not np.array_equal(vector, self._shown) or raw != self._versions.raw:
            raise AppError(
                'flower.merge: with "ours" every message must have the global arrays as they were '
                'merged, got others; let configure_train send them unchanged, or set "strategy"'
            )

    def _contents(self, table: Round) -> Mapping[str, Mapping[str, Any]]:
        return self._cohort.contents

    def _new_merge(self) -> RoundMerge:
        return AppMerge(self._registry, self)

    def _begin_merge(self, round_id: int, merge: RoundMerge) -> None:
        if not self._merges_itself:
            super()._begin_merge(round_id, merge)
            return
        merge.begin(_StrategyMerges(), self._versions.vector, 0, self._decisions.staleness_rule)

    async def reply(self, exchange: Exchange, model: Vector, raw: memoryview) -> None:
        """Send the app the records of an update, before its memory is used again."""
        each = self._sent.pop((exchange.device, exchange.round), None)
        if each is not None:
            await anyio.to_thread.run_sync(self._reply, each, model, raw)

    def _reply(self, each: str, model: Vector, raw: memoryview) -> None:
        arrays = self._settings.arrays
        records = raw if arrays is None else arrays.joined(model, raw)
        self._app.send_now({"do": "reply", "id": each}, {"records": records})

    async def _next_version(
        self, current: OpenRound, closed: ClosedRound, pulled: Collection[bytes]
    ) -> None:
        """Send errors for updates that did not come; the result of the app is the next version."""
        table = closed.table
        for x in table.exchanges.values():
            each = self._sent.pop((x.device, table.id), None)
            if each is not None:
                await self._send_error(each, CODES.get(x.state, UNKNOWN), x.reason)
        if self._cohort.group is None:
            await self._versions.retire_all_but(pulled)
            return
        push = self._cohort.group.push
        if self._settings.arrays is not None:
            await super()._next_version(current, closed, pulled)
            await self._result(table.id, push)
            await self._send_merged(self._settings.arrays, push, is_new=bool(closed.merged))
            return
        async with current.merge.lock:  # the last reply has been sent
            pass
        arrays = await self._result(table.id, push)
        if arrays:
            await self._versions.publish(self._versions.vector, None, pulled, arrays)
        else:
            await self._versions.retire_all_but(pulled)

    async def _result(self, round_id: int, push: Push) -> bytes:
        """Wait for the arrays that the app has made of the replies; empty if there are none.

        An app without a strategy shows them in the next messages, or as the last arrays.
        """
        pending = self._app.pending
        pending.aggregated = None if not push.round else pending.aggregated

        def answer() -> bytes | None:
            found = pending.aggregated
            if found is not None and found.round == push.round:
                return found.arrays
            if pending.groups:
                payloads = list(pending.groups[0].payloads.values())
                return payloads[0] if len(payloads) == 1 and not push.round else b""
            if pending.is_done:
                return pending.last
            return None if pending.cohort_round is None else b""

        arrays = await self._app.wait(
            answer, self._settings.timeout_s, "merge the replies of a round"
        )
        if pending.aggregated is not None:
            self._record_metrics(round_id, "", "merged fit", pending.aggregated.metrics, 0)
        pending.aggregated = None
        return arrays

    async def _send_merged(self, arrays: AppArrays, push: Push, *, is_new: bool) -> None:
        """Send the app what our rule has merged; nothing if no update arrived."""
        records = b""
        if is_new:
            versions = self._versions
            self._shown = versions.vector
            records = await anyio.to_thread.run_sync(arrays.merged, versions.vector, versions.raw)
        await self._app.send({"do": "merged", "round": push.round}, {"arrays": records})

    # Evaluations and queries.

    async def _evaluate_again(self, round_id: int) -> None:
        """Do nothing: the app evaluates."""

    async def _evaluate(self, round_id: int, attempt: int, *, is_last: bool) -> MetricRow | None:
        self._last_round = round_id
        return await self._serve()

    async def _ask(self, group: Group) -> MetricRow | None:
        """Send messages that are not training; pass the replies on. Nothing of it is measured."""
        started, devices = self._event_log.now(), self._by_node()
        first = _first_of_each_node(group)
        await self._wait_idle([devices[x.node] for x in first if x.node in devices])
        manifests = await self._publish(group, group.push.messages)
        self._queries += 1
        limits = [self._config.round.deadline_s, group.push.timeout_s or inf]
        limits += [message.ttl_s for message in first if message.ttl_s > 0.0]
        round_id = max(self._last_round, 1)
        query = LossQuery(round_id, (self._attempt << 16) + self._queries, min(limits))
        requests: dict[str, EvaluateRequest] = {}
        sent: dict[str, AppMessage] = {}
        taken = {message.id for message in first}
        now = self._event_log.now()
        for message in group.push.messages:
            device = devices.get(message.node)
            if device is None or not device.is_available(now) or message.id not in taken:
                await self._refuse(message, device)
                continue
            sent[device.name] = message
            requests[device.name] = EvaluateRequest(
                round=query.round,
                attempt=query.attempt,
                model=manifests[message.payload],
                seed=0,
                limit_s=query.limit_s,
                coding=self._versions.coding(device),
                split="test",
                config=group.config(message),
            )
        if not requests:
            return None
        executor = self._services.query_executor
        assert executor is not None, "an app has it"
        with self._services.waits.waiting("tests", round_id, executor.open_devices):
            await executor.execute(query, requests)
        late = [x.device for x in query.devices.values() if x.outcome is QueryOutcome.LATE]
        self._registry.drain(late, round_id)
        scores: dict[str, Score] = {}
        for name, queried in query.devices.items():
            reply, each = queried.reply, sent[name].id
            if queried.outcome is not QueryOutcome.ANSWERED or reply is None:
                code = QUERY_CODES.get(queried.outcome, UNKNOWN)
                await self._send_error(each, code, queried.reason)
                continue
            await self._app.send({"do": "reply", "id": each}, {"records": reply.records})
            self._record_metrics(round_id, name, "evaluate", reply.metrics, reply.n)
            if group.kind == "evaluate" and reply.n and not LOSSES.isdisjoint(reply.metrics):
                scores[name] = score_of(reply, requests[name], task=OF_CLIENT)
        return self._record_scores(round_id, scores, started)

    # Replies that are errors.

    async def _refuse(self, message: AppMessage, device: Device | None) -> None:
        """Answer a message that no device gets."""
        now = self._event_log.now()
        if device is None:
            name, why = None, f"no device of this run is the node {message.node}"
        elif device.is_available(now):
            name, why = device.name, "it gets one message of a group"
        else:
            name, why = device.name, f"not available: {device.reason(now)}"
        self._event_log.event(
            "not sent",
            f"a message of the app is answered with an error: {why}",
            level="warning",
            device=name,
            round_id=max(self._last_round, 1),
        )
        await self._send_error(message.id, NO_NODE, why)

    async def _send_error(self, each: str, code: int, reason: str) -> None:
        await self._app.send({"do": "reply", "id": each, "code": code, "reason": reason})

    # Devices.

    def _by_node(self) -> dict[int, Device]:
        return {node_id(device.name): device for device in self._registry}

    async def _wait_idle(self, devices: Sequence[Device]) -> None:
        """Wait until devices have ended earlier work, at most `IDLE_WAIT_S`."""
        ends = self._event_log.now() + IDLE_WAIT_S
        while any(x.is_on and (x.is_draining or x.busy_round is not None) for x in devices):
            left = ends - self._event_log.now()
            if left <= 0.0:
                return
            await self._fleet.wait_change(left)


def _is_willing(device: Device, now: float) -> bool:
    is_willing = device.context is not None and device.context.is_willing
    return is_willing and not device.is_out and device.is_present(now)


def _first_of_each_node(group: Group) -> list[AppMessage]:
    """Return the first message of a group for each node, in their order."""
    found: dict[int, AppMessage] = {}
    for message in group.push.messages:
        found.setdefault(message.node, message)
    return list(found.values())


def _with_messages(group: Group, messages: list[AppMessage]) -> Group:
    """Return a group with a part of its messages."""
    used = {message.payload for message in messages}
    payloads = {number: data for number, data in group.payloads.items() if number in used}
    return Group(msgspec.structs.replace(group.push, messages=messages), group.configs, payloads)
