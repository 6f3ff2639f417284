"""Data sets that scikit-learn ships: no download, no folder.

Their files are read directly, because an import of scikit-learn takes about a second and 100 MB.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.install import install_command

MAX_INK = 16.0
"""Largest pixel value: on-pixels in a 4x4 block of the scanned bitmap."""

FOLDER = Path("datasets", "data")
"""Path within scikit-learn."""


def load_digits() -> Dataset:
    """Return 1,797 digits of 43 writers, x float32 in [0, 1], shape (1797, 1, 8, 8).

    Raises:
        DatasetError: scikit-learn is not installed, or lacks its data.

    Source:
        E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits (test part), UCI 1998.
    """
    table = _read("digits", "digits.csv.gz", ",")  # 64 pixels, then the digit
    return Dataset(
        name="digits",
        x=(table[:, :-1].reshape(-1, 1, 8, 8) / MAX_INK).astype(np.float32),
        y=table[:, -1].astype(np.int64),
        classes=10,
        description="1,797 handwritten digits, 8x8 pixels, 10 classes",
        source="UCI Optical Recognition of Handwritten Digits, with scikit-learn; CC BY 4.0",
        origin="built-in",
    )


def load_breast_cancer() -> Dataset:
    """Return 569 tumours of two classes, x float32, standardised, shape (569, 30).

    Class 1 is malignant; scikit-learn numbers the classes the other way around.

    Raises:
        DatasetError: scikit-learn is not installed, or lacks its data.

    Source:
        W. Wolberg, O. Mangasarian, N. Street, W. Street, Breast Cancer Wisconsin (Diagnostic), UCI
        1995.
    """
    table = _read("breast-cancer", "breast_cancer.csv", ",", header=1)  # 30 features, benign
    return Dataset(
        name="breast-cancer",
        x=_standardised(table[:, :-1]),
        y=1 - table[:, -1].astype(np.int64),
        classes=2,
        description="569 tumours, 30 features, 2 classes: benign, malignant",
        source="UCI Breast Cancer Wisconsin (Diagnostic), with scikit-learn; CC BY 4.0",
        origin="built-in",
    )


def load_diabetes() -> Dataset:
    """Return 442 patients, x float32, shape (442, 10), and the progression of their disease.

    Features and target are standardised: mean 0, standard deviation 1.

    Raises:
        DatasetError: scikit-learn is not installed, or lacks its data.

    Source:
        B. Efron, T. Hastie, I. Johnstone, R. Tibshirani, Least Angle Regression, Annals of
        Statistics 32 (2004).
    """
    x = _read("diabetes", "diabetes_data_raw.csv.gz")
    y = _read("diabetes", "diabetes_target.csv.gz")
    return Dataset(
        name="diabetes",
        x=_standardised(x),
        y=_standardised(y),
        classes=1,
        description="442 patients, 10 features; target: disease progression, standardised",
        source="Efron et al., Annals of Statistics 2004, with scikit-learn",
        origin="built-in",
    )


def _standardised(table: Floats) -> NDArray[np.float32]:
    """Return columns of mean 0 and standard deviation 1."""
    scaled: NDArray[np.float32] = ((table - table.mean(0)) / table.std(0)).astype(np.float32)
    return scaled


def _read(name: str, file: str, delimiter: str | None = None, header: int = 0) -> Floats:
    """Return the numbers in a file of scikit-learn, without its first lines."""
    spec = find_spec("sklearn")
    places = spec.submodule_search_locations if spec is not None else None
    if not places:
        raise DatasetError(
            name,
            "scikit-learn must be installed, got none",
            f"run: {install_command('fairbed[testbed]')}",
        )
    path = Path(places[0]) / FOLDER / file
    try:
        return np.loadtxt(path, delimiter=delimiter, skiprows=header)
    except (OSError, EOFError, ValueError) as exc:
        raise DatasetError(
            name, f"must be readable in {path}, got {exc}", "install scikit-learn again"
        ) from exc
