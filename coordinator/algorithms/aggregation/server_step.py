"""Server steps: how the pseudo-gradient moves the parameters of the model."""

from typing import Any, Literal, TypeAlias

import numpy as np

from fairbed.coordinator.algorithms.aggregation.running_sum import blocks
from fairbed.coordinator.algorithms.arrays import Floats, Vector

LARGEST = float(np.finfo(np.float32).max)
"""Bound of a stored moment: it stays finite, whatever devices send."""

Optimiser: TypeAlias = Literal["momentum", "adagrad", "adam", "yogi"]


class Plain:
    """w' = w + eta_s d.

    Source:
        McMahan et al., AISTATS 2017 (arXiv:1602.05629), with eta_s = 1; Reddi et al., ICLR 2021,
        Algorithm 1 (arXiv:2003.00295).
    """

    def __init__(self, learning_rate: float = 1.0) -> None:
        self.learning_rate = learning_rate
        """eta_s."""

    def step(self, params: Vector, d: Floats) -> Vector:
        """Return w + eta_s d, shape (n_params,)."""
        d *= self.learning_rate
        d += params
        with np.errstate(over="ignore"):  # diverged models are sent as such
            return d.astype(np.float32)

    def to_state(self) -> dict[str, Any]:
        """Return the empty state."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the empty state."""


class FedOpt:
    """FedAvgM, FedAdagrad, FedAdam or FedYogi: steps by moments of the pseudo-gradients.

        momentum:  m' = beta_1 m + d,   w' = w + eta_s m'
        others:    m' = beta_1 m + (1 - beta_1) d,   w' = w + eta_s m' / (sqrt(v') + tau)
        adagrad:   v' = v + d^2
        adam:      v' = beta_2 v + (1 - beta_2) d^2
        yogi:      v' = v - (1 - beta_2) d^2 sign(v - d^2)

    Each coordinate by itself, without bias correction, from m = 0 and v = tau^2. Moments persist
    between rounds, rounded to float32; one that float32 cannot hold counts as its largest value.
    A pseudo-gradient that is not finite changes neither moments nor parameters.

    Source:
        Reddi et al., ICLR 2021, Algorithm 2 (arXiv:2003.00295); momentum: Hsu et al. 2019
        (arXiv:1909.06335), FedAvgM.
    """

    def __init__(
        self,
        kind: Optimiser,
        learning_rate: float,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
    ) -> None:
        """Start before the first round.

        Args:
            kind: The optimiser.
            learning_rate: eta_s.
            beta1: Decay of m, in [0, 1).
            beta2: Decay of v, in [0, 1), for adam and yogi.
            tau: Degree of adaptivity, positive, in the unit of a parameter; not for momentum.
        """
        self._kind, self._learning_rate = kind, learning_rate
        self._beta1, self._beta2, self._tau = beta1, beta2, tau
        self._m: Vector | None = None
        """m, shape (n_params,); None before the first round, and if beta1 is 0."""
        self._v: Vector | None = None
        """v, shape (n_params,); None before the first round, and for momentum."""

    def step(self, params: Vector, d: Floats) -> Vector:
        """Return the next parameters, shape (n_params,), and update the moments."""
        if not np.isfinite(d).all():
            return np.copy(params)
        if self._beta1 and self._m is None:
            self._m = np.zeros(len(d), dtype=np.float32)
        if self._kind != "momentum" and self._v is None:
            self._v = np.full(len(d), self._tau**2, dtype=np.float32)
        after = np.empty(len(d), dtype=np.float32)
        for part in blocks(len(d)):
            step = self._first_moment(part, d[part])
            if self._v is not None:
                step /= self._root(self._v[part], d[part])
            step *= self._learning_rate
            step += params[part]
            with np.errstate(over="ignore"):  # diverged models are sent as such
                after[part] = step
        return after

    def _first_moment(self, part: slice, d: Floats) -> Floats:
        """Update m in `part` by d, shape (n,); return it, shape (n,)."""
        gain = 1.0 if self._kind == "momentum" else 1.0 - self._beta1
        if self._m is None:
            return gain * d
        m = self._beta1 * self._m[part].astype(np.float64) + gain * d
        self._m[part] = np.clip(m, -LARGEST, LARGEST, out=m)
        return m

    def _root(self, v: Vector, d: Floats) -> Floats:
        """Update v, shape (n,), in place by d, shape (n,); return sqrt(v) + tau, shape (n,)."""
        squares = np.square(d)
        wide = v.astype(np.float64)
        match self._kind:
            case "adagrad":
                wide += squares
            case "adam":
                wide *= self._beta2
                wide += (1.0 - self._beta2) * squares
            case _:
                wide -= (1.0 - self._beta2) * squares * np.sign(wide - squares)
        v[:] = np.clip(wide, 0.0, LARGEST, out=wide)
        root: Floats = np.sqrt(wide)
        root += self._tau
        return root

    def to_state(self) -> dict[str, Any]:
        """Return the moments as bytes of float32, for the checkpoint."""
        return {
            "m": None if self._m is None else self._m.tobytes(),
            "v": None if self._v is None else self._v.tobytes(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._m, self._v = _vector(state["m"]), _vector(state["v"])


def _vector(data: bytes | None) -> Vector | None:
    return None if data is None else np.frombuffer(data, dtype=np.float32).copy()
