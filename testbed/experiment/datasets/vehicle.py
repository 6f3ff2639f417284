"""Vehicle: which of two vehicles passes a sensor, by 50 acoustic and 50 seismic features.

Source:
    Smith et al., MOCHA, NeurIPS 2017; Li et al., q-FFL, ICLR 2020, and Ditto, ICML 2021: a linear
    support vector machine for each of 23 sensors.
"""

from dataclasses import replace
from pathlib import Path

from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.datasets.leaf import of_contents
from fairbed.testbed.experiment.datasets.published_files import read_published
from fairbed.testbed.experiment.published import PUBLISHED


def load_vehicle(name: str, folder: Path) -> Dataset:
    """Return the windows of all sensors, x float32 of shape (1860, 100), standardised.

    Class 0 has the label -1, class 1 the label 1; users are in the order of the names of sensors.

    Raises:
        DatasetError: The file is missing, damaged or another one.
    """
    dataset = of_contents(name, read_published(name, folder))
    published = PUBLISHED[name]
    return replace(
        dataset,
        origin="verified",
        description=published.description,
        source=published.source,
        guess="",
        notes=(*dataset.notes, published.limit),
    )
