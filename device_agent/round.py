"""One round of one device, from the arrival of `Train` to the coordinator's last word.

Until when one piece of work may go on: what is common to a round and to a question.

One question: what is the loss of this model on this device? It is asked before a selection.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import anyio
import anyio.to_thread

from fairbed.device_agent.config import Timeouts
from fairbed.device_agent.errors import RoundFailed
from fairbed.device_agent.host import Clock
from fairbed.device_agent.notify import Notify
from fairbed.device_agent.publisher import DevicePublisher
from fairbed.device_agent.state.lifecycle import Event
from fairbed.device_agent.state.link_estimate import LinkEstimate
from fairbed.device_agent.transfers import Pulls, Push
from fairbed.device_agent.worker import (
    EvaluationJob,
    EvaluationResult,
    Stopwatch,
    Trained,
    TrainingJob,
    TrainingThread,
)
from fairbed.wire.chunks import suitable_chunk_bytes
from fairbed.wire.messages import (
    EvaluateReply,
    EvaluateRequest,
    Grant,
    Manifest,
    Offer,
    Phases,
    Train,
    UploadAck,
    UploadDone,
    UploadResult,
)
from fairbed.wire.transfer import Download, Upload


class Deadline:
    """Ends the work in its `scope` when its time is up, or when it is told to.

    Args:
        clock: The agent's.
        at: When the time is up, on that clock.
        outage_s: How long the work may go on without coordinator and broker.
    """

    def __init__(self, clock: Clock, at: float, outage_s: float) -> None:
        self.scope = anyio.CancelScope()
        self.is_stopped = False
        """It was told to end."""
        self._clock = clock
        self._at = at
        self._outage_s = outage_s
        self._held_since: float | None = None
        self._given_s = 0.0
        """What absences have added so far."""
        self._set(at)

    def stop(self) -> None:
        """End the work at once; what the training thread still does is thrown away."""
        self.is_stopped = True
        self.scope.cancel()

    def is_over(self) -> bool:
        """Tell whether nobody wants the work any more; asked from the training thread, too."""
        return self.is_stopped or self._left_s() <= 0.0

    def hold(self) -> None:
        """Nobody is there to hear us: `outage_s` more, of which `go_on` takes back the rest."""
        if self._held_since is None:
            self._held_since = self._clock.now()
            self._give(self._outage_s)

    def go_on(self) -> None:
        """The coordinator is on again."""
        held_since, self._held_since = self._held_since, None
        if held_since is not None:
            self._give(min(self._clock.now() - held_since - self._outage_s, 0.0))

    @contextmanager
    def waiting(self, limit_s: float) -> Iterator[None]:
        """Wait inside for the coordinator: it may last `limit_s`, and is none of our time."""
        began, at = self._clock.now(), self._at
        self._set(began + limit_s)
        yield
        self._set(at + self._clock.now() - began)

    def _give(self, more_s: float) -> None:
        self._given_s += more_s
        self._set(self._at)

    def _set(self, at: float) -> None:
        self._at = at
        self.scope.deadline = anyio.current_time() + self._left_s()

    def _left_s(self) -> float:
        return self._at + self._given_s - self._clock.now()


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoundContext:
    """What a round needs of the agent."""

    name: str
    clock: Clock
    post: DevicePublisher
    pulls: Pulls
    worker: TrainingThread
    link: LinkEstimate
    timeouts: Timeouts


class DeviceRound:
    """Works on one `Train`; messages about it come in by the `on_` methods.

    Args:
        train: What the coordinator asks for.
        arrived_s: When it came, on the kit's clock.
        kit: The agent's means.
        progress: Told of each event of the lifecycle, on the event loop.
        progress_from_thread: Told of several, in the training thread.
    """

    def __init__(
        self,
        train: Train,
        arrived_s: float,
        kit: RoundContext,
        progress: Callable[[Event], None],
        progress_from_thread: Callable[[Sequence[Event]], None],
    ) -> None:
        self.train = train
        self._kit = kit
        self._watch = Stopwatch(kit.clock, arrived_s)
        self.deadline = Deadline(kit.clock, arrived_s + train.deadline_s, kit.timeouts.outage_s)
        self._progress = progress
        self._progress_from_thread = progress_from_thread
        self._bell = Notify()
        self._offer: Offer | None = None
        self._grant: Grant | None = None
        self._push: Push | None = None
        self._sha256: bytes | None = None
        self._done: UploadDone | None = None
        self._received: UploadResult | None = None

    async def run(self) -> None:
        """Work until the coordinator has said its last word, or `stop` was called.

        Raises:
            RoundFailed: The round cannot be finished, or took too long.
        """
        try:
            with self.deadline.scope:
                await self._work()
        except RoundFailed:
            if not self.deadline.is_over():
                raise
        finally:
            self._push = None  # it knows us, too, and holds the update
        if self.deadline.is_stopped or self._received is not None:
            return
        if self._offer is not None and self._grant is None:
            raise RoundFailed(f"no grant within {self._kit.timeouts.queue_s:g} s")
        raise RoundFailed(f"the deadline of {self.train.deadline_s:g} s has passed")

    def stop(self) -> None:
        """Give up at once; what the training thread still does is thrown away."""
        self.deadline.stop()

    def on_grant(self, grant: Grant) -> None:
        """Take the permission to upload, again after the coordinator came back."""
        if self._offer is None or grant.id != self._offer.manifest.id:
            return
        if self._push is not None:
            self._push.on_grant(grant.window)
        else:
            self._grant = grant
            self._bell.ring()

    def on_ack(self, ack: UploadAck) -> None:
        """Take the coordinator's bitmap.

        Raises:
            DecodeError: It is not one of this update.
        """
        if self._push is not None and ack.id == self._push.upload.manifest.id:
            self._push.on_ack(ack.received)

    def on_received(self, received: UploadResult) -> None:
        """Take the coordinator's last word; it may come before we have sent anything."""
        if self._offer is not None and received.id == self._offer.manifest.id:
            self._received = received
            if self._push is not None:
                self._push.close()
            self._bell.ring()

    def on_link_up(self) -> None:
        """Send again what was in flight."""
        if self._push is not None:
            self._push.on_link_up()

    def repeat(self) -> None:
        """Say again what the coordinator may have missed."""
        if self._done is not None:
            self._kit.post.say(self._done)
        elif self._offer is not None and self._grant is None:
            self._kit.post.say(self._offer)

    async def _work(self) -> None:
        update = await self._train_and_offer()
        async with anyio.create_task_group() as group:
            group.start_soon(self._hash, update)
            grant = await self._wait_for_grant()
            if grant is not None:
                await self._upload(update, grant)
            received = await self._wait_for_last_word()
        self._progress(Event.UPLOAD_CONFIRMED)
        if not received.accepted:
            _log.warning(
                "%s round %d: not accepted: %s", self._kit.name, self.train.round, received.reason
            )

    async def _upload(self, update: memoryview, grant: Grant) -> None:
        assert self._offer is not None, "granted without an offer"
        upload = Upload(self._offer.manifest, update, self._kit.link.uplink_bps)
        push = Push(upload, self._kit.post, self._kit.clock, self._say_done_if_ready)
        self._push = push
        self._progress(Event.GRANTED)
        await push.run(grant.window)
        if push.elapsed_s is not None:
            self._kit.link.on_transfer("up", len(update), push.elapsed_s, self._kit.clock.now())

    async def _train_and_offer(self) -> memoryview:
        kit, train = self._kit, self.train
        model: Download | None = None
        if not kit.worker.holds(train):
            model = (await kit.pulls.fetch(kit.worker.blob_for(train))).download
        trained = await kit.worker.compute(
            TrainingJob(
                train, model, self._watch, self._progress_from_thread, self.deadline.is_over
            )
        )
        self._progress(Event.TRAINED)
        manifest = Manifest(
            id=os.urandom(16),
            kind="update",
            size_bytes=len(trained.update),
            chunk_bytes=suitable_chunk_bytes(
                kit.link.uplink_bps, len(trained.update), kit.link.max_chunk_bytes
            ),
        )
        self._watch.lap("encode")
        self._offer = self._make_offer(trained, manifest, model)
        kit.post.say(self._offer)
        self._progress(Event.ENCODED)
        return trained.update

    def _make_offer(self, trained: Trained, manifest: Manifest, model: Download | None) -> Offer:
        watch = self._watch
        pulled = self.train.model.id if model is None else model.manifest.id
        steady = None if model is None else model.steady
        return Offer(
            round=self.train.round,
            attempt=self.train.attempt,
            manifest=manifest,
            phases=Phases(
                download_s=watch["download"],
                load_s=watch["load"],
                evaluate_s=watch["evaluate"],
                train_s=watch["train"],
                train_cpu_s=trained.train_cpu_s,
                encode_s=watch["encode"],
                decode_s=watch["decode"],
            ),
            n_k=trained.n_k,
            steps=trained.steps,
            was_cold=trained.was_cold,
            loss_before=trained.loss_before,
            loss_train=trained.loss_train,
            download_rerequests=0 if model is None else model.rerequests,
            downlink_bps=self._kit.link.downlink_bps,
            steady=steady,
            pulled=None if pulled == self.train.model.id else pulled,
            had_model=model is None,
        )

    async def _hash(self, update: memoryview) -> None:
        self._sha256 = await anyio.to_thread.run_sync(lambda: hashlib.sha256(update).digest())
        self._say_done_if_ready()

    async def _wait_for_grant(self) -> Grant | None:
        """Wait for the grant; this time is the coordinator's.

        None means that the last word came instead.
        """
        timeouts = self._kit.timeouts
        with self.deadline.waiting(timeouts.queue_s):
            while self._grant is None and self._received is None:
                if not await self._bell.wait(timeouts.resend_s):
                    self.repeat()
        return self._grant

    def _say_done_if_ready(self) -> None:
        """Tell the hash as soon as it is known and every chunk has been sent."""
        push = self._push
        if self._done is None and self._sha256 is not None and push is not None and push.is_sent:
            self._done = UploadDone(
                round=self.train.round,
                id=push.upload.manifest.id,
                sha256=self._sha256,
                resent_chunks=push.upload.resent,
            )
            self._kit.post.say(self._done)
            self._progress(Event.SENT)

    async def _wait_for_last_word(self) -> UploadResult:
        while self._received is None:
            if not await self._bell.wait(self._kit.timeouts.resend_s):
                self.repeat()
        return self._received


