"""The summary of a run in words: sentences that follow from its numbers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.policy.config import ALERTS_OFF
from fairbed.coordinator.report.device_history import PHASE_TERMS
from fairbed.coordinator.report.measures import run_measure, text_of
from fairbed.coordinator.report.quality import examples_text, spread_of, whole_percent
from fairbed.coordinator.report.quantities import (
    SampleCount,
    clock,
    energy,
    percent,
    ratio,
    seconds,
)
from fairbed.coordinator.report.summary_schema import Accuracy, DeviceSummary, Errors, RunSummary
from fairbed.coordinator.report.summary_table import (
    alert_lines,
    attack_counts,
    counted_rate,
    energy_total,
    is_kept,
    prediction_errors,
)
from fairbed.coordinator.store.reader import LIVE, TIMED_PHASES, ExperimentExcerpt, RunReader
from fairbed.coordinator.store.tables import INTERNAL_ERROR, ExchangeRow, MetricRow, RoundRow

NEARLY = 0.95
"""Share of the last accuracy of which the first round is named."""

NOTABLE_ERROR = 0.25
"""Mean error of predictions that is called large."""

SHOWN = 3
"""Devices, or reasons, that a sentence names."""

Topic = Literal[
    "Run", "Accuracy", "Error", "Loss", "Guarantee", "Speed", "Worst off", "Cost", "Problems"
]


@dataclass(frozen=True, slots=True)
class Finding:
    """A few sentences about one question."""

    topic: Topic
    text: str
    is_bad: bool = False
    """It needs a person's attention."""


@dataclass(frozen=True, slots=True)
class RoundTime:
    """What the rounds of a run took their time for, in sums over rounds that are not void."""

    rounds: int
    total_s: float
    query_s: float
    """Loss queries before the dispatch."""
    close_s: float
    """From the last arrival to the next model."""
    waits: tuple[tuple[str, int], ...]
    """Devices that were the slowest of a round, and of how many; most frequent first."""
    phases_s: dict[str, float]
    """Time of the slowest exchanges by phase, of rounds in which it is timed; the longest first."""
    timed: SampleCount
    """These rounds, of all that are not void."""

    @property
    def exchange_s(self) -> float:
        """Waiting for the slowest exchange."""
        return self.total_s - self.query_s - self.close_s


def read_round_time(reader: RunReader) -> RoundTime:
    """Read what the rounds took their time for."""
    names = ("round", "attempt", "duration_s", "loss_query_s", "close_s", "slowest")
    rounds = reader.columns(RoundRow, names, "WHERE status != 'void' ORDER BY round")
    phases = tuple(f"{phase}_s" for phase in TIMED_PHASES)
    exchanges = reader.columns(
        ExchangeRow,
        ("round", "attempt", "device", "is_valid", *phases),
        "WHERE outcome = 'done' AND tau_s IS NOT NULL ORDER BY tau_s, device",
    )
    last = {(row[0], row[1]): row for row in exchanges}  # the slowest one of each round
    slowest = [found for row in rounds if (found := last.get((row[0], row[1]))) and found[3]]
    spent: Floats = np.array([row[4:] for row in slowest], dtype=np.float64)
    sums = np.nansum(spent.reshape(-1, len(phases)), axis=0)
    by_phase = sorted(zip(TIMED_PHASES, sums.tolist(), strict=True), key=lambda item: -item[1])
    named = [
        row[5] or (found[2] if (found := last.get((row[0], row[1]))) else "") for row in rounds
    ]
    waits = Counter(name for name in named if name)
    return RoundTime(
        rounds=len(rounds),
        total_s=sum(row[2] for row in rounds),
        query_s=sum(row[3] for row in rounds),
        close_s=sum(row[4] for row in rounds),
        waits=tuple(sorted(waits.items(), key=lambda item: (-item[1], item[0]))),
        phases_s={phase: total for phase, total in by_phase if total > 0.0},
        timed=SampleCount(len(slowest), len(rounds)),
    )


