"""How updates become the next model."""

from coordinator.algorithms.aggregation.base import Aggregator, Merge, Reports
from coordinator.algorithms.aggregation.build import make_aggregator

__all__ = ["Aggregator", "Merge", "Reports", "make_aggregator"]
