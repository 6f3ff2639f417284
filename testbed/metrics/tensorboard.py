"""The curves of a run as event files of TensorBoard: one step is one round.

The files are written from the store as a whole at each start of the run, so that a resumed run has
each round once and an ended run can be deleted and written again.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tensorboardX import SummaryWriter

from fairbed.coordinator.report.measures import run_measures
from fairbed.coordinator.report.measures.entry import Evaluation, Round, RunMeasure
from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.store.tables import DeviceMetricRow, MetricRow
from fairbed.testbed.metrics.totals import PHASES, ClosedRound, Totals, unix_s
from fairbed.wire.printable import Printable, printable

SUFFIX = ".fairbed"
"""End of the names of our event files; others in the folder stay."""


def round_curves() -> dict[str, Round]:
    """Return the columns of rounds that are curves, by tag."""
    return {m.tensorboard: m.source for m in _curves() if isinstance(m.source, Round)}


def model_curves() -> dict[str, Evaluation]:
    """Return the columns of evaluations that are curves, by tag; a task has some of them."""
    return {m.tensorboard: m.source for m in _curves() if isinstance(m.source, Evaluation)}


def _curves() -> Iterator[RunMeasure]:
    return (measure for measure in run_measures() if measure.tensorboard)


class Curves:
    """Writes the event files of one run, from its first round.

    Args:
        folder: Folder of the event files.
        totals: Before its first refresh.
    """

    def __init__(self, folder: Path, totals: Totals) -> None:
        for left in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
            left.unlink()
        self._created_s = unix_s(totals.info.row.created) or 0.0
        self._writer = SummaryWriter(str(folder), filename_suffix=SUFFIX, flush_secs=3_600)
        text = "\n".join(f"    {line}" for line in totals.reader.experiment_toml.splitlines())
        self._write_text("experiment", printable(text, kept="\n"))

    def write(
        self, rounds: Sequence[ClosedRound], metrics: Sequence[MetricRow], reader: RunReader
    ) -> None:
        """Add the points of new rounds and evaluations, and write them to the disk."""
        for closed in rounds:
            self._write_round(closed)
        for row in metrics:
            for tag, source in model_curves().items():
                self._point(tag, source.of_row(row), row.round, row.at_s)
            tail = "WHERE round = ?"
            found = reader.columns(DeviceMetricRow, ("accuracy",), tail, (row.round,))
            accuracies = [accuracy for (accuracy,) in found if accuracy is not None]
            if accuracies:
                self._writer.add_histogram(
                    "accuracy/devices",
                    np.array(accuracies),
                    row.round,
                    walltime=self._created_s + row.at_s,
                )
        if rounds or metrics:
            self._writer.flush()

    def _write_text(self, tag: str, text: Printable) -> None:
        self._writer.add_text(tag, text, 0, walltime=self._created_s)

    def _write_round(self, closed: ClosedRound) -> None:
        row, sums = closed.row, closed.exchanges
        values = {tag: source.of_row(row) for tag, source in round_curves().items()}
        values["rates/min_selection"] = closed.min_rate
        done = sums.outcomes["done"]
        values["exchanges/done"] = done
        values["exchanges/not_done"] = sum(sums.outcomes.values()) - done
        values["exchanges/invalid"] = sums.invalid
        values["exchanges/contended"] = sums.contended
        values["energy/joules"] = sums.energy_j
        for phase in PHASES:
            if n := sums.phase_n[phase]:
                values[f"phases/{phase}_s"] = sums.phase_s[phase] / n
        if sums.predicted:
            values["estimator/mean_absolute_error_s"] = sums.error_abs_s / sums.predicted
            values["estimator/bias_s"] = sums.error_s / sums.predicted
        for tag, value in values.items():
            self._point(tag, value, row.round, row.closed_at_s)

    def _point(self, tag: str, value: float | None, step: int, at_s: float) -> None:
        if value is not None:
            self._writer.add_scalar(tag, value, step, walltime=self._created_s + at_s)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
