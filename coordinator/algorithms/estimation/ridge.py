"""Ridge regression of exchange times, one small linear model a device."""

import math
from typing import Any

import numpy as np

from coordinator.algorithms.arrays import Floats, Ints
from coordinator.algorithms.columns import grown
from coordinator.algorithms.estimation.base import Prediction

FEATURES = 3
"""1/mu, cold start, nominal transfer seconds."""
TRANSFER = 2
"""The feature that is the transfer of the model."""


class Ridge:
    """Learns tau = c . theta of each device from its own exchanges only.

        H_n = lambda I + sum c c^T,   b_n = sum tau c      over the exchanges of device n
        theta_hat = H^-1 b,   tau_hat = c . theta_hat,   width = sqrt(c^T H^-1 c)

    H is factored once per observation, H = L L^T, and L^-1 kept, so a prediction is a few
    products per device whatever the size of the fleet: width = |L^-1 c|. No intercept. A device
    never seen has theta_hat = 0 and width |c| / sqrt(lambda). Scale the features to order 1, or
    lambda is not a mild prior.

    Source:
        Huang et al., TPDS 2021 (arXiv:2011.01783); LinUCB, Li et al., WWW 2010, Algorithm 1.
    """

    def __init__(self, lambda_: float = 1.0) -> None:
        """Set the prior.

        Args:
            lambda_: Ridge penalty lambda, > 0.

        Raises:
            ValueError: The penalty is not positive.
        """
        if not (math.isfinite(lambda_) and lambda_ > 0.0):
            raise ValueError(f"ridge: lambda must be > 0, got {lambda_}; 1.0 is a mild prior")
        self._lambda = lambda_
        self._forget()

    def predict(self, context: Floats) -> Prediction:
        """Predict for contexts of shape (N, 3): 1/mu, cold start, nominal transfer seconds.

        Raises:
            ValueError: The shape is wrong.
        """
        n = _n_contexts(context)
        self._grow(n)
        theta = self._theta[:n]
        white = np.einsum("nij,nj->ni", self._whitener[:n], context)
        return Prediction(
            tau_hat_s=np.einsum("ni,ni->n", theta, context),
            width_s=np.sqrt(np.einsum("ni,ni->n", white, white)),
            transfer_hat_s=np.maximum(theta[:, TRANSFER] * context[:, TRANSFER], 0.0),
        )

    def observe(self, rows: Ints, context: Floats, tau_s: Floats) -> None:
        """Learn from exchanges: rows (K,), contexts before selection (K, 3), seconds (K,).

        Raises:
            ValueError: Shapes disagree, or a number is not finite. Nothing is learned then.
        """
        if _n_contexts(context) != len(rows) or tau_s.shape != rows.shape:
            raise ValueError(
                f"ridge: need rows (K,), context (K, 3) and tau_s (K,), got {rows.shape}, "
                f"{context.shape} and {tau_s.shape}; pass one row per exchange"
            )
        if not (np.isfinite(context).all() and np.isfinite(tau_s).all()):
            raise ValueError(
                f"ridge: contexts and times must be finite, got {context.tolist()} and "
                f"{tau_s.tolist()}; leave invalid exchanges out"
            )
        if rows.size == 0:
            return
        self._grow(int(rows.max()) + 1)
        np.add.at(self._h, rows, context[:, :, None] * context[:, None, :])
        np.add.at(self._b, rows, tau_s[:, None] * context)
        np.add.at(self._seen, rows, 1)
        self._solve(rows)

    def theta(self, n: int) -> Floats:
        """Return theta_hat of the first `n` rows, seconds per unit of each feature, (n, 3)."""
        theta: Floats = grown(self._theta, n)[:n].copy()
        return theta

    def seen(self, n: int) -> Ints:
        """Return from how many exchanges each of the first `n` rows was learned, shape (n,)."""
        seen: Ints = grown(self._seen, n)[:n].copy()
        return seen

    def to_state(self) -> dict[str, Any]:
        """Return the rows that were ever observed, as plain numbers and lists."""
        rows = np.flatnonzero(self._seen)
        return {
            "rows": rows.tolist(),
            "seen": self._seen[rows].tolist(),
            "H": self._h[rows].tolist(),
            "b": self._b[rows].tolist(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned, of an estimator with the same lambda."""
        self._forget()
        rows = np.array(state["rows"], dtype=np.int64)
        if rows.size == 0:
            return
        self._grow(int(rows.max()) + 1)
        self._seen[rows] = np.array(state["seen"], dtype=np.int64)
        self._h[rows] = np.array(state["H"], dtype=np.float64)
        self._b[rows] = np.array(state["b"], dtype=np.float64)
        self._solve(rows)

    def _forget(self) -> None:
        """Go back to knowing no device."""
        self._seen: Ints = np.zeros(0, dtype=np.int64)
        self._h: Floats = np.zeros((0, FEATURES, FEATURES))
        self._b: Floats = np.zeros((0, FEATURES))
        self._theta: Floats = np.zeros((0, FEATURES))
        self._whitener: Floats = np.zeros((0, FEATURES, FEATURES))

    def _solve(self, rows: Ints) -> None:
        """Refresh theta_hat and L^-1 of some rows from their H and b."""
        h = self._h[rows]
        self._theta[rows] = np.linalg.solve(h, self._b[rows][:, :, None])[:, :, 0]
        self._whitener[rows] = np.linalg.solve(np.linalg.cholesky(h), np.eye(FEATURES))

    def _grow(self, n: int) -> None:
        known = len(self._seen)
        if n <= known:
            return
        self._seen = grown(self._seen, n)
        self._b, self._theta = grown(self._b, n), grown(self._theta, n)
        self._h, self._whitener = grown(self._h, n), grown(self._whitener, n)
        self._h[known:] = self._lambda * np.eye(FEATURES)
        self._whitener[known:] = np.eye(FEATURES) / math.sqrt(self._lambda)


def _n_contexts(context: Floats) -> int:
    """Return N of contexts of shape (N, 3), or refuse the shape."""
    if context.ndim != 2 or context.shape[1] != FEATURES:
        raise ValueError(f"ridge: context must have shape (N, 3), got {context.shape}; stack rows")
    return int(context.shape[0])
