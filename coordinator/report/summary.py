"""Computes the summary of a run: the object of `fairbed show RUN --json`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.fairness import summarise, summarise_utilities
from fairbed.coordinator.policy.config import AggregationConfig
from fairbed.coordinator.policy.live_settings import (
    SECTIONS,
    key_of,
)
from fairbed.coordinator.records.rows import ENERGY_PHASES
from fairbed.coordinator.report.client_metrics import summaries
from fairbed.coordinator.report.device_time import device_seconds
from fairbed.coordinator.report.facts import COLUMNS, ExchangeTable, RunFacts
from fairbed.coordinator.report.measures import (
    numbers_of,
    own_numbers,
    own_numbers_of_devices,
)
from fairbed.coordinator.report.named_metrics import named_summaries
from fairbed.coordinator.report.privacy import device_epsilon, privacy_summary
from fairbed.coordinator.report.quality import (
    accuracies_of,
    counted_tests,
    counts_of,
    errors_of,
    losses_of,
    noise_of,
    noise_warning,
)
from fairbed.coordinator.report.quantities import SampleCount, of_enough, ratio, size
from fairbed.coordinator.report.summary_schema import (
    Accuracy,
    AggregationSummary,
    AlertSummary,
    Attackers,
    Auroc,
    Bytes,
    ContextCheckSummary,
    DefenceSummary,
    DeviceSummary,
    DivergenceSummary,
    EnergySummary,
    Errors,
    EstimatorError,
    ExchangeSummary,
    FrozenPart,
    LiveChange,
    Loss,
    LossQuerySummary,
    MergeWeights,
    PersonalSummary,
    Positions,
    ProfileSummary,
    Queues,
    RoundTimes,
    RunSummary,
    RunWarning,
    Utility,
)
from fairbed.coordinator.report.summary_table import summary_table
from fairbed.coordinator.state.alerts import Divergence
from fairbed.coordinator.store.reader import (
    LIVE,
    ExperimentExcerpt,
    PlannedAggregation,
    RunReader,
    SelectionCounts,
    profile_of,
)
from fairbed.coordinator.store.store import Provenance
from fairbed.coordinator.store.tables import (
    INTERNAL_ERROR,
    AlertRow,
    CommandRow,
    DeviceMetricRow,
    DeviceRow,
    LossQueryRow,
    MetricRow,
    PersonalScoreRow,
    RoundRow,
    TruthRow,
)

__all__ = ["RunSummary", "summarise_run", "summary_table"]

MAX_DEVICES = 1_000
"""Maximum number of devices in the summary's `fleet`."""
SHOWN_NAMES = 8
"""Devices that a note names."""
FAILURES = ("failed", "lost", "rejected")

_NOWHERE: Ints = np.zeros(0, dtype=np.int64)

CHANGING = ("set", "exclude", "include", "throttle", "profile", "link", "fault")
"""Commands of operators that change the run or its devices."""


