"""Core stability of a finished model: blocking coalitions, and certificates that there are none.

A coalition S blocks a model theta if another model theta' gives each member enough more:

    u_i(theta') >= (W / W_S) u_i(theta)  for all i in S, one of them strictly more
    u_i = M - F_i,   W_S = sum_{i in S} w_i,   W = sum_i w_i        (w_i = 1: W / W_S = n / |S|)

Utilities compare only under the same M. A larger M moves all ratios towards 1, so that every model
looks stable: `largest_blocked_m` finds up to which M a model is blocked.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.special import logsumexp

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints

EPSILON = 1e-5
"""M > (1 + EPSILON) F for each loss F (Ray Chaudhury et al., equation 1)."""

ROUNDING = 1e-12
"""Relative tolerance of a comparison with W / W_S, for rounding."""

NEWTON_PARAMETERS = 1_500
"""Most parameters for Newton's method, which solves a system of that size per step."""

NEWTON_STEPS = 60
"""Most steps: each step divides the loss of a separated example by about e."""

NEWTON_TOLERANCE = 1e-10
"""The last step gains at most about this share of the loss."""

RIDGES = (1e-10, 1e-7, 1e-4)
"""Added to the diagonal of the Hessian, relative to its mean."""

STEP_LENGTHS = tuple(0.5**k for k in range(27))
"""Tried in this order; if none lowers the loss, the method ends."""

BISECTIONS = 60
"""Halvings of an interval of M: far below any relevant digit."""


def smallest_valid_m(losses: Floats) -> float:
    """Return the smallest M with a positive utility for each loss, nats, of any shape."""
    return float((1.0 + EPSILON) * losses.max(initial=0.0))


@dataclass(frozen=True, slots=True)
class Coalition:
    """The coalition with most to gain from one of several alternative models."""

    members: Ints
    """Rows of its devices, ascending."""
    alternative: int
    """Row of the alternative model."""
    margin: float
    """min_{i in S} u_i(theta') / u_i(theta) W_S / W; above 1 the coalition blocks."""
    is_blocking: bool


def strongest_coalition(
    u: Floats, others: Floats, w: Floats | None = None, *, is_proper: bool = False
) -> Coalition:
    """Return the coalition with the largest margin over all alternatives: the core margin.

        rho_i = u_i(theta') / u_i(theta), descending;   margin = max_s rho_(s) W_s / W

    Prefixes suffice: the condition depends on S only through its weight and its least ratio.

    Args:
        u: Utilities of the model, shape (n,), positive.
        others: Utilities of the alternatives, shape (A, n); may be negative.
        w: Weights of the devices, shape (n,), positive; None is 1 each.
        is_proper: Leave out the coalition of all devices; n is at least 2.

    Raises:
        ValueError: A utility of the model is not positive, or there is no alternative.

    Source:
        Ray Chaudhury et al., NeurIPS 2022, Definitions 1 and 6 (arXiv:2211.02091).
    """
    _check_positive(u)
    if len(others) == 0:
        raise ValueError("core: at least one alternative model is needed, got none")
    rho, order, share = _ranked(u, others, w)
    if is_proper:
        rho, share = rho[:, :-1], share[:, :-1]
    margins = rho * share
    alternative, last = (int(at) for at in np.unravel_index(margins.argmax(), margins.shape))
    blocks = _blocks(rho, share)
    if blocks.any() and not blocks[alternative, last]:  # a margin of exactly 1, not strict
        alternative, last = (int(at) for at in np.argwhere(blocks)[0])
    return Coalition(
        members=np.sort(order[alternative, : last + 1]),
        alternative=alternative,
        margin=float(margins[alternative, last]),
        is_blocking=bool(blocks.any()),
    )


def is_blocked(u: Floats, others: Floats, w: Floats | None = None) -> bool:
    """Return whether a coalition blocks the model; see `strongest_coalition`."""
    rho, _, share = _ranked(u, others, w)
    return bool(_blocks(rho, share).any())


def largest_blocked_m(losses: Floats, others: Floats, w: Floats | None = None) -> float | None:
    """Return the largest M at which a coalition blocks the model.

    A coalition that blocks at one M blocks at each smaller valid M: its ratios are above 1, and
    they fall as M grows.

    Args:
        losses: F of the model, nats, shape (n,).
        others: F of the alternatives, nats, shape (A, n).
        w: Weights of the devices, shape (n,), positive; None is 1 each.

    Returns:
        M, nats; infinite if an alternative dominates the model, None if no coalition blocks at any
        valid M.
    """
    share = np.ones(len(losses)) if w is None else w
    low = smallest_valid_m(losses)

    def blocked(M: float) -> bool:
        return is_blocked(M - losses, M - others, w)

    if dominating(-losses, -others) is not None:
        return float("inf")
    if len(losses) < 2 or low <= 0.0 or len(others) == 0 or not blocked(low):
        return None
    # W / W_S is at least c for any coalition but that of all devices: solve rho_i = c for M.
    c = share.sum() / (share.sum() - share.min())
    high = max(low, float(((c * losses - others) / (c - 1.0)).max())) * (1.0 + ROUNDING)
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if blocked(middle) else (low, middle)
    return low


