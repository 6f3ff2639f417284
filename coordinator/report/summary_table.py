"""The summary of a run as plain text, which `fairbed run` prints at the end."""

from collections.abc import Sequence

from fairbed.coordinator.report.quantities import MISSING, clock, percent, ratio, seconds, size
from fairbed.coordinator.report.summary_schema import (
    DeviceSummary,
    ExchangeSummary,
    Fairness,
    RunSummary,
)

MAX_DEVICES = 40
"""Maximum number of devices listed."""

_HEADINGS = (
    ("device", "<"),
    ("profile", "<"),
    ("selected", ">"),
    ("sel rate", ">"),
    ("agg rate", ">"),
    ("queue Z", ">"),
    ("tau s", ">"),
    ("train s", ">"),
    ("accuracy", ">"),
)


def summary_table(summary: RunSummary) -> str:
    """Return the facts of a run, then one line per device."""
    return "\n".join([*_facts(summary), "", *_fleet(summary)])


def _facts(s: RunSummary) -> list[str]:
    planned = f" of {s.rounds_planned}" if s.rounds_planned else ""
    void = f" ({s.rounds_void} void)" if s.rounds_void else ""
    reason = f": {s.reason}" if s.reason else ""
    x, fair = s.exchange, s.fairness
    contended = f" ({x.contended} by contention on this machine)" if x.contended else ""
    dilated = f", time dilation {s.dilation:.3g}" if s.dilation != 1.0 else ""
    pairs = [
        ("run", f"{s.run_id}  {s.status}{reason}"),
        (
            "rounds",
            f"{s.rounds_completed}{planned}{void}, median {seconds(s.round_s.median)} s, "
            f"p95 {seconds(s.round_s.p95)} s; "
            f"{clock(s.virtual_s)} in rounds, {clock(s.wall_s)} in total{dilated}",
        ),
        (
            "accuracy",
            f"mean {ratio(s.accuracy.mean)}, worst 10 % {ratio(s.accuracy.worst10)}, "
            f"best 10 % {ratio(s.accuracy.best10)}, Gini {ratio(s.accuracy.gini)}; "
            f"loss {ratio(s.loss.mean)} ± {ratio(s.loss.std)}",
        ),
        (
            "exchanges",
            f"{x.count}, median {seconds(x.median_s)} s, p95 {seconds(x.p95_s)} s; "
            f"{x.late} late{_lateness(x)}, {x.failed} failed, {x.invalid} invalid{contended}; "
            f"{percent(x.unaccounted_ratio)} of the time in no phase",
        ),
        (
            "prediction",
            f"mean error {percent(s.estimator.mape_second_half)} in the second half, "
            f"bias {percent(s.estimator.bias, is_signed=True)}",
        ),
        (
            "selection",
            f"selection rate: min {ratio(fair.min_selection_rate)} ({_guarantee(fair)}); "
            f"aggregation rate: min {ratio(fair.min_aggregation_rate)}; "
            f"Jain index {ratio(fair.jain)}",
        ),
        (
            "fairness",
            f"virtual queues: sum {ratio(s.queues.mean_total, 2)}, max {ratio(s.queues.max, 2)}",
        ),
        *_queries(s),
        (
            "traffic",
            f"{size(s.bytes.down)} down{_named(x.codecs_down)}, "
            f"{size(s.bytes.up)} up{_named(x.codecs_up)}",
        ),
    ]
    return [f"{label:<11}{text}" for label, text in pairs]


def _guarantee(fair: Fairness) -> str:
    if fair.beta is None:
        return "no guarantee"
    bound = {True: "bound holds", False: "bound violated", None: "bound unknown"}
    return f"guaranteed {fair.beta:g}, {bound[fair.invariant_holds]}"


def _queries(s: RunSummary) -> list[tuple[str, str]]:
    """Return a line about loss queries and a line about audits, for each that took place."""
    q = s.loss_queries
    pairs = []
    if q.count:
        pairs.append(
            (
                "loss query",
                f"{q.answered} of {q.count} answered, {q.late} late, "
                f"median {seconds(q.median_s)} s; {clock(q.total_s)} of the time in rounds",
            )
        )
    if s.audits:
        pairs.append(("audit", f"{s.audits} exchanges of uniformly drawn devices"))
    return pairs


def _lateness(x: ExchangeSummary) -> str:
    """Return the counts of late aggregated updates and of cancelled exchanges, if any."""
    aggregated = f", {x.aggregated_late} aggregated late" if x.aggregated_late else ""
    mean = f" (staleness {x.staleness_mean:.2g} on average)" if x.aggregated_late else ""
    cancelled = f", {x.cancelled} cancelled" if x.cancelled else ""
    return f"{aggregated}{mean}{cancelled}"


def _named(codecs: dict[str, int]) -> str:
    """Return the codecs of the exchanges, most frequent first; nothing for float32 alone."""
    if set(codecs) <= {"float32"}:
        return ""
    return " as " + " and ".join(sorted(codecs, key=lambda name: -codecs[name]))


def _fleet(summary: RunSummary) -> list[str]:
    rows = [[heading for heading, _ in _HEADINGS]]
    rows += [_cells(device) for device in summary.fleet[:MAX_DEVICES]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADINGS))]
    lines = [_line(row, widths) for row in rows]
    if summary.devices > MAX_DEVICES:
        lines.append(f"and {summary.devices - MAX_DEVICES} more devices")
    return lines


def _cells(device: DeviceSummary) -> list[str]:
    return [
        device.name,
        device.profile or MISSING,
        str(device.selected),
        ratio(device.selection_rate),
        ratio(device.aggregation_rate),
        ratio(device.queue, 2),
        seconds(device.tau_s_median),
        seconds(device.train_s_median),
        ratio(device.accuracy),
    ]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = [
        f"{cell:{align}{width}}"
        for cell, width, (_, align) in zip(cells, widths, _HEADINGS, strict=True)
    ]
    return "  ".join(parts).rstrip()