def summarise_run(
    reader: RunReader, *, reveals: bool = False, max_devices: int | None = MAX_DEVICES
) -> RunSummary:
    """Return the summary of a run, live or finished, from one snapshot of the store.

    Args:
        reader: Reads the run.
        reveals: Report malicious devices although the run is live.
        max_devices: Most devices in `fleet`; None: all that have joined.
    """
    with reader.snapshot():
        facts = RunFacts(reader, columns=COLUMNS)
        info, rounds, counts = facts.info, facts.rounds, facts.counts
        devices = reader.devices()
        truths = {truth.name: truth for truth in reader.truths()}
        commands = reader.commands()
        alerts, warned = reader.alerts(), reader.warnings()
        exchanges, fairness = facts.exchanges, facts.fairness
        metrics = [] if facts.metric is None else [facts.metric]
        diverged = reader.divergence()
        malicious = reader.malicious() if reveals or info.status not in LIVE else {}
        device_metrics = facts.device_metrics
        personal = facts.personal_scores
        last = rounds[-1].round if rounds else 0
        queues = {row.device: row.queue for row in reader.selections(last)}
        queries = reader.columns(LossQueryRow, ("outcome", "duration_s"))
        audits = len(reader.audits())
        internal_errors = reader.event_count(INTERNAL_ERROR)
        plan = info.plan.privacy
        releases = {} if plan.clip is None else reader.releases()
        spent_s = device_seconds(reader)
        test_bytes = reader.test_bytes()
        fleet_stats = reader.fleet_stats()
        own, own_of_devices = own_numbers(facts), own_numbers_of_devices(facts)
        served = [facts.served.note] if facts.served.note else []
        by_name = reader.latest_client_metrics()
        client_metrics = summaries([row for row in by_name if row.better is None])
        named = [row for row in by_name if row.better is not None]

    is_revealed = reveals or info.status not in LIVE
    is_listed = fleet_stats is None  # a row for each device, malicious or not
    is_study = is_listed and any(group.malicious is not None for group in info.plan.fleet)
    kinds = {device.name: profile_of(device, truths.get(device.name)) for device in devices}
    privacy = privacy_summary(plan, releases.values())
    worst = {
        row.device: row.value
        for row in named
        if row.phase == "evaluate" and row.name == info.plan.evaluation.worst
    }
    fleet, weight_ratios = list[DeviceSummary](), _weight_ratios(exchanges)
    rows_of = exchanges.by_device()
    left_out = Counter(exchanges.device[exchanges.numbers["defence_scale"] == 0.0].tolist())
    for device in devices[:max_devices]:
        count = counts.get(device.name)
        metric = device_metrics.get(device.name)
        measured = _of_device(exchanges, rows_of.get(device.name, _NOWHERE))
        fleet.append(
            DeviceSummary(
                name=device.name,
                kind=device.kind,
                profile=kinds[device.name],
                link=None if device.name not in truths else truths[device.name].drawn_link,
                n_k=device.n_k,
                selected=count.selected if count else 0,
                aggregated=count.aggregated if count else 0,
                selection_rate=count.selected / count.rounds if count else None,
                aggregation_rate=count.aggregated / count.rounds if count else None,
                queue=queues.get(device.name),
                tau_s_median=measured.values["tau_s_median"],
                train_s_median=measured.values["train_s_median"],
                accuracy=metric.accuracy if metric else None,
                auroc=metric.auroc if metric else None,
                metric=worst.get(device.name),
                rmse=metric.rmse if metric else None,
                mae=metric.mae if metric else None,
                loss=metric.loss if metric else None,
                weight_ratio=weight_ratios.get(device.name),
                left_out=left_out[device.name],
                energy_j=measured.values["energy_j"],
                personal_accuracy=personal[device.name].accuracy
                if device.name in personal
                else None,
                personal_rmse=personal[device.name].rmse if device.name in personal else None,
                releases=None if privacy is None else releases.get(device.name, 0),
                epsilon=device_epsilon(privacy, releases.get(device.name, 0)),
                malicious=malicious.get(device.name),
                samples=measured.samples,
                measures=numbers_of(device.name, own_of_devices) or UNSET,
            )
        )
    lasted = [row.duration_s for row in rounds if row.status != "void"]
    model = _model(metrics[-1] if metrics else None, list(device_metrics.values()), reader.plan)
    attackers = (
        _attackers(malicious, counts, exchanges, list(device_metrics.values()))
        if malicious or (is_study and is_revealed)
        else None
    )
    own_models = _personal(
        [row for row in personal.values() if row.device not in malicious],
        device_metrics,
        exchanges,
    )
    exchange = _exchanges(exchanges)
    batch_norm = info.plan.model.batch_norm
    notes = _part_notes(info.plan.data.evaluated, metrics) + _evaluation_notes(
        [row.name for row in devices],
        device_metrics,
        metrics,
        test_bytes,
        batch_norm,
        info.plan.training.client,
    )
    noise = noise_warning(
        {
            "": model["accuracy"].noise,
            "on benign devices": attackers.noise if attackers else None,
            "of the personal models": own_models.noise if own_models else None,
        }
    )
    return RunSummary(
        run_id=info.run_id,
        name=info.row.name,
        local_rule=info.plan.training.rule,
        aggregation=_aggregation(info.plan.aggregation),
        seed=info.row.seed,
        status=info.status,
        waiting=info.waiting,
        reason=info.row.reason,
        resume_command=info.resume_command,
        rounds_completed=info.rounds_completed,
        rounds_planned=info.plan.rounds,
        rounds_void=len(rounds) - len(lasted),
        rounds_empty=info.rounds_empty,
        changes=changes_of(commands),
        internal_errors=internal_errors,
        alerts=[
            AlertSummary(kind=row.kind, begin_s=row.begin_s, end_s=row.end_s, text=row.text)
            for row in alerts
        ],
        divergence=_divergence(diverged),
        warnings=_warnings(
            warned, alerts, exchange, {"evaluation": notes, "served": served, "test-noise": noise}
        ),
        clock=info.row.clock,
        costs_from=info.plan.replay.costs_from if info.row.clock == "virtual" else None,
        wall_s=info.elapsed_s * info.row.dilation,
        virtual_s=sum(row.duration_s for row in rounds),
        device_s=float(spent_s[-1]) if spent_s.size else 0.0,
        dilation=info.row.dilation,
        devices=len(devices) if fleet_stats is None else fleet_stats.devices,
        selected={row.name: row.selected for row in fleet},
        aggregated={row.name: row.aggregated for row in fleet},
        task=info.row.task,
        **model,
        evaluation_notes=[*notes, *served, *noise],
        exchange=exchange,
        estimator=_estimator(exchanges, len(rounds)),
        queues=_queues(rounds, has_guarantee=info.plan.beta is not None),
        loss_queries=_loss_queries(queries, rounds),
        context_check=_context_check(rounds),
        audits=audits,
        weights=_weights(exchanges, weight_ratios),
        defence=_defence(exchanges, left_out),
        attackers=attackers,
        personal=own_models,
        energy=_energy(exchanges),
        privacy=privacy,
        bytes=Bytes(down=sum(r.bytes_down for r in rounds), up=sum(r.bytes_up for r in rounds)),
        fairness=fairness,
        round_s=_round_times(lasted, len(rounds)),
        profiles=_profiles(devices, truths, kinds, exchanges),
        fleet=fleet,
        provenance=msgspec.json.decode(info.row.provenance, type=Provenance),
        measures=own or UNSET,
        client_metrics=client_metrics or UNSET,
        frozen=_frozen(devices),
        optimiser=info.plan.training.descent or UNSET,
        personal_part=_personal_part(info.plan) or UNSET,
        metrics=named_summaries(named, info.plan.evaluation.worst) if named else UNSET,
        has_client=info.plan.training.client is not None,
    )


