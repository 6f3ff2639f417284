"""An example of a weight rule: TERM, which favours devices with a large loss.

    [aggregation]
    rule = "term:Term"                     # run in the folder of this file, or install it
    rule_options = { tilt = 1.0 }
    weights = "n"

Check it with `fairbed doctor --aggregator term:Term --option tilt=0.5`. The built-in rule `term`
has the same weights, bit for bit.
"""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.aggregation import Updates, normalised
from fairbed.coordinator.algorithms.arrays import Floats, Ints


class Term:
    """Weights in proportion to p_k e^(t F_k), p of `aggregation.weights`.

    e^(t F_k) overflows for large losses, so it is written as mantissa x 2^exponent.

    Source:
        Li et al., ICLR 2021 (arXiv:2007.01162).
    """

    needs_loss = True  # F_k(w_t), the loss of the model that a device is sent
    needs_norms = False  # |D_k|^2
    needs_models = False  # D_k, which are then stored until the last one has arrived

    def __init__(self, tilt: float = 1.0) -> None:
        """Take the keys of `[aggregation.rule_options]` by name."""
        if not -1e3 <= tilt <= 1e3:
            raise ValueError(f"tilt must be from -1000 to 1000, got {tilt}; 0 is FedAvg")
        self._tilt = tilt

    def decide(self, updates: Updates) -> Floats:
        """Return the weight of each update, shape (K,), at least 0; all 0: the model stays."""
        mantissas, exponents = self.factors(updates)
        return normalised(np.ldexp(mantissas, exponents - exponents.max()))

    def factors(self, updates: Updates) -> tuple[Floats, Ints]:
        """Return what the weights are in proportion to, each from its own update only.

        With it, updates are merged as they arrive; a rule that compares updates has none.
        """
        with np.errstate(over="ignore"):
            exponents = np.clip(self._tilt * updates.losses / np.log(2.0), -1e9, 1e9)
        whole = np.floor(exponents)
        return updates.shares * np.exp2(exponents - whole), whole.astype(np.int64)

    def to_state(self) -> dict[str, Any]:
        """Return the state for a resumed run, as plain numbers and lists; TERM has none."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned, in this process or another."""
