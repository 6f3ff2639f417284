"""The world of the RBCS-F paper: exchange times are linear in what is known, but for noise.

    tau_{t,n} = c_{t,n} . theta_n (1 + e),   c = [1/mu, s, M/B],   e uniform in +- noise

with mu, B and availability drawn anew for every device in every round. A round of the world depends
on its number and the seed alone, not on who was selected: policies that are compared share it.

A question before a selection takes a cold start, if the device is cold, and a part of training:
a pass forward over the data is one third of a pass that learns from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.records.rows import PHASE_COLUMNS
from fairbed.testbed.replay.world.world import Exchanges, LastRound, ReplayedExchange, Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLaw:
    """How devices of one group come and go, and how fast they are."""

    theta: tuple[float, float, float]
    """Seconds of training on one core, seconds of a cold start, and seconds of transfer per
    nominal second (1 / spectral efficiency)."""
    mu: tuple[float, float]
    """Free cores, uniform between these."""
    bandwidth_bps: tuple[float, float]
    """Uniform between these, bit/s."""
    availability: float
    """Probability of being there, in each round."""
    noise: float
    """A time deviates by up to this share of itself, uniformly."""


@dataclass(frozen=True, slots=True)
class RoundDraws:
    """What chance decides in one round, for every device."""

    is_available: Bools
    """Shape (N,)."""
    inverse_mu: Floats
    """Per core, shape (N,)."""
    bandwidth_bps: Floats
    """Shape (N,)."""
    deviation: Floats
    """1 + e, shape (N,)."""


class LinearWorld:
    """All devices of a linear world; `testbed.replay.world.world.World`.

    Args:
        laws: One a device, in the order of rows; a group's devices share theirs.
        update_bits: Size M of an update, bits.
        seed: Of all chance.
        examples: n_k of each device, shape (N,); None is one each, where nothing is trained.
        answer_ratio: What finding the loss that a selection asks for takes, of training.
    """

    slots: int | None = None
    """The paper knows no queue."""

    def __init__(
        self,
        laws: Sequence[LinearLaw],
        update_bits: float,
        seed: int,
        examples: Ints | None = None,
        answer_ratio: Floats | float = 0.0,
    ) -> None:
        self.update_bits, self._seed = update_bits, seed
        self._examples = np.ones(len(laws), dtype=np.int64) if examples is None else examples
        runs = [(next(run), 1 + sum(1 for _ in run)) for _, run in groupby(laws, key=id)]
        kinds, counts = [law for law, _ in runs], [count for _, count in runs]

        def column(of_kinds: list[Any], width: int) -> Floats:
            each = np.array(of_kinds, dtype=np.float64).reshape(len(kinds), width)
            return np.repeat(each, counts, axis=0)

        self._theta = column([law.theta for law in kinds], 3)
        self._mu = column([law.mu for law in kinds], 2)
        self._bps = column([law.bandwidth_bps for law in kinds], 2)
        self._availability = column([law.availability for law in kinds], 1)[:, 0]
        self._noise = column([law.noise for law in kinds], 1)[:, 0]
        self._latest: tuple[int, RoundDraws] | None = None
        """Of the last look, with its round: within one nothing changes but who is warm."""
        self._expected_s: Floats = np.zeros((0, 3))
        self._deviation: Floats = np.zeros(0)
        self._is_cold: Bools = np.zeros(0, dtype=np.bool_)
        self._answer_ratio: Floats = np.broadcast_to(answer_ratio, len(laws)).astype(np.float64)
        self._has_model: Bools = np.zeros(len(laws), dtype=np.bool_)
        """Who has answered the question of this round, and so is not cold any more."""

    def __len__(self) -> int:
        """Return the number of devices, N."""
        return len(self._theta)

    def weather(self, round_id: int) -> RoundDraws:
        """Return what chance decides in a round, 1 for the first."""
        rng = np.random.default_rng(np.random.SeedSequence([self._seed, round_id]))
        there, mu, bps, noise = rng.random((4, len(self)))
        return RoundDraws(
            is_available=there < self._availability,
            inverse_mu=1.0 / _between(self._mu, mu),
            bandwidth_bps=_between(self._bps, bps),
            deviation=1.0 + self._noise * (2.0 * noise - 1.0),
        )

    def _weather_of(self, round_id: int) -> RoundDraws:
        """Return the weather of a round, drawn once however often it is looked at."""
        if self._latest is None or self._latest[0] != round_id:
            self._latest = round_id, self.weather(round_id)
        return self._latest[1]

    def parts_s(self, weather: RoundDraws, is_cold: Bools) -> Floats:
        """Return what an exchange is expected to consist of, seconds, shape (N, 3).

        Training, cold start and transfer: their sum is c . theta.
        """
        transfer_s = self.update_bits / weather.bandwidth_bps
        context = np.stack([weather.inverse_mu, is_cold, transfer_s], axis=1)
        parts_s: Floats = context * self._theta
        return parts_s

    @property
    def transfer_bits(self) -> tuple[float | Floats, float | Floats]:
        """Nothing down, the update up."""
        return 0.0, self.update_bits

    def look(self, round_id: int, now: float, last: LastRound) -> Scene:
        """Return the fleet at the selection of a round."""
        weather, is_cold = self._weather_of(round_id), last.is_cold & ~self._has_model
        self._expected_s = self.parts_s(weather, is_cold)
        self._deviation, self._is_cold = weather.deviation, is_cold
        return Scene(
            is_available=weather.is_available,
            inverse_mu=weather.inverse_mu,
            down_bps=np.full(len(self), np.inf),
            up_bps=weather.bandwidth_bps,
            link_age_s=None,
            context_age_s=None,
            examples=self._examples,
            known_s=self._expected_s.sum(axis=1),
            last=last,
        )

    def exchange(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Return the times of a cohort: training, cold start and transfer, as chance has them."""
        train_s, load_s, upload_s = (self._expected_s[rows] * self._deviation[rows, None]).T
        return self._exchanges(now, rows, upload_s, load_s=load_s, train_s=train_s)

    def question(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Return what devices do that are asked for the loss of the model, rows (K,)."""
        train_s, load_s, _ = (self._expected_s[rows] * self._deviation[rows, None]).T
        evaluate_s = train_s * self._answer_ratio[rows]
        zero_s = np.zeros(len(rows))
        return self._exchanges(now, rows, zero_s, load_s=load_s, evaluate_s=evaluate_s)

    def on_answers(
        self, now: float, asked: Exchanges, rows: Ints, over_s: Floats, answered: Bools
    ) -> None:
        """Remember who is warm."""
        self._has_model[rows] = answered

    def _exchanges(
        self,
        now: float,
        rows: Ints,
        upload_s: Floats,
        **phases_s: Floats,
    ) -> Exchanges:
        """Return exchanges of these phases; there are no others, columns of shape (K,)."""
        zero_s, zero = np.zeros(len(rows)), np.zeros(len(rows), dtype=np.int64)
        return Exchanges(
            started_s=now,
            signal_s=zero_s,
            **{name: phases_s.get(name, zero_s) for name in PHASE_COLUMNS},
            upload_s=upload_s,
            is_upload_seen=False,
            was_cold=self._is_cold[rows],
            bytes_down=zero,
            bytes_up=zero,
            chunk_bytes=zero,
            codec_down=("float32",) * len(rows),
            codec_up="float32",
            steps=zero,
        )

    def upload_s(self, exchange: ReplayedExchange, granted_s: float) -> float:
        """Return the duration of an upload, whenever it is granted."""
        return exchange.upload_s

    def on_pulled(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Learn nothing: rates are given, not measured."""

    def on_over(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Learn nothing: an exchange leaves no state in a device."""

    def on_version(self, rows: Ints, versions: Ints, version: int) -> None:
        """Every version travels alike; the answers of the round before are old."""
        self._has_model[:] = False

    def to_state(self) -> dict[str, Any]:
        """Return nothing: a round follows from its number."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over nothing."""


def _between(limits: Floats, share: Floats) -> Floats:
    low, high = limits.T
    between: Floats = low + (high - low) * share
    return between