def _personal_part(plan: ExperimentExcerpt) -> str:
    """Return what of the model each device keeps; empty without `model.personal`."""
    if not plan.model.personal:
        return ""
    first, names = plan.training.personal_epochs, ", ".join(plan.model.personal)
    passes = f"{first} pass{'es' if first > 1 else ''}"
    how = f"alone for {passes} before the other part" if first else "with the other part"
    return f"{names} on each device, trained {how} ({'FedRep' if first else 'FedPer'})"


def _frozen(devices: Sequence[DeviceRow]) -> FrozenPart | UnsetType:
    """Return the frozen part of the model, and how long devices downloaded it."""
    having = [device for device in devices if device.base_bytes is not None]
    if not having:
        return UNSET
    took = [device.base_s for device in having if device.base_s is not None]
    return FrozenPart(
        bytes=max(device.base_bytes or 0 for device in having),
        devices=len(having),
        downloaded=len(took),
        shortest_s=min(took, default=None),
        longest_s=max(took, default=None),
    )


def _aggregation(planned: PlannedAggregation) -> AggregationSummary:
    """Return the steps of the aggregation."""
    default = AggregationConfig(rule=planned.rule or "fedavg").weighting
    return AggregationSummary(
        rule="app" if planned.by == "app" else planned.rule,
        weights=planned.weights or default,
        defence=planned.defence,
        pseudo_gradient=planned.pseudo_gradient,
        server=planned.server,
        step=planned.step,
    )


class _Measured:
    """Statistics of one part of the summary, by key, with the counts behind each of them."""

    def __init__(self) -> None:
        self.values: dict[str, float | None] = {}
        self.samples: dict[str, SampleCount] = {}

    def add(
        self, key: str, values: Sequence[float] | Floats, of: int | None = None, q: float = 50
    ) -> "_Measured":
        """Add a percentile of the known values; None: of as many exchanges as there are values."""
        known = np.asarray(values, dtype=np.float64)
        sample = SampleCount(int(np.isfinite(known).sum()), len(known) if of is None else of)
        self.samples[key] = sample
        self.values[key] = of_enough(_percentile(known, q), sample)
        return self

    def add_total(self, key: str, values: Floats) -> "_Measured":
        """Add the sum of the known values; None if there is none."""
        known = values[np.isfinite(values)]
        sample = SampleCount(len(known), len(values))
        self.samples[key] = sample
        is_stated = known.size and not sample.why_no_total
        self.values[key] = float(known.sum()) if is_stated else None
        return self


