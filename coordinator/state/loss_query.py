"""The table of one evaluation by devices, a loss query or a test: their names and the outcomes.

Pure: time is an argument. A loss query precedes a selection, which treats a device that has not
replied within the limit as not available. A test follows a round (`rounds.own_data`). The limit is
suspended while the coordinator has no link.

    open ─ reply ─> answered, or refused if the reply breaks a rule
      └── late, failed, lost
"""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.wire.evaluation import ONE_CLASS, Predicted, fault_in_measures
from fairbed.wire.messages import EvaluateReply, EvaluateRequest, Manifest


class QueryOutcome(str, Enum):
    """Outcome of the query to one device."""

    OPEN = "open"
    ANSWERED = "answered"
    LATE = "late"
    FAILED = "failed"
    LOST = "lost"
    REFUSED = "refused"
    """The reply breaks a rule."""


@dataclass(slots=True)
class DeviceQuery:
    """The query to one device; instants are on the coordinator's clock."""

    device: str
    sent: float
    outcome: QueryOutcome = QueryOutcome.OPEN
    reason: str = ""
    reply: EvaluateReply | None = None
    replied: float | None = None

    @property
    def took_s(self) -> float | None:
        """Time from the request to the reply; None without a reply."""
        return None if self.replied is None else self.replied - self.sent


@dataclass(slots=True)
class LossQuery:
    """The queries of one round, before it or after it."""

    round: int
    attempt: int
    limit_s: float
    """Time for a reply."""
    devices: dict[str, DeviceQuery] = field(default_factory=dict)
    """By name, in the order of the requests."""
    _open: dict[str, DeviceQuery] = field(default_factory=dict)
    """The queries without an outcome yet."""
    _ends: float = 0.0
    _link_down_since: float | None = None

    def add(self, device: str, now: float) -> None:
        """Open the query to a device."""
        self.devices[device] = self._open[device] = DeviceQuery(device, now)
        self._ends = max(self._ends, now + self.limit_s)

    @property
    def is_over(self) -> bool:
        """No reply is expected any more."""
        return not self._open

    def open_devices(self) -> list[str]:
        """Return the devices whose reply is expected."""
        return list(self._open)

    def answered(self) -> set[str]:
        """Return the devices with a valid reply."""
        return {x.device for x in self.devices.values() if x.outcome is QueryOutcome.ANSWERED}

    def losses(self) -> Floats:
        """Return the losses in the order of the requests, nats, shape (K,); NaN without a reply."""
        replies = (x.reply for x in self.devices.values())
        return np.array([np.nan if one is None else one.loss for one in replies], dtype=np.float64)

    def is_open(self, device: str) -> bool:
        """Return whether a reply of a device is expected."""
        return device in self._open

    def wake_at(self) -> float | None:
        """Return when the limit passes; None while it is suspended."""
        return None if self._link_down_since is not None else self._ends

    def on_reply(self, device: str, reply: EvaluateReply, fault: str | None, now: float) -> None:
        """Record a reply; an unrequested reply and a duplicate change nothing.

        Args:
            device: The sender.
            reply: Its message.
            fault: The rule that it breaks; None if it is valid.
            now: When it arrived.
        """
        query = self._open.pop(device, None)
        if query is None:
            return
        if fault is not None:
            query.outcome, query.reason = QueryOutcome.REFUSED, fault
            return
        query.outcome, query.reply, query.replied = QueryOutcome.ANSWERED, reply, now

    def end(self, device: str, outcome: QueryOutcome, reason: str) -> None:
        """End the query to a device; an outcome that it already has is kept."""
        query = self._open.pop(device, None)
        if query is not None:
            query.outcome, query.reason = outcome, reason

    def pass_limit(self, now: float) -> list[str]:
        """Mark the open queries late if the limit has passed; return their devices."""
        if self._link_down_since is not None or now < self._ends:
            return []
        late = self.open_devices()
        for device in late:
            self.end(device, QueryOutcome.LATE, f"no answer within {self.limit_s:g} s")
        return late

    def on_link_down(self, now: float) -> None:
        """The coordinator lost its link: suspend the limit until `on_link_up`."""
        if self._link_down_since is None:
            self._link_down_since = now

    def on_link_up(self, now: float) -> None:
        """The link is restored: extend the limit by the time without it."""
        down_since, self._link_down_since = self._link_down_since, None
        if down_since is not None:
            self._ends += now - down_since


def pulled_manifest(reply: EvaluateReply, request: EvaluateRequest) -> Manifest | None:
    """Return the blob that a device reports as pulled; None if it was never announced."""
    if reply.pulled is None or reply.pulled == request.model.id:
        return request.model
    packed = request.coding.model
    return packed.manifest if packed and packed.manifest.id == reply.pulled else None


def fault_in_reply(
    reply: EvaluateReply, request: EvaluateRequest, task: Predicted = ONE_CLASS
) -> str | None:
    """Return the rule that a reply breaks; None if it is valid.

    Args:
        reply: What the device sent.
        request: What it replies to.
        task: What the model predicts.
    """
    if reply.model != request.model.sha256:
        return "answer: must be of the model version that was requested, got another one"
    if reply.loss < 0.0 and not task.has_signed_loss:
        return f"answer: the loss must be at least 0, got {reply.loss:g}"
    if pulled_manifest(reply, request) is None:
        return "answer: the model must have come in a blob that was announced"
    if request.split == "test":
        problem = fault_in_measures(task, reply)
        return None if problem is None else f"answer: {problem}"
    if reply.n < 1:
        return "answer: the loss must be of at least 1 example, got 0"
    return None