def dominating(u: Floats, others: Floats) -> int | None:
    """Return an alternative that is better for a device and worse for none; None without one.

    Args:
        u: Utilities of the model, shape (n,).
        others: Utilities of the alternatives, shape (A, n).

    Source:
        Ray Chaudhury et al., NeurIPS 2022, Definition 3 (arXiv:2211.02091).
    """
    slack = ROUNDING * np.abs(u)
    better = (others >= u - slack).all(axis=1) & (others > u + slack).any(axis=1)
    return int(better.argmax()) if better.any() else None


def proportionality(u: Floats, best: Floats, w: Floats | None = None) -> Floats:
    """Return u_i(theta) / (w_i / W best_i), shape (n,); proportional if each is at least 1.

    Args:
        u: Utilities of the model, shape (n,).
        best: Largest known utility of each device under any model, shape (n,), positive.
        w: Weights of the devices, shape (n,), positive; None is 1 each.

    Source:
        Ray Chaudhury et al., NeurIPS 2022, Definition 2 and section 4.5 (arXiv:2211.02091).
    """
    share = np.full(len(u), 1.0 / len(u)) if w is None else w / w.sum()
    found: Floats = u / (share * best)
    return found


def gain(u: Floats, other: Floats, w: Floats | None = None) -> float:
    """Return sum_i w_i u_i(theta') / u_i(theta) / W; at most 1: theta' helps no coalition to block.

    The converse fails: above 1 a coalition may still not block.

    Args:
        u: Utilities of the model, shape (n,), positive.
        other: Utilities of the alternative, shape (n,).
        w: Weights of the devices, shape (n,), positive; None is 1 each.
    """
    _check_positive(u)
    return float(np.average(other / u, weights=w))


def pseudo_core_factor(
    u: Floats, gradient_norm: float, smoothness: float, radius: float, w: Floats | None = None
) -> float:
    """Return k such that the model is (k, r)-pseudo core stable.

        k = 1 + (e r + (B r^2 / 2) sum_i w_i / u_i) / W

    No theta' within r gives each member of a coalition S more than k W / W_S times its utility.

    Args:
        u: Utilities of the model, shape (n,), positive.
        gradient_norm: e, L2 norm of sum_i w_i grad F_i / u_i at the model.
        smoothness: B: each F_i is B-smooth within r.
        radius: r, L2 distance of parameters.
        w: Weights of the devices, shape (n,), positive; None is 1 each.

    Source:
        Ray Chaudhury et al., NeurIPS 2022, Definition 5 and Theorem 3 (arXiv:2211.02091).
    Deviates:
        The text of the paper lacks equation 4: k follows from B-smoothness,
        u_i(theta') <= u_i + grad u_i (theta' - theta) + B r^2 / 2, divided by u_i and summed.
    """
    _check_positive(u)
    share = np.ones(len(u)) if w is None else w
    bound = gradient_norm * radius + 0.5 * smoothness * radius**2 * float((share / u).sum())
    return 1.0 + bound / float(share.sum())


@dataclass(frozen=True, slots=True)
class SoftmaxFit:
    """Softmax regression with the least weighted loss."""

    theta: Floats
    """Weights and, in the last column, biases, shape (classes, features + 1)."""
    gradient_norm: float
    """L2 norm of the gradient of the weighted loss at theta; 0 is the exact minimum."""

    def gap(self, radius: float) -> float:
        """Return by how much a model within `radius` can be below the loss at theta, at most.

        By convexity: f(theta') >= f(theta) - |grad f(theta)| |theta' - theta|.
        """
        return self.gradient_norm * radius


def fit_softmax(x: Floats, y: Ints, weights: Floats, classes: int) -> SoftmaxFit:
    """Minimise the weighted loss of a softmax regression without penalty.

        f(theta) = sum_j c_j (log sum_y exp z_{j,y} - z_{j,y_j}),   z_j = W x_j + b

    With c_j = w_i / (n_i u_i(theta)) of device i of example j, the minimum gives the largest
    sum_i w_i u_i(theta') / u_i(theta) over all models: the certificate of `gain`.

    Newton's method for up to `NEWTON_PARAMETERS`: examples that a model separates have an infimum
    at infinity, which L-BFGS approaches too slowly. L-BFGS for more. Both start at 0, where no
    example is separated.

    Args:
        x: Examples, shape (J, features).
        y: Classes, shape (J,).
        weights: c_j, shape (J,), positive.
        classes: Number of classes; one without examples is allowed.

    Source:
        Ray Chaudhury et al., NeurIPS 2022, Theorem 2 (arXiv:2211.02091).
    """
    inputs = np.column_stack([x, np.ones(len(x))])
    problem = _WeightedLoss(inputs, y, weights, classes)
    theta: Floats = np.zeros(classes * inputs.shape[1])
    if theta.size <= NEWTON_PARAMETERS:
        theta = _newton(problem, theta)
    else:
        found = minimize(
            problem.value,
            theta,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 2_000, "maxfun": 4_000, "ftol": 0.0, "gtol": 1e-10},
        )
        theta = found.x
    gradient_norm = float(np.linalg.norm(problem.value(theta)[1]))
    return SoftmaxFit(theta.reshape(classes, -1), gradient_norm)


