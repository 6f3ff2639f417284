"""How long the phases of an exchange take on devices of a profile.

    signal     the way of the order to train, and that of the offer
    download   a round trip, and the model's bits over the downlink from that moment on, after
               the waiting of TCP at its start (`testbed.emulation.tcp`)
    decode     of a model that came packed: work of unpacking it / speed of that moment
    load       when cold: the data from the storage, session and data opened by the processor
    evaluate   when the rule asks for the loss of the model that was sent
    train      work of the task / speed of that moment, which heat and other work slow down
    encode     work of packing the update / speed of that moment
    upload     a round trip from the grant on, and the update's bits over the uplink, likewise

Devices that never change are a few array operations, whatever their number. The others are walked
through their exchange one by one (`testbed.replay.world.integrals`), but only when they are chosen.
"""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.random_streams import normals
from fairbed.testbed.emulation.heat import Heat
from fairbed.testbed.emulation.schedule import LEAST_FREE_CORES
from fairbed.testbed.emulation.tcp import waiting_s
from fairbed.testbed.replay.world.columns import Moving, Steady
from fairbed.testbed.replay.world.integrals import ComputeIntegral, LinkIntegral
from fairbed.testbed.replay.world.work import Sizes, Work
from fairbed.testbed.replay.world.world import Exchanges
from fairbed.wire.chunks import suitable_chunk_bytes
from fairbed.wire.messages import DEVICE_PHASES


class Purpose(IntEnum):
    """Purposes of random streams per device, two numbers of `uniforms` each."""

    CONTEXT = 0
    DOWNLOAD = 2
    LOAD = 4
    EVALUATE = 6
    TRAIN = 8
    UPLOAD = 10
    DELAY = 12
    """Of `MESSAGES` messages: this and the next even numbers."""
    STAY = 24
    QUESTION = 26
    """Of the messages of a question, as of `DELAY`."""
    DECODE = 38
    ENCODE = 40


NOISY = (
    Purpose.DOWNLOAD,
    Purpose.LOAD,
    Purpose.EVALUATE,
    Purpose.TRAIN,
    Purpose.UPLOAD,
    Purpose.DECODE,
    Purpose.ENCODE,
)
"""The phases that luck stretches, in the order of `CohortWork.luck`."""

DECODING, ENCODING = NOISY.index(Purpose.DECODE), NOISY.index(Purpose.ENCODE)

TRAIN, ASK, MODEL, OFFER, GRANT, UPDATE = range(6)
"""The messages whose way counts, in their order."""
MESSAGES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortWork:
    """What a cohort is asked to do, and what chance has in store; columns of shape (K,)."""

    now: float
    """When it is asked, seconds of the run."""
    rows: Ints
    is_cold: Bools
    is_packed: Bools
    """The model comes packed."""
    has_model: Bools
    """It came with a question before."""
    up_bps: Floats
    """As the devices know it: they cut their updates by it."""
    luck: Floats
    """Factors on the phases of `NOISY`, shape (7, K)."""
    scores: Floats
    """Standard normal numbers of the delays of six messages, shape (6, K)."""


def luck(
    seed: int,
    round_id: int,
    rows: Ints,
    noise: float,
    *,
    jitters: bool = True,
    delays: Purpose = Purpose.DELAY,
) -> tuple[Floats, Floats]:
    """Return `luck` and `scores` of a cohort; scores are 0 where nothing jitters.

    A question has the luck of the exchange that follows, which does not repeat its phases, but for
    the `delays` of its messages.
    """
    factors = np.ones((len(NOISY), len(rows)))
    if noise > 0.0:
        factors = np.exp(noise * np.stack([normals(seed, round_id, rows, p) for p in NOISY]))
    if not jitters:
        return factors, np.zeros((MESSAGES, len(rows)))
    purposes = [delays + 2 * message for message in range(MESSAGES)]
    return factors, np.stack([normals(seed, round_id, rows, p) for p in purposes])


