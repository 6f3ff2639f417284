"""Aggregation: weights of the updates, pseudo-gradient and server step make the next model."""

from fairbed.coordinator.algorithms.aggregation.base import Stateless, Updates
from fairbed.coordinator.algorithms.aggregation.guard import normalised

__all__ = ["Stateless", "Updates", "normalised"]