def _of_device(table: ExchangeTable, rows: Ints) -> _Measured:
    """Return the statistics of one device, of its exchanges."""
    found = _Measured()
    found.add("tau_s_median", table.timed_tau_s[rows])
    found.add("train_s_median", table.timed_train_s[rows])
    return found.add_total("energy_j", table.numbers["energy_j"][rows])


def _round_times(lasted_s: Sequence[float], rounds: int) -> RoundTimes:
    """Return the durations of the rounds that are not void, of all closed rounds."""
    found = _Measured().add("median", lasted_s, rounds).add("p95", lasted_s, rounds, q=95)
    return RoundTimes(**found.values, samples=found.samples)


def _model(
    row: MetricRow | None, of_devices: Sequence[DeviceMetricRow], plan: ExperimentExcerpt
) -> dict[str, Any]:
    """Return the quality of the model in the latest evaluation.

    Numbers that the store lacks are computed from the rows of the devices.
    """
    found, variance = accuracies_of(of_devices), row.accuracy_variance if row else None
    return {
        "accuracy": Accuracy(
            mean=row.accuracy_mean if row else None,
            worst10=row.accuracy_worst10 if row else None,
            best10=row.accuracy_best10 if row else None,
            variance=variance,
            gini=row.accuracy_gini if row else None,
            gap=row.accuracy_gap if row else None,
            pooled=row.accuracy_pooled if row else None,
            worst10_pooled=found.accuracy_worst10_pooled if found else None,
            best10_pooled=found.accuracy_best10_pooled if found else None,
            std=None if variance is None else variance**0.5,
            variance_of_percent=None if variance is None else 1e4 * variance,
            jain=_finite(found.accuracy_jain) if found else None,
            test_set=row.test_accuracy if row else None,
            noise=noise_of(counted_tests(of_devices)),
        ),
        "auroc": _auroc(row),
        "positions": _positions(row),
        "error": _errors(row, has_client=plan.training.client is not None),
        "loss": Loss(mean=row.loss_mean if row else None, std=row.loss_std if row else None),
        "utility": _utility(losses_of(of_devices), plan.aggregation.M),
    }


def _auroc(row: MetricRow | None) -> Auroc | None:
    if row is None or (row.auroc_mean is row.auroc_pooled is row.test_auroc is None):
        return None
    return Auroc(
        mean=row.auroc_mean,
        worst10=row.auroc_worst10,
        pooled=row.auroc_pooled,
        test_set=row.test_auroc,
    )


def _positions(row: MetricRow | None) -> Positions | None:
    if row is None or row.exact_match_mean is None:
        return None
    return Positions(
        perplexity=row.perplexity,
        exact_match_mean=row.exact_match_mean,
        exact_match_pooled=row.exact_match_pooled,
        iou_mean=row.iou_mean,
        iou_pooled=row.iou_pooled,
        iou_of_classes=_of_classes(row.iou_of_classes),
        class_accuracy_mean=row.class_accuracy_mean,
        class_accuracy_pooled=row.class_accuracy_pooled,
        class_accuracy_of_classes=_of_classes(row.class_accuracy_of_classes),
    )


def _of_classes(text: str | None) -> list[float | None]:
    return [] if text is None else msgspec.json.decode(text, type=list[float | None])


def _errors(row: MetricRow | None, *, has_client: bool = False) -> Errors | None:
    if row is None or row.accuracy_mean is not None:
        return None
    if has_client and row.rmse_mean is None and row.mae_mean is None:
        return None  # it measures neither accuracy nor errors
    return Errors(
        rmse_mean=row.rmse_mean,
        rmse_worst10=row.rmse_worst10,
        rmse_best10=row.rmse_best10,
        rmse_std=row.rmse_std,
        rmse_gap=row.rmse_gap,
        rmse_pooled=row.rmse_pooled,
        mae_mean=row.mae_mean,
        r2_pooled=row.r2_pooled,
        test_set=row.test_rmse,
    )


def _utility(losses: Floats, M: float) -> Utility:
    if not losses.size or losses.max() >= M:
        return Utility(M=M, average=None, product=None, log_product=None, least=None)
    found = summarise_utilities(losses, M)
    return Utility(
        M=M,
        average=found.average,
        product=_finite(found.product),
        log_product=found.log_product,
        least=found.least,
    )


