"""The totals of a run as metrics of Prometheus, named by its conventions: base units, `_total`.

No metric has a label per round or per exchange. The labels with the most values are devices, up to
`testbed.metrics.totals.MAX_DEVICES` of them.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from fairbed.coordinator.report.measures import device_measures, run_measure, run_measures
from fairbed.coordinator.report.quantities import LEAST, SampleCount, of_enough
from fairbed.coordinator.state.alerts import ALERT_KINDS
from fairbed.testbed.metrics.totals import (
    AGENT_STATES,
    BUCKETS_S,
    PHASES,
    DeviceTotals,
    Totals,
    unix_s,
)
from fairbed.wire.printable import Printable, printable

STATUSES = ("created", "running", "paused", "done", "stopped", "failed", "interrupted")
OUTCOMES = ("done", "late", "failed", "lost", "rejected", "cancelled")
LEVELS = ("info", "warning", "error")
"""Values of labels. All are there from the start, so that a rate has no missing first value."""


class RunCollector(Collector):
    """Metrics of one run.

    Args:
        pid: The process of the run, whose use of the machine is a metric, too; None: unknown.
    """

    CONTENT_TYPE = CONTENT_TYPE_LATEST

    def __init__(self, pid: int | None = None) -> None:
        self.totals: Totals | None = None
        """None before the first row of the run."""
        self.refresh_s = 0.0
        """Duration of the last reading."""
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        if pid is not None:
            ProcessCollector("fairbed_run", pid=lambda: pid, registry=self._registry)

    def text(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return _encoded(printable(generate_latest(self._registry).decode(), kept="\n"))

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield _gauge(
            "fairbed_exporter_refresh_seconds",
            "Time that the exporter took to read the run the last time.",
            self.refresh_s,
        )
        if self.totals is not None:
            yield from _run(self.totals)
            yield from _rounds(self.totals)
            yield from _exchanges(self.totals)
            yield from _numbers(self.totals)
            yield from _fleet(self.totals)
            yield from _devices(list(self.totals.devices.values()))


def _encoded(text: Printable) -> bytes:
    return text.encode()


def _gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    """Return a gauge; it has no sample if the value is unknown."""
    return GaugeMetricFamily(name, text, value=value)


def _gauges(
    name: str, text: str, label: str, values: Mapping[str, float | None]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        if value is not None:
            family.add_metric([key], value)
    return family


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _run(totals: Totals) -> Iterator[Metric]:
    info, plan = totals.info, totals.info.plan
    facts = {
        "run_id": info.run_id,
        "experiment": info.row.name,
        "policy": plan.selection.policy,
        "estimator": plan.selection.estimator,
        "aggregation": plan.steps,
        "clock": info.row.clock,
        "version": info.row.version,
    }
    texts = {key: value or "" for key, value in facts.items()}
    yield InfoMetricFamily("fairbed_run", "What is run; the value is 1.", value=texts)
    yield _gauges(
        "fairbed_run_status",
        "1 for the present status of the run, 0 for the others.",
        "status",
        {status: status == info.status for status in STATUSES},
    )
    yield _gauge(
        "fairbed_run_start_timestamp_seconds",
        "When the run was created, since 1970.",
        unix_s(info.row.created),
    )
    yield _gauge(
        "fairbed_run_clock_seconds",
        "Clock of the run at its newest event or closed round; virtual in a replay.",
        info.elapsed_s,
    )
    yield CounterMetricFamily(
        "fairbed_run_resumes", "How often the run was resumed.", value=info.row.resumes
    )
    yield _gauges(
        "fairbed_alerts",
        "1 for a condition that lasts and needs a person.",
        "kind",
        {kind: kind in {alert.kind for alert in info.alerts} for kind in ALERT_KINDS},
    )
    yield _counters(
        "fairbed_events",
        "Events of the run.",
        "level",
        {level: totals.events[level] for level in LEVELS},
    )


def _rounds(totals: Totals) -> Iterator[Metric]:
    closed, sums = totals.rounds, totals.sums
    n = sum(closed.values())
    yield _counters(
        "fairbed_rounds",
        "Closed rounds; a void one had no available device or no update.",
        "status",
        {status: closed[status] for status in ("done", "void")},
    )
    yield _gauge("fairbed_rounds_planned", "Rounds of the experiment.", totals.info.plan.rounds)
    yield _gauge(
        "fairbed_rounds_empty",
        "Closed rounds without an available device, on top of the planned ones.",
        totals.info.rounds_empty,
    )
    for name, text in (
        ("duration", "Duration of closed rounds."),
        ("loss_query", "Loss queries before the dispatch, part of the duration."),
        ("close", "From the last arrival to the next model, part of the duration."),
    ):
        yield SummaryMetricFamily(
            f"fairbed_round_{name}_seconds", text, count_value=n, sum_value=sums[f"{name}_s"]
        )
    yield CounterMetricFamily("fairbed_selections", "Selected devices.", value=sums["selected"])
    yield CounterMetricFamily(
        "fairbed_aggregations",
        "Updates that were aggregated, late ones included.",
        value=sums["aggregated"] + sums["aggregated_late"],
    )
    yield _counters(
        "fairbed_late_updates",
        "Late updates, by what became of them.",
        "result",
        {"aggregated": sums["aggregated_late"], "dropped": sums["dropped_late"]},
    )
    yield _counters(
        "fairbed_network_bytes",
        "Bytes of models (down) and updates (up), without protocol headers.",
        "direction",
        {"down": sums["bytes_down"], "up": sums["bytes_up"]},
    )


def _exchanges(totals: Totals) -> Iterator[Metric]:
    sums = totals.exchanges
    outcomes = dict.fromkeys((*OUTCOMES, *sums.outcomes))
    yield _counters(
        "fairbed_exchanges",
        "Exchanges that have ended.",
        "outcome",
        {outcome: sums.outcomes[outcome] for outcome in outcomes},
    )
    yield CounterMetricFamily(
        "fairbed_exchanges_invalid",
        "Done exchanges with an unreliable time, from which no estimator learns.",
        value=sums.invalid,
    )
    yield CounterMetricFamily(
        "fairbed_exchanges_contended",
        "Those of the invalid exchanges that the emulating machine delayed.",
        value=sums.contended,
    )
    bounds = [*map(str, BUCKETS_S), "+Inf"]
    counts = np.cumsum(sums.within).tolist()
    yield HistogramMetricFamily(
        "fairbed_exchange_duration_seconds",
        "Times of timed exchanges: from dispatch to the last byte of the update, without upload "
        "queues.",
        buckets=list(zip(bounds, counts, strict=True)),
        sum_value=sums.tau_s,
    )
    phases = SummaryMetricFamily(
        "fairbed_exchange_phase_seconds", "Phases of timed exchanges.", labels=["phase"]
    )
    for phase in PHASES:
        phases.add_metric([phase], sums.phase_n[phase], sums.phase_s[phase])
    yield phases
    yield SummaryMetricFamily(
        "fairbed_exchange_prediction_error_seconds",
        "Size of predicted minus measured times, over timed exchanges with a prediction.",
        count_value=sums.predicted,
        sum_value=sums.error_abs_s,
    )
    predicted = SampleCount(sums.predicted, sum(sums.outcomes.values()))
    mean_s = sums.error_s / sums.predicted if sums.predicted else None
    yield _gauge(
        "fairbed_exchange_prediction_bias_seconds",
        f"Mean of predicted minus measured times of the same exchanges; missing below {LEAST}, and "
        "below half of all.",
        of_enough(mean_s, predicted),
    )
    yield CounterMetricFamily(
        "fairbed_exchange_busy_seconds", "Device-seconds of exchanges.", value=sums.busy_s
    )
    if sums.energy_j is not None:
        yield CounterMetricFamily(
            "fairbed_exchange_energy_joules",
            f"{run_measure('energy_j').meaning}, joules.",
            value=sums.energy_j,
        )
        yield CounterMetricFamily(
            "fairbed_exchanges_with_energy",
            "Exchanges whose energy is known.",
            value=sums.energy_n,
        )


def _numbers(totals: Totals) -> Iterator[Metric]:
    """Yield the measures of runs that name a gauge."""
    for measure in run_measures():
        if measure.prometheus:
            number = totals.numbers.get(measure.key)
            text = f"{measure.meaning}."
            value = None if number is None else number.value
            yield _gauge(f"fairbed_{measure.prometheus}", text, value)


def _fleet(totals: Totals) -> Iterator[Metric]:
    yield _gauge("fairbed_devices", "Devices of the fleet that have joined.", totals.fleet)
    yield _gauges(
        "fairbed_agents",
        "Devices by the state that their agent last reported; silent: no report for 3 s.",
        "state",
        {state: totals.states[state] for state in AGENT_STATES} if totals.states else {},
    )


def _devices(devices: Sequence[DeviceTotals]) -> Iterator[Metric]:
    if not devices:
        return
    info = InfoMetricFamily(
        "fairbed_device", "What a device is.", labels=["device", "profile", "kind"]
    )
    selections = CounterMetricFamily(
        "fairbed_device_selections", "Rounds for which it was selected.", labels=["device"]
    )
    aggregations = CounterMetricFamily(
        "fairbed_device_aggregations", "Its aggregated updates.", labels=["device"]
    )
    for device in devices:
        info.add_metric((), {"device": device.name, "profile": device.profile, "kind": device.kind})
        selections.add_metric((device.name,), device.selected)
        aggregations.add_metric((device.name,), device.aggregated)
    yield from (info, selections, aggregations)
    for measure in device_measures():
        if measure.prometheus:
            values = {device.name: measure.value(device) for device in devices}
            name, text = f"fairbed_device_{measure.prometheus}", f"{measure.meaning}."
            yield _gauges(name, text, "device", values)
