"""An example of a local rule: SCAFFOLD, whose control variates correct local steps.

    [training]
    rule = "scaffold:Scaffold"             # run in the folder of this file, or install it

    [aggregation]
    weights = "equal"                      # of updates and returned vectors

Check it with `fairbed doctor --local-training scaffold:Scaffold`. A physical device runs it if its
owner allows it: `device-agent --local-training scaffold:Scaffold`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fairbed.wire.local_training import Floats32, Merged, Step, Trained


class Scaffold:
    """Adds c - c_k to each gradient, so that devices with unlike data do not drift apart.

        y <- y - eta (g(y) - c_k + c)                    K steps from x, the model that was sent
        c_k <- c_k - c + (x - y) / (K eta)               option II
        c <- c + |S| / N mean of the changes of c_k      at the coordinator

    (x - y) / (K eta) is the mean of the corrected gradients only if each step is -eta times one, so
    momentum, weight decay, `clip_norm` and `proximal` are refused. c is the mean of all c_k only if
    the weight of a device stays, so fair rules are refused, too. It is exact for equal weights, and
    for weights by examples with all devices in each round. The server step may be any.
    A device that made no step keeps its c_k.

    Source:
        Karimireddy et al., ICML 2020, Algorithm 1 (arXiv:1910.06378). The global step size is
        `aggregation.server_learning_rate`.
    """

    sent = ("c",)
    kept = ("c_k",)
    returned = ("change",)
    defined_for = ("epochs", "learning_rate_decay", "partial_participation", "weights", "server")

    def gradient(self, step: Step) -> None:
        """Correct the gradient of a mini-batch."""
        step.gradient += step.vectors["c"] - step.vectors["c_k"]

    def end(self, trained: Trained) -> Mapping[str, Floats32]:
        """Return the next c_k and its change, each of shape (..., n_params)."""
        x, y, c = trained.anchor, trained.params, trained.vectors["c"]
        steps = np.asarray(trained.steps)[..., np.newaxis]
        per_step = 1.0 / (np.maximum(steps, 1) * trained.learning_rate)
        # The factor has the type of the vectors, so that they keep it.
        change = (x - y) * per_step.astype(y.dtype) - c
        change *= steps > 0
        return {"c_k": trained.vectors["c_k"] + change, "change": change}

    def merge(self, merged: Merged) -> Mapping[str, Floats32]:
        """Return the next c, shape (n_params,)."""
        share = merged.n_merged / merged.n_devices
        return {"c": merged.sent["c"] + share * merged.returned["change"]}

    def to_state(self) -> dict[str, Any]:
        """Return the state at the coordinator: none, as c is a vector that is sent."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
