"""Data sets by name, as arrays."""

from testbed.datasets.dataset import Dataset
from testbed.datasets.errors import DataError
from testbed.datasets.loading import load

__all__ = ["DataError", "Dataset", "load"]