class DeviceEvaluation:
    """Works on one `EvaluateRequest`: pulls the model, evaluates it, and has the answer.

    Args:
        ask: What the coordinator wants to know.
        arrived_s: When it came, on the kit's clock.
        kit: The agent's means.
    """

    def __init__(self, ask: EvaluateRequest, arrived_s: float, kit: RoundContext) -> None:
        self.ask = ask
        self._kit = kit
        self._watch = Stopwatch(kit.clock, arrived_s)
        self.deadline = Deadline(kit.clock, arrived_s + ask.limit_s, kit.timeouts.outage_s)

    async def run(self) -> EvaluateReply | None:
        """Return the answer; None when nobody wants it any more.

        Raises:
            RoundFailed: There is none, or it would come too late.
        """
        deadline = self.deadline
        answer: EvaluateReply | None = None
        try:
            with deadline.scope:
                answer = await self._work()
        except RoundFailed:
            if not deadline.is_over():
                raise
        if answer is None and not deadline.is_stopped:
            raise RoundFailed(f"no loss within {self.ask.limit_s:g} s")
        return None if deadline.is_stopped else answer

    def stop(self) -> None:
        """Give up at once; what the training thread still does is thrown away."""
        self.deadline.stop()

    async def _work(self) -> EvaluateReply:
        kit, ask = self._kit, self.ask
        pull = await kit.pulls.fetch(kit.worker.blob_for(ask))
        should_stop = self.deadline.is_over
        told = await kit.worker.answer(EvaluationJob(ask, pull.download, self._watch, should_stop))
        return self._answer(told, pull.download)

    def _answer(self, told: EvaluationResult, model: Download) -> EvaluateReply:
        watch, pulled = self._watch, model.manifest.id
        return EvaluateReply(
            round=self.ask.round,
            attempt=self.ask.attempt,
            loss=told.loss,
            n=told.n,
            was_cold=told.was_cold,
            download_s=watch["download"],
            decode_s=watch["decode"],
            load_s=watch["load"],
            evaluate_s=watch["evaluate"],
            pulled=None if pulled == self.ask.model.id else pulled,
        )
