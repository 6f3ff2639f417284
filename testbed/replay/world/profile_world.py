"""A fleet of profiles on the virtual clock: exchanges of an emulated fleet without its processes.

A context holds what an agent would have measured: free cores and clock at its last context, rates
of its own transfers and probes. The true durations are in `phases`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.random_streams import seeds, uniforms
from fairbed.coordinator.state.exchange import DRAINING
from fairbed.coordinator.state.registry import CONTEXT_MAX_AGE_S, LINK_BOUNDS_BPS, MU_BOUNDS
from fairbed.device_agent.sensors import MIN_FREE_CORES
from fairbed.testbed.emulation.cell import Direction
from fairbed.testbed.emulation.device import NOTICED_SHARE
from fairbed.testbed.emulation.heat import Heat
from fairbed.testbed.emulation.schedule import LEAST_FREE_CORES
from fairbed.testbed.emulation.tcp import expected_lossy_s, slow_start_s
from fairbed.testbed.experiment.noise import NoiseConfig
from fairbed.testbed.replay.world.columns import FleetConditions, MeanConditions, VaryingConditions
from fairbed.testbed.replay.world.integrals import LinkIntegral
from fairbed.testbed.replay.world.measured_rates import MeasuredRates, Probes
from fairbed.testbed.replay.world.phases import (
    MESSAGES,
    PHASES,
    TRAINING,
    CohortRequest,
    PhaseModel,
    Purpose,
    cohort_noise,
)
from fairbed.testbed.replay.world.recorded_times import RecordedTimes
from fairbed.testbed.replay.world.shared_air import Carried, SharedAir, TransferKey
from fairbed.testbed.replay.world.tcp_links import TcpLinks
from fairbed.testbed.replay.world.work import Sizes, Work
from fairbed.testbed.replay.world.world import Exchanges, FleetSnapshot, LastRound, ReplayedExchange

CONTEXT_PERIOD_S = 1.0
"""Period of contexts (design.md, section 2); each device reports at its own instants."""

GIVE_UP_RATIO = 2.0
"""A phase that takes longer than this many deadlines never ends."""

BETWEEN_ROUNDS_S = 0.02
"""Time of a live coordinator from the end of a round to the next selection (`pause_s` of a run of
examples/quickstart.toml): a device that is idle by then can be selected."""


class ProfileWorld:
    """All devices of a fleet of profiles; `testbed.replay.world.world.World`.

    Args:
        means: Conditions of all devices, as means.
        varying: Conditions that vary over time.
        sizes: Sizes of models and updates on the wire.
        work: Work of a round, device by device.
        seed: Seed of all random numbers but those of lost packets.
        packet_seed: Seed of the packets that are lost.
        noise: Every phase takes exp(noise z) times as long, z standard normal.
        deadline_s: Deadline of an exchange; an exchange that takes much longer never ends.
        limit_s: Time limit of a loss query; a query that takes much longer never ends.
        own_noise: Factors of exchanges; the levels of devices are in their conditions.
        recorded: Durations of exchanges from logs; None takes those of profiles and links.
    """

    def __init__(
        self,
        means: MeanConditions,
        varying: VaryingConditions,
        sizes: Sizes,
        work: Work,
        *,
        seed: int,
        packet_seed: int,
        noise: float,
        deadline_s: float,
        limit_s: float = 0.0,
        own_noise: NoiseConfig | None = None,
        recorded: RecordedTimes | None = None,
    ) -> None:
        self.slots: int | None = sizes.slots
        self._means, self._sizes, self._work = means, sizes, work
        self._seed, self._packet_seed = seed, packet_seed
        self._noise, self._own_noise = noise, own_noise
        self._recorded, self._tcp = recorded, TcpLinks(varying, packet_seed)
        self._phases = PhaseModel(
            means, varying, sizes, work, GIVE_UP_RATIO * deadline_s, self._tcp
        )
        no_training_s = np.zeros(len(means))
        query = replace(
            work,
            train_s=no_training_s,
            personal_s=no_training_s,
            evaluate_s=work.query_s,
            encode_s=0.0,
        )
        self._query_phases = PhaseModel(
            means, varying, sizes, query, GIVE_UP_RATIO * limit_s, self._tcp, "loss query"
        )
        self._conditions = FleetConditions(means, varying)
        self._draining = Draining(means, varying, GIVE_UP_RATIO * deadline_s)
        n = len(means)
        self._training_cores: Floats = np.minimum(means.cores, means.threads)
        rows = np.arange(n, dtype=np.int64)
        self._first_context_s = CONTEXT_PERIOD_S * uniforms(seed, 0, rows, Purpose.CONTEXT)
        self._probes = Probes(means, varying, self._tcp)
        self._tcp.join({row: 8.0 * float(work.shard_bytes[row]) for row in self._tcp.rows})
        self._down, self._up = self._first_rates(rows)
        self._heats = {row: Heat(thermal) for row, thermal in varying.thermal.items()}
        self._is_constant = not varying.links
        """No speed and no link of the fleet varies, as in a large fleet."""
        self._constant_mu: Floats | None = None
        self._constant_phases: tuple[Floats, Floats] | None = None
        """Results of `_mu` and `_speed_and_phases`, kept if the fleet is constant."""
        self._is_warm: Bools = np.zeros(n, dtype=np.bool_)
        self._dispatched_in: Ints = np.full(n, -1, dtype=np.int64)
        """The latest round in which each device was dispatched."""
        self._has_model: Bools = np.zeros(n, dtype=np.bool_)
        """Devices that replied to the loss query of this round; they are warm, too."""
        self._held_version: Ints = np.full(n, -1, dtype=np.int64)
        """The model version that each device pulled last, -1 for none."""
        self._version = 0
        self.air: SharedAir | None = None
        """All transfers in cells; None without cells."""
        if varying.sharers:
            links = {
                row: LinkIntegral(varying.links[row], GIVE_UP_RATIO * deadline_s)
                for row in varying.sharers
            }
            self.air = SharedAir(varying.cells, varying.sharers, links)

    def download_once_s(self, n_bytes: int) -> Floats:
        """As `PhaseModel.download_once_s`."""
        return self._phases.download_once_s(n_bytes)

    def __len__(self) -> int:
        """Return the number of devices, N."""
        return len(self._means)

    @property
    def transfer_bits(self) -> tuple[float | Floats, float | Floats]:
        """Sizes of an exchange down and up at this instant, bits."""
        sizes = self._sizes
        is_packed = sizes.is_packed(self._held_version, self._version)
        down_bits: Floats = 8.0 * sizes.down_bytes(is_packed).astype(np.float64)
        return down_bits, 8.0 * sizes.up_bytes

    def observe(self, round_id: int, now: float, last: LastRound) -> FleetSnapshot:
        """Return the fleet at the selection of a round."""
        self._is_warm &= last.has_trained | (self._dispatched_in >= round_id - 1)
        self._probe(now)
        age_s, is_connected = self._context_age_s(now)
        reported_at = np.maximum(now - age_s, 0.0)
        mu = np.clip(self._mu(reported_at), *MU_BOUNDS)
        is_willing = self._conditions.is_willing(reported_at)
        return FleetSnapshot(
            is_available=is_connected & is_willing & self._draining.is_idle(now),
            inverse_mu=1.0 / mu,
            training_cores=self._training_cores,
            down_bps=np.clip(self._down.bps(), *LINK_BOUNDS_BPS),
            up_bps=np.clip(self._up.bps(), *LINK_BOUNDS_BPS),
            link_age_s=np.maximum(self._down.age_s(now), self._up.age_s(now)),
            context_age_s=age_s,
            examples=self._work.examples,
            true_tau_s=self._expected_s(now, round_id),
            last=last,
            faults=self._probes.take_faults(),
        )

    def available_from_s(self, round_id: int, now: float) -> float:
        """Return an instant before which no device is available: `now`, or later."""
        return self._conditions.available_from_s(now)

    def exchange(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Return the exchanges of a cohort that is dispatched `now`, rows (K,)."""
        self._dispatched_in[rows] = round_id
        self._tcp.begin(rows.tolist())
        exchanges = self._phases.exchanges(self._request(round_id, now, rows), self._heats)
        if self._recorded is None:
            return exchanges
        return self._recorded.applied(round_id, rows, exchanges)

    def loss_query(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Return the loss queries of devices that are sent `now`, rows (K,)."""
        self._tcp.begin(rows.tolist())
        request = self._request(round_id, now, rows, Purpose.LOSS_QUERY)
        planned = self._query_phases.exchanges(request, self._heats)
        return planned if planned.in_cell is None else self._queried_in_cells(request, planned)

    def on_replies(
        self, now: float, queries: Exchanges, rows: Ints, over_s: Floats, has_replied: Bools
    ) -> None:
        """Update rates and heat, and record which devices have the model."""
        pulled_s = queries.signal_s / 2.0 + queries.download_s
        self._measure_rates(
            self._down,
            rows,
            queries.bytes_down,
            queries.download_s,
            now + pulled_s,
            pulled_s <= over_s,
        )
        computed_s = pulled_s + queries.decode_s + queries.load_s + queries.evaluate_s
        columns = (rows, pulled_s, np.minimum(computed_s, over_s))
        for row, start_s, end_s in zip(*(column.tolist() for column in columns), strict=True):
            if row in self._heats:
                self._heat_up(row, now, start_s, end_s)
        self._has_model[rows] = has_replied

    def upload_s(self, exchange: ReplayedExchange, granted_s: float) -> float:
        """Return the duration of an upload that is granted `granted_s` after the dispatch."""
        row = np.array([exchange.row], dtype=np.int64)
        if self._recorded is not None and self._recorded.has(row).all():
            return exchange.upload_s
        request = self._request(exchange.round, exchange.started_s, row)
        upload_s = self._phases.upload_s(request, self._heats, granted_s)
        return exchange.upload_s if upload_s is None else upload_s

    def begin_transfer(self, exchange: ReplayedExchange, granted_s: float | None) -> None:
        """Begin the download of an exchange, or its upload `granted_s` after the dispatch."""
        assert self.air is not None, "an exchange in a cell has an air"
        request, key = self._request_of(exchange), TransferKey(exchange.row, exchange.round)
        offset_s = exchange.started_s - exchange.dispatched_at_s
        direction: Direction = "down" if granted_s is None else "up"
        if granted_s is None:
            start, bits = self._phases.pull_start(request, self._heats)
        else:
            start, bits = self._phases.upload_start(request, self._heats, granted_s)
        self.air.add(key, direction, start - offset_s, bits, offset_s)

    def on_carried(self, exchange: ReplayedExchange, carried: Carried) -> None:
        """Set the phases of an exchange that are known when a transfer has ended."""
        exchange.entry.measured["cell_wait_s"] += carried.lost_s
        if carried.at == np.inf:
            return
        request = self._request_of(exchange)
        at = carried.at + (exchange.started_s - exchange.dispatched_at_s)
        if carried.direction == "up":
            entry = exchange.entry
            assert entry.granted is not None, "an upload was granted"
            granted = exchange.started_s + (entry.granted - entry.dispatched)
            exchange.upload_s = self._phases.update_arrival(request, self._heats, at) - granted
            return
        for name, value in self._phases.after_pull_s(request, self._heats, at).items():
            setattr(exchange, name, value)

    def on_pulled(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Update the measured rates of downlinks."""
        self._measure_rates(
            self._down,
            _rows(exchanges),
            np.array([x.bytes_down for x in exchanges], dtype=np.int64),
            _floats([x.download_s for x in exchanges]),
            _floats([x.started_s + x.pulled_s for x in exchanges]),
            np.ones(len(exchanges), dtype=np.bool_),
        )

    def on_over(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Update the rates of uplinks, and which devices drain, are warm and have heated up."""
        drained = [x for x in exchanges if x.entry.state in DRAINING]
        self._draining.give_up(_rows(drained), _floats([x.started_s + x.over_s for x in drained]))
        done = [x for x in exchanges if x.is_done]
        self._measure_rates(
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
        """Record the version that devices hold: a delta needs the previous one."""
        self._held_version[rows] = versions
        self._version = version
        self._has_model[:] = False

    def to_state(self) -> dict[str, Any]:
        """Return measured rates, heat, warm sessions, held versions and draining devices."""
        return {
            "down": self._down.to_state(),
            "up": self._up.to_state(),
            "heats": {
                str(row): [heat.now, heat.slow, heat.fast] for row, heat in self._heats.items()
            },
            "is_warm": self._is_warm.tobytes(),
            "asked_in": self._dispatched_in.tobytes(),
            "holds": self._held_version.tobytes(),
            "version": self._version,
            "idle_at": self._draining.to_state(),
            "air": [] if self.air is None else self.air.to_state(),
            "tcp": self._tcp.to_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned."""
        self._probes.take_faults()  # those of the first probes are in the store
        self._down.load_state(state["down"])
        self._up.load_state(state["up"])
        for row, (now, slow, fast) in state["heats"].items():
            heat = self._heats[int(row)]
            heat.now, heat.slow, heat.fast = now, slow, fast
        self._is_warm = np.frombuffer(state["is_warm"], dtype=np.bool_).copy()
        self._dispatched_in = np.frombuffer(state["asked_in"], dtype=np.int64).copy()
        self._held_version = np.frombuffer(state["holds"], dtype=np.int64).copy()
        self._version = state["version"]
        self._draining.load_state(state["idle_at"])
        if "tcp" in state:  # checkpoints before packet loss was replayed have none
            self._tcp.load_state(state["tcp"])
        if self.air is not None:
            self.air.load_state(state["air"])

    def _queried_in_cells(self, request: CohortRequest, planned: Exchanges) -> Exchanges:
        """Return planned loss queries with the downloads of devices in cells."""
        assert self.air is not None, "a query in a cell has an air"
        assert planned.in_cell is not None, "the caller checked it"
        ones = {
            int(request.rows[at]): (at, request.of_one(at))
            for at in np.flatnonzero(planned.in_cell).tolist()
        }
        phases, heats = self._query_phases, self._heats
        ended = self.air.queried(
            {
                TransferKey(row, 0, is_query=True): phases.pull_start(one, heats)
                for row, (_, one) in ones.items()
            }
        )
        columns = {name: getattr(planned, name).copy() for name in PHASES}
        for row, (at, one) in ones.items():
            columns["upload_s"][at] = 0.0
            if ended[row] < np.inf:
                for name, value in phases.after_pull_s(one, heats, ended[row]).items():
                    columns[name][at] = value
        return replace(planned, **columns)

    def _request_of(self, x: ReplayedExchange) -> CohortRequest:
        """Return the request of an exchange as it was at its dispatch."""
        row = np.array([x.row], dtype=np.int64)
        return replace(
            self._request(x.round, x.started_s, row),
            is_cold=np.array([x.load_s > 0.0]),
            has_model=np.array([x.bytes_down == 0]),
            is_packed=np.array([x.codec_down != "float32"]),
        )

    def _request(
        self, round_id: int, now: float, rows: Ints, delays: Purpose = Purpose.DELAY
    ) -> CohortRequest:
        """Return the requests to a cohort at `now`, rows (K,)."""
        jitters = bool(self._means.jitter_s[rows].any())
        noise_factors, delay_noise = cohort_noise(
            self._seed,
            round_id,
            rows,
            self._noise,
            own=self._own_noise,
            jitters=jitters,
            delays=delays,
        )
        has_model = self._has_model[rows]
        draws = self._work.draws if delays is Purpose.DELAY else None
        return CohortRequest(
            now=now,
            rows=rows,
            is_cold=~(self._is_warm[rows] | has_model),
            is_packed=self._sizes.is_packed(self._held_version[rows], self._version),
            has_model=has_model,
            up_bps=self._up.bps()[rows],
            noise_factors=noise_factors,
            delay_noise=delay_noise,
            tcp_seeds=seeds(
                self._packet_seed,
                round_id,
                rows,
                Purpose.TCP if delays is Purpose.DELAY else Purpose.TCP_QUERY,
            ),
            drawn=None if draws is None else draws(round_id, rows),
        )

    def _measure_rates(
        self,
        rates: MeasuredRates,
        rows: Ints,
        size: Ints,
        took_s: Floats,
        at: Floats,
        is_over: Bools,
    ) -> None:
        """Update rates with the transfers that are over, columns of shape (K,)."""
        trip_s = 2.0 * self._means.delay_s[rows[is_over]]
        rates.on_transfers(rows[is_over], size[is_over], took_s[is_over], trip_s, at[is_over])

    def _context_age_s(self, now: float) -> tuple[Floats, Bools]:
        """Return the age of each device's last context, and whether the device is connected.

        A context during an outage is not received; a received one is valid for 3 s.
        """
        periods = (now - self._first_context_s) / CONTEXT_PERIOD_S
        age_s: Floats = CONTEXT_PERIOD_S * (periods - np.floor(periods))
        conditions = self._conditions
        if not conditions.has_link_outages:
            return age_s, np.ones(len(self), dtype=np.bool_)
        is_lost = conditions.is_link_down(np.maximum(now - age_s, 0.0))
        while (is_older := is_lost & (age_s <= CONTEXT_MAX_AGE_S)).any():
            age_s = np.where(is_older, age_s + CONTEXT_PERIOD_S, age_s)
            is_lost = is_lost & conditions.is_link_down(np.maximum(now - age_s, 0.0))
        is_valid = ~is_lost & (age_s <= CONTEXT_MAX_AGE_S)
        return age_s, is_valid & ~self._conditions.is_unplugged(np.full(len(self), now))

    def _mu(self, t: Floats) -> Floats:
        """Return the free cores that agents measure at their instants `t`, shape (N,).

        As with `testbed.emulation.device.EmulatedSensors`, an agent does not notice a small loss.
        """
        if self._constant_mu is not None:
            return self._constant_mu
        means, conditions = self._means, self._conditions
        usual = np.minimum(means.threads, means.cores - means.busy_cores)
        free = np.maximum(means.cores - conditions.busy_cores.at(t), LEAST_FREE_CORES)
        left = np.minimum(means.threads, free)
        cores = np.where(left < NOTICED_SHARE * usual, left, usual)
        clock_ratio = conditions.clock_ratio.at(t) * self._heat_clock(t)
        mu: Floats = np.maximum(cores * clock_ratio, MIN_FREE_CORES)
        if self._is_constant:
            self._constant_mu = mu
        return mu

    def _expected_s(self, now: float, round_id: int) -> Floats:
        """Return the exchange times of a round under the conditions of `now`, seconds, (N,)."""
        speed, base_s = self._speed_and_phases(now)
        phases_s, (down_bits, _) = base_s.copy(), self.transfer_bits
        if self._work.draws is not None:
            rows = np.arange(len(self), dtype=np.int64)
            phases_s[TRAINING] = self._work.draws(round_id, rows)[1] / speed
        phases_s[0] *= down_bits / (8.0 * self._sizes.whole_bytes)
        phases_s[1, self._is_warm | self._has_model] = 0.0
        trip_s = 2.0 * self._means.delay_s
        phases_s[0] += slow_start_s(down_bits, phases_s[0], trip_s)
        self._add_losses(now, phases_s)
        phases_s[0, self._has_model] = 0.0
        messages = MESSAGES - 2 * self._has_model
        expected_s: Floats = phases_s.sum(axis=0) + messages * self._means.delay_s
        if self._work.decode_s or self._work.encode_s:
            is_packed = self._sizes.is_packed(self._held_version, self._version) & ~self._has_model
            decode_s, encode_s = self._phases.coding_s(speed, is_packed)
            expected_s += decode_s + encode_s
        expected_s += self._work.personal_s / speed
        if self._recorded is None:
            return expected_s
        recorded_s = self._recorded.mean_total_s
        return np.where(np.isnan(recorded_s), expected_s, recorded_s)

    def _add_losses(self, now: float, phases_s: Floats) -> None:
        """Replace the expected transfers, shape (5, N), of the links that lose packets at `now`."""
        rows = self._tcp.rows
        if not rows:
            return
        states = [self._tcp.state(row, "down", now) for row in rows]
        trip_s = 2.0 * np.array([state.delay_s for state in states])
        loss = np.array([state.loss_ratio for state in states])
        for phase, bits in zip((0, 4), self.transfer_bits, strict=True):
            of_rows = np.broadcast_to(bits, len(self))[rows]
            phases_s[phase, rows] = expected_lossy_s(of_rows, phases_s[phase, rows], trip_s, loss)

    def _speed_and_phases(self, now: float) -> tuple[Floats, Floats]:
        """Return `speed` (N,) and `base_s` (5, N) at `now`; the caller must not change them.

        The upload includes TCP slow start.
        """
        if self._constant_phases is not None:
            return self._constant_phases
        t, conditions, all_devices = np.full(len(self), now), self._conditions, slice(None)
        clock_ratio = conditions.clock_ratio.at(t) * self._heat_clock(t)
        speed = self._phases.speed(all_devices, conditions.busy_cores.at(t), clock_ratio)
        base_s = self._phases.base_s(all_devices, speed, *self._rates_bps(t))
        up_bits, trip_s = 8.0 * self._sizes.up_bytes, 2.0 * self._means.delay_s
        base_s[4] += slow_start_s(up_bits, base_s[4], trip_s)
        if self._is_constant:
            self._constant_phases = speed, base_s
        return speed, base_s

    def _rates_bps(self, t: Floats) -> tuple[Floats, Floats]:
        """Return the rates at each device's own instant `t`; during an outage the means."""
        down_bps, up_bps = self._conditions.down_bps.at(t), self._conditions.up_bps.at(t)
        return (
            np.where(down_bps > 0.0, down_bps, self._means.down_bps),
            np.where(up_bps > 0.0, up_bps, self._means.up_bps),
        )

    def _first_rates(self, rows: Ints) -> tuple[MeasuredRates, MeasuredRates]:
        """Return the rates measured by the first probes: down, then up.

        Without a reply a device has the rate at the beginning of the run, or the mean rate.
        """
        down, down_at = self._probes.measure("down", rows, np.zeros(len(rows)))
        up, up_at = self._probes.measure("up", rows, down_at)
        initial_down, initial_up = self._rates_bps(np.zeros(len(rows)))
        return (
            MeasuredRates(np.where(down > 0.0, down, initial_down), down_at),
            MeasuredRates(np.where(up > 0.0, up, initial_up), up_at),
        )

    def _probe(self, now: float) -> None:
        """Probe the links without a measurement for `MAX_AGE_S`, each at its own instant."""
        directions: dict[Direction, MeasuredRates] = {"down": self._down, "up": self._up}
        for direction, rates in directions.items():
            rows = np.flatnonzero(rates.stale(now))
            if rows.size:
                at = rates.probed_at(now, rows)
                rates.on_probe(now, rows, *self._probes.measure(direction, rows, at))

    def _heat_clock(self, t: Floats) -> Floats:
        """Return the clock ratio under heat, each at its own instant `t`, shape (N,)."""
        clock = np.ones(len(self))
        for row, heat in self._heats.items():
            cooled = replace(heat)
            cooled.advance(float(t[row]), 0.0)
            clock[row] = cooled.clock_ratio
        return clock

    def _heat_up(self, row: int, dispatched: float, start_s: float, end_s: float) -> None:
        """Heat a device up by computing from `start_s` to `end_s` after its dispatch."""
        if start_s < end_s:
            heat, means = self._heats[row], self._means
            heat.advance(dispatched + start_s, 0.0)
            heat.advance(dispatched + end_s, float(means.threads[row] / means.cores[row]))


class Draining:
    """Devices that were cancelled and may still be at work: they cannot be selected.

    A late, cancelled or lost device works on until it receives the cancellation. The live
    coordinator counts it as busy until a context reports it idle (`Device.is_draining`).

        idle at = cancelled at + delay of the cancellation + delay of the context

    Args:
        means: Links of all devices, as means.
        varying: Links that vary over time.
        give_up_s: Longest delay of a cancellation: by then a device has stopped by itself, because
            its own deadline has passed.
    """

    def __init__(self, means: MeanConditions, varying: VaryingConditions, give_up_s: float) -> None:
        self._delay_s, self._links, self._give_up_s = means.delay_s, varying.links, give_up_s
        self._idle_at: Floats = np.full(len(means), -np.inf)
        """When the coordinator knows that each is idle, seconds of the run, shape (N,)."""

    def give_up(self, rows: Ints, at: Floats) -> None:
        """Cancel devices, each at its own instant, seconds of the run, both of shape (K,)."""
        idle_at = at + 2.0 * self._delay_s[rows]
        for k, (row, moment) in enumerate(zip(rows.tolist(), at.tolist(), strict=True)):
            if row in self._links:
                idle_at[k] = self._reported_at(row, moment)
        self._idle_at[rows] = idle_at

    def is_idle(self, now: float) -> Bools:
        """Return which devices can be selected again, shape (N,)."""
        idle: Bools = self._idle_at <= now + BETWEEN_ROUNDS_S
        return idle

    def to_state(self) -> bytes:
        """Return the instants as bytes."""
        return self._idle_at.tobytes()

    def load_state(self, state: bytes) -> None:
        """Take over what `to_state` returned."""
        self._idle_at = np.frombuffer(state).copy()

    def _reported_at(self, row: int, at: float) -> float:
        """Return when a device with outages has reported that it is idle."""
        link = LinkIntegral(self._links[row], self._give_up_s)
        cancelled = min(link.carry(at, 0.0, "down"), at + self._give_up_s)
        idle = cancelled + link.delay_s(cancelled)
        return idle + link.delay_s(idle)


def _rows(exchanges: Sequence[ReplayedExchange]) -> Ints:
    return np.array([x.row for x in exchanges], dtype=np.int64)


def _floats(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)
