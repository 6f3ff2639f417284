"""The rows of the run store: a dataclass is a table, a field a column, its suffix the unit.

`at_s` is seconds since the run was created, on the coordinator's monotonic clock, which continues
after a restart. Wall-clock instants are ISO 8601 strings in UTC, for display only.

The coordinator writes its decisions and observations. The testbed writes what it configured
(`truth` and `condition`), which only analysis reads.
"""

from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Annotated, ClassVar, Final, Literal, TypeAlias, get_args

import msgspec


class Source(str, Enum):
    """What measures a column of the exchange; it is in `Exchange.measured` by its name."""

    OFFER = "device"
    """The device, until its offer: `Stopwatch.measured`, then `Offer.measured`."""
    UPLOAD = "device, upload"
    """The device, after its offer: `Stopwatch.measured`, then `UploadDone.measured`."""
    HOST = "host"
    """The backend that emulates the device, in `Backend.counted`: a number that only grows. The
    exchange has what was added from its dispatch to its end."""
    COORDINATOR = "coordinator"
    """The coordinator, which writes it into `Exchange.measured`."""
    MERGE = "merge"
    """The merge of the update, in `Merge.columns`."""

    @property
    def is_reported(self) -> bool:
        """A device reports it, and no device is trusted."""
        return self in (Source.OFFER, Source.UPLOAD)


@dataclass(frozen=True, slots=True)
class Column:
    """Declaration of a measured column of the exchange, beside its field.

    Everything else follows: its place in messages, schema, reader, exports and JSON, docs/store.md,
    the report, and an optional column of the control room. The name, with the unit as its suffix,
    is that of the field, the type its annotation, the meaning its docstring, and its default is
    what is stored where nothing was measured. A replay has it once the replayed world gives it, in
    `Exchanges.measured`.
    """

    source: Source
    heading: str
    """A few words, for the control room and the report."""
    least: float = 0.0
    most: float = inf
    """Range of a plausible value: an offer outside it is refused."""
    statistic: Literal["median", "sum"] | None = None
    """What the report and the summary state of it, over all exchanges; None: nothing."""


MAX_CHUNKS, MAX_JOULES = 1e9, 1e9
"""Most that a device may report of one exchange."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatsRow:
    """Statistics after one round of a replayed fleet that is too large for a row per device."""

    TABLE: ClassVar[str] = "fleet_stats"
    KEY: ClassVar[tuple[str, ...]] = ("round",)

    round: int
    """Round, counted from 1."""
    devices: int
    """Devices of the fleet."""
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
    """Round, counted from 1."""
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
    """Round, counted from 1."""
    device: str
    """Name of the device."""
    outcome: str
    """answered, late, failed, lost, refused."""
    reason: str
    """Why, in one line."""
    loss: float | None
    """Loss as the device reported it, nats; None without a reply."""
    duration_s: float | None
    """From the query to the reply, on the coordinator's clock; None without a reply."""
    download_s: float | None
    """From the query to the verified model, on the device's clock; None without a reply."""
    decode_s: float | None
    """From the model's blob to its vector, at the device; None without a reply."""
    load_s: float | None
    """Reading the data and opening the session, at the device; None without a reply."""
    evaluate_s: float | None
    """Evaluating the model that was sent, at the device; None without a reply."""
    was_cold: bool | None
    """Data and session had to be loaded; None without a reply."""
    bytes_down: int
    """Bytes of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRow:
    """One device at the selection instant of one round."""

    TABLE: ClassVar[str] = "selection"
    KEY: ClassVar[tuple[str, ...]] = ("round", "device")

    round: int
    """Round, counted from 1."""
    device: str
    """Name of the device."""
    is_available: bool
    """The device was available."""
    is_selected: bool
    """The device was selected."""
    is_aggregated: bool
    """Its update was aggregated."""
    tau_hat_s: float | None
    """Predicted exchange time; None without a prediction."""
    width_s: float | None
    """Width of the confidence interval of the prediction; None without one."""
    queue: float
    """Virtual queue Z after the round."""
    propensity: float
    """Probability of being in the cohort, given what the selector picked."""
    is_audit: bool
    """Drawn uniformly for the audit sample."""
    reason: str
    """Why the device was selected, or not: in words of the `Reason` in
    `coordinator/algorithms/selection/base.py`. Empty: the policy gives no reason, or the run
    stores none (a replay of more than 1,000 devices)."""
    score: float | None
    """Number by which the policy ranked the device; None if it was no candidate or has none."""
    margin: float | None
    """How much worse the policy's objective is after the best exchange of this device with one on
    the other side of the selection; with the reason "over deadline" the seconds beyond it. None if
    the policy has none, or there is no such device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthRow:
    """Configuration of a device by the testbed."""

    TABLE: ClassVar[str] = "truth"
    KEY: ClassVar[tuple[str, ...]] = ("name",)

    name: str
    """Name of the device."""
    profile: str
    """Name of the profile."""
    cpu_speed: float
    """Cores of the reference machine that one of its cores is worth."""
    cores: int
    """Cores of the device."""
    down_bps: float | None
    """Downlink; None: not limited, or unknown."""
    up_bps: float | None
    """Uplink; None: not limited."""
    delay_s: float
    """One-way delay."""
    malicious: str | None
    """Kind of its malicious behaviour; None if it is honest."""
    details: str
    """JSON: the whole configuration."""

    @property
    def drawn_link(self) -> str | None:
        """Name of the link that the device drew of several; None without a draw."""
        try:
            return msgspec.json.decode(self.details, type=_Details).drawn_link
        except msgspec.DecodeError:
            return None


