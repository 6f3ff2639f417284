"""Load and check a user's own examples from an `.npz` file.

Arrays: `x` (n, ...) float, uint8 pixels or int; `y` (n,) int from 0; optionally `x_test` and
`y_test`, which are pooled with them; optionally `device` (n,), the user of each row, integers or
strings (and then `device_test`, if there is a test part).
"""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError

Arrays = dict[str, NDArray[Any]]

REQUIRED = ("x", "y")
KNOWN = ("x", "y", "x_test", "y_test", "device", "device_test")
MAX_CLASSES = 1 << 20
"""A larger label is an identifier, not a class."""
MAX_VOCABULARY = 1 << 31
"""Limit of integer features, which are token numbers."""
_FIX = "correct this array in the file"


def load_npz(path: Path) -> Dataset:
    """Return the examples in the file at `path`.

    Raises:
        DatasetError: The file cannot be read or breaks a rule; no pickle is ever loaded.
    """
    arrays = _read(path)
    _check_names(path, arrays)
    x, y = _pooled(path, arrays, "x"), _labels(path, _pooled(path, arrays, "y"))
    if len(x) != len(y):
        raise DatasetError(
            str(path), f"x and y must have equal length, got {len(x)} and {len(y)}", _FIX
        )
    users = _users(path, _pooled(path, arrays, "device"), len(y)) if "device" in arrays else None
    x = _features(path, x)
    classes = int(y.max()) + 1
    n_users = "" if users is None else f", {users.max() + 1:,} users"
    return Dataset(
        name=path.stem,
        x=x,
        y=y,
        classes=classes,
        device_ids=users,
        description=f"{len(y):,} examples of shape {x.shape[1:]}, {classes} classes{n_users}",
        source=str(path),
        origin="own",
    )


def _read(path: Path) -> Arrays:
    try:
        # Opened here: numpy leaves its own handle open when the archive is damaged.
        with path.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise DatasetError(
                    str(path), "must be an .npz archive, got one array", "use np.savez"
                )
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError as exc:
        raise DatasetError(str(path), "file must exist, got none", "check data.dataset") from exc
    except OSError as exc:
        reason = exc.strerror or str(exc)
        raise DatasetError(
            str(path), f"must be readable, got: {reason}", "check its path and permissions"
        ) from exc
    except DatasetError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError, MemoryError) as exc:
        reason = str(exc).partition("\n")[0] or type(exc).__name__
        raise DatasetError(
            str(path),
            f"must be an .npz file of plain arrays, got: {reason}",
            "write it with np.savez, no object arrays",
        ) from exc
    if foreign := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise DatasetError(str(path), f"must hold only arrays, got {foreign[0]!r}", "use np.savez")
    return arrays


def _check_names(path: Path, arrays: Arrays) -> None:
    names = ", ".join(sorted(arrays)) or "none"
    if unknown := sorted(set(arrays) - set(KNOWN)):
        raise DatasetError(
            str(path), f"unknown array {unknown[0]!r}", f"valid names are {', '.join(KNOWN)}"
        )
    if missing := [name for name in REQUIRED if name not in arrays]:
        raise DatasetError(str(path), f"must hold x and y, got {names}", f"add {missing[0]}")
    has_test = {name: f"{name}_test" in arrays for name in ("x", "y", "device") if name in arrays}
    if len(set(has_test.values())) > 1 or ("device_test" in arrays and "device" not in arrays):
        raise DatasetError(
            str(path),
            f"a test part must have x_test, y_test and, with device, device_test, got {names}",
            "add the missing array",
        )


def _pooled(path: Path, arrays: Arrays, name: str) -> NDArray[Any]:
    """Return `name` and `name_test` as one array."""
    array, test = arrays[name], arrays.get(f"{name}_test")
    if array.ndim == 0:
        raise DatasetError(str(path), f"{name} must have one row per example, got a scalar", _FIX)
    if test is None:
        return array
    if test.dtype.kind != array.dtype.kind or test.shape[1:] != array.shape[1:] or not test.ndim:
        raise DatasetError(
            str(path),
            f"{name}_test must have the type and row shape of {name} ({array.dtype}, "
            f"{array.shape[1:]}), got {test.dtype}, {test.shape[1:]}",
            _FIX,
        )
    return np.concatenate([array, test])


def _labels(path: Path, y: NDArray[Any]) -> Ints:
    if y.dtype.kind not in "iu" or y.ndim != 1 or not len(y):
        raise DatasetError(
            str(path), f"y must be integers, shape (n,), n >= 1, got {y.dtype} {y.shape}", _FIX
        )
    low, high = int(y.min()), int(y.max())
    if low < 0 or not 1 <= high < MAX_CLASSES:
        raise DatasetError(
            str(path),
            f"y must hold two or more classes, 0 .. at most {MAX_CLASSES - 1}, got {low} .. {high}",
            "number the classes from 0",
        )
    return y.astype(np.int64)


def _features(path: Path, x: NDArray[Any]) -> NDArray[Any]:
    if x.ndim < 2 or 0 in x.shape:
        raise DatasetError(str(path), f"x must have shape (n, ...), no 0, got {x.shape}", _FIX)
    if x.dtype.kind in "iu":
        if x.dtype == np.uint8:
            return x
        low, high = int(x.min()), int(x.max())
        if low < 0 or high >= MAX_VOCABULARY:
            raise DatasetError(
                str(path), f"integer x must be 0 .. {MAX_VOCABULARY - 1}, got {low} .. {high}", _FIX
            )
        return x.astype(np.int64)
    if x.dtype.kind != "f":
        raise DatasetError(str(path), f"x must be float, uint8 or int, got {x.dtype}", _FIX)
    with np.errstate(over="ignore"):
        x = x.astype(np.float32)
    if not np.isfinite(x).all():
        row = int(np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(axis=1))[0])
        raise DatasetError(
            str(path),
            f"x must be finite as float32, got NaN or infinity in row {row}",
            "remove or replace such values",
        )
    return x


def _users(path: Path, device: NDArray[Any], n: int) -> Ints:
    if device.dtype.kind not in "iuU" or device.shape != (n,):
        raise DatasetError(
            str(path),
            f"device must be integers or strings, shape ({n},), got {device.dtype} {device.shape}",
            _FIX,
        )
    return np.unique(device, return_inverse=True)[1].astype(np.int64)
