"""Stands in for `flwr_datasets`, which downloads."""

from typing import Any

import datasets  # type: ignore[import-not-found]  # of this folder, which is on no path here


class FederatedDataset:
    """A data set in parts."""

    def __init__(self, dataset: str, partitioners: dict[str, Any]) -> None:
        self._dataset = dataset
        assert set(partitioners) == {"train"}

    def load_partition(self, partition_id: int, split: str = "train") -> Any:
        """Return one part."""
        assert split == "train"
        return datasets.make(self._dataset, 1 + partition_id)
