"""Findings about a device from the rows of a run. Pure.

Only valid exchanges count: in the others the machine that emulates the fleet, or the coordinator,
delayed the device. Transfers with repeated chunks do not count either.

The work of decoding models and encoding updates follows from their durations. The speed of an
emulated device paces these two phases, as it paces training, whose cost is known:

    work = duration of the phase * speed,   speed = work of training / train_s
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.policy.config import ExchangeConfig
from fairbed.coordinator.state.memory import Fitting
from fairbed.coordinator.store.tables import DeviceRow, ExchangeRow, TelemetryRow
from fairbed.testbed.emulation.work import WorkCosts, bucket_passes_s, passes_s, share_of
from fairbed.testbed.recording.analysis.availability import (
    PresenceSample,
    TimeSpan,
    measure_availability,
)
from fairbed.testbed.recording.analysis.findings import (
    Finding,
    Findings,
    NotMeasured,
    Sampled,
    throttling_remark,
)
from fairbed.testbed.recording.analysis.processor import (
    TimedTraining,
    background_load,
    clock_ratio,
    core_speed,
)
from fairbed.testbed.recording.analysis.rates import (
    Transfer,
    link_rate,
    one_way_delay,
    steady_transfer,
    whole_transfer,
)
from fairbed.wire.messages import DEVICE_PHASES, Capabilities

MIN_POWERED = 3
"""Least number of exchanges with a known energy for the power of a device."""

MIN_COLD = 2
"""Least number of cold rounds for the cost of a cold start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOfRun:
    """Rows of one device in the store of a run."""

    row: DeviceRow
    capabilities: Capabilities
    exchanges: Sequence[ExchangeRow]
    telemetry: Sequence[TelemetryRow]
    length_s: float
    """Length of the run, on its clock."""
    run_created: str
    """Wall clock time."""


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Settings and costs of local training in a run."""

    epochs: int
    batch_size: int
    costs: WorkCosts
    """Costs of its steps, in seconds of one core of the machine that measured them."""
    core_speed: float
    """Speed of that machine, in cores of the reference machine."""
    part_size: int | None = None
    """Examples that a device computes at once; None is a mini-batch."""
    fitting: Fitting | None = None
    """Chooses `part_size` by the memory of a device; None: it is the same on all."""

    counts: tuple[int, ...] = ()
    """Training examples at each of `data.buckets`, or numbers in their proportion; empty: all have
    one length."""
    counts_of: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The same of each device whose examples are known; the others have `counts`."""
    gradients: int = 1
    """Gradients that a step computes."""

    def of_device(self, device: DeviceRow) -> "TrainingSettings":
        """Return the settings on a device."""
        found = replace(self, counts=self.counts_of.get(device.name, self.counts), counts_of={})
        if self.fitting is None:
            return found
        capabilities = msgspec.json.decode(device.capabilities, type=Capabilities)
        size = self.fitting.part_size(capabilities.memory_bytes, device.n_k)
        return replace(found, part_size=size or None, fitting=None)

    def lengths_of(self, n_k: int) -> NDArray[np.int64] | None:
        """Return the examples at each length, shape (1, L); None: all have one length."""
        return share_of(np.array([self.counts]), np.array([n_k])) if self.counts else None

    def reference_s(self, n_k: int, steps: int) -> float | None:
        """Return the cost of `steps` over `n_k` examples; None if there cannot be so many steps.

        Mini-batches of several lengths that are no whole epoch cost their share of one.
        """
        if not 0 < steps <= self.epochs * -(-n_k // self.batch_size):
            return None
        done, lengths = np.array([steps]), self.lengths_of(n_k)
        if lengths is None:
            cost_s = passes_s(
                self.costs.train, np.array([n_k]), done, self.batch_size, self.part_size
            )
        else:
            costs = self.costs.train_of_lengths
            cost_s = bucket_passes_s(costs, lengths, done, self.batch_size, self.part_size)
        return float(cost_s[0]) * self.core_speed * self.gradients


def findings_of_run(device: DeviceOfRun, training: TrainingSettings) -> Findings:
    """Return the findings of a run about a device."""
    found, is_known = Findings(), device.row.name in training.counts_of
    training = training.of_device(device.row)
    exchanges = valid(device.exchanges)
    others = len(device.exchanges) - len(exchanges)
    found.remarks.append(f"From {len(exchanges)} valid exchanges; {others} others were ignored.")
    if training.counts and not is_known:
        found.remarks.append("Lengths of its sequences are unknown: those of all data are taken.")
    _capabilities(found, device.capabilities)
    telemetry = list(device.telemetry)
    cores, length_s = device.capabilities.cores, device.length_s
    free = sampled((row.at_s, row.free_cores) for row in telemetry)
    clock = sampled((row.at_s, row.clock_ratio) for row in telemetry)
    found.take("background_load", lambda: background_load(free, cores, length_s))
    found.take("clock_ratio", lambda: clock_ratio(clock, length_s))
    found.examined.update({"clock_ratio", "thermal"} if len(clock) else ())
    trainings = list(_timed_trainings(exchanges, telemetry, training))
    found.take("core_speed", lambda: core_speed(trainings, "rounds of training"))
    _link(found, exchanges, length_s)
    found.take("cold_start_s", lambda: _cold_start(exchanges))
    _availability(found, device)
    _throttling(found, telemetry)
    _power(found, exchanges)
    found.missing["storage_read_bytes_per_s"] = (
        "a run contains no storage rate; fairbed record on the device measures it"
    )
    celsius = [row.temperature_celsius for row in telemetry if row.temperature_celsius is not None]
    if celsius:
        found.remarks.append(f"Temperature: {min(celsius):.1f} to {max(celsius):.1f} C.")
    return found


def valid(exchanges: Iterable[ExchangeRow]) -> list[ExchangeRow]:
    """Return the completed exchanges that nothing but the device delayed."""
    return [x for x in exchanges if x.outcome == "done" and x.is_valid and not x.is_contended]


def sampled(pairs: Iterable[tuple[float, float | None]]) -> Sampled:
    """Return the readings that are known, in order of time."""
    known = sorted((at_s, value) for at_s, value in pairs if value is not None)
    return Sampled([at_s for at_s, _ in known], [value for _, value in known])


def _capabilities(found: Findings, capabilities: Capabilities) -> None:
    found.add("cores", capabilities.cores, "affinity and quota, as the agent found them")
    found.add("engine_threads", capabilities.engine_threads, "as the agent was configured")
    found.add("memory_bytes", capabilities.memory_bytes, "memory that the agent may use")


_BEFORE_TRAINING = DEVICE_PHASES[: DEVICE_PHASES.index("train")]


def _timed_trainings(
    exchanges: Sequence[ExchangeRow], telemetry: Sequence[TelemetryRow], training: TrainingSettings
) -> Iterable[TimedTraining]:
    """Yield the training of each exchange, with its cores."""
    at_s = np.array([row.at_s for row in telemetry])
    mu = np.array([row.mu_cores for row in telemetry])
    for x in exchanges:
        reference_s = training.reference_s(x.n_k, x.steps)
        if reference_s is None or x.train_s is None or x.mu_cores is None:
            continue
        before_s = sum(getattr(x, f"{phase}_s") or 0.0 for phase in _BEFORE_TRAINING)
        start_s = x.dispatched_at_s + (x.signal_s or 0.0) + before_s
        # A context covers the second before it, so one just after the training counts too.
        mu_cores = mu[(at_s >= start_s) & (at_s <= start_s + x.train_s + 1.0)]
        cores = float(mu_cores.mean()) if len(mu_cores) else x.mu_cores
        yield TimedTraining(reference_s, x.train_s, cores)


def _link(found: Findings, exchanges: Sequence[ExchangeRow], length_s: float) -> None:
    down, up = transfers(exchanges)
    signals = [x.signal_s for x in exchanges if x.signal_s is not None]
    found.take("link.down_bps", lambda: link_rate(down, length_s, "models"))
    found.take("link.up_bps", lambda: link_rate(up, length_s, "updates"))
    found.take("link.delay_s", lambda: one_way_delay(signals, "control messages"))


def transfers(
    exchanges: Sequence[ExchangeRow],
) -> tuple[list[Transfer | None], list[Transfer | None]]:
    """Return the transfers down and up, on the run's clock; None is one that shows no rate.

    A transfer is the part after the first chunk, or the whole where that part is unknown. A whole
    transfer includes TCP slow start and one round trip: from the request to the last byte of
    the model, or from the grant to the last byte of the update.
    """
    signals = [x.signal_s for x in exchanges if x.signal_s is not None]
    median_s = float(np.median(signals)) if signals else 0.0
    down: list[Transfer | None] = []
    up: list[Transfer | None] = []
    for x in exchanges:
        signal_s = median_s if x.signal_s is None else x.signal_s
        if x.download_s is not None and not x.rerequests_down and x.bytes_down:
            end_s = x.dispatched_at_s + signal_s / 2.0 + x.download_s
            down.append(
                steady_transfer(end_s, x.steady_down_s, x.steady_down_bytes, x.bytes_down)
                or whole_transfer(end_s, x.download_s, signal_s, x.bytes_down)
            )
        if x.upload_s is not None and x.tau_wall_s is not None and not x.resent_up and x.bytes_up:
            end_s = x.dispatched_at_s + x.tau_wall_s
            up.append(
                steady_transfer(end_s, x.steady_up_s, x.steady_up_bytes, x.bytes_up)
                or whole_transfer(end_s, x.upload_s, signal_s, x.bytes_up)
            )
    return down, up


def _cold_start(exchanges: Sequence[ExchangeRow]) -> Finding:
    loads = {cold: [x.load_s for x in exchanges if x.was_cold is cold] for cold in (True, False)}
    cold = [load_s for load_s in loads[True] if load_s is not None]
    if len(cold) < MIN_COLD:
        raise NotMeasured(f"needs {MIN_COLD} cold rounds, got {len(cold)}; record more rounds")
    warm = [load_s for load_s in loads[False] if load_s is not None]
    extra_s = float(np.median(cold)) - (float(np.median(warm)) if warm else 0.0)
    n_k = int(np.median([x.n_k for x in exchanges]))
    return Finding(
        max(extra_s, 0.0),
        f"median of {len(cold)} cold rounds less that of {len(warm)} warm ones, {n_k} examples",
    )


def _availability(found: Findings, device: DeviceOfRun) -> None:
    start_s = min((row.at_s for row in device.telemetry), default=0.0)
    samples = [
        PresenceSample(row.at_s - start_s, row.phase not in ("unwilling", "gone"))
        for row in device.telemetry
    ]
    busy = [
        TimeSpan(x.dispatched_at_s - start_s, x.dispatched_at_s - start_s + x.tau_wall_s)
        for x in device.exchanges
        if x.tau_wall_s is not None
    ]
    key = "availability.available"
    found.take(key, lambda: measure_availability(samples, busy, device.length_s - start_s))
    finding = found.found.get(key)
    if finding is not None:
        found.examined.add("availability")
        if finding.series is None and finding.value == 1.0:
            del found.found[key]  # a profile without the key is always available
            found.remarks.append(f"Always available: {finding.how}.")


def _throttling(found: Findings, telemetry: Sequence[TelemetryRow]) -> None:
    """Add a remark on why and how often the processor was throttled."""
    reasons = [row.throttled.split(",") for row in telemetry if row.throttled is not None]
    if reasons:
        found.remarks.append(throttling_remark(reasons, "contexts"))


def _power(found: Findings, exchanges: Sequence[ExchangeRow]) -> None:
    """Add the power of the device, the energy of phases over their durations, if it reports any.

    The energy of an upload ends with the last chunk that is sent, its duration with the last that
    arrives; a replay charges the power for the latter.
    """
    known = [x for x in exchanges if x.energy_j is not None]
    if known:
        transfers, work = ("download", "upload"), [p for p in DEVICE_PHASES if p != "download"]
        found.take("energy.compute_w", lambda: _mean_power(known, work, "computing"))
        found.take("energy.transmit_w", lambda: _mean_power(known, transfers, "transfers"))


def _mean_power(exchanges: Sequence[ExchangeRow], phases: Sequence[str], what: str) -> Finding:
    if len(exchanges) < MIN_POWERED:
        raise NotMeasured(
            f"needs {MIN_POWERED} exchanges with a known energy, got {len(exchanges)}; record more "
            "rounds"
        )
    joules = sum(getattr(x, f"{phase}_j") or 0.0 for x in exchanges for phase in phases)
    seconds = sum(getattr(x, f"{phase}_s") or 0.0 for x in exchanges for phase in phases)
    if seconds <= 0.0:
        raise NotMeasured(f"no exchange has a duration of its {what}; record more rounds")
    return Finding(
        joules / seconds,
        f"{joules:.3g} J in {seconds:.3g} s of {what}, whole device, {len(exchanges)} exchanges",
    )


@dataclass(frozen=True, slots=True)
class Packing:
    """Work of unpacking a model and packing an update, seconds of one reference core."""

    decode_s: float
    """0 if no model was sent packed."""
    encode_s: float
    """0 if no update was measured."""


def packing_of(
    exchanges: Iterable[ExchangeRow],
    devices: Iterable[DeviceRow],
    training: TrainingSettings,
    settings: ExchangeConfig,
) -> Packing:
    """Return the cost of packing in a run, the medians over its exchanges.

    Args:
        exchanges: Exchanges of the run; those that are not valid do not count.
        devices: Its devices, whose memory may decide what they compute at once.
        training: Settings and costs of training in the run.
        settings: Wanted codecs; exchanges with other codecs do not count.
    """
    decoded, encoded = list[float](), list[float]()
    own = {row.name: training.of_device(row) for row in devices}
    for x in valid(exchanges):
        work_s = own.get(x.device, training).reference_s(x.n_k, x.steps)
        if work_s is None or not x.train_s:
            continue
        speed = work_s / x.train_s
        if x.decode_s is not None and x.codec_down == settings.down != "float32":
            decoded.append(x.decode_s * speed)
        if x.encode_s is not None and x.codec_up == settings.up:
            encoded.append(x.encode_s * speed)
    return Packing(_median(decoded), _median(encoded))


def _median(values: list[float]) -> float:
    return float(np.median(values)) if values else 0.0
