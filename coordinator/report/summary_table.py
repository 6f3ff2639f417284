"""The summary of a run as plain text, which `fairbed run` prints at the end."""

from collections.abc import Sequence
from textwrap import TextWrapper

from msgspec import UnsetType

from fairbed.coordinator.algorithms.sampling_noise import SamplingNoise
from fairbed.coordinator.algorithms.selection.feasibility import TOLERANCE
from fairbed.coordinator.policy.combinations import are_weights_ignored
from fairbed.coordinator.report.client_metrics import lines as client_metric_lines
from fairbed.coordinator.report.measures import (
    device_measures,
    own_of,
    run_measure,
    stated,
    text_of,
)
from fairbed.coordinator.report.measures.device import NOTABLE_DIVERGENCE
from fairbed.coordinator.report.named_metrics import named_lines
from fairbed.coordinator.report.quality import examples_text, noise_mark, whole_percent
from fairbed.coordinator.report.quantities import (
    LEAST,
    MISSING,
    age,
    clock,
    energy,
    percent,
    ratio,
    seconds,
    size,
)
from fairbed.coordinator.report.summary_schema import (
    BY_APP,
    AlertSummary,
    Attackers,
    DeviceSummary,
    EnergySummary,
    EstimatorError,
    ExchangeSummary,
    Fairness,
    FrozenPart,
    LiveChange,
    Positions,
    RunSummary,
)
from fairbed.coordinator.report.text_table import TextColumn, table_lines
from fairbed.coordinator.store.store import Calibration, Provenance
from fairbed.coordinator.store.tables import INTERNAL_ERROR

MAX_DEVICES = 40
"""Maximum number of devices listed."""

LABEL_WIDTH = 11
"""Columns of the labels of facts."""

HASH_DIGITS = 8
"""Printed digits of a commit or a hash."""

MAX_INPUTS = 8
"""Maximum number of inputs listed with their hash."""

NOTABLE_SHARE = 0.001
"""Smallest share of the exchange times in no phase that is printed."""

TOO_FEW = f"timed: n of N exchanges; a median needs n of {LEAST} or more, and half of N"
"""Line below a table of devices in which medians are missing."""


_NAME: TextColumn[DeviceSummary] = TextColumn("device", lambda d: d.name, "<")
_PROFILE: TextColumn[DeviceSummary] = TextColumn(
    "profile", lambda d: d.profile or MISSING, "<", priority=9
)
_KIND: TextColumn[DeviceSummary] = TextColumn("kind", lambda d: d.kind, "<", priority=8)
"""In a fleet of several kinds."""
_LINK: TextColumn[DeviceSummary] = TextColumn("link", lambda d: d.link or "", "<", priority=7)
"""In a fleet whose devices draw their links."""
_TIMED: TextColumn[DeviceSummary] = TextColumn("timed", lambda d: str(d.samples["tau_s_median"]))
"""Before the medians, which are of these exchanges."""
_MALICIOUS: TextColumn[DeviceSummary] = TextColumn("malicious", lambda d: d.malicious or "", "<")
"""In a run whose malicious devices are revealed."""


def summary_table(summary: RunSummary, width: int | None = None) -> str:
    """Return the facts of a run, then one line per device.

    Args:
        summary: The summary.
        width: Columns of the terminal: facts are wrapped, columns that do not fit left out; None
            for lines of any length.
    """
    return "\n".join([*_facts(summary, width), "", *_fleet(summary, width)])


