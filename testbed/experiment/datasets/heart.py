"""Heart disease of the patients of four hospitals.

Source:
    Hahn, Jeong, Lee, AAggFF, ICML 2024: 15 features, of which type of pain and resting ECG are
    one-hot; three columns that are mostly missing are left out; a missing value is the mean of its
    hospital.
Deviates:
    Mean and deviation are those of all rows of a hospital; the source takes its training rows.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.published_files import read_published
from fairbed.testbed.experiment.published import PUBLISHED

COLUMNS = 14
LEFT_OUT = (10, 11, 12)
"""Slope of the ST segment, vessels, thalassemia."""
PAIN, ECG, DISEASE = 2, 6, 13
VALUES = {PAIN: (1.0, 2.0, 3.0, 4.0), ECG: (0.0, 1.0, 2.0)}
"""Columns that become one-hot, and their values."""
NUMBERS = tuple(k for k in range(DISEASE) if k not in (*LEFT_OUT, *VALUES))


def load_heart(name: str, folder: Path) -> Dataset:
    """Return the patients, x float32 of shape (920, 15), mean 0 and deviation 1 by hospital.

    User k is hospital k: Cleveland, Hungary, Switzerland, Long Beach. Class 1 is any disease.

    Raises:
        DatasetError: A file is missing, damaged or another one.
    """
    tables = [
        parse(file, content.decode("ascii"))
        for file, content in read_published(name, folder).items()
    ]
    return Dataset(
        name=name,
        x=np.concatenate([standardised(features(table)) for table in tables]),
        y=np.concatenate([(table[:, DISEASE] > 0).astype(np.int64) for table in tables]),
        classes=2,
        device_ids=np.repeat(np.arange(len(tables)), [len(table) for table in tables]),
        description=PUBLISHED[name].description,
        source=PUBLISHED[name].source,
        origin="verified",
    )


def parse(file: str, text: str) -> Floats:
    """Return the table of a hospital, shape (patients, COLUMNS), NaN where a value is missing.

    Raises:
        DatasetError: A row has another number of values, or one that is no number.
    """
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = [np.nan if part.strip() == "?" else float(part) for part in line.split(",")]
        except ValueError as exc:
            raise DatasetError(
                file, f"must hold numbers and ?, got: {exc} in line {number}", "get the file again"
            ) from exc
        if len(row) != COLUMNS:
            raise DatasetError(
                file,
                f"a row must have {COLUMNS} values, got {len(row)} in line {number}",
                "get the file again",
            )
        rows.append(row)
    return np.array(rows, np.float64).reshape(-1, COLUMNS)


def features(table: Floats) -> Floats:
    """Return the features of a hospital, shape (patients, 15), without missing values."""
    known = ~np.isnan(table)
    counts = np.maximum(known.sum(axis=0), 1)
    means = np.where(known, table, 0.0).sum(axis=0) / counts
    filled = np.where(known, table, means)
    # The source makes whole numbers of the means of these columns.
    shown = [
        (np.trunc(filled[:, column])[:, np.newaxis] == np.array(values)).astype(np.float64)
        for column, values in VALUES.items()
    ]
    return np.concatenate([filled[:, NUMBERS], *shown], axis=1)


def standardised(table: Floats) -> NDArray[np.float32]:
    """Return columns of mean 0 and standard deviation 1; a constant column is 0."""
    deviation = table.std(axis=0)
    scaled: Floats = (table - table.mean(axis=0)) / np.where(deviation > 0.0, deviation, 1.0)
    return scaled.astype(np.float32)
