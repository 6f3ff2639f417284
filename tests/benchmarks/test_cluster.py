"""The comparison of Ray nodes with local processes."""

import pytest

from benchmarks import cluster
from benchmarks.cluster import Measured, main


def test_ratios_are_those_of_pairs() -> None:
    local = [Measured(10.0, 0.1), Measured(20.0, 0.1), Measured(30.0, 0.1)]
    ray = [Measured(9.0, 0.2), Measured(20.0, 0.1), Measured(33.0, 0.1)]
    found = cluster._summary(local, ray)
    assert found["ratio_median"] == 1.0
    assert found["ratio_min"] == pytest.approx(0.9)
    assert found["ratio_max"] == pytest.approx(1.1)
    assert found["cpu_ratio_median"] == 1.0
    assert found["ray_cells_per_s"] == 20.0


def test_too_few_cells_are_refused() -> None:
    with pytest.raises(SystemExit, match="--cells must be above 8, got 8"):
        main(["--cells", "8"])
