"""Draws by fixed weights: frequencies, and bad weights."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fairbed.coordinator.algorithms.selection.weighted import Weighted
from tests.coordinator.algorithms.selection.fleet import fleet

DRAWS = 4000


def shares(selector: Weighted, n_k: Sequence[int], absent: Sequence[int] = ()) -> list[float]:
    """Return the frequency of each device when one is drawn."""
    candidates = replace(fleet([1.0] * len(n_k), absent=absent), n_k=np.array(n_k))
    rng, counts = np.random.default_rng(0), np.zeros(len(n_k))
    for _ in range(DRAWS):
        counts[selector.select(candidates, 1, rng)] += 1
    found: list[float] = (counts / DRAWS).tolist()
    return found


def test_a_device_is_drawn_in_proportion_to_its_weight() -> None:
    assert shares(Weighted([1.0, 2.0, 5.0]), [9, 9, 9]) == pytest.approx(
        [1 / 8, 2 / 8, 5 / 8], abs=0.025
    )


def test_without_weights_the_draw_is_by_examples() -> None:
    assert shares(Weighted(), [10, 20, 50]) == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.025)


def test_the_shares_of_the_absent_go_to_the_others() -> None:
    found = shares(Weighted([1.0, 2.0, 5.0]), [1, 1, 1], absent=[2])
    assert found == pytest.approx([1 / 3, 2 / 3, 0.0], abs=0.025)


def test_devices_of_weight_zero_or_without_one_are_drawn_last() -> None:
    selector, rng = Weighted([0.0, 1.0, 1.0]), np.random.default_rng(0)
    for k, always in ((1, set[int]()), (2, {1, 2}), (3, {1, 2})):
        chosen = set(selector.select(fleet([1.0] * 4), k, rng).tolist())
        assert len(chosen) == k
        assert chosen >= always
    assert set(selector.select(fleet([1.0] * 4), 4, rng).tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1.0, -1.0], "got -1.0 at row 1"),
        ([float("nan")], "got nan at row 0"),
        ([float("inf"), 1.0], "got inf at row 0"),
        ([0.0, 0.0], "at least one weight must be > 0, got 2"),
        ([], "at least one weight must be > 0, got 0"),
    ],
)
def test_bad_weights_are_refused(weights: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Weighted(weights)
