"""The keys of `fairbed show RUN --json`.

Scripts read them, so from the first release on keys are only added. An unknown number is null; NaN
is encoded as null, too.
"""

from msgspec import Struct


class Accuracy(Struct, frozen=True, kw_only=True):
    """The latest evaluation, ratios over devices."""

    mean: float | None
    worst10: float | None
    best10: float | None
    variance: float | None
    gini: float | None
    gap: float | None
    pooled: float | None


class Loss(Struct, frozen=True, kw_only=True):
    """The latest evaluation, nats over devices."""

    mean: float | None
    std: float | None


class ExchangeSummary(Struct, frozen=True, kw_only=True):
    """Model exchanges; times of those that are done and valid."""

    count: int
    invalid: int
    """Done, but may not teach the estimator."""
    contended: int
    """Of the invalid ones: by contention on the machine that emulates the fleet."""
    late: int
    """Missed the deadline, and were not aggregated later."""
    aggregated_late: int
    """Done, but one version late or more."""
    staleness_mean: float | None
    """Versions late, mean over all aggregated updates."""
    cancelled: int
    """Ended early: enough others had arrived, or a person excluded the device."""
    failed: int
    """Failed, lost or rejected."""
    median_s: float | None
    p95_s: float | None
    unaccounted_ratio: float | None
    """Median of unaccounted_s / tau_s."""
    unaccounted_median_s: float | None
    encode_median_s: float | None
    """Of the update, at the device."""
    decode_median_s: float | None
    """Of the model, at the device."""
    coordinator_decode_median_s: float | None
    """Of the update, outside the exchange time; None for float32."""
    down_median_bytes: float | None
    """Of one exchange."""
    up_median_bytes: float | None
    codecs_down: dict[str, int]
    """Exchanges by the codec that was really used."""
    codecs_up: dict[str, int]


class EstimatorError(Struct, frozen=True, kw_only=True):
    """Predictions against measurements in the second half of the rounds."""

    mape_second_half: float | None
    """Mean of |tau_hat - tau| / tau."""
    median_ape: float | None
    bias: float | None
    """Mean of (tau_hat - tau) / tau; positive means too pessimistic."""


class Queues(Struct, frozen=True, kw_only=True):
    """Virtual queues Z over all rounds."""

    mean_total: float | None
    """Mean over rounds of the sum over devices."""
    max: float | None


class Bytes(Struct, frozen=True, kw_only=True):
    """Models on the wire."""

    down: int
    up: int


class Fairness(Struct, frozen=True, kw_only=True):
    """How evenly devices were selected."""

    beta: float | None
    """Guaranteed rate; None when the policy guarantees none."""
    min_selection_rate: float | None
    """Lowest selections / rounds since it joined."""
    min_aggregation_rate: float | None
    """Lowest aggregated updates / rounds since it joined."""
    jain: float | None
    """Of the selections; 1 is equal."""
    invariant_holds: bool | None
    """rate >= beta - Z_T / T of every device, of the rate that `selection.queue_counts` names;
    None without beta."""
    queue_counts: str
    """selected or aggregated: what lowers a queue."""


class ProfileSummary(Struct, frozen=True, kw_only=True):
    """All devices of one kind."""

    devices: int
    speed: float | None
    """Configured: reference cores that one of its cores is worth; None for real devices."""
    train_s_median: float | None
    step_s_median: float | None
    """train_s / mini-batches: comparable between devices with unequal data."""


class DeviceSummary(Struct, frozen=True, kw_only=True):
    """One device."""

    name: str
    profile: str
    n_k: int
    selected: int
    aggregated: int
    selection_rate: float | None
    """Selected / rounds since it joined."""
    aggregation_rate: float | None
    """Aggregated / rounds since it joined."""
    queue: float | None
    """Z after the last round."""
    tau_s_median: float | None
    train_s_median: float | None
    accuracy: float | None
    loss: float | None


class LossQuerySummary(Struct, frozen=True, kw_only=True):
    """Loss queries before selections."""

    count: int
    answered: int
    late: int
    """No answer within `selection.loss_query_timeout_s`."""
    median_s: float | None
    """From a query to its answer."""
    total_s: float
    """Time that loss queries added to the rounds; part of `virtual_s`."""


class RoundTimes(Struct, frozen=True, kw_only=True):
    """How long rounds lasted, void ones not counted."""

    median: float | None
    p95: float | None


class RunSummary(Struct, frozen=True, kw_only=True):
    """A run, in numbers."""

    run_id: str
    name: str
    seed: int
    status: str
    reason: str
    rounds_completed: int
    rounds_planned: int | None
    rounds_void: int
    wall_s: float
    """Seconds of the machine until the last thing recorded: everything included."""
    virtual_s: float
    """The experiment's time axis: the sum of all rounds, evaluation off the record."""
    dilation: float
    """Seconds of the machine in one second of the fleet; every other time here is the fleet's."""
    devices: int
    selected: dict[str, int]
    aggregated: dict[str, int]
    accuracy: Accuracy
    loss: Loss
    exchange: ExchangeSummary
    estimator: EstimatorError
    queues: Queues
    loss_queries: LossQuerySummary
    audits: int
    """Exchanges of uniformly drawn devices."""
    bytes: Bytes
    fairness: Fairness
    round_s: RoundTimes
    profiles: dict[str, ProfileSummary]
    fleet: list[DeviceSummary]
