import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fairbed.testbed.experiment.data import DataConfig
from fairbed.testbed.experiment.datasets import load
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.datasets.scikit_learn import (
    FOLDER,
    load_breast_cancer,
    load_diabetes,
    load_digits,
)


def test_digits_are_real_pixels_between_0_and_1() -> None:
    data = load(DataConfig(), 0, {})
    assert (data.x.shape, data.x.dtype.name) == ((1797, 1, 8, 8), "float32")
    assert (data.x.min(), data.x.max()) == (0.0, 1.0)
    assert (data.y.dtype.name, data.classes, data.origin) == ("int64", 10, "built-in")
    # Facts of the set: the first three pictures show 0, 1, 2, and no class is rare.
    assert data.y[:3].tolist() == [0, 1, 2]
    assert np.bincount(data.y).min() == 174


def test_digits_are_those_that_scikit_learn_reads() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    theirs = datasets.load_digits()
    ours = load_digits()
    assert np.array_equal(ours.x[:, 0], (theirs.images / 16.0).astype(np.float32))
    assert np.array_equal(ours.y, theirs.target)


def test_tumours_are_those_that_scikit_learn_reads_with_1_for_malignant() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    theirs, ours = datasets.load_breast_cancer(), load_breast_cancer()
    assert (ours.x.shape, ours.x.dtype.name, ours.classes) == ((569, 30), "float32", 2)
    assert (ours.kind, theirs.target_names[0]) == ("classification", "malignant")
    assert np.array_equal(ours.y, theirs.target == 0)
    scaled = (theirs.data - theirs.data.mean(0)) / theirs.data.std(0)
    np.testing.assert_allclose(ours.x, scaled, rtol=1e-5, atol=1e-6)


def test_patients_are_those_that_scikit_learn_reads() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    theirs, ours = datasets.load_diabetes(scaled=False), load_diabetes()
    assert (ours.x.shape, ours.classes, ours.kind) == ((442, 10), 1, "regression")
    assert ours.y.dtype == np.float32
    for found, raw in ((ours.x, theirs.data), (ours.y, theirs.target)):
        np.testing.assert_allclose(found, (raw - raw.mean(0)) / raw.std(0), rtol=1e-5, atol=1e-6)


def test_scikit_learn_is_not_imported_for_them() -> None:
    code = "import sys\n"
    code += "from fairbed.testbed.experiment.datasets.scikit_learn import load_digits\n"
    code += "load_digits()\n"
    code += "print(sorted({'sklearn', 'scipy'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_without_scikit_learn_the_error_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = "fairbed.testbed.experiment.datasets.scikit_learn"
    monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    with pytest.raises(
        DatasetError, match=r"^digits: scikit-learn must be installed, got none; run: pip"
    ):
        load_digits()


@pytest.mark.parametrize("content", [None, b"\x1f\x8b\x08", b"0,1,2\n"])
def test_a_file_that_is_missing_or_broken_is_one_line(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sklearn" / FOLDER / "digits.csv.gz"
    file.parent.mkdir(parents=True)
    (tmp_path / "sklearn" / "__init__.py").write_text("", encoding="utf-8")
    if content is not None:
        file.write_bytes(content)
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        DatasetError, match=r"^digits: must be readable in .*digits\.csv\.gz, got .*; install"
    ):
        load_digits()
