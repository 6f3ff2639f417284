"""A local rule, a change of the training on devices: Template."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fairbed.wire.local_training import Floats32, Merged, Step, Trained


class Template:
    """Moves the gradient of a device towards that of the fleet.

        g <- g + strength (mean - own)            each step
        own <- (w_t - w_k) / (steps eta)          mean gradient of the device in this round
        mean <- mean of `own` over the cohort     at the coordinator

    All arrays of a device may have leading axes `...`, one device each: a replay trains many at
    once. A device keeps nothing in this object, only in its vectors.

    Args:
        strength: At least 0; 0 is SGD. The keys of `[training.rule_options]` are arguments.
    """

    sent = ("mean",)  # from the coordinator, with the model; each is as long as its parameters
    kept = ("own",)  # on the device until its next round; zero before the first
    returned = ("now",)  # from the device, with the update
    # Settings for which the formulas hold, beyond plain SGD and FedAvg; others are refused. Here
    # momentum, weight_decay, clip_norm and proximal would enter `own`, which is a mean gradient.
    defined_for = ("epochs", "learning_rate_decay", "partial_participation", "weights", "server")

    def __init__(self, strength: float = 0.5) -> None:
        if strength < 0.0:
            raise ValueError(f"strength must be >= 0, got {strength}; 0 is SGD")
        self._strength = strength

    def gradient(self, step: Step) -> None:
        """Change `step.gradient` in place; every other array is read-only."""
        step.gradient += self._strength * (step.vectors["mean"] - step.vectors["own"])

    def end(self, trained: Trained) -> Mapping[str, Floats32]:
        """Return all returned vectors, and the kept ones that change, shape (..., n_params)."""
        steps = np.maximum(trained.steps, 1)[..., np.newaxis]  # a device may stop before a step
        factor = (1.0 / (steps * trained.learning_rate)).astype(np.float32)
        own = factor * (trained.anchor - trained.params)
        return {"own": own, "now": own}

    def merge(self, merged: Merged) -> Mapping[str, Floats32]:
        """Return the vectors to send that change; may also change `merged.params` in place."""
        return {"mean": merged.returned["now"]}

    def to_state(self) -> dict[str, Any]:
        """Return the state at the coordinator, which has none but the vectors that it sends."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
