"""The keys of `fairbed show RUN --json`.

Scripts read them, so keys are only added after the first release. An unknown number, or NaN, is
null. A number that several views have is declared in `coordinator.report.measures`, with its
meaning (docs/measures.md); beside its field here stands when it is null.

A median, percentile, mean or share of exchanges has its counts in `samples` beside it, by its key:
`n` exchanges have a value, `of` all of the kind. With n < 5 or n < of / 2 the number is null. A sum
is null with n < of / 2.
"""

from msgspec import UNSET, Struct, UnsetType

from fairbed.coordinator.algorithms.sampling_noise import SamplingNoise
from fairbed.coordinator.report.measures.entry import Number
from fairbed.coordinator.report.quantities import SampleCount
from fairbed.coordinator.store.store import Provenance


class Accuracy(Struct, frozen=True, kw_only=True):
    """Accuracy in the latest evaluation, as ratios, over devices; all null for regression."""

    mean: float | None
    worst10: float | None
    """Unweighted mean of the max(1, int(0.1 n)) lowest; likewise `best10`."""
    best10: float | None
    variance: float | None
    gini: float | None
    """Null if every accuracy is 0; likewise `jain`."""
    gap: float | None
    pooled: float | None
    worst10_pooled: float | None
    """Correct / examples of the devices of `worst10`; likewise `best10_pooled`."""
    best10_pooled: float | None
    std: float | None
    variance_of_percent: float | None
    """Population variance of the percentages, 10^4 times `variance`."""
    jain: float | None
    test_set: float | None
    """On the server's test set; null without one. It is also `mean` and `pooled` if no device was
    measured."""
    noise: SamplingNoise | None
    """Noise of the test sets in these numbers; null for fewer than two devices."""


class Auroc(Struct, frozen=True, kw_only=True):
    """Area under the ROC curve in the latest evaluation, over devices with both classes."""

    mean: float | None
    worst10: float | None
    """Unweighted mean of the max(1, int(0.1 n)) lowest."""
    pooled: float | None
    """Over the examples of all devices; null if a device tested the model itself."""
    test_set: float | None
    """On the server's test set; null without one."""


class Positions(Struct, frozen=True, kw_only=True):
    """Classes at several positions of an example, in the latest evaluation.

    Accuracy and loss are those of positions.
    """

    perplexity: float | None
    """exp of the loss over all positions; null if it is no finite number."""
    exact_match_mean: float | None
    exact_match_pooled: float | None
    iou_mean: float | None = None
    """Mean intersection over union of the classes, unweighted over devices; null above 256 classes.
    """
    iou_pooled: float | None = None
    """The same over all positions; null also if a device tested the model itself."""
    iou_of_classes: list[float | None] = []
    """Of each class; null for one that is neither a label nor predicted; empty if unknown."""
    class_accuracy_mean: float | None = None
    class_accuracy_pooled: float | None = None
    """The same over all positions; null also if a device tested the model itself."""
    class_accuracy_of_classes: list[float | None] = []
    """Of each class; null for one without labels; empty if unknown."""


class Errors(Struct, frozen=True, kw_only=True):
    """Errors of regression in the latest evaluation, over devices, in units of the target."""

    rmse_mean: float | None
    """Root mean squared error, unweighted over devices; null if the model has diverged."""
    rmse_worst10: float | None
    """Unweighted mean of the max(1, int(0.1 n)) largest."""
    rmse_best10: float | None
    """Unweighted mean of the max(1, int(0.1 n)) smallest."""
    rmse_std: float | None
    rmse_gap: float | None
    rmse_pooled: float | None
    mae_mean: float | None
    r2_pooled: float | None
    """Coefficient of determination over the examples of all devices; null if a device tested the
    model itself."""
    test_set: float | None
    """Root mean squared error on the server's test set; null without one."""


class Loss(Struct, frozen=True, kw_only=True):
    """Loss in the latest evaluation, over devices: nats, or half the squared error."""

    mean: float | None
    std: float | None


