"""One question: what is the loss of this model on this device? It is asked before a selection."""

from msgspec import UNSET

from device_agent.deadline import Deadline
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
        self.deadline = Deadline(kit.clock, arrived_s + ask.limit_s, kit.timeouts.outage_s)

    async def run(self) -> Answer | None:
        """Return the answer; None when nobody wants it any more.

        Raises:
            RoundFailed: There is none, or it would come too late.
        """
        deadline = self.deadline
        answer: Answer | None = None
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

    async def _work(self) -> Answer:
        kit, ask = self._kit, self.ask
        pull = await kit.pulls.fetch(kit.worker.blob_for(ask))
        should_stop = self.deadline.is_over
        told = await kit.worker.answer(Inquiry(ask, pull.download, self._watch, should_stop))
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
