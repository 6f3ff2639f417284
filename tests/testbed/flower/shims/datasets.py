"""Stands in for `datasets`, which downloads: small pictures and flowers made here."""

from collections.abc import Callable
from typing import Any

import numpy as np

PICTURES = {
    "uoft-cs/cifar10": ("img", (32, 32, 3)),
    "zalando-datasets/fashion_mnist": ("image", (28, 28)),
}
CLASSES = 10
TEST_SEED = 1_000_000


class Frame:
    """Columns of a table, as much of a pandas frame as an example uses."""

    def __init__(self, values: Any, names: list[str]) -> None:
        self.values, self._names = values, names

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return Frame(self.values[key], self._names)
        if isinstance(key, str):
            return Frame(self.values[:, self._names.index(key)].astype(int), [key])
        return Frame(self.values[:, [self._names.index(name) for name in key]], key)


class Dataset:
    """Examples by column."""

    def __init__(self, columns: dict[str, list[Any]], transform: Any = None) -> None:
        self._columns, self._transform = columns, transform

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, at: int) -> dict[str, Any]:
        batch = {name: [column[at]] for name, column in self._columns.items()}
        if self._transform is not None:
            batch = self._transform(batch)
        return {name: column[0] for name, column in batch.items()}

    def with_transform(self, transform: Callable[[Any], Any]) -> "Dataset":
        """Return the examples, transformed when they are read."""
        return Dataset(self._columns, transform)

    def with_format(self, kind: str) -> Any:
        """Return the examples, for pandas as a frame."""
        if kind != "pandas":
            return self
        names = list(self._columns)
        return Frame(np.column_stack([self._columns[name] for name in names]), names)

    def train_test_split(self, test_size: float, seed: int) -> "Splits":
        """Return two parts."""
        del seed
        cut = int(len(self) * (1 - test_size))
        train = {name: column[:cut] for name, column in self._columns.items()}
        test = {name: column[cut:] for name, column in self._columns.items()}
        return Splits(train=Dataset(train), test=Dataset(test))


class Splits(dict[str, Dataset]):
    """Parts of a data set, by name."""

    def with_transform(self, transform: Callable[[Any], Any]) -> "Splits":
        """Return all parts, transformed."""
        return Splits({name: part.with_transform(transform) for name, part in self.items()})


def make(name: str, seed: int, examples: int = 40) -> Dataset:
    """Return examples of a data set of this name."""
    if name == "hitorilabs/iris":
        from sklearn.datasets import load_iris

        iris = load_iris()
        rows = np.random.default_rng(seed).permutation(len(iris.target))[: 2 * examples]
        fields = ["sepal_length", "sepal_width", "petal_length", "petal_width"]
        columns = {field: list(iris.data[rows, at]) for at, field in enumerate(fields)}
        return Dataset({**columns, "species": list(iris.target[rows])})
    from PIL import Image

    column, shape = PICTURES[name]
    means = np.random.default_rng(0).uniform(0, 255, (CLASSES, *shape))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, examples)
    noisy = means[labels] + rng.normal(0, 40, (examples, *shape))
    pictures = [Image.fromarray(each) for each in np.clip(noisy, 0, 255).astype(np.uint8)]
    return Dataset({column: pictures, "label": [int(each) for each in labels]})


def load_dataset(name: str, split: str | None = None) -> Any:
    """Return a data set, or one split of it."""
    parts = Splits(train=make(name, 0), test=make(name, TEST_SEED))
    return parts if split is None else parts[split]