def findings(
    s: RunSummary,
    plan: ExperimentExcerpt,
    time: RoundTime,
    evaluations: Sequence[MetricRow],
) -> list[Finding]:
    """Return what a reader asks first, answered from the numbers of a run.

    Args:
        s: Its summary, with all devices.
        plan: The shown part of its experiment.
        time: What its rounds took their time for.
        evaluations: All evaluations of the model.
    """
    found = [_run(s, plan)]
    if not s.rounds_completed:
        return [*found, *_problems(s)]
    found += _quality(s, evaluations)
    found.append(_guarantee(s))
    found += _speed(s, time)
    found += _worst_off(s)
    found += _cost(s)
    found += _problems(s)
    return found


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 device`, `12 devices`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _run(s: RunSummary, plan: ExperimentExcerpt) -> Finding:
    kinds = Counter(device.kind for device in s.fleet)
    kind = f" {next(iter(kinds))}" if len(kinds) == 1 else ""
    fleet = counted(s.devices, f"{kind} device".strip())
    if len(kinds) > 1:
        fleet += f" ({', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))})"
    what = "A replay on a virtual clock" if s.clock == "virtual" else "A run"
    selection = plan.selection
    policy = f"; the policy {selection.policy} selected" if selection.policy else "; it selected"
    number = f"{selection.per_round:,}" if selection.per_round else "some"
    cohort = f"{policy} {number} per round" if s.rounds_completed else ""
    trains = plan.replay.training is not False or s.clock != "virtual"
    steps = f" and their updates were merged by {plan.steps}" if plan.steps and cohort else ""
    steps = steps if trains else ", without training" if cohort else ""
    planned = f" of {s.last_round}" if s.last_round else ""
    done = (
        f"{s.rounds_completed}{planned} rounds took {span(s.virtual_s)}"
        if s.rounds_completed
        else f"no round{planned} has been completed"
    )
    wall = f", {span(s.wall_s)} of real time in all" if s.rounds_completed else ""
    dilated = (
        f" One second of the fleet lasted {s.dilation:.3g} s of this machine."
        if s.dilation != 1.0 and s.clock != "virtual"
        else ""
    )
    text = f"{what} with {fleet}{cohort}{steps}. {_upper(done)}{wall}.{dilated}"
    return Finding("Run", text, is_bad=not s.rounds_completed)


def span(value_s: float) -> str:
    """Return a duration with its unit: `41 ms`, `12.3 s`, `1:05 min`, `2:03:04 h`."""
    if value_s < 0.9995:
        return f"{1e3 * value_s:.0f} ms"
    if value_s < 99.95:
        return f"{seconds(value_s)} s"
    return f"{clock(value_s)} {'h' if value_s >= 3600 else 'min'}"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _quality(s: RunSummary, evaluations: Sequence[MetricRow]) -> Iterator[Finding]:
    """Yield how good the model is: its accuracy, or the error of regression."""
    known = [(row.round, mean) for row in evaluations if (mean := spread_of(row).mean) is not None]
    if known and known[-1][0] == evaluations[-1].round:
        text = _curve(s, s.error, known)
    elif s.error is not None:
        text = "The error of the predictions is not known."
    elif s.has_client and s.loss.mean is not None:
        text = (
            f"The loss of the model is {ratio(s.loss.mean)}, mean over devices, as their client "
            "measures it; it measures no accuracy."
        )
        yield Finding("Loss", text)
        return
    else:
        return
    if s.personal is not None:
        p = s.personal
        own = f"an RMSE of {ratio(p.rmse_mean)}" if s.error is not None else ratio(p.accuracy_mean)
        text += (
            f" The personal models reached {own}, and were better than the "
            f"global model on {p.better} of {counted(p.devices, 'device')}."
        )
    has_diverged = s.loss.mean is None
    if has_diverged:
        text += " The model has diverged: the loss of a device is not finite."
    yield Finding("Accuracy" if s.error is None else "Error", text, is_bad=has_diverged)


def _curve(s: RunSummary, e: Errors | None, known: Sequence[tuple[int, float]]) -> str:
    """Return how good the model was in the last round, and when it was nearly so, or better."""
    last, mean = known[-1]
    if e is not None:
        text = _regression(s, e, last)
        reached = next(at for at, error in known if error * NEARLY <= mean)
        if reached < last:
            text += f" It first was within {100 * (1 - NEARLY):.0f} % of it after round {reached}."
        best_round, best = min(known, key=lambda point: point[1])
        if mean - best > 0.02 * mean:
            text += f" It was smallest after round {best_round}: {ratio(best)}."
        return text
    text = _accuracy(s, last)
    reached = next(at for at, value in known if value >= NEARLY * mean)
    if reached < last and mean > 0.0:
        text += f" It first had {100 * NEARLY:g} % of that mean after round {reached}."
    best_round, best = max(known, key=lambda point: point[1])
    if best > mean + 0.02:
        text += f" Its highest mean was {ratio(best)}, after round {best_round}."
    return text


def _accuracy(s: RunSummary, last: int) -> str:
    a = s.accuracy
    spread, noise = _tenths(s), "" if s.worst_metric is not None else _noise(a)
    if not spread and a.worst10 is not None and a.best10 is not None:
        spread = (
            f"; {text_of(s, 'accuracy_worst10')} on the worst tenth of the devices and "
            f"{text_of(s, 'accuracy_best10')} on the best"
        )
    text = (
        f"After round {last}, the model classified {text_of(s, 'accuracy_mean')} of the held-out "
        f"examples correctly, as a mean over devices{spread}.{noise}"
    )
    if s.auroc is not None and s.auroc.mean is not None:
        text += (
            f" Its AUROC was {text_of(s, 'auroc_mean')}, as a mean over devices with both classes."
        )
    return text


def _tenths(s: RunSummary) -> str:
    """Return worst and best tenth in the metric of `evaluation.worst`; empty if it names none."""
    m = s.worst_metric
    if m is None or m.worst10 is None or m.best10 is None:
        return ""
    return (
        f"; its {m.name} was {m.worst10:.4g} on the worst tenth of the devices and "
        f"{m.best10:.4g} on the best ({m.better} is better)"
    )


def _noise(a: Accuracy) -> str:
    """Return what the noise of the test sets is in the worst tenth; nothing if it is unknown."""
    n = a.noise
    if n is None or n.worst10_share is None or n.variance_share is None:
        return ""
    text = (
        f" With {examples_text(n)}, the worst tenth of identical devices would have "
        f"{ratio(n.worst10)}: {whole_percent(n.worst10_share)} of its distance from the mean, and "
        f"{whole_percent(n.variance_share)} of the variance {ratio(a.variance, 4)}."
    )
    if n.worst10_shrunken is not None and n.variance_corrected is not None:
        text += (
            f" Corrected for it, the worst tenth has {ratio(n.worst10_shrunken)} and the variance "
            f"is {ratio(n.variance_corrected, 4)}."
        )
    return text


def _regression(s: RunSummary, e: Errors, last: int) -> str:
    spread = _tenths(s) or (
        f"; {ratio(e.rmse_worst10)} on the worst tenth of the devices and {ratio(e.rmse_best10)} "
        "on the best"
        if e.rmse_worst10 is not None and e.rmse_best10 is not None
        else ""
    )
    text = (
        f"After round {last}, the predictions for held-out examples had a root mean squared error "
        f"of {ratio(e.rmse_mean)}, as a mean over devices{spread}."
    )
    if e.r2_pooled is not None:
        text += f" Over all examples, R2 was {ratio(e.r2_pooled)}."
    return text


def _guarantee(s: RunSummary) -> Finding:
    fair = s.fairness
    counts = "selected" if fair.queue_counts == "selected" else "aggregated"
    rate = counted_rate(fair)
    jain = f" The Jain index of the selections is {text_of(s, 'jain')}." if fair.jain else ""
    if fair.beta is None:
        least = (
            f" The lowest selection rate of a device is {text_of(s, 'min_rate_selected')}."
            if fair.min_selection_rate is not None
            else ""
        )
        return Finding("Guarantee", f"The policy guarantees no rate.{least}{jain}")
    if rate is None:
        text = f"A rate of {fair.beta:g} is guaranteed; whether it was kept is not known."
        return Finding("Guarantee", text)
    if is_kept(fair):
        text = (
            f"Kept: every device was {counts} in at least {ratio(rate)} of the rounds since it "
            f"joined; {fair.beta:g} is guaranteed.{jain}"
        )
    else:
        limit = fair.highest_rate
        reason = (
            f" At most {ratio(limit)} was possible, because devices were not available often "
            "enough or too few are selected per round."
            if limit is not None and limit < fair.beta
            else " The bound rate >= beta - Z/T holds: the run ended before the rate was reached."
            if fair.invariant_holds
            else ""
        )
        lowest = (
            f"a device was {counts} in only {ratio(rate)} of the rounds since it joined"
            if rate
            else f"a device was never {counts}"
        )
        text = f"Not kept: {lowest}; {fair.beta:g} is guaranteed.{reason}{jain}"
    if fair.invariant_holds is False:
        text += " The bound rate >= beta - Z/T, which must hold after every round, is violated."
    if s.queues.total is not None:
        text += (
            f" After the last round, {run_measure('queue_total').name} "
            f"{text_of(s, 'queue_total')}, largest {text_of(s, 'queue_largest')}."
        )
    is_bad = not is_kept(fair) or fair.invariant_holds is False
    return Finding("Guarantee", text, is_bad=is_bad)


def _speed(s: RunSummary, time: RoundTime) -> Iterator[Finding]:
    if not time.rounds or time.total_s <= 0.0:
        return
    parts = [
        (time.exchange_s, "waiting for the slowest exchange"),
        (time.query_s, "loss queries"),
        (time.close_s, "merging and publishing the next model"),
    ]
    shares = [
        f"{percent(part / time.total_s)} {words}" for part, words in sorted(parts, reverse=True)
    ]
    used = [share for share in shares if not share.startswith("0.0 ")]
    lasted = s.round_s.samples["median"]
    text = (
        f"No median round: {lasted} rounds were not void, {lasted.why_none}."
        if s.round_s.median is None
        else f"A median round took {span(s.round_s.median)}."
    )
    text += f" Of the time in rounds: {', '.join(used)}."
    if time.waits and time.waits[0][1] > 1:
        name, times = time.waits[0]
        text += f" {name} was the slowest device most often, in {times} of {time.rounds} rounds."
    in_phases = sum(time.phases_s.values())
    if time.timed.why_none:
        text += (
            f" What the slowest exchanges spent their time on is not stated: they were timed in "
            f"{time.timed} rounds, {time.timed.why_none}."
        )
    elif in_phases > 0.0:
        first, *others = list(time.phases_s.items())[:2]
        text += (
            f" In the slowest exchange of a round (timed in {time.timed}), "
            f"{PHASE_TERMS[first[0]].noun} takes longest, {percent(first[1] / in_phases)}"
        )
        text += "".join(
            f", then {PHASE_TERMS[phase].noun}, {percent(total / in_phases)}"
            for phase, total in others
        )
        text += "."
    error = s.estimator.mape_second_half
    if s.estimator.predicted:
        text += f" Predictions of exchange times: {prediction_errors(s.estimator)}."
    yield Finding("Speed", text, is_bad=error is not None and error > NOTABLE_ERROR)


def _worst_off(s: RunSummary) -> Iterator[Finding]:
    """Yield the devices that the run served worst; nothing for one device."""
    if len(s.fleet) < 2:
        return
    texts = []
    if s.devices > len(s.fleet):
        never = s.devices - len(s.fleet)
        texts.append(f"{never:,} of {s.devices:,} devices were never selected")

    def lowest(devices: Sequence[DeviceSummary], key: str) -> list[DeviceSummary]:
        known = [device for device in devices if getattr(device, key) is not None]
        return sorted(known, key=lambda device: (getattr(device, key), device.name))

    chosen = s.worst_metric
    measured = lowest(s.fleet, "metric") if chosen is not None else []
    if chosen is not None and measured and measured[0].metric != measured[-1].metric:
        worst = measured[-1 if chosen.better == "less" else 0]
        texts.append(f"{worst.name} has the worst {chosen.name}, {worst.metric:.4g}")
    accuracies = [] if chosen is not None else lowest(s.fleet, "accuracy")
    if accuracies and accuracies[0].accuracy != accuracies[-1].accuracy:
        worst = accuracies[0]
        texts.append(f"{worst.name} has the lowest accuracy, {ratio(worst.accuracy)}")
    errors = [] if chosen is not None else lowest(s.fleet, "rmse")
    if errors and errors[0].rmse != errors[-1].rmse:
        worst = errors[-1]
        texts.append(f"{worst.name} has the largest error, an RMSE of {ratio(worst.rmse)}")
    rates = lowest(s.fleet, "selection_rate")
    if rates and rates[0].selection_rate != rates[-1].selection_rate:
        worst = rates[0]
        same = sum(device.selection_rate == worst.selection_rate for device in rates)
        others = f", like {counted(same - 1, 'other')}" if same > 1 else ""
        texts.append(
            f"{worst.name} was selected least often, in {ratio(worst.selection_rate)} of the "
            f"rounds{others}"
        )
    slow = lowest(s.fleet, "tau_s_median")
    if slow:
        worst = slow[-1]
        others = "" if len(slow) == len(s.fleet) else f" of {len(slow)} devices that have one"
        texts.append(
            f"{worst.name} has the longest median exchange{others}, "
            f"{span(worst.tau_s_median or 0.0)} ({worst.samples['tau_s_median']} timed)"
        )
    if texts:
        yield Finding("Worst off", f"{'; '.join(texts)}.")


def _cost(s: RunSummary) -> Iterator[Finding]:
    parts = [f"{text_of(s, 'down_bytes')} down and {text_of(s, 'up_bytes')} up"]
    if s.energy is not None:
        unknown = "energy " if s.energy.total_j is None else ""
        parts.append(f"{unknown}{energy_total(s.energy)}")
        if s.energy.wasted_j:
            parts.append(f"{energy(s.energy.wasted_j)} of it for updates that were not merged")
    if s.bytes.down or s.bytes.up or s.energy is not None:
        yield Finding("Cost", f"Models and updates: {'; '.join(parts)}.")


def _problems(s: RunSummary) -> list[Finding]:
    x = s.exchange
    merged_late = f", {x.aggregated_late} of them merged later" if x.aggregated_late else ""
    of_them = "" if x.contended == x.invalid else f"{x.contended} of them "
    contended = f", {of_them}because the machine of the run was busy" if x.contended else ""
    is_over = s.status not in LIVE
    empty = (
        f"; in {s.rounds_empty:,} of them no device was available, so they count for the queues "
        f"but not towards the {s.rounds_planned} planned rounds"
        if s.rounds_empty
        else ""
    )
    texts = [
        f"The run {s.status}: {s.reason}." if s.reason else "",
        f"It was {s.status} before its end; continue it with `{s.resume_command}`."
        if s.resume_command and not s.reason and is_over
        else "",
        f"{counted(s.rounds_void, 'round')} of {s.rounds_completed} had no update{empty}."
        if s.rounds_void
        else "",
        f"{counted(x.failed, 'exchange')} of {x.count:,} failed, were lost or were rejected."
        if x.failed
        else "",
        f"Fairbed itself failed {counted(s.internal_errors, 'time')} by an internal error, and the "
        f"replay went on: please report the events {INTERNAL_ERROR}."
        if s.internal_errors
        else "",
        f"{counted(x.late + x.aggregated_late, 'exchange')} missed the deadline{merged_late}."
        if x.late or x.aggregated_late
        else "",
        f"{counted(x.invalid, 'exchange time')} did not count{contended}." if x.invalid else "",
        f"Of {counted(s.loss_queries.count, 'loss query', 'loss queries')}, "
        f"{s.loss_queries.late} had no reply in time."
        if s.loss_queries.late
        else "",
        *(f"{_upper(line)}." for line in alert_lines(s.alerts)),
        "" if s.divergence is None else f"{_upper(s.divergence.text)}.",
        *(f"{_upper(note)}." for note in s.evaluation_notes),
    ]
    texts += _attacks(s)
    if s.changes:
        texts.append(f"An operator changed the run {counted(len(s.changes), 'time')}.")
    if any(warning.kind == "alerts" for warning in s.warnings):
        texts.append(f"Alerts: {ALERTS_OFF}.")
    found = [text for text in texts if text]
    is_bad = bool(
        x.failed
        or s.internal_errors
        or s.alerts
        or s.divergence
        or s.rounds_void
        or s.status in ("failed", "interrupted")
    )
    if found:
        return [Finding("Problems", " ".join(found), is_bad=is_bad)]
    return [Finding("Problems", "None: no exchange failed or was late, and no alert was raised.")]


def _attacks(s: RunSummary) -> list[str]:
    a = s.attackers
    if a is None or not a.kinds:
        return []
    return [
        f"Malicious devices: {attack_counts(a)}, with "
        f"{text_of(s, 'malicious_weight')} of the weight; the accuracy on benign devices is "
        f"{text_of(s, 'benign_accuracy_mean')}."
    ]
