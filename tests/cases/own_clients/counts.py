"""A client whose data lie on its device, or, without any, are its number twice."""

import importlib.util
import os
from typing import Any

import numpy as np


class Counts:
    """Returns the shares of its labels."""

    def __init__(self, context: Any) -> None:
        self._labels = np.array([context.number] * 2)
        if context.folder:
            self._labels = np.load(os.path.join(context.folder, "labels.npy"))
        self.n_examples = len(self._labels)

    @staticmethod
    def initial(config: dict[str, Any]) -> list[Any]:
        """Return the model before round 1."""
        return [np.zeros(10, np.float32)]

    def fit(self, arrays: list[Any], config: dict[str, Any]) -> Any:
        """Count the labels."""
        counts = np.bincount(self._labels, minlength=10) / len(self._labels)
        has_fairbed = importlib.util.find_spec("msgspec") is not None
        return [counts], len(self._labels), {"has fairbed": float(has_fairbed)}
