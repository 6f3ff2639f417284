"""Predicts exchange times from the true speed and recent link rates of a device. Pure.

    tau = work / speed + load s + 8 M_down / B_down + 8 M_up / B_up + fixed

with the speed of the device and the rates of its link as they truly were, on average, in the
`RECENT_S` before the selection. Opening a session, control
messages and the broker are not modelled: `load` and `fixed` are medians over the whole run. So the
predictor has more information than any estimator, except about the future of the link.
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
"""So much of the link's truth is known: the yardstick of issue 5."""

LEAST_BPS = 1e3
"""What a link is thought to carry after a hole that long: the least that the registry knows."""


class OraclePredictor:
    """Predicts from parts that are known: each column of a context is seconds of an exchange.

    Args:
        fixed_s: What every exchange of a device takes beside these, seconds, shape (N,).
    """

    def __init__(self, fixed_s: Floats) -> None:
        self._fixed_s = fixed_s

    def predict(self, context: Floats) -> Prediction:
        """Predict for the parts of one exchange a device, seconds, shape (N, 4)."""
        n = len(context)
        return Prediction(
            tau_hat_s=context.sum(axis=1) + self._fixed_s[:n],
            width_s=np.zeros(n),
            transfer_hat_s=context[:, DOWN] + context[:, UP],
        )

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        """There is nothing to learn."""


def oracle_trials(
    rounds: Sequence[Sequence[ExchangeRow]],
    rows: Mapping[str, int],
    pasts: Mapping[str, GroundTruth],
    work_s: Callable[[ExchangeRow], float],
    counted_after: float = 0.0,
) -> tuple[OraclePredictor, list[EstimatorTrial]]:
    """Return who knows, and the parts of each exchange as known before its selection.

    Args:
        rounds: The exchanges that may teach, round by round.
        rows: Row of each device.
        pasts: Of each device.
        work_s: Tells what the training of an exchange costs, seconds of one core of the emulating
            machine.
        counted_after: Only the errors of later rounds than this are told.
    """
    load_s = _loads(rounds)
    trials, rest = [], dict[str, list[float]]()
    for one_round in rounds:
        context = np.zeros((len(one_round), CONTEXT))
        for at, x in enumerate(one_round):
            truth = pasts[x.device]
            context[at] = _parts(x, truth, work_s(x), load_s.get((x.device, x.s_not_previous), 0.0))
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


def _parts(x: ExchangeRow, truth: GroundTruth, work_s: float, load_s: float) -> Floats:
    """Return the parts of an exchange that were known before it began, seconds, shape (4,)."""
    start_s, end_s = x.dispatched_at_s - RECENT_S, x.dispatched_at_s
    parts = np.zeros(CONTEXT)
    parts[INVERSE_MU] = work_s / truth.mean("speed_ratio", start_s, end_s)
    parts[COLD] = load_s
    parts[DOWN] = 8.0 * x.bytes_down / max(truth.mean("down_bps", start_s, end_s), LEAST_BPS)
    parts[UP] = 8.0 * x.bytes_up / max(truth.mean("up_bps", start_s, end_s), LEAST_BPS)
    return parts


def _rest_s(x: ExchangeRow, truth: GroundTruth, parts: Floats) -> float:
    """Return what an exchange took beside its parts, had the link been known as it came to be."""
    download_s, upload_s, tau_s = x.download_s or 0.0, x.upload_s or 0.0, x.tau_s or 0.0
    down_at_s = x.dispatched_at_s + (x.signal_s or 0.0) / 2.0
    arrived_s = x.dispatched_at_s + (x.tau_wall_s or tau_s)
    lines_s = _line_s(truth, "down_bps", x.bytes_down, down_at_s, down_at_s + download_s)
    lines_s += _line_s(truth, "up_bps", x.bytes_up, arrived_s - upload_s, arrived_s)
    return float(tau_s - parts[INVERSE_MU] - parts[COLD] - lines_s)


def _line_s(
    truth: GroundTruth, number: Number, n_bytes: int, start_s: float, end_s: float
) -> float:
    """Return how long a line was busy with a transfer that took from `start_s` to `end_s`."""
    if end_s <= start_s:
        return 0.0
    busy_s = 8.0 * n_bytes / max(truth.mean(number, start_s, end_s), LEAST_BPS)
    return min(busy_s, end_s - start_s)


def _loads(rounds: Sequence[Sequence[ExchangeRow]]) -> dict[tuple[str, int], float]:
    """Return the median time of loading of each device, cold and warm."""
    seen: dict[tuple[str, int], list[float]] = {}
    for x in (x for one_round in rounds for x in one_round):
        if x.load_s is not None:
            seen.setdefault((x.device, x.s_not_previous), []).append(x.load_s)
    return {key: float(np.median(found)) for key, found in seen.items()}