def _warnings(
    events: Mapping[str, tuple[int, str]],
    alerts: Sequence[AlertRow],
    exchange: ExchangeSummary,
    notes: Mapping[str, Sequence[str]],
) -> list[RunWarning]:
    """Return the warnings about the run as a whole, by kind.

    A new kind needs no line here: every event of level `warning` or `error` without a device
    counts, every alert, and every note of the latest evaluation, given by kind.
    """
    found = dict(events)
    for kind in {row.kind for row in alerts}:
        own = [row.text for row in alerts if row.kind == kind]
        found.setdefault(kind, (len(own), own[0]))
    if exchange.invalid:
        busy = f", {exchange.contended} because this machine was busy" if exchange.contended else ""
        text = f"{exchange.invalid} of {exchange.count} exchange times do not count{busy}"
        found["untimed"] = (exchange.invalid, text)
    found |= {kind: (len(own), own[0]) for kind, own in notes.items() if own}
    return [RunWarning(kind=kind, count=n, text=text) for kind, (n, text) in sorted(found.items())]


BATCH_NORM = {
    mode: f"each score is of the global model with the {values} that its device keeps; without "
    "them the model is not defined"
    for mode, values in (
        ("silobn", "running statistics"),
        ("fedbn", "batch normalisation, scale and shift included,"),
    )
}
"""What the scores of a run are whose devices keep values of the model."""


def _part_notes(evaluated: str, metrics: Sequence[MetricRow]) -> list[str]:
    """Return that the scores of a run are no test scores; empty if they are, or there are none."""
    if not metrics or evaluated == "test":
        return []
    return [
        "all scores are of validation examples, by which constants are chosen; no test example was "
        'read (data.evaluated = "validation")'
    ]


def _evaluation_notes(
    devices: Sequence[str],
    of_devices: Mapping[str, DeviceMetricRow],
    metrics: Sequence[MetricRow],
    test_bytes: int,
    batch_norm: str = "merged",
    client: str | None = None,
) -> list[str]:
    """Return what the latest evaluation could not measure, and what it cannot check.

    Empty without an evaluation.

    Args:
        devices: Names of all devices.
        of_devices: Scores of devices in the latest evaluation.
        metrics: The latest evaluation, or none.
        test_bytes: Bytes that devices downloaded for their tests in the whole run.
        batch_norm: `[model] batch_norm`.
        client: `[training] client`.
    """
    if not metrics:
        return []
    if client is not None and all(row.accuracy is None for row in of_devices.values()):
        return [
            "the client measures no accuracy: a metric of evaluate named accuracy, a share from 0 "
            "to 1, fills the tables of accuracy and fairness"
        ]
    notes, rows, missing = [], of_devices.values(), [x for x in devices if x not in of_devices]
    latest = metrics[-1]
    is_regression = latest.accuracy_mean is None
    if missing:
        shown = " ".join(missing[:SHOWN_NAMES]) + (" ..." if len(missing) > SHOWN_NAMES else "")
        notes.append(
            f"{len(missing)} of {len(devices)} devices have no "
            f"{'error' if is_regression else 'accuracy'} in the latest evaluation "
            f"(no held-out examples, or no result in time): {shown}"
        )
    reported = sum(row.bytes_down is not None for row in rows)
    if reported:
        scores = "errors" if is_regression else "accuracies"
        is_all = batch_norm in BATCH_NORM or client is not None
        which = "devices" if is_all else "devices with own data"
        notes.append(
            f"{reported} of {len(of_devices)} {scores} are reported by {which}; "
            f"their downloads for tests, {size(test_bytes)} so far, are not part of the traffic"
        )
    if batch_norm in BATCH_NORM:
        notes.append(f'model.batch_norm = "{batch_norm}": {BATCH_NORM[batch_norm]}')
    if latest.test_n is not None:
        place = "for all devices together" if latest.devices == 0 else "beside that of the devices"
        value = latest.test_rmse if is_regression else latest.test_accuracy
        notes.append(
            f"{'RMSE' if is_regression else 'accuracy'} on the server's test set of "
            f"{latest.test_n} examples, {place}: {ratio(value)}"
        )
    if rows and all(row.accuracy == 0.0 for row in rows):
        notes.append("every accuracy is 0: its Gini coefficient and Jain index are not defined")
    if any(row.loss is None for row in rows):
        notes.append("the model has diverged: the loss of a device is not finite")
    return notes


