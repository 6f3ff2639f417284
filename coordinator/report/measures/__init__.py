"""The catalogue of measures: the numbers of a run and of its devices, each declared once.

An entry has the name, the unit, the meaning, the source and the format of a number, and the views
that show it. The summary and its JSON, the tables, the HTML report, comparisons, the control room,
Prometheus, TensorBoard and docs/measures.md follow from it. `added` adds entries of others.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fairbed.coordinator.report.measures import columns as of_columns
from fairbed.coordinator.report.measures import device as of_device
from fairbed.coordinator.report.measures import run as of_run
from fairbed.coordinator.report.measures.entry import (
    UNKNOWN,
    DeviceMeasure,
    Number,
    RunMeasure,
    View,
    number_at,
)

if TYPE_CHECKING:
    from fairbed.coordinator.report.facts import RunFacts
    from fairbed.coordinator.report.summary_schema import RunSummary

_RUN = {measure.key: measure for measure in (*of_run.RUN, *of_columns.COLUMNS)}
_DEVICE = {measure.key: measure for measure in of_device.DEVICE}
_more_of_runs: tuple[RunMeasure, ...] = ()
_more_of_devices: tuple[DeviceMeasure, ...] = ()


def run_measures() -> tuple[RunMeasure, ...]:
    """Return all measures of runs."""
    return (*_RUN.values(), *_more_of_runs)


def device_measures() -> tuple[DeviceMeasure, ...]:
    """Return all measures of devices."""
    return (*of_device.DEVICE, *_more_of_devices)


def run_measure(key: str) -> RunMeasure:
    """Return a measure of runs.

    Raises:
        KeyError: There is none of this key.
    """
    return _RUN.get(key) or {measure.key: measure for measure in _more_of_runs}[key]


def device_measure(key: str) -> DeviceMeasure:
    """Return a measure of devices.

    Raises:
        KeyError: There is none of this key.
    """
    return _DEVICE.get(key) or {measure.key: measure for measure in _more_of_devices}[key]


def text_of(summary: "RunSummary", key: str) -> str:
    """Return the text of a number of a summary, without a unit that is not part of it.

    Raises:
        KeyError: There is no measure of this key.
    """
    measure = run_measure(key)
    return measure.text(number_at(summary, measure.json).value)


def stated(summary: "RunSummary", measure: RunMeasure) -> str:
    """Return a number of a summary with its unit and the exchanges behind it, or why not."""
    return measure.stated(number_at(summary, measure.json))


def own_of(summary: "RunSummary") -> list[RunMeasure]:
    """Return the measures that a summary has to state, but has no field for."""
    found = summary.measures or {}
    return [
        m
        for m in run_measures()
        if m.is_own and m.key in found and m.applies(summary) and m.states(found[m.key])
    ]


@contextmanager
def added(*measures: RunMeasure | DeviceMeasure) -> Iterator[None]:
    """Have more entries in the catalogue until the context ends.

    Raises:
        ValueError: A key is taken, or an entry has no source.
    """
    global _more_of_runs, _more_of_devices
    before = _more_of_runs, _more_of_devices
    of_runs = tuple(x for x in measures if isinstance(x, RunMeasure))
    of_devices = tuple(x for x in measures if isinstance(x, DeviceMeasure))
    taken = {m.key for m in run_measures()} & {m.key for m in of_runs}
    taken |= {m.key for m in device_measures()} & {m.key for m in of_devices}
    if taken:
        raise ValueError(f"measures: each key must be new, got {', '.join(sorted(taken))}")
    if lacking := [m.key for m in of_devices if m.source is None]:
        raise ValueError(f"measures: a measure of devices needs a source, got none: {lacking[0]}")
    _more_of_runs += of_runs
    _more_of_devices += of_devices
    try:
        yield
    finally:
        _more_of_runs, _more_of_devices = before


def own_numbers(facts: "RunFacts", view: View = "json") -> dict[str, Number]:
    """Return the numbers of a run that have no field in `RunSummary`, by key.

    Args:
        facts: Of the run.
        view: Those that this view has.
    """
    return {m.key: m.of(facts) for m in run_measures() if m.is_own and view in m.views}


def own_numbers_of_devices(
    facts: "RunFacts", view: View = "json"
) -> dict[str, Mapping[str, Number]]:
    """Return the numbers of devices that have no field in `DeviceSummary`, by key and device.

    Args:
        facts: Of the run.
        view: Those that this view has.
    """
    return {m.key: m.of(facts) for m in device_measures() if m.is_own and view in m.views}


def numbers_of(device: str, numbers: Mapping[str, Mapping[str, Number]]) -> dict[str, Number]:
    """Return the numbers of one device by key.

    Args:
        device: Its name.
        numbers: Of `own_numbers_of_devices`.
    """
    return {key: found.get(device, UNKNOWN) for key, found in numbers.items()}
