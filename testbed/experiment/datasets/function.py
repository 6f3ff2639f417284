"""Load examples by a function of the user: `package.module:name`, installed or registered."""

import hashlib
import inspect
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairbed.testbed.experiment.data import GROUP, NAMES, DataConfig
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.text import of_arrays
from fairbed.wire.plugins import PluginError, described, factory_of, users_code

TWICE_S = 10.0
"""A function that took no longer is called a second time, to see that it returns equal data."""

_RETURN = "return a dict of arrays, (x, y), or a torch Dataset of (x, y)"


def load_function(config: DataConfig, *, always_twice: bool = False) -> Dataset:
    """Return the examples that the function of a `[data]` section returns.

    Args:
        config: The section.
        always_twice: Call a slow function twice, too.

    Raises:
        DatasetError: There is no such function, it raises, it returns something else, or two calls
            return different data.
    """
    name = config.name
    with redirect_stdout(sys.stderr):  # what the user's code prints is no result of a command
        call = _call(config, _function(config))
        start = time.monotonic()
        arrays = _arrays(name, call())
        if always_twice or time.monotonic() - start <= TWICE_S:
            first = _digests(arrays)
            del arrays  # the examples are in memory once
            arrays = _arrays(name, call())
            _compare(name, first, _digests(arrays))
    return of_arrays(name, arrays, config, name=name, fix="correct what the function returns")


def _function(config: DataConfig) -> Callable[..., object]:
    choices = f"{', '.join(NAMES)} or package.module:function"
    try:
        found: Callable[..., object] = factory_of("data", GROUP, config.name, choices)
    except PluginError as exc:
        problem, _, what_to_do = str(exc).removeprefix(f"data {config.name}: ").rpartition("; ")
        raise DatasetError(config.name, problem or what_to_do, what_to_do) from exc
    return found


def _call(config: DataConfig, function: Callable[..., object]) -> Callable[[], object]:
    """Return a call of the function with the arguments that it takes: none, or `folder`."""
    name = config.name
    parameters: Mapping[str, inspect.Parameter] = {}
    with suppress(TypeError, ValueError):  # a built-in one has none that Python can read
        parameters = inspect.signature(function).parameters
    folder = parameters.get("folder")
    needed = [
        key
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and key != "folder"
    ]
    if needed:
        raise DatasetError(
            name,
            f"must take no argument, or folder, got the argument {needed[0]}",
            "give it a default",
        )
    if config.folder is not None and folder is None:
        raise DatasetError(
            name,
            f"must take folder, because data.folder is set, got {config.folder!r}",
            "add the argument folder, or remove data.folder",
        )
    if config.folder is None and folder is not None and folder.default is folder.empty:
        raise DatasetError(
            name, "data.folder must be set for the argument folder, got none", "set data.folder"
        )
    given = {} if config.folder is None else {"folder": config.folder}

    def call() -> object:
        def broken(problem: str) -> DatasetError:
            return DatasetError(name, f"must return data, got {problem}", "correct the function")

        with users_code(broken):
            return function(**given)

    return call


def _arrays(name: str, returned: object) -> dict[str, NDArray[Any]]:
    """Return what the function returned as arrays by name."""
    if isinstance(returned, Mapping):
        named = {str(key): value for key, value in returned.items()}
    elif isinstance(returned, (tuple, list)) and len(returned) == 2:
        named = {"x": returned[0], "y": returned[1]}
    elif hasattr(returned, "__getitem__") and hasattr(returned, "__len__"):
        named = _items(name, returned)
    else:
        raise DatasetError(name, f"must {_RETURN}, got {described(returned)}", "correct it")
    return {key: _array(name, key, value) for key, value in named.items()}


def _items(name: str, items: Any) -> dict[str, object]:
    """Return the examples of a torch Dataset, which is any sequence of pairs (x, y)."""
    if isinstance(items, (str, bytes, np.ndarray)):
        raise DatasetError(name, f"must {_RETURN}, got {described(items)}", "correct it")
    pairs: list[tuple[NDArray[Any], NDArray[Any]]] = []

    def broken(problem: str) -> DatasetError:
        kind = type(items).__name__
        return DatasetError(
            name, f"item {len(pairs)} of {kind} must be (x, y), got {problem}", _RETURN
        )

    with users_code(broken):
        for row in range(len(items)):
            x, y = items[row]
            pairs.append((np.asarray(x), np.asarray(y)))
    return {"x": [x for x, _ in pairs], "y": [y for _, y in pairs]}


def _array(name: str, key: str, value: object) -> NDArray[Any]:
    def broken(problem: str) -> DatasetError:
        fix = "correct it"
        if "inhomogeneous" in problem:
            problem, fix = "rows of different lengths", "pad them with 0 at the end"
        return DatasetError(name, f"{key} must be an array, got {problem}", fix)

    with users_code(broken):  # ragged rows, a tensor on a GPU, ...
        return np.asarray(value)


Digests: TypeAlias = dict[str, tuple[str, tuple[int, ...], bytes]]
"""Type, shape and hash of each array."""


def _compare(name: str, first: Digests, again: Digests) -> None:
    """Check that two calls returned equal data: a run could not be repeated otherwise."""
    if differing := [key for key in (first | again) if first.get(key) != again.get(key)]:
        raise DatasetError(
            name,
            f"two calls must return equal data, got a different {differing[0]}",
            "seed its random numbers, and sort what it lists",
        )


def _digests(arrays: Mapping[str, NDArray[Any]]) -> Digests:
    found: Digests = {}
    for key, array in arrays.items():
        values = repr(array.tolist()).encode() if array.dtype.hasobject else array
        content: Any = np.ascontiguousarray(values)  # a buffer, which numpy's types do not state
        found[key] = (str(array.dtype), array.shape, hashlib.sha256(content).digest())
    return found
