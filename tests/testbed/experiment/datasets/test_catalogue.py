from pathlib import Path

import numpy as np
import pytest

from fairbed.testbed.experiment.data import GROUP, DataConfig, TextConfig, data_config
from fairbed.testbed.experiment.datasets.catalogue import describe_all, verify
from fairbed.testbed.experiment.datasets.loading import load
from fairbed.wire import plugins
from tests.testbed.experiment.datasets.idx_files import write_folder


def test_describes_every_data_set(tmp_path: Path) -> None:
    write_folder(tmp_path / "fashion-mnist")
    found = {status.name: status for status in describe_all({"FAIRBED_DATA": str(tmp_path)})}
    assert [name for name, status in found.items() if status.is_available] == [
        "digits",
        "synthetic",
        "breast-cancer",
        "diabetes",
        "fashion-mnist",
    ]
    assert found["digits"].n == 1797
    assert found["fashion-mnist"].n == 80
    assert found["fashion-mnist"].where == str(tmp_path / "fashion-mnist")
    assert found["mnist"].problem == f"mnist: folder must exist, got {tmp_path / 'mnist'}"
    assert "set FAIRBED_DATA" in found["mnist"].what_to_do
    assert found["cifar10"].problem == f"cifar10: folder must exist, got {tmp_path / 'cifar10'}"


def test_without_the_variable_the_rest_is_still_described() -> None:
    found = {status.name: status for status in describe_all({})}
    assert found["digits"].is_available
    assert not found["mnist"].is_available
    assert found["mnist"].where == ""


def test_verify_reads_everything(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "mnist")
    assert verify(data_config("mnist"), {"FAIRBED_DATA": str(tmp_path)}).origin == "unverified"
    (folder / "t10k-labels-idx1-ubyte").write_bytes(b"")
    status = verify(data_config("mnist", folder=str(folder)), {})
    assert not status.is_available
    assert "magic number must be 00000801, got nothing" in status.problem


def test_verify_accepts_an_own_file(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, x=np.zeros((20, 2)), y=np.arange(20) % 2)
    status = verify(data_config(str(path)), {})
    assert (status.is_available, status.n, status.where) == (True, 20, str(path))
    assert status.sha256 == load(data_config(str(path)), 0, {}).sha256


def test_a_registered_function_is_listed_but_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine() -> tuple[list[list[float]], list[int]]:
        calls.append(None)
        return [[0.0], [1.0]] * 20, [0, 1] * 20

    calls: list[None] = []
    monkeypatch.setitem(plugins._registered, GROUP, {"mine": plugins.Registered(mine)})
    listed = {status.name: status for status in describe_all({})}["mine"]
    assert (listed.is_available, listed.where, calls) == (True, "registered", [])
    assert "`fairbed data verify mine`" in listed.description
    found = verify(data_config("mine"), {})
    assert (found.n, len(calls)) == (40, 2)


def test_verify_counts_tokens_and_positions(tmp_path: Path) -> None:
    (tmp_path / "ann.txt").write_text("abcabc")
    (tmp_path / "tom.txt").write_text("ab")
    status = verify(DataConfig(source=str(tmp_path), text=TextConfig(length=3)), {})
    tokens, positions = status.tokens, status.positions
    assert tokens is not None
    assert positions is not None
    assert (tokens.vocabulary, tokens.occurring, tokens.units) == (5, 3, "'a', 'b', 'c'")
    assert (tokens.shortest, tokens.median, tokens.longest) == (1, 2, 3)
    assert tokens.padding_ratio == pytest.approx(1 / 3)
    assert tokens.unknown_ratio == 0.0
    assert (positions.shape, positions.fewest, positions.most) == ((3,), 1, 3)
    assert positions.labelled_ratio == pytest.approx(2 / 3)
    assert status.classes == [("'b'", 3), ("'c'", 2), ("'a'", 1)]
