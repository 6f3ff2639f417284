"""Scores of personal models, which devices report while or after their update is uploaded.

The coordinator waits for them after a round, beside its own evaluation: no measured time includes
them. A personal model changes only when its device trains, so each score is valid until then. A
device whose score was missing `MISSING_SCORES` times in a row is not waited for until it sends one.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import anyio

from fairbed.coordinator.records.rows import personal_row
from fairbed.coordinator.rounds.executor import Receiver
from fairbed.coordinator.store.event_log import EventLog
from fairbed.wire.evaluation import ONE_CLASS, Predicted, fault_in_measures, quality_in
from fairbed.wire.messages import EvaluateReply, PersonalScore, Train

if TYPE_CHECKING:
    from fairbed.coordinator.records.named_metrics import NamedMetrics

MISSING_SCORES = 3
"""Missing scores in a row after which no round waits for those of a device."""


class PersonalScores(Receiver):
    """Records the score of each personal model that a `Train` requests.

    Args:
        event_log: Receives the rows.
        task: What the model predicts.
        named: Makes the rows of metrics by name; None: there are none.
    """

    def __init__(
        self,
        event_log: EventLog,
        task: Predicted = ONE_CLASS,
        named: "NamedMetrics | None" = None,
    ) -> None:
        self._event_log, self._task, self._named = event_log, task, named
        self._expected: dict[str, tuple[int, int]] = {}
        """Round and attempt of the newest score that each device has not sent."""
        self._missing: Counter[str] = Counter()
        """Missing scores in a row."""
        self._waited_for: set[str] = set()
        """Devices that `wait` waits for."""
        self._changed = anyio.Event()

    def expect(self, trains: Mapping[str, Train]) -> None:
        """Note which devices are requested to score their personal model."""
        for device, train in trains.items():
            if train.wants_score:
                self._expected[device] = train.round, train.attempt

    def on_message(self, device: str, message: EvaluateReply | PersonalScore) -> None:
        """Record a score; one that was not requested, and a duplicate, change nothing."""
        if isinstance(message, PersonalScore):
            self._on_score(device, message)

    def _on_score(self, device: str, score: PersonalScore) -> None:
        if self._expected.get(device) != (score.round, score.attempt):
            return
        self._missing.pop(device, None)
        is_loss = score.loss >= 0.0 or self._task.has_signed_loss
        if score.n and is_loss and fault_in_measures(self._task, score) is None:
            quality = quality_in(self._task, score)
            row = personal_row(score.round, device, score.n, score.loss, quality)
            self._event_log.add(row)
            if self._named is not None:
                for each in self._named.of_personal(score.round, device, score.n, quality):
                    self._event_log.add(each)
        self._end(device)

    async def wait(self, devices: Collection[str], limit_s: float) -> None:
        """Wait for the scores of devices, at most `limit_s`; missing ones are one event."""
        late = {name for name, count in self._missing.items() if count >= MISSING_SCORES}
        waiting = (self._expected.keys() & devices) - late
        with anyio.move_on_after(limit_s):
            while waiting := waiting & self._expected.keys():
                self._waited_for = waiting
                await self._changed.wait()
        self._waited_for = set()
        if waiting:
            text = f"no personal score of {' '.join(sorted(waiting))} within {limit_s:g} s"
            self._event_log.event("not evaluated", text, level="warning")
        for device in sorted(waiting):
            self._miss(device)

    def waited_for(self) -> set[str]:
        """Return the devices that the run waits for now."""
        return self._waited_for

    def open_devices(self) -> list[str]:
        """Return the devices whose score is expected."""
        return list(self._expected)

    def mark_lost(self, device: str, reason: str) -> None:
        """Expect no score of a device that has been gone for too long."""
        if device in self._expected:
            self._miss(device)
        self._end(device)

    def _miss(self, device: str) -> None:
        self._missing[device] += 1
        if self._missing[device] == MISSING_SCORES:
            text = (
                f"its personal score was missing {MISSING_SCORES} times in a row, so no round "
                "waits for it until it sends one; see its log"
            )
            self._event_log.event("not evaluated", text, level="warning", device=device)

    def _end(self, device: str) -> None:
        self._expected.pop(device, None)
        self._changed.set()
        self._changed = anyio.Event()
