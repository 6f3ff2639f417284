"""The world of the RBCS-F paper: exchange times are linear in the context, up to noise.

    tau_{t,n} = c_{t,n} . theta_n (1 + e),   c = [1/mu, s, M/B],   e uniform in +- noise

with mu, B and availability drawn for every device in every round. The draws depend on the round and
the seed, not on the selection, so that policies that are compared share them.

A loss query before a selection takes a cold start, if the device is cold, and a part of training:
a forward pass over the data is one third of a training pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.records.rows import PHASE_COLUMNS
from fairbed.testbed.replay.world.world import Exchanges, FleetSnapshot, LastRound, ReplayedExchange


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLaw:
    """Distributions of availability, speed and rate in one group of devices."""

    theta: tuple[float, float, float]
    """Seconds of training on one core, seconds of a cold start, and seconds of transfer per
    nominal second (1 / spectral efficiency)."""
    mu: tuple[float, float]
    """Free cores, uniform between these."""
    bandwidth_bps: tuple[float, float]
    """Uniform between these, bit/s."""
    availability: float
    """Probability of being available, in each round."""
    noise: float
    """Largest relative deviation of a time from its expected value, uniform."""


@dataclass(frozen=True, slots=True)
class RoundDraws:
    """Random numbers of one round, for every device."""

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
        laws: One per device, in the order of rows; the devices of a group share one object.
        update_bits: Size M of an update, bits.
        seed: Seed of all random numbers.
        examples: n_k of each device, shape (N,); None is one each, where nothing is trained.
        query_ratio: Duration of a loss query relative to that of training.
        cold_start_coding: Devices with a cold start; see `LastRound.cold_start`.
    """

    slots: int | None = None
    """The paper has no limit of concurrent uploads."""

    def __init__(
        self,
        laws: Sequence[LinearLaw],
        update_bits: float,
        seed: int,
        examples: Ints | None = None,
        query_ratio: Floats | float = 0.0,
        cold_start_coding: str = "not_previous",
    ) -> None:
        self._coding = cold_start_coding
        self.update_bits, self._seed = update_bits, seed
        self._examples = np.ones(len(laws), dtype=np.int64) if examples is None else examples
        runs = [(next(run), 1 + sum(1 for _ in run)) for _, run in groupby(laws, key=id)]
        groups, counts = [law for law, _ in runs], [count for _, count in runs]

        def column(of_groups: list[Any], width: int) -> Floats:
            each = np.array(of_groups, dtype=np.float64).reshape(len(groups), width)
            return np.repeat(each, counts, axis=0)

        self._theta = column([law.theta for law in groups], 3)
        self._mu = column([law.mu for law in groups], 2)
        self._bps = column([law.bandwidth_bps for law in groups], 2)
        self._availability = column([law.availability for law in groups], 1)[:, 0]
        self._noise = column([law.noise for law in groups], 1)[:, 0]
        self._latest: tuple[int, RoundDraws] | None = None
        """The latest round and its draws; within a round only the cold starts change."""
        self._expected_s: Floats = np.zeros((0, 3))
        self._deviation: Floats = np.zeros(0)
        self._is_cold: Bools = np.zeros(0, dtype=np.bool_)
        self._query_ratio: Floats = np.broadcast_to(query_ratio, len(laws)).astype(np.float64)
        self._has_model: Bools = np.zeros(len(laws), dtype=np.bool_)
        """Devices that replied to the loss query of this round, and so are warm."""

    def __len__(self) -> int:
        """Return the number of devices, N."""
        return len(self._theta)

    def draws(self, round_id: int) -> RoundDraws:
        """Draw the random numbers of a round, 1 for the first."""
        rng = np.random.default_rng(np.random.SeedSequence([self._seed, round_id]))
        available, mu, bps, noise = rng.random((4, len(self)))
        return RoundDraws(
            is_available=available < self._availability,
            inverse_mu=1.0 / _between(self._mu, mu),
            bandwidth_bps=_between(self._bps, bps),
            deviation=1.0 + self._noise * (2.0 * noise - 1.0),
        )

    def _draws_of(self, round_id: int) -> RoundDraws:
        """Return the random numbers of a round, drawn once."""
        if self._latest is None or self._latest[0] != round_id:
            self._latest = round_id, self.draws(round_id)
        return self._latest[1]

    def parts_s(self, draws: RoundDraws, is_cold: Bools) -> Floats:
        """Return the expected parts of an exchange, seconds, shape (N, 3).

        The parts are training, cold start and transfer; their sum is c . theta.
        """
        transfer_s = self.update_bits / draws.bandwidth_bps
        context = np.stack([draws.inverse_mu, is_cold, transfer_s], axis=1)
        parts_s: Floats = context * self._theta
        return parts_s

    @property
    def transfer_bits(self) -> tuple[float | Floats, float | Floats]:
        """Bits down and up: 0, and the size of the update."""
        return 0.0, self.update_bits

    def observe(self, round_id: int, now: float, last: LastRound) -> FleetSnapshot:
        """Return the fleet at the selection of a round."""
        draws = self._draws_of(round_id)
        is_cold = last.cold_start(self._coding) & ~self._has_model
        self._expected_s = self.parts_s(draws, is_cold)
        self._deviation, self._is_cold = draws.deviation, is_cold
        return FleetSnapshot(
            is_available=draws.is_available,
            inverse_mu=draws.inverse_mu,
            training_cores=np.full(len(self), np.inf),
            down_bps=np.full(len(self), np.inf),
            up_bps=draws.bandwidth_bps,
            link_age_s=None,
            context_age_s=None,
            examples=self._examples,
            true_tau_s=self._expected_s.sum(axis=1),
            last=last,
        )

    def available_from_s(self, round_id: int, now: float) -> float:
        """Return `now`, or `inf` if no device is ever available."""
        return now if (self._availability > 0.0).any() else np.inf

    def exchange(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Return the exchanges of a cohort: training, cold start and transfer, with noise."""
        train_s, load_s, upload_s = (self._expected_s[rows] * self._deviation[rows, None]).T
        return self._exchanges(now, rows, upload_s, load_s=load_s, train_s=train_s)

    def loss_query(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Return the loss queries of devices, rows (K,)."""
        train_s, load_s, _ = (self._expected_s[rows] * self._deviation[rows, None]).T
        evaluate_s = train_s * self._query_ratio[rows]
        zero_s = np.zeros(len(rows))
        return self._exchanges(now, rows, zero_s, load_s=load_s, evaluate_s=evaluate_s)

    def on_replies(
        self, now: float, queries: Exchanges, rows: Ints, over_s: Floats, has_replied: Bools
    ) -> None:
        """Count the devices that replied as warm."""
        self._has_model[rows] = has_replied

    def _exchanges(
        self,
        now: float,
        rows: Ints,
        upload_s: Floats,
        **phases_s: Floats,
    ) -> Exchanges:
        """Return exchanges with these phases and no others, columns of shape (K,)."""
        zero_s, zero = np.zeros(len(rows)), np.zeros(len(rows), dtype=np.int64)
        return Exchanges(
            started_s=now,
            signal_s=zero_s,
            **{name: phases_s.get(name, zero_s) for name in PHASE_COLUMNS},  # type: ignore[arg-type]
            upload_s=upload_s,
            is_upload_seen=False,
            was_cold=self._is_cold[rows],
            bytes_down=zero,
            bytes_up=zero,
            chunk_bytes=zero,
            codec_down=("float32",) * len(rows),
            codec_up="float32",
            steps=zero,
            in_cell=None,
        )

    def upload_s(self, exchange: ReplayedExchange, granted_s: float) -> float:
        """Return the duration of an upload, which does not depend on the grant."""
        return exchange.upload_s

    def on_pulled(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Do nothing: rates are given, not measured."""

    def on_over(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Do nothing: an exchange leaves no state in a device."""

    def on_version(self, rows: Ints, versions: Ints, version: int) -> None:
        """Forget the loss queries of the round before."""
        self._has_model[:] = False

    def to_state(self) -> dict[str, Any]:
        """Return an empty state: a round depends on its number only."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Do nothing: there is no state."""


def _between(limits: Floats, share: Floats) -> Floats:
    low, high = limits.T
    between: Floats = low + (high - low) * share
    return between
