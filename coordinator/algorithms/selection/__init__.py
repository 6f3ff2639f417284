"""Who trains in this round."""

from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes, Selector

__all__ = ["Candidates", "Outcomes", "Selector"]
