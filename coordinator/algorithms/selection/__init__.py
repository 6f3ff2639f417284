"""Who trains in this round."""

from coordinator.algorithms.selection.base import Candidates, Outcomes, Selector
from coordinator.algorithms.selection.build import make_selector

__all__ = ["Candidates", "Outcomes", "Selector", "make_selector"]
