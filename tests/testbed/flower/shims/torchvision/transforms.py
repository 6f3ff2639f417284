"""The transforms that Flower's examples use."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Compose:
    """One transform after another."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self._transforms = transforms

    def __call__(self, picture: Any) -> Any:
        for each in self._transforms:
            picture = each(picture)
        return picture


class ToTensor:
    """A picture as numbers from 0 to 1, channels first."""

    def __call__(self, picture: Any) -> Tensor:
        values = np.asarray(picture, np.float32) / 255.0
        values = values[..., None] if values.ndim == 2 else values
        return torch.from_numpy(values.transpose(2, 0, 1).copy())


class Normalize:
    """Numbers with a mean and a deviation for each channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._mean, self._std = (torch.tensor(x)[:, None, None] for x in (mean, std))

    def __call__(self, picture: Tensor) -> Tensor:
        return (picture - self._mean) / self._std


class RandomCrop:
    """A part of a padded picture."""

    def __init__(self, size: int, padding: int) -> None:
        self._size, self._padding = size, padding

    def __call__(self, picture: Any) -> Any:
        values = np.pad(np.asarray(picture), self._padding)
        row, column = torch.randint(0, 2 * self._padding + 1, (2,)).tolist()
        return values[row : row + self._size, column : column + self._size]


class RandomHorizontalFlip:
    """A picture, or its mirror image."""

    def __call__(self, picture: Any) -> Any:
        return np.asarray(picture)[:, ::-1] if torch.rand(()) < 0.5 else picture
