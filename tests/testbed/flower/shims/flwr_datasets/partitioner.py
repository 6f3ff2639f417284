"""Stands in for the partitioners: their arguments are noted."""

from typing import Any


class IidPartitioner:
    """Any partitioner."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings


DirichletPartitioner = IidPartitioner
