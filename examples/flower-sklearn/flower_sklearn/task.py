"""Model and data of the app; no part of it knows Flower."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

CLASSES, FEATURES = 10, 64


def make_model(epochs: int) -> LogisticRegression:
    """Return a model with weights of zero, which goes on from the weights it is given."""
    model = LogisticRegression(max_iter=epochs, warm_start=True, solver="saga")
    model.classes_ = np.arange(CLASSES)
    set_arrays(model, [np.zeros((CLASSES, FEATURES)), np.zeros(CLASSES)])
    return model


def arrays_of(model: LogisticRegression) -> list[np.ndarray]:
    """Return weights, shape (CLASSES, FEATURES), and intercepts, shape (CLASSES,)."""
    return [model.coef_, model.intercept_]


def set_arrays(model: LogisticRegression, arrays: list[np.ndarray]) -> None:
    """Give the model weights and intercepts."""
    model.coef_, model.intercept_ = arrays[0], arrays[1]


def load_data(partition: int, partitions: int) -> tuple[np.ndarray, ...]:
    """Return the digits of one partition: x and y for training, x and y for tests.

    Each partition has all classes, as scikit-learn needs them.
    """
    digits = load_digits()
    x, y = digits.data / 16.0, digits.target
    order = np.argsort(y, kind="stable")[partition::partitions]
    order = np.random.default_rng(partition).permutation(order)
    cut = len(order) // 5
    return x[order[cut:]], y[order[cut:]], x[order[:cut]], y[order[:cut]]
