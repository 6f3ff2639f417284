"""Optimisers of local training beside SGD with momentum: Adam and AdamW, and their kept state.

A state is one vector for each device: its moments, each as long as the parameters, then the number
of steps that they have seen, as two numbers that float32 holds exactly.
"""

from types import EllipsisType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fairbed.wire.messages import Hyperparameters

Float = TypeVar("Float", bound=np.floating[Any])

COUNT_VALUES = 2
"""Values of the step count: the quotient and the rest of a division by `COUNT_BASE`."""

COUNT_BASE = 1 << 20
"""float32 holds integers up to 2^24 exactly: a count up to 2^44 fits into two values."""

BLOCK = 1 << 14
"""Values of a pass: five arrays of them, 320 kB, fit into the second-level cache of a board. So the
twelve operations of a step read each value from memory once."""


def state_size(hyperparameters: Hyperparameters, n_params: int) -> int:
    """Return the values of the state that a device keeps; 0 if the optimiser has none."""
    moments = hyperparameters.n_moments
    return moments * n_params + COUNT_VALUES if moments else 0


def count_of(state: NDArray[Float]) -> NDArray[np.int64]:
    """Return the steps that a state has seen, shape (..., 1), given its shape (..., n_state)."""
    high, low = state[..., -2:-1].astype(np.int64), state[..., -1:].astype(np.int64)
    count: NDArray[np.int64] = high * COUNT_BASE + low
    return count


def write_count(state: NDArray[Float], count: NDArray[np.int64]) -> None:
    """Write the steps that a state has seen; the shapes are those of `count_of`."""
    state[..., -2:-1], state[..., -1:] = np.divmod(count, COUNT_BASE)


class Adam:
    """Adam and AdamW on parameters, shape (..., n_params), in place.

        g = g + lambda w                                Adam;   AdamW: w = w - eta lambda w
        m = beta_1 m + (1 - beta_1) g
        v = beta_2 v + (1 - beta_2) g^2
        w = w - eta (m / (1 - beta_1^t)) / (sqrt(v / (1 - beta_2^t)) + epsilon)

    with t the steps so far, this one included, and lambda the weight decay.

    Args:
        hyperparameters: Betas, epsilon and weight decay.
        first: m, shape (..., n_params).
        second: v, likewise.

    Source:
        Kingma and Ba, ICLR 2015, Algorithm 1 (arXiv:1412.6980); Loshchilov and Hutter, ICLR 2019,
        Algorithm 2 (arXiv:1711.05101); as torch.optim.Adam and AdamW.
    """

    def __init__(
        self, hyperparameters: Hyperparameters, first: NDArray[Float], second: NDArray[Float]
    ) -> None:
        assert hyperparameters.optimiser is not None, "adam has settings"
        self._h, self._settings = hyperparameters, hyperparameters.optimiser
        self._first, self._second = first, second

    def step(
        self,
        gradient: NDArray[Float],
        params: NDArray[Float],
        rate: float | NDArray[np.float64],
        count: NDArray[np.int64],
        part: slice | EllipsisType,
    ) -> None:
        """Take one step; overwrites `gradient`.

        Args:
            gradient: Gradient of the models in `part`, shape (..., n_params).
            params: These models; changed.
            rate: eta, one for all or shape (..., 1).
            count: t, shape (..., 1).
            part: Their moments, on the first axis.
        """
        h, dtype, settings = self._h, params.dtype, self._settings
        beta_1, beta_2 = settings.betas
        t = count.astype(np.float64)
        root = np.sqrt(1.0 - beta_2**t)
        # eta m / c_1 / (sqrt(v) / root + epsilon) = (eta root / c_1) m / (sqrt(v) + epsilon root)
        length = (rate * root / (1.0 - beta_1**t)).astype(dtype)
        term = (settings.epsilon * root).astype(dtype)
        rest = np.asarray(1.0 - rate * h.weight_decay).astype(dtype)
        new_1, new_2 = dtype.type(1.0 - beta_1), dtype.type(1.0 - beta_2)
        old_2, decay = dtype.type(beta_2), dtype.type(h.weight_decay)
        first, second, n = self._first[part], self._second[part], params.shape[-1]
        width = min(n, max(1, BLOCK * n // max(1, params.size)))
        scratch = np.empty((*params.shape[:-1], width), dtype)
        for start in range(0, n, width):
            at = slice(start, min(start + width, n))
            g, w, m, v = gradient[..., at], params[..., at], first[..., at], second[..., at]
            part_of = scratch[..., : g.shape[-1]]
            if h.weight_decay and settings.name == "adam":
                g += np.multiply(w, decay, out=part_of)
            elif h.weight_decay:
                w *= rest
            np.subtract(g, m, out=part_of)
            part_of *= new_1
            m += part_of
            g *= g
            g *= new_2
            v *= old_2
            v += g
            np.sqrt(v, out=part_of)
            part_of += term
            np.divide(m, part_of, out=g)
            g *= length
            w -= g