class _WeightedLoss:
    """f of `fit_softmax` with its derivatives; parameters are flat, shape (classes * inputs,)."""

    def __init__(self, inputs: Floats, y: Ints, weights: Floats, classes: int) -> None:
        self._inputs, self._y, self._weights, self._classes = inputs, y, weights, classes
        self._at = np.arange(len(y))

    def _log_p(self, theta: Floats) -> Floats:
        z = self._inputs @ theta.reshape(self._classes, -1).T
        found: Floats = z - logsumexp(z, axis=1, keepdims=True)
        return found

    def value(self, theta: Floats) -> tuple[float, Floats]:
        """Return f and its gradient."""
        log_p = self._log_p(theta)
        value = -float(self._weights @ log_p[self._at, self._y])
        error = np.exp(log_p)
        error[self._at, self._y] -= 1.0
        gradient: Floats = ((self._weights[:, np.newaxis] * error).T @ self._inputs).ravel()
        return value, gradient

    def hessian(self, theta: Floats) -> Floats:
        """Return the second derivatives: blocks sum_j c_j p_a (1[a = b] - p_b) x_j x_j^T."""
        p, (k, d) = np.exp(self._log_p(theta)), (self._classes, self._inputs.shape[1])
        found: Floats = np.empty((k, d, k, d))
        for a in range(k):
            for b in range(a, k):
                curvature = self._weights * p[:, a] * (float(a == b) - p[:, b])
                block = (self._inputs * curvature[:, np.newaxis]).T @ self._inputs
                found[a, :, b, :], found[b, :, a, :] = block, block.T
        return found.reshape(k * d, k * d)


def _newton(problem: _WeightedLoss, theta: Floats) -> Floats:
    """Return the minimum by damped Newton steps."""
    value, gradient = problem.value(theta)
    for _ in range(NEWTON_STEPS):
        step = _newton_step(problem.hessian(theta), gradient)
        decrement = -float(gradient @ step)
        lower = (
            length
            for length in STEP_LENGTHS
            if problem.value(theta + length * step)[0] <= value - 1e-4 * length * decrement
        )
        length = next(lower, 0.0)
        theta = theta + length * step
        if length == 0.0 or decrement <= NEWTON_TOLERANCE * value:
            break
        value, gradient = problem.value(theta)
    return theta


def _newton_step(hessian: Floats, gradient: Floats) -> Floats:
    """Return the step to the minimum of the quadratic model; 0 if the Hessian is 0.

    The Hessian of a softmax is singular, as a constant added to all classes changes nothing, and
    vanishes where examples are separated: a multiple of the identity is added, the smallest of
    `RIDGES` with which it can be factored.
    """
    mean = np.trace(hessian) / len(gradient)
    for ridge in RIDGES:
        try:
            factor = cho_factor(hessian + ridge * mean * np.eye(len(gradient)))
        except LinAlgError:
            continue
        step: Floats = -cho_solve(factor, gradient)
        return step
    return np.zeros_like(gradient)


def _check_positive(u: Floats) -> None:
    if not np.all(u > 0.0):
        raise ValueError(
            f"core: every utility of the model must be > 0, got {u.min()}; take an M above every "
            "loss"
        )


def _ranked(u: Floats, others: Floats, w: Floats | None) -> tuple[Floats, Ints, Floats]:
    """Return ratios, descending, the devices in that order, and W_s / W, each of shape (A, n)."""
    rho: Floats = others / u
    order = np.argsort(-rho, axis=1, kind="stable")
    share = np.ones(len(u)) if w is None else w
    prefix: Floats = np.cumsum(share[order], axis=1)
    return np.take_along_axis(rho, order, axis=1), order, prefix / prefix[:, -1:]


def _blocks(rho: Floats, share: Floats) -> Bools:
    """Return whether each prefix blocks: all ratios reach W / W_s, and the first exceeds it."""
    reaches = rho * share >= 1.0 - ROUNDING
    exceeds = rho[:, :1] * share > 1.0 + ROUNDING
    blocks: Bools = reaches & exceeds
    return blocks
