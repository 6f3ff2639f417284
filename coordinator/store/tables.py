"""The rows of the run store: a dataclass is a table, a field a column, its suffix the unit.

`at_s` is seconds since the run was created, on the coordinator's monotonic clock, which continues
after a restart. Wall-clock instants are ISO 8601 strings in UTC, for display only.

The coordinator writes its decisions and observations. The testbed writes what it configured
(`truth` and `condition`), which only analysis reads.
"""

from dataclasses import dataclass
from typing import ClassVar, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatsRow:
    """Statistics after one round of a replayed fleet that is too large for a row per device."""

    TABLE: ClassVar[str] = "fleet_stats"
    KEY: ClassVar[tuple[str, ...]] = ("round",)

    round: int
    devices: int
    selected: int
    """Devices that were selected at least once: the rows of the device table."""
    min_selection_rate: float
    """Lowest selections / rounds."""
    min_aggregation_rate: float
    """Lowest aggregated updates / rounds."""
    jain: float | None
    """Jain index of the selections; None before the first selection."""
    slack: float
    """Minimum over the devices of rate - (beta - Z / T); below 0, the bound is violated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetContextRow:
    """The contexts of all devices at the selection of one round, column by column.

    Written for fleets of up to `coordinator.records.rows.MAX_FLEET_ROW_DEVICES` devices, in row
    order, as little-endian float64.
    """

    TABLE: ClassVar[str] = "fleet_context"
    KEY: ClassVar[tuple[str, ...]] = ("round",)

    round: int
    context: bytes
    """1/mu, cold start, download and upload in seconds: input of the estimator, shape (N, 4)."""
    expected_tau_s: bytes | None
    """The true expected exchange times, seconds, shape (N,); None in a live run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossQueryRow:
    """One loss query to one device before a selection."""

    TABLE: ClassVar[str] = "loss_query"
    KEY: ClassVar[tuple[str, ...]] = ("round", "device")

    round: int
    device: str
    outcome: str
    """answered, late, failed, lost, refused."""
    reason: str
    loss: float | None
    """As the device reported it, nats; None without a reply."""
    duration_s: float | None
    """From the query to the reply, on the coordinator's clock."""
    download_s: float | None
    """On the device's clock, like the three below."""
    decode_s: float | None
    load_s: float | None
    evaluate_s: float | None
    was_cold: bool | None
    bytes_down: int
    """Bytes of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRow:
    """One device at the selection instant of one round."""

    TABLE: ClassVar[str] = "selection"
    KEY: ClassVar[tuple[str, ...]] = ("round", "device")

    round: int
    device: str
    is_available: bool
    is_selected: bool
    is_aggregated: bool
    tau_hat_s: float | None
    width_s: float | None
    queue: float
    """Z after the round."""
    propensity: float
    """Probability of being in the cohort, given what the selector picked."""
    is_audit: bool
    """Drawn uniformly for the audit sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthRow:
    """Configuration of a device by the testbed."""

    TABLE: ClassVar[str] = "truth"
    KEY: ClassVar[tuple[str, ...]] = ("name",)

    name: str
    profile: str
    cpu_speed: float
    """Cores of the reference machine that one of its cores is worth."""
    cores: int
    down_bps: float | None
    up_bps: float | None
    delay_s: float
    """One way."""
    details: str
    """JSON: the whole configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionRow:
    """Configured conditions of a device, as exact means over a span of time.

    Written for devices whose conditions change, at most once a second per device; retained as long
    as telemetry.
    """

    TABLE: ClassVar[str] = "condition"
    KEY: ClassVar[tuple[str, ...]] = ()

    at_s: float
    """End of the span."""
    duration_s: float
    device: str
    speed_ratio: float | None
    """Processor speed in cores of the emulating machine, without dilation; None: not throttled."""
    clock_ratio: float
    """Clock / nominal clock, thermal throttling included."""
    temperature_celsius: float | None
    """At the end; None if the profile has no temperature."""
    down_bps: float | None
    """Mean capacity; an outage counts as 0. None: not limited."""
    up_bps: float | None
    delay_s: float
    jitter_s: float
    loss_ratio: float
    outage_s: float
    """Time without a link, or with a frozen agent."""
    unwilling_s: float
    """Time in which its schedule made it unavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """The run itself: one row."""

    TABLE: ClassVar[str] = "run"
    KEY: ClassVar[tuple[str, ...]] = ("run_id",)

    run_id: str
    name: str
    created: str
    """Wall clock."""
    seed: int
    config_hash: str
    version: str
    """Version of Fairbed."""
    git_revision: str | None
    dilation: float
    """Seconds of the machine per second of the run's clock."""
    status: str
    """created, running, paused, done, failed, stopped. A reader reports a live status whose process
    is dead as interrupted."""
    reason: str
    resumes: int
    """How often the run was resumed."""
    telemetry_dropped: int
    """Rows of telemetry and conditions that were not stored because the writer fell behind."""
    clock: str
    """real, or virtual for a replay."""
    selection_rows: str
    """all: a selection row for each device and round; selected: for the cohort only, and for all
    devices in the last round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """A device that has joined (upserted by name)."""

    TABLE: ClassVar[str] = "device"
    KEY: ClassVar[tuple[str, ...]] = ("name",)

    name: str
    row: int
    """Its row in every column of the selection, from 0."""
    first_seen_s: float
    n_k: int
    capabilities: str
    """JSON."""
    has_own_data: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """One closed round."""

    TABLE: ClassVar[str] = "round"
    KEY: ClassVar[tuple[str, ...]] = ("round",)

    round: int
    attempt: int
    """How often the round was restarted with the coordinator."""
    status: str
    """done, or void: no device available, or no update arrived."""
    dispatched_at_s: float
    closed_at_s: float
    duration_s: float
    """loss_query_s + max tau_wall + close_s."""
    tau_max_s: float
    close_s: float
    """From the last arrival, or the deadline, to the next model."""
    slowest: str | None
    selected: int
    aggregated: int
    available: int
    queue_total: float
    """Sum of Z over all devices after the round."""
    queue_max: float
    lag_p99_s: float
    """99th percentile of the event loop's lag during the round."""
    bytes_down: int
    bytes_up: int
    model_sha256: str
    coordinator_encode_s: float | None
    """Encoding of the next model, part of close_s; None if it was not encoded."""
    loss_query_s: float
    """Loss queries before the dispatch, part of the duration."""
    aggregated_late: int = 0
    """Late updates, of older model versions, that entered the next model."""
    dropped_late: int
    """Late exchanges that were dropped in this round."""
    cancelled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRow:
    """One model exchange: dispatch, device, arrival."""

    TABLE: ClassVar[str] = "exchange"
    KEY: ClassVar[tuple[str, ...]] = ("round", "attempt", "device")

    round: int
    attempt: int
    device: str
    outcome: str
    """done, late, failed, lost, rejected, cancelled."""
    reason: str
    """One line when the outcome is not done or the exchange is not valid."""
    is_valid: bool
    """The estimator may learn from it."""
    dispatched_at_s: float
    tau_wall_s: float | None
    """t_complete - t_dispatch."""
    queued_s: float
    """Wait for an upload grant, which is the coordinator's time and not the device's."""
    tau_s: float | None
    """tau_wall - queued: the model exchange time."""
    signal_s: float | None
    """Control round trip during the round."""
    unaccounted_s: float | None
    """tau minus all phases and signal_s."""
    download_s: float | None
    load_s: float | None
    evaluate_s: float | None
    train_s: float | None
    train_cpu_s: float | None
    encode_s: float | None
    upload_s: float | None
    """From grant to last chunk, at the coordinator."""
    decode_s: float | None
    """From the model's blob to its vector, at the device."""
    coordinator_decode_s: float | None
    """From the update's blob to its vector, off the loop and outside tau; None for float32."""
    contended_s: float | None
    """How long the host kept the device, its link or the broker waiting; None where that cannot be
    measured."""
    is_contended: bool
    """The host's contention made the exchange invalid."""
    codec_down: str
    """Codec of the model: float32, float16, int8 or delta."""
    codec_up: str
    """Codec of the update: float32, float16, int8 or top-k."""
    bytes_down: int
    bytes_up: int
    rerequests_down: int
    resent_up: int
    duplicates_up: int
    concurrent: int
    """Other exchanges of the round."""
    n_k: int
    steps: int
    was_cold: bool | None
    loss_before: float | None
    loss_train: float | None
    mu_cores: float | None
    """Context before the selection, like the four below."""
    downlink_bps: float | None
    uplink_bps: float | None
    link_age_s: float | None
    context_age_s: float | None
    s_not_previous: int
    """Default cold-start coding: 1 if the device did not complete training in the last round."""
    s_literal_seed: int
    tau_hat_s: float | None
    """Prediction before the selection."""
    width_s: float | None
    steady_down_bytes: int | None
    """Steady part of the model's transfer, after its first chunk, when TCP has reached the rate of
    the link. None for a single chunk or a repeated one; likewise the three below."""
    steady_down_s: float | None
    steady_up_bytes: int | None
    steady_up_s: float | None
    staleness: int | None
    """Model versions published while it trained, 0 if it was in time; None if not aggregated."""
    aggregated_round: int | None
    """The round in which it was aggregated; None if it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """The global model on all held-out data after a round."""

    TABLE: ClassVar[str] = "metric"
    KEY: ClassVar[tuple[str, ...]] = ("round",)

    round: int
    at_s: float
    accuracy_mean: float
    """Unweighted over devices."""
    accuracy_pooled: float
    """All correct / all examples."""
    accuracy_worst10: float
    accuracy_best10: float
    accuracy_variance: float
    """Population variance of the ratios."""
    accuracy_gini: float | None
    accuracy_gap: float
    loss_mean: float | None
    """None when the model has diverged; likewise the next."""
    loss_std: float | None
    evaluate_s: float
    """Not part of any round's duration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMetricRow:
    """The global model on one device's held-out data."""

    TABLE: ClassVar[str] = "device_metric"
    KEY: ClassVar[tuple[str, ...]] = ("round", "device")

    round: int
    device: str
    n: int
    accuracy: float
    loss: float | None
    """None when the model has diverged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryRow:
    """One context as it arrived; retained for a limited time."""

    TABLE: ClassVar[str] = "telemetry"
    KEY: ClassVar[tuple[str, ...]] = ()

    at_s: float
    device: str
    phase: str
    is_available: bool
    mu_cores: float
    downlink_bps: float | None
    uplink_bps: float | None
    cpu_ratio: float | None
    rss_bytes: int | None
    temperature_celsius: float | None
    free_cores: float | None
    """Cores that are idle or used by the agent; None where not reported."""
    clock_ratio: float | None
    """Clock under load / nominal clock; None where it cannot be read."""
    throttled: str | None
    """Causes that throttle the processor, comma-separated; empty: no throttling, None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event of the run, for display."""

    TABLE: ClassVar[str] = "event"
    KEY: ClassVar[tuple[str, ...]] = ()

    at_s: float
    wall: str
    level: str
    """info, warning, error."""
    kind: str
    """joined, left, rejoined, refused, dispatched, failed, late, rejected, void, command, ..."""
    round: int | None
    device: str | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRow:
    """A command of an operator to the run."""

    TABLE: ClassVar[str] = "command"
    KEY: ClassVar[tuple[str, ...]] = ("id",)

    id: str
    at_s: float
    action: str
    device: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """State from which a run resumes after a closed round."""

    TABLE: ClassVar[str] = "checkpoint"
    KEY: ClassVar[tuple[str, ...]] = ("round",)

    round: int
    state: bytes
    """msgpack of selector, estimator, aggregator and registry state."""
    model_file: str
    """Relative to the run folder, `.safetensors`."""
    model_sha256: str
    at_s: float


Record: TypeAlias = (
    RunRow
    | DeviceRow
    | TruthRow
    | RoundRow
    | FleetStatsRow
    | SelectionRow
    | FleetContextRow
    | LossQueryRow
    | ExchangeRow
    | MetricRow
    | DeviceMetricRow
    | TelemetryRow
    | ConditionRow
    | EventRow
    | CommandRow
    | CheckpointRow
)
