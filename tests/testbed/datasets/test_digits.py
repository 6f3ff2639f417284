import numpy as np

from testbed.data_config import DataConfig
from testbed.datasets import load


def test_digits_are_real_pixels_between_0_and_1() -> None:
    data = load(DataConfig(), 0, {})
    assert (data.x.shape, data.x.dtype.name) == ((1797, 1, 8, 8), "float32")
    assert (data.x.min(), data.x.max()) == (0.0, 1.0)
    assert (data.y.dtype.name, data.classes, data.origin) == ("int64", 10, "built-in")
    # Facts of the set: the first three pictures show 0, 1, 2, and no class is rare.
    assert data.y[:3].tolist() == [0, 1, 2]
    assert np.bincount(data.y).min() == 174
