"""FedRep: a device first trains the values that it keeps, then the others.

Both sections use the gradient of one session over all parameters. In each, the gradient of the
other values counts as 0, and no term of a step moves them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbed.wire.messages import Hyperparameters
from fairbed.wire.tensors import Layout


class Alternation:
    """The two sections of local training (`Hyperparameters.personal_epochs`).

    Args:
        layout: Names the values that the device keeps (`Layout.local`).
        start: The model before the first step, shape (n_values,); not changed.
        hyperparameters: Passes of both sections, and the batch size.
        n: Examples of the device.

    Source:
        Collins et al., ICML 2021, Algorithm 1 (arXiv:2102.07078). The sections may have several
        epochs each, as in its experiments (section 5).
    """

    def __init__(
        self, layout: Layout, start: NDArray[np.float32], hyperparameters: Hyperparameters, n: int
    ) -> None:
        self._start = start[: layout.n_params]
        self._is_kept = np.zeros(layout.n_params, np.bool_)
        self._is_kept[layout.local[layout.local < layout.n_params]] = True
        self._is_held = ~self._is_kept
        self._own: NDArray[np.float32] | None = None
        """The values of the device after the first section, shape (n_kept,)."""
        self.personal_steps = personal_steps(n, hyperparameters)
        """Mini-batches of the first section."""

    def begin_shared(self, params: NDArray[np.float32]) -> None:
        """Begin the second section at the parameters of the model, shape (n_params,)."""
        self._own, self._is_held = params[self._is_kept], self._is_kept

    def mask(self, gradient: NDArray[Any]) -> None:
        """Set the gradient of the values that this section does not train to 0."""
        gradient[self._is_held] = 0.0

    def hold(self, params: NDArray[np.float32]) -> None:
        """Undo the change of these values by momentum, decay or a proximal term."""
        if self._own is None:
            np.copyto(params, self._start, where=self._is_held)
        else:
            params[self._is_kept] = self._own


def personal_steps(n: int, hyperparameters: Hyperparameters) -> int:
    """Return the mini-batches of a round that train the kept values alone."""
    return hyperparameters.personal_epochs * -(-n // hyperparameters.batch_size)
