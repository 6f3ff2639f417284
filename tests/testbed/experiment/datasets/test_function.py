import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.testbed.experiment.data import GROUP, DataConfig, data_config
from fairbed.testbed.experiment.datasets import DatasetError, function, load
from fairbed.testbed.experiment.datasets.function import load_function
from fairbed.wire import plugins

X = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
Y = np.arange(40) % 4
COUNTER = itertools.count()


class Pairs:
    """A map-style data set, as in torch."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, row: int) -> Any:
        return self._items[row]


def arrays() -> dict[str, Any]:
    return {"x": X, "y": Y, "device": Y}


def pair() -> tuple[Any, Any]:
    return X, Y


def pairs() -> Pairs:
    return Pairs(list(zip(X, Y.tolist(), strict=True)))


def lists() -> tuple[Any, Any]:
    return X.tolist(), ["abcd"[label] for label in Y]


def read(folder: str) -> tuple[Any, Any]:
    return np.load(Path(folder) / "x.npy"), Y


def read_some(folder: str = "nowhere") -> tuple[Any, Any]:
    return read(folder)


@pytest.mark.parametrize("name", ["arrays", "pair", "pairs", "lists"])
def test_takes_arrays_a_pair_and_a_torch_data_set(name: str) -> None:
    data = load(data_config(f"{__name__}:{name}"), 0, {})
    np.testing.assert_array_equal(data.x, X)
    np.testing.assert_array_equal(data.y, Y)
    assert (data.x.dtype.name, data.classes, data.origin) == ("float32", 4, "own")
    assert (data.device_ids is not None) == (name == "arrays")


def test_takes_tensors() -> None:
    torch = pytest.importorskip("torch")
    for returned in (
        {"x": torch.from_numpy(X), "y": torch.from_numpy(Y)},
        torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
        torch.utils.data.Subset(pairs(), range(40)),
    ):
        data = load_registered(lambda made=returned: made)
        np.testing.assert_array_equal(data.x, X)
        np.testing.assert_array_equal(data.y, Y)


def load_registered(made: Any, **keys: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plugins._registered, GROUP, {"mine": plugins.Registered(made)})
        return load_function(data_config("mine", **keys))


@pytest.mark.parametrize("name", ["read", "read_some"])
def test_a_function_may_take_the_folder(tmp_path: Path, name: str) -> None:
    np.save(tmp_path / "x.npy", X)
    data = load(DataConfig(source=f"{__name__}:{name}", folder=str(tmp_path)), 0, {})
    np.testing.assert_array_equal(data.x, X)


def test_max_examples_draws_from_the_whole() -> None:
    config = DataConfig(source=f"{__name__}:pair", max_examples=8)
    assert load(config, 1, {}).n == 8


def test_what_a_function_prints_is_no_result(capsys: pytest.CaptureFixture[str]) -> None:
    def prints() -> Any:
        print("reading")  # noqa: T201  # as users do
        return X, Y

    load_registered(prints)
    assert capsys.readouterr() == ("", "reading\nreading\n")


def fails() -> Any:
    raise KeyError("no\nsuch file")


def leaves() -> Any:
    raise SystemExit(3)


def two(a: int, b: int) -> Any:
    return a, b


NUMBER = 7
NAN = X.copy()
NAN[7, 1] = np.nan


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("fails", {}, "must return data, got KeyError: 'no\\nsuch file' (tests/"),
        ("leaves", {}, "must return data, got SystemExit: 3 (tests/"),
        ("two", {}, "must take no argument, or folder, got the argument a; give it a default"),
        ("read", {}, "data.folder must be set for the argument folder, got none; set data.folder"),
        ("pair", {"folder": "f"}, "must take folder, because data.folder is set, got 'f'; add"),
        ("absent", {}, "must be importable as package.module:Name, got AttributeError"),
        ("NUMBER", {}, "must be a class or a function that makes one, got int"),
    ],
)
def test_refuses_a_function_in_one_line(name: str, keys: dict[str, Any], message: str) -> None:
    where = f"{__name__}:{name}"
    with pytest.raises(DatasetError) as raised:
        load_function(data_config(where, **keys))
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"{where}: ")
    assert "\n" not in str(raised.value)


def test_refuses_a_module_that_is_not_there() -> None:
    with pytest.raises(DatasetError, match=r"no_mod:load: .* No module named 'no_mod'; install it"):
        load_function(data_config("no_mod:load"))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "must return a dict of arrays, (x, y), or a torch Dataset of (x, y), got NoneType"),
        (X, "got float32 of shape (40, 3); correct it"),
        ("text", "or a torch Dataset of (x, y), got str"),
        ((X, Y, X), "item 0 of tuple must be (x, y), got ValueError: too many values"),
        (Pairs([(X[0], 1), X[0]]), "item 1 of Pairs must be (x, y), got ValueError"),
        (
            Pairs([(X[0], 0), (X[0][:2], 1)]),
            "x must be an array, got rows of different lengths; pad them with 0",
        ),
        ({"x": X}, "must hold x and y, got x; add y"),
        ({"x": X, "labels": Y}, "unknown array 'labels'; valid names are x, y, x_test"),
        ((X, Y[:-1]), "x and y must have equal length, got 40 and 39; correct what the function"),
        ((NAN, Y), "x must be finite as float32, got NaN or infinity in row 7"),
        ((X.astype(object), Y), "x must be float, uint8 or integer, got object; correct what"),
        ((X, 3), "y must have one row per example, got a scalar"),
    ],
)
def test_refuses_what_a_function_returns_in_one_line(returned: Any, message: str) -> None:
    with pytest.raises(DatasetError) as raised:
        load_registered(lambda: returned)
    assert message in str(raised.value)
    assert str(raised.value).startswith("mine: ")
    assert "\n" not in str(raised.value)


def test_refuses_another_result_at_the_second_call() -> None:
    with pytest.raises(DatasetError, match=r"two calls must return equal data, got a different x"):
        load_registered(lambda: (X + next(COUNTER), Y))
    with pytest.raises(DatasetError, match=r"different device; seed its random numbers, and sort"):
        load_registered(lambda: arrays() if next(COUNTER) % 2 else {"x": X, "y": Y})


def test_a_slow_function_is_called_twice_by_a_verification_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(function, "TWICE_S", -1.0)
    load_registered(lambda: (X + next(COUNTER), Y))
    monkeypatch.setitem(
        plugins._registered, GROUP, {"mine": plugins.Registered(lambda: (X + next(COUNTER), Y))}
    )
    with pytest.raises(DatasetError, match="two calls must return equal data"):
        load_function(data_config("mine"), always_twice=True)
