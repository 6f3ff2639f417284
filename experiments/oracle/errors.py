"""Errors of all estimators on a finished run, and those of predictors with the ground truth.

A replay stores the expected exchange time of each device at the instant of a selection
(`expected_tau_s`). The predictor `known` replaces the rates of that instant by the mean rates of
the last `RECENT_S`: 8 M / mean B, and the waiting time of TCP slow start.

A device does not know these rates: it knows its link from its last transfers. The predictor `known
then` uses the `RECENT_S` before the ends of those transfers. Its error is a lower bound for
estimators that rely on the reports of devices.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from experiments.oracle.ground_truth import ground_truth_of
from experiments.oracle.predictor import LEAST_BPS, RECENT_S, OraclePredictor, oracle_trials
from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.algorithms.estimation.base import (
    CONTEXT,
    DOWN,
    INVERSE_MU,
    Learner,
    Measured,
)
from fairbed.coordinator.algorithms.estimation.prequential import (
    Errors,
    EstimatorTrial,
    prequential,
)
from fairbed.coordinator.report.estimators import compare_estimators, observed_rounds
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.profiles.errors import ProfileError
from fairbed.profiles.series import Series
from fairbed.testbed.emulation.schedule import ROUNDING_S
from fairbed.testbed.emulation.tcp import slow_start_s
from fairbed.testbed.experiment.file import ExperimentError, load_experiment
from fairbed.testbed.experiment.fleet import MAX_EMULATED, plan_fleet
from fairbed.testbed.recording.run_store import CONFIG, read_training
from fairbed.testbed.run_folder import WORK


class RecentRate:
    """The rate of one direction of a link, at an instant and in the last seconds before it.

    Args:
        series: Rate over the time of the run, bit/s.
        round_trip_s: Round trip time of the link, for the waiting time of TCP.
    """

    def __init__(self, series: Series, round_trip_s: float) -> None:
        self._series = series
        self._round_trip_s = np.array([round_trip_s])
        self._t_s: Floats = np.array([*series.t_s, series.period_s])
        steps = np.array(series.values) * np.diff(self._t_s)
        self._bits: Floats = np.concatenate([[0.0], np.cumsum(steps)])

    @property
    def is_variable(self) -> bool:
        """Whether the rate changes over time."""
        return not self._series.is_constant

    def extra_s(self, n_bytes: int, now: float, until: float) -> float:
        """Return the transfer time at the recent mean rate minus that at the rate of an instant.

        In a coverage hole the rate of the instant is the mean of the series, as in a replay
        (`ProfileWorld`).

        Args:
            n_bytes: Payload.
            now: The instant, seconds of the run.
            until: End of the recent time, which lasts `RECENT_S`, less at the start of a run.
        """
        since = max(until - RECENT_S, 0.0)
        if not self.is_variable or until <= since:
            return 0.0
        instant_bps = self._series.at(now + ROUNDING_S) or self._series.mean
        recent_bps = (self._bits_until(until) - self._bits_until(since)) / (until - since)
        recent_s = self._transfer_s(n_bytes, max(recent_bps, LEAST_BPS))
        return recent_s - self._transfer_s(n_bytes, instant_bps)

    def _transfer_s(self, n_bytes: int, bps: float) -> float:
        """Return the duration of a transfer at a constant rate."""
        sending_s = np.array([8.0 * n_bytes / bps])
        return float(sending_s[0] + slow_start_s(8.0 * n_bytes, sending_s, self._round_trip_s)[0])

    def _bits_until(self, t: float) -> float:
        """Return the bits from the start of the run to `t`."""
        periods, rest_s = divmod(t, self._series.period_s)
        return float(periods * self._bits[-1] + np.interp(rest_s, self._t_s, self._bits))


@dataclass(frozen=True, slots=True)
class RecentLink:
    """Both directions of the link of one device."""

    down: RecentRate
    up: RecentRate

    def extra_s(self, x: ExchangeRow, last: ExchangeRow | None = None) -> float:
        """Return the expected time of an exchange minus that with the rates at its dispatch.

        Args:
            x: The exchange.
            last: The device's exchange before, at the ends of whose transfers the recent rates are
                taken; None takes them at the dispatch of `x`.
        """
        now = down_at = up_at = x.dispatched_at_s
        if last is not None:
            down_at = last.dispatched_at_s + (last.signal_s or 0.0) / 2.0 + (last.download_s or 0.0)
            up_at = last.dispatched_at_s + (last.tau_wall_s or 0.0)
        down_s = self.down.extra_s(x.bytes_down, now, down_at)
        return down_s + self.up.extra_s(x.bytes_up, now, up_at)


def recent_links(folder: Path) -> dict[str, RecentLink]:
    """Return the variable links of a replayed fleet, by device.

    A linear fleet has none; those of a very large fleet are not computed.

    Args:
        folder: Folder of the replay.

    Raises:
        ExperimentError: Its experiment, or a profile or trace of it, can no longer be read.
    """
    experiment = load_experiment(folder / CONFIG)
    is_linear = any(group.model is not None for group in experiment.fleet)
    if is_linear or experiment.devices > MAX_EMULATED:
        return {}
    # The speed of the emulating machine has no effect on links.
    emulation = msgspec.structs.replace(experiment.emulation, host_core_speed=1.0)
    try:
        devices = plan_fleet(msgspec.structs.replace(experiment, emulation=emulation), os.environ)
    except ProfileError as exc:
        raise ExperimentError(str(exc)) from exc
    links = {
        device.spec.name: RecentLink(
            RecentRate(link.down_bps, 2.0 * link.delay_s.mean),
            RecentRate(link.up_bps, 2.0 * link.delay_s.mean),
        )
        for device in devices
        if (link := device.tracks.link) is not None
    }
    return {
        name: link for name, link in links.items() if link.down.is_variable or link.up.is_variable
    }


KNOWN = "known"
"""Name of the predictor beside the names of the estimators."""

KNOWN_THEN = "known then"
"""The same with rates as old as those that devices report; of replays only."""


def errors_of_run(
    folder: Path, counted_after: float = 0.0, others: Mapping[str, Learner] | None = None
) -> dict[str, Errors]:
    """Return the prequential errors of all estimators, and of `known` if the truth is stored.

    Args:
        folder: Folder of the run.
        counted_after: Only the errors of later rounds are returned.
        others: Further estimators with empty state, by name.

    Raises:
        PluginError: One of `others` is a plug-in and breaks the contract.
        StoreError: The store cannot be read.
        BackendError: The costs of steps cannot be read.
        DatasetError: The data set of the run can no longer be loaded.
        ExperimentError: The run's experiment cannot be read.
    """
    with RunReader(folder) as reader:
        found = compare_estimators(reader, counted_after, others)
        if (folder / WORK).exists():
            found[KNOWN] = _oracle_errors(folder, reader, counted_after)
        elif reader.run().row.clock == "virtual":
            found.update(_replayed(folder, reader, counted_after))
    return found


def _replayed(folder: Path, reader: RunReader, counted_after: float) -> dict[str, Errors]:
    """Return the errors of the predictors with the expectations of a replay and recent link rates.

    Where links vary, `known then` uses the time before each device's last transfers.
    """
    links = recent_links(folder)
    rows = {device.name: device.row for device in reader.devices()}
    expected_s = {
        fleet.round: np.frombuffer(fleet.expected_tau_s, "<f8")
        for fleet in reader.fleet_contexts()
        if fleet.expected_tau_s is not None
    }
    trials: dict[str, list[EstimatorTrial]] = {KNOWN: [], **({KNOWN_THEN: []} if links else {})}
    last = dict[str, ExchangeRow]()
    for one_round in observed_rounds(reader.exchanges()):
        if (expected := expected_s.get(one_round[0].round)) is None:
            continue
        cohort = np.array([rows[x.device] for x in one_round], dtype=np.int64)
        measured = Measured.whole(np.array([x.tau_s or 0.0 for x in one_round]))
        for name, of_predictor in trials.items():
            context = np.zeros((len(cohort), CONTEXT))
            context[:, INVERSE_MU] = expected[cohort]
            reports = last if name == KNOWN_THEN else {}
            context[:, DOWN] = [
                links[x.device].extra_s(x, reports.get(x.device)) if x.device in links else 0.0
                for x in one_round
            ]
            is_counted = one_round[0].round > counted_after
            of_predictor.append(EstimatorTrial(cohort, context, measured, is_counted))
        last.update({x.device: x for x in one_round})
    predictor = OraclePredictor(np.zeros(len(rows)))
    return {
        name: prequential({name: predictor}, of_predictor)[name]
        for name, of_predictor in trials.items()
    }


def _oracle_errors(folder: Path, reader: RunReader, counted_after: float) -> Errors:
    training = read_training(folder)
    devices, truths = reader.devices(), {row.name: row for row in reader.truths()}
    rows = {device.name: device.row for device in devices}
    truth_of = {
        name: ground_truth_of(truths[name], reader.conditions(name), training.core_speed)
        for name in rows
        if name in truths
    }

    on = {device.name: training.of_device(device) for device in devices}

    def work_s(x: ExchangeRow) -> float:
        return (on[x.device].reference_s(x.n_k, x.steps) or 0.0) / training.core_speed

    rounds = [
        kept
        for one_round in observed_rounds(reader.exchanges())
        if (kept := [x for x in one_round if x.device in truth_of])
    ]
    known, trials = oracle_trials(rounds, rows, truth_of, work_s, counted_after)
    return prequential({KNOWN: known}, trials)[KNOWN]
