"""One poll as a table: who is asked for a loss before a selection, and what became of it.

Pure: time is an argument. Nobody waits for ever: who has not answered at the limit is late, and
not available to the selection. The limit does not run while our own link is down.

    open ─ answer ─> answered
      └── late, failed, lost
"""

from dataclasses import dataclass, field
from enum import Enum

from fairbed.wire.messages import EvaluateReply, EvaluateRequest, Manifest


class QueryOutcome(str, Enum):
    """What became of one question."""

    OPEN = "open"
    ANSWERED = "answered"
    LATE = "late"
    FAILED = "failed"
    LOST = "lost"
    REFUSED = "refused"
    """Answered with what cannot be."""


@dataclass(slots=True)
class QueriedDevice:
    """One device that is asked; instants are on the coordinator's clock."""

    device: str
    since: float
    reply: QueryOutcome = QueryOutcome.OPEN
    why: str = ""
    answer: EvaluateReply | None = None
    answered: float | None = None

    @property
    def took_s(self) -> float | None:
        """From the question to the answer; None without one."""
        return None if self.answered is None else self.answered - self.since


@dataclass(slots=True)
class LossQuery:
    """The questions of one round."""

    round: int
    attempt: int
    limit_s: float
    """Seconds for an answer."""
    asked: dict[str, QueriedDevice] = field(default_factory=dict)
    _open: dict[str, QueriedDevice] = field(default_factory=dict)
    """Those who are expected to answer."""
    _ends: float = 0.0
    _held_since: float | None = None

    def ask(self, device: str, now: float) -> None:
        """Take note that a device is asked."""
        self.asked[device] = self._open[device] = QueriedDevice(device, now)
        self._ends = max(self._ends, now + self.limit_s)

    @property
    def is_over(self) -> bool:
        """Nobody is expected to answer any more."""
        return not self._open

    def open_devices(self) -> list[str]:
        """Return who is expected to answer."""
        return list(self._open)

    def is_open(self, device: str) -> bool:
        """Tell whether a device is expected to answer."""
        return device in self._open

    def wake_at(self) -> float | None:
        """Return when the limit passes; None while it does not run."""
        return None if self._held_since is not None else self._ends

    def answered(self, device: str, answer: EvaluateReply, fault: str | None, now: float) -> None:
        """Take an answer; one that was not asked for, or comes again, changes nothing.

        Args:
            device: Who says it.
            answer: What it says.
            fault: Why it cannot be; None if it can.
            now: When it came.
        """
        asked = self._open.pop(device, None)
        if asked is None:
            return
        if fault is not None:
            asked.reply, asked.why = QueryOutcome.REFUSED, fault
            return
        asked.reply, asked.answer, asked.answered = QueryOutcome.ANSWERED, answer, now

    def ended(self, device: str, reply: QueryOutcome, why: str) -> None:
        """Expect no answer of a device any more; who has answered stays answered."""
        asked = self._open.pop(device, None)
        if asked is not None:
            asked.reply, asked.why = reply, why

    def pass_limit(self, now: float) -> list[str]:
        """Return who is late, each once."""
        if self._held_since is not None or now < self._ends:
            return []
        late = self.open_devices()
        for device in late:
            self.ended(device, QueryOutcome.LATE, f"no answer within {self.limit_s:g} s")
        return late

    def hold(self, now: float) -> None:
        """Our own link is down: the limit waits until `go_on`."""
        if self._held_since is None:
            self._held_since = now

    def go_on(self, now: float) -> None:
        """Our link is back."""
        held_since, self._held_since = self._held_since, None
        if held_since is not None:
            self._ends += now - held_since


def pulled_in(answer: EvaluateReply, ask: EvaluateRequest) -> Manifest | None:
    """Return the blob that a device says it pulled; None if nobody announced it."""
    if answer.pulled is None or answer.pulled == ask.model.id:
        return ask.model
    packed = ask.coding.model
    return packed.manifest if packed and packed.manifest.id == answer.pulled else None


def fault_in(answer: EvaluateReply, ask: EvaluateRequest) -> str | None:
    """Return why an answer cannot be; None if it can."""
    if pulled_in(answer, ask) is None:
        return "answer: the model must have come in a blob that was announced"
    if answer.n < 1:
        return "answer: the loss must be of at least 1 example, got 0"
    return None
