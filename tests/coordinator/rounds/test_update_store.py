"""Models on disk are read unchanged and leave no file."""

import gc
from pathlib import Path

import numpy as np

from fairbed.coordinator.rounds.update_store import UpdateStore


def test_models_are_read_in_order_and_cannot_be_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    models = [rng.standard_normal(1000).astype(np.float32) for _ in range(5)]
    store = UpdateStore(tmp_path, 1000)
    for model in models:
        store.append(model)
    back = store.all()
    assert len(back) == 5
    for mine, theirs in zip(models, back, strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert not theirs.flags.writeable


def test_an_empty_round_holds_nothing(tmp_path: Path) -> None:
    assert list(UpdateStore(tmp_path, 10).all()) == []


def test_no_file_is_visible_and_models_outlive_the_store(tmp_path: Path) -> None:
    store = UpdateStore(tmp_path, 3)
    store.append(np.arange(3, dtype=np.float32))
    assert list(tmp_path.iterdir()) == []
    models = store.all()
    del store
    gc.collect()
    assert models[0].tolist() == [0.0, 1.0, 2.0]
