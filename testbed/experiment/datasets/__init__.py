"""Data sets by name, as arrays."""

from fairbed.testbed.experiment.datasets.dataset import DataError, Dataset
from fairbed.testbed.experiment.datasets.loading import load

__all__ = ["DataError", "Dataset", "load"]
