"""A fleet of profiles on the virtual clock: what an emulated fleet would do, without doing it.

What devices say of themselves is what an agent would have measured: free cores and clock of its
last context, rates of its own transfers and probes. How long they really take is in `phases`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.random_streams import uniforms
from fairbed.coordinator.rounds.async_dispatch import DRAINING
from fairbed.coordinator.state.registry import CONTEXT_MAX_AGE_S, LINK_BOUNDS_BPS, MU_BOUNDS
from fairbed.device_agent.sensors import MIN_FREE_CORES
from fairbed.testbed.emulation.device import NOTICED_SHARE
from fairbed.testbed.emulation.heat import Heat
from fairbed.testbed.emulation.schedule import LEAST_FREE_CORES
from fairbed.testbed.emulation.tcp import waiting_s
from fairbed.testbed.replay.world.columns import Moving, Steady, Tracks
from fairbed.testbed.replay.world.integrals import Direction, LinkIntegral
from fairbed.testbed.replay.world.measured_rates import MeasuredRates, Probes
from fairbed.testbed.replay.world.phases import (
    MESSAGES,
    CohortWork,
    PhaseModel,
    Purpose,
    luck,
)
from fairbed.testbed.replay.world.work import Sizes, Work
from fairbed.testbed.replay.world.world import Exchanges, LastRound, ReplayedExchange, Scene

CONTEXT_PERIOD_S = 1.0
"""Every device tells of itself once a second (design.md, section 2), each at its own moment."""

PATIENCE = 2.0
"""What takes so many deadlines takes for ever."""

PAUSE_S = 0.02
"""A live coordinator takes about so long from the end of a round to the next selection: a device
that is idle by then can be selected (`pause_s` of a run of examples/quickstart.toml)."""


class ProfileWorld:
    """All devices of a fleet of profiles; `testbed.replay.world.world.World`.

    Args:
        steady: What never moves.
        moving: What does.
        sizes: Of models and updates on the wire.
        work: Of a round, device by device.
        seed: Of all chance.
        noise: Every phase takes exp(noise z) times as long, z standard normal.
        deadline_s: Of an exchange: what takes much longer is not played to its end.
        limit_s: Of a question, likewise.
    """

    def __init__(
        self,
        steady: Steady,
        moving: Moving,
        sizes: Sizes,
        work: Work,
        *,
        seed: int,
        noise: float,
        deadline_s: float,
        limit_s: float = 0.0,
    ) -> None:
        self.slots: int | None = sizes.slots
        self._steady, self._sizes, self._work = steady, sizes, work
        self._seed, self._noise = seed, noise
        self._phases = PhaseModel(steady, moving, sizes, work, PATIENCE * deadline_s)
        asked = replace(work, train_s=np.zeros(len(steady)), evaluate_s=work.answer_s, encode_s=0.0)
        self._questions = PhaseModel(steady, moving, sizes, asked, PATIENCE * limit_s)
        self._tracks = Tracks(steady, moving)
        self._draining = Draining(steady, moving, PATIENCE * deadline_s)
        n = len(steady)
        rows = np.arange(n, dtype=np.int64)
        self._told_at = CONTEXT_PERIOD_S * uniforms(seed, 0, rows, Purpose.CONTEXT)
        self._probes = Probes(steady, moving)
        self._down, self._up = self._first_rates(rows)
        self._heats = {row: Heat(thermal) for row, thermal in moving.thermal.items()}
        self._is_steady = not moving.links
        """Nobody's speed or link ever changes, as in a crowd."""
        self._steady_mu: Floats | None = None
        self._steady_pace: tuple[Floats, Floats] | None = None
        """What need not be found out again then: `_mu` and `_pace`."""
        self._is_warm: Bools = np.zeros(n, dtype=np.bool_)
        self._asked_in: Ints = np.full(n, -1, dtype=np.int64)
        """The round in which each was asked to train last."""
        self._has_model: Bools = np.zeros(n, dtype=np.bool_)
        """Who has answered the question of this round: session and data are in memory, too."""
        self._holds: Ints = np.full(n, -1, dtype=np.int64)
        self._version = 0

    def __len__(self) -> int:
        """Return the number of devices, N."""
        return len(self._steady)

    @property
    def transfer_bits(self) -> tuple[float | Floats, float | Floats]:
        """What an exchange takes down and up now, bits."""
        sizes = self._sizes
        is_packed = sizes.is_packed(self._holds, self._version)
        down_bits: Floats = 8.0 * sizes.down_bytes(is_packed).astype(np.float64)
        return down_bits, 8.0 * sizes.up_bytes

    def look(self, round_id: int, now: float, last: LastRound) -> Scene:
        """Return the fleet at the selection of a round."""
        self._is_warm &= last.has_trained | (self._asked_in >= round_id - 1)
        self._probe(now)
        age_s, is_heard = self._heard(now)
        told_at = np.maximum(now - age_s, 0.0)
        mu = np.clip(self._mu(told_at), *MU_BOUNDS)
        return Scene(
            is_available=is_heard & self._tracks.is_willing(told_at) & self._draining.is_idle(now),
            inverse_mu=1.0 / mu,
            down_bps=np.clip(self._down.bps(), *LINK_BOUNDS_BPS),
            up_bps=np.clip(self._up.bps(), *LINK_BOUNDS_BPS),
            link_age_s=np.maximum(self._down.age_s(now), self._up.age_s(now)),
            context_age_s=age_s,
            examples=self._work.examples,
            known_s=self._expected_s(now),
            last=last,
        )

    def exchange(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Return what the cohort does that is asked `now`, rows (K,)."""
        self._asked_in[rows] = round_id
        return self._phases.exchanges(self._order(round_id, now, rows), self._heats)

    def question(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Return what devices do that are asked `now` for the loss of the model, rows (K,)."""
        order = self._order(round_id, now, rows, Purpose.QUESTION)
        return self._questions.exchanges(order, self._heats)

    def on_answers(
        self, now: float, asked: Exchanges, rows: Ints, over_s: Floats, answered: Bools
    ) -> None:
        """Learn rates from the model's way, heat up, and remember who has it."""
        got_s = asked.signal_s / 2.0 + asked.download_s
        self._learn(
            self._down, rows, asked.bytes_down, asked.download_s, now + got_s, got_s <= over_s
        )
        computed_s = got_s + asked.decode_s + asked.load_s + asked.evaluate_s
        columns = (rows, got_s, np.minimum(computed_s, over_s))
        for row, begun, over in zip(*(column.tolist() for column in columns), strict=True):
            if row in self._heats:
                self._heat_up(row, now, begun, over)
        self._has_model[rows] = answered

    def upload_s(self, exchange: ReplayedExchange, granted_s: float) -> float:
        """Return the duration of an upload that is granted so long after the dispatch."""
        row = np.array([exchange.row], dtype=np.int64)
        order = self._order(exchange.round, exchange.started_s, row)
        found_s = self._phases.upload_s(order, self._heats, granted_s)
        return exchange.upload_s if found_s is None else found_s

    def on_pulled(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Learn the rates of downlinks."""
        self._learn(
            self._down,
            _rows(exchanges),
            np.array([x.bytes_down for x in exchanges], dtype=np.int64),
            _floats([x.download_s for x in exchanges]),
            _floats([x.started_s + x.pulled_s for x in exchanges]),
            np.ones(len(exchanges), dtype=np.bool_),
        )

    def on_over(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Learn the rates of uplinks, and which devices drain, are warm, and have heated up."""
        drained = [x for x in exchanges if x.entry.state in DRAINING]
        self._draining.give_up(_rows(drained), _floats([x.started_s + x.over_s for x in drained]))
        done = [x for x in exchanges if x.is_done]
        self._learn(
            self._up,
            _rows(done),
            np.array([x.bytes_up for x in done], dtype=np.int64),
            _floats([x.upload_s for x in done]),
            _floats([x.started_s + x.over_s for x in done]),
            np.ones(len(done), dtype=np.bool_),
        )
        self._is_warm[[x.row for x in exchanges if x.loaded_s <= x.over_s]] = True
        for x in exchanges:
            if x.row in self._heats:
                self._heat_up(x.row, x.started_s, x.pulled_s, min(x.computed_s, x.over_s))

    def on_version(self, rows: Ints, versions: Ints, version: int) -> None:
        """Count versions: a device that holds the one before can take its changes."""
        self._holds[rows] = versions
        self._version = version
        self._has_model[:] = False

    def to_state(self) -> dict[str, Any]:
        """Return what the devices know of their links, how hot they are, and what they hold."""
        return {
            "down": self._down.to_state(),
            "up": self._up.to_state(),
            "heats": {str(row): [heat.now, heat.share] for row, heat in self._heats.items()},
            "is_warm": self._is_warm.tobytes(),
            "asked_in": self._asked_in.tobytes(),
            "holds": self._holds.tobytes(),
            "version": self._version,
            "idle_at": self._draining.to_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned."""
        self._down.load_state(state["down"])
        self._up.load_state(state["up"])
        for row, (now, share) in state["heats"].items():
            self._heats[int(row)].now, self._heats[int(row)].share = now, share
        self._is_warm = np.frombuffer(state["is_warm"], dtype=np.bool_).copy()
        self._asked_in = np.frombuffer(state["asked_in"], dtype=np.int64).copy()
        self._holds = np.frombuffer(state["holds"], dtype=np.int64).copy()
        self._version = state["version"]
        self._draining.load_state(state["idle_at"])

    def _order(
        self, round_id: int, now: float, rows: Ints, delays: Purpose = Purpose.DELAY
    ) -> CohortWork:
        """Return what a cohort is asked `now`, rows (K,)."""
        jitters = bool(self._steady.jitter_s[rows].any())
        factors, scores = luck(
            self._seed, round_id, rows, self._noise, jitters=jitters, delays=delays
        )
        has_model = self._has_model[rows]
        return CohortWork(
            now=now,
            rows=rows,
            is_cold=~(self._is_warm[rows] | has_model),
            is_packed=self._sizes.is_packed(self._holds[rows], self._version),
            has_model=has_model,
            up_bps=self._up.bps()[rows],
            luck=factors,
            scores=scores,
        )

    def _learn(
        self,
        rates: MeasuredRates,
        rows: Ints,
        size: Ints,
        took_s: Floats,
        at: Floats,
        is_over: Bools,
    ) -> None:
        """Learn rates from the transfers that are over, columns of shape (K,)."""
        trip_s = 2.0 * self._steady.delay_s[rows[is_over]]
        rates.on_transfers(rows[is_over], size[is_over], took_s[is_over], trip_s, at[is_over])

    def _heard(self, now: float) -> tuple[Floats, Bools]:
        """Return the age of each device's last context, and whether it is known to be there.

        A context that begins where nothing passes does not count; one in time does, for 3 s.
        """
        periods = (now - self._told_at) / CONTEXT_PERIOD_S
        age_s: Floats = CONTEXT_PERIOD_S * (periods - np.floor(periods))
        is_heard = np.ones(len(self), dtype=np.bool_)
        if not self._tracks.can_be_cut:
            return age_s, is_heard
        is_cut = self._tracks.is_cut(np.maximum(now - age_s, 0.0))
        while (waits := is_cut & (age_s <= CONTEXT_MAX_AGE_S)).any():
            age_s = np.where(waits, age_s + CONTEXT_PERIOD_S, age_s)
            is_cut = is_cut & self._tracks.is_cut(np.maximum(now - age_s, 0.0))
        is_heard = ~is_cut & (age_s <= CONTEXT_MAX_AGE_S)
        return age_s, is_heard & ~self._tracks.is_unplugged(np.full(len(self), now))

    def _mu(self, t: Floats) -> Floats:
        """Return the free cores that agents have measured at their moments `t`, shape (N,).

        As `testbed.emulation.device.EmulatedSensors` has it: a little less is not noticed.
        """
        if self._steady_mu is not None:
            return self._steady_mu
        steady, tracks = self._steady, self._tracks
        usual = np.minimum(steady.threads, steady.cores - steady.busy_cores)
        free = np.maximum(steady.cores - tracks.busy_cores.at(t), LEAST_FREE_CORES)
        left = np.minimum(steady.threads, free)
        cores = np.where(left < NOTICED_SHARE * usual, left, usual)
        clock_ratio = tracks.clock_ratio.at(t) * self._heat_clock(t)
        mu: Floats = np.maximum(cores * clock_ratio, MIN_FREE_CORES)
        if self._is_steady:
            self._steady_mu = mu
        return mu

    def _expected_s(self, now: float) -> Floats:
        """Return the exchange time of each device if all stays as it is now, seconds, (N,)."""
        speed, lines_s = self._pace(now)
        parts_s, (down_bits, _) = lines_s.copy(), self.transfer_bits
        parts_s[0] *= down_bits / (8.0 * self._sizes.whole_bytes)
        parts_s[1, self._is_warm | self._has_model] = 0.0
        trip_s = 2.0 * self._steady.delay_s
        parts_s[0] += waiting_s(down_bits, parts_s[0], trip_s)
        parts_s[0, self._has_model] = 0.0
        messages = MESSAGES - 2 * self._has_model
        expected_s: Floats = parts_s.sum(axis=0) + messages * self._steady.delay_s
        if self._work.decode_s or self._work.encode_s:
            is_packed = self._sizes.is_packed(self._holds, self._version) & ~self._has_model
            decode_s, encode_s = self._phases.packing_s(speed, is_packed)
            expected_s += decode_s + encode_s
        return expected_s

    def _pace(self, now: float) -> tuple[Floats, Floats]:
        """Return `speed` (N,) and `lines_s` (5, N) of all as things are, not to be changed.

        The last line has what TCP waits for on the way up.
        """
        if self._steady_pace is not None:
            return self._steady_pace
        t, tracks, everybody = np.full(len(self), now), self._tracks, slice(None)
        clock_ratio = tracks.clock_ratio.at(t) * self._heat_clock(t)
        speed = self._phases.speed(everybody, tracks.busy_cores.at(t), clock_ratio)
        lines_s = self._phases.lines_s(everybody, speed, *self._rates_bps(t))
        up_bits, trip_s = 8.0 * self._sizes.up_bytes, 2.0 * self._steady.delay_s
        lines_s[4] += waiting_s(up_bits, lines_s[4], trip_s)
        if self._is_steady:
            self._steady_pace = speed, lines_s
        return speed, lines_s

    def _rates_bps(self, t: Floats) -> tuple[Floats, Floats]:
        """Return the rates at each device's own moment `t`; in a hole those of other times."""
        down_bps, up_bps = self._tracks.down_bps.at(t), self._tracks.up_bps.at(t)
        return (
            np.where(down_bps > 0.0, down_bps, self._steady.down_bps),
            np.where(up_bps > 0.0, up_bps, self._steady.up_bps),
        )

    def _first_rates(self, rows: Ints) -> tuple[MeasuredRates, MeasuredRates]:
        """Return what all know of their links from the beginning: first down, then up.

        Without an answer a rate is what the link has at its beginning, or usually.
        """
        down, down_at = self._probes.measure("down", rows, np.zeros(len(rows)))
        up, up_at = self._probes.measure("up", rows, down_at)
        usual_down, usual_up = self._rates_bps(np.zeros(len(rows)))
        return (
            MeasuredRates(np.where(down > 0.0, down, usual_down), down_at),
            MeasuredRates(np.where(up > 0.0, up, usual_up), up_at),
        )

    def _probe(self, now: float) -> None:
        """Have measured again who has not for a minute, at the moments at which they did."""
        directions: dict[Direction, MeasuredRates] = {"down": self._down, "up": self._up}
        for direction, rates in directions.items():
            rows = np.flatnonzero(rates.stale(now))
            if rows.size:
                at = rates.probed_at(now, rows)
                rates.on_probe(now, rows, *self._probes.measure(direction, rows, at))

    def _heat_clock(self, t: Floats) -> Floats:
        """Return the clock that heat leaves each device at its own moment `t`, shape (N,)."""
        clock = np.ones(len(self))
        for row, heat in self._heats.items():
            cooled = replace(heat)
            cooled.advance(float(t[row]), 0.0)
            clock[row] = cooled.clock_ratio
        return clock

    def _heat_up(self, row: int, start: float, begun_s: float, over_s: float) -> None:
        """Heat a device up by what it has computed from `begun_s` after `start` to `over_s`."""
        if begun_s < over_s:
            heat, steady = self._heats[row], self._steady
            heat.advance(start + begun_s, 0.0)
            heat.advance(start + over_s, float(steady.threads[row] / steady.cores[row]))


class Draining:
    """Devices that were given up and may still be at work: they cannot be selected.

    A late, cancelled or lost device works on until it receives the cancellation. The live
    coordinator counts it as busy until a context reports it idle (`Device.is_draining`).

        idle at = given up + delay of the cancellation + delay of the context

    Args:
        steady: Links that never change.
        moving: Those that do.
        give_up_s: Longest delay of a cancellation: by then a device has stopped by itself, because
            its own deadline has passed.
    """

    def __init__(self, steady: Steady, moving: Moving, give_up_s: float) -> None:
        self._delay_s, self._links, self._give_up_s = steady.delay_s, moving.links, give_up_s
        self._idle_at: Floats = np.full(len(steady), -np.inf)
        """When the coordinator knows that each is idle, seconds of the run, shape (N,)."""

    def give_up(self, rows: Ints, at: Floats) -> None:
        """Cancel devices, each at its own instant, seconds of the run, both of shape (K,)."""
        idle_at = at + 2.0 * self._delay_s[rows]
        for k, (row, moment) in enumerate(zip(rows.tolist(), at.tolist(), strict=True)):
            if row in self._links:
                idle_at[k] = self._heard_at(row, moment)
        self._idle_at[rows] = idle_at

    def is_idle(self, now: float) -> Bools:
        """Return which devices can be selected again, shape (N,)."""
        idle: Bools = self._idle_at <= now + PAUSE_S
        return idle

    def to_state(self) -> bytes:
        """Return the instants, packed."""
        return self._idle_at.tobytes()

    def load_state(self, state: bytes) -> None:
        """Take over what `to_state` returned."""
        self._idle_at = np.frombuffer(state).copy()

    def _heard_at(self, row: int, at: float) -> float:
        """Return when a device with outages is known to be idle."""
        way = LinkIntegral(self._links[row], self._give_up_s)
        told = min(way.carry(at, 0.0, "down"), at + self._give_up_s)
        idle = told + way.delay_s(told)
        return idle + way.delay_s(idle)


def _rows(exchanges: Sequence[ReplayedExchange]) -> Ints:
    return np.array([x.row for x in exchanges], dtype=np.int64)


def _floats(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)
