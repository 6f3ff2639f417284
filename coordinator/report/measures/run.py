"""The catalogue of the numbers of a run, with its times, exchanges, selections and predictions."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fairbed.coordinator.report.measures.entry import (
    BYTES,
    JOULES,
    PERCENT,
    SECONDS,
    SIGNED_PERCENT,
    TWO_DIGITS,
    WHOLE,
    Compared,
    Format,
    Round,
    RunMeasure,
    Summary,
    Tile,
)
from fairbed.coordinator.report.measures.model import AGGREGATION, MODEL
from fairbed.coordinator.report.measures.scales import (
    ENERGY_SUM,
    PREDICTION_ERROR,
    QUEUE,
    RATE,
    SELECTIONS,
    TIME,
)
from fairbed.coordinator.report.measures.served import SERVED
from fairbed.coordinator.report.measures.subsets import ATTACK, PERSONAL, PRIVACY
from fairbed.coordinator.report.quantities import MISSING, clock, device_time

if TYPE_CHECKING:
    from fairbed.coordinator.report.facts import RunFacts
    from fairbed.coordinator.report.summary_schema import RunSummary

TOO_FEW = "too few timed exchanges"
NO_HISTORY = "the store has no selections by device"
NO_QUEUES = "the store has no selections of all devices, or too many for queues"

CLOCK = Format(lambda value: MISSING if value is None else clock(value))
DEVICE_TIME = Format(lambda value: MISSING if value is None else device_time(value))


def _fair(name: str) -> "Callable[[RunFacts], float | None]":
    """Return the source of a number of the fairness of the selection."""
    return lambda facts: getattr(facts.fairness, name)


def _guarantee_holds(facts: "RunFacts") -> float | None:
    holds = facts.fairness.invariant_holds
    return None if holds is None else float(holds)


def _queue(name: str) -> "Callable[[RunFacts], float | None]":
    """Return the source of a virtual queue after the newest round; none under a policy without."""

    def source(facts: "RunFacts") -> float | None:
        row = facts.newest
        if row is None or not (facts.fairness.beta is not None or row.queue_max):
            return None
        value: float = getattr(row, name)
        return value

    return source


def _mean_queue_sum(facts: "RunFacts") -> float | None:
    return float(facts.queues.total.mean()) if facts.queues else None


def _largest_queue(facts: "RunFacts") -> float | None:
    return float(facts.queues.largest.max()) if facts.queues else None


def _whole_energy(s: "RunSummary") -> float | None:
    return s.energy.total_j if s.energy is not None and s.energy.is_complete else None


TIMES = (
    RunMeasure(
        key="virtual_s",
        name="total time",
        meaning="Sum of the durations of all rounds, without evaluation",
        source=Summary("virtual_s"),
        unit="s",
        format=CLOCK,
        json="virtual_s",
        show="rounds",
        report="in rounds",
        compare=Compared(
            has_table=True, group="time", short="total", better="less", kind=TIME, digits=1
        ),
    ),
    RunMeasure(
        key="round_median_s",
        name="median round",
        meaning="Median duration of the rounds that are not void",
        source=Summary("round_s.median"),
        unit="s",
        format=SECONDS,
        why_none="every round was void",
        json="round_s.median",
        show="rounds",
        report="Speed",
        compare=Compared(group="time", short="round", better="less", kind=TIME),
    ),
    RunMeasure(
        key="round_p95_s",
        name="p95 round",
        meaning="95th percentile of the durations of the rounds that are not void",
        source=Summary("round_s.p95"),
        unit="s",
        format=SECONDS,
        why_none="every round was void",
        json="round_s.p95",
        show="rounds",
    ),
    RunMeasure(
        key="device_s",
        name="device-seconds",
        meaning="Time in which the devices were busy for the run, summed over the devices",
        source=Summary("device_s"),
        format=DEVICE_TIME,
        json="device_s",
        show="rounds",
        compare=Compared(
            has_table=True, group="time", short="device-s", better="less", kind=TIME, digits=1
        ),
    ),
    RunMeasure(
        key="wall_s",
        name="machine time",
        meaning="Real time from the start to the last record",
        source=Summary("wall_s"),
        unit="s",
        format=CLOCK,
        json="wall_s",
        show="rounds",
        compare=Compared(group="time", short="machine", better="less", kind=TIME, digits=1),
    ),
    RunMeasure(
        key="round_duration_s",
        name="round",
        meaning="Duration of the newest closed round",
        source=Round("duration_s"),
        unit="s",
        format=SECONDS,
        tensorboard="round/duration_s",
    ),
    RunMeasure(
        key="round_longest_exchange_s",
        name="longest exchange",
        meaning="Longest exchange time of the newest closed round",
        source=Round("tau_max_s"),
        unit="s",
        format=SECONDS,
        tensorboard="round/longest_exchange_s",
    ),
    RunMeasure(
        key="round_loss_query_s",
        name="loss queries",
        meaning="Loss queries before the dispatch of the newest closed round",
        source=Round("loss_query_s"),
        unit="s",
        format=SECONDS,
        tensorboard="round/loss_query_s",
    ),
    RunMeasure(
        key="round_close_s",
        name="closing",
        meaning="From the last arrival to the next model, in the newest closed round",
        source=Round("close_s"),
        unit="s",
        format=SECONDS,
        tensorboard="round/close_s",
    ),
    RunMeasure(
        key="event_loop_lag_s",
        name="event loop lag",
        meaning="99th percentile of the delay of the coordinator's event loop in the newest round",
        source=Round("lag_p99_s"),
        unit="s",
        format=SECONDS,
        prometheus="event_loop_lag_seconds",
        tensorboard="round/event_loop_lag_s",
    ),
)
"""Times."""

EXCHANGES = (
    RunMeasure(
        key="energy_j",
        name="energy",
        meaning="Sum of the known energies of exchanges",
        source=Summary(_whole_energy),
        unit="J",
        format=JOULES,
        why_none="the power of a device is unknown",
        json="energy.total_j",
        show="energy",
        report="energy",
        compare=Compared(
            group="exchange", short="energy", better="less", kind=ENERGY_SUM, digits=1
        ),
    ),
    RunMeasure(
        key="tau_median_s",
        name="median exchange",
        meaning="Median exchange time of the timed exchanges",
        source=Summary("exchange.median_s"),
        unit="s",
        format=SECONDS,
        why_none=TOO_FEW,
        json="exchange.median_s",
        show="exchanges",
        report="median exchange",
        compare=Compared(group="exchange", short="tau", better="less", kind=TIME),
    ),
    RunMeasure(
        key="tau_p95_s",
        name="p95 exchange",
        meaning="95th percentile of the exchange time of the timed exchanges",
        source=Summary("exchange.p95_s"),
        unit="s",
        format=SECONDS,
        why_none=TOO_FEW,
        json="exchange.p95_s",
        show="exchanges",
        compare=Compared(group="exchange", short="p95 tau", better="less", kind=TIME),
    ),
    RunMeasure(
        key="unaccounted_ratio",
        name="in no phase",
        meaning="Median over timed exchanges of their share in no phase",
        source=Summary("exchange.unaccounted_ratio"),
        format=PERCENT,
        why_none=TOO_FEW,
        json="exchange.unaccounted_ratio",
        show="exchanges",
    ),
    RunMeasure(
        key="cell_wait_ratio",
        name="lost to others in a cell",
        meaning="Median over exchanges of devices in cells of the share lost to other devices",
        source=Summary("exchange.cell_wait_ratio"),
        format=PERCENT,
        why_none=TOO_FEW,
        json="exchange.cell_wait_ratio",
        show="exchanges",
    ),
    RunMeasure(
        key="down_bytes",
        name="down",
        meaning="Bytes of models on the network",
        source=Summary("bytes.down"),
        unit="byte",
        format=BYTES,
        json="bytes.down",
        show="traffic",
        report="Cost",
    ),
    RunMeasure(
        key="up_bytes",
        name="up",
        meaning="Bytes of updates on the network",
        source=Summary("bytes.up"),
        unit="byte",
        format=BYTES,
        json="bytes.up",
        show="traffic",
        report="Cost",
    ),
    RunMeasure(
        key="round_down_bytes",
        name="down",
        meaning="Bytes of models sent in the newest closed round",
        source=Round("bytes_down"),
        unit="byte",
        format=BYTES,
        tensorboard="network/down_bytes",
    ),
    RunMeasure(
        key="round_up_bytes",
        name="up",
        meaning="Bytes of updates received in the newest closed round",
        source=Round("bytes_up"),
        unit="byte",
        format=BYTES,
        tensorboard="network/up_bytes",
    ),
)
"""Exchanges: their times, energy and bytes."""

SELECTION = (
    RunMeasure(
        key="beta",
        name="guaranteed rate",
        meaning="Selection rate that the policy guarantees",
        source=_fair("beta"),
        why_none="the policy guarantees no rate",
        json="fairness.beta",
        show="selection",
        prometheus="selection_rate_guaranteed_ratio",
    ),
    RunMeasure(
        key="min_rate_selected",
        name="min rate selected",
        meaning="Lowest selections / rounds of a device since it joined",
        source=_fair("min_selection_rate"),
        why_none=NO_HISTORY,
        json="fairness.min_selection_rate",
        show="selection",
        report="lowest selection rate",
        compare=Compared(
            has_table=True, group="selection", short="min sel", better="more", kind=RATE
        ),
        prometheus="selection_rate_min_ratio",
    ),
    RunMeasure(
        key="min_rate_aggregated",
        name="min rate aggregated",
        meaning="Lowest aggregated updates / rounds of a device since it joined",
        source=_fair("min_aggregation_rate"),
        why_none=NO_HISTORY,
        json="fairness.min_aggregation_rate",
        show="selection",
        compare=Compared(group="selection", short="min agg", better="more", kind=RATE),
        prometheus="aggregation_rate_min_ratio",
    ),
    RunMeasure(
        key="jain",
        name="Jain",
        meaning="Jain index of the selection counts: 1 if all are equal",
        source=_fair("jain"),
        why_none="no device was selected",
        json="fairness.jain",
        show="selection",
        report="Guarantee",
        compare=Compared(group="selection", short="Jain", better="more", kind=SELECTIONS),
        prometheus="selection_jain_ratio",
    ),
    RunMeasure(
        key="guarantee_holds",
        name="bound holds",
        meaning="1 if every device has its guaranteed rate up to its virtual queue, else 0",
        source=_guarantee_holds,
        format=WHOLE,
        why_none="the policy guarantees no rate",
        json="fairness.invariant_holds",
        show="bound",
        prometheus="guarantee_holds",
    ),
    RunMeasure(
        key="queue_total",
        name="virtual queues: sum",
        meaning="Sum of the virtual queues over devices after the newest closed round",
        source=_queue("queue_total"),
        format=TWO_DIGITS,
        why_none="the policy has no virtual queues",
        json="queues.total",
        show="fairness",
        report="Guarantee",
        room=Tile(
            label="QUEUES ΣZ",
            help="Sum of the virtual queues over devices after the newest closed round: what the "
            "fleet lacks for its guarantee.",
            priority=10,
        ),
        prometheus="virtual_queues",
    ),
    RunMeasure(
        key="queue_largest",
        name="virtual queues: largest",
        meaning="Largest virtual queue of a device after the newest closed round",
        source=_queue("queue_max"),
        format=TWO_DIGITS,
        why_none="the policy has no virtual queues",
        json="queues.largest",
        show="fairness",
        report="Guarantee",
        prometheus="virtual_queue_largest",
    ),
    RunMeasure(
        key="round_queue_sum",
        name="queues: sum",
        meaning="Sum of the virtual queues over devices after a round, 0 without queues",
        source=Round("queue_total"),
        format=TWO_DIGITS,
        tensorboard="queues/sum",
    ),
    RunMeasure(
        key="round_queue_largest",
        name="queues: largest",
        meaning="Largest virtual queue of a device after a round, 0 without queues",
        source=Round("queue_max"),
        format=TWO_DIGITS,
        tensorboard="queues/largest",
    ),
    RunMeasure(
        key="queue_mean_total",
        name="virtual queues: mean sum",
        meaning="Mean over all rounds of the sum of the virtual queues; in comparisons, for a "
        "policy without queues, of those that RBCS-F would have",
        source=_mean_queue_sum,
        format=TWO_DIGITS,
        why_none=NO_QUEUES,
        json="queues.mean_total",
        show="fairness",
        compare=Compared(
            group="selection", short="mean sum Z", better="less", kind=QUEUE, digits=1
        ),
    ),
    RunMeasure(
        key="queue_max",
        name="virtual queues: max",
        meaning="Largest virtual queue of a device after any round of the run; in comparisons as "
        "the mean sum",
        source=_largest_queue,
        format=TWO_DIGITS,
        why_none=NO_QUEUES,
        json="queues.max",
        show="fairness",
        compare=Compared(group="selection", short="max Z", better="less", kind=QUEUE, digits=2),
    ),
    RunMeasure(
        key="round_available",
        name="available devices",
        meaning="Devices that were available at the newest selection",
        source=Round("available"),
        format=WHOLE,
        prometheus="round_available_devices",
        tensorboard="devices/available",
    ),
    RunMeasure(
        key="round_selected",
        name="selected devices",
        meaning="Devices that were selected for the newest closed round",
        source=Round("selected"),
        format=WHOLE,
        prometheus="round_selected_devices",
        tensorboard="devices/selected",
    ),
    RunMeasure(
        key="round_aggregated",
        name="aggregated updates",
        meaning="Updates that were aggregated in the newest closed round",
        source=Round("aggregated"),
        format=WHOLE,
        prometheus="round_aggregated_devices",
        tensorboard="devices/aggregated",
    ),
)
"""Selection: rates, queues and cohorts."""

PREDICTION = (
    RunMeasure(
        key="mape",
        name="mean error of predictions",
        meaning="Mean of |predicted - measured| / measured, second half of the rounds",
        source=Summary("estimator.mape_second_half"),
        format=PERCENT,
        why_none="too few timed exchanges with a prediction",
        json="estimator.mape_second_half",
        show="prediction",
        report="Speed",
        compare=Compared(
            has_table=True,
            group="prediction",
            short="mean err",
            better="less",
            kind=PREDICTION_ERROR,
        ),
    ),
    RunMeasure(
        key="median_ape",
        name="median error of predictions",
        meaning="Median of the same errors, second half of the rounds",
        source=Summary("estimator.median_ape"),
        format=PERCENT,
        why_none="too few timed exchanges with a prediction",
        json="estimator.median_ape",
        show="prediction",
        report="Speed",
        compare=Compared(group="prediction", short="med err", better="less", kind=PREDICTION_ERROR),
    ),
    RunMeasure(
        key="prediction_bias",
        name="bias of predictions",
        meaning="Mean of (predicted - measured) / measured; positive if predictions are too long, "
        "second half of the rounds",
        source=Summary("estimator.bias"),
        format=SIGNED_PERCENT,
        why_none="too few timed exchanges with a prediction",
        json="estimator.bias",
        show="prediction",
        report="Speed",
    ),
)
"""Predictions of exchange times."""

RUN: tuple[RunMeasure, ...] = (
    *TIMES,
    *EXCHANGES,
    *SELECTION,
    *PREDICTION,
    *MODEL,
    *AGGREGATION,
    *PERSONAL,
    *SERVED,
    *ATTACK,
    *PRIVACY,
)
"""All of them; a comparison has them in this order."""
