"""The current assignment of a device: at most one round, loss query or test, always the newest.

A test never ends other work: it waits until the round is over, and a newer round ends it.
"""

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

TRIM_DELAY_S = 1.0
"""Delay after a round before its memory is returned to the system; a new round reuses it."""

_log = logging.getLogger(__name__)


class CurrentAssignment:
    """Starts, replaces and ends rounds, loss queries and tests; any message may arrive twice.

    Args:
        context: Parts of the agent that a round uses.
        group: Runs the rounds.
        phase: Returns the agent's phase.
        step: Applies an event to the agent's lifecycle.
        on_end: Called when the work has ended and the agent is idle.
    """

    def __init__(
        self,
        context: RoundContext,
        group: TaskGroup,
        phase: Callable[[], Phase],
        step: Callable[[Event], None],
        on_end: Callable[[], None],
    ) -> None:
        self._context = context
        self._group = group
        self._phase = phase
        self._step = step
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._round: DeviceRound | None = None
        self._newest_train: tuple[int, int] | None = None
        """Round and attempt of the newest `Train`; older ones are late duplicates."""
        self._seen_round: int | None = None
        self._failed: Failed | None = None
        """Failure of the newest round, sent again if the request is repeated."""
        self._evaluation: DeviceEvaluation | None = None
        self._newest_evaluation: tuple[int, int] | None = None
        """Round and attempt of the newest loss query."""
        self._newest_test: tuple[int, int] | None = None
        """Round and attempt of the newest test."""
        self._waiting_test: tuple[EvaluateRequest, float] | None = None
        """A test that waits for the end of the current work, and when it arrived."""
        self._reply: EvaluateReply | None = None
        """Reply to the newest `EvaluateRequest`, kept until the next round begins."""

    @property
    def round_id(self) -> int | None:
        """The newest round of a `Train` to this device."""
        return self._seen_round

    def on_train(self, train: Train, arrived_s: float) -> None:
        """Start a round and drop older work; repeat the last message for a duplicate."""
        key = (train.round, train.attempt)
        if self._newest_train is not None and key <= self._newest_train:
            if key == self._newest_train:
                self.repeat()
            return
        context = self._context
        if (
            Event.TRAIN_REQUESTED not in TRANSITIONS[self._phase()]
            or not context.worker.is_prepared
        ):
            self._report_failure(train, "not ready: task and data are not prepared")
            return
        if problem := context.worker.owner_problem(train):
            self._report_failure(train, problem)
            return
        self.stop("a newer round arrived")
        was_evaluated = (
            self._newest_evaluation is not None and self._newest_evaluation[0] == train.round
        )
        if not (was_evaluated or train.keep_warm):
            self._drop_if_missed(train.round)
        self._newest_train, self._seen_round = key, train.round
        self._failed = self._reply = None

        # Compares `train`: a closure over the round would keep the round and its update in memory
        # until the next garbage collection.
        def progress(event: Event) -> None:
            if self._round is not None and self._round.train is train:
                self._step(event)

        def progress_each(events: Sequence[Event]) -> None:
            for event in events:
                progress(event)

        def progress_from_thread(events: Sequence[Event]) -> None:
            self._loop.call_soon_threadsafe(progress_each, tuple(events))

        started = DeviceRound(train, arrived_s, context, progress, progress_from_thread)
        self._round = started
        self._step(Event.TRAIN_REQUESTED)
        self._group.start_soon(
            self._run, started, name=f"agent[{context.name}].round-{train.round}"
        )

    def on_evaluate_request(self, request: EvaluateRequest, arrived_s: float) -> None:
        """Start a loss query and drop older work; repeat the last message for a duplicate.

        A device that missed the previous round is cold: the loss query then pays the cold start.
        """
        if request.split == "test":
            self._on_test_request(request, arrived_s)
            return
        key = (request.round, request.attempt)
        if self._newest_train is not None and key <= self._newest_train:
            return  # the round of this request has begun
        if self._newest_evaluation is not None and key <= self._newest_evaluation:
            if key == self._newest_evaluation:
                self.repeat()
            return
        context = self._context
        if (
            Event.EVALUATE_REQUESTED not in TRANSITIONS[self._phase()]
            or not context.worker.is_prepared
        ):
            self._report_failure(request, "not ready: task and data are not prepared")
            return
        if problem := context.worker.owner_problem(request):
            self._report_failure(request, problem)
            return
        self.stop("a newer loss query arrived")
        self._drop_if_missed(request.round)
        self._newest_evaluation, self._failed, self._reply = key, None, None
        self._start_evaluation(request, arrived_s)

    def _on_test_request(self, request: EvaluateRequest, arrived_s: float) -> None:
        """Start a test as soon as the device is idle; repeat the last message for a duplicate."""
        key = (request.round, request.attempt)
        if any(
            newest is not None and key < newest
            for newest in (self._newest_train, self._newest_evaluation)
        ):
            return  # a later round has begun
        if self._newest_test is not None and key <= self._newest_test:
            if key == self._newest_test:
                self.repeat()
            return
        if (
            Event.EVALUATE_REQUESTED not in TRANSITIONS[self._phase()]
            or not self._context.worker.is_prepared
        ):
            self._report_failure(request, "not ready: task and data are not prepared")
            return
        if problem := self._context.worker.owner_problem(request):
            self._report_failure(request, problem)
            return
        self._newest_test, self._failed = key, None
        self._waiting_test = request, arrived_s
        self._start_waiting_test()

    def _start_waiting_test(self) -> None:
        waiting = self._waiting_test
        if waiting is None or self._round is not None or self._evaluation is not None:
            return
        self._waiting_test = self._reply = None
        if Event.EVALUATE_REQUESTED in TRANSITIONS[self._phase()]:
            self._start_evaluation(*waiting)
        else:
            self._newest_test = None  # the link was lost: the coordinator sends it again

    def _start_evaluation(self, request: EvaluateRequest, arrived_s: float) -> None:
        self._evaluation = DeviceEvaluation(request, arrived_s, self._context)
        self._step(Event.EVALUATE_REQUESTED)
        name = f"agent[{self._context.name}].evaluation-{request.round}"
        self._group.start_soon(self._run_evaluation, self._evaluation, name=name)

    def _drop_if_missed(self, round_id: int) -> None:
        """Drop session and data after a missed round, so that the next start is a cold start."""
        context = self._context
        if self._seen_round not in (round_id, round_id - 1) and context.worker.is_warm:
            self._group.start_soon(context.worker.drop, name=f"agent[{context.name}].drop")

    def on_message(self, message: Grant | UploadAck | UploadResult) -> None:
        """Pass a message to its round; ignore a late message of another round.

        Raises:
            DecodeError: The message does not fit the current upload.
        """
        current = self._round
        if current is None:
            return
        match message:
            case UploadAck():
                current.on_ack(message)
            case Grant() if message.round == current.train.round:
                current.on_grant(message)
            case UploadResult() if message.round == current.train.round:
                current.on_upload_result(message)

    def on_cancel(self, cancel: Cancel) -> None:
        """Stop the work on a cancelled round."""
        current, evaluation = self._round, self._evaluation
        is_training = current is not None and current.train.round == cancel.round
        if is_training or (evaluation is not None and evaluation.request.round == cancel.round):
            self.stop(cancel.reason or "cancelled")
            self._step(Event.ENDED)
            self._on_end()
        elif self._waiting_test is not None and self._waiting_test[0].round == cancel.round:
            self._waiting_test = None
        elif self._newest_evaluation is not None and self._newest_evaluation[0] == cancel.round:
            self._reply = None
            self._context.worker.drop_evaluated()

    def pause(self) -> None:
        """Extend the deadline: the coordinator or the broker is offline."""
        for work in (self._round, self._evaluation):
            if work is not None:
                work.deadline.pause()

    def resume(self) -> None:
        """Undo the unused extension of the deadline: the coordinator is back."""
        for work in (self._round, self._evaluation):
            if work is not None:
                work.deadline.resume()

    def on_link_up(self) -> None:
        """Resume the upload, if one is in progress."""
        if self._round is not None:
            self._round.on_link_up()

    def repeat(self) -> None:
        """Send the last message again: the coordinator may have missed it."""
        if self._round is not None:
            self._round.repeat()
        elif self._reply is not None:
            self._context.publisher.publish(self._reply)
        elif self._failed is not None:
            self._context.publisher.publish(self._failed)

    def stop(self, reason: str) -> None:
        """Drop the current work without a message to the coordinator."""
        self._waiting_test = None
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            _log.info(
                "%s round %d: evaluation dropped: %s",
                self._context.name,
                evaluation.request.round,
                reason,
            )
            evaluation.stop()
        current, self._round = self._round, None
        if current is not None:
            _log.info("%s round %d: dropped: %s", self._context.name, current.train.round, reason)
            current.stop()

    def forget(self) -> None:
        """Forget round numbers, as another coordinator has its own; a warm device stays warm."""
        self._newest_train = self._newest_evaluation = self._newest_test = None
        self._failed = self._reply = None

    async def _run(self, started: DeviceRound) -> None:
        failure: str | None = None
        try:
            await started.run()
        except RoundFailed as exc:
            failure = str(exc)
        if self._round is not started:
            return
        self._round = None
        if failure is not None:
            self._report_failure(started.train, failure)
            self._step(Event.ENDED)
        self._on_end()
        self._start_waiting_test()
        self._group.start_soon(
            self._trim_later, self._newest_train, name=f"agent[{self._context.name}].trim"
        )

    async def _run_evaluation(self, evaluation: DeviceEvaluation) -> None:
        reply: EvaluateReply | None = None
        failure = ""
        try:
            reply = await evaluation.run()
        except RoundFailed as exc:
            failure = str(exc)
        if self._evaluation is not evaluation:
            return
        self._evaluation = None
        if reply is None:
            self._report_failure(evaluation.request, failure)
            self._step(Event.ENDED)
        else:
            self._reply = reply
            self._context.publisher.publish(reply)
            self._step(Event.EVALUATE_REPLIED)
        self._on_end()
        self._start_waiting_test()

    async def _trim_later(self, newest: tuple[int, int] | None) -> None:
        await anyio.sleep(TRIM_DELAY_S)
        if self._newest_train == newest:
            await self._context.worker.trim()

    def _report_failure(self, request: Train | EvaluateRequest, reason: str) -> None:
        phase = str(self._phase())
        _log.warning(
            "%s round %d: failed while %s: %s", self._context.name, request.round, phase, reason
        )
        self._failed = Failed(round=request.round, phase=phase, reason=reason)
        self._context.publisher.publish(self._failed)