class Utility(Struct, frozen=True, kw_only=True):
    """Utilities M - loss in the latest evaluation, nats, over devices.

    Null where a loss is M or more. Utilities compare only under the same M.
    """

    M: float
    """`aggregation.M`, whatever the rule."""
    average: float | None
    """U(Average): unweighted mean."""
    product: float | None
    """U(Multi); null where it is too large for a number."""
    log_product: float | None
    least: float | None


class ExchangeSummary(Struct, frozen=True, kw_only=True):
    """Model exchanges; times are those of timed exchanges: done and valid.

    The `of` of a sample is `count`, unless its key has another one.
    """

    count: int
    """All that have ended, whatever their outcome."""
    timed: int
    """Done, with a time that is valid."""
    invalid: int
    """Exchanges that are done, but excluded from the estimator."""
    contended: int
    """Invalid exchanges with contention on the machine that emulates the fleet."""
    late: int
    """Exchanges that missed the deadline and were not aggregated later."""
    aggregated_late: int
    """Exchanges aggregated with a staleness of at least 1."""
    staleness_mean: float | None
    """Mean staleness of all aggregated updates, versions."""
    cancelled: int
    """Exchanges cancelled: enough others had arrived, or an operator excluded the device."""
    failed: int
    """Exchanges that failed, were lost or rejected."""
    refused: dict[str, int] = {}
    """Exchanges whose offer or update was refused (`rejected`), by device, most first: broken or
    implausible reports."""
    median_s: float | None
    p95_s: float | None
    unaccounted_ratio: float | None
    """Median of unaccounted_s / tau_s."""
    unaccounted_median_s: float | None
    cell_wait_ratio: float | None
    """Median of cell_wait_s / tau_s, of all exchanges of devices in cells; None without one."""
    encode_median_s: float | None
    """Encoding of the update on the device."""
    decode_median_s: float | None
    """Decoding of the model on the device."""
    coordinator_decode_median_s: float | None
    """Decoding of the update, outside the exchange time, of the exchanges with another codec than
    float32."""
    down_median_bytes: float | None
    """Downloaded bytes per exchange."""
    up_median_bytes: float | None
    """Uploaded bytes per exchange."""
    codecs_down: dict[str, int]
    """Number of exchanges by codec used for the model."""
    codecs_up: dict[str, int]
    """Number of exchanges by codec used for the update."""
    samples: dict[str, SampleCount]
    """Counts of each median, percentile and ratio, by its key."""


class EstimatorError(Struct, frozen=True, kw_only=True):
    """Predictions against measurements in the second half of the rounds."""

    predicted: int
    """Exchanges of these rounds with a prediction, timed or not; 0 is no prediction."""
    mape_second_half: float | None
    median_ape: float | None
    bias: float | None
    samples: dict[str, SampleCount]
    """Timed exchanges with a prediction, of all exchanges of these rounds, by key."""


class Queues(Struct, frozen=True, kw_only=True):
    """Virtual queues Z; null before the first round, and under a policy without queues."""

    total: float | None
    largest: float | None
    mean_total: float | None
    max: float | None


class DefenceSummary(Struct, frozen=True, kw_only=True):
    """What the defence did to the aggregated updates."""

    left_out: int
    """Updates that did not count."""
    shortened: int
    """Updates whose change was scaled down."""
    most_left_out: str | None
    """The device with the most updates left out, by count, then by name."""


class Attackers(Struct, frozen=True, kw_only=True):
    """Malicious devices, by the ground truth of the testbed, and the benign devices without them.

    Accuracies and losses are those of the latest evaluation, over benign devices; null if there is
    no benign device with held-out examples.
    """

    kinds: dict[str, int]
    """Number of malicious devices by kind; empty if `[fleet.malicious]` makes no device so: then
    all devices are benign."""
    accuracy_mean: float | None
    accuracy_worst10: float | None
    """Unweighted mean of the max(1, int(0.1 n)) lowest."""
    accuracy_variance: float | None
    """Population variance; likewise `accuracy_std`."""
    accuracy_std: float | None
    noise: SamplingNoise | None
    """As `Accuracy.noise`."""
    loss_mean: float | None
    loss_std: float | None
    device_share: float
    """Malicious devices / devices: their share if they had no advantage."""
    selection_share: float | None
    weight_share: float | None
    """Sum of the weights of their updates, mean over merges; the sum of all weights is 1."""
    left_out: int
    """Their updates that the defence left out."""
    aggregated: int
    """Their updates that were aggregated, with those that the defence left out."""


