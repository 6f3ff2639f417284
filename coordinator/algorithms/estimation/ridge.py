"""Ridge regression of exchange times, as in RBCS-F: one linear model per device."""

import math
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.columns import RowIndex, grown
from fairbed.coordinator.algorithms.estimation.base import (
    COLD,
    DOWN,
    INVERSE_MU,
    UP,
    Measured,
    Prediction,
    check_prior,
    require_contexts,
    require_observed_contexts,
)

_ROUNDING = 1e-12
"""Eigenvalues of H below this share of the largest consist of rounding errors."""


class LinearModels:
    """Learns y = c . theta of each device from its own observations.

        H_n = lambda I + sum_i gamma^(k - i) c_i c_i^T,   b_n = sum_i gamma^(k - i) y_i c_i
        theta_hat = H^-1 b,   y_hat = c . theta_hat,   width = sqrt(c^T H^-1 c)

    over the observations i = 1..k of device n. H is factored once per observation, H = L L^T, and
    L^-1 stored, so a prediction is a few products per device: width = |L^-1 c|. If rounding makes H
    singular, its eigenvalues are raised to lambda or to the rounding error. No intercept. A
    device never measured has theta_hat = 0, width |c| / sqrt(lambda) and no matrices. Scale the
    features to order 1, or lambda is not a mild prior.

    Source:
        LinUCB, Li et al., WWW 2010, Algorithm 1; the discount gamma: D-LinUCB, Russac et al.,
        NeurIPS 2019, Algorithm 1.
    Deviates:
        D-LinUCB discounts by rounds and takes the width from a second matrix of weights gamma^2;
        here a device forgets by its own observations, and the width, from H alone, is larger.
    """

    def __init__(self, features: int, lambda_: float = 1.0, discount: float = 1.0) -> None:
        """Set the prior.

        Args:
            features: Length d of a context.
            lambda_: Ridge penalty lambda, > 0.
            discount: Gamma in (0, 1]: factor on the weight of an observation at each later one of
                the same device; 1 forgets nothing.

        Raises:
            ValueError: The penalty is not positive, or the discount outside (0, 1].
        """
        check_prior("ridge", lambda_, discount)
        self.features = features
        self._lambda, self._discount = lambda_, discount
        self._forget()

    def predict(self, context: Floats) -> tuple[Floats, Floats]:
        """Return y_hat and width for one context per device, (N, d), each of shape (N,).

        Raises:
            ValueError: The shape is wrong.
        """
        n = self._n(context)
        y_hat = np.zeros(n)
        width = _norms(context / math.sqrt(self._lambda))
        places, rows = self._places.known(n)
        white = np.einsum("nij,nj->ni", self._whitener[places], context[rows])
        y_hat[rows] = np.einsum("ni,ni->n", self._theta[places], context[rows])
        width[rows] = _norms(white)
        return y_hat, width

    def observe(self, rows: Ints, context: Floats, y: Floats) -> None:
        """Learn in order from rows (K,), contexts (K, d) and measured times (K,).

        Raises:
            ValueError: Shapes disagree, or a number is not finite. Nothing is learned then.
        """
        if self._n(context) != len(rows) or y.shape != rows.shape:
            raise ValueError(
                f"ridge: need rows (K,), context (K, {self.features}) and y (K,), got "
                f"{rows.shape}, {context.shape} and {y.shape}; pass one row per exchange"
            )
        if not (np.isfinite(context).all() and np.isfinite(y).all()):
            raise ValueError(
                f"ridge: contexts and times must be finite, got {context.tolist()} and "
                f"{y.tolist()}; leave invalid exchanges out"
            )
        if rows.size == 0:
            return
        places = self._allocated(rows)
        outer, moment = context[:, :, None] * context[:, None, :], y[:, None] * context
        if self._discount == 1.0:
            np.add.at(self._h, places, outer)
            np.add.at(self._b, places, moment)
        else:
            prior = self._lambda * np.eye(self.features)
            for place, square, product in zip(places.tolist(), outer, moment, strict=True):
                self._h[place] = prior + self._discount * (self._h[place] - prior) + square
                self._b[place] = self._discount * self._b[place] + product
        np.add.at(self._seen, places, 1)
        self._solve(places)

    def theta(self, n: int) -> Floats:
        """Return theta_hat of the first `n` rows, shape (n, d)."""
        theta = np.zeros((n, self.features))
        places, rows = self._places.known(n)
        theta[rows] = self._theta[places]
        return theta

    def share(self, feature: int, context: Floats) -> Floats:
        """Return the part of y_hat that is due to one feature, shape (N,)."""
        n = self._n(context)
        share = np.zeros(n)
        places, rows = self._places.known(n)
        share[rows] = self._theta[places, feature] * context[rows, feature]
        return share

    def seen(self, n: int) -> Ints:
        """Return the number of observations of each of the first `n` rows, shape (n,)."""
        seen = np.zeros(n, dtype=np.int64)
        places, rows = self._places.known(n)
        seen[rows] = self._seen[places]
        return seen

    def to_state(self) -> dict[str, Any]:
        """Return the state of all observed rows as plain numbers and lists."""
        by_row = np.argsort(self._places.rows)
        return {
            "rows": self._places.rows[by_row].tolist(),
            "seen": self._seen[by_row].tolist(),
            "H": self._h[by_row].tolist(),
            "b": self._b[by_row].tolist(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned, of models with the same prior."""
        self._forget()
        rows = np.array(state["rows"], dtype=np.int64)
        if rows.size == 0:
            return
        places = self._allocated(rows)
        self._seen[places] = np.array(state["seen"], dtype=np.int64)
        self._h[places] = np.array(state["H"], dtype=np.float64)
        self._b[places] = np.array(state["b"], dtype=np.float64)
        self._solve(places)

    def _forget(self) -> None:
        """Reset to the state without observations."""
        d = self.features
        self._places = RowIndex()
        """Places of the rows in the arrays below, shape (M, ...)."""
        self._seen: Ints = np.zeros(0, dtype=np.int64)
        self._h: Floats = np.zeros((0, d, d))
        self._b: Floats = np.zeros((0, d))
        self._theta: Floats = np.zeros((0, d))
        self._whitener: Floats = np.zeros((0, d, d))

    def _allocated(self, rows: Ints) -> Ints:
        """Return the places of rows, shape (len(rows),); a new place starts with the prior."""
        known, places = len(self._seen), self._places.of(rows)
        n = len(self._places.rows)
        self._seen = grown(self._seen, n)
        self._b, self._theta = grown(self._b, n), grown(self._theta, n)
        self._h, self._whitener = grown(self._h, n), grown(self._whitener, n)
        self._h[known:] = self._lambda * np.eye(self.features)
        return places

    def _solve(self, places: Ints) -> None:
        """Compute theta_hat and L^-1 of some places from their H and b."""
        h, b = self._h[places], self._b[places]
        try:
            whitener = np.linalg.solve(np.linalg.cholesky(h), np.eye(self.features))
            theta = np.linalg.solve(h, b[:, :, None])[:, :, 0]
        except np.linalg.LinAlgError:  # lambda is lost in the rounding of a large H
            values, vectors = np.linalg.eigh(h)
            rounding = _ROUNDING * values.max(axis=1, keepdims=True)
            scale = 1.0 / np.sqrt(np.maximum(values, np.maximum(rounding, self._lambda)))
            whitener = scale[:, :, None] * vectors.swapaxes(1, 2)
            theta = np.einsum("nji,njk,nk->ni", whitener, whitener, b)
        self._theta[places], self._whitener[places] = theta, whitener

    def _n(self, context: Floats) -> int:
        """Return N of contexts, shape (N, d).

        Raises:
            ValueError: The shape is wrong.
        """
        if context.ndim != 2 or context.shape[1] != self.features:
            raise ValueError(
                f"ridge: context must have shape (N, {self.features}), got {context.shape}; "
                "stack rows"
            )
        return int(context.shape[0])


def _norms(vectors: Floats) -> Floats:
    """Return the norms of vectors, shape (N,), given (N, d)."""
    norms: Floats = np.sqrt(np.einsum("ni,ni->n", vectors, vectors))
    return norms


FEATURES = 3
TRANSFER = 2
"""Index of the transfer feature."""


class RidgeEstimator:
    """Learns tau = c . theta of each device from its own exchanges.

        c = [1/mu, s, M_down/B_down + M_up/B_up],   tau_hat = c . theta_hat

    Source:
        Huang et al., TPDS 2021 (arXiv:2011.01783).
    Deviates:
        The paper has the upload only; here the transfer is download plus upload. It has no rule
        for exchanges that did not end; here their lower bound is learned as a time if it exceeds
        c . theta_hat, and otherwise it teaches nothing.
    """

    def __init__(self, lambda_: float = 1.0, discount: float = 1.0) -> None:
        """Set the prior: see `LinearModels`.

        Raises:
            ValueError: The penalty is not positive, or the discount outside (0, 1].
        """
        self._models = LinearModels(FEATURES, lambda_, discount)

    def predict(self, context: Floats) -> Prediction:
        """Predict for one context per device, shape (N, 4).

        Raises:
            ValueError: The shape is wrong.
        """
        features = _features(context)
        tau_hat_s, width_s = self._models.predict(features)
        transfer_s = np.maximum(self._models.share(TRANSFER, features), 0.0)
        return Prediction(tau_hat_s=tau_hat_s, width_s=width_s, transfer_hat_s=transfer_s)

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        """Learn from exchanges: rows (K,), their contexts before selection (K, 4).

        A lower bound that is at most the prediction is skipped.

        Raises:
            ValueError: Shapes disagree, or a number is negative or not finite. Nothing is learned
                then.
        """
        features, tau_s = _features(context), measured.tau_s
        require_observed_contexts("ridge", context)
        if measured.is_bound is not None and measured.is_bound.any():
            theta = self._models.theta(int(rows.max()) + 1)[rows]
            tau_hat_s = np.einsum("kf,kf->k", theta, features)
            teaches = ~measured.is_bound | (tau_s > tau_hat_s)
            rows, features, tau_s = rows[teaches], features[teaches], tau_s[teaches]
        self._models.observe(rows, features, tau_s)

    def theta(self, n: int) -> Floats:
        """Return theta_hat of the first `n` rows, seconds per unit of each feature, (n, 3)."""
        return self._models.theta(n)

    def seen(self, n: int) -> Ints:
        """Return the number of exchanges of each of the first `n` rows, shape (n,)."""
        return self._models.seen(n)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists."""
        return self._models.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned, of an estimator with the same prior."""
        self._models.load_state(state)


def _features(context: Floats) -> Floats:
    require_contexts("ridge", context)
    return np.stack(
        [context[:, INVERSE_MU], context[:, COLD], context[:, DOWN] + context[:, UP]], axis=1
    )
