"""AUROC, mean absolute error and R2, against scikit-learn and by their properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.wire.evaluation import Quality, auroc, mean_absolute_error, quality_in, r_squared

Examples = list[tuple[int, float]]

pairs = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0, 7.5])),
    min_size=1,
    max_size=40,
)


def columns(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    y, scores = zip(*examples, strict=True)
    return np.array(y, np.int64), np.array(scores, np.float32)


@given(pairs)
def test_auroc_counts_every_pair_of_a_positive_and_a_negative(examples: Examples) -> None:
    y, scores = columns(examples)
    better = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a in scores[y == 1].tolist()
        for b in scores[y == 0].tolist()
    ]
    found = auroc(y, scores)
    assert found == (sum(better) / len(better) if better else None)


@given(pairs)
def test_auroc_ignores_the_order_and_the_scale_and_mirrors(examples: Examples) -> None:
    y, scores = columns(examples)
    found, back = auroc(y, scores), slice(None, None, -1)
    assert auroc(y[back], scores[back]) == found
    assert auroc(y, np.float32(0.5) * scores - np.float32(3.0)) == found
    mirrored = auroc(y, -scores)
    assert mirrored is None if found is None else mirrored == pytest.approx(1.0 - found)


def test_the_measures_equal_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(3)
    for n in (2, 7, 100, 5_000):
        y = rng.integers(0, 2, n)
        y[:2] = 0, 1
        for digits in (0, 1, 6):  # 0: many ties
            scores = np.round(rng.standard_normal(n) + 0.5 * y, digits).astype(np.float32)
            assert auroc(y, scores) == pytest.approx(metrics.roc_auc_score(y, scores), abs=1e-12)
        target = (5.0 + 3.0 * rng.standard_normal(n)).astype(np.float32)
        found = (target + rng.standard_normal(n)).astype(np.float32)
        error = metrics.mean_absolute_error(target.astype(np.float64), found)
        assert mean_absolute_error(target, found) == pytest.approx(error, rel=1e-12)
        expected = metrics.r2_score(target.astype(np.float64), found)
        assert r_squared(target, found) == pytest.approx(expected, rel=1e-12)


def test_what_is_not_defined_is_none() -> None:
    ones, scores = np.ones(3, np.int64), np.array([0.1, 0.2, 0.3], np.float32)
    broken = np.array([0.1, np.nan, 0.3], np.float32)
    assert auroc(ones, scores) is auroc(0 * ones, scores) is None
    assert auroc(np.array([0, 1, 1]), broken) is None
    equal = np.full(3, 2.0, np.float32)
    assert r_squared(equal, scores) is None
    assert r_squared(scores, broken) is None
    assert mean_absolute_error(scores, broken) == np.inf


def test_each_task_has_its_measures() -> None:
    scores = np.array([0.0, 2.0], np.float32)
    assert Quality.of(np.array([2, 0]), 1, None) == Quality(correct=1)
    assert Quality.of(np.array([0, 1]), 2, scores) == Quality(correct=2, auroc=1.0)
    found = Quality.of(np.array([1.0, 3.0], np.float32), 0, scores)
    assert found == Quality(mae=1.0, r2=0.0)


@pytest.mark.parametrize(
    ("kind", "numbers", "quality"),
    [
        ("classification", (3, None, None, None), Quality(correct=3)),
        ("binary", (3, 0.5, None, None), Quality(correct=3, auroc=0.5)),
        ("binary", (None, 0.5, None, None), None),
        ("regression", (3, None, 0.2, -1.0), Quality(mae=0.2, r2=-1.0)),
        ("regression", (3, None, None, 0.9), None),
    ],
)
def test_the_numbers_of_a_task_are_those_of_its_kind(
    kind: str,
    numbers: tuple[int | None, float | None, float | None, float | None],
    quality: Quality | None,
) -> None:
    assert quality_in(kind, *numbers) == quality
