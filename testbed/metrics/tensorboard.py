"""The curves of a run as event files of TensorBoard: one step is one round.

The files are written from the store as a whole at each start of the run, so that a resumed run has
each round once and an ended run can be deleted and written again.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tensorboardX import SummaryWriter

from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.store.tables import DeviceMetricRow, MetricRow
from fairbed.testbed.metrics.totals import PHASES, ClosedRound, Totals, unix_s
from fairbed.wire.printable import Printable, printable

SUFFIX = ".fairbed"
"""End of the names of our event files; others in the folder stay."""

ROUND_CURVES = {
    "round/duration_s": "duration_s",
    "round/longest_exchange_s": "tau_max_s",
    "round/loss_query_s": "loss_query_s",
    "round/close_s": "close_s",
    "round/event_loop_lag_s": "lag_p99_s",
    "devices/available": "available",
    "devices/selected": "selected",
    "devices/aggregated": "aggregated",
    "queues/sum": "queue_total",
    "queues/largest": "queue_max",
    "network/down_bytes": "bytes_down",
    "network/up_bytes": "bytes_up",
}
"""Column of the round by the tag of its curve."""

MODEL_CURVES = {
    "accuracy/mean": "accuracy_mean",
    "accuracy/pooled": "accuracy_pooled",
    "accuracy/worst10": "accuracy_worst10",
    "accuracy/best10": "accuracy_best10",
    "accuracy/gap": "accuracy_gap",
    "accuracy/test_set": "test_accuracy",
    "loss/mean": "loss_mean",
    "loss/std": "loss_std",
    "loss/test_set": "test_loss",
    "auroc/mean": "auroc_mean",
    "auroc/worst10": "auroc_worst10",
    "auroc/pooled": "auroc_pooled",
    "auroc/test_set": "test_auroc",
    "perplexity/pooled": "perplexity",
    "exact_match/mean": "exact_match_mean",
    "exact_match/pooled": "exact_match_pooled",
    "iou/mean": "iou_mean",
    "iou/pooled": "iou_pooled",
    "class_accuracy/mean": "class_accuracy_mean",
    "class_accuracy/pooled": "class_accuracy_pooled",
    "rmse/mean": "rmse_mean",
    "rmse/worst10": "rmse_worst10",
    "rmse/pooled": "rmse_pooled",
    "rmse/test_set": "test_rmse",
    "mae/mean": "mae_mean",
}
"""Column of the evaluation by the tag of its curve; a task has some of them."""


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
            for tag, column in MODEL_CURVES.items():
                self._point(tag, getattr(row, column), row.round, row.at_s)
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
        values = {tag: getattr(row, column) for tag, column in ROUND_CURVES.items()}
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
