"""The work of one device: a round, from `Train` to `UploadResult`, or an evaluation.

`DeviceRound` handles a `Train`, `DeviceEvaluation` an `EvaluateRequest`. Both have a `Deadline`,
which is extended while the coordinator or the broker is offline.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from fairbed.device_agent.config import Timeouts
from fairbed.device_agent.errors import RoundFailed
from fairbed.device_agent.host import Clock, EnergyMeter
from fairbed.device_agent.jobs import (
    EvaluationJob,
    EvaluationResult,
    PersonalResult,
    Stopwatch,
    TrainedUpdate,
    TrainingJob,
)
from fairbed.device_agent.notify import Notify
from fairbed.device_agent.publisher import DevicePublisher
from fairbed.device_agent.state.lifecycle import Event
from fairbed.device_agent.state.link_estimate import LinkEstimate
from fairbed.device_agent.transfers import Pulls, Push
from fairbed.device_agent.worker import TrainingThread
from fairbed.wire.chunks import suitable_chunk_bytes
from fairbed.wire.messages import (
    DEVICE_PHASES,
    EvaluateReply,
    EvaluateRequest,
    Grant,
    Manifest,
    Offer,
    PersonalScore,
    PhaseEnergy,
    Phases,
    Train,
    UploadAck,
    UploadDone,
    UploadResult,
)
from fairbed.wire.transfer import Download, Upload

if TYPE_CHECKING:
    from fairbed.wire.evaluation import Quality

_log = logging.getLogger(__name__)


class Deadline:
    """Cancels the work in its `scope` at a deadline, or by `stop`.

    Args:
        clock: The agent's clock.
        at: The deadline on that clock.
        outage_s: Longest extension while coordinator or broker are offline.
    """

    def __init__(self, clock: Clock, at: float, outage_s: float) -> None:
        self.scope = anyio.CancelScope()
        self.is_stopped = False
        """`stop` was called."""
        self._clock = clock
        self._at = at
        self._outage_s = outage_s
        self._paused_since: float | None = None
        self._extended_s = 0.0
        """Extension by outages of coordinator and broker so far."""
        self._set(at)

    def stop(self) -> None:
        """Cancel the work at once; a result of the training thread is discarded."""
        self.is_stopped = True
        self.scope.cancel()

    def is_over(self) -> bool:
        """Return whether the work was stopped or is late; also called by the training thread."""
        return self.is_stopped or self._left_s() <= 0.0

    def pause(self) -> None:
        """Extend the deadline by `outage_s`; `resume` undoes the unused part."""
        if self._paused_since is None:
            self._paused_since = self._clock.now()
            self._extend(self._outage_s)

    def resume(self) -> None:
        """Undo the unused part of the extension."""
        paused_since, self._paused_since = self._paused_since, None
        if paused_since is not None:
            self._extend(min(self._clock.now() - paused_since - self._outage_s, 0.0))

    @contextmanager
    def waiting(self, limit_s: float) -> Iterator[None]:
        """Limit a wait for the coordinator to `limit_s`; it does not count for the deadline."""
        started_at, deadline_at = self._clock.now(), self._at
        self._set(started_at + limit_s)
        yield
        self._set(deadline_at + self._clock.now() - started_at)

    def _extend(self, more_s: float) -> None:
        self._extended_s += more_s
        self._set(self._at)

    def _set(self, at: float) -> None:
        self._at = at
        self.scope.deadline = anyio.current_time() + self._left_s()

    def _left_s(self) -> float:
        return self._at + self._extended_s - self._clock.now()


@dataclass(frozen=True, slots=True)
class RoundContext:
    """The parts of the agent that a round uses."""

    name: str
    clock: Clock
    publisher: DevicePublisher
    pulls: Pulls
    worker: TrainingThread
    link: LinkEstimate
    timeouts: Timeouts
    energy: EnergyMeter | None = None


class DeviceRound:
    """Executes one `Train`; the `on_` methods receive its messages.

    Args:
        train: The request of the coordinator.
        arrived_s: Time of its arrival, on the context's clock.
        context: Parts of the agent that a round uses.
        progress: Called with each event of the lifecycle, on the event loop.
        progress_from_thread: Called with several events at once, in the training thread.
    """

    def __init__(
        self,
        train: Train,
        arrived_s: float,
        context: RoundContext,
        progress: Callable[[Event], None],
        progress_from_thread: Callable[[Sequence[Event]], None],
    ) -> None:
        self.train = train
        self._context = context
        self._arrived_s = arrived_s
        self._watch = Stopwatch(context.clock, arrived_s, context.energy)
        self.deadline = Deadline(
            context.clock, arrived_s + train.deadline_s, context.timeouts.outage_s
        )
        self._progress = progress
        self._progress_from_thread = progress_from_thread
        self._wakeup = Notify()
        self._offer: Offer | None = None
        self._grant: Grant | None = None
        self._push: Push | None = None
        self._sha256: bytes | None = None
        self._done: UploadDone | None = None
        self._result: UploadResult | None = None

    async def run(self) -> None:
        """Work until the `UploadResult` arrives or `stop` is called.

        Raises:
            RoundFailed: The round cannot be finished, or took too long.
        """
        energy = self._context.energy
        if energy is not None:
            energy.begin(self._arrived_s)
        try:
            with self.deadline.scope:
                await self._work()
        except RoundFailed:
            if not self.deadline.is_over():
                raise
        finally:
            self._push = None  # breaks a reference cycle that would keep the update in memory
            if energy is not None:
                energy.end()
        if self.deadline.is_stopped or self._result is not None:
            return
        if self._offer is not None and self._grant is None:
            raise RoundFailed(f"no grant within {self._context.timeouts.queue_s:g} s")
        raise RoundFailed(f"the deadline of {self.train.deadline_s:g} s has passed")

    def stop(self) -> None:
        """Stop at once; a result of the training thread is discarded."""
        self.deadline.stop()

    def on_grant(self, grant: Grant) -> None:
        """Handle the grant; it is repeated after a restart of the coordinator."""
        if self._offer is None or grant.id != self._offer.manifest.id:
            return
        if self._push is not None:
            self._push.on_grant(grant.window)
        else:
            self._grant = grant
            self._wakeup.notify()

    def on_ack(self, ack: UploadAck) -> None:
        """Handle the coordinator's bitmap.

        Raises:
            DecodeError: The bitmap does not fit this update.
        """
        if self._push is not None and ack.id == self._push.upload.manifest.id:
            self._push.on_ack(ack.received)

    def on_upload_result(self, result: UploadResult) -> None:
        """Handle the result of the upload; it may arrive before the first chunk is sent."""
        if self._offer is not None and result.id == self._offer.manifest.id:
            self._result = result
            if self._push is not None:
                self._push.close()
            self._wakeup.notify()

    def on_link_up(self) -> None:
        """Send the chunks again that were in flight."""
        if self._push is not None:
            self._push.on_link_up()

    def repeat(self) -> None:
        """Send the last message again: the coordinator may have missed it."""
        if self._done is not None:
            self._context.publisher.publish(self._done)
        elif self._offer is not None and self._grant is None:
            self._context.publisher.publish(self._offer)

    async def _work(self) -> None:
        update = await self._train_and_offer()
        async with anyio.create_task_group() as group:
            group.start_soon(self._hash, update)
            if self.train.wants_score:
                group.start_soon(self._score_personal)
            grant = await self._wait_for_grant()
            if grant is not None:
                await self._upload(update, grant)
            result = await self._wait_for_result()
        self._progress(Event.UPLOAD_CONFIRMED)
        if not result.accepted:
            _log.warning(
                "%s round %d: not accepted: %s", self._context.name, self.train.round, result.reason
            )

    async def _upload(self, update: memoryview, grant: Grant) -> None:
        assert self._offer is not None, "granted without an offer"
        upload = Upload(self._offer.manifest, update, self._context.link.uplink_bps)
        push = Push(upload, self._context.publisher, self._context.clock, self._send_done_if_ready)
        self._push = push
        self._watch.lap("queue")
        self._progress(Event.GRANTED)
        await push.run(grant.window)
        if push.elapsed_s is not None:
            self._context.link.on_transfer(
                "up", len(update), push.elapsed_s, self._context.clock.now()
            )

    async def _train_and_offer(self) -> memoryview:
        context, train = self._context, self.train
        model: Download | None = None
        if not context.worker.has_model(train):
            model = (await context.pulls.fetch(context.worker.blob_for(train))).download
        trained = await context.worker.compute(
            TrainingJob(
                train, model, self._watch, self._progress_from_thread, self.deadline.is_over
            )
        )
        self._progress(Event.TRAINED)
        manifest = Manifest(
            id=os.urandom(16),
            kind="update",
            size_bytes=len(trained.update),
            raw_bytes=trained.raw_bytes,
            chunk_bytes=suitable_chunk_bytes(
                context.link.uplink_bps, len(trained.update), context.link.max_chunk_bytes
            ),
        )
        self._watch.lap("encode")
        self._offer = self._make_offer(trained, manifest, model)
        context.publisher.publish(self._offer)
        self._progress(Event.ENCODED)
        return trained.update

    def _make_offer(
        self, trained: TrainedUpdate, manifest: Manifest, model: Download | None
    ) -> Offer:
        watch = self._watch
        pulled = self.train.model.id if model is None else model.manifest.id
        steady = None if model is None else model.steady
        if model is not None and model.rerequests:
            watch.measured["rerequests_down"] = model.rerequests
        measured, watch.measured = watch.measured, {}
        return Offer(
            round=self.train.round,
            attempt=self.train.attempt,
            manifest=manifest,
            model=trained.model,
            phases=Phases(
                train_cpu_s=trained.train_cpu_s,
                energy=_energy(watch.joules),
                **{f"{phase}_s": watch[phase] for phase in DEVICE_PHASES},
            ),
            n_k=trained.n_k,
            positions=trained.positions,
            steps=trained.steps,
            was_cold=trained.was_cold,
            loss_before=trained.loss_before,
            loss_train=trained.loss_train,
            measured=measured,
            metrics=dict(trained.metrics),
            downlink_bps=self._context.link.downlink_bps,
            steady=steady,
            pulled=None if pulled == self.train.model.id else pulled,
            had_model=model is None,
        )

    async def _hash(self, update: memoryview) -> None:
        self._sha256 = await anyio.to_thread.run_sync(lambda: hashlib.sha256(update).digest())
        self._send_done_if_ready()

    async def _score_personal(self) -> None:
        """Send the score of the personal model, while the update is uploaded."""
        context, train = self._context, self.train
        try:
            scored = await context.worker.score(self.deadline.is_over)
        except RoundFailed as exc:
            _log.warning("%s round %d: no personal score: %s", context.name, train.round, exc)
            scored = PersonalResult(n=0, loss=0.0, quality=None)
        context.publisher.publish(
            PersonalScore(
                round=train.round,
                attempt=train.attempt,
                n=scored.n,
                loss=scored.loss,
                **_measured(scored.quality),
            )
        )

    async def _wait_for_grant(self) -> Grant | None:
        """Wait for the grant; this time does not count for the deadline.

        None means that the result arrived instead.
        """
        timeouts = self._context.timeouts
        with self.deadline.waiting(timeouts.queue_s):
            while self._grant is None and self._result is None:
                if not await self._wakeup.wait(timeouts.resend_s):
                    self.repeat()
        return self._grant

    def _send_done_if_ready(self) -> None:
        """Send `UploadDone` as soon as the hash is known and every chunk has been sent."""
        push = self._push
        if self._done is None and self._sha256 is not None and push is not None and push.is_sent:
            assert self._offer is not None, "sent without an offer"
            self._watch.lap("upload")
            measured = self._watch.measured
            if push.upload.resent:
                measured["resent_up"] = push.upload.resent
            if (upload_j := self._watch.joules.get("upload")) is not None:
                measured["upload_j"] = upload_j
                if (ends := self._watch.range_j((*DEVICE_PHASES, "upload"))) is not None:
                    measured["energy_low_j"], measured["energy_high_j"] = ends
            self._done = UploadDone(
                round=self.train.round,
                id=push.upload.manifest.id,
                sha256=self._sha256,
                model=self._offer.model,
                measured=measured,
            )
            self._context.publisher.publish(self._done)
            self._progress(Event.SENT)

    async def _wait_for_result(self) -> UploadResult:
        while self._result is None:
            if not await self._wakeup.wait(self._context.timeouts.resend_s):
                self.repeat()
        return self._result


def _measured(quality: "Quality | None") -> dict[str, Any]:
    """Return what was measured beside the loss, as fields of a message."""
    found = {} if quality is None else asdict(quality)
    return {name: value for name, value in found.items() if value is not None}


def _energy(joules: Mapping[str, float | None]) -> PhaseEnergy | None:
    """Return the energy of the phases before the upload; None if a part of it is unknown."""
    known = {
        f"{phase}_j": value for phase in DEVICE_PHASES if (value := joules.get(phase)) is not None
    }
    return PhaseEnergy(**known) if len(known) == len(DEVICE_PHASES) else None


class DeviceEvaluation:
    """Executes one `EvaluateRequest`: downloads the model, evaluates it, and returns the reply.

    Args:
        request: The request of the coordinator.
        arrived_s: Time of its arrival, on the context's clock.
        context: Parts of the agent that a round uses.
    """

    def __init__(self, request: EvaluateRequest, arrived_s: float, context: RoundContext) -> None:
        self.request = request
        self._context = context
        self._watch = Stopwatch(context.clock, arrived_s)
        self.deadline = Deadline(
            context.clock, arrived_s + request.limit_s, context.timeouts.outage_s
        )

    async def run(self) -> EvaluateReply | None:
        """Return the reply; None after `stop`.

        Raises:
            RoundFailed: The loss cannot be computed, or not within the limit.
        """
        deadline = self.deadline
        reply: EvaluateReply | None = None
        try:
            with deadline.scope:
                reply = await self._work()
        except RoundFailed:
            if not deadline.is_over():
                raise
        if reply is None and not deadline.is_stopped:
            raise RoundFailed(f"no result within {self.request.limit_s:g} s")
        return None if deadline.is_stopped else reply

    def stop(self) -> None:
        """Stop at once; a result of the training thread is discarded."""
        self.deadline.stop()

    async def _work(self) -> EvaluateReply:
        context, request = self._context, self.request
        blob = context.worker.blob_for(request)
        # Many devices are tested at once: the rate of that moment is not the rate of a round.
        pull = await context.pulls.fetch(blob, measures_link=request.split == "train")
        should_stop = self.deadline.is_over
        result = await context.worker.evaluate(
            EvaluationJob(request, pull.download, self._watch, should_stop)
        )
        return self._make_reply(result, pull.download)

    def _make_reply(self, result: EvaluationResult, model: Download) -> EvaluateReply:
        watch, pulled = self._watch, model.manifest.id
        return EvaluateReply(
            round=self.request.round,
            attempt=self.request.attempt,
            model=result.model,
            loss=result.loss,
            n=result.n,
            **_measured(result.quality),
            metrics=dict(result.metrics),
            records=result.records,
            was_cold=result.was_cold,
            download_s=watch["download"],
            decode_s=watch["decode"],
            load_s=watch["load"],
            evaluate_s=watch["evaluate"],
            pulled=None if pulled == self.request.model.id else pulled,
        )
