"""Aggregation rules, which merge the updates of a round into the next model."""

from fairbed.coordinator.algorithms.aggregation.base import (
    Accumulator,
    Aggregator,
    Merge,
    Report,
    Reports,
    Streaming,
)
from fairbed.coordinator.algorithms.aggregation.gathered import Gathered, Models

__all__ = [
    "Accumulator",
    "Aggregator",
    "Gathered",
    "Merge",
    "Models",
    "Report",
    "Reports",
    "Streaming",
]
