"""How updates become the next model."""

from coordinator.algorithms.aggregation.base import (
    Accumulator,
    Aggregator,
    Merge,
    Report,
    Reports,
    Streaming,
)
from coordinator.algorithms.aggregation.build import make_aggregator
from coordinator.algorithms.aggregation.gathered import Gathered, Models

__all__ = [
    "Accumulator",
    "Aggregator",
    "Gathered",
    "Merge",
    "Models",
    "Report",
    "Reports",
    "Streaming",
    "make_aggregator",
]