@dataclass(frozen=True, slots=True)
class PhaseModel:
    """The times of a fleet.

    Args:
        steady: What never moves.
        moving: What does.
        sizes: Of models and updates on the wire.
        work: Of a round, device by device.
        give_up_s: What takes longer than this takes for ever.
    """

    steady: Steady
    moving: Moving
    sizes: Sizes
    work: Work
    give_up_s: float

    def lines_s(
        self, rows: "Ints | slice", speed: Floats, down_bps: Floats, up_bps: Floats
    ) -> Floats:
        """Return download, load, evaluate, train and upload where nothing moves meanwhile.

        Without the ways of messages and the waiting of TCP, and as if everybody were cold and got
        the model whole.

        Args:
            rows: Of K devices.
            speed: Of training, in cores of the reference machine, shape (K,).
            down_bps: Shape (K,).
            up_bps: Shape (K,).

        Returns:
            Seconds, shape (5, K).
        """
        work, steady = self.work, self.steady
        follows_s = work.shard_bytes[rows] / steady.storage_bytes_per_s[rows]
        follows_s = follows_s + work.load_s[rows] / speed
        cold_s = steady.cold_start_s[rows]
        return np.stack(
            [
                8.0 * self.sizes.whole_bytes / down_bps,
                np.where(np.isnan(cold_s), follows_s, cold_s),
                work.evaluate_s[rows] / speed,
                work.train_s[rows] / speed,
                8.0 * self.sizes.up_bytes / up_bps,
            ]
        )

    def packing_s(self, speed: Floats, is_packed: Bools) -> tuple[Floats, Floats]:
        """Return decode and encode where nothing moves meanwhile, seconds, each of shape (K,).

        Args:
            speed: Of training, in cores of the reference machine, shape (K,): the emulation paces
                all that a device computes alike.
            is_packed: Whose model comes packed, shape (K,).
        """
        decode_s: Floats = np.where(is_packed, self.work.decode_s / speed, 0.0)
        encode_s: Floats = self.work.encode_s / speed
        return decode_s, encode_s

    def speed(self, rows: "Ints | slice", busy_cores: Floats, clock_ratio: Floats) -> Floats:
        """Return the speed of training, in cores of the reference machine, shape (K,)."""
        steady = self.steady
        free = np.maximum(steady.cores[rows] - busy_cores, LEAST_FREE_CORES)
        speed: Floats = steady.per_core[rows] * np.minimum(steady.threads[rows], free) * clock_ratio
        return speed

    def exchanges(self, order: CohortWork, heats: dict[int, Heat]) -> Exchanges:
        """Return what a cohort does.

        Args:
            order: What it is asked.
            heats: Of the rows that heat up, at the moment of the order or before; not changed.
        """
        found = self._steadily(order)
        moving = [(at, row) for at, row in enumerate(order.rows.tolist()) if self._moves(row)]
        if not moving:
            return found
        walks = {at: self._walk(order, at, row, heats) for at, row in moving}
        columns = {name: getattr(found, name).copy() for name in PHASES}
        for at, walk in walks.items():
            for name, value in walk.phases_s().items():
                columns[name][at] = value

        gone_s = np.full(len(order.rows), np.inf)
        for at, row in moving:
            if row in self.moving.cut:
                over_s = sum(columns[name][at] for name in columns)
                gone_s[at] = walks[at].gone_s(min(over_s, self.give_up_s))
        return replace(found, **columns, gone_s=gone_s)

    def upload_s(self, order: CohortWork, heats: dict[int, Heat], granted_s: float) -> float | None:
        """Return how long the upload of the first of a cohort takes that is granted later.

        None where it always takes the same.
        """
        row = int(order.rows[0])
        return self._walk(order, 0, row, heats).upload_s(granted_s) if self._moves(row) else None

    def _steadily(self, order: CohortWork) -> Exchanges:
        rows, steady, sizes = order.rows, self.steady, self.sizes
        speed = self.speed(rows, steady.busy_cores[rows], steady.clock_ratio[rows])
        lines_s = self.lines_s(rows, speed, steady.down_bps[rows], steady.up_bps[rows])
        lines_s = lines_s * order.luck[: len(lines_s)]
        decode_s, encode_s = self.packing_s(speed, order.is_packed & ~order.has_model)
        delay_s = np.maximum(steady.delay_s[rows] + steady.jitter_s[rows] * order.scores, 0.0)
        down_bytes = sizes.down_bytes(order.is_packed)
        trip_s = 2.0 * steady.delay_s[rows]
        down_s = lines_s[0] * down_bytes / sizes.whole_bytes
        down_s = down_s + waiting_s(8.0 * down_bytes * order.luck[0], down_s, trip_s)
        pull_s = delay_s[ASK] + down_s + delay_s[MODEL]
        up_s = lines_s[4] + waiting_s(8.0 * sizes.up_bytes * order.luck[4], lines_s[4], trip_s)
        packed = sizes.codec_down
        return Exchanges(
            started_s=order.now,
            signal_s=delay_s[TRAIN] + delay_s[OFFER],
            download_s=np.where(order.has_model, 0.0, pull_s),
            decode_s=decode_s * order.luck[DECODING],
            load_s=np.where(order.is_cold, lines_s[1], 0.0),
            evaluate_s=lines_s[2],
            train_s=lines_s[3],
            encode_s=encode_s * order.luck[ENCODING],
            upload_s=delay_s[GRANT] + up_s + delay_s[UPDATE],
            is_upload_seen=True,
            was_cold=order.is_cold,
            bytes_down=np.where(order.has_model, 0, down_bytes),
            bytes_up=np.full(len(rows), sizes.up_bytes, dtype=np.int64),
            chunk_bytes=np.array(
                [suitable_chunk_bytes(bps, sizes.up_bytes) for bps in order.up_bps.tolist()],
                dtype=np.int64,
            ),
            codec_down=tuple(packed if is_so else "float32" for is_so in order.is_packed.tolist()),
            codec_up=sizes.codec_up,
            steps=self.work.steps[rows],
        )

    def _moves(self, row: int) -> bool:
        return row in self.moving.links

    def _walk(self, order: CohortWork, at: int, row: int, heats: dict[int, Heat]) -> "_Walk":
        steady, work, heat = self.steady, self.work, heats.get(row)
        cold_s = float(steady.cold_start_s[row])
        is_unpacked = bool(order.is_packed[at] & ~order.has_model[at])
        return _Walk(
            way=LinkIntegral(self.moving.links[row], self.give_up_s),
            pace=ComputeIntegral(
                self.moving.speeds[row],
                None if heat is None else replace(heat),
                float(steady.threads[row] / steady.cores[row]),
                self.give_up_s,
            ),
            now=order.now,
            jitter_s=(steady.jitter_s[row] * order.scores[:, at]).tolist(),
            luck=order.luck[:, at].tolist(),
            has_model=bool(order.has_model[at]),
            down_bits=8.0 * float(self.sizes.down_bytes(order.is_packed)[at]),
            up_bits=8.0 * self.sizes.up_bytes,
            read_s=float(work.shard_bytes[row] / steady.storage_bytes_per_s[row]),
            load_work_s=float(work.load_s[row]),
            cold_start_s=None if np.isnan(cold_s) else cold_s,
            is_cold=bool(order.is_cold[at]),
            evaluate_work_s=float(work.evaluate_s[row]),
            train_work_s=float(work.train_s[row]),
            decode_work_s=work.decode_s if is_unpacked else 0.0,
            encode_work_s=work.encode_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """One device on its way through one exchange."""

    way: LinkIntegral
    pace: ComputeIntegral
    now: float
    jitter_s: list[float]
    luck: list[float]
    has_model: bool
    down_bits: float
    up_bits: float
    read_s: float
    load_work_s: float
    cold_start_s: float | None
    is_cold: bool
    evaluate_work_s: float
    train_work_s: float
    decode_work_s: float
    encode_work_s: float

    def phases_s(self) -> dict[str, float]:
        """Return the phases that the clock of the device sees, and an upload granted at once."""
        asked = self._message(self.now, TRAIN)
        got = asked if self.has_model else self._pulled(asked)
        decoded = self._packed(got, self.decode_work_s * self.luck[DECODING])
        loaded = self._loaded(decoded) if self.is_cold else decoded
        evaluated = self.pace.work(loaded, self.evaluate_work_s * self.luck[2])
        trained = self.pace.work(evaluated, self.train_work_s * self.luck[3])
        encoded = self._packed(trained, self.encode_work_s * self.luck[ENCODING])
        offered = self._message(encoded, OFFER)
        if offered == np.inf:
            return dict.fromkeys(PHASES, 0.0) | {"signal_s": np.inf, "upload_s": np.inf}
        return {
            "signal_s": (asked - self.now) + (offered - encoded),
            "download_s": got - asked,
            "decode_s": decoded - got,
            "load_s": loaded - decoded,
            "evaluate_s": evaluated - loaded,
            "train_s": trained - evaluated,
            "encode_s": encoded - trained,
            "upload_s": self.upload_s(offered - self.now),
        }

    def upload_s(self, granted_s: float) -> float:
        """Return how long an upload takes that is granted so long after the order."""
        granted = self.now + granted_s
        begun = self._message(granted, GRANT)
        carried = self.way.transfer(begun, self.up_bits * self.luck[4], "up")
        return carried + self._delay_s(carried, UPDATE) - granted

    def gone_s(self, over_s: float) -> float:
        """Return how long after the order the device is given up, before it is over."""
        return self.way.gone_at(self.now, self.now + over_s) - self.now

    def _pulled(self, start: float) -> float:
        begun = self._message(start, ASK)
        carried = self.way.transfer(begun, self.down_bits * self.luck[0], "down")
        return carried + self._delay_s(carried, MODEL)

    def _loaded(self, start: float) -> float:
        if self.cold_start_s is not None:
            return start + self.cold_start_s * self.luck[1]
        read = start + self.read_s * self.luck[1]
        return self.pace.work(read, self.load_work_s * self.luck[1])

    def _packed(self, start: float, work_s: float) -> float:
        """Return when packing or unpacking is done; where there is none, nothing is looked at."""
        return self.pace.work(start, work_s) if work_s > 0.0 else start

    def _message(self, sent: float, message: int) -> float:
        """Return when a message arrives: it waits where nothing passes."""
        free = self.way.carry(sent, 0.0, "down")
        return free + self._delay_s(free, message)

    def _delay_s(self, t: float, message: int) -> float:
        return max(0.0, self.way.delay_s(t) + self.jitter_s[message]) if t < np.inf else 0.0


PHASES = ("signal_s", *(f"{phase}_s" for phase in DEVICE_PHASES), "upload_s")
"""Of an exchange, by the names of its columns; waiting for a slot to send is not one."""
