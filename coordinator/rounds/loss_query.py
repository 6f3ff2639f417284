"""Loss queries: requests to evaluate the model on devices before a selection, and their replies.

The script of a round (`script.round`) decides whether the selector needs losses. `LossQueries`
makes the requests. `LossQueryExecutor` sends them, those of tests after a round included, and feeds
the replies into the table of the query (`state.loss_query.LossQuery`).
"""

from collections.abc import Mapping

import anyio

from fairbed.coordinator.messaging.publisher import Publisher
from fairbed.coordinator.policy.decisions import MAX_LOSS, Decisions
from fairbed.coordinator.policy.selection import LossDemand
from fairbed.coordinator.records.rows import loss_query_rows
from fairbed.coordinator.rounds.executor import RESEND_S, Receiver
from fairbed.coordinator.rounds.model_versions import ModelVersions
from fairbed.coordinator.state.loss_query import (
    LossQuery,
    QueryOutcome,
    fault_in_reply,
    pulled_manifest,
)
from fairbed.coordinator.state.registry import Registry
from fairbed.coordinator.store.event_log import EventLog
from fairbed.coordinator.store.tables import LossQueryRow
from fairbed.wire.evaluation import ONE_CLASS, Predicted
from fairbed.wire.messages import Cancel, EvaluateReply, EvaluateRequest, Failed, PersonalScore