class PersonalSummary(Struct, frozen=True, kw_only=True):
    """Personal models on held-out data: the latest score of each device that has one.

    Without malicious devices, where they are known. Keys that begin with `global_` are about the
    global model in the latest evaluation, on the same devices.
    """

    devices: int
    accuracy_mean: float | None
    """Unweighted over devices; null for regression, as all accuracies."""
    accuracy_worst10: float | None
    """Unweighted mean of the max(1, int(0.1 n)) lowest."""
    accuracy_best10: float | None
    accuracy_variance: float | None
    """Population variance; likewise `accuracy_std`."""
    accuracy_std: float | None
    accuracy_pooled: float | None
    """Correct / examples of all devices."""
    noise: SamplingNoise | None
    """As `Accuracy.noise`."""
    rmse_mean: float | None
    """Root mean squared error, for regression; likewise the other errors."""
    rmse_worst10: float | None
    rmse_std: float | None
    loss_mean: float | None
    global_mean: float | None
    global_worst10: float | None
    global_variance: float | None
    global_rmse_mean: float | None
    global_rmse_worst10: float | None
    better: int
    """Devices whose personal model is more accurate than the global one, or has a smaller error."""
    train_s_median: float | None
    """Training of the personal model in timed exchanges."""
    samples: dict[str, SampleCount]
    """Of all exchanges, by key."""


class MergeWeights(Struct, frozen=True, kw_only=True):
    """Weights of the updates against their shares of the examples, n_k / sum n."""

    divergence: float | None
    """Mean over rounds of the Kullback-Leibler divergence of the weights from the shares, nats; 0
    where examples alone count."""
    lowest: str | None
    """The device with the lowest `DeviceSummary.weight_ratio`."""
    highest: str | None
    """The device with the highest one."""


class EnergySummary(Struct, frozen=True, kw_only=True):
    """Energy of the devices during the phases of their exchanges.

    That of waiting, of loss queries and of scores is not measured.
    """

    exchanges: int
    """Exchanges with a known energy."""
    total_j: float | None
    wasted_j: float | None
    """The part of `total_j` in exchanges whose update was not aggregated."""
    median_j: float | None
    """Of an exchange whose update was aggregated."""
    phases_j: dict[str, float]
    """Parts of `total_j` by phase, joules; empty if that is null."""
    is_complete: bool
    """The energy of every exchange whose update was aggregated is known."""
    samples: dict[str, SampleCount]
    """By key: of all exchanges, for `median_j` of those whose update was aggregated."""


class PrivacySummary(Struct, frozen=True, kw_only=True):
    """Local noise on updates.

    epsilon is about the updates of one device, not about losses, counts, contexts and times
    (docs/privacy.md).
    """

    clip: float
    noise_multiplier: float
    """Standard deviation of the noise / clip."""
    delta: float
    sends_scores: bool
    """Devices also sent scores on held-out examples, which epsilon does not cover."""
    releases: int
    """Updates that left a device, whether they were aggregated or not, over all devices."""
    releases_most: int
    """Those of the device with the most."""
    epsilon_max: float | None
    """epsilon of that device; null if the accountant is not installed."""
    note: str
    """What to install; empty if epsilon is known."""


class Bytes(Struct, frozen=True, kw_only=True):
    """Bytes of models and updates on the network."""

    down: int
    up: int