def _facts(s: RunSummary, width: int | None) -> list[str]:
    planned = f" of {s.last_round}" if s.last_round else ""
    empty = f", {s.rounds_empty} of them empty" if s.rounds_empty else ""
    void = f" ({s.rounds_void} void{empty})" if s.rounds_void else ""
    reason = f": {s.reason}" if s.reason else ""
    waiting = f", waits for {s.waiting}" if s.waiting else ""
    x, fair = s.exchange, s.fairness
    contended = f" ({x.contended} because this machine was busy)" if x.contended else ""
    pairs = [
        ("run", f"{s.run_id}  {s.status}{reason}{waiting}"),
        *([("continue", s.resume_command)] if s.resume_command else []),
        *[("changed", change_line(change)) for change in s.changes],
        *[("alert", line) for line in alert_lines(s.alerts)],
        *_internal_errors(s.internal_errors),
        *([] if s.divergence is None else [("diverged", s.divergence.text)]),
        (
            "rounds",
            f"{s.rounds_completed}{planned}{void}, {_round_times(s)}; {_durations(s)}",
        ),
        *_quality(s),
        *_spread(s),
        *_noise(s),
        *_personal(s),
        *([] if isinstance(s.frozen, UnsetType) else [("frozen", frozen_line(s.frozen))]),
        *[("metric", line) for line in named_lines(s, is_worst=False)],
        *[("metric", line) for line in client_metric_lines(s.client_metrics or [])],
        *[("note", note) for note in s.evaluation_notes],
        (
            "exchanges",
            f"{x.count}, {_exchange_times(s)}; "
            f"{x.late} late{_lateness(x)}, {x.failed} failed, {x.invalid} untimed{contended}"
            f"{_unaccounted(x)}{_lost_in_cells(x)}",
        ),
        *_refused(x),
        *_prediction(s),
        *_costs(s),
        (
            "selection",
            f"selection rate: min {text_of(s, 'min_rate_selected')}; "
            f"aggregation rate: min {text_of(s, 'min_rate_aggregated')}; "
            f"{guarantee(fair)}; Jain index {text_of(s, 'jain')}",
        ),
        ("fairness", _queues(s)),
        *_invariant(fair),
        *([] if s.local_rule == "sgd" else [("training", f"local rule {s.local_rule}")]),
        *([] if isinstance(s.optimiser, UnsetType) else [("optimiser", s.optimiser)]),
        *([] if isinstance(s.personal_part, UnsetType) else [("kept", s.personal_part)]),
        *_merge(s),
        *_weights(s),
        *_defence(s),
        *_attackers(s),
        *_context_check(s),
        *_queries(s),
        (
            "traffic",
            f"{text_of(s, 'down_bytes')} down{_named(x.codecs_down)}, "
            f"{text_of(s, 'up_bytes')} up{_named(x.codecs_up)}",
        ),
        *_energy(s),
        *_privacy(s),
        *_provenance(s.provenance),
    ]
    lines = [f"{label:<{LABEL_WIDTH}}{text}" for label, text in _with_own(pairs, s)]
    if width is None:
        return lines
    indent = " " * LABEL_WIDTH
    wrapper = TextWrapper(
        max(width, 2 * LABEL_WIDTH),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    return [part for line in lines for part in wrapper.wrap(line)]


def _with_own(pairs: Sequence[tuple[str, str]], s: RunSummary) -> list[tuple[str, str]]:
    """Return the lines with the measures that no sentence has, at the ends of theirs."""
    lines = list(pairs)
    for measure in own_of(s):
        if not measure.show:
            continue
        text = f"{measure.name} {stated(s, measure)}"
        at = next((at for at, (label, _) in enumerate(lines) if label == measure.show), None)
        if at is None:
            lines.append((measure.show, text))
        else:
            lines[at] = (measure.show, f"{lines[at][1]}; {text}")
    return lines


def frozen_line(part: FrozenPart) -> str:
    """Return what the frozen part of a model is, and how long devices downloaded it."""
    if part.shortest_s is None or part.longest_s is None:
        took = "none of them in this run: all had it"
    else:
        took = (
            f"{part.downloaded} of them in this run, in {seconds(part.shortest_s)} to "
            f"{seconds(part.longest_s)} s"
        )
    return f"{size(part.bytes)} of the model, on {part.devices} devices, downloaded once: {took}"


def _quality(s: RunSummary) -> list[tuple[str, str]]:
    """Return the accuracy, with two classes the AUROC, or the error of regression."""
    a, e, loss = s.accuracy, s.error, f"loss {text_of(s, 'loss_mean')} ± {text_of(s, 'loss_std')}"
    if s.has_client and a.mean is None:
        known = loss.removeprefix("loss ")
        return [("loss", known if s.loss.mean is not None else "not known: no device evaluated")]
    worst = noise_mark(a.noise.worst10_share) if a.noise else ""
    best = noise_mark(a.noise.best10_share) if a.noise else ""
    chosen = [("worst 10 %", line) for line in named_lines(s, is_worst=True)]
    if s.task == "regression":
        if e is None:
            return [("error", f"RMSE mean {MISSING}; {loss}")]
        tenths = f", worst 10 % {text_of(s, 'rmse_worst10')}, best 10 % {text_of(s, 'rmse_best10')}"
        text = (
            f"RMSE mean {text_of(s, 'rmse_mean')}{'' if chosen else tenths}; mean absolute error "
            f"{text_of(s, 'mae_mean')}; {loss}"
        )
        return [("error", text), *chosen]
    tenths = (
        f", worst 10 % {text_of(s, 'accuracy_worst10')}{worst}, best 10 % "
        f"{text_of(s, 'accuracy_best10')}{best}"
    )
    text = (
        f"mean {text_of(s, 'accuracy_mean')}{'' if chosen else tenths}, Gini "
        f"{text_of(s, 'accuracy_gini')}; {loss}"
    )
    lines = [("accuracy", text), *chosen]
    if s.positions is not None:
        p, what = s.positions, "labels" if s.task == "multi-label" else "positions"
        lines[0] = ("accuracy", f"of {what}: {text}")
        exact = (
            f"all {what} right in {text_of(s, 'exact_match_mean')} of the examples, mean over "
            f"devices; in {text_of(s, 'exact_match_pooled')} over all examples"
        )
        lines.append((what, f"{exact}{_perplexity(s)}"))
        if p.iou_mean is not None:
            lines.append(("classes", _classes(s, p)))
    if s.auroc is None:
        return lines
    auroc = (
        f"mean {text_of(s, 'auroc_mean')}, worst 10 % {text_of(s, 'auroc_worst10')}; "
        f"over all examples {text_of(s, 'auroc_pooled')}"
    )
    return [*lines, ("AUROC", auroc)]


def _classes(s: RunSummary, p: Positions) -> str:
    """Return a text about the classes at positions."""
    text = (
        f"IoU mean {text_of(s, 'iou_mean')}, over all examples {text_of(s, 'iou_pooled')}; "
        f"accuracy of a class, mean {text_of(s, 'class_accuracy_mean')}, over all examples "
        f"{text_of(s, 'class_accuracy_pooled')}"
    )
    known = [
        (value, at) for at, value in enumerate(p.class_accuracy_of_classes) if value is not None
    ]
    if known:
        (worst, at), absent = min(known), len(p.class_accuracy_of_classes) - len(known)
        text += f", lowest {ratio(worst)} (class {at})"
        text += f"; {absent} classes have no label in the tests" if absent else ""
    return text


def _perplexity(s: RunSummary) -> str:
    """Return the perplexity as text to append; labels that exclude no other have none."""
    if s.positions is None or s.task == "multi-label":
        return ""
    return f"; perplexity {text_of(s, 'perplexity')}"


def _energy(s: RunSummary) -> list[tuple[str, str]]:
    """Return a line about the energy of the devices; nothing if it is unknown."""
    e = s.energy
    if e is None:
        return []
    most = max(e.phases_j, key=lambda phase: e.phases_j[phase], default="")
    shares = f"{percent(e.phases_j[most] / e.total_j)} of it {most}" if e.total_j else ""
    wasted = f"{energy(e.wasted_j)} for updates that were not aggregated" if e.wasted_j else ""
    one = e.samples["median_j"]
    median = (
        f"no median ({one} aggregated exchanges have it, {one.why_none})"
        if e.median_j is None
        else f"median {energy(e.median_j)} per aggregated exchange ({one})"
    )
    texts = [energy_total(e), shares, median, wasted]
    return [("energy", "; ".join(text for text in texts if text))]


def energy_total(e: EnergySummary) -> str:
    """Return the known energy of the exchanges, and of how many it is; or why there is none."""
    known = e.samples["total_j"]
    if e.total_j is None:
        return f"unknown: {known} exchanges have it, {known.why_no_total}"
    power = ", whose power is known" if known.n < known.of else ""
    return f"{energy(e.total_j)} in {known} exchanges{power}"


def _privacy(s: RunSummary) -> list[tuple[str, str]]:
    """Return a line about local noise; nothing without it."""
    p = s.privacy
    if p is None:
        return []
    bound = "unknown" if p.epsilon_max is None else f"at most {p.epsilon_max:.3g}"
    text = (
        f"epsilon {bound} for delta {p.delta:g} and the updates of one device, of which at most "
        f"{p.releases_most} left it; noise {p.noise_multiplier:g} x clip {p.clip:g}; not covered: "
        f"counts, times, contexts{', scores' if p.sends_scores else ''}"
    )
    return [("privacy", text), *([("note", p.note)] if p.note else [])]


def _provenance(p: Provenance) -> list[tuple[str, str]]:
    """Return versions and revisions, and hashes of the data, shortened."""
    own = f" (git {_short(p.git_revision)})" if p.git_revision else ""
    names = [name for name in p.packages if name not in ("fairbed", "msgspec")]
    versions = [f"{name} {p.packages[name]}" for name in names]
    pairs = [
        ("provenance", ", ".join([f"fairbed {p.packages.get('fairbed', MISSING)}{own}", *versions]))
    ]
    used = {"set": p.data_sha256, "partition": p.partition_sha256}
    found = [f"{name} {value[:HASH_DIGITS]}" for name, value in used.items() if value]
    if p.experiment_revision and p.experiment_revision != p.git_revision:
        found.append(f"experiment git {_short(p.experiment_revision)}")
    pairs += [("data", ", ".join(found))] if found else []
    pairs += [("columns", note) for note in p.data_notes]
    inputs = [f"{name} {value[:HASH_DIGITS]}" for name, value in own_inputs(p).items()]
    more = [f"and {len(inputs) - MAX_INPUTS} more"] if len(inputs) > MAX_INPUTS else []
    pairs += [("inputs", ", ".join([*inputs[:MAX_INPUTS], *more]))] if inputs else []
    return pairs if p.calibration is None else [*pairs, ("host", calibrated(p.calibration))]


def own_inputs(p: Provenance) -> dict[str, str]:
    """Return the hashes of the inputs besides Fairbed and the data set, by name."""
    others = (name for name in p.inputs if name != "fairbed" and not name.startswith("data "))
    return {name: p.inputs[name] for name in others}


def calibrated(c: Calibration) -> str:
    """Return what a training step costs, how well that is known, and since when."""
    return (
        f"a training step of {c.batch_size} examples takes {1e3 * c.step_s:.3g} ms of a core here "
        f"±{100.0 * c.spread_ratio:.1f} %, measured {age(c.age_s)} before the start"
    )


def _short(revision: str) -> str:
    """Return the first digits of a commit, and its suffix."""
    commit, dash, suffix = revision.partition("-")
    return f"{commit[:HASH_DIGITS]}{dash}{suffix}"


def _spread(s: RunSummary) -> list[tuple[str, str]]:
    """Return the spread of accuracy or error over devices, and under CoreFed the utilities."""
    a, e, u = s.accuracy, s.error, s.utility
    if a.mean is None and (e is None or e.rmse_mean is None):
        return []
    counted = "examples" if s.positions is None else "targets"
    text = (
        f"variance {text_of(s, 'accuracy_variance')}"
        f"{noise_mark(a.noise.variance_share) if a.noise else ''}, "
        f"standard deviation {text_of(s, 'accuracy_std')}, gap {text_of(s, 'accuracy_gap')}, "
        f"Jain index of accuracy {text_of(s, 'accuracy_jain')}; by {counted}: mean "
        f"{text_of(s, 'accuracy_pooled')}, worst 10 % {text_of(s, 'accuracy_worst10_pooled')}"
    )
    if e is not None:
        text = (
            f"standard deviation {text_of(s, 'rmse_std')}, gap {text_of(s, 'rmse_gap')}; over all "
            f"examples: RMSE {text_of(s, 'rmse_pooled')}, R2 {text_of(s, 'r2_pooled')}"
        )
    pairs = [("spread", text)]
    if s.aggregation.rule in ("corefed", "propfair"):
        known = (
            f"mean {text_of(s, 'utility_average')}, product {_product(u.product)}, "
            f"least {text_of(s, 'utility_least')}"
        )
        text = known if u.least is not None else f"unknown: a loss is {u.M:g} or more"
        pairs.append(("utility", f"{u.M:g} - loss: {text}"))
    return pairs


def _noise(s: RunSummary) -> list[tuple[str, str]]:
    """Return the noise of the test sets in the spread over devices, and the spread without it."""
    measured = sum(device.accuracy is not None or device.rmse is not None for device in s.fleet)
    if s.accuracy.worst10 is None and not measured:
        return []
    n = s.accuracy.noise
    if n is None:
        reason = "a spread needs two devices"
        if s.error is not None:
            reason = "errors have no binomial part"
        elif s.positions is not None:
            reason = "the targets of an example are not independent"
        return [("noise", f"of the test sets: not known, {reason}")]
    if n.variance_share is None:
        end = "1" if n.prior_accuracy else "0"
        return [("noise", f"of the test sets: not known, every accuracy is {end}")]
    auroc = "; that of the AUROC is not known" if s.auroc is not None else ""
    of = "" if s.worst_metric is None else "of the accuracy: "
    text = (
        f"{of}identical devices would show worst 10 % {ratio(n.worst10)} ± {ratio(n.worst10_std)}, "
        f"best 10 % {ratio(n.best10)} ± {ratio(n.best10_std)}, variance {ratio(n.variance, 4)}"
        f"{auroc}"
    )
    floored = " (the noise is larger)" if n.is_floored else ""
    corrected = (
        f"worst 10 %, shrunken {ratio(n.worst10_shrunken)}; variance, corrected "
        f"{ratio(n.variance_corrected, 4)}{floored}; {examples_text(n)}"
        if n.variance_corrected is not None
        else "not possible: each device has one test example"
    )
    return [("noise", text), ("corrected", corrected)]


def _product(value: float | None) -> str:
    return MISSING if value is None else f"{value:.4g}"


def _durations(s: RunSummary) -> str:
    """Return the durations of the rounds and of the run, in virtual time for a replay."""
    devices = f"{text_of(s, 'device_s')} {run_measure('device_s').name}"
    if s.clock == "virtual":
        replayed = f"{text_of(s, 'virtual_s')} of virtual time in rounds, replayed in"
        return f"{replayed} {seconds(s.wall_s)} s; {devices}"
    dilated = f", time dilation {s.dilation:.3g}" if s.dilation != 1.0 else ""
    return (
        f"{text_of(s, 'virtual_s')} in rounds, {text_of(s, 'wall_s')} in total{dilated}; {devices}"
    )


def _round_times(s: RunSummary) -> str:
    """Return median and 95th percentile of the durations of rounds, or why there are none."""
    sample = s.round_s.samples["median"]
    if s.round_s.median is None:
        return f"no median ({sample} not void, {sample.why_none})"
    of = "" if sample.n == sample.of else f" ({sample})"
    return f"median {text_of(s, 'round_median_s')} s, p95 {text_of(s, 'round_p95_s')} s{of}"


def _exchange_times(s: RunSummary) -> str:
    """Return median and 95th percentile of the exchange times, or why there are none."""
    sample = s.exchange.samples["median_s"]
    if s.exchange.median_s is None:
        return f"no median ({sample} timed, {sample.why_none})"
    return (
        f"median {text_of(s, 'tau_median_s')} s, p95 {text_of(s, 'tau_p95_s')} s ({sample} timed)"
    )


def _queues(s: RunSummary) -> str:
    """Return the virtual queues after the last round, and over all rounds."""
    if s.queues.total is None:
        return "no virtual queues"
    return (
        f"{run_measure('queue_total').name} {text_of(s, 'queue_total')}, largest "
        f"{text_of(s, 'queue_largest')} after the last round; mean sum "
        f"{text_of(s, 'queue_mean_total')}, max {text_of(s, 'queue_max')} over all rounds"
    )


def _prediction(s: RunSummary) -> list[tuple[str, str]]:
    """Return the errors of the predictions; nothing if the estimator predicted no exchange."""
    e = s.estimator
    return [("prediction", prediction_errors(e))] if e.predicted else []


def prediction_errors(e: EstimatorError) -> str:
    """Return the errors of the predictions, and of how many exchanges; or why there are none."""
    sample = e.samples["mape_second_half"]
    if e.mape_second_half is None:
        return (
            f"no error in the second half of the rounds ({sample} exchanges predicted and timed, "
            f"{sample.why_none})"
        )
    return (
        f"mean error {percent(e.mape_second_half)}, median {percent(e.median_ape)}, bias "
        f"{percent(e.bias, is_signed=True)} in the second half of the rounds ({sample} exchanges)"
    )


def _costs(s: RunSummary) -> list[tuple[str, str]]:
    """Return the source of a replay's costs of local training; nothing for a live run."""
    sources = {
        "shipped": "of training as shipped, for the reference machine of the profiles; a live run "
        "measures its own: replay.costs_from",
        "measured": "of training as measured on this machine",
    }
    if s.costs_from is None:
        return []
    return [("costs", sources.get(s.costs_from, f"of training as measured in {s.costs_from}"))]


def _unaccounted(x: ExchangeSummary) -> str:
    """Return the median share of an exchange time in no phase, if it is large enough to print."""
    if x.unaccounted_ratio is None or abs(x.unaccounted_ratio) < NOTABLE_SHARE:
        return ""
    return f"; in no phase: median {percent(x.unaccounted_ratio)}"


def _lost_in_cells(x: ExchangeSummary) -> str:
    """Return the median share of an exchange time that a device lost to others of its cell."""
    sample = x.samples["cell_wait_ratio"]
    if not sample.of:
        return ""
    if x.cell_wait_ratio is None:
        return f"; lost to others in a cell: no median ({sample} timed, {sample.why_none})"
    return f"; lost to others in a cell: median {percent(x.cell_wait_ratio)} ({sample})"


def change_line(x: LiveChange) -> str:
    """Return what an operator changed while the run was live."""
    value = "" if x.value is None else f" {x.value:g}"
    if x.round is not None and x.before is not None:
        value = f" {x.before:g} to{value} from round {x.round} on"
    return f"{x.what}{value}, by {x.operator} at {seconds(x.at_s)} s"


def alert_lines(alerts: Sequence[AlertSummary]) -> list[str]:
    """Return one line for each alert that stands, then one for each kind of those that are over.

    Without the alert `diverged`: `RunSummary.divergence` has more.
    """
    alerts = [x for x in alerts if x.kind != "diverged"]
    lines = [f"{x.kind} since {clock(x.begin_s)}: {x.text}" for x in alerts if x.end_s is None]
    lasted_s: dict[str, list[float]] = {}
    for x in alerts:
        if x.end_s is not None:
            lasted_s.setdefault(x.kind, []).append(x.end_s - x.begin_s)
    for kind, times in lasted_s.items():
        often = "once" if len(times) == 1 else f"{len(times)} times"
        lines.append(f"{kind} {often}, {clock(sum(times))} in all, over")
    return lines


def counted_rate(fair: Fairness) -> float | None:
    """Return the lowest rate of a device, of what the guarantee counts."""
    is_of_selections = fair.queue_counts == "selected"
    return fair.min_selection_rate if is_of_selections else fair.min_aggregation_rate


def is_kept(fair: Fairness) -> bool | None:
    """Return whether every device has had its guaranteed rate; None if that is unknown."""
    rate = counted_rate(fair)
    if fair.beta is None or rate is None:
        return None
    return rate * (1.0 + TOLERANCE) >= fair.beta


def guarantee(fair: Fairness) -> str:
    """Return in words whether every device has had its guaranteed rate."""
    left = f", {', '.join(fair.left)} left the fleet and is not counted" if fair.left else ""
    return _kept(fair) + left


def _kept(fair: Fairness) -> str:
    rate = counted_rate(fair)
    if fair.beta is None:
        return "no guarantee"
    if rate is None:
        return f"guarantee of {fair.beta:g} unknown"
    if is_kept(fair):
        return f"guarantee of {fair.beta:g} kept"
    limit = fair.highest_rate
    possible = "" if limit is None or limit >= fair.beta else f" (at most {limit:.3f} possible)"
    return f"below guarantee: {rate:.3f} of {fair.beta:g}{possible}"


def _invariant(fair: Fairness) -> list[tuple[str, str]]:
    """Return whether rate >= beta - Z_T / T for every device, which holds after any round T."""
    if fair.invariant_holds is None:
        return []
    return [("bound", f"rate >= beta - Z/T {'holds' if fair.invariant_holds else 'VIOLATED'}")]


def _merge(s: RunSummary) -> list[tuple[str, str]]:
    """Return the steps of the aggregation; nothing if the run does not name its rule."""
    a = s.aggregation
    if a.rule is None:
        return []
    if a.rule == "app":
        return [("merge", BY_APP)]
    defence = "" if a.defence == "none" else f"defence {a.defence}, "
    ignored = " (no effect)" if are_weights_ignored(a.defence, a.pseudo_gradient) else ""
    return [
        (
            "merge",
            f"{defence}{a.rule} with weights {a.weights}{ignored}, pseudo-gradient "
            f"{a.pseudo_gradient}, server step {a.server}, step length {a.step}",
        )
    ]


def _weights(s: RunSummary) -> list[tuple[str, str]]:
    """Return how far the weights are from the shares of the examples, if they differ."""
    ratios = {device.name: device.weight_ratio for device in s.fleet}
    w = s.weights
    if w.divergence is None or w.divergence < NOTABLE_DIVERGENCE:
        return []
    ends = [f"{ratio(ratios.get(name), 2)} ({name})" for name in (w.lowest, w.highest) if name]
    divergence = f"divergence {text_of(s, 'weight_divergence')}"
    text = f"{' to '.join(ends)} times the share of examples; {divergence}"
    return [("weights", f"{s.aggregation.rule}: {text}")]


def _defence(s: RunSummary) -> list[tuple[str, str]]:
    """Return what the defence left out or shortened; nothing if all updates counted in full."""
    d, aggregated = s.defence, sum(s.aggregated.values())
    texts = []
    if d.left_out:
        devices = {device.name: device for device in s.fleet}
        most = devices.get(d.most_left_out or "")
        named = f", {most.left_out} of {most.aggregated} of {most.name}" if most else ""
        texts.append(f"{d.left_out} of {aggregated} updates left out{named}")
    if d.shortened:
        texts.append(f"{d.shortened} of {aggregated} updates shortened")
    return [("defence", "; ".join(texts))] if texts else []


def _personal(s: RunSummary) -> list[tuple[str, str]]:
    """Return a line about the personal models, if there are any."""
    p = s.personal
    if p is None:
        return []
    there = "" if p.devices == s.devices else f" on these {p.devices} of {s.devices} devices"
    own, shared = (p.accuracy_mean, p.accuracy_worst10, p.accuracy_std), p.global_worst10
    name, mean = "", p.global_mean
    worst = noise_mark(p.noise.worst10_share) if p.noise else ""
    if s.task == "regression":
        own, shared = (p.rmse_mean, p.rmse_worst10, p.rmse_std), p.global_rmse_worst10
        name, mean = "RMSE ", p.global_rmse_mean
    text = (
        f"{name}mean {ratio(own[0])}, worst 10 % {ratio(own[1])}{worst}, standard deviation "
        f"{ratio(own[2])}{_of_variance(p.noise)}; the global model{there}: mean {ratio(mean)}, "
        f"worst 10 % {ratio(shared)}; better on {p.better} devices"
    )
    return [("personal", text)]


def attack_counts(a: Attackers) -> str:
    """Return the number of malicious devices of each kind, in words."""
    return " and ".join(f"{count} {kind}" for kind, count in sorted(a.kinds.items())) or "none"


def _attackers(s: RunSummary) -> list[tuple[str, str]]:
    """Return a line about the malicious devices and one about the benign ones, if it is known."""
    a = s.attackers
    if a is None:
        return []
    kinds = attack_counts(a)
    defence = (
        f"; {a.left_out} of their {a.aggregated} updates left out" if s.defence.left_out else ""
    )
    text = (
        f"{kinds}: {percent(a.device_share)} of the devices, "
        f"{text_of(s, 'malicious_selections')} of the selections, "
        f"{text_of(s, 'malicious_weight')} of the weight{defence}"
    )
    benign = f"loss {text_of(s, 'benign_loss_mean')} ± {ratio(a.loss_std)}"
    if s.task != "regression":
        benign = (
            f"accuracy: mean {text_of(s, 'benign_accuracy_mean')}, worst 10 % "
            f"{text_of(s, 'benign_accuracy_worst10')}"
            f"{noise_mark(a.noise.worst10_share) if a.noise else ''}, standard deviation "
            f"{ratio(a.accuracy_std)}{_of_variance(a.noise)}; {benign}"
        )
    return [("malicious", text), ("benign", benign)]


def _context_check(s: RunSummary) -> list[tuple[str, str]]:
    """Return a line about the exchanges that the context check could judge; none without it."""
    found = s.context_check
    if found is None:
        return []
    text = f"{found.judged} of {found.judged + found.unjudged} exchanges judged"
    if found.unjudged:
        text += f"; {found.unjudged} too short, or too little known, to show a false claim"
    return [("contexts", text)]


def _of_variance(noise: SamplingNoise | None) -> str:
    """Return the share of noise in the square of a standard deviation, as text to append."""
    if noise is None or noise.variance_share is None:
        return ""
    return f" (noise {whole_percent(noise.variance_share)} of the variance)"


def _queries(s: RunSummary) -> list[tuple[str, str]]:
    """Return a line about loss queries and a line about audits, for each that took place."""
    q = s.loss_queries
    pairs = []
    if q.count:
        why = q.samples["median_s"].why_none
        median = f"no median ({why})" if why else f"median {seconds(q.median_s)} s"
        pairs.append(
            (
                "loss query",
                f"{q.answered} of {q.count} answered, {q.late} late, {median}; "
                f"{clock(q.total_s)} of the time in rounds",
            )
        )
    if s.audits:
        pairs.append(("audit", f"{s.audits} exchanges of uniformly drawn devices"))
    return pairs


def _internal_errors(count: int) -> list[tuple[str, str]]:
    """Return a warning about exchanges that Fairbed itself has failed, if any."""
    if not count:
        return []
    what = "an exchange" if count == 1 else f"{count} exchanges, queries or probes"
    return [
        (
            "warning",
            f"{what} failed through an internal error of Fairbed, and the replay went on; "
            f"events {INTERNAL_ERROR} name it: please report them",
        )
    ]


def _refused(x: ExchangeSummary) -> list[tuple[str, str]]:
    """Return a line about devices whose reports were refused, if any."""
    if not x.refused:
        return []
    names = [f"{device} {count}" for device, count in list(x.refused.items())[:SHOWN_DEVICES]]
    more = f" and {len(x.refused) - len(names)} more" if len(x.refused) > len(names) else ""
    total = sum(x.refused.values())
    return [("refused", f"{total} updates, of {', '.join(names)}{more}; events name the reasons")]


SHOWN_DEVICES = 8
"""Devices that a line names."""


def _lateness(x: ExchangeSummary) -> str:
    """Return the counts of late aggregated updates and of cancelled exchanges, if any."""
    aggregated = f", {x.aggregated_late} aggregated late" if x.aggregated_late else ""
    mean = f" (mean staleness of all {x.staleness_mean:.2g})" if x.aggregated_late else ""
    cancelled = f", {x.cancelled} cancelled" if x.cancelled else ""
    return f"{aggregated}{mean}{cancelled}"


def _named(codecs: dict[str, int]) -> str:
    """Return the codecs of the exchanges, most frequent first; nothing for float32 alone."""
    if set(codecs) <= {"float32"}:
        return ""
    return " as " + " and ".join(sorted(codecs, key=lambda name: -codecs[name]))


def _fleet(summary: RunSummary, width: int | None) -> list[str]:
    listed = summary.fleet[:MAX_DEVICES]
    columns = [_NAME]
    columns += [_KIND] if len({device.kind for device in summary.fleet}) > 1 else []
    columns += [_LINK] if any(device.link is not None for device in summary.fleet) else []
    columns.append(_PROFILE)
    for measure in device_measures():
        if measure.show is None or not measure.show.is_known(summary):
            continue
        columns += [_TIMED] if measure.key == "tau_s_median" else []
        columns.append(
            TextColumn(measure.show.heading, measure.cell, priority=measure.show.priority)
        )
    columns += [_MALICIOUS] if summary.attackers is not None and summary.attackers.kinds else []
    lines = table_lines(columns, listed, width)
    if any(device.tau_s_median is None for device in listed if device.samples["tau_s_median"].n):
        lines.append(TOO_FEW)
    if summary.devices > MAX_DEVICES:
        lines.append(f"and {summary.devices - MAX_DEVICES} more devices")
    return lines
