"""Data sets by name, as arrays."""

from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.loading import load

__all__ = ["Dataset", "DatasetError", "load"]