def _divergence(found: Divergence | None) -> DivergenceSummary | None:
    if found is None:
        return None
    return DivergenceSummary(
        round=found.round,
        worst_round=found.worst_round,
        worst_loss=found.worst_loss,
        first_round=found.first_round,
        first_loss=found.first_loss,
        is_over=found.is_over,
        text=found.text,
    )


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _exchanges(table: ExchangeTable) -> ExchangeSummary:
    tau_s, rest_s = table.timed_tau_s, table.timed("unaccounted_s")
    stale, cell_wait_s = table.numbers["staleness"], table.numbers["cell_wait_s"]
    in_cells = np.unique(table.device[np.isfinite(cell_wait_s)].astype(str))
    found = _Measured()
    found.add("median_s", tau_s).add("p95_s", tau_s, q=95)
    found.add("unaccounted_ratio", rest_s / tau_s).add("unaccounted_median_s", rest_s)
    found.add(
        "cell_wait_ratio",
        table.timed("cell_wait_s") / tau_s,
        int(np.isin(table.device.astype(str), in_cells).sum()),
    )
    found.add("encode_median_s", table.timed("encode_s"))
    found.add("decode_median_s", table.timed("decode_s"))
    found.add(
        "coordinator_decode_median_s",
        table.timed("coordinator_decode_s"),
        int((table.codec_up != "float32").sum()),
    )
    found.add("down_median_bytes", table.timed("bytes_down"))
    found.add("up_median_bytes", table.timed("bytes_up"))
    return ExchangeSummary(
        count=len(table.device),
        timed=int(table.valid.sum()),
        invalid=int((table.done & ~table.valid).sum()),
        contended=int((table.done & (table.numbers["is_contended"] == 1.0)).sum()),
        late=int((table.outcome == "late").sum()),
        aggregated_late=int((stale[table.done] > 0.0).sum()),
        staleness_mean=_mean(stale[table.done]),
        cancelled=int((table.outcome == "cancelled").sum()),
        failed=int(np.isin(table.outcome, FAILURES).sum()),
        refused=dict(Counter(table.device[table.outcome == "rejected"].tolist()).most_common()),
        **found.values,
        codecs_down=dict(Counter(table.codec_down[table.done].tolist())),
        codecs_up=dict(Counter(table.codec_up[table.done].tolist())),
        samples=found.samples,
    )


def _estimator(table: ExchangeTable, rounds: int) -> EstimatorError:
    """Return the errors in the second half; 0 is the prediction before the first exchange."""
    tau_hat_s = table.numbers["tau_hat_s"]
    is_counted = table.numbers["round"] > rounds / 2
    is_predicted = is_counted & (tau_hat_s > 0.0)
    at = is_predicted & table.valid
    error: Floats = (tau_hat_s[at] - table.tau_s[at]) / table.tau_s[at]
    sample = SampleCount(len(error), int(is_counted.sum()))
    return EstimatorError(
        predicted=int(is_predicted.sum()),
        mape_second_half=of_enough(_mean(np.abs(error)), sample),
        median_ape=of_enough(_median(np.abs(error)), sample),
        bias=of_enough(_mean(error), sample),
        samples=dict.fromkeys(("mape_second_half", "median_ape", "bias"), sample),
    )


def _weight_ratios(table: ExchangeTable) -> dict[str, float]:
    """Return the weight of each device relative to its share of examples."""
    share, n_share = table.numbers["weight_share"], table.numbers["n_share"]
    at = np.flatnonzero(np.isfinite(share) & (n_share > 0.0))
    names, group = np.unique(table.device[at].astype(str), return_inverse=True)
    ratios = np.bincount(group, share[at]) / np.bincount(group, n_share[at])
    return dict(zip(names.tolist(), ratios.tolist(), strict=True))


def _weights(table: ExchangeTable, ratios: Mapping[str, float]) -> MergeWeights:
    """Return how far the weights of the updates are from their shares of the examples."""
    if not ratios:
        return MergeWeights(divergence=None, lowest=None, highest=None)
    share, n_share = table.numbers["weight_share"], table.numbers["n_share"]
    at = np.flatnonzero((share > 0.0) & (n_share > 0.0))
    rounds = len(np.unique(table.numbers["aggregated_round"][at]))
    nats = share[at] * np.log(share[at] / n_share[at])
    return MergeWeights(
        divergence=max(float(nats.sum()) / rounds, 0.0) if rounds else None,
        lowest=min(ratios, key=lambda name: ratios[name]),
        highest=max(ratios, key=lambda name: ratios[name]),
    )