class LossQueryExecutor(Receiver):
    """Executes one loss query or test at a time; replies to others are ignored."""

    def __init__(
        self, publisher: Publisher, event_log: EventLog, task: Predicted = ONE_CLASS
    ) -> None:
        self._publisher = publisher
        self._event_log = event_log
        self._task = task
        self._query: LossQuery | None = None
        self._requests: dict[str, EvaluateRequest] = {}
        self._sent_at: dict[str, float] = {}
        """When each request was last sent."""
        self._is_linked = False
        self._changed = anyio.Event()

    async def execute(self, query: LossQuery, requests: Mapping[str, EvaluateRequest]) -> None:
        """Send the requests; return when every device has an outcome.

        Args:
            query: An empty table.
            requests: The message to each device.
        """
        self._query, self._requests = query, dict(requests)
        now = self._event_log.now()
        for device in requests:
            query.add(device, now)
        if not self._is_linked:
            query.on_link_down(now)
        for device in requests:
            self._send(device)
        try:
            while not query.is_over:
                changed, wake_at = self._changed, query.wake_at()
                timeout = None if wake_at is None else max(wake_at - self._event_log.now(), 0.0)
                with anyio.move_on_after(timeout):
                    await changed.wait()
                for device in query.pass_limit(self._event_log.now()):
                    self._cancel(query, device)
        finally:
            self._query = None

    def dismiss(self, round_id: int, devices: list[str]) -> None:
        """Notify devices that replied but were not selected: they may drop the model."""
        for device in devices:
            self._publisher.publish(device, Cancel(round=round_id, reason="others were selected"))

    def open_devices(self) -> list[str]:
        """Return the devices whose reply is expected."""
        return [] if self._query is None else self._query.open_devices()

    def mark_lost(self, device: str, reason: str) -> None:
        """End the query to a device that has been gone for too long."""
        self._end(device, QueryOutcome.LOST, reason)

    def on_message(self, device: str, message: EvaluateReply | PersonalScore) -> None:
        """A device reports a loss."""
        if isinstance(message, EvaluateReply):
            self._on_reply(device, message)

    def _on_reply(self, device: str, reply: EvaluateReply) -> None:
        query = self._query
        if query is None or (reply.round, reply.attempt) != (query.round, query.attempt):
            return
        request = self._requests.get(device)
        if request is None:
            return
        if reply.loss > MAX_LOSS:
            text = f"reports a loss of {reply.loss:g}; it counts as {MAX_LOSS:g}"
            self._event_log.warn("clamped", text, device=device, round_id=query.round)
        fault = fault_in_reply(reply, request, self._task)
        query.on_reply(device, reply, fault, self._event_log.now())
        if fault is not None:
            self._event_log.warn("refused", fault, device=device, round_id=query.round)
        self._notify()

    def on_failed(self, device: str, failed: Failed) -> bool:
        """A device reports a failure; return whether it failed in a query."""
        query = self._query
        if query is None or failed.round != query.round or device not in query.devices:
            return False
        self._end(device, QueryOutcome.FAILED, f"{failed.phase}: {failed.reason}")
        return True

    def on_hello(self, device: str, is_other_process: bool) -> None:
        """A device has (re)connected: repeat its request, or end its query after a restart."""
        if is_other_process:
            reason = "the agent was restarted, or another one has its name"
            self._end(device, QueryOutcome.LOST, reason)
        elif self._is_open(device):
            self._send(device)

    def on_idle(self, device: str) -> None:
        """A device reports the phase idle: its request or its reply was lost."""
        if self._is_open(device) and self._event_log.now() - self._sent_at[device] > RESEND_S:
            self._send(device)

    def on_link_down(self) -> None:
        """The coordinator lost its link: suspend the limit."""
        self._is_linked = False
        if self._query is not None:
            self._query.on_link_down(self._event_log.now())

    def on_link_up(self) -> None:
        """The coordinator's link is up: resume the limit."""
        self._is_linked = True
        if self._query is not None:
            self._query.on_link_up(self._event_log.now())
            self._notify()

    def _is_open(self, device: str) -> bool:
        return self._query is not None and self._query.is_open(device)

    def _send(self, device: str) -> None:
        self._sent_at[device] = self._event_log.now()
        self._publisher.publish(device, self._requests[device])

    def _end(self, device: str, outcome: QueryOutcome, reason: str) -> None:
        query = self._query
        if query is None or not self._is_open(device):
            return
        query.end(device, outcome, reason)
        self._cancel(query, device)
        self._notify()

    def _cancel(self, query: LossQuery, device: str) -> None:
        """Log the outcome and cancel the device's work on the query."""
        ended = query.devices[device]
        is_test = self._requests[device].split == "test"
        text = f"its {'test' if is_test else 'loss query'} ended: {ended.reason}"
        self._event_log.event(
            ended.outcome.value, text, level="warning", device=device, round_id=query.round
        )
        self._publisher.publish(device, Cancel(round=query.round, reason=ended.reason))

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class LossQueries:
    """Sends the loss queries before selections; keeps the outcomes of the last one.

    Made only for a selector that needs losses.
    """

    def __init__(
        self,
        decisions: Decisions,
        registry: Registry,
        versions: ModelVersions,
        executor: LossQueryExecutor,
        event_log: EventLog,
    ) -> None:
        self._decisions = decisions
        self._registry = registry
        self._versions = versions
        self._executor = executor
        self._event_log = event_log
        self._started: float | None = None
        self.rows: list[LossQueryRow] = []
        """The outcomes in this round."""
        registry.needs_losses = True

    async def run(self, demand: LossDemand, query: LossQuery) -> None:
        """Query the losses of a round until each device has an outcome in `query`."""
        self._started = None
        names = [self._registry.names()[row] for row in demand.rows.tolist()]
        requests = {name: self._request(name, demand, query) for name in names}
        if requests:
            self._started = self._event_log.now()
            self._event_log.event("loss query", " ".join(names), round_id=query.round)
            await self._executor.execute(query, requests)
        late = [x.device for x in query.devices.values() if x.outcome is QueryOutcome.LATE]
        self._registry.drain(late, query.round)

        def bytes_down(device: str, reply: EvaluateReply) -> int:
            pulled = pulled_manifest(reply, requests[device])
            return 0 if pulled is None else pulled.size_bytes

        self.rows = loss_query_rows(query, bytes_down)

    def open_devices(self) -> list[str]:
        """Return the devices whose loss is expected."""
        return self._executor.open_devices()

    def dismiss(self, round_id: int, devices: list[str]) -> None:
        """Notify devices that replied but were not selected: they may drop the model."""
        self._executor.dismiss(round_id, devices)

    @property
    def bytes_down(self) -> int:
        """Bytes of the models that queried devices downloaded."""
        return sum(row.bytes_down for row in self.rows)

    def duration_s(self, dispatched: float) -> float:
        """Return the seconds from the first request to the dispatch; 0 without a request."""
        return 0.0 if self._started is None else dispatched - self._started

    def _request(self, name: str, demand: LossDemand, query: LossQuery) -> EvaluateRequest:
        device, config = self._registry[name], self._decisions.config
        return EvaluateRequest(
            round=query.round,
            attempt=query.attempt,
            model=self._versions.manifest,
            examples=config.training.batch_size if demand.sample == "batch" else None,
            seed=self._decisions.query_seed(query.round, device.row),
            limit_s=query.limit_s,
            coding=self._versions.coding(device),
            local_values=config.local_values(self._event_log.store.run_id, device.aggregated_round),
        )