class Fairness(Struct, frozen=True, kw_only=True):
    """Fairness of the selection over devices."""

    beta: float | None
    """Guaranteed rate, its mean over the rounds if an operator changed it; None if the policy
    guarantees no rate."""
    min_selection_rate: float | None
    min_aggregation_rate: float | None
    highest_rate: float | None
    """Highest rate that every device could have, by the availability in the run; None without beta
    or where that is not stored."""
    jain: float | None
    invariant_holds: bool | None
    """rate >= beta - Z_T / T for every device, with the rate named by `queue_counts`; None without
    beta."""
    queue_counts: str
    """Event that lowers a virtual queue: `selected` or `aggregated`."""
    left: list[str] = []
    """Devices that left the fleet because the broker refuses them: they are in no other number of
    this object."""


class ClientMetricSummary(Struct, frozen=True, kw_only=True):
    """One metric of the client of a run, in the newest round in which a device reported it.

    The strategy of an application has such metrics, too.
    """

    name: str
    """The client's name for it."""
    phase: str
    """fit or evaluate; merged fit, merged evaluate or central: of the strategy of an app."""
    round: int
    devices: int
    """0: of the strategy of an app."""
    mean: float
    """Over these devices, weighted by their examples; without one the value."""
    lowest: float
    lowest_device: str
    highest: float
    highest_device: str


class NamedMetricSummary(Struct, frozen=True, kw_only=True):
    """One metric of `evaluation.metrics` in its newest evaluation; each device counts once."""

    name: str
    better: str
    """more or less."""
    is_worst: bool
    """`evaluation.worst` names it."""
    round: int
    devices: int
    """Devices that have a value; the others have no example that counts."""
    mean: float | None
    """Unweighted over devices; null without any, likewise the next four."""
    worst10: float | None
    """Unweighted mean of the max(1, int(0.1 n)) worst."""
    best10: float | None
    std: float | None
    gap: float | None
    worst_device: str | None
    pooled: float | None
    """Over the examples of all devices; null if a device sent no sums."""
    test_set: float | None
    """On the server's test set; null without one."""


class ProfileSummary(Struct, frozen=True, kw_only=True):
    """All devices of one profile."""

    devices: int
    speed: float | None
    """Configured speed of a core relative to the reference core; None for physical devices."""
    train_s_median: float | None
    step_s_median: float | None
    """train_s / mini-batches, comparable between devices with unequal data."""
    samples: dict[str, SampleCount]
    """Timed exchanges, of all exchanges of these devices, by key."""


class DeviceSummary(Struct, frozen=True, kw_only=True):
    """One device."""

    name: str
    kind: str
    """physical, emulated or replayed."""
    profile: str
    """The emulated profile, or the board that a physical device reports."""
    link: str | None = None
    """Name of the link that it drew of several of its group; null without a draw."""
    n_k: int
    selected: int
    aggregated: int
    selection_rate: float | None
    aggregation_rate: float | None
    queue: float | None
    tau_s_median: float | None
    train_s_median: float | None
    accuracy: float | None
    """None for regression."""
    auroc: float | None
    """Only with two classes."""
    metric: float | None
    """That of `evaluation.worst`; null if it names none."""
    rmse: float | None
    """Only for regression; likewise the next."""
    mae: float | None
    loss: float | None
    weight_ratio: float | None
    left_out: int
    """Its updates that the defence left out."""
    energy_j: float | None
    personal_accuracy: float | None
    """Accuracy of its personal model."""
    personal_rmse: float | None
    releases: int | None
    """Updates with local noise that left it; null without local noise."""
    epsilon: float | None
    """epsilon of these updates; null if it is unknown."""
    malicious: str | None
    """Kind of its malicious behaviour; null while the run is live unless it is revealed."""
    samples: dict[str, SampleCount]
    """Timed exchanges, or those with a known energy, of all its exchanges, by key."""
    measures: dict[str, Number] | UnsetType = UNSET
    """Measures of the catalogue without a key of their own here; absent if there is none."""

    @property
    def personal_quality(self) -> float | None:
        """Accuracy of its personal model, or its RMSE."""
        return self.personal_rmse if self.personal_accuracy is None else self.personal_accuracy


