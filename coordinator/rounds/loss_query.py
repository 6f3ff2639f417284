"""Asking devices for the loss of the model, as it is done: questions out, answers into the poll.

What a selection has to know before it is made: the losses of candidates, asked for in time.
"""

from collections.abc import Collection, Mapping

import anyio

from fairbed.coordinator.algorithms.selection.base import TwoStepSelector
from fairbed.coordinator.messaging.publisher import Publisher
from fairbed.coordinator.policy.choice import LossDemand, ReportedLosses
from fairbed.coordinator.policy.config import CoordinatorConfig
from fairbed.coordinator.policy.decisions import MAX_LOSS, Decisions
from fairbed.coordinator.records.rows import answers_of, ask_rows
from fairbed.coordinator.rounds.executor import ASK_AGAIN_S
from fairbed.coordinator.rounds.model_versions import ModelVersions
from fairbed.coordinator.state.loss_query import LossQuery, QueryOutcome, fault_in
from fairbed.coordinator.state.registry import Registry
from fairbed.coordinator.store.event_log import EventLog
from fairbed.coordinator.store.tables import LossQueryRow
from fairbed.wire.messages import Cancel, EvaluateReply, EvaluateRequest, Failed


class LossQueryExecutor:
    """Asks for one round at a time; answers to anything else are ignored."""

    def __init__(self, post: Publisher, journal: EventLog) -> None:
        self._post = post
        self._journal = journal
        self._poll: LossQuery | None = None
        self._asks: dict[str, EvaluateRequest] = {}
        self._asked_at: dict[str, float] = {}
        self._is_linked = False
        self._moved = anyio.Event()

    async def ask(self, poll: LossQuery, asks: Mapping[str, EvaluateRequest]) -> None:
        """Ask, and return when everybody has answered or will not be waited for any more.

        Args:
            poll: The table.
            asks: What each device is asked.
        """
        self._poll, self._asks = poll, dict(asks)
        now = self._journal.now()
        for device in asks:
            poll.ask(device, now)
        if not self._is_linked:
            poll.hold(now)
        for device in asks:
            self._say(device)
        try:
            while not poll.is_over:
                moved, wake_at = self._moved, poll.wake_at()
                timeout = None if wake_at is None else max(wake_at - self._journal.now(), 0.0)
                with anyio.move_on_after(timeout):
                    await moved.wait()
                for device in poll.pass_limit(self._journal.now()):
                    self._tell_end(poll, device)
        finally:
            self._poll = None

    def dismiss(self, round_id: int, devices: list[str]) -> None:
        """Tell who has answered and was not selected that it need not keep the model."""
        for device in devices:
            self._post.say(device, Cancel(round=round_id, reason="others were selected"))

    def on_answer(self, device: str, answer: EvaluateReply) -> None:
        """A device tells a loss."""
        poll = self._poll
        if poll is None or (answer.round, answer.attempt) != (poll.round, poll.attempt):
            return
        ask = self._asks.get(device)
        if ask is None:
            return
        if answer.loss > MAX_LOSS:
            text = f"says a loss of {answer.loss:g}; it counts as {MAX_LOSS:g}"
            self._journal.complaint("clamped", text, device=device, round_id=poll.round)
        fault = fault_in(answer, ask)
        poll.answered(device, answer, fault, self._journal.now())
        if fault is not None:
            self._journal.complaint("refused", fault, device=device, round_id=poll.round)
        self._move()

    def on_failed(self, device: str, failed: Failed) -> bool:
        """A device cannot tell a loss; return whether that was what it was asked for."""
        poll = self._poll
        if poll is None or failed.round != poll.round or device not in poll.asked:
            return False
        self._end(device, QueryOutcome.FAILED, f"{failed.phase}: {failed.reason}")
        return True

    def on_hello(self, device: str, is_other_process: bool) -> None:
        """A device (re)connected: ask again, or give its answer up."""
        if is_other_process:
            why = "the agent was restarted, or another one has its name"
            self._end(device, QueryOutcome.LOST, why)
        elif self._is_open(device):
            self._say(device)

    def on_idle(self, device: str) -> None:
        """A device says that it has nothing to do: the question, or its answer, was lost."""
        if self._is_open(device) and self._journal.now() - self._asked_at[device] > ASK_AGAIN_S:
            self._say(device)

    def on_link_down(self) -> None:
        """Our own link is gone: no limit passes meanwhile."""
        self._is_linked = False
        if self._poll is not None:
            self._poll.hold(self._journal.now())

    def on_link_up(self) -> None:
        """Our own link is back."""
        self._is_linked = True
        if self._poll is not None:
            self._poll.go_on(self._journal.now())
            self._move()

    def vanish(self, device: str, why: str) -> None:
        """A device has been gone for too long."""
        self._end(device, QueryOutcome.LOST, why)

    def open_devices(self) -> list[str]:
        """Return who is still expected to answer."""
        return [] if self._poll is None else self._poll.open_devices()

    def _is_open(self, device: str) -> bool:
        return self._poll is not None and self._poll.is_open(device)

    def _say(self, device: str) -> None:
        self._asked_at[device] = self._journal.now()
        self._post.say(device, self._asks[device])

    def _end(self, device: str, reply: QueryOutcome, why: str) -> None:
        poll = self._poll
        if poll is None or not self._is_open(device):
            return
        poll.ended(device, reply, why)
        self._tell_end(poll, device)
        self._move()

    def _tell_end(self, poll: LossQuery, device: str) -> None:
        """Write down that there will be no answer, and let the device stop."""
        asked = poll.asked[device]
        text = f"not asked any more for its loss: {asked.why}"
        self._journal.event(
            asked.reply.value, text, level="warning", device=device, round_id=poll.round
        )
        self._post.say(device, Cancel(round=poll.round, reason=asked.why))

    def _move(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()


class LossQueries:
    """Asks before each selection, where the selector wants to know, and remembers the answers."""

    def __init__(
        self,
        config: CoordinatorConfig,
        decisions: Decisions,
        registry: Registry,
        versions: ModelVersions,
        asker: LossQueryExecutor,
        journal: EventLog,
    ) -> None:
        self._config = config
        self._decisions = decisions
        self._registry = registry
        self._versions = versions
        self._asker = asker
        self._journal = journal
        self._began: float | None = None
        self.rows: list[LossQueryRow] = []
        """What came of the questions of this round."""
        registry.must_answer = isinstance(decisions.selector, TwoStepSelector)

    async def run(self, round_id: int, attempt: int) -> ReportedLosses | None:
        """Return the answers of a round; None where nobody has to be asked."""
        now = self._journal.now()
        self._began, self.rows = None, []
        question = self._decisions.question(
            round_id, self._registry, self._versions.transfer_bits(), now
        )
        if question is None:
            return None
        self._began = now
        names = [self._registry.names()[row] for row in question.rows.tolist()]
        poll = LossQuery(round_id, attempt, self._config.selection.loss_query_timeout_s)
        asks = {name: self._ask(name, question, poll) for name in names}
        if asks:
            self._journal.event("asked", " ".join(names), round_id=round_id)
            await self._asker.ask(poll, asks)
        late = [x.device for x in poll.asked.values() if x.reply is QueryOutcome.LATE]
        self._registry.drain(late, round_id)
        self.rows = ask_rows(poll, asks)
        return answers_of(question, poll, self._registry.names())

    def dismiss(self, round_id: int, selected: Collection[str]) -> None:
        """Tell those who have answered for nothing that they need not keep the model."""
        self._asker.dismiss(round_id, sorted(self.answered.difference(selected)))

    @property
    def answered(self) -> set[str]:
        """Who has told a loss in this round."""
        return {row.device for row in self.rows if row.outcome == QueryOutcome.ANSWERED.value}

    @property
    def bytes_down(self) -> int:
        """What the model took on its way to who was asked."""
        return sum(row.bytes_down for row in self.rows)

    def lasted_s(self, dispatched: float) -> float:
        """Return the seconds from the first question to the dispatch; 0 without a question."""
        return 0.0 if self._began is None else dispatched - self._began

    def _ask(self, name: str, question: LossDemand, poll: LossQuery) -> EvaluateRequest:
        device, batch = self._registry[name], self._config.training.batch_size
        return EvaluateRequest(
            round=poll.round,
            attempt=poll.attempt,
            model=self._versions.manifest,
            examples=batch if question.sample == "batch" else None,
            seed=self._decisions.asking_seed(poll.round, device.row),
            limit_s=poll.limit_s,
            coding=self._versions.coding(device),
        )
