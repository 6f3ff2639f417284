"""The catalogue of the numbers of each device of a run."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fairbed.coordinator.report.measures.entry import (
    FOUR_DIGITS,
    JOULES,
    SECONDS,
    TWO_DIGITS,
    WHOLE,
    DeviceMeasure,
    FleetColumnOf,
    Format,
    PageColumnOf,
    TextColumnOf,
)
from fairbed.coordinator.report.quantities import LEAST, MISSING, bandwidth

if TYPE_CHECKING:
    from fairbed.coordinator.report.summary_schema import RunSummary

NOTABLE_DIVERGENCE = 1e-6
"""Smallest divergence of the weights from the shares of examples that is shown, nats."""

NEEDS = f"it needs {LEAST} timed exchanges, and half of all"
HELD_OUT = "on the held-out examples of the device"

DEGREES = Format(lambda value: MISSING if value is None else f"{value:.0f}")
BITS = Format(bandwidth, True)


def _of_any(key: str) -> "Callable[[RunSummary], bool]":
    """Return whether a device of a run has a number."""
    return lambda s: any(getattr(device, key) is not None for device in s.fleet)


def _has_exchanges(s: "RunSummary") -> bool:
    return s.exchange.count > 0


def _has_training_times(s: "RunSummary") -> bool:
    return any(device.samples["train_s_median"].n for device in s.fleet)


def _differs_from_selection(s: "RunSummary") -> bool:
    return any(device.aggregation_rate != device.selection_rate for device in s.fleet)


DEVICE: tuple[DeviceMeasure, ...] = (
    DeviceMeasure(
        key="mu_cores",
        name="free cores",
        meaning="Cores that training can use: free cores times clock / nominal clock, as reported",
        format=TWO_DIGITS,
        in_json=False,
        room=FleetColumnOf(
            key="mu", heading="µ", wide_heading="µ cores", letter="m", priority=6, min_width=4
        ),
    ),
    DeviceMeasure(
        key="clock_ratio",
        name="clock",
        meaning="Clock of the processor under load / nominal clock",
        format=TWO_DIGITS,
        in_json=False,
        room=FleetColumnOf(
            key="clock",
            heading="clock",
            wide_heading="clock",
            letter="c",
            priority=12,
            more="; ! while it is throttled",
        ),
    ),
    DeviceMeasure(
        key="temperature_celsius",
        name="temperature",
        meaning="Temperature of the processor, degrees Celsius",
        unit="°C",
        format=DEGREES,
        in_json=False,
        room=FleetColumnOf(
            key="temp",
            heading="°C",
            wide_heading="temp. °C",
            letter="h",
            priority=12,
            min_width=3,
            is_largest_first=True,
        ),
        prometheus="temperature_celsius",
    ),
    DeviceMeasure(
        key="downlink_bps",
        name="downlink",
        meaning="Rate of the downlink, bit/s: estimated by the device from its transfers",
        unit="bit/s",
        format=BITS,
        in_json=False,
        room=FleetColumnOf(
            key="down", heading="B↓", wide_heading="down bit/s", letter="d", priority=7, min_width=4
        ),
    ),
    DeviceMeasure(
        key="uplink_bps",
        name="uplink",
        meaning="Rate of the uplink, bit/s: estimated by the device from its transfers",
        unit="bit/s",
        format=BITS,
        in_json=False,
        room=FleetColumnOf(
            key="up", heading="B↑", wide_heading="up bit/s", letter="u", priority=7, min_width=4
        ),
    ),
    DeviceMeasure(
        key="rss_bytes",
        name="memory of the agent",
        meaning="Resident memory of its agent",
        unit="byte",
        in_json=False,
        prometheus="agent_resident_memory_bytes",
    ),
    DeviceMeasure(
        key="is_available",
        name="available",
        meaning="1 if it was available at the newest selection",
        format=WHOLE,
        in_json=False,
        prometheus="available",
    ),
    DeviceMeasure(
        key="tau_hat_s",
        name="predicted exchange",
        meaning="Exchange time that was predicted at the last selection, seconds",
        unit="s",
        format=SECONDS,
        in_json=False,
        room=FleetColumnOf(
            key="pred",
            heading="pred s",
            wide_heading="predicted s",
            letter="e",
            priority=2,
            min_width=6,
            is_largest_first=True,
        ),
    ),
    DeviceMeasure(
        key="tau_s",
        name="newest exchange",
        meaning="Newest measured exchange time, seconds: download, training and upload, without "
        "the wait for an upload grant",
        unit="s",
        format=SECONDS,
        in_json=False,
        room=FleetColumnOf(
            key="tau",
            heading="τ s",
            wide_heading="measured s",
            letter="t",
            priority=1,
            is_largest_first=True,
        ),
        prometheus="exchange_seconds",
    ),
    DeviceMeasure(
        key="n_k",
        name="training examples",
        meaning="Training examples",
        format=WHOLE,
        report=PageColumnOf(heading="examples"),
    ),
    DeviceMeasure(
        key="selected",
        name="selected",
        meaning="Rounds in which the device was selected",
        format=WHOLE,
        show=TextColumnOf(heading="selected", priority=6),
        report=PageColumnOf(heading="selected"),
        room=FleetColumnOf(
            key="selected",
            heading="sel",
            wide_heading="selected",
            letter="x",
            priority=3,
            min_width=3,
            format=Format(str),
        ),
    ),
    DeviceMeasure(
        key="selection_rate",
        name="selection rate",
        meaning="Selections / rounds since the device joined",
        show=TextColumnOf(heading="sel rate", priority=0),
        report=PageColumnOf(heading="sel rate", has_bar=True),
        room=FleetColumnOf(
            key="rate",
            heading="rate",
            wide_heading="rate",
            letter="r",
            priority=3,
            more=". ≥ in the heading is the guaranteed rate (beta); ! marks a rate below it",
            format=TWO_DIGITS,
        ),
    ),
    DeviceMeasure(
        key="aggregation_rate",
        name="aggregation rate",
        meaning="Aggregated updates / rounds since the device joined",
        show=TextColumnOf(heading="agg rate", priority=5),
        report=PageColumnOf(heading="agg rate", has_bar=True, is_known=_differs_from_selection),
        room=FleetColumnOf(
            key="aggregated",
            heading="agg",
            wide_heading="aggregated",
            letter="g",
            priority=9,
            more="; lower than the selection rate if updates are late or fail. ! marks a rate "
            "below the guarantee",
            format=TWO_DIGITS,
        ),
    ),
    DeviceMeasure(
        key="queue",
        name="virtual queue",
        meaning="Virtual queue of RBCS-F: the deficit of selections",
        format=TWO_DIGITS,
        show=TextColumnOf(heading="queue Z", priority=4),
        report=PageColumnOf(heading="queue Z", is_known=lambda s: s.fairness.beta is not None),
        room=FleetColumnOf(
            key="queue",
            heading="Z",
            wide_heading="queue Z",
            letter="z",
            priority=4,
            min_width=4,
            is_largest_first=True,
            more=". It grows by beta in each round and falls by 1 when the device is selected",
        ),
        prometheus="virtual_queue",
    ),
    DeviceMeasure(
        key="loss",
        name="loss",
        meaning="Loss of the global model on the held-out examples of the device, nats",
        format=TWO_DIGITS,
        room=FleetColumnOf(
            key="loss",
            heading="loss",
            wide_heading="loss",
            letter="l",
            priority=5,
            min_width=4,
            is_largest_first=True,
        ),
        prometheus="loss",
    ),
    DeviceMeasure(
        key="tau_s_median",
        name="median exchange",
        meaning=f"Median exchange time; {NEEDS}",
        unit="s",
        format=SECONDS,
        show=TextColumnOf(heading="median s", priority=0),
        report=PageColumnOf(heading="median s", has_bar=True, is_known=_has_exchanges),
    ),
    DeviceMeasure(
        key="train_s_median",
        name="median training",
        meaning=f"Median time of local training; {NEEDS}",
        unit="s",
        format=SECONDS,
        show=TextColumnOf(heading="train s", priority=7),
        report=PageColumnOf(heading="train s", is_known=_has_training_times),
    ),
    DeviceMeasure(
        key="accuracy",
        name="accuracy",
        meaning=f"Accuracy of the global model {HELD_OUT}",
        show=TextColumnOf(
            heading="accuracy", priority=0, is_known=lambda s: s.task != "regression"
        ),
        report=PageColumnOf(heading="accuracy", has_bar=True, is_known=_of_any("accuracy")),
        room=FleetColumnOf(
            key="accuracy", heading="acc", wide_heading="accuracy", letter="a", priority=1
        ),
        prometheus="accuracy_ratio",
    ),
    DeviceMeasure(
        key="auroc",
        name="AUROC",
        meaning=f"Area under the ROC curve of the global model {HELD_OUT}",
        show=TextColumnOf(heading="AUROC", priority=2, is_known=lambda s: s.auroc is not None),
        report=PageColumnOf(heading="AUROC", has_bar=True, is_known=_of_any("auroc")),
        room=FleetColumnOf(
            key="auroc", heading="AUROC", wide_heading="AUROC", letter="f", priority=2
        ),
    ),
    DeviceMeasure(
        key="metric",
        name="metric",
        meaning=f"Metric that evaluation.worst names, of the global model {HELD_OUT}",
        format=FOUR_DIGITS,
        show=TextColumnOf(
            heading="metric", priority=1, is_known=lambda s: s.worst_metric is not None
        ),
        report=PageColumnOf(heading="metric", is_known=_of_any("metric")),
    ),
    DeviceMeasure(
        key="rmse",
        name="RMSE",
        meaning=f"Root mean squared error of the global model {HELD_OUT}",
        show=TextColumnOf(heading="RMSE", priority=0, is_known=lambda s: s.task == "regression"),
        report=PageColumnOf(heading="RMSE", is_known=_of_any("rmse")),
        room=FleetColumnOf(
            key="rmse",
            heading="RMSE",
            wide_heading="RMSE",
            letter="E",
            priority=1,
            is_largest_first=True,
        ),
    ),
    DeviceMeasure(
        key="mae",
        name="mean absolute error",
        meaning=f"Mean absolute error of the global model {HELD_OUT}",
    ),
    DeviceMeasure(
        key="personal_quality",
        name="personal model",
        meaning="Accuracy of its personal model, or its RMSE",
        in_json=False,
        report=PageColumnOf(heading="personal", is_known=lambda s: s.personal is not None),
    ),
    DeviceMeasure(
        key="weight_ratio",
        name="weight ratio",
        meaning="Weight in merges / share of the examples there",
        format=TWO_DIGITS,
        report=PageColumnOf(
            heading="weight",
            is_known=lambda s: (s.weights.divergence or 0.0) >= NOTABLE_DIVERGENCE,
        ),
    ),
    DeviceMeasure(
        key="energy_j",
        name="energy",
        meaning="Sum over its exchanges with a known energy, idle power included",
        unit="J",
        format=JOULES,
        show=TextColumnOf(heading="energy", priority=3, is_known=lambda s: s.energy is not None),
        report=PageColumnOf(heading="energy", is_known=lambda s: s.energy is not None),
        room=FleetColumnOf(
            key="energy",
            heading="energy",
            wide_heading="energy",
            letter="j",
            priority=6,
            min_width=6,
            is_largest_first=True,
        ),
    ),
    DeviceMeasure(
        key="epsilon",
        name="epsilon",
        meaning="epsilon of the updates with local noise that left it",
        format=TWO_DIGITS,
        report=PageColumnOf(heading="epsilon", is_known=lambda s: s.privacy is not None),
    ),
)
"""All of them; the tables of devices have them in this order."""
