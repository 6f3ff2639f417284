"""Durations of the phases of an exchange on devices of a profile.

    signal     delays of the train request and of the offer
    download   a round trip, and the model's bits over the downlink, after TCP slow start
               (`testbed.emulation.tcp`)
    decode     work of unpacking a packed model / speed
    load       if cold: reading the data from the storage, opening session and data
    evaluate   work of evaluating the model that was sent / speed, if the aggregation rule needs
               the loss
    train      work of the task / speed; heat and other work slow the device down
    encode     work of encoding the update / speed
    upload     a round trip from the grant on, and the update's bits over the uplink, as for
               download

Devices under constant conditions need a few array operations, whatever their number. For the
others, rate and speed are integrated over time, device by device
(`testbed.replay.world.integrals`), and only for the devices that are selected.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.random_streams import normals
from fairbed.testbed.emulation.cell import Direction
from fairbed.testbed.emulation.heat import Heat
from fairbed.testbed.emulation.schedule import LEAST_FREE_CORES
from fairbed.testbed.emulation.tcp import slow_start_s
from fairbed.testbed.experiment.noise import NoiseConfig, exchange_factors
from fairbed.testbed.replay.world.columns import MeanConditions, VaryingConditions
from fairbed.testbed.replay.world.integrals import ComputeIntegral, LinkIntegral
from fairbed.testbed.replay.world.tcp_links import StreamDraws, TcpLinks
from fairbed.testbed.replay.world.work import Sizes, Work
from fairbed.testbed.replay.world.world import Exchanges, ModelFault
from fairbed.wire.chunks import suitable_chunk_bytes
from fairbed.wire.messages import DEVICE_PHASES


class Purpose(IntEnum):
    """Purposes of the random streams of a device; each takes two numbers of `uniforms`."""

    CONTEXT = 0
    DOWNLOAD = 2
    LOAD = 4
    EVALUATE = 6
    TRAIN = 8
    UPLOAD = 10
    DELAY = 12
    """Delays of `MESSAGES` messages: this number and the next even ones."""
    AVAILABILITY = 24
    LOSS_QUERY = 26
    """Delays of the messages of a loss query, as `DELAY`."""
    DECODE = 38
    ENCODE = 40
    TCP = 42
    """Losses of packets, from the seed of this number."""
    TCP_QUERY = 43
    """The same in a loss query."""
    RECORDED_ROW = 50
    """Row of a log (`testbed.replay.world.recorded_times`). From 60 on: `[noise]`
    (`testbed.experiment.noise`)."""


NOISY = (
    Purpose.DOWNLOAD,
    Purpose.LOAD,
    Purpose.EVALUATE,
    Purpose.TRAIN,
    Purpose.UPLOAD,
    Purpose.DECODE,
    Purpose.ENCODE,
)
"""The phases with noise, in the order of `CohortRequest.noise_factors`."""

PART_OF = [{Purpose.DOWNLOAD: 0, Purpose.UPLOAD: 2}.get(phase, 1) for phase in NOISY]
"""The part of an exchange of each phase of `NOISY` (`testbed.experiment.noise.PARTS`)."""

TRAINING = 3
"""Row of training in `PhaseModel.base_s`."""

DECODING, ENCODING = NOISY.index(Purpose.DECODE), NOISY.index(Purpose.ENCODE)

TRAIN, CHUNK_REQUEST, MODEL, OFFER, GRANT, UPDATE = range(6)
"""Messages whose delays count, in the order in which they are sent."""
MESSAGES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortRequest:
    """Requests to a cohort, and the random numbers of its exchanges; columns of shape (K,)."""

    now: float
    """Instant of the requests, seconds of the run."""
    rows: Ints
    is_cold: Bools
    is_packed: Bools
    """The model is sent packed."""
    has_model: Bools
    """The device received the model with a loss query of this round."""
    up_bps: Floats
    """Uplink rates as the devices know them; they determine the chunk size of an update."""
    noise_factors: Floats
    """Factors on the phases of `NOISY`, shape (7, K)."""
    delay_noise: Floats
    """Standard normal numbers for the delays of six messages, shape (6, K)."""
    tcp_seeds: Ints
    """Seeds of the losses of packets, shape (K,)."""
    drawn: tuple[Ints, Floats] | None = None
    """Steps and work of training that the devices have drawn, as `Work.draws` returns them."""

    def of_one(self, at: int) -> "CohortRequest":
        """Return the request to one device of the cohort."""
        one = slice(at, at + 1)
        return replace(
            self,
            rows=self.rows[one],
            is_cold=self.is_cold[one],
            is_packed=self.is_packed[one],
            has_model=self.has_model[one],
            up_bps=self.up_bps[one],
            noise_factors=self.noise_factors[:, one],
            delay_noise=self.delay_noise[:, one],
            tcp_seeds=self.tcp_seeds[one],
            drawn=None if self.drawn is None else (self.drawn[0][one], self.drawn[1][one]),
        )


def cohort_noise(
    seed: int,
    round_id: int,
    rows: Ints,
    noise: float,
    *,
    own: NoiseConfig | None = None,
    jitters: bool = True,
    delays: Purpose = Purpose.DELAY,
) -> tuple[Floats, Floats]:
    """Return `noise_factors` and `delay_noise` of a cohort; without jitter the latter is 0.

    A loss query has the noise factors of the exchange that follows, which does not repeat the
    phases of the query. The delays of its messages are drawn apart, for the purpose `delays`.
    """
    factors = np.ones((len(NOISY), len(rows)))
    if noise > 0.0:
        factors = np.exp(noise * np.stack([normals(seed, round_id, rows, p) for p in NOISY]))
    if own is not None and own.varies_exchanges:
        factors = factors * exchange_factors(own, seed, round_id, rows)[PART_OF]
    if not jitters:
        return factors, np.zeros((MESSAGES, len(rows)))
    purposes = [delays + 2 * message for message in range(MESSAGES)]
    return factors, np.stack([normals(seed, round_id, rows, p) for p in purposes])


@dataclass(frozen=True, slots=True)
class PhaseModel:
    """Durations of the phases of a fleet.

    Args:
        means: Conditions of all devices, as means.
        varying: Conditions that vary over time.
        sizes: Sizes of models and updates on the wire.
        work: Work of a round, device by device.
        give_up_s: A phase that takes longer never ends.
        tcp: Connections of the devices whose packets are lost.
        during: What these phases are of, in an internal error.
    """

    means: MeanConditions
    varying: VaryingConditions
    sizes: Sizes
    work: Work
    give_up_s: float
    tcp: TcpLinks
    during: str = "exchange"

    def base_s(
        self, rows: "Ints | slice", speed: Floats, down_bps: Floats, up_bps: Floats
    ) -> Floats:
        """Return download, load, evaluate, train and upload under constant conditions.

        Message delays and TCP slow start are left out; every device is cold and receives the
        model unpacked.

        Args:
            rows: Rows of K devices.
            speed: Speed of training, in cores of the reference machine, shape (K,).
            down_bps: Shape (K,).
            up_bps: Shape (K,).

        Returns:
            Seconds, shape (5, K).
        """
        work, means = self.work, self.means
        load_s = work.shard_bytes[rows] / means.storage_bytes_per_s[rows]
        load_s = load_s + work.load_s[rows] / speed
        cold_s = means.cold_start_s[rows]
        return np.stack(
            [
                8.0 * self.sizes.whole_bytes / down_bps,
                np.where(np.isnan(cold_s), load_s, cold_s),
                work.evaluate_s[rows] / speed,
                work.train_s[rows] / speed,
                8.0 * self.sizes.up_bytes / up_bps,
            ]
        )

    def download_once_s(self, n_bytes: int) -> Floats:
        """Return how long each device downloads a blob before round 1, seconds, shape (N,).

        It does so once, under the mean conditions of its link: a round trip, then the bits, after
        TCP slow start.
        """
        means, bits = self.means, 8.0 * n_bytes
        trip_s = 2.0 * means.delay_s
        down_s = bits / means.down_bps
        return trip_s + down_s + slow_start_s(np.full(len(means), bits), down_s, trip_s)

    def coding_s(self, speed: Floats, is_packed: Bools) -> tuple[Floats, Floats]:
        """Return decode and encode under constant conditions, seconds, each of shape (K,).

        Args:
            speed: Speed of training, in cores of the reference machine, shape (K,); the emulation
                paces all work of a device alike.
            is_packed: Which models are sent packed, shape (K,).
        """
        decode_s: Floats = np.where(is_packed, self.work.decode_s / speed, 0.0)
        encode_s: Floats = self.work.encode_s / speed
        return decode_s, encode_s

    def speed(self, rows: "Ints | slice", busy_cores: Floats, clock_ratio: Floats) -> Floats:
        """Return the speed of training, in cores of the reference machine, shape (K,)."""
        means = self.means
        free = np.maximum(means.cores[rows] - busy_cores, LEAST_FREE_CORES)
        speed: Floats = means.per_core[rows] * np.minimum(means.threads[rows], free) * clock_ratio
        return speed

    def exchanges(self, request: CohortRequest, heats: dict[int, Heat]) -> Exchanges:
        """Return the planned exchanges of a cohort.

        Args:
            request: The requests to the cohort.
            heats: Heat of the rows that heat up, at the request or before; not changed.
        """
        exchanges = self._under_constant_conditions(request)
        varying = [(at, row) for at, row in enumerate(request.rows.tolist()) if self._varies(row)]
        if not varying:
            return exchanges
        columns = {name: getattr(exchanges, name).copy() for name in PHASES}
        gone_s, faults = np.full(len(request.rows), np.inf), dict[int, ModelFault]()
        for at, row in varying:
            try:
                phases_s, gone_s[at] = self._of_one(request, at, row, heats)
            except Exception as exc:  # a bug of a model ends one exchange, and not the replay
                phases_s, faults[at] = _ENDLESS, ModelFault.of(row, self.during, exc)
            for name, value in phases_s.items():
                columns[name][at] = value
        in_cell = np.isin(request.rows, list(self.varying.sharers))
        if in_cell.any():  # `SharedAir` computes when their transfers end
            columns["download_s"][in_cell & ~request.has_model] = np.inf
            columns["upload_s"][in_cell] = np.inf
            waits_s = {"cell_wait_s": np.where(in_cell, 0.0, np.nan)}
            measured = {**exchanges.measured, **waits_s}
            exchanges = replace(exchanges, in_cell=in_cell, measured=measured)

        return replace(exchanges, **columns, gone_s=gone_s, faults=faults)

    def _of_one(
        self, request: CohortRequest, at: int, row: int, heats: dict[int, Heat]
    ) -> tuple[Mapping[str, float], float]:
        """Return the phases of one exchange, and when its device is lost, after the request."""
        integrator = self._integrator(request, at, row, heats)
        phases_s = integrator.phases_s()
        if row not in self.varying.interrupted:
            return phases_s, np.inf
        shares = row in self.varying.sharers
        over_s = np.inf if shares else sum(phases_s[name] for name in PHASES)
        return phases_s, integrator.gone_s(min(over_s, self.give_up_s))

    def upload_s(
        self, request: CohortRequest, heats: dict[int, Heat], granted_s: float
    ) -> float | None:
        """Return the duration of an upload that is granted `granted_s` after the request.

        It is that of the first device of the request; None if it does not depend on the grant.
        """
        row = int(request.rows[0])
        if not self._varies(row):
            return None
        return self._integrator(request, 0, row, heats).upload_s(granted_s)

    def pull_start(self, request: CohortRequest, heats: dict[int, Heat]) -> tuple[float, float]:
        """Return when the download of the request's first device begins, and its bits."""
        return self._first(request, heats).pull_start()

    def after_pull_s(
        self, request: CohortRequest, heats: dict[int, Heat], carried: float
    ) -> dict[str, float]:
        """Return all phases but the upload, for a model that has left the line at `carried`."""
        integrator = self._first(request, heats)
        return integrator.phases_after_pull_s(integrator.arrival(carried, MODEL))[0]

    def upload_start(
        self, request: CohortRequest, heats: dict[int, Heat], granted_s: float
    ) -> tuple[float, float]:
        """Return when an upload begins that is granted `granted_s` after the request; its bits."""
        return self._first(request, heats).upload_start(granted_s)

    def update_arrival(
        self, request: CohortRequest, heats: dict[int, Heat], carried: float
    ) -> float:
        """Return when an update arrives that has left the line at `carried`."""
        return self._first(request, heats).arrival(carried, UPDATE)

    def _first(self, request: CohortRequest, heats: dict[int, Heat]) -> "_PhaseIntegrator":
        return self._integrator(request, 0, int(request.rows[0]), heats)

    def _under_constant_conditions(self, request: CohortRequest) -> Exchanges:
        rows, means, sizes = request.rows, self.means, self.sizes
        speed = self.speed(rows, means.busy_cores[rows], means.clock_ratio[rows])
        base_s = self.base_s(rows, speed, means.down_bps[rows], means.up_bps[rows])
        steps = self.work.steps[rows]
        if request.drawn is not None:
            steps, train_s = request.drawn
            base_s[TRAINING] = train_s / speed
        base_s = base_s * request.noise_factors[: len(base_s)]
        decode_s, encode_s = self.coding_s(speed, request.is_packed & ~request.has_model)
        delay_s = np.maximum(means.delay_s[rows] + means.jitter_s[rows] * request.delay_noise, 0.0)
        down_bytes = sizes.down_bytes(request.is_packed)
        trip_s = 2.0 * means.delay_s[rows]
        down_s = base_s[0] * down_bytes / sizes.whole_bytes
        down_s = down_s + slow_start_s(8.0 * down_bytes * request.noise_factors[0], down_s, trip_s)
        pull_s = delay_s[CHUNK_REQUEST] + down_s + delay_s[MODEL]
        up_s = base_s[4] + slow_start_s(
            8.0 * sizes.up_bytes * request.noise_factors[4], base_s[4], trip_s
        )
        packed_by = sizes.codec_down
        return Exchanges(
            started_s=request.now,
            signal_s=delay_s[TRAIN] + delay_s[OFFER],
            download_s=np.where(request.has_model, 0.0, pull_s),
            decode_s=decode_s * request.noise_factors[DECODING],
            load_s=np.where(request.is_cold, base_s[1], 0.0),
            evaluate_s=base_s[2],
            train_s=base_s[TRAINING],
            personal_s=self.work.personal_s[rows] / speed * request.noise_factors[3],
            encode_s=encode_s * request.noise_factors[ENCODING],
            upload_s=delay_s[GRANT] + up_s + delay_s[UPDATE],
            is_upload_seen=True,
            was_cold=request.is_cold,
            bytes_down=np.where(request.has_model, 0, down_bytes),
            bytes_up=np.full(len(rows), sizes.up_bytes, dtype=np.int64),
            chunk_bytes=np.array(
                [suitable_chunk_bytes(bps, sizes.up_bytes) for bps in request.up_bps.tolist()],
                dtype=np.int64,
            ),
            codec_down=tuple(
                packed_by if is_packed else "float32" for is_packed in request.is_packed.tolist()
            ),
            codec_up=sizes.codec_up,
            steps=steps,
        )

    def _varies(self, row: int) -> bool:
        return row in self.varying.links

    def _integrator(
        self, request: CohortRequest, at: int, row: int, heats: dict[int, Heat]
    ) -> "_PhaseIntegrator":
        means, work, heat = self.means, self.work, heats.get(row)
        cold_s = float(means.cold_start_s[row])
        is_unpacked = bool(request.is_packed[at] & ~request.has_model[at])
        return _PhaseIntegrator(
            link=LinkIntegral(self.varying.links[row], self.give_up_s),
            tcp=self.tcp if row in self.tcp else None,
            row=row,
            tcp_seed=int(request.tcp_seeds[at]),
            processor=ComputeIntegral(
                self.varying.speeds[row],
                None if heat is None else replace(heat),
                float(means.threads[row] / means.cores[row]),
                self.give_up_s,
            ),
            now=request.now,
            jitter_s=(means.jitter_s[row] * request.delay_noise[:, at]).tolist(),
            noise_factors=request.noise_factors[:, at].tolist(),
            has_model=bool(request.has_model[at]),
            down_bits=8.0 * float(self.sizes.down_bytes(request.is_packed)[at]),
            up_bits=8.0 * self.sizes.up_bytes,
            read_s=float(work.shard_bytes[row] / means.storage_bytes_per_s[row]),
            load_work_s=float(work.load_s[row]),
            cold_start_s=None if np.isnan(cold_s) else cold_s,
            is_cold=bool(request.is_cold[at]),
            evaluate_work_s=float(work.evaluate_s[row]),
            train_work_s=float(
                work.train_s[row] if request.drawn is None else request.drawn[1][at]
            ),
            personal_work_s=float(work.personal_s[row]),
            decode_work_s=work.decode_s if is_unpacked else 0.0,
            encode_work_s=work.encode_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PhaseIntegrator:
    """Integrates the phases of one exchange of a device under varying conditions."""

    link: LinkIntegral
    tcp: TcpLinks | None
    """None for a device whose packets are not lost."""
    row: int
    tcp_seed: int
    processor: ComputeIntegral
    now: float
    jitter_s: list[float]
    noise_factors: list[float]
    has_model: bool
    down_bits: float
    up_bits: float
    read_s: float
    load_work_s: float
    cold_start_s: float | None
    is_cold: bool
    evaluate_work_s: float
    train_work_s: float
    personal_work_s: float
    decode_work_s: float
    encode_work_s: float

    def phases_s(self) -> dict[str, float]:
        """Return the duration of each phase, with an upload that is granted at once."""
        pulled = self._requested if self.has_model else self._pulled()
        phases, offered = self.phases_after_pull_s(pulled)
        if offered == np.inf:
            return phases | {"upload_s": np.inf}
        return phases | {"upload_s": self.upload_s(offered - self.now)}

    def phases_after_pull_s(self, pulled: float) -> tuple[dict[str, float], float]:
        """Return the duration of each phase but the upload, and when the update is offered.

        Args:
            pulled: When the device has the model.
        """
        requested = self._requested
        decoded = self._optional(pulled, self.decode_work_s * self.noise_factors[DECODING])
        loaded = self._loaded(decoded) if self.is_cold else decoded
        evaluated = self.processor.work(loaded, self.evaluate_work_s * self.noise_factors[2])
        trained = self.processor.work(evaluated, self.train_work_s * self.noise_factors[3])
        personal = self._optional(trained, self.personal_work_s * self.noise_factors[3])
        encoded = self._optional(personal, self.encode_work_s * self.noise_factors[ENCODING])
        offered = self._message(encoded, OFFER)
        if offered == np.inf:
            return dict.fromkeys(PHASES[:-1], 0.0) | {"signal_s": np.inf}, np.inf
        phases = {
            "signal_s": (requested - self.now) + (offered - encoded),
            "download_s": pulled - requested,
            "decode_s": decoded - pulled,
            "load_s": loaded - decoded,
            "evaluate_s": evaluated - loaded,
            "train_s": trained - evaluated,
            "personal_s": personal - trained,
            "encode_s": encoded - personal,
        }
        return phases, offered

    def pull_start(self) -> tuple[float, float]:
        """Return when the first bit of the model is sent, and the bits of the model."""
        start = self._message(self._requested, CHUNK_REQUEST)
        return start, self.down_bits * self.noise_factors[0]

    def upload_start(self, granted_s: float) -> tuple[float, float]:
        """Return when an upload begins that is granted `granted_s` after the request; its bits."""
        start = self._message(self.now + granted_s, GRANT)
        return start, self.up_bits * self.noise_factors[4]

    def arrival(self, carried: float, message: int) -> float:
        """Return when a model or an update arrives that has left the line at `carried`."""
        return carried + self._delay_s(carried, message)

    def upload_s(self, granted_s: float) -> float:
        """Return the duration of an upload that is granted `granted_s` after the request."""
        start, bits = self.upload_start(granted_s)
        return self._transferred(start, bits, "up", UPDATE) - (self.now + granted_s)

    def gone_s(self, over_s: float) -> float:
        """Return when the device is lost, after the request; `inf` if not within `over_s`."""
        return self.link.gone_at(self.now, self.now + over_s) - self.now

    @property
    def _requested(self) -> float:
        """When the device has the request."""
        return self._message(self.now, TRAIN)

    def _pulled(self) -> float:
        start, bits = self.pull_start()
        return self._transferred(start, bits, "down", MODEL)

    def _transferred(self, start: float, bits: float, direction: Direction, message: int) -> float:
        """Return when the last byte of a transfer arrives."""
        if self.tcp is None:
            return self.arrival(self.link.transfer(start, bits, direction), message)
        draws, give_up_s = self._draws(message), self.link.give_up_s
        return self.tcp.transfer(self.row, direction, start, bits, draws, give_up_s, message)

    def _draws(self, message: int) -> StreamDraws:
        """Return the random numbers of a message, or of the transfer that ends with it."""
        return StreamDraws(self.tcp_seed, message)

    def _loaded(self, start: float) -> float:
        if self.cold_start_s is not None:
            return start + self.cold_start_s * self.noise_factors[1]
        read = start + self.read_s * self.noise_factors[1]
        return self.processor.work(read, self.load_work_s * self.noise_factors[1])

    def _optional(self, start: float, work_s: float) -> float:
        """Return when work is done that few exchanges have; `start` if there is none."""
        return self.processor.work(start, work_s) if work_s > 0.0 else start

    def _message(self, sent: float, message: int) -> float:
        """Return when a message arrives; during an outage it waits for the end."""
        if self.tcp is not None:
            direction: Direction = "up" if message in (CHUNK_REQUEST, OFFER) else "down"
            draws, give_up_s = self._draws(message), self.link.give_up_s
            return self.tcp.message(self.row, direction, sent, draws, give_up_s, message)
        passes = self.link.carry(sent, 0.0, "down")
        return passes + self._delay_s(passes, message)

    def _delay_s(self, t: float, message: int) -> float:
        return max(0.0, self.link.delay_s(t) + self.jitter_s[message]) if t < np.inf else 0.0


PHASES = ("signal_s", *(f"{phase}_s" for phase in DEVICE_PHASES), "upload_s")
"""Phases of an exchange, by column name; waiting for an upload slot is not one."""

_ENDLESS: Mapping[str, float] = {**dict.fromkeys(PHASES, 0.0), "signal_s": np.inf}
"""Phases of an exchange whose model had an internal error."""
