"""Data and parameters of the app; no part of it knows Flower."""

from typing import Any

import numpy as np
import xgboost
from sklearn.datasets import load_breast_cancer

PREFIX = "params."
"""Of the keys of the configuration that are parameters of xgboost."""


def load_data(partition: int, partitions: int) -> tuple[xgboost.DMatrix, xgboost.DMatrix]:
    """Return the examples of one partition: for training, and for tests."""
    data = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(data.target))[partition::partitions]
    cut = max(1, len(order) // 5)
    test, train = order[:cut], order[cut:]
    return tuple(
        xgboost.DMatrix(data.data[part], label=data.target[part]) for part in (train, test)
    )


def parameters(config: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of xgboost in a configuration."""
    found = {
        key.removeprefix(PREFIX).replace("-", "_"): value
        for key, value in config.items()
        if key.startswith(PREFIX)
    }
    return {"objective": "binary:logistic", "eval_metric": "auc", "nthread": 1, **found}


def booster_of(model: bytes, config: dict[str, Any]) -> xgboost.Booster:
    """Return a booster with the trees of a model, which may be empty."""
    booster = xgboost.Booster(params=parameters(config))
    if model:
        booster.load_model(bytearray(model))
    return booster