def _defence(table: ExchangeTable, left_out: Mapping[str, int]) -> DefenceSummary:
    scale = table.numbers["defence_scale"]
    return DefenceSummary(
        left_out=sum(left_out.values()),
        shortened=int(((scale > 0.0) & (scale < 1.0)).sum()),
        most_left_out=min(left_out, key=lambda name: (-left_out[name], name), default=None),
    )


def _personal(
    scores: Sequence[PersonalScoreRow], metrics: Mapping[str, DeviceMetricRow], table: ExchangeTable
) -> PersonalSummary | None:
    """Return the quality of the personal models beside that of the global one."""
    if not scores:
        return None
    own, errors = accuracies_of(scores), errors_of(scores)
    pairs = [(row, metrics[row.device]) for row in scores if row.device in metrics]
    of_global = [metric for _, metric in pairs]
    shared, shared_errors = accuracies_of(of_global), errors_of(of_global)
    training = _Measured().add("train_s_median", table.timed("personal_s"))
    return PersonalSummary(
        devices=len(scores),
        accuracy_mean=own.accuracy_mean if own else None,
        accuracy_worst10=own.accuracy_worst10 if own else None,
        accuracy_best10=own.accuracy_best10 if own else None,
        accuracy_variance=own.accuracy_variance if own else None,
        accuracy_std=own.accuracy_variance**0.5 if own else None,
        accuracy_pooled=own.accuracy_pooled if own else None,
        noise=noise_of(counted_tests(scores)),
        rmse_mean=_finite(errors.rmse_mean) if errors else None,
        rmse_worst10=_finite(errors.rmse_worst10) if errors else None,
        rmse_std=_finite(errors.rmse_std) if errors else None,
        loss_mean=_losses_of(scores).mean,
        global_mean=shared.accuracy_mean if shared else None,
        global_worst10=shared.accuracy_worst10 if shared else None,
        global_variance=shared.accuracy_variance if shared else None,
        global_rmse_mean=_finite(shared_errors.rmse_mean) if shared_errors else None,
        global_rmse_worst10=_finite(shared_errors.rmse_worst10) if shared_errors else None,
        better=sum(_is_better(row, metric) for row, metric in pairs),
        train_s_median=training.values["train_s_median"],
        samples=training.samples,
    )


def _energy(table: ExchangeTable) -> EnergySummary | None:
    energy_j = table.numbers["energy_j"]
    known = np.isfinite(energy_j)
    if not known.any():
        return None
    is_aggregated = np.isfinite(table.numbers["aggregated_round"])
    found = _Measured().add_total("total_j", energy_j).add("median_j", energy_j[is_aggregated])
    is_stated = found.values["total_j"] is not None
    wasted_j = float(energy_j[known & ~is_aggregated].sum())
    return EnergySummary(
        exchanges=int(known.sum()),
        **found.values,
        wasted_j=wasted_j if is_stated else None,
        phases_j={
            phase: float(np.nansum(table.numbers[f"{phase}_j"][known]))
            for phase in (ENERGY_PHASES if is_stated else ())
        },
        is_complete=bool(known[is_aggregated].all()),
        samples={**found.samples, "wasted_j": found.samples["total_j"]},
    )


def _is_better(row: PersonalScoreRow, metric: DeviceMetricRow) -> bool:
    """Return whether a personal model is better than the global one on the same examples."""
    if row.accuracy is not None and metric.accuracy is not None:
        return row.accuracy > metric.accuracy
    return row.rmse is not None and (metric.rmse is None or row.rmse < metric.rmse)


def _losses_of(rows: Sequence[PersonalScoreRow | DeviceMetricRow]) -> Loss:
    """Return the losses over devices."""
    if not rows:
        return Loss(mean=None, std=None)
    n = counts_of(rows)
    found = summarise(n, np.zeros_like(n), losses_of(rows) * n)
    return Loss(mean=_finite(found.loss_mean), std=_finite(found.loss_std))


