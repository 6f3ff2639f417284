"""Load pictures, pictures with masks, or audio from a folder."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbed.device_agent.folders import FolderError
from fairbed.testbed.experiment.data import AudioConfig, MasksConfig
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.own import Arrays, check_memory, own_dataset
from fairbed.testbed.install import install_command
from fairbed.wire.preparation import AudioPreparation, MaskPreparation

if TYPE_CHECKING:
    from fairbed.device_agent.audio import Audio
    from fairbed.device_agent.pictures import Pictures


def load_pictures(folder: Path) -> Dataset:
    """Return the pictures, x uint8 of shape (n, channels, height, width).

    Classes are numbered in the order of the names of their folders; names that are all whole
    numbers are in the order of the numbers, so that folder 10 follows 9.

    Raises:
        DatasetError: pillow is not installed, the folder has another layout, or a picture cannot be
            read.
    """
    from fairbed.device_agent.pictures import read_pictures

    with _translated(folder):
        found = read_pictures(folder, partial(check_memory, str(folder)), min_classes=2)
    dataset = _dataset(folder, _arrays(found))
    return replace(dataset, notes=found.notes)


def load_masks(folder: Path, config: MasksConfig) -> Dataset:
    """Return pictures with masks: x as `load_pictures`, y the class of each pixel.

    Values that are not 0, 1, ... are classes in their order (`data.classes` keeps the numbers).

    Raises:
        DatasetError: pillow is not installed, the folder has another layout, or a file cannot be
            read.
    """
    from fairbed.device_agent.pictures import read_masked

    preparation = MaskPreparation(no_label=config.no_label)
    with _translated(folder):
        found = read_masked(folder, preparation, partial(check_memory, str(folder)))
    dataset = _dataset(folder, _arrays(found))
    return replace(dataset, notes=found.notes, preparation=preparation)


def load_audio(folder: Path, config: AudioConfig) -> Dataset:
    """Return recordings, x float32 of shape (n, 1, samples), one channel.

    Raises:
        DatasetError: The folder has another layout, or a recording cannot be read.
    """
    from fairbed.device_agent.audio import read_audio

    check = partial(check_memory, str(folder))
    with _translated(folder):
        found = read_audio(folder, check, samples=config.samples, min_classes=2)
    dataset = _dataset(folder, _arrays(found))
    return replace(dataset, notes=found.notes, preparation=found.preparation)


class Samples(NamedTuple):
    """Recordings."""

    x: NDArray[np.float32]
    """Shape (n, 1, samples)."""
    preparation: AudioPreparation
    notes: list[str]


def pixels_of(where: str, paths: Sequence[Path]) -> NDArray[np.uint8]:
    """Return pictures as one array, (n, channels, height, width).

    Raises:
        DatasetError: pillow is not installed, or a picture cannot be read or has another size.
    """
    from fairbed.device_agent.pictures import read_pixels

    with _translated(where):
        return read_pixels(list(paths), partial(check_memory, where))


def samples_of(where: str, paths: Sequence[Path], config: AudioConfig) -> Samples:
    """Return recordings.

    Raises:
        DatasetError: A recording cannot be read, or has another rate.
    """
    from fairbed.device_agent.audio import read_samples

    with _translated(where):
        return Samples(*read_samples(paths, partial(check_memory, where), samples=config.samples))


def texts_of(where: str, paths: Sequence[Path]) -> list[str]:
    """Return the texts of files.

    Raises:
        DatasetError: One cannot be read, or is no text.
    """
    from fairbed.device_agent.texts import read_text

    with _translated(where):
        return [read_text(path) for path in paths]


def _arrays(found: "Pictures | Audio") -> Arrays:
    """Return the arrays of a folder by name, with the users if it has any."""
    users = {} if found.users is None else {"device": found.users}
    return {"x": found.x, "y": found.y, **users}


@contextmanager
def _translated(folder: Path | str) -> Iterator[None]:
    """Raise the errors of the readers as those about data."""
    try:
        yield
    except ImportError as exc:
        raise DatasetError(
            str(folder),
            "pillow must be installed to read pictures, got none",
            f"run: {install_command('fairbed[testbed]')}",
        ) from exc
    except FolderError as exc:
        raise DatasetError(exc.where, exc.problem, exc.what_to_do) from exc


def _dataset(folder: Path, arrays: Arrays) -> Dataset:
    """Return the data set of a folder; names of folders that are numbers are whole."""
    fix = "correct the files in the folder"
    dataset = own_dataset(str(folder), arrays, name=folder.name, fix=fix)
    if dataset.is_regression:
        name = next(name for name in arrays["y"].tolist() if not name.isdigit())
        raise DatasetError(
            str(folder),
            f"folders of classes must be names or whole numbers, got {name!r}",
            f"rename it, such as 'class {name}'",
        )
    return dataset
