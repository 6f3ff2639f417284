"""A predictor with the true speed and recent link rates of a device. Pure.

    tau = work / speed + load s + 8 M_down / B_down + 8 M_up / B_up + fixed

with the true means of the speed and the link rates in the `RECENT_S` before the selection. Opening
a session, control messages and the broker are not modelled: `load` and `fixed` are medians over
the whole run. So the predictor has more information than any estimator, except about the future of
the link.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from experiments.oracle.ground_truth import GroundTruth, Number
from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.estimation.base import (
    COLD,
    CONTEXT,
    DOWN,
    INVERSE_MU,
    UP,
    Measured,
    Prediction,
)
from fairbed.coordinator.algorithms.estimation.prequential import EstimatorTrial
from fairbed.coordinator.store.tables import ExchangeRow

RECENT_S = 5.0
"""Length of the link history that the predictor uses (issue 5)."""

LEAST_BPS = 1e3
"""Rate of a link after a hole of that length: the least rate that the registry accepts."""


class OraclePredictor:
    """Sums the known parts of an exchange: each column of a context is seconds of it.

    Args:
        fixed_s: Time of every exchange beside these parts, by device, seconds, shape (N,).
    """

    def __init__(self, fixed_s: Floats) -> None:
        self._fixed_s = fixed_s

    def predict(self, context: Floats) -> Prediction:
        """Predict from the parts of one exchange per device, seconds, shape (N, 4)."""
        n = len(context)
        return Prediction(
            tau_hat_s=context.sum(axis=1) + self._fixed_s[:n],
            width_s=np.zeros(n),
            transfer_hat_s=context[:, DOWN] + context[:, UP],
        )

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        """Do nothing: this predictor does not learn."""


def oracle_trials(
    rounds: Sequence[Sequence[ExchangeRow]],
    rows: Mapping[str, int],
    truths: Mapping[str, GroundTruth],
    work_s: Callable[[ExchangeRow], float],
    counted_after: float = 0.0,
) -> tuple[OraclePredictor, list[EstimatorTrial]]:
    """Return the predictor, and the parts of each exchange that it knows before the selection.

    Args:
        rounds: The exchanges from which estimators may learn, round by round.
        rows: Row of each device.
        truths: Ground truth of each device.
        work_s: Returns the training cost of an exchange, seconds of one core of the emulating
            machine.
        counted_after: Only the errors of rounds after this one count.
    """
    load_s = _median_load_s(rounds)
    trials, rest = [], dict[str, list[float]]()
    for one_round in rounds:
        context = np.zeros((len(one_round), CONTEXT))
        for at, x in enumerate(one_round):
            truth, load = truths[x.device], load_s.get((x.device, x.s_not_previous), 0.0)
            context[at] = _parts_s(x, truth, work_s(x), load)
            rest.setdefault(x.device, []).append(_rest_s(x, truth, context[at]))
        trials.append(
            EstimatorTrial(
                rows=np.array([rows[x.device] for x in one_round], dtype=np.int64),
                context=context,
                measured=Measured.whole(np.array([x.tau_s or 0.0 for x in one_round])),
                counts=one_round[0].round > counted_after,
            )
        )
    fixed_s = np.zeros(max(rows.values(), default=-1) + 1)
    for device, found in rest.items():
        fixed_s[rows[device]] = float(np.median(found))
    return OraclePredictor(fixed_s), trials


def _parts_s(x: ExchangeRow, truth: GroundTruth, work_s: float, load_s: float) -> Floats:
    """Return the parts of an exchange that are known before its dispatch, seconds, shape (4,)."""
    start_s, end_s = x.dispatched_at_s - RECENT_S, x.dispatched_at_s
    parts = np.zeros(CONTEXT)
    parts[INVERSE_MU] = work_s / truth.mean("speed_ratio", start_s, end_s)
    parts[COLD] = load_s
    parts[DOWN] = 8.0 * x.bytes_down / max(truth.mean("down_bps", start_s, end_s), LEAST_BPS)
    parts[UP] = 8.0 * x.bytes_up / max(truth.mean("up_bps", start_s, end_s), LEAST_BPS)
    return parts


def _rest_s(x: ExchangeRow, truth: GroundTruth, parts: Floats) -> float:
    """Return the time of an exchange beside its parts, with the true link during its transfers."""
    download_s, upload_s, tau_s = x.download_s or 0.0, x.upload_s or 0.0, x.tau_s or 0.0
    down_at_s = x.dispatched_at_s + (x.signal_s or 0.0) / 2.0
    arrived_s = x.dispatched_at_s + (x.tau_wall_s or tau_s)
    busy_s = _link_busy_s(truth, "down_bps", x.bytes_down, down_at_s, down_at_s + download_s)
    busy_s += _link_busy_s(truth, "up_bps", x.bytes_up, arrived_s - upload_s, arrived_s)
    return float(tau_s - parts[INVERSE_MU] - parts[COLD] - busy_s)


def _link_busy_s(
    truth: GroundTruth, number: Number, n_bytes: int, start_s: float, end_s: float
) -> float:
    """Return the busy time of a link in a transfer that lasted from `start_s` to `end_s`."""
    if end_s <= start_s:
        return 0.0
    busy_s = 8.0 * n_bytes / max(truth.mean(number, start_s, end_s), LEAST_BPS)
    return min(busy_s, end_s - start_s)


def _median_load_s(rounds: Sequence[Sequence[ExchangeRow]]) -> dict[tuple[str, int], float]:
    """Return the median loading time of each device, cold and warm, seconds."""
    by_device: dict[tuple[str, int], list[float]] = {}
    for x in (x for one_round in rounds for x in one_round):
        if x.load_s is not None:
            by_device.setdefault((x.device, x.s_not_previous), []).append(x.load_s)
    return {key: float(np.median(found)) for key, found in by_device.items()}
