"""Medical question pairs: whether two questions to a doctor ask the same.

Source:
    Hahn, Jeong, Lee, AAggFF, ICML 2024: one user per doctor, 200 tokens of a pair.
Deviates:
    Tokens are words instead of the word pieces of DistilBERT.
"""

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np

from fairbed.testbed.experiment.data import TextConfig
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.published_files import read_published
from fairbed.testbed.experiment.datasets.text import dataset_of_texts
from fairbed.testbed.experiment.published import PUBLISHED

BETWEEN = " | "
"""Between the questions of a pair: a token of its own."""
COLUMNS = 4


def load_mqp(name: str, folder: Path) -> Dataset:
    """Return the pairs, x tokens of shape (3048, 200); class 1 is a pair that asks the same.

    Raises:
        DatasetError: The file is missing, damaged or another one.
    """
    (content,) = read_published(name, folder).values()
    return pairs(name, content.decode("utf-8"))


def pairs(name: str, text: str) -> Dataset:
    """Return the data set of a table without a header: doctor, question, question, label.

    Raises:
        DatasetError: A row has other columns.
    """
    rows = list(csv.reader(io.StringIO(text, newline="")))
    wrong = (k for k, row in enumerate(rows) if len(row) != COLUMNS or row[-1] not in ("0", "1"))
    if (place := next(wrong, None)) is not None:
        raise DatasetError(
            f"{name}.csv",
            f"a row must have a doctor, two questions, and 0 or 1, got {len(rows[place])} fields "
            f"in row {place + 1}",
            "get the file again",
        )
    length = PUBLISHED[name].x_shape[0]
    dataset = dataset_of_texts(
        name,
        [BETWEEN.join(row[1:3]) for row in rows],
        {
            "y": np.array([int(row[-1]) for row in rows]),
            "device": np.array([int(row[0]) for row in rows]),
        },
        TextConfig(unit="words", length=length),
        "label",
        name=name,
    )
    doctors = len({row[0] for row in rows})
    return replace(
        dataset,
        origin="verified",
        description=f"{len(rows):,} pairs of medical questions of {doctors} doctors, {length} of "
        f"{dataset.x_classes:,} words, 2 classes",
        source=PUBLISHED[name].source,
    )