def _attackers(
    malicious: Mapping[str, str],
    counts: Mapping[str, SelectionCounts],
    table: ExchangeTable,
    metrics: Sequence[DeviceMetricRow],
) -> Attackers:
    """Return the malicious devices, by name and kind, and the metrics of the others.

    Without a malicious device all devices are benign.
    """
    benign = [row for row in metrics if row.device not in malicious and row.n > 0]
    found, loss = accuracies_of(benign), _losses_of(benign)
    is_theirs = np.isin(table.device.astype(str), list(malicious))
    weight, merged_in = table.numbers["weight_share"], table.numbers["aggregated_round"]
    is_merged = np.isfinite(weight)
    merges = len(np.unique(merged_in[is_merged]))
    selected = {name: count.selected for name, count in counts.items()}
    theirs = sum(selected.get(name, 0) for name in malicious)
    return Attackers(
        kinds=dict(Counter(malicious.values())),
        accuracy_mean=found.accuracy_mean if found else None,
        accuracy_worst10=found.accuracy_worst10 if found else None,
        accuracy_variance=found.accuracy_variance if found else None,
        accuracy_std=found.accuracy_variance**0.5 if found else None,
        noise=noise_of(counted_tests(benign)),
        loss_mean=loss.mean,
        loss_std=loss.std,
        device_share=len(malicious) / len(counts) if counts else 0.0,
        selection_share=theirs / total if (total := sum(selected.values())) else None,
        weight_share=float(weight[is_theirs & is_merged].sum()) / merges if merges else None,
        left_out=int((is_theirs & (table.numbers["defence_scale"] == 0.0)).sum()),
        aggregated=int((is_theirs & is_merged).sum()),
    )


def changes_of(commands: Sequence[CommandRow]) -> list[LiveChange]:
    """Return the commands of operators that changed the run or its devices, oldest first."""
    return [_change(row) for row in commands if row.is_accepted and row.action in CHANGING]


def _change(row: CommandRow) -> LiveChange:
    command = " ".join(filter(None, (row.action, row.device, row.name)))
    if row.action == "set" and row.name in SECTIONS:
        command = key_of(row.name)
    return LiveChange(
        at_s=row.at_s,
        operator=row.operator,
        what=command,
        value=row.value,
        before=row.before,
        round=row.round,
    )


def _queues(rounds: Sequence[RoundRow], *, has_guarantee: bool) -> Queues:
    """Return the virtual queues; all null under a policy that has none."""
    if not rounds or not (has_guarantee or any(row.queue_max for row in rounds)):
        return Queues(total=None, largest=None, mean_total=None, max=None)
    return Queues(
        total=rounds[-1].queue_total,
        largest=rounds[-1].queue_max,
        mean_total=sum(row.queue_total for row in rounds) / len(rounds),
        max=max(row.queue_max for row in rounds),
    )


def _loss_queries(
    queries: Sequence[tuple[str, float | None]], rounds: Sequence[RoundRow]
) -> LossQuerySummary:
    outcomes = Counter(outcome for outcome, _ in queries)
    took_s = [np.nan if duration_s is None else duration_s for _, duration_s in queries]
    found = _Measured().add("median_s", took_s)
    return LossQuerySummary(
        count=len(queries),
        answered=outcomes["answered"],
        late=outcomes["late"],
        **found.values,
        samples=found.samples,
        total_s=sum(row.loss_query_s for row in rounds),
    )


def _context_check(rounds: Sequence[RoundRow]) -> ContextCheckSummary | None:
    judged = [row.contexts_judged for row in rounds if row.contexts_judged is not None]
    unjudged = [row.contexts_unjudged for row in rounds if row.contexts_unjudged is not None]
    return ContextCheckSummary(judged=sum(judged), unjudged=sum(unjudged)) if judged else None


def _profiles(
    devices: Sequence[DeviceRow],
    truths: Mapping[str, TruthRow],
    kinds: Mapping[str, str],
    table: ExchangeTable,
) -> dict[str, ProfileSummary]:
    kind_of_row = np.array([kinds.get(name, "") for name in table.device], dtype=object)
    summaries = {}
    for kind in dict.fromkeys(kinds.values()):
        members = [device.name for device in devices if kinds[device.name] == kind]
        speeds = [truths[name].cpu_speed for name in members if name in truths]
        rows = kind_of_row == kind
        steps = np.where(table.numbers["steps"] > 0, table.numbers["steps"], np.nan)[rows]
        train_s = table.timed_train_s[rows]
        found = _Measured().add("train_s_median", train_s).add("step_s_median", train_s / steps)
        summaries[kind] = ProfileSummary(
            devices=len(members),
            speed=_median(speeds),
            **found.values,
            samples=found.samples,
        )
    return summaries


def _mean(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None


def _median(values: Sequence[float] | Floats) -> float | None:
    return _percentile(values, 50)


def _percentile(values: Sequence[float] | Floats, q: float) -> float | None:
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    return float(np.percentile(known, q)) if known.size else None
