"""Which round or question a device works on: at most one, the newest it was asked for."""

import asyncio
import logging
from collections.abc import Callable, Sequence

import anyio
from anyio.abc import TaskGroup

from fairbed.device_agent.errors import RoundFailed
from fairbed.device_agent.round import DeviceEvaluation, DeviceRound, RoundContext
from fairbed.device_agent.state.lifecycle import TRANSITIONS, Event, Phase
from fairbed.wire.messages import (
    Cancel,
    EvaluateReply,
    EvaluateRequest,
    Failed,
    Grant,
    Train,
    UploadAck,
    UploadResult,
)

REST_S = 1.0
"""After a round, unless the next one has come: rounds in a row reuse the memory at once."""

_log = logging.getLogger(__name__)


class CurrentAssignment:
    """Starts, replaces and ends rounds; everything may arrive twice.

    Args:
        kit: What a round needs.
        group: Runs the rounds.
        phase: The agent's phase now.
        step: Tells the agent what happened.
        on_end: Called when a round is over and the agent is idle.
    """

    def __init__(
        self,
        kit: RoundContext,
        group: TaskGroup,
        phase: Callable[[], Phase],
        step: Callable[[Event], None],
        on_end: Callable[[], None],
    ) -> None:
        self._kit = kit
        self._group = group
        self._phase = phase
        self._step = step
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._current: DeviceRound | None = None
        self._newest: tuple[int, int] | None = None
        """Round and attempt of the newest `Train`; older ones are late duplicates."""
        self._seen_round: int | None = None
        self._failed: Failed | None = None
        """What was said last of the newest round, to be said again when asked again."""
        self._question: DeviceEvaluation | None = None
        self._asked: tuple[int, int] | None = None
        """Round and attempt of the newest `EvaluateRequest`."""
        self._answer: EvaluateReply | None = None
        """To the newest `EvaluateRequest`, until its round begins."""

    @property
    def round_id(self) -> int | None:
        """The newest round that this device was asked for."""
        return self._seen_round

    def on_train(self, train: Train, arrived_s: float) -> None:
        """Begin a round, and drop the one before; a duplicate gets the last answer again."""
        key = (train.round, train.attempt)
        if self._newest is not None and key <= self._newest:
            if key == self._newest:
                self.repeat()
            return
        kit = self._kit
        if Event.TRAIN_REQUESTED not in TRANSITIONS[self._phase()] or not kit.worker.is_prepared:
            self._say_failed(train, "not ready: task and data are not prepared")
            return
        self.stop("a newer round was asked for")
        was_asked = self._asked is not None and self._asked[0] == train.round
        if not (was_asked or train.keep_warm):
            self._drop_if_missed(train.round)
        self._newest, self._seen_round = key, train.round
        self._failed = self._answer = None

        # By `train`: one that knew the round would keep it, and its update, until garbage is
        # collected.
        def progress(event: Event) -> None:
            if self._current is not None and self._current.train is train:
                self._step(event)

        def progress_each(events: Sequence[Event]) -> None:
            for event in events:
                progress(event)

        def progress_from_thread(events: Sequence[Event]) -> None:
            self._loop.call_soon_threadsafe(progress_each, tuple(events))

        started = DeviceRound(train, arrived_s, kit, progress, progress_from_thread)
        self._current = started
        self._step(Event.TRAIN_REQUESTED)
        self._group.start_soon(self._run, started, name=f"agent[{kit.name}].round-{train.round}")

    def on_ask(self, ask: EvaluateRequest, arrived_s: float) -> None:
        """Find a loss, and drop what is older; a duplicate gets the last answer again.

        A device that missed the round before is cold: then the question pays for the cold start.
        """
        key = (ask.round, ask.attempt)
        if self._newest is not None and key <= self._newest:
            return  # its round has begun
        if self._asked is not None and key <= self._asked:
            if key == self._asked:
                self.repeat()
            return
        kit = self._kit
        if Event.EVALUATE_REQUESTED not in TRANSITIONS[self._phase()] or not kit.worker.is_prepared:
            self._say_failed(ask, "not ready: task and data are not prepared")
            return
        self.stop("the loss of a newer model was asked for")
        self._drop_if_missed(ask.round)
        self._asked, self._failed, self._answer = key, None, None
        self._question = DeviceEvaluation(ask, arrived_s, kit)
        self._step(Event.EVALUATE_REQUESTED)
        name = f"agent[{kit.name}].question-{ask.round}"
        self._group.start_soon(self._reply, self._question, name=name)

    def _drop_if_missed(self, round_id: int) -> None:
        """Be cold after a round without us, so that a cold start is a real one."""
        kit = self._kit
        if self._seen_round not in (round_id, round_id - 1) and kit.worker.is_warm:
            self._group.start_soon(kit.worker.drop, name=f"agent[{kit.name}].drop")

    def on_message(self, message: Grant | UploadAck | UploadResult) -> None:
        """Hand a message to the round it is about; others are late.

        Raises:
            DecodeError: It does not fit the upload under way.
        """
        current = self._current
        if current is None:
            return
        match message:
            case UploadAck():
                current.on_ack(message)
            case Grant() if message.round == current.train.round:
                current.on_grant(message)
            case UploadResult() if message.round == current.train.round:
                current.on_received(message)

    def on_cancel(self, cancel: Cancel) -> None:
        """Stop working on a round that nobody wants any more."""
        current, question = self._current, self._question
        is_training = current is not None and current.train.round == cancel.round
        if is_training or (question is not None and question.ask.round == cancel.round):
            self.stop(cancel.reason or "cancelled")
            self._step(Event.ENDED)
            self._on_end()
        elif self._asked is not None and self._asked[0] == cancel.round:
            self._answer = None
            self._kit.worker.let_go()

    def hold(self) -> None:
        """Coordinator or broker are away: the deadline waits for them."""
        for work in (self._current, self._question):
            if work is not None:
                work.deadline.hold()

    def go_on(self) -> None:
        """The coordinator is on."""
        for work in (self._current, self._question):
            if work is not None:
                work.deadline.go_on()

    def on_link_up(self) -> None:
        """Resume the upload, if there is one."""
        if self._current is not None:
            self._current.on_link_up()

    def repeat(self) -> None:
        """Say again what the coordinator may have missed."""
        if self._current is not None:
            self._current.repeat()
        elif self._answer is not None:
            self._kit.post.say(self._answer)
        elif self._failed is not None:
            self._kit.post.say(self._failed)

    def stop(self, why: str) -> None:
        """Drop what is under way without a word to the coordinator."""
        question, self._question = self._question, None
        if question is not None:
            _log.info("%s round %d: question dropped: %s", self._kit.name, question.ask.round, why)
            question.stop()
        current, self._current = self._current, None
        if current is not None:
            _log.info("%s round %d: dropped: %s", self._kit.name, current.train.round, why)
            current.stop()

    def forget(self) -> None:
        """Another coordinator process may ask for any round; what is warm stays warm."""
        self._newest = self._failed = self._asked = self._answer = None

    async def _run(self, started: DeviceRound) -> None:
        failure: str | None = None
        try:
            await started.run()
        except RoundFailed as exc:
            failure = str(exc)
        if self._current is not started:
            return
        self._current = None
        if failure is not None:
            self._say_failed(started.train, failure)
            self._step(Event.ENDED)
        self._on_end()
        self._group.start_soon(self._rest, self._newest, name=f"agent[{self._kit.name}].rest")

    async def _reply(self, question: DeviceEvaluation) -> None:
        answer: EvaluateReply | None = None
        failure = ""
        try:
            answer = await question.run()
        except RoundFailed as exc:
            failure = str(exc)
        if self._question is not question:
            return
        self._question = None
        if answer is None:
            self._say_failed(question.ask, failure)
            self._step(Event.ENDED)
        else:
            self._answer = answer
            self._kit.post.say(answer)
            self._step(Event.EVALUATE_REPLIED)
        self._on_end()

    async def _rest(self, newest: tuple[int, int] | None) -> None:
        await anyio.sleep(REST_S)
        if self._newest == newest:
            await self._kit.worker.rest()

    def _say_failed(self, order: Train | EvaluateRequest, reason: str) -> None:
        phase = str(self._phase())
        _log.warning("%s round %d: failed while %s: %s", self._kit.name, order.round, phase, reason)
        self._failed = Failed(round=order.round, phase=phase, reason=reason)
        self._kit.post.say(self._failed)
