"""An example of a local rule: FedDyn, whose dynamic regulariser aligns local optima.

    [training]
    rule = "feddyn:FedDyn"                 # run in the folder of this file, or install it
    rule_options = { alpha = 0.1 }

    [aggregation]
    weights = "equal"                      # the mean over the cohort

Check it with `fairbed doctor --local-training feddyn:FedDyn --option alpha=0.1`. A physical device
runs it if its owner allows it: `device-agent --local-training feddyn:FedDyn`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fairbed.wire.local_training import Floats32, Merged, Step, Trained


class FedDyn:
    """Adds alpha (w - w_t) - g_k to each gradient; the coordinator corrects the mean by h.

        g = grad F_k(w) - g_k + alpha (w - w_t)          each step
        g_k <- g_k - alpha (w_k - w_t)                   w_k: after the last step
        h <- h - alpha / N sum over the cohort of (w_k - w_t)
        w_{t+1} = mean over the cohort of w_k - h / alpha

    g_k is the gradient of F_k at w_k, whichever steps of SGD lead there: momentum, weight decay as
    a part of F_k, and clipped steps are possible. Another proximal term is not in the update of
    g_k, and h needs the mean of the w_k, with weights that stay, and no other server step.
    h has float64 values: 8 bytes per parameter in each checkpoint.

    Source:
        Acar et al., ICLR 2021, Algorithm 1 (arXiv:2111.04263).
        Deviates: local training is SGD, where the paper assumes an exact minimum.
    """

    sent = ()
    kept = ("g_k",)
    returned = ()
    defined_for = (
        "epochs",
        "momentum",
        "weight_decay",
        "clip_norm",
        "learning_rate_decay",
        "partial_participation",
        "weights",
    )

    def __init__(self, alpha: float = 0.1) -> None:
        """Take the keys of `[training.rule_options]` by name."""
        if not 0.0 < alpha <= 1e3:
            raise ValueError(f"alpha must be above 0 and at most 1000, got {alpha}; try 0.1")
        self._alpha = alpha
        self._h: np.ndarray[Any, np.dtype[np.float64]] | None = None
        """Correction at the coordinator, shape (n_params,); None before the first round."""

    def gradient(self, step: Step) -> None:
        """Change the gradient of a mini-batch."""
        step.gradient += self._alpha * (step.params - step.anchor) - step.vectors["g_k"]

    def end(self, trained: Trained) -> Mapping[str, Floats32]:
        """Return the next g_k, shape (..., n_params)."""
        moved = trained.params - trained.anchor
        return {"g_k": trained.vectors["g_k"] - self._alpha * moved}

    def merge(self, merged: Merged) -> Mapping[str, Floats32]:
        """Correct the next model, which is the mean over the cohort."""
        h = np.zeros(merged.params.shape) if self._h is None else self._h
        share = merged.n_merged / merged.n_devices
        self._h = h - self._alpha * share * (merged.params.astype(np.float64) - merged.before)
        merged.params -= (self._h / self._alpha).astype(merged.params.dtype)
        return {}

    def to_state(self) -> dict[str, Any]:
        """Return the state for a resumed run; bytes, because h is as large as the model."""
        return {"h": b"" if self._h is None else self._h.tobytes()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._h = np.frombuffer(state["h"]) if state["h"] else None
