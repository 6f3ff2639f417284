"""Errors of all estimators on a finished run, beside those of somebody who knows its devices."""

from pathlib import Path

import numpy as np

from coordinator.algorithms.estimation.base import CONTEXT, DOWN, INVERSE_MU, Measured
from coordinator.algorithms.estimation.prequential import Errors, Trial, prequential
from coordinator.estimates import alpha_of, compare_estimators, rounds_that_teach
from coordinator.store import RunReader
from coordinator.store.records import ExchangeRow
from testbed.hindsight.known import Known, known_trials
from testbed.hindsight.past import past_of
from testbed.hindsight.planned import recent_links
from testbed.recording.run_store import read_training
from testbed.run_folder import WORK

KNOWN = "known"
"""Stands beside the names of the estimators."""

KNOWN_THEN = "known then"
"""The same, but with rates that are as old as those that devices tell; of replays only."""


def errors_of_run(folder: Path, counted_after: float = 0.0) -> dict[str, Errors]:
    """Return the prequential errors of all estimators, and of `known` where the truth is kept.

    Args:
        folder: Of the run.
        counted_after: Only the errors of later rounds than this are told.

    Raises:
        StoreError: The store cannot be read.
        BackendError: What steps cost here cannot be read.
        DataError: The run's data set cannot be had any more.
        ExperimentError: The run's experiment cannot be read.
    """
    with RunReader(folder) as reader:
        found = compare_estimators(reader, counted_after)
        if (folder / WORK).exists():
            found[KNOWN] = _known(folder, reader, counted_after)
        elif reader.run().row.clock == "virtual":
            found.update(_replayed(folder, reader, counted_after))
    return found


def _replayed(folder: Path, reader: RunReader, counted_after: float) -> dict[str, Errors]:
    """Return the errors of who knows what a replay expects, and the last seconds of each link.

    Where links move, also of who knows the seconds before each device's last transfers instead.
    """
    links = recent_links(folder)
    rows = {device.name: device.row for device in reader.devices()}
    known_s = {
        fleet.round: np.frombuffer(fleet.known_s, "<f8")
        for fleet in reader.fleets()
        if fleet.known_s is not None
    }
    trials: dict[str, list[Trial]] = {KNOWN: [], **({KNOWN_THEN: []} if links else {})}
    last = dict[str, ExchangeRow]()
    for one_round in rounds_that_teach(reader.exchanges()):
        if (known := known_s.get(one_round[0].round)) is None:
            continue
        chosen = np.array([rows[x.device] for x in one_round], dtype=np.int64)
        measured = Measured.whole(np.array([x.tau_s or 0.0 for x in one_round]))
        for name, played in trials.items():
            context = np.zeros((len(chosen), CONTEXT))
            context[:, INVERSE_MU] = known[chosen]
            told_by = last if name == KNOWN_THEN else {}
            context[:, DOWN] = [
                links[x.device].longer_s(x, told_by.get(x.device)) if x.device in links else 0.0
                for x in one_round
            ]
            is_counted = one_round[0].round > counted_after
            played.append(Trial(chosen, context, measured, is_counted))
        last.update({x.device: x for x in one_round})
    nothing_more, alpha = Known(np.zeros(len(rows))), alpha_of(reader.plan.selection)
    return {
        name: prequential({name: nothing_more}, played, alpha)[name]
        for name, played in trials.items()
    }


def _known(folder: Path, reader: RunReader, counted_after: float) -> Errors:
    training = read_training(folder)
    devices, truths = reader.devices(), {row.name: row for row in reader.truths()}
    rows = {device.name: device.row for device in devices}
    pasts = {
        name: past_of(truths[name], reader.conditions(name), training.core_speed)
        for name in rows
        if name in truths
    }

    def work_s(x: ExchangeRow) -> float:
        return (training.reference_s(x.n_k, x.steps) or 0.0) / training.core_speed

    rounds = [
        kept
        for one_round in rounds_that_teach(reader.exchanges())
        if (kept := [x for x in one_round if x.device in pasts])
    ]
    known, trials = known_trials(rounds, rows, pasts, work_s, counted_after)
    return prequential({KNOWN: known}, trials, alpha_of(reader.plan.selection))[KNOWN]
