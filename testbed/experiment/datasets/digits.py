"""The handwritten digits that scikit-learn ships: no download, no folder."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.install import install_command

MAX_INK = 16.0
"""Largest pixel value: on-pixels in a 4x4 block of the scanned bitmap."""

FILE = Path("datasets", "data", "digits.csv.gz")
"""Path within scikit-learn; each line has 64 pixels and the digit."""


def load_digits() -> Dataset:
    """Return 1,797 digits of 43 writers, x float32 in [0, 1], shape (1797, 1, 8, 8).

    The file is read directly, because an import of scikit-learn takes about a second and 100 MB.

    Raises:
        DatasetError: scikit-learn is not installed, or lacks its data.

    Source:
        E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits (test part), UCI 1998.
    """
    spec = find_spec("sklearn")
    places = spec.submodule_search_locations if spec is not None else None
    if not places:
        raise DatasetError(
            "digits",
            "scikit-learn must be installed, got none",
            f"run: {install_command('fairbed[testbed]')}",
        )
    path = Path(places[0]) / FILE
    try:
        table = np.loadtxt(path, delimiter=",")
    except (OSError, EOFError, ValueError) as exc:
        raise DatasetError(
            "digits", f"must be readable in {path}, got {exc}", "install scikit-learn again"
        ) from exc
    return Dataset(
        name="digits",
        x=(table[:, :-1].reshape(-1, 1, 8, 8) / MAX_INK).astype(np.float32),
        y=table[:, -1].astype(np.int64),
        classes=10,
        description="1,797 handwritten digits, 8x8 pixels, 10 classes",
        source="UCI Optical Recognition of Handwritten Digits, with scikit-learn; CC BY 4.0",
        origin="built-in",
    )