class LossQuerySummary(Struct, frozen=True, kw_only=True):
    """Loss queries before selections."""

    count: int
    answered: int
    late: int
    """No reply within `selection.loss_query_timeout_s`."""
    median_s: float | None
    """Time from a query to its reply."""
    samples: dict[str, SampleCount]
    """Replies, of all queries, by key."""
    total_s: float
    """Time that loss queries added to the rounds; part of `virtual_s`."""


class RoundTimes(Struct, frozen=True, kw_only=True):
    """Durations of rounds that are not void, seconds."""

    median: float | None
    p95: float | None
    samples: dict[str, SampleCount]
    """Rounds that are not void, of all closed rounds, by key."""


BY_APP = "by the strategy of the application"
"""How a run merges whose rule is `app`."""


class AggregationSummary(Struct, frozen=True, kw_only=True):
    """The steps of the aggregation, keys of `[aggregation]`."""

    rule: str | None
    """`app`: the strategy of an application merges, and the other steps do not act."""
    weights: str
    """Weight of a device before its loss counts; the default of the rule unless it was set."""
    defence: str
    pseudo_gradient: str
    server: str
    step: str
    """Length of the step: as-published, or normalised to that of the equal-weight mean."""


class LiveChange(Struct, frozen=True, kw_only=True):
    """A change of the run or of a device by an operator, while the run was live."""

    at_s: float
    """Instant on the clock of the run."""
    operator: str
    what: str
    """Key of the setting, or the command without its value."""
    value: float | None
    before: float | None
    """Value of the setting before; null for other commands."""
    round: int | None
    """First round with the new setting; null for other commands."""


class AlertSummary(Struct, frozen=True, kw_only=True):
    """A condition that lasted while the run was live."""

    kind: str
    """broker lost, disk low, stalled, no device, trouble, diverged, infeasible, other scale, host
    busy."""
    begin_s: float
    """Instant on the clock of the run."""
    end_s: float | None
    """Null while it lasts, and if the run ended with it."""
    text: str


class DivergenceSummary(Struct, frozen=True, kw_only=True):
    """A global model whose loss grew above 10 times its first evaluated value, or is not finite."""

    round: int
    """First evaluation that shows it; the last time, if the model recovered between."""
    worst_round: int
    """Evaluation with the largest loss since."""
    worst_loss: float | None
    """Nats; null if it is not finite."""
    first_round: int
    """First evaluation of the run."""
    first_loss: float | None
    """Nats; null if it is not finite."""
    is_over: bool
    """A later loss was at most 5 times the first one."""
    text: str
    """The same in one line."""


class ContextCheckSummary(Struct, frozen=True, kw_only=True):
    """What the context check judged."""

    judged: int
    """Exchanges of which it judged a claim."""
    unjudged: int
    """Exchanges too short, or too little known, to show a false claim."""


class RunWarning(Struct, frozen=True, kw_only=True):
    """A kind of warning about a run as a whole, which a reader of its numbers needs."""

    kind: str
    """Kind of its events or of its alert; `untimed`, `evaluation` and `test-noise`
    follow from the summary."""
    count: int
    """Events, alerts or notes of this kind."""
    text: str
    """The first of them."""


class FrozenPart(Struct, frozen=True, kw_only=True):
    """The frozen part of the model, which each device downloads once, before its first round."""

    bytes: int
    devices: int
    """That have it."""
    downloaded: int
    """Those of them that downloaded it in this run; the others had it before."""
    shortest_s: float | None
    """Download of the fastest of them; null if none downloaded it. Likewise the next one."""
    longest_s: float | None


