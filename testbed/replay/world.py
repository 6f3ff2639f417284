"""What a replay asks of a world: who is there, what is known of them, and how long they take.

A world keeps columns, one row a device, not objects: N may be a million. Times are seconds on the
virtual clock; what happens within a round counts from its dispatch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.estimation.base import COLD, CONTEXT, DOWN, INVERSE_MU, UP
from fairbed.coordinator.state.registry import transfer_times

Upload: TypeAlias = Callable[[int, float], float]
"""Given a member of the cohort, 0 for the first, and how long after the dispatch it is granted,
returns how long its update is on the way; both in seconds, `inf` is for ever."""


@dataclass(frozen=True, slots=True)
class LastRound:
    """Who took part in the round before, each of shape (N,)."""

    is_selected: Bools
    has_trained: Bools
    """Completed local training, as far as the coordinator knows."""

    @classmethod
    def nobody(cls, n: int) -> "LastRound":
        """Return what there is before the first round."""
        return cls(np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_))

    @property
    def is_cold(self) -> Bools:
        """Who did not complete training: s = 1, shape (N,)."""
        cold: Bools = ~self.has_trained
        return cold


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A fleet at the instant of a selection; satisfies `coordinator.policy.decisions.Roster`.

    Every column has shape (N,). What is not marked as true is what the devices have told.
    """

    is_available: Bools
    """I_{t,n}."""
    inverse_mu: Floats
    """1 / free cores."""
    down_bps: Floats
    """NaN was never measured; `inf` takes no time."""
    up_bps: Floats
    link_age_s: Floats | None
    """None where rates are never old."""
    context_age_s: Floats | None
    """None is 0."""
    examples: Ints
    known_s: Floats
    """True expected exchange time from what holds at this instant, seconds."""
    last: LastRound

    def contexts(self, down_bits: float | Floats, up_bits: float | Floats, coding: str) -> Floats:
        """Return c = [1/mu, s, M_down/B_down, M_up/B_up] of each device, shape (N, 4)."""
        rates_bps = np.stack([self.down_bps, self.up_bps], axis=1)
        context = np.empty((len(self.is_available), CONTEXT))
        context[:, INVERSE_MU] = self.inverse_mu
        context[:, COLD] = self.last.is_selected if coding == "literal_seed" else self.last.is_cold
        context[:, [DOWN, UP]] = transfer_times(down_bits, up_bits, rates_bps)
        return context

    def available(self, now: float) -> Bools:
        """Return I_{t,n}, shape (N,)."""
        return self.is_available

    def n_k(self) -> Ints:
        """Return the training examples of each device, shape (N,)."""
        return self.examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """What the cohort of a round is going to do; every column has shape (K,), seconds.

    The phases are those of a live exchange, in their order (design.md, section 2).
    """

    signal_s: Floats
    """The ways of control messages, there and back."""
    download_s: Floats
    decode_s: Floats
    load_s: Floats
    evaluate_s: Floats
    train_s: Floats
    encode_s: Floats
    upload_s: Floats
    """Of an update that is granted as soon as it is offered."""
    upload: Upload | None
    """The same for any other moment; None: nobody sees when it begins, and it always takes that."""
    was_cold: Bools
    """Session and data have to be loaded."""
    bytes_down: Ints
    bytes_up: Ints
    chunk_bytes: Ints
    """What updates are cut into."""
    codec_down: tuple[str, ...]
    codec_up: str
    gone_s: Floats | None = None
    """When the coordinator gives each up because it is away; `inf` or None is never."""
    steps: Ints
    """Mini-batches."""

    @property
    def until_gone_s(self) -> Floats:
        """When the coordinator gives each up because it is away, shape (K,); `inf` is never."""
        return np.full(len(self.was_cold), np.inf) if self.gone_s is None else self.gone_s

    @property
    def ready_s(self) -> Floats:
        """When each offers its update, shape (K,)."""
        loaded_s = self.signal_s + self.download_s + self.decode_s + self.load_s
        ready_s: Floats = loaded_s + self.evaluate_s + self.train_s + self.encode_s
        return ready_s


def joined(parts: Sequence[Exchanges]) -> Exchanges:
    """Return what several cohorts do, one after the other, as of one; without `upload`."""
    if len(parts) == 1:
        return replace(parts[0], upload=None)
    columns: dict[str, Any] = {"codec_up": parts[0].codec_up, "upload": None, "gone_s": None}
    columns["codec_down"] = tuple(codec for part in parts for codec in part.codec_down)
    if any(part.gone_s is not None for part in parts):
        columns["gone_s"] = np.concatenate([part.until_gone_s for part in parts])
    for one in fields(Exchanges):
        if one.name not in columns:
            columns[one.name] = np.concatenate([getattr(part, one.name) for part in parts])
    return Exchanges(**columns)


class World(Protocol):
    """A fleet on the virtual clock.

    What chance brings depends on the round, not on who is chosen: policies that are compared share
    it.
    """

    slots: int | None
    """Updates that may be on their way at the same time; None lets everybody upload at once."""

    def __len__(self) -> int:
        """Return the number of devices, N."""
        ...

    @property
    def transfer_bits(self) -> tuple[float | Floats, float | Floats]:
        """What an exchange takes down and up now, bits, each (N,) or one for all."""
        ...

    def look(self, round_id: int, now: float, last: LastRound) -> Scene:
        """Return the fleet at the selection of a round, 1 for the first.

        Args:
            round_id: The round.
            now: Seconds on the virtual clock; never goes back.
            last: Who took part in the round before.
        """
        ...

    def exchange(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Return what the cohort does that is asked `now`, rows (K,); only of the last look."""
        ...

    def close(self, exchanges: Exchanges, rows: Ints, ended: "Ended") -> None:
        """Take note of how a round ended; void ones too."""
        ...

    def to_state(self) -> dict[str, Any]:
        """Return what a replay that goes on has to know, for the checkpoint."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the exchanges of a round ended; every column has shape (K,)."""

    outcome: tuple[str, ...]
    """done, late, lost, cancelled or failed."""
    end_s: float
    """Length of the round."""
    queued_s: Floats
    """Waiting for a grant, which is the coordinator's time."""
    upload_s: Floats
    """NaN where no update came on its way."""
    has_trained: Bools
    """The coordinator knows that local training was completed."""
    is_merged: Bools
    """The update enters the model."""

    @property
    def is_done(self) -> Bools:
        """The update arrived while it was waited for."""
        return np.array([word == "done" for word in self.outcome], dtype=np.bool_)

    def without(self, failed: Bools) -> "Ended":
        """Return the same for a cohort some of which had no update to send, `failed` (K,)."""
        if not failed.any():
            return self
        words = zip(self.outcome, failed.tolist(), strict=True)
        return replace(
            self,
            outcome=tuple("failed" if is_failed else word for word, is_failed in words),
            has_trained=self.has_trained & ~failed,
            is_merged=self.is_merged & ~failed,
        )
