"""Errors of each estimator on the exchanges of a run, replayed in their order."""

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats
from fairbed.coordinator.algorithms.estimation.base import CONTEXT, DOWN, UP, Learner, Measured
from fairbed.coordinator.algorithms.estimation.baselines import DeviceMean, GlobalMean, LastValue
from fairbed.coordinator.algorithms.estimation.phases import PhaseEstimator
from fairbed.coordinator.algorithms.estimation.prequential import (
    AllDevices,
    Errors,
    EstimatorTrial,
    prequential,
)
from fairbed.coordinator.algorithms.estimation.ridge import RidgeEstimator
from fairbed.coordinator.policy.config import SelectionConfig
from fairbed.coordinator.report.quantities import MISSING, percent
from fairbed.coordinator.state.registry import LINK_BOUNDS_BPS
from fairbed.coordinator.store.reader import PlannedSelection, RunReader
from fairbed.coordinator.store.tables import ExchangeRow, FleetContextRow
from fairbed.wire.messages import COMPUTE_PHASES

_DEFAULT = SelectionConfig()


def compare_estimators(reader: RunReader, counted_after: float = 0.0) -> dict[str, Errors]:
    """Return the prequential errors of all estimators on the exchanges of a run, by name.

    `ridge` and `phases` have the settings of the run. All learn from the same exchanges: those
    of the devices that the run selected, as far as they are valid. Their errors are told for those
    exchanges, for the audit sample among them, and for all devices where the true expectation is
    known.

    Args:
        reader: Of the run.
        counted_after: Only the errors of later rounds than this are told.
    """
    settings = reader.run().plan.selection
    rows = {device.name: device.row for device in reader.devices()}
    trials = trials_of(
        reader.exchanges(),
        rows,
        settings,
        counted_after,
        {fleet.round: _known_of_all(fleet) for fleet in reader.fleet_contexts()},
        reader.audits(),
    )
    return prequential(_learners(settings), trials, alpha_of(settings))


def alpha_of(settings: PlannedSelection) -> float:
    """Return half of a confidence interval, in widths; a schedule counts as the default."""
    alpha = settings.alpha if isinstance(settings.alpha, float) else _DEFAULT.alpha
    assert isinstance(alpha, float)
    return alpha


def _learners(settings: PlannedSelection) -> dict[str, Learner]:
    prior = settings.ridge_lambda or _DEFAULT.ridge_lambda, settings.discount or _DEFAULT.discount
    return {
        "ridge": RidgeEstimator(*prior),
        "phases": PhaseEstimator(*prior),
        "last value": LastValue(),
        "device mean": DeviceMean(),
        "global mean": GlobalMean(),
    }


def _known_of_all(fleet: FleetContextRow) -> AllDevices:
    """Return what was known of every device, as numbers."""
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
    """Return the exchanges that may teach, one trial a round.

    Args:
        exchanges: In the order of rounds.
        rows: Row of each device.
        settings: Says how a cold start is coded.
        counted_after: Only the errors of later rounds than this are told.
        fleets: What was known of every device, by round, as far as it was kept; without it the
            contexts are those that the exchanges tell.
        audits: Round and device of each audit.
    """
    is_literal = settings.cold_start_coding == "literal_seed"
    trials = []
    for one_round in rounds_that_teach(exchanges):
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


def rounds_that_teach(exchanges: Sequence[ExchangeRow]) -> list[list[ExchangeRow]]:
    """Return the exchanges that may teach, round by round; rounds without any are left out.

    An update that came in a later round than it began in taught there, before those of that round.
    """
    taught = [x for x in exchanges if x.outcome == "done" and x.is_valid and x.tau_s is not None]
    taught.sort(key=_taught_in)
    return [list(group) for _, group in groupby(taught, key=_taught_in)]


def _taught_in(x: ExchangeRow) -> tuple[int, int]:
    """Return the round in which an update came, and the one that it began in."""
    return (x.round if x.aggregated_round is None else x.aggregated_round), x.round


def _contexts(exchanges: Sequence[ExchangeRow], is_literal: bool) -> Floats:
    """Return what was known before the selection, shape (K, 4), as the registry has it."""
    context = np.zeros((len(exchanges), CONTEXT))
    for at, x in enumerate(exchanges):
        cold = x.s_literal_seed if is_literal else x.s_not_previous
        down_s, up_s = _way_s(x.bytes_down, x.downlink_bps), _way_s(x.bytes_up, x.uplink_bps)
        context[at] = 1.0 / (x.mu_cores or 1.0), cold, down_s, up_s
    ways = context[:, [DOWN, UP]]
    is_known: Bools = np.asarray(np.isfinite(ways).all(axis=1))
    guess = np.median(ways[is_known], axis=0) if is_known.any() else np.zeros(2)
    context[:, [DOWN, UP]] = np.where(is_known[:, None], ways, guess)
    return context


def _way_s(size_bytes: int, rate_bps: float | None) -> float:
    low, high = LINK_BOUNDS_BPS
    return float("nan") if rate_bps is None else 8.0 * size_bytes / min(max(rate_bps, low), high)


def _phases_s(x: ExchangeRow) -> list[float] | None:
    compute_s = sum(getattr(x, f"{phase}_s") or 0.0 for phase in COMPUTE_PHASES)
    known = [x.download_s, x.load_s, compute_s, x.upload_s]
    told = [part for part in known if part is not None]
    if len(told) != len(known) or x.train_s is None or x.tau_s is None:
        return None
    return [*told, x.tau_s - sum(told)]


def estimates_table(found: Mapping[str, Errors]) -> str:
    """Return the errors as lines for people: one table a sample."""
    tables = [_table("on exchanges", found)]
    audit = {name: errors.audit for name, errors in found.items() if errors.audit is not None}
    if audit:
        tables.append(_table("on the audit sample", audit))
    told = {name: e.all_devices for name, e in found.items() if e.all_devices is not None}
    if told:
        tables.append(_table("on all devices", told))
    tables.append(
        "errors of tau_hat against tau, on all devices against the known expectation of tau; each "
        "was predicted from the exchanges before it; by known: median where so many of the "
        "device's exchanges were known"
    )
    return "\n\n".join(tables)


def _table(sample: str, found: Mapping[str, Errors]) -> str:
    columns = (sample, "count", "median", "mean", "p95", "bias", "within alpha", "by known")
    lines = ["{:<20}{:>10}{:>9}{:>9}{:>9}{:>9}{:>14}   {}".format(*columns)]
    for name, e in found.items():
        numbers = percent(e.median_ape), percent(e.mape), percent(e.p95_ape)
        signed, inside = percent(e.bias, is_signed=True), percent(e.coverage)
        known = ", ".join(f"{n}+ {percent(ape)}" for n, ape in e.median_ape_from.items()) or MISSING
        cells = "".join(f"{number:>9}" for number in (*numbers, signed))
        lines.append(f"{name:<20}{e.count:>10}{cells}{inside:>14}   {known}")
    return "\n".join(lines)
