"""One question: what is the loss of this model on this device? It is asked before a selection."""

import anyio
from msgspec import UNSET

from device_agent.errors import RoundFailed
from device_agent.job import Inquiry, Told
from device_agent.round import Kit
from device_agent.stopwatch import Stopwatch
from wire.messages import Answer, Ask
from wire.transfer import Download


class Question:
    """Works on one `Ask`: pulls the model, evaluates it, and has the answer.

    Args:
        ask: What the coordinator wants to know.
        arrived_s: When it came, on the kit's clock.
        kit: The agent's means.
    """

    def __init__(self, ask: Ask, arrived_s: float, kit: Kit) -> None:
        self.ask = ask
        self._kit = kit
        self._watch = Stopwatch(kit.clock, arrived_s)
        self._scope = anyio.CancelScope()
        self._deadline_at = arrived_s + ask.limit_s
        self._held_since: float | None = None
        self._is_stopped = False

    async def run(self) -> Answer | None:
        """Return the answer; None when nobody wants it any more.

        Raises:
            RoundFailed: There is none, or it would come too late.
        """
        self._wake_at_deadline()
        answer: Answer | None = None
        try:
            with self._scope:
                answer = await self._work()
        except RoundFailed:
            if not (self._is_stopped or self._is_late()):
                raise
        if answer is None and not self._is_stopped:
            raise RoundFailed(f"no loss within {self.ask.limit_s:g} s")
        return None if self._is_stopped else answer

    def stop(self) -> None:
        """Give up at once; what the training thread still does is thrown away."""
        self._is_stopped = True
        self._scope.cancel()

    def hold(self) -> None:
        """Nobody is there to hear us: `outage_s` more, of which `go_on` takes back the rest."""
        if self._held_since is None:
            self._held_since = self._kit.clock.now()
            self._put_off(self._kit.timeouts.outage_s)

    def go_on(self) -> None:
        """The coordinator is on again."""
        held_since, self._held_since = self._held_since, None
        if held_since is not None:
            held_s = self._kit.clock.now() - held_since
            self._put_off(min(held_s - self._kit.timeouts.outage_s, 0.0))

    def _put_off(self, delay_s: float) -> None:
        self._deadline_at += delay_s
        self._wake_at_deadline()

    def _wake_at_deadline(self) -> None:
        self._scope.deadline = anyio.current_time() + self._deadline_at - self._kit.clock.now()

    def _is_late(self) -> bool:
        return self._kit.clock.now() >= self._deadline_at

    def _should_stop(self) -> bool:
        return self._is_stopped or self._is_late()

    async def _work(self) -> Answer:
        kit, ask = self._kit, self.ask
        pull = await kit.pulls.fetch(kit.worker.blob_for(ask))
        told = await kit.worker.answer(Inquiry(ask, pull.download, self._watch, self._should_stop))
        return self._answer(told, pull.download)

    def _answer(self, told: Told, model: Download) -> Answer:
        watch, pulled = self._watch, model.manifest.id
        return Answer(
            round=self.ask.round,
            attempt=self.ask.attempt,
            loss=told.loss,
            n=told.n,
            was_cold=told.was_cold,
            download_s=watch["download"],
            decode_s=watch["decode"],
            load_s=watch["load"],
            evaluate_s=watch["evaluate"],
            pulled=UNSET if pulled == self.ask.model.id else pulled,
        )
