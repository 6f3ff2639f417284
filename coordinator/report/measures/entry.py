"""What an entry of the catalogue of measures has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from msgspec import UNSET, Struct

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.report.measures.scales import MetricKind
from fairbed.coordinator.report.quantities import (
    MISSING,
    SampleCount,
    cell,
    energy,
    known_energy,
    of_enough,
    percent,
    ratio,
    seconds,
    size,
)

if TYPE_CHECKING:
    from fairbed.coordinator.report.facts import RunFacts
    from fairbed.coordinator.report.summary_schema import RunSummary

View: TypeAlias = Literal["show", "json", "report", "compare", "room", "prometheus", "tensorboard"]
OWN = "measures."
"""Begins the place in the JSON of a measure that has no field in `RunSummary`."""
NOT_RECORDED = "it was not recorded"

Group: TypeAlias = Literal[
    "time",
    "exchange",
    "selection",
    "prediction",
    "accuracy",
    "quality",
    "fairness",
    "personal",
    "served",
    "attack",
    "privacy",
]


class Number(Struct, frozen=True):
    """A number of a run or of a device, with what it is of."""

    value: float | None
    sample: SampleCount | None = None
    """The exchanges behind it; null if it is not of exchanges."""
    why_none: str = ""
    """Why there is no value; empty if there is one."""


UNKNOWN = Number(None, None, NOT_RECORDED)
"""Of a device for which a source has no number."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a number is written."""

    text: Callable[[float | None], str]
    has_unit: bool = False
    """The text has the unit, with a prefix: `4.8 kJ`."""
    of_sample: Callable[[float | None, SampleCount], str] | None = None
    """Text in a table, with the exchanges behind it; None: without them, or why there is none."""


def whole(value: float | None) -> str:
    """Return the text of a count: `1,204`."""
    return MISSING if value is None else f"{value:,.0f}"


RATIO, TWO_DIGITS, FOUR_DIGITS = (
    Format(ratio),
    Format(lambda value: ratio(value, 2)),
    Format(lambda value: ratio(value, 4)),
)
SECONDS, WHOLE = Format(seconds), Format(whole)
JOULES, BYTES = Format(energy, True, known_energy), Format(size, True)
PERCENT = Format(percent, True)
SIGNED_PERCENT = Format(lambda value: percent(value, is_signed=True), True)

