"""How long the next exchange of each device will take."""

from fairbed.coordinator.algorithms.estimation.base import Estimator, Measured, Prediction

__all__ = ["Estimator", "Measured", "Prediction"]