class RunSummary(Struct, frozen=True, kw_only=True):
    """Summary of a run."""

    run_id: str
    name: str
    local_rule: str
    """`training.rule`; sgd without a change of local training."""
    aggregation: AggregationSummary
    seed: int
    status: str
    waiting: str
    """Devices that the live run waits for, in a few words; empty while it goes on."""
    reason: str
    resume_command: str
    """Command that continues the run; empty for a live or done one."""
    rounds_completed: int
    """Closed rounds."""
    rounds_planned: int | None
    """`rounds` of the experiment: so many are not empty in a run that is done."""
    rounds_void: int
    """Rounds without an update."""
    rounds_empty: int
    """Those of them in which no device was available: on top of `rounds_planned`."""
    changes: list[LiveChange]
    """Commands of operators that changed the run, oldest first."""
    alerts: list[AlertSummary]
    """The newest hundred, oldest first."""
    internal_errors: int = 0
    """Internal errors of Fairbed in models of devices, each of which has failed one exchange, loss
    query or link probe of a replay."""
    divergence: DivergenceSummary | None
    """Null if the loss of the global model stayed within 10 times its first value."""
    warnings: list[RunWarning]
    """One per kind, by name: all warnings that are not about single devices. `fairbed compare`
    prints each with the number of runs."""
    clock: str
    """real, or virtual for a replay."""
    costs_from: str | None
    """Source of the costs of local training in a replay; None for a live run."""
    wall_s: float
    virtual_s: float
    device_s: float
    dilation: float
    """Seconds of real time per second of the fleet; all times but `wall_s` are the fleet's."""
    devices: int
    selected: dict[str, int]
    aggregated: dict[str, int]
    task: str
    """classification, binary (one logit for two classes), regression, or multi-label."""
    accuracy: Accuracy
    auroc: Auroc | None
    """Null unless the examples are of two classes, or of labels."""
    positions: Positions | None
    """Null with one target per example, and for regression."""
    error: Errors | None
    """Null unless the task is regression."""
    loss: Loss
    utility: Utility
    evaluation_notes: list[str]
    """What the latest evaluation could not measure or cannot check, one line each."""
    exchange: ExchangeSummary
    estimator: EstimatorError
    queues: Queues
    loss_queries: LossQuerySummary
    context_check: ContextCheckSummary | None
    """Null without `selection.context_check`."""
    audits: int
    """Exchanges of uniformly drawn devices."""
    weights: MergeWeights
    defence: DefenceSummary
    attackers: Attackers | None
    """Null without `[fleet.malicious]`, and while the run is live unless they are revealed."""
    personal: PersonalSummary | None
    """Null without a score of a personal model."""
    energy: EnergySummary | None
    """Null if the energy of no exchange is known."""
    privacy: PrivacySummary | None
    """Null without local noise."""
    bytes: Bytes
    fairness: Fairness
    round_s: RoundTimes
    profiles: dict[str, ProfileSummary]
    fleet: list[DeviceSummary]
    provenance: Provenance
    """What the run was made with, at its start."""
    measures: dict[str, Number] | UnsetType = UNSET
    """Measures of the catalogue without a key of their own here; absent if there is none."""
    client_metrics: list[ClientMetricSummary] | UnsetType = UNSET
    """What the client of the run measures; absent without any."""
    frozen: FrozenPart | UnsetType = UNSET
    """Absent for a model without a frozen part."""
    optimiser: str | UnsetType = UNSET
    """How local steps differ from those of plain SGD, in words; absent if they do not."""
    personal_part: str | UnsetType = UNSET
    """What of the model each device keeps, and how it is trained, in words; absent if it keeps no
    parameters by name."""
    metrics: list[NamedMetricSummary] | UnsetType = UNSET
    """Those of `evaluation.metrics`; absent without any."""
    has_client: bool = False
    """Training code of the user has trained the model."""

    @property
    def worst_metric(self) -> NamedMetricSummary | None:
        """The metric that `evaluation.worst` names; None if that is of the task."""
        return next((one for one in self.metrics or () if one.is_worst), None)

    @property
    def last_round(self) -> int | None:
        """Number of the last round, if no further one is empty; None if it is not planned."""
        return self.rounds_planned and self.rounds_planned + self.rounds_empty
