"""AAggFF: mixing weights from online convex optimisation over the losses of each round.

`AAggFFS` and `AAggFFD` decide the weights, and `AAggFF` is the aggregation rule.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Updates
from fairbed.coordinator.algorithms.aggregation.quadratic import MOST_WEIGHTS, least_on_simplex
from fairbed.coordinator.algorithms.aggregation.running_sum import total_of
from fairbed.coordinator.algorithms.aggregation.weighting import (
    JoinedDevices,
    Participation,
    joined,
    weights_of,
)
from fairbed.coordinator.algorithms.arrays import Floats, Ints

Cdf: TypeAlias = Literal["weibull", "exponential", "frechet", "normal", "gumbel", "logistic"]
"""A distribution function, which maps a relative loss to a number between 0 and 1."""

SMALLEST_MEAN = 1e-12
"""Mean loss below which all losses count as equal, nats."""

SMALLEST_SHARE = 1e-300
"""Lower bound of a relative loss: exp(-1/x) is 0 there, and nothing overflows."""

ALPHA = 4.0
"""Weight of |p|^2: 4 K L_inf with responses up to 1/K."""


def _erf(x: Floats) -> Floats:
    return np.array([math.erf(value) for value in x.tolist()])


CDFS: Mapping[Cdf, Callable[[Floats], Floats]] = {
    "weibull": lambda x: -np.expm1(-(x**2)),
    "exponential": lambda x: -np.expm1(-x),
    "frechet": lambda x: np.exp(-1.0 / np.maximum(x, SMALLEST_SHARE)),
    "normal": lambda x: 0.5 * (1.0 + _erf((x - 1.0) / math.sqrt(2.0))),
    "gumbel": lambda x: np.exp(-np.exp(1.0 - x)),
    "logistic": lambda x: 1.0 / (1.0 + np.exp(1.0 - x)),
}
"""Functions of x >= 0. All increase: a larger loss never has a smaller response."""


def responses(losses: Floats, cdf: Cdf, most: float, least: float = 0.0) -> Floats:
    """Return bounded responses to losses, relative to the mean loss of the reports.

        x_i = F_i / mean F,   r_i = C1 + (C2 - C1) CDF(x_i)

    Args:
        losses: F_k(w) before local training, nats, shape (K,), at least 0.
        cdf: The distribution function.
        most: C2.
        least: C1.

    Returns:
        r, shape (K,), between C1 and C2.

    Source:
        Hahn et al., ICML 2024, Definition 4.2 (arXiv:2405.20821).
    Deviates:
        The released code has erfc instead of erf in "normal", so a larger loss has a smaller
        response.
    """
    top, x = float(losses.max()), np.ones(len(losses))
    if top > SMALLEST_MEAN:
        share = losses / top  # because the sum of large losses may be infinite
        mean = total_of(share) / len(share)
        x = share / mean if mean * top > SMALLEST_MEAN else x
    r: Floats = least + (most - least) * CDFS[cdf](x)
    return r


def decision_gradient(p: Floats, r: Floats) -> Floats:
    """Return the gradient of the decision loss in p, shape (K,).

        g = -r / (1 + <p, r>),   |g|_inf <= L_inf = C2 / (1 + C1) for C1 <= r <= C2

    Source:
        Hahn et al., ICML 2024, Lemma 4.1 (arXiv:2405.20821).
    """
    g: Floats = -r / (1.0 + (p * r).sum())
    return g


class AAggFFS:
    """Weights of few clients that all report in every round: AAggFF-S, an online Newton step.

        p' = argmin over the simplex of
             sum_s <p, g^s> + alpha/2 |p|^2 + beta/2 sum_s <g^s, p - p^s>^2
        alpha = 4 K L_inf = 4,   beta = 1 / (4 L_inf) = K / 4,   responses in [0, 1/K]

    The state is A = alpha I + beta sum g g^T and c = sum g (beta <g, p^s> - 1); p' minimises
    1/2 p.A p - c.p. A round costs O(K^3).

    Source:
        Hahn et al., ICML 2024, Algorithm 2 and equation 7 (arXiv:2405.20821).
    Deviates:
        The released code starts with weights that sum to K, centres the squares on 0 instead of
        p^s and counts the ridge twice.
    """

    def __init__(self, clients: int, beta_cap: float = math.inf) -> None:
        """Start with equal weights.

        Args:
            clients: K.
            beta_cap: Upper bound of beta; in the theorem it is at most 1/2.
        """
        self.p: Floats = np.full(clients, 1.0 / clients)
        """Weight of each client, shape (K,), sum 1."""
        self._beta_cap = beta_cap
        self._A: Floats = ALPHA * np.eye(clients)
        self._c: Floats = np.zeros(clients)

    @property
    def most(self) -> float:
        """C2, the largest response."""
        return 1.0 / len(self.p)

    def learn(self, r: Floats) -> None:
        """Update the weights after a round of responses, shape (K,), in [0, 1/K]."""
        beta = min(len(r) / 4.0, self._beta_cap)
        g = decision_gradient(self.p, r)
        self._A += beta * np.multiply.outer(g, g)
        self._c += g * (beta * float((g * self.p).sum()) - 1.0)
        self.p = least_on_simplex(self._A, self._c, self.p)

    def grow(self, clients: int) -> None:
        """Give each of j new clients the weight 1/(K+j), and scale the others down.

        The past of a new client is the mean of the others'; it would lose all weight without one,
        because they share a history that it lacks.

            A' = M (A - alpha I) M^T + alpha I,   M = [I; 1^T/K; ...; 1^T/K], j rows 1^T/K
            c' = [c; x],   x so that the minimiser over the simplex has 1/(K+j) for each new client

        Let q be the minimiser over the others' weights with sum K/(K+j) if the new ones are
        1/(K+j), and mu the slope that its positive weights share. Then x is the value for which the
        slope of a new weight is mu, too. The minimiser is unique, so x is.

        Source:
            Own.
        """
        K = len(self.p)
        if clients <= K:
            return
        new, total = np.full(clients - K, 1.0 / clients), K / clients
        mean = (self._A - ALPHA * np.eye(K)).sum(axis=0) / K
        A: Floats = ALPHA * np.eye(clients)
        A[:K, :K] = self._A
        A[K:, :K], A[:K, K:] = mean, mean[:, np.newaxis]
        A[K:, K:] += mean.sum() / K
        rest = self._c - (A[:K, K:] * new).sum(axis=1)
        q = total * least_on_simplex(total * A[:K, :K], rest, self.p)
        slope = total_of((q / total) * ((A[:K, :K] * q).sum(axis=1) - rest))
        x = float((A[K, :] * np.concatenate([q, new])).sum()) - slope
        self._A, self._c = A, np.concatenate([self._c, np.full(len(new), x)])
        self.p = joined(self.p, clients)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        return {"A": self._A.tolist(), "c": self._c.tolist(), "p": self.p.tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._A, self._c = np.array(state["A"]), np.array(state["c"])
        self.p = np.array(state["p"])


def doubly_robust(
    r: Floats, rows: Ints, clients: int, inclusion: float | Floats, imputed: float
) -> Floats:
    """Return estimated responses of all clients from those of a sample.

        r_i = b + (1 if i in S else 0) / C (r_i - b)

    With b the mean of this sample, and m of K drawn uniformly without replacement, the
    expectation is mean + f (r_i - mean), f = 1 - (K - m) / (m (K - 1)): differences between
    clients are underestimated, and are 0 for m = 1. Any b fixed before the draw is unbiased.

    Args:
        r: Observed responses, shape (m,).
        rows: Rows of the clients observed, shape (m,).
        clients: K.
        inclusion: C, the probability that a client is in the sample; or one each, shape (m,).
        imputed: b.

    Returns:
        Shape (K,).

    Source:
        Hahn et al., ICML 2024, equation 10 (arXiv:2405.20821).
    Deviates:
        The released code omits b for observed clients, which penalises taking part.
    """
    full = np.full(clients, imputed)
    full[rows] += (r - imputed) / inclusion
    return full


def linearised_gradient(p: Floats, r: Floats, reference: float) -> Floats:
    """Return the gradient of the decision loss, linear in the responses around r = b 1.

        g = -r / (1 + b) + b <p, r - b> / (1 + b)^2

    Args:
        p: Weights, shape (K,), sum 1.
        r: Responses, as `doubly_robust` returns them, shape (K,).
        reference: b.

    Returns:
        Shape (K,), at most 2 + C in magnitude if responses are in [0, C] and C is the probability
        of being sampled.

    Source:
        Hahn et al., ICML 2024, equation 11 and Lemma A.2 (arXiv:2405.20821).
    """
    lean = reference * (p * (r - reference)).sum() / (1.0 + reference) ** 2
    g: Floats = -r / (1.0 + reference) + lean
    return g


class AAggFFD:
    """Weights of many clients, of which some report: AAggFF-D, follow the regularised leader.

        G = sum_s g^s,   p_i' ~ exp(-sqrt(log K) / (L sqrt(t + 1)) G_i),   L = 2 + C

    with linearised gradients of doubly robust responses in [0, C]: an upper bound equal to the
    sampling probability cancels the 1/C of the estimate. A round costs O(K), and also changes the
    weights of clients that were not observed.

    Source:
        Hahn et al., ICML 2024, Algorithm 3 and remark 4.5 (arXiv:2405.20821).
    Deviates:
        The released code starts with weights that sum to K C.
    """

    def __init__(
        self,
        clients: int,
        per_round: int,
        impute: Literal["mean", "previous_mean"] = "mean",
    ) -> None:
        """Start with equal weights.

        Args:
            clients: K.
            per_round: m, clients drawn per round; C = m / K.
            impute: Value of a response that was not observed: the mean of this round, or of the
                previous round, which is unbiased.

        Raises:
            ValueError: `per_round` is 1 and the mean of the round is imputed: the client would be
                compared with itself only.
        """
        if per_round == 1 and clients > 1 and impute == "mean":
            raise ValueError(
                "aaggff-d: per_round must be at least 2 with impute 'mean', got 1; a client that "
                "is alone sets the mean, so nothing is learned"
            )
        self.p: Floats = np.full(clients, 1.0 / clients)
        """Weight of each client, shape (K,), sum 1."""
        self._per_round = per_round
        self._impute = impute
        self._G: Floats = np.zeros(clients)
        self._t = 0
        self._previous: float | None = None

    def inclusion(self, seen: int) -> float:
        """Return C of a round in which `seen` clients report; failed ones count as not drawn."""
        return min(seen, self._per_round, len(self.p)) / len(self.p)

    def learn(self, rows: Ints, r: Floats, pi: Floats | None = None) -> Floats:
        """Update the weights after a round.

        Args:
            rows: Rows of the clients that reported, shape (m,).
            r: Responses, shape (m,), in [0, C] with the C of `inclusion(m)`.
            pi: Probability that each of them reports, shape (m,); None is C for all. The gradient
                bound holds for C only.

        Returns:
            The gradient that was added, shape (K,).
        """
        K, C = len(self.p), self.inclusion(len(rows))
        mean = total_of(r) / len(r)
        is_first = self._impute == "mean" or self._previous is None
        b = mean if is_first or self._previous is None else self._previous * C
        inclusion = C if pi is None else pi
        g = linearised_gradient(self.p, doubly_robust(r, rows, K, inclusion, b), b)
        self._G += g
        scores = -self._step(K) * self._G
        self._t += 1
        self._previous = mean / C  # Responses are up to C, which changes with K and the reports.
        p = np.exp(scores - scores.max())
        self.p = p / p.sum()  # in the order of rows; an exact sum of a million takes 30 ms
        return g

    def _step(self, K: int) -> float:
        """Return eta of the next update of K weights: sqrt(log K / (t + 1)) / L, t from 1."""
        lipschitz = 2.0 + min(self._per_round, K) / K
        return math.sqrt(math.log(K) / (self._t + 2)) / lipschitz

    def grow(self, clients: int) -> None:
        """Give each of j new clients the weight 1/(K+j), and scale the others down.

            G_new = -1/eta log(1/K sum_i exp(-eta G_i)),   eta of the next update

        This is the sum that keeps the weight 1/(K+j): with G_new = 0 a new client would lack the
        history that the others share, and would have no weight. It costs O(K).

        Source:
            Own.
        """
        K = len(self.p)
        if clients <= K:
            return
        eta, least = self._step(clients), self._G.min()
        G_new = least - math.log(float(np.exp(-eta * (self._G - least)).mean())) / eta
        self._G = np.concatenate([self._G, np.full(clients - K, G_new)])
        self.p = joined(self.p, clients)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        return {
            "G": self._G.tolist(),
            "t": self._t,
            "p": self.p.tolist(),
            "previous": self._previous,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._G, self.p = np.array(state["G"]), np.array(state["p"])
        self._t, self._previous = state["t"], state["previous"]


class AAggFF:
    """Weights that AAggFF-S or AAggFF-D updates with the losses of each round.

        r = responses(F(w_t)),   p' = learn(r),   a_i = p'_i / sum_R p'

    A missing silo has the mean response of the others; a device that fails counts as not drawn.
    K counts the devices that have joined (`JoinedDevices`). One that joins gets 1/K, and its loss
    counts in the same round; one that leaves keeps its place, and continues when it returns.

    Source:
        Hahn et al., ICML 2024, Algorithms 2 and 3 (arXiv:2405.20821).
    """

    needs_loss = True
    needs_norms = needs_models = False

    def __init__(
        self,
        kind: Literal["s", "d"],
        cdf: Cdf = "weibull",
        *,
        per_round: int = 2,
        beta_cap: float = math.inf,
        impute: Literal["mean", "previous_mean"] = "mean",
        weights: Literal["equal", "n_over_pi"] = "equal",
    ) -> None:
        """Choose the rule of the weights.

        Args:
            kind: "s" for silos, which all report, or "d" for devices, of which some are drawn.
            cdf: Distribution function that maps losses to responses.
            per_round: With "d": m, devices drawn per round.
            beta_cap: With "s": see `AAggFFS`.
            impute: With "d": see `AAggFFD`.
            weights: With "d": "n_over_pi" multiplies each device's inclusion probability by its
                `Participation.relative_rates`, for a selector that does not draw uniformly.
        """
        self._is_silo, self._cdf = kind == "s", cdf
        self.max_devices = MOST_WEIGHTS if kind == "s" else None
        self._per_round, self._beta_cap, self._impute = per_round, beta_cap, impute
        self._participation = Participation() if weights == "n_over_pi" and kind == "d" else None
        self._joined = JoinedDevices()
        self._rule: AAggFFS | AAggFFD | None = None

    def decide(self, updates: Updates) -> Floats:
        """Update the weights of all devices with the losses of a round; return a, shape (K,).

        Raises:
            ValueError: One device alone is drawn.
        """
        self._joined.add(updates)
        rows, losses = self._joined.places(updates.rows), updates.losses
        clients = len(self._joined)
        rule = self._rule = self._rule or self._made(clients)
        rule.grow(clients)
        if isinstance(rule, AAggFFS):
            seen = responses(losses, self._cdf, rule.most)
            r = np.full(len(rule.p), total_of(seen) / len(seen))
            r[rows] = seen
            rule.learn(r)
        else:
            inclusion, pi = rule.inclusion(len(rows)), None
            if self._participation:
                rates = self._participation.relative_rates(updates.rows)
                pi = np.minimum(inclusion * rates, 1.0)
                self._participation.observe(updates)
            rule.learn(rows, responses(losses, self._cdf, inclusion), pi)
        return weights_of(rule.p, rows)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        return {
            "rule": self._rule.to_state() if self._rule else None,
            "joined": self._joined.to_state(),
            "participation": self._participation.to_state() if self._participation else None,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._rule = None
        self._joined.load_state(state["joined"])
        if state["rule"]:
            self._rule = self._made(len(state["rule"]["p"]))
            self._rule.load_state(state["rule"])
        if self._participation:
            self._participation.load_state(state["participation"])

    def _made(self, clients: int) -> AAggFFS | AAggFFD:
        if self._is_silo:
            return AAggFFS(clients, self._beta_cap)
        return AAggFFD(clients, self._per_round, self._impute)
