"""Load pictures from a folder that has one folder of PNG or JPEG files per class."""

from functools import partial
from pathlib import Path

from fairbed.device_agent.pictures import PictureError, read_pictures
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.own import check_memory, own_dataset
from fairbed.testbed.install import install_command


def load_pictures(folder: Path) -> Dataset:
    """Return the pictures, x uint8 of shape (n, channels, height, width).

    Classes are numbered in the order of the names of their folders; names that are all whole
    numbers are in the order of the numbers, so that folder 10 follows 9.

    Raises:
        DatasetError: pillow is not installed, the folder has another layout, or a picture cannot be
            read.
    """
    where = str(folder)
    try:
        x, y = read_pictures(folder, partial(check_memory, where), min_classes=2)
    except ImportError as exc:
        raise DatasetError(
            where,
            "pillow must be installed to read pictures, got none",
            f"run: {install_command('fairbed[testbed]')}",
        ) from exc
    except PictureError as exc:
        raise DatasetError(exc.where, exc.problem, exc.what_to_do) from exc
    arrays = {"x": x, "y": y}
    dataset = own_dataset(where, arrays, name=folder.name, fix="correct the pictures in the folder")
    if dataset.is_regression:
        name = next(name for name in y.tolist() if not name.isdigit())
        raise DatasetError(
            where,
            f"folders of classes must be names or whole numbers, got {name!r}",
            f"rename it, such as 'class {name}'",
        )
    return dataset