Value: TypeAlias = "Number | float | None"
RunSource: TypeAlias = Callable[["RunFacts"], Value]
DeviceSource: TypeAlias = Callable[["RunFacts"], Mapping[str, Value]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A column of the newest evaluation of the model; a curve has it of each."""

    column: str

    def __call__(self, facts: "RunFacts") -> Value:
        """Return the number of a run."""
        return None if facts.metric is None else self.of_row(facts.metric)

    def of_row(self, row: Any) -> float | None:
        """Return the number of one evaluation."""
        value: float | None = getattr(row, self.column)
        return value


@dataclass(frozen=True, slots=True)
class Round:
    """A column of the newest closed round; a curve has it of each."""

    column: str

    def __call__(self, facts: "RunFacts") -> Value:
        """Return the number of a run."""
        return None if facts.newest is None else self.of_row(facts.newest)

    def of_row(self, row: Any) -> float | None:
        """Return the number of one round."""
        value: float | None = getattr(row, self.column)
        return value


@dataclass(frozen=True, slots=True)
class Summary:
    """A number of the summary, where a reader has one."""

    of: "str | Callable[[RunSummary], float | None]"
    """Its place, as in `exchange.median_s`, or how it follows."""

    def __call__(self, facts: "RunFacts") -> Value:
        """Return the number of a run.

        Raises:
            ValueError: The reader has no summary.
        """
        if facts.summary is None:
            raise ValueError(f"a number of the summary needs one, got none: {self.of}")
        return (
            number_at(facts.summary, self.of)
            if isinstance(self.of, str)
            else self.of(facts.summary)
        )


Statistic: TypeAlias = Literal["median", "p95", "p99", "mean", "sum"]
_PERCENTILES: Mapping[str, float] = {"median": 50.0, "p95": 95.0, "p99": 99.0}


@dataclass(frozen=True, slots=True)
class Exchanges:
    """A statistic of a column of the exchanges, of a run or of each device.

    A percentile or mean needs 5 exchanges with a value, and half of all; a sum needs half. A remote
    view that has the newest exchanges only has none.
    """

    column: str
    """A number in the table `exchange` of the store."""
    statistic: Statistic
    of: Literal["timed", "all"] = "timed"
    """`timed`: done, with a time that is valid."""

    def __call__(self, facts: "RunFacts") -> Number:
        """Return the number of a run."""
        if facts.info.oldest_round > 1:
            return Number(None, None, "a remote view has the newest exchanges only")
        return self._of(self._values(facts))

    def of_devices(self, facts: "RunFacts") -> Mapping[str, Number]:
        """Return the number of each device that has an exchange, by name."""
        if facts.info.oldest_round > 1:
            return {}
        values = self._values(facts)
        return {name: self._of(values[rows]) for name, rows in facts.exchanges.by_device().items()}

    def _values(self, facts: "RunFacts") -> Floats:
        table = facts.exchanges
        return table.timed(self.column) if self.of == "timed" else table.numbers[self.column]

    def _of(self, values: Floats) -> Number:
        known = values[np.isfinite(values)]
        sample = SampleCount(len(known), len(values))
        if self.statistic == "sum":
            why = sample.why_no_total or ("" if len(known) else "none is known")
            return Number(None if why else float(known.sum()), sample, why)
        if not len(known):
            return Number(None, sample, sample.why_none or "none is known")
        found = (
            known.mean()
            if self.statistic == "mean"
            else np.percentile(known, _PERCENTILES[self.statistic])
        )
        return Number(of_enough(float(found), sample), sample, sample.why_none)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """How `fairbed compare` treats a measure of a run."""

    group: Group
    short: str
    """Heading in tables of all measures."""
    better: Literal["less", "more"] | None
    """None: it describes the arm, and differences are not tested."""
    kind: MetricKind
    """Range, scale and resolution."""
    digits: int = 3
    """Digits after the decimal point."""
    heading: str = ""
    """Empty: the name of the measure."""
    is_tested: bool = True
    """False: differences are tested where the grid declares the measure, and else only shown."""
    has_table: bool = False
    """It has a table of its own, with intervals, whether it is primary or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A measure in the header of the control room."""

    label: str
    help: str = ""
    """Empty: the meaning of the measure."""
    priority: int = 13
    """0 is the most important; others are left out first on narrow screens."""


def always(_summary: "RunSummary") -> bool:
    """Every run has it."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeasure:
    """A number of a run, or of its newest round or evaluation; a view has it if it is named.

    A measure whose place in the JSON begins with `measures.` has no field in `RunSummary`: all its
    views follow from the entry alone. The sentences of `fairbed show` and of the report have words
    for the others, and take the text of the number from here.
    """

    key: str
    """In `compare.json`, CSV, grid files and `RunSummary.measures`."""
    name: str
    """The words before the number, wherever it is printed."""
    meaning: str
    """Which statistic it is, and over what; without a full stop."""
    source: RunSource
    unit: str = ""
    """Empty for a ratio or a count."""
    format: Format = RATIO
    why_none: "str | Callable[[RunSummary], str]" = NOT_RECORDED
    """Why a run lacks it; without numbers of the run, so that equal causes have equal texts."""
    json: str = ""
    """Its place in `fairbed show --json`; empty: it is not there."""
    show: str = ""
    """Label of its line of `fairbed show`."""
    report: str = ""
    """Its label in the HTML report, or the topic of the sentence that has it."""
    room: Tile | None = None
    """Its tile in the control room."""
    compare: Compared | None = None
    prometheus: str = ""
    """Name of its gauge, after `fairbed_`."""
    tensorboard: str = ""
    """Tag of its curve; the source is a column of rounds or of evaluations."""
    applies: "Callable[[RunSummary], bool]" = always
    """Whether `fairbed show` and the report state it, by the run; for an own measure."""
    states_zero: bool = True
    """False: `fairbed show` and the report leave it out where it is 0, or nothing has a value."""

    def __post_init__(self) -> None:
        """Check that the source is there where a view reads it.

        Raises:
            ValueError: A view cannot read the source.
        """
        if isinstance(self.source, Summary) and (self.prometheus or self.is_own):
            raise ValueError(f"{self.key}: the source must read the store, got {self.source}")
        if self.tensorboard and not isinstance(self.source, Round | Evaluation):
            raise ValueError(f"{self.key}: a curve needs a column of rounds or evaluations")
        if self.is_own and self.json != f"{OWN}{self.key}":
            raise ValueError(f"{self.key}: json must be {OWN}{self.key}, got {self.json}")

    @property
    def is_own(self) -> bool:
        """It has no field in `RunSummary`."""
        return self.json.startswith(OWN)

    @property
    def views(self) -> tuple[View, ...]:
        """The views that have it."""
        named: Mapping[View, object] = {
            "show": self.show,
            "json": self.json,
            "report": self.report,
            "compare": self.compare,
            "room": self.room,
            "prometheus": self.prometheus,
            "tensorboard": self.tensorboard,
        }
        return tuple(view for view, place in named.items() if place)

    def of(self, facts: "RunFacts") -> Number:
        """Return the number of a run."""
        return as_number(self.source(facts))

    def states(self, number: Number) -> bool:
        """Return whether `fairbed show` and the report state a number."""
        has_values = number.sample is None or number.sample.n > 0
        return self.states_zero or (number.value != 0.0 and has_values)

    def text(self, value: float | None) -> str:
        """Return a value without a unit that stands in a heading."""
        return self.format.text(value)

    def with_unit(self, value: float | None) -> str:
        """Return a value and its unit."""
        has_gap = self.unit and not self.format.has_unit and value is not None
        return f"{self.text(value)} {self.unit}" if has_gap else self.text(value)

    def stated(self, number: Number) -> str:
        """Return a number with its unit and the exchanges behind it, or why there is none."""
        return stated(number, self.with_unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextColumnOf:
    """A measure in the table of devices of `fairbed show`."""

    heading: str
    priority: int = 10
    """Columns that do not fit are left out, the highest number first; never those with 0."""
    is_known: "Callable[[RunSummary], bool]" = always
    """Whether a run has the column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageColumnOf:
    """A measure in the table of devices of the HTML report."""

    heading: str
    has_bar: bool = False
    """A bar behind the text: its length is a ratio, or the value / the largest of the fleet."""
    is_known: "Callable[[RunSummary], bool]" = always
    """Whether a run has the column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetColumnOf:
    """A measure in the fleet of the control room."""

    key: str
    """In filters and in the file of preferences."""
    heading: str
    wide_heading: str
    """On wide screens."""
    letter: str = ""
    """Key in the list of columns to sort by; empty: one that is free."""
    priority: int = 11
    """0 is the most important: columns that do not fit are left out from the last one on."""
    min_width: int = 5
    """Width of usual values, so that columns seldom move."""
    is_largest_first: bool = False
    """What deserves attention first is large: a time, a queue, a temperature."""
    more: str = ""
    """What the column shows beside the number, after its meaning and without a full stop."""
    format: Format | None = None
    """None: that of the measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMeasure:
    """A number of each device of a run; a view has it if it is named."""

    key: str
    """Key of a device in `fairbed show --json`: a field of `DeviceSummary`, or in its `measures`;
    also the attribute of a device in the control room and in the exporter."""
    name: str
    """The words before the number, wherever it is printed."""
    meaning: str
    """Which statistic it is; without a full stop."""
    unit: str = ""
    format: Format = RATIO
    source: DeviceSource | None = None
    """Its values by name of the device, for one without an attribute; None: the attribute."""
    in_json: bool = True
    show: TextColumnOf | None = None
    report: PageColumnOf | None = None
    room: FleetColumnOf | None = None
    prometheus: str = ""
    """Name of its gauge, after `fairbed_device_`."""

    def __post_init__(self) -> None:
        """Check that a measure with a source is in the JSON, where its readers find it.

        Raises:
            ValueError: It is not.
        """
        if self.is_own and not self.in_json:
            raise ValueError(f"{self.key}: a measure with a source must be in the JSON")

    @property
    def is_own(self) -> bool:
        """It has no field in `DeviceSummary`."""
        return self.source is not None

    @property
    def views(self) -> tuple[View, ...]:
        """The views that have it."""
        named: Mapping[View, object] = {
            "show": self.show,
            "json": self.in_json,
            "report": self.report,
            "room": self.room,
            "prometheus": self.prometheus,
        }
        return tuple(view for view, place in named.items() if place)

    def of(self, facts: "RunFacts") -> Mapping[str, Number]:
        """Return its numbers by device; empty unless it has a source."""
        found = {} if self.source is None else self.source(facts)
        return {name: as_number(value) for name, value in found.items()}

    def value(self, device: Any) -> float | None:
        """Return it of a device of the summary, the control room or the exporter."""
        found: float | None = (
            self.number(device).value if self.is_own else getattr(device, self.key)
        )
        return found

    def number(self, device: Any) -> Number:
        """Return it of a device, with the exchanges behind it where the device has their count."""
        if self.is_own:
            found: Number = (device.measures or {}).get(self.key, UNKNOWN)
            return found
        samples: Mapping[str, SampleCount] = getattr(device, "samples", {})
        return Number(getattr(device, self.key), samples.get(self.key))

    def text(self, value: float | None) -> str:
        """Return a value without a unit that stands in a heading."""
        return self.format.text(value)

    def cell(self, device: Any) -> str:
        """Return its text in a table of devices: the number, or why there is none."""
        number = self.number(device)
        if number.sample is None:
            return self.text(number.value)
        if self.format.of_sample is not None:
            return self.format.of_sample(number.value, number.sample)
        return cell(self.text(number.value), number.value, number.sample)


def as_number(value: Value) -> Number:
    """Return what a source gave as a number."""
    return value if isinstance(value, Number) else Number(value)


def stated(number: Number, text: Callable[[float | None], str]) -> str:
    """Return a number and the exchanges behind it, or why there is none."""
    if number.value is None:
        why = number.why_none or NOT_RECORDED
        return f"unknown ({why})" if number.sample is None else f"none ({number.sample}, {why})"
    of = "" if number.sample is None else f" ({number.sample})"
    return f"{text(number.value)}{of}"


def number_at(summary: "RunSummary", place: str) -> Number:
    """Return the number of a summary at a place such as `exchange.median_s`.

    A part that is null makes it null.
    """
    *parents, last = place.split(".")
    part: Any = reduce(_part, parents, summary)
    value = None if part is None else _part(part, last)
    if isinstance(value, Number):
        return value
    samples: Mapping[str, SampleCount] = getattr(part, "samples", {})
    sample = samples.get(last)
    return Number(value, sample, sample.why_none if sample and value is None else "")


def _part(whole: Any, name: str) -> Any:
    if whole is None or whole is UNSET:
        return None
    return whole.get(name) if isinstance(whole, Mapping) else getattr(whole, name)
