"""Local rules for tests: one that uses every kind of vector, and faulty ones."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbed.wire.local_training import Merged, Step, Trained

HERE = "tests.local_rules"
DRIFT = f"{HERE}:Drift"

Vector = NDArray[np.float32]


class Drift:
    """Corrects the drift of a device by control variates, as SCAFFOLD does."""

    sent: tuple[str, ...] = ("c",)
    kept: tuple[str, ...] = ("c_k",)
    returned: tuple[str, ...] = ("change",)

    def gradient(self, step: Step) -> None:
        step.gradient += step.vectors["c"] - step.vectors["c_k"]

    def end(self, trained: Trained) -> Mapping[str, Vector]:
        c, c_k = trained.vectors["c"], trained.vectors["c_k"]
        scale = 1.0 / (trained.steps * trained.learning_rate)
        moved = (trained.anchor - trained.params) * scale.astype(np.float32)[..., np.newaxis]
        return {"c_k": c_k - c + moved, "change": moved - c}

    def merge(self, merged: Merged) -> Mapping[str, Vector]:
        share = np.float32(merged.n_merged / merged.n_devices)
        return {"c": merged.sent["c"] + share * merged.returned["change"]}

    def to_state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        pass


class Raising(Drift):
    """Raises on every device."""

    def gradient(self, step: Step) -> None:
        raise RuntimeError("no gradient\nof this rule")


class Reshaping(Drift):
    """Replaces the gradient by one of another shape."""

    def gradient(self, step: Step) -> None:
        step.gradient = step.gradient[..., :-1]


class Forgetful(Drift):
    """Does not return its vector."""

    def end(self, trained: Trained) -> Mapping[str, Vector]:
        return {}


class WrongMerge(Drift):
    """Sends a vector of another dtype."""

    def merge(self, merged: Merged) -> Mapping[str, Vector]:
        return {"c": merged.sent["c"].astype(np.float64)}


class Keeping(Drift):
    """Has a vector on the device alone."""

    sent: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()


class Momentum:
    """Moves the next model at the coordinator, which alone has a state."""

    sent: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()

    def __init__(self, beta: float = 0.5) -> None:
        self._beta = np.float32(beta)
        self._velocity: Vector | None = None

    def gradient(self, step: Step) -> None:
        pass

    def end(self, trained: Trained) -> Mapping[str, Vector]:
        return {}

    def merge(self, merged: Merged) -> Mapping[str, Vector]:
        moved = merged.params - merged.before
        if self._velocity is not None:
            moved += self._beta * self._velocity
            merged.params[...] = merged.before + moved
        self._velocity = moved
        return {}

    def to_state(self) -> dict[str, Any]:
        return {"velocity": None if self._velocity is None else self._velocity.tobytes()}

    def load_state(self, state: dict[str, Any]) -> None:
        saved = state["velocity"]
        self._velocity = None if saved is None else np.frombuffer(saved, dtype=np.float32).copy()
