"""A server step, the move of the parameters by the pseudo-gradient: Template."""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Vector


class Template:
    """A step by the moving average of the pseudo-gradients.

        m' = decay m + (1 - decay) d,   w' = w + m',   m = 0 before the first round

    Args:
        decay: At least 0 and below 1; 0 is the plain step. The keys of
            `[aggregation.server_options]` are arguments.
    """

    def __init__(self, decay: float = 0.5) -> None:
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay}; 0 is plain")
        self._decay = decay
        self._m: Vector | None = None

    def step(self, params: Vector, d: Floats) -> Floats:
        """Return the next parameters, shape (n_params,), from w and d of the same shape."""
        m = np.zeros(len(params)) if self._m is None else self._m.astype(np.float64)
        m = self._decay * m + (1.0 - self._decay) * d
        self._m = m.astype(np.float32)  # as the checkpoint stores it: a resumed run has its bits
        return params + m

    def to_state(self) -> dict[str, Any]:
        """Return the state for a resumed run; bytes, because m is as large as the model."""
        return {"m": b"" if self._m is None else self._m.tobytes()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._m = np.frombuffer(state["m"], dtype=np.float32) if state["m"] else None
