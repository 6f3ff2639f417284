"""Real handwritten digits that travel with scikit-learn: no download, no folder."""

import numpy as np

from testbed.datasets.dataset import Dataset
from testbed.datasets.errors import DataError

MAX_INK = 16.0
"""Largest pixel value: on-pixels in a 4x4 block of the scanned bitmap."""


def load_digits() -> Dataset:
    """Return 1,797 digits of 43 writers, x float32 in [0, 1], shape (1797, 1, 8, 8).

    Raises:
        DataError: scikit-learn is not installed.

    Source:
        E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits (test part), UCI 1998.
    """
    try:
        # About a second and 100 MB: only a process that reads the digits pays for them.
        from sklearn import datasets
    except ImportError as exc:
        raise DataError(
            "digits",
            f"scikit-learn must be importable, got {exc}",
            "install fairbed with its coordinator extra",
        ) from exc
    bunch = datasets.load_digits()
    return Dataset(
        name="digits",
        x=(bunch.images[:, np.newaxis] / MAX_INK).astype(np.float32),
        y=bunch.target.astype(np.int64),
        classes=10,
        description="1,797 handwritten digits, 8x8 pixels, 10 classes",
        source="UCI Optical Recognition of Handwritten Digits, with scikit-learn; CC BY 4.0",
        origin="built-in",
    )
