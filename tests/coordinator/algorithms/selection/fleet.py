"""Fleets with given numbers, for the tests of selectors."""

from collections.abc import Sequence

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes


def fleet(
    tau_hat_s: Sequence[float],
    *,
    transfer_s: Sequence[float] | None = None,
    width_s: Sequence[float] | None = None,
    absent: Sequence[int] = (),
    round_id: int = 1,
) -> Candidates:
    """Return a fleet with these predictions; all devices but `absent` are available."""
    n = len(tau_hat_s)
    is_available = np.ones(n, dtype=np.bool_)
    is_available[list(absent)] = False
    return Candidates(
        round=round_id,
        is_available=is_available,
        tau_hat_s=np.array(tau_hat_s, dtype=np.float64),
        width_s=np.zeros(n) if width_s is None else np.array(width_s, dtype=np.float64),
        transfer_hat_s=np.zeros(n) if transfer_s is None else np.array(transfer_s, dtype=float),
        n_k=np.ones(n, dtype=np.int64),
        true_tau_s=np.array(tau_hat_s, dtype=np.float64),
    )


def outcomes(
    n: int,
    selected: Sequence[int],
    merged: Sequence[int] | None = None,
    round_id: int = 1,
    *,
    tau_s: Sequence[float] | None = None,
    loss: Sequence[float] | None = None,
) -> Outcomes:
    """Return the outcomes of a round of `n` rows; by default all selected are aggregated."""
    is_selected, is_aggregated = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    is_selected[list(selected)] = True
    is_aggregated[list(selected if merged is None else merged)] = True
    return Outcomes(
        round=round_id,
        is_selected=is_selected,
        is_aggregated=is_aggregated,
        n_k=np.ones(n, dtype=np.int64),
        tau_s=np.where(is_selected, column(tau_s, n), np.nan),
        loss=np.where(is_aggregated, column(loss, n), np.nan),
    )


def column(values: Sequence[float] | None, n: int) -> Floats:
    """Return one number per device, by default 1 + its row."""
    return np.arange(1.0, n + 1.0) if values is None else np.array(values, dtype=np.float64)
