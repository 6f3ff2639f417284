"""Check a user's own arrays and make a data set of them, whatever they were read from.

Arrays: `x` (n, ...) float, uint8 pixels, or int, tokens; `y` (n,) int, text, or float, the targets
of regression, or (n, ...) int with -1 where a position has no label, or float; optionally `x_test`
and `y_test`, which are pooled with them; optionally `device` (n,), the user of each row, integers
or strings (and then `device_test`, if there is a test part).
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import psutil
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.testbed.experiment.data import MAX_TOKENS
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError, targets_text
from fairbed.testbed.experiment.datasets.labels import Labels, read_labels
from fairbed.wire.labels import LabelError, shortened

Arrays: TypeAlias = Mapping[str, NDArray[Any]]

_TOKENS = (
    "x are integers and are read as tokens, of which a model takes embeddings; save pixels as "
    "uint8, and numbers as float32"
)

REQUIRED = ("x", "y")
KNOWN = ("x", "y", "x_test", "y_test", "device", "device_test")
MEMORY_SHARE = 0.5
"""Largest share of the free memory that examples may take: the shards of the devices are copies."""


def own_dataset(
    where: str, arrays: Arrays, *, name: str, fix: str, is_labelled: bool = True
) -> Dataset:
    """Return the data set in a user's arrays.

    Args:
        where: File or function, for messages; also the source of the data set.
        arrays: The arrays by name.
        name: Name of the data set.
        fix: What the user does about a wrong array.
        is_labelled: Their y are the targets; otherwise y is not needed, and 0 without a meaning.

    Raises:
        DatasetError: The arrays break a rule.
    """
    if not is_labelled:
        arrays = {
            **{key: array for key, array in arrays.items() if key not in ("y", "y_test")},
            **{
                f"y{part}": np.zeros(len(arrays[f"x{part}"]), np.int64)
                for part in ("", "_test")
                if np.ndim(arrays.get(f"x{part}", 0))
            },
        }
    return _Checked(where, fix, is_labelled).dataset(arrays, name)


def check_memory(where: str, size_bytes: int) -> None:
    """Refuse examples that are too large for this machine, before they are read.

    Raises:
        DatasetError: They would take more than `MEMORY_SHARE` of the free memory.
    """
    limit = int(MEMORY_SHARE * free_bytes())
    if size_bytes > limit:
        raise DatasetError(
            where,
            f"the examples must fit into half of the free memory, {_gib(limit)}, got "
            f"{_gib(size_bytes)}",
            "use fewer or smaller examples, or a machine with more memory",
        )


def free_bytes() -> int:
    """Return the memory that this machine can give without swapping."""
    return int(psutil.virtual_memory().available)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:,.1f} GiB"


class _Checked:
    """The rules for arrays; each method raises `DatasetError` at the first broken one."""

    def __init__(self, where: str, fix: str, is_labelled: bool) -> None:
        self._where = where
        self._fix = fix
        self._is_labelled = is_labelled

    def dataset(self, arrays: Arrays, name: str) -> Dataset:
        self._check_names(arrays)
        x, labels = self._pooled(arrays, "x"), self._labels(self._pooled(arrays, "y"))
        y = labels.y
        if len(x) != len(y):
            raise self._error(f"x and y must have equal length, got {len(x)} and {len(y)}")
        users = self._users(self._pooled(arrays, "device"), len(y)) if "device" in arrays else None
        x = self._features(x)
        classes = 1 if y.dtype.kind == "f" else int(y.max()) + 1
        x_classes = int(x.max()) + 1 if x.dtype.kind == "i" else 0
        of_x = f" of {x_classes:,} tokens" if x_classes else ""
        guess = labels.guess
        if x_classes and x.ndim > 2:
            guess = "; ".join(filter(None, (guess, _TOKENS)))
        n_users = "" if users is None else f", {users.max() + 1:,} users"
        return Dataset(
            name=name,
            x=x,
            y=y,
            classes=classes,
            labels=labels.names,
            x_classes=x_classes,
            guess=guess,
            device_ids=users,
            description=(
                f"{len(y):,} examples of shape {x.shape[1:]}{of_x}, {targets_text(y, classes)}"
                f"{n_users}"
            ),
            source=self._where,
            origin="own",
        )

    def _error(self, problem: str, what_to_do: str = "") -> DatasetError:
        return DatasetError(self._where, problem, what_to_do or self._fix)

    def _check_names(self, arrays: Arrays) -> None:
        names = shortened(sorted(arrays)) or "none"
        if unknown := sorted(set(arrays) - set(KNOWN)):
            raise self._error(
                f"unknown array {unknown[0]!r}", f"valid names are {', '.join(KNOWN)}"
            )
        if missing := [name for name in REQUIRED if name not in arrays]:
            raise self._error(f"must hold x and y, got {names}", f"add {missing[0]}")
        tests = {name: f"{name}_test" in arrays for name in ("x", "y", "device") if name in arrays}
        if len(set(tests.values())) > 1 or ("device_test" in arrays and "device" not in arrays):
            raise self._error(
                f"a test part must have x_test, y_test and, with device, device_test, got {names}",
                "add the missing array",
            )

    def _pooled(self, arrays: Arrays, name: str) -> NDArray[Any]:
        """Return `name` and `name_test` as one array."""
        array, test = arrays[name], arrays.get(f"{name}_test")
        if array.ndim == 0:
            raise self._error(f"{name} must have one row per example, got a scalar")
        if test is None:
            return array
        if test.dtype.kind != array.dtype.kind or test.shape[1:] != array.shape[1:]:
            raise self._error(
                f"{name}_test must have the type and row shape of {name} ({array.dtype}, "
                f"{array.shape[1:]}), got {test.dtype}, {test.shape[1:]}"
            )
        if not test.ndim:
            raise self._error(f"{name}_test must have one row per example, got a scalar")
        return np.concatenate([array, test])

    def _labels(self, y: NDArray[Any]) -> Labels:
        if not self._is_labelled:
            return Labels(y)
        try:
            labels = read_labels(y)
        except LabelError as exc:
            raise self._error(*exc.args) from exc
        return labels

    def _features(self, x: NDArray[Any]) -> NDArray[Any]:
        if x.ndim < 2 or 0 in x.shape:
            raise self._error(f"x must have shape (n, ...), no 0, got {x.shape}")
        if x.dtype.kind in "iu":
            if x.dtype == np.uint8:
                return x
            if x.min() < 0 or x.max() >= MAX_TOKENS:
                raise self._error(
                    f"integers in x are tokens and must be 0 .. {MAX_TOKENS - 1:,}, got {x.min()} "
                    f"to {x.max()}",
                    'number the tokens from 0, which is padding; save numbers as "float32"',
                )
            return x.astype(np.int64, copy=False)
        if x.dtype.kind != "f":
            raise self._error(f"x must be float, uint8 or integer, got {x.dtype}")
        with np.errstate(over="ignore"):
            x = x.astype(np.float32, copy=False)
        if not np.isfinite(x).all():
            row = int(np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(axis=1))[0])
            raise self._error(
                f"x must be finite as float32, got NaN or infinity in row {row}",
                "remove or replace such values",
            )
        return x

    def _users(self, device: NDArray[Any], n: int) -> Ints:
        if device.dtype.kind not in "iuU" or device.shape != (n,):
            raise self._error(
                f"device must be integers or strings, shape ({n},), got {device.dtype} "
                f"{device.shape}"
            )
        return np.unique(device, return_inverse=True)[1].astype(np.int64)
