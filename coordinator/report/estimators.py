"""Prequential errors of all estimators on the exchanges of a run, in their order."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats
from fairbed.coordinator.algorithms.estimation.base import CONTEXT, DOWN, UP, Learner, Measured
from fairbed.coordinator.algorithms.estimation.baselines import DeviceMean, GlobalMean, LastValue
from fairbed.coordinator.algorithms.estimation.mixture import MixtureEstimator
from fairbed.coordinator.algorithms.estimation.phases import PhaseEstimator
from fairbed.coordinator.algorithms.estimation.prequential import (
    AllDevices,
    Errors,
    EstimatorTrial,
    prequential,
)
from fairbed.coordinator.algorithms.estimation.ridge import RidgeEstimator
from fairbed.coordinator.policy.config import SelectionConfig
from fairbed.coordinator.report.quantities import LEAST, MISSING, SampleCount, of_enough, percent
from fairbed.coordinator.state.registry import LINK_BOUNDS_BPS
from fairbed.coordinator.store.reader import PlannedSelection, RunReader
from fairbed.coordinator.store.tables import ExchangeRow, FleetContextRow
from fairbed.wire.messages import COMPUTE_PHASES

_DEFAULT = SelectionConfig()


def compare_estimators(
    reader: RunReader, counted_after: float = 0.0, others: Mapping[str, Learner] | None = None
) -> dict[str, Errors]:
    """Return the prequential errors of all estimators on the exchanges of a run, by name.

    `ridge` and `phases` have the settings of the run. All learn from the same exchanges: the valid
    ones of the devices that the run selected. Errors are those on these exchanges, on the audit
    sample among them, and on all devices if their true expected times are known.

    Args:
        reader: Reader of the run.
        counted_after: Only errors of later rounds count.
        others: Further estimators with empty state, by name.

    Raises:
        PluginError: One of them is a plug-in and breaks the contract.
    """
    settings = reader.run().plan.selection
    rows = {device.name: device.row for device in reader.devices()}
    trials = trials_of(
        reader.exchanges(),
        rows,
        settings,
        counted_after,
        {fleet.round: _all_devices(fleet) for fleet in reader.fleet_contexts()},
        reader.audits(),
    )
    return prequential({**built_in_learners(settings), **(others or {})}, trials)


def stated(found: Mapping[str, Errors], reader: RunReader) -> dict[str, Errors]:
    """Return errors without the numbers that are of too few exchanges.

    Args:
        found: Errors by name, on the exchanges of a run.
        reader: Reader of the run, which has all exchanges.
    """
    every, audits = reader.row_count(ExchangeRow), len(reader.audits())
    return {
        name: replace(
            _stated(errors, every),
            audit=None if errors.audit is None else _stated(errors.audit, audits),
            all_devices=errors.all_devices
            and _stated(errors.all_devices, errors.all_devices.count),
        )
        for name, errors in found.items()
    }


def _stated(errors: Errors, of: int) -> Errors:
    sample, bounded = SampleCount(errors.count, of), SampleCount(errors.bounded, of)
    has_numbers = not sample.why_none
    return replace(
        errors,
        of=of,
        mape=of_enough(errors.mape, sample),
        median_ape=of_enough(errors.median_ape, sample),
        p95_ape=of_enough(errors.p95_ape, sample),
        bias=of_enough(errors.bias, sample),
        coverage=of_enough(errors.coverage, bounded),
        interval=of_enough(errors.interval, bounded),
        median_ape_from={
            known: median
            for known, median in errors.median_ape_from.items()
            if has_numbers and errors.count_from[known] >= LEAST
        },
    )


def built_in_learners(settings: PlannedSelection) -> dict[str, Learner]:
    """Return the estimators that each comparison has, with empty state, by name."""
    prior = settings.ridge_lambda or _DEFAULT.ridge_lambda, settings.discount or _DEFAULT.discount
    return {
        "ridge": RidgeEstimator(*prior),
        "phases": PhaseEstimator(*prior),
        "mixture": MixtureEstimator(*prior),
        "last value": LastValue(),
        "device mean": DeviceMean(),
        "global mean": GlobalMean(),
    }


def _all_devices(fleet: FleetContextRow) -> AllDevices:
    """Return context and true expected time of every device as arrays."""
    context = np.frombuffer(fleet.context, dtype="<f8").astype(np.float64).reshape(-1, CONTEXT)
    true_tau_s = fleet.expected_tau_s
    return AllDevices(
        context, None if true_tau_s is None else np.frombuffer(true_tau_s, "<f8").astype(np.float64)
    )


def trials_of(
    exchanges: Sequence[ExchangeRow],
    rows: Mapping[str, int],
    settings: PlannedSelection,
    counted_after: float = 0.0,
    fleets: Mapping[int, AllDevices] | None = None,
    audits: Collection[tuple[int, str]] = (),
) -> list[EstimatorTrial]:
    """Return the exchanges from which estimators learn, one trial per round.

    Args:
        exchanges: Exchanges in the order of rounds.
        rows: Row of each device.
        settings: Settings of the run; they contain the coding of cold starts.
        counted_after: Only errors of later rounds count.
        fleets: Contexts of all devices by round, as far as they were stored; otherwise the
            contexts are those of the exchanges.
        audits: Round and device of each audit.
    """
    is_literal = settings.cold_start_coding == "literal_seed"
    trials = []
    for one_round in observed_rounds(exchanges):
        round_id = one_round[0].round
        chosen = np.array([rows[x.device] for x in one_round], dtype=np.int64)
        all_devices = None if fleets is None else fleets.get(round_id)
        if all_devices is None:
            context = _contexts(one_round, is_literal)
        else:
            context = all_devices.context[chosen]
        trials.append(
            EstimatorTrial(
                rows=chosen,
                context=context,
                measured=Measured.of(
                    [x.tau_s or 0.0 for x in one_round], [_phases_s(x) for x in one_round]
                ),
                counts=round_id > counted_after,
                is_audit=np.array([(round_id, x.device) in audits for x in one_round]),
                all_devices=all_devices,
            )
        )
    return trials


def observed_rounds(exchanges: Sequence[ExchangeRow]) -> list[list[ExchangeRow]]:
    """Return the exchanges from which estimators learn, by round, without empty rounds.

    A late update is learned from in the round that aggregated it, before the others of that round.
    """
    observed = [x for x in exchanges if x.outcome == "done" and x.is_valid and x.tau_s is not None]
    observed.sort(key=_round_and_origin)
    return [list(group) for _, group in groupby(observed, key=_round_and_origin)]


def _round_and_origin(x: ExchangeRow) -> tuple[int, int]:
    """Return the round that aggregated an update, and the round of its exchange."""
    return (x.round if x.aggregated_round is None else x.aggregated_round), x.round


def _contexts(exchanges: Sequence[ExchangeRow], is_literal: bool) -> Floats:
    """Return the contexts before the selection, shape (K, 4), computed as in the registry.

    Unknown transfer times are replaced by the median of the known ones.
    """
    context = np.zeros((len(exchanges), CONTEXT))
    for at, x in enumerate(exchanges):
        cold = x.s_literal_seed if is_literal else x.s_not_previous
        down_s = _transfer_s(x.bytes_down, x.downlink_bps)
        up_s = _transfer_s(x.bytes_up, x.uplink_bps)
        context[at] = 1.0 / (x.mu_cores or 1.0), cold, down_s, up_s
    transfers_s = context[:, [DOWN, UP]]
    is_known: Bools = np.asarray(np.isfinite(transfers_s).all(axis=1))
    median_s = np.median(transfers_s[is_known], axis=0) if is_known.any() else np.zeros(2)
    context[:, [DOWN, UP]] = np.where(is_known[:, None], transfers_s, median_s)
    return context


def _transfer_s(size_bytes: int, rate_bps: float | None) -> float:
    low, high = LINK_BOUNDS_BPS
    return float("nan") if rate_bps is None else 8.0 * size_bytes / min(max(rate_bps, low), high)


def _phases_s(x: ExchangeRow) -> list[float] | None:
    compute_s = sum(getattr(x, f"{phase}_s") or 0.0 for phase in COMPUTE_PHASES)
    known = [x.download_s, x.load_s, compute_s, x.upload_s]
    phases_s = [part for part in known if part is not None]
    if len(phases_s) != len(known) or x.train_s is None or x.tau_s is None:
        return None
    return [*phases_s, x.tau_s - sum(phases_s)]


def estimates_table(found: Mapping[str, Errors]) -> str:
    """Return the errors as text, one table per sample."""
    tables = [_table("on exchanges", found)]
    audit = {name: errors.audit for name, errors in found.items() if errors.audit is not None}
    if audit:
        tables.append(_table("on the audit sample", audit))
    of_all = {name: e.all_devices for name, e in found.items() if e.all_devices is not None}
    if of_all:
        tables.append(_table("on all devices", of_all))
    tables.append(
        "errors of tau_hat against tau, on all devices against the true expected tau; each is "
        "predicted from earlier exchanges; in 80 %: share of exchanges within their interval of "
        "80 %, from earlier errors; by known: median by number of known exchanges of the "
        f"device; a number needs {LEAST} exchanges, and half of all"
    )
    return "\n\n".join(tables)


def _table(sample: str, found: Mapping[str, Errors]) -> str:
    columns = (sample, "count", "median", "mean", "p95", "bias", "in 80 %", "by known")
    width = max(20, *(len(name) + 2 for name in found))
    lines = ["{:<{width}}{:>14}{:>9}{:>9}{:>9}{:>9}{:>16}   {}".format(*columns, width=width)]
    for name, e in found.items():
        numbers = percent(e.median_ape), percent(e.mape), percent(e.p95_ape)
        signed, inside = percent(e.bias, is_signed=True), percent(e.coverage)
        known = ", ".join(f"{n}+ {percent(ape)}" for n, ape in e.median_ape_from.items()) or MISSING
        cells = "".join(f"{number:>9}" for number in (*numbers, signed))
        inside = inside if e.coverage is None else f"{inside} of {e.bounded}"
        count = f"{e.count}" if e.of is None else f"{e.count} of {e.of}"
        lines.append(f"{name:<{width}}{count:>14}{cells}{inside:>16}   {known}")
    return "\n".join(lines)