DRAWN_LINK: Final = "drawn_link"
"""Key of `TruthRow.details` with the name of the link that the device drew."""


class _Details(msgspec.Struct):
    drawn_link: str | None = None


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
    """Length of the span."""
    device: str
    """Name of the device."""
    speed_ratio: float | None
    """Processor speed in cores of the emulating machine, without dilation; None: not throttled."""
    clock_ratio: float
    """Clock / nominal clock, thermal throttling included."""
    temperature_celsius: float | None
    """Temperature at the end of the span; None if the profile has none."""
    down_bps: float | None
    """Mean capacity of the downlink; an outage counts as 0. None: not limited."""
    up_bps: float | None
    """Mean capacity of the uplink; an outage counts as 0. None: not limited."""
    delay_s: float
    """One-way delay."""
    jitter_s: float
    """Standard deviation of the delay."""
    loss_ratio: float
    """Share of lost packets."""
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
    """Id of the run, and name of its folder."""
    name: str
    """Name of the experiment."""
    created: str
    """Wall-clock time at which the run was created, ISO 8601 in UTC."""
    seed: int
    """Seed of the experiment."""
    config_hash: str
    """Hash of the resolved experiment: equal experiments have equal hashes."""
    version: str
    """Version of Fairbed."""
    provenance: str
    """JSON: revisions of code, versions of packages and hashes of data, as `fairbed show --json`
    prints them under this name."""
    dilation: float
    """Seconds of the machine per second of the run's clock."""
    status: str
    """created, running, paused, done, failed, stopped. A reader reports a live status whose process
    is dead as interrupted."""
    reason: str
    """Why the run failed or stopped, in one line."""
    waiting: str
    """Devices that a live run waits for, in a few words; empty while it goes on."""
    resumes: int
    """How often the run was resumed."""
    telemetry_dropped: int
    """Rows of telemetry and conditions that were not stored because the writer fell behind."""
    clock: str
    """real, or virtual for a replay."""
    selection_rows: str
    """all: a selection row for each device and round; selected: for the cohort only, and for all
    devices in the last round."""
    task: str
    """classification, binary (one logit for two classes), or regression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """A device that has joined (upserted by name)."""

    TABLE: ClassVar[str] = "device"
    KEY: ClassVar[tuple[str, ...]] = ("name",)

    name: str
    """Name of the device."""
    row: int
    """Its row in every column of the selection, from 0."""
    first_seen_s: float
    """Instant of its first message."""
    n_k: int
    """Training examples of the device."""
    capabilities: str
    """JSON: what the device reported of itself, such as its cores and its machine."""
    has_own_data: bool
    """The device trains on data of its own, not on a shard."""
    kind: str
    """physical, emulated or replayed."""
    base_bytes: int | None = None
    """Size of the frozen part of the model, which the device has; None: the model has none."""
    base_s: float | None = None
    """Time in which the device downloaded it, once; None also if it had it before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """One closed round."""

    TABLE: ClassVar[str] = "round"
    KEY: ClassVar[tuple[str, ...]] = ("round",)

    round: int
    """Round, counted from 1."""
    attempt: int
    """How often the round was restarted with the coordinator."""
    status: str
    """done, or void: no device available, or no update arrived."""
    dispatched_at_s: float
    """Instant of the dispatch."""
    closed_at_s: float
    """Instant at which the next model was published."""
    duration_s: float
    """loss_query_s + tau_max_s + close_s."""
    tau_max_s: float
    """Longest exchange time of the round."""
    close_s: float
    """From the last arrival, or the deadline, to the next model."""
    slowest: str | None
    """Device with the longest exchange time; None if no update arrived in time."""
    selected: int
    """Devices selected."""
    aggregated: int
    """Updates aggregated."""
    available: int
    """Devices that were available at the selection."""
    queue_total: float
    """Sum of Z over all devices after the round."""
    queue_max: float
    """Largest virtual queue Z after the round."""
    lag_p99_s: float
    """99th percentile of the event loop's lag during the round."""
    bytes_down: int
    """Bytes of models sent."""
    bytes_up: int
    """Bytes of updates received."""
    model_sha256: str
    """Hash of the model after the round."""
    coordinator_encode_s: float | None
    """Encoding of the next model, part of close_s; None if it was not encoded."""
    loss_query_s: float
    """Loss queries before the dispatch, part of the duration."""
    aggregated_late: int = 0
    """Late updates, of older model versions, that entered the next model."""
    dropped_late: int
    """Late exchanges that were dropped in this round."""
    cancelled: int
    """Exchanges that the coordinator cancelled."""
    objective: float | None = None
    """The policy's objective for the cohort that it chose, before an audit; None if it has none."""
    alternative: float | None = None
    """The objective of the best cohort that differs in one device; None if there is none."""
    alternative_out: str | None = None
    """The device that the alternative cohort lacks; None if there is none."""
    alternative_in: str | None = None
    """The device that the alternative cohort has instead; None if there is none."""
    contexts_judged: int | None = None
    """Exchanges whose claims the context check judged; None without the check."""
    contexts_unjudged: int | None = None
    """Exchanges that it could not judge; None without the check."""
    rounds_empty: int = 0
    """Empty rounds up to this one: no device was selected or queried, and no update arrived. They
    count for the queues, but not towards `rounds` of the experiment."""

    @property
    def is_empty(self) -> bool:
        """No device was selected or queried in the round, and no update arrived."""
        return self.status == "void" and not self.selected and self.loss_query_s == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRow:
    """One model exchange: dispatch, device, arrival."""

    TABLE: ClassVar[str] = "exchange"
    KEY: ClassVar[tuple[str, ...]] = ("round", "attempt", "device")

    round: int
    """Round, counted from 1."""
    attempt: int
    """How often the round was attempted before: 0 unless the run was resumed in it."""
    device: str
    """Name of the device."""
    outcome: str
    """done, late, failed, lost, rejected, cancelled."""
    reason: str
    """One line when the outcome is not done or the exchange is not valid."""
    is_valid: bool
    """The estimator may learn from it."""
    dispatched_at_s: float
    """Instant of the dispatch."""
    tau_wall_s: float | None
    """From the dispatch to the last verified byte of the update; None unless an update arrived."""
    queued_s: float
    """Wait for an upload grant, which is the coordinator's time and not the device's."""
    tau_s: float | None
    """Model exchange time: tau_wall_s - queued_s; None unless an update arrived."""
    busy_s: float | None
    """Device-seconds: tau_s, or the time until the exchange was abandoned, without the wait for an
    upload grant and the coordinator's own outages. None while it is open."""
    signal_s: float | None
    """Control round trip during the round; None if it was not measured."""
    unaccounted_s: float | None
    """tau_s minus all phases and signal_s; None unless an update arrived."""
    download_s: float | None
    """From the arrival of `Train` to the verified blob, at the device; None until its offer of an
    update."""
    load_s: float | None
    """Reading the data and opening the session, at the device; None until its offer."""
    evaluate_s: float | None
    """Evaluating the model that was sent, at the device; None until its offer."""
    train_s: float | None
    """Local training, at the device; None until its offer."""
    train_cpu_s: float | None
    """Processor time of the training thread during `train_s`; None until its offer, and in a
    replay."""
    personal_s: float | None
    """Training of the personal model, at the device; None until its offer."""
    encode_s: float | None
    """Encoding the update, at the device; None until its offer."""
    upload_s: float | None
    """From the grant to the last chunk, at the coordinator; None unless an update arrived."""
    decode_s: float | None
    """From the model's blob to its vector, at the device; None until its offer."""
    coordinator_decode_s: Annotated[
        float | None, Column(Source.COORDINATOR, "decoding of the update")
    ] = None
    """From the update's blob to its vector, off the loop and outside tau; None for float32."""
    contended_s: float | None
    """By how much the host's contention can have prolonged the exchange: the sum of the next three,
    and of the delay by the network to another host; None where that cannot be measured."""
    contended_download_s: float | None
    """The part of it while `Train` and the model were on their way; None where unmeasured."""
    contended_compute_s: float | None
    """The part of it while the device computed, before its offer; None where unmeasured."""
    contended_upload_s: float | None
    """The part of it while the offer, the grant and the update were on their way; None where
    unmeasured."""
    lag_s: float
    """Lag of the coordinator's event loop when it handled the messages of the exchange."""
    is_contended: bool
    """Contention and lag exceed 5 % of the exchange, which is therefore invalid."""
    codec_down: str
    """Codec of the model: float32, float16, int8 or delta."""
    codec_up: str
    """Codec of the update: float32, float16, int8 or top-k."""
    bytes_down: int
    """Bytes of the model that the device downloaded."""
    bytes_up: int
    """Bytes of the update."""
    rerequests_down: Annotated[
        int, Column(Source.OFFER, "chunks requested again", most=MAX_CHUNKS, statistic="sum")
    ] = 0
    """Chunks of the model that the device requested again."""
    resent_up: Annotated[
        int, Column(Source.UPLOAD, "chunks sent again", most=MAX_CHUNKS, statistic="sum")
    ] = 0
    """Chunks of the update that were sent again."""
    duplicates_up: int
    """Chunks of the update that arrived twice."""
    concurrent: int
    """Other exchanges of the round."""
    n_k: int
    """Training examples of the device."""
    steps: int
    """Mini-batches of local training."""
    was_cold: bool | None
    """Data and session had to be loaded; None until the device's offer."""
    loss_before: float | None
    """Loss of the model that was sent, on the training data, in nats; None if the run does not need
    it, and until the device's offer."""
    loss_train: float | None
    """Mean loss of the last local epoch, in nats; None if the device reports none, and until its
    offer."""
    mu_cores: float | None
    """Free cores, in the context before the selection; None if unknown."""
    downlink_bps: float | None
    """Downlink in the context before the selection; None before the device has measured it."""
    uplink_bps: float | None
    """Uplink in the context before the selection; None before the device has measured it."""
    link_age_s: float | None
    """Age of the older of the two rates of the link; None before both are measured."""
    context_age_s: float | None
    """Age of the context; None without one."""
    s_not_previous: int
    """Default cold-start coding: 1 if the device did not complete training in the last round."""
    s_literal_seed: int
    """Literal cold-start coding: 1 if the device was selected in the last round."""
    tau_hat_s: float | None
    """Exchange time as predicted before the selection; None without a prediction."""
    width_s: float | None
    """Width of the confidence interval of the prediction; None without one."""
    steady_down_bytes: int | None
    """Bytes of the model in the steady part of its transfer, after its first chunk, when TCP has
    reached the rate of the link. None for a single chunk or a repeated one."""
    steady_down_s: float | None
    """Duration of the steady part of the model's transfer; None as `steady_down_bytes`."""
    steady_up_bytes: int | None
    """Bytes of the update in the steady part of its transfer; None for a single chunk or a repeated
    one."""
    steady_up_s: float | None
    """Duration of the steady part of the update's transfer; None as `steady_up_bytes`."""
    staleness: int | None
    """Model versions published while it trained, 0 if it was in time; None if not aggregated."""
    aggregated_round: int | None
    """The round in which it was aggregated; None if it was not."""
    weight: Annotated[float | None, Column(Source.MERGE, "weight")] = None
    """a_k: factor on the change that the device made; None if it was not aggregated."""
    weight_share: Annotated[float | None, Column(Source.MERGE, "share of the merge")] = None
    """a_k / sum a over the updates of that round; None if it was not aggregated."""
    n_share: Annotated[float | None, Column(Source.MERGE, "share of the examples")] = None
    """n_k / sum n over the updates of that round, its share if examples alone counted; None if it
    was not aggregated."""
    defence_scale: Annotated[float | None, Column(Source.MERGE, "factor of the defence")] = None
    """Factor of the defence on the change: 0 if it was left out, 1 without a defence; None if the
    update was not aggregated."""
    download_j: float | None = None
    """Energy of the whole device in `download_s`; None if unknown."""
    decode_j: float | None = None
    """Energy of the whole device in `decode_s`; None if unknown."""
    load_j: float | None = None
    """Energy of the whole device in `load_s`; None if unknown."""
    evaluate_j: float | None = None
    """Energy of the whole device in `evaluate_s`; None if unknown."""
    train_j: float | None = None
    """Energy of the whole device in `train_s`; None if unknown."""
    personal_j: float | None = None
    """Energy of the whole device in `personal_s`; None if unknown."""
    encode_j: float | None = None
    """Energy of the whole device in `encode_s`; None if unknown."""
    upload_j: Annotated[
        float | None, Column(Source.UPLOAD, "energy of the upload", most=MAX_JOULES)
    ] = None
    """Energy of the whole device in `upload_s`; None if unknown."""
    cell_wait_s: Annotated[float | None, Column(Source.HOST, "lost in the cell")] = None
    """Time that its transfers lost to other devices of its cell: the integral of 1 - rate / rate of
    the device alone, while bytes were on the link. None without a cell, and where the backend does
    not measure it."""
    energy_j: float | None = None
    """Energy of the whole device, summed over the phases; without an arrival, over those before the
    upload. None if a part of it is unknown."""
    energy_low_j: Annotated[
        float | None, Column(Source.UPLOAD, "energy, at least", most=MAX_JOULES, statistic="sum")
    ] = None
    """Least energy by the published powers of the device, where these differ. None without an
    arrival, for a device with a sensor, and where one power is published."""
    energy_high_j: Annotated[
        float | None, Column(Source.UPLOAD, "energy, at most", most=MAX_JOULES, statistic="sum")
    ] = None
    """Greatest energy by the published powers of the device; None as `energy_low_j`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRow:
    """An exchange with local noise whose update may have left its device.

    Written at the dispatch, and kept when the round never closes, so that a crash loses no update
    that was sent.
    """

    TABLE: ClassVar[str] = "release"
    KEY: ClassVar[tuple[str, ...]] = ("round", "attempt", "device")

    round: int
    """Round, counted from 1."""
    attempt: int
    """How often the round was attempted before: 0 unless the run was resumed in it."""
    device: str
    """Name of the device."""
    is_released: bool
    """False if the exchange ended before the device was allowed to upload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """The global model on all held-out data after a round."""

    TABLE: ClassVar[str] = "metric"
    KEY: ClassVar[tuple[str, ...]] = ("round",)

    round: int
    """Round, counted from 1."""
    at_s: float
    """Instant."""
    accuracy_mean: float | None
    """Accuracy, unweighted over devices; None for regression."""
    accuracy_pooled: float | None
    """All correct / all examples; None for regression."""
    accuracy_worst10: float | None
    """Mean accuracy of the worst tenth of the devices; None for regression, and if no device was
    measured."""
    accuracy_best10: float | None
    """Mean accuracy of the best tenth of the devices; None for regression, and if no device was
    measured."""
    accuracy_variance: float | None
    """Population variance of the ratios; None for regression, and if no device was measured."""
    accuracy_gini: float | None
    """Gini coefficient over devices; None if every accuracy is 0, or none was measured."""
    accuracy_gap: float | None
    """Accuracy of the best minus that of the worst device; None for regression, and if no device
    was measured."""
    loss_mean: float | None
    """Loss, unweighted over devices, nats; None when the model has diverged."""
    loss_std: float | None
    """Standard deviation of the loss over devices; None when the model has diverged, or no device
    was measured."""
    evaluate_s: float
    """Not part of any round's duration."""
    devices: int | None = None
    """Devices that were measured. 0: mean and pooled accuracy and the loss are those of the
    server's test set, the spread over devices is unknown. None if not recorded."""
    test_n: int | None = None
    """Examples of the server's test set; None unless `evaluation.own_data` is `server-test-set`."""
    test_accuracy: float | None = None
    """Share of the examples of the server's test set that are classified correctly; None without
    the set."""
    test_loss: float | None = None
    """Mean loss over the examples of the server's test set, nats; None without the set, and when
    the model has diverged."""
    test_auroc: float | None = None
    """Area under the ROC curve on the server's test set; None without the set, and unless it has
    examples of exactly two classes."""
    test_rmse: float | None = None
    """Root mean squared error on the server's test set; None without the set, and unless the task
    is regression."""
    auroc_mean: float | None = None
    """Area under the ROC curve, unweighted over the devices with held-out examples of both classes;
    None unless there are two classes."""
    auroc_worst10: float | None = None
    """Mean AUROC of the tenth of these devices with the lowest one; None unless there are two
    classes."""
    auroc_pooled: float | None = None
    """Area under the ROC curve over all examples; None unless there are two classes, and if a
    device tested the model itself."""
    rmse_mean: float | None = None
    """Root mean squared error, unweighted over devices; None unless the task is regression, and
    when the model has diverged."""
    rmse_worst10: float | None = None
    """Mean error of the tenth of the devices with the largest one; None unless the task is
    regression, and if no device was measured."""
    rmse_best10: float | None = None
    """Mean error of the tenth of the devices with the smallest one; None unless the task is
    regression, and if no device was measured."""
    rmse_std: float | None = None
    """Population standard deviation of the error over devices; None unless the task is regression,
    and if no device was measured."""
    rmse_gap: float | None = None
    """Error of the worst minus that of the best device; None unless the task is regression, and if
    no device was measured."""
    rmse_pooled: float | None = None
    """Root mean squared error over all examples; None unless the task is regression."""
    mae_mean: float | None = None
    """Mean absolute error, unweighted over devices; None unless the task is regression."""
    r2_pooled: float | None = None
    """Coefficient of determination over all examples; None unless the task is regression, and if a
    device tested the model itself."""
    perplexity: float | None = None
    """exp of the loss over the positions of all examples; None unless one of several classes is
    predicted at several positions of an example."""
    exact_match_mean: float | None = None
    """Share of the examples that are right at all positions, unweighted over devices; None with one
    target per example, and for regression."""
    exact_match_pooled: float | None = None
    """Share of the examples of all devices that are right at all positions; None with one target
    per example, and for regression."""
    iou_mean: float | None = None
    """Intersection over union, the mean of the classes that are a label or predicted on a device,
    unweighted over devices; None unless one of up to 256 classes is predicted at positions."""
    iou_pooled: float | None = None
    """The same over the positions of all devices; None also if a device tested the model itself."""
    iou_of_classes: str | None = None
    """That of each class over all devices, a list in JSON, null for a class that is neither a label
    nor predicted; None as `iou_pooled`."""
    class_accuracy_mean: float | None = None
    """Accuracy of the positions of each class, the mean of the classes that a device has as labels,
    unweighted over devices; None as `iou_mean`."""
    class_accuracy_pooled: float | None = None
    """The same over the positions of all devices; None as `iou_pooled`."""
    class_accuracy_of_classes: str | None = None
    """That of each class over all devices, a list in JSON, null for a class without labels; None as
    `iou_pooled`."""

    metric_mean: float | None = None
    """Metric that `evaluation.worst` names, unweighted over devices; None if it names none."""
    metric_worst10: float | None = None
    """Mean of the worst tenth of the devices in it: of the lowest if more is better, else of the
    highest; None as `metric_mean`."""
    metric_best10: float | None = None
    """Mean of the best tenth of the devices in it; None as `metric_mean`."""
    metric_std: float | None = None
    """Population standard deviation of it over devices; None as `metric_mean`."""
    metric_gap: float | None = None
    """Difference of the best and the worst device in it; None as `metric_mean`."""
    metric_pooled: float | None = None
    """It over the examples of all devices; None as `metric_mean`, and if a device sent no sums."""
    test_metric: float | None = None
    """It on the server's test set; None without the set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMetricRow:
    """The global model on one device's held-out data."""

    TABLE: ClassVar[str] = "device_metric"
    KEY: ClassVar[tuple[str, ...]] = ("round", "device")

    round: int
    """Round, counted from 1."""
    device: str
    """Name of the device."""
    n: int
    """Held-out examples of the device."""
    accuracy: float | None
    """Share of correct held-out examples; None for regression."""
    loss: float | None
    """Mean loss over the held-out examples, nats; None when the model has diverged."""
    bytes_down: int | None = None
    """Bytes of the model that the device downloaded to test it on its own data; the bytes of the
    round do not include them. None: the coordinator evaluated it on the shard."""
    auroc: float | None = None
    """Area under the ROC curve; None unless the examples are of two classes, and of both. Of labels
    the mean over those that some examples have and some have not."""
    rmse: float | None = None
    """Root mean squared error; None unless the task is regression, and when the model has
    diverged."""
    mae: float | None = None
    """Mean absolute error; None unless the task is regression, and when the model has diverged."""
    r2: float | None = None
    """Coefficient of determination; None unless the task is regression, and if all targets are
    equal."""
    positions: int | None = None
    """Positions of these examples that have a target (tokens, pixels, labels), over which accuracy
    and loss are; None with one target per example."""
    exact_match: float | None = None
    """Share of these examples that are right at all positions; None with one target per example,
    and for regression."""
    iou: float | None = None
    """Intersection over union, the mean of the classes that are a label or predicted; None unless
    one of up to 256 classes is predicted at positions."""
    class_accuracy: float | None = None
    """Accuracy of the positions of each class, the mean of the classes that are a label; None as
    `iou`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalScoreRow:
    """The personal model of one device on its held-out data, as the device reports it.

    A personal model changes only when its device trains, so its latest score is valid until then.
    """

    TABLE: ClassVar[str] = "personal_score"
    KEY: ClassVar[tuple[str, ...]] = ("round", "device")

    round: int
    """Round in which the device trained this model."""
    device: str
    """Name of the device."""
    n: int
    """Held-out examples of the device."""
    accuracy: float | None
    """Share of correct held-out examples; None for regression."""
    loss: float | None
    """Mean loss over the held-out examples, nats; None when the model has diverged."""
    auroc: float | None = None
    """Area under the ROC curve; None unless the examples are of two classes, and of both. Of labels
    the mean over those that some examples have and some have not."""
    rmse: float | None = None
    """Root mean squared error; None unless the task is regression, and when the model has
    diverged."""
    mae: float | None = None
    """Mean absolute error; None unless the task is regression, and when the model has diverged."""
    positions: int | None = None
    """Positions of these examples that have a target; None with one target per example."""
    exact_match: float | None = None
    """Share of these examples that are right at all positions; None with one target per example,
    and for regression."""
    iou: float | None = None
    """Intersection over union, the mean of the classes that are a label or predicted; None unless
    one of up to 256 classes is predicted at positions."""
    class_accuracy: float | None = None
    """Accuracy of the positions of each class, the mean of the classes that are a label; None as
    `iou`."""


MetricPhase: TypeAlias = Literal[
    "fit", "evaluate", "personal", "merged fit", "merged evaluate", "central", "pooled", "test"
]
"""Where a metric is from: a training, and a test of the model or of the personal one, on a device;
both as the strategy of an application has merged them; its own test of the model; the examples of
all devices; the test set of the server."""

METRIC_PHASES: Final[tuple[MetricPhase, ...]] = get_args(MetricPhase)
"""In the order in which they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetricRow:
    """One number by name: of the client of a device, or a metric of `evaluation.metrics`.

    The strategy of an application has such numbers, too.
    """

    TABLE: ClassVar[str] = "client_metric"
    KEY: ClassVar[tuple[str, ...]] = ("round", "device", "phase", "name")

    round: int
    """Round of the training, or after which the model was evaluated; counted from 1. 0: the first
    model, which only an application tests."""
    device: str
    """Name of the device; empty for pooled and test, and of the strategy of an application."""
    phase: str
    """fit or evaluate, of a device; merged fit or merged evaluate: as the strategy of an
    application has merged those of its devices; central: its own test of the model. Of
    `evaluation.metrics` also pooled, over the examples of all devices, test, on the server's test
    set, and personal, of personal models."""
    name: str
    """The client's name for it, at most 64 names in a run; or that of the metric."""
    value: float
    """As the client returned it, whose matter it is what it means; or the value of the metric."""
    n: int
    """Examples of which it is, the weight in a mean over devices; 0 without a device."""
    better: str | None = None
    """more or less, of a metric of `evaluation.metrics`; None for a client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryRow:
    """One context as it arrived; retained for a limited time."""

    TABLE: ClassVar[str] = "telemetry"
    KEY: ClassVar[tuple[str, ...]] = ()

    at_s: float
    """Instant of the arrival."""
    device: str
    """Name of the device."""
    phase: str
    """State that the device reported."""
    is_available: bool
    """The device was available."""
    mu_cores: float
    """Free cores that the device reported."""
    downlink_bps: float | None
    """Downlink as the device reported it; None before it has measured it."""
    uplink_bps: float | None
    """Uplink as the device reported it; None before it has measured it."""
    cpu_ratio: float | None
    """Cores that the agent used since the last report; None where not reported."""
    rss_bytes: int | None
    """Resident memory of the agent; None where not reported."""
    temperature_celsius: float | None
    """Temperature of the processor; None where it cannot be read."""
    free_cores: float | None
    """Cores that are idle or used by the agent; None where not reported."""
    clock_ratio: float | None
    """Clock under load / nominal clock; None where it cannot be read."""
    throttled: str | None
    """Causes that throttle the processor, comma-separated; empty: no throttling, None: unknown."""


INTERNAL_ERROR = "internal-error"
"""Kind of the events about internal errors that a replay survived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event of the run, for display."""

    TABLE: ClassVar[str] = "event"
    KEY: ClassVar[tuple[str, ...]] = ()

    at_s: float
    """Instant."""
    wall: str
    """Wall-clock time, ISO 8601 in UTC."""
    level: str
    """info, warning, error."""
    kind: str
    """joined, left, rejoined, refused, waiting, dispatched, failed, late, rejected, void, ..."""
    round: int | None
    """Round that the event is about, counted from 1; None for other events."""
    device: str | None
    """Device that the event is about; None for other events."""
    text: str
    """One line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRow:
    """A condition of the run that lasts and needs a person, such as a full disk."""

    TABLE: ClassVar[str] = "alert"
    KEY: ClassVar[tuple[str, ...]] = ("kind", "begin_s")

    kind: str
    """broker lost, disk low, stalled, no device, trouble, diverged, infeasible, other scale, host
    busy."""
    begin_s: float
    """Instant from which the condition holds."""
    end_s: float | None = None
    """Instant from which it does not hold any more; None while it lasts, and if the run ended with
    it."""
    text: str
    """What holds and what to do, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLogRow:
    """One line of the log of a device's agent; the newest of each device are kept."""

    TABLE: ClassVar[str] = "device_log"
    KEY: ClassVar[tuple[str, ...]] = ()

    at_s: float
    """Instant, from the age that the device states; below 0 before the run."""
    device: str
    """Name of the device."""
    number: int
    """Counted from 0 in each agent process; a gap means that lines were lost."""
    level: str
    """info, warning, error."""
    text: str
    """One line, as the device sent it, without control characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRow:
    """A command of an operator to the run."""

    TABLE: ClassVar[str] = "command"
    KEY: ClassVar[tuple[str, ...]] = ("id",)

    id: str
    """Number of the command."""
    at_s: float
    """Instant."""
    wall: str = ""
    """Wall-clock time, ISO 8601 in UTC."""
    action: str
    """What the operator requested."""
    device: str | None
    """Device that the command is about; None for a command to the whole run."""
    operator: str
    """Name of the operator; `local` without a lab."""
    name: str | None = None
    """Setting, part, profile, link or fault; None for other actions."""
    value: float | None = None
    """Value of the setting, share of the speed, or seconds of the fault; None for other actions."""
    text: str = ""
    """The note."""
    round: int | None = None
    """First round with the new setting; None for other actions and refused commands."""
    before: float | None = None
    """Value of the setting before; None for other actions and refused commands."""
    is_accepted: bool = True
    """The run executed the command."""
    answer: str = ""
    """What the run does, or why it refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """State from which a run resumes after a closed round."""

    TABLE: ClassVar[str] = "checkpoint"
    KEY: ClassVar[tuple[str, ...]] = ("round",)

    round: int
    """Round, counted from 1."""
    state: bytes
    """msgpack of selector, estimator, aggregator and registry state; empty if it is in a file."""
    state_sha256: str
    """Hash of a state above 1 MB, which is in a file beside the model, `.state`; else empty."""
    model_file: str
    """Relative to the run folder, `.safetensors`."""
    model_sha256: str
    """Hash of the model after the round."""
    at_s: float
    """Instant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRow:
    """Totals of one device over the rounds whose rows a replica does not have.

    Only replicas of runs on other machines have this table (`coordinator.store.replication`).
    """

    TABLE: ClassVar[str] = "earlier"
    KEY: ClassVar[tuple[str, ...]] = ("device",)

    device: str
    """Name of the device."""
    rounds: int
    """Rounds since it joined."""
    available: int
    """Rounds in which it was available."""
    selected: int
    """Rounds in which it was selected."""
    aggregated: int
    """Rounds in which its update was aggregated."""
    done: int
    """Exchanges with an update."""
    invalid: int
    """Exchanges with an update that the estimator must not learn from."""
    contended: int
    """Exchanges with an update that contention on the host made invalid."""
    device_s: float
    """Device-seconds of its exchanges and loss queries."""
    energy_j: float | None
    """Energy of its exchanges; None if it is unknown."""
    weight_share: float
    """Sum of its shares of merges."""
    n_share: float
    """Sum of its shares of the examples of merges."""
    released: int
    """Updates with local noise that may have left the device."""


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
    | ReleaseRow
    | MetricRow
    | DeviceMetricRow
    | PersonalScoreRow
    | ClientMetricRow
    | TelemetryRow
    | ConditionRow
    | EventRow
    | AlertRow
    | DeviceLogRow
    | CommandRow
    | CheckpointRow
    | EarlierRow
)
