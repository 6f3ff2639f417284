"""Selectors, which choose the cohort of a round."""

from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes, Selector

__all__ = ["Candidates", "Outcomes", "Selector"]
