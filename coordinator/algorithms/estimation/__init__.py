"""Estimators of the next exchange time of each device."""

from fairbed.coordinator.algorithms.estimation.base import Estimator, Measured, Prediction

__all__ = ["Estimator", "Measured", "Prediction"]
