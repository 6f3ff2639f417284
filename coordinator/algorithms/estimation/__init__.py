"""How long the next exchange of each device will take."""

from coordinator.algorithms.estimation.base import Estimator, Measured, Prediction
from coordinator.algorithms.estimation.build import make_estimator

__all__ = ["Estimator", "Measured", "Prediction", "make_estimator"]
