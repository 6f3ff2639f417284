"""Load a user's own examples from an `.npz` file; `own` has the rules for its arrays."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fairbed.device_agent.examples import expansion_problem
from fairbed.testbed.experiment.data import DataConfig
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.own import check_memory
from fairbed.testbed.experiment.datasets.text import of_arrays


def load_npz(path: Path, config: DataConfig) -> Dataset:
    """Return the examples in the file at `path`.

    Args:
        path: The file.
        config: What x and y mean: `text` and `target`.

    Raises:
        DatasetError: The file cannot be read or breaks a rule; no pickle is ever loaded.
    """
    arrays, fix = _read(path), "correct this array in the file"
    return of_arrays(str(path), arrays, config, name=path.stem, fix=fix)


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        # Opened here: numpy leaves its own handle open when the archive is damaged.
        with path.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise DatasetError(
                    str(path), "must be an .npz archive, got one array", "use np.savez"
                )
            check_memory(str(path), _size_bytes(archive))
            if archive.zip is not None and (problem := expansion_problem(archive.zip)):
                raise DatasetError(str(path), *problem.split("; ", 1))
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError as exc:
        raise DatasetError(str(path), "file must exist, got none", "check data.source") from exc
    except OSError as exc:
        reason = exc.strerror or str(exc)
        raise DatasetError(
            str(path), f"must be readable, got: {reason}", "check its path and permissions"
        ) from exc
    except DatasetError:
        raise
    except Exception as exc:  # numpy, zipfile and tokenize: their errors share no base class
        reason = str(exc).partition("\n")[0] or type(exc).__name__
        raise DatasetError(
            str(path),
            f"must be an .npz file of plain arrays, got: {reason}",
            "write it with np.savez, no object arrays",
        ) from exc
    if foreign := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise DatasetError(str(path), f"must hold only arrays, got {foreign[0]!r}", "use np.savez")
    return arrays


def _size_bytes(archive: NpzFile[Any]) -> int:
    """Return the size of the arrays by their entries: a few bytes may unpack to gigabytes."""
    entries = [] if archive.zip is None else archive.zip.infolist()
    return sum(entry.file_size for entry in entries)
