"""Adult: whether a person earns more than 50,000 dollars, by the categories of a census.

Source:
    Mohri, Sivek, Suresh, Agnostic Federated Learning, ICML 2019; Li et al., q-FFL, ICLR 2020: the
    categories alone, and two users, people with and without a doctorate.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.published_files import read_published
from fairbed.testbed.experiment.published import PUBLISHED

CATEGORIES = (1, 3, 5, 6, 7, 8, 9, 13)
"""Columns that hold categories: work class, education, marital status, occupation, relationship,
race, sex, country; the others are numbers."""
COLUMNS = 15
EDUCATION, DOCTORATE, RICH = 3, "Doctorate", ">50K"
MISSING = "?"
USERS = ("with a doctorate", "without")


def load_adult(name: str, folder: Path) -> Dataset:
    """Return both parts, x of 0 and 1, float32, shape (48842, 99).

    User 0 has a doctorate, user 1 has none. A missing category is all zeros. Class 1 earns more.

    Raises:
        DatasetError: A file is missing, damaged or another one.
    """
    parts = read_published(name, folder)
    rows = [row for file, content in parts.items() for row in parse(file, content.decode("ascii"))]
    columns = [[row[column] for row in rows] for column in CATEGORIES]
    x = np.concatenate([_one_hot(column) for column in columns], axis=1)
    published = PUBLISHED[name]
    if x.shape[1:] != published.x_shape:
        raise DatasetError(
            str(folder),
            f"must have {published.x_shape[0]} categories, got {x.shape[1]}",
            "get the files again",
        )
    return Dataset(
        name=name,
        x=x,
        y=np.array([row[-1].rstrip(".") == RICH for row in rows], np.int64),
        classes=2,
        device_ids=np.array([row[EDUCATION] != DOCTORATE for row in rows], np.int64),
        description=published.description,
        source=published.source,
        origin="verified",
    )


def parse(file: str, text: str) -> list[list[str]]:
    """Return the fields of each row; lines without a row, and a remark in line 1, are left out.

    Raises:
        DatasetError: A row has another number of fields.
    """
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("|"):
            continue
        row = [field.strip() for field in line.split(",")]
        if len(row) != COLUMNS:
            raise DatasetError(
                file,
                f"a row must have {COLUMNS} fields, got {len(row)} in line {number}",
                "get the file again",
            )
        rows.append(row)
    return rows


def _one_hot(column: list[str]) -> NDArray[np.float32]:
    """Return 1 in the column of each category, in the order of their names."""
    names = sorted(set(column) - {MISSING})
    places = {name: place for place, name in enumerate(names)}
    found = np.zeros((len(column), len(names)), np.float32)
    for row, name in enumerate(column):
        if name != MISSING:
            found[row, places[name]] = 1.0
    return found
