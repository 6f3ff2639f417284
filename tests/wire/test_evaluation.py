"""AUROC, mean absolute error and R2, against scikit-learn and by their properties."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fairbed.wire.evaluation import (
    ONE_CLASS,
    Evaluation,
    Predicted,
    Quality,
    Spread,
    auroc,
    class_accuracies,
    class_ious,
    fault_in_measures,
    mean_absolute_error,
    mean_weights,
    positions_of,
    quality_in,
    r_squared,
)
from fairbed.wire.messages import EvaluateReply

REPLY = EvaluateReply(
    round=1,
    model=bytes(32),
    loss=0.5,
    n=4,
    was_cold=False,
    download_s=0.0,
    decode_s=0.0,
    load_s=0.0,
    evaluate_s=0.0,
)

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
    assert Quality.of(np.array([2, 0]), Evaluation(0.5, 1)) == Quality(correct=1)
    two = Evaluation(0.5, 2, scores)
    assert Quality.of(np.array([0, 1]), two) == Quality(correct=2, auroc=1.0)
    numbers = np.array([1.0, 3.0], np.float32)
    assert Quality.of(numbers, Evaluation(1.0, 0, scores)) == Quality(mae=1.0, r2=0.0)


def test_positions_without_a_label_count_nowhere() -> None:
    y = np.array([[2, -1, 0], [1, 1, 1]])
    assert positions_of(y).tolist() == [2, 3]
    assert positions_of(y[:, 0]).tolist() == [1, 1]
    assert positions_of(y.astype(np.float32)).tolist() == [3, 3]
    assert mean_weights(y).tolist() == [np.float32(0.2)] * 2
    found = Quality.of(y, Evaluation(1.5, 4, exact=1))
    assert found == Quality(correct=4, positions=5, exact=1)
    pixels = np.array([[[1.0, 3.0]], [[2.0, 2.0]]], np.float32)
    found = Quality.of(pixels, Evaluation(0.5, 0, absolute_sum=2.0))
    assert found == Quality(mae=0.5, r2=0.0, positions=4), "as good as the mean of each pixel"


def test_the_auroc_of_labels_is_the_mean_of_those_that_occur_and_are_lacking() -> None:
    y = np.array([[0, 1, 1], [1, 1, -1], [1, 1, 0]])
    scores = np.array([[0.0, 1.0, 2.0], [3.0, 1.0, 9.0], [-1.0, 1.0, 1.0]], np.float32)
    assert auroc(y, scores) == pytest.approx((0.5 + 1.0) / 2.0)
    assert auroc(y[:, 1:2], scores[:, 1:2]) is None


def test_pooled_evaluations_add_up() -> None:
    half = Evaluation(1.0, 2, np.zeros(2, np.float32), 1, 0.5)
    pooled = Evaluation.pooled([half, half])
    assert pooled[:2] + pooled[3:6] == (2.0, 4, 2, 1.0, None)
    assert pooled.scores is not None
    assert len(pooled.scores) == 4
    assert Evaluation.pooled([half, Evaluation(1.0, 2)]).scores is None


@pytest.mark.parametrize(
    ("task", "numbers", "quality"),
    [
        (ONE_CLASS, {"correct": 3}, Quality(correct=3)),
        (Predicted("binary"), {"correct": 3, "auroc": 0.5}, Quality(correct=3, auroc=0.5)),
        (Predicted("regression"), {"correct": 3, "mae": 0.2, "r2": -1.0}, Quality(mae=0.2, r2=-1)),
        (
            Predicted("classification", (2, 2)),
            {"correct": 9, "positions": 9, "exact": 4},
            Quality(correct=9, positions=9, exact=4),
        ),
        (Predicted("regression", (3,)), {"mae": 1, "positions": 12}, Quality(mae=1, positions=12)),
    ],
)
def test_the_numbers_of_a_task_are_those_of_its_kind(
    task: Predicted, numbers: dict[str, Any], quality: Quality
) -> None:
    reply = structs.replace(REPLY, n=4, **numbers)
    assert fault_in_measures(task, reply) is None
    assert quality_in(task, reply) == quality


@pytest.mark.parametrize(
    ("task", "numbers", "problem"),
    [
        (Predicted("binary"), {"auroc": 0.5}, "the number of correct test examples"),
        (Predicted("regression"), {"correct": 3, "r2": 0.9}, "the mean absolute error"),
        (ONE_CLASS, {"correct": 3, "positions": 4}, "have no positions"),
        (Predicted(y_shape=(3,)), {"correct": 3, "exact": 1}, "4 to 12 positions, got None"),
        (
            Predicted(y_shape=(3,)),
            {"correct": 3, "exact": 1, "positions": 13},
            "4 to 12 positions, got 13",
        ),
        (Predicted(y_shape=(3,)), {"correct": 3, "positions": 5}, "at all positions"),
    ],
)
def test_a_report_that_lacks_a_number_of_its_task_has_a_fault(
    task: Predicted, numbers: dict[str, Any], problem: str
) -> None:
    found = fault_in_measures(task, structs.replace(REPLY, n=4, **numbers))
    assert found is not None
    assert problem in found


def test_classes_at_positions_have_an_iou_and_an_accuracy_each() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(4)
    y, found = rng.integers(-1, 4, (6, 5, 5)), rng.integers(0, 4, (6, 5, 5))
    counts = np.array(
        [
            [np.sum((y == c) & (found == c)) for c in range(6)],
            [np.sum((y >= 0) & (found == c)) for c in range(6)],
            [np.sum(y == c) for c in range(6)],
        ]
    )
    is_label = y.ravel() >= 0
    labels, predicted = y.ravel()[is_label], found.ravel()[is_label]
    ious = class_ious(counts)
    expected = metrics.jaccard_score(labels, predicted, average=None, labels=range(4))
    np.testing.assert_allclose(ious[:4], expected)
    assert np.isnan(ious[4:]).all(), "a class that is neither label nor predicted has none"
    accuracies = class_accuracies(counts)
    expected = metrics.recall_score(labels, predicted, average=None, labels=range(4))
    np.testing.assert_allclose(accuracies[:4], expected)
    parts = [Evaluation(1.0, 1, class_counts=counts), Evaluation(2.0, 2, class_counts=counts)]
    pooled = Evaluation.pooled(parts)
    quality = Quality.of(y, pooled)
    assert quality.iou == pytest.approx(ious[:4].mean())
    assert quality.class_accuracy == pytest.approx(
        metrics.balanced_accuracy_score(labels, predicted)
    )
    nothing = Evaluation(1.0, 0, class_counts=np.zeros((3, 6), np.int64))
    assert Quality.of(y, nothing).iou is None


def test_r2_of_several_outputs_weighs_each_by_its_variance() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(6)
    y = (rng.standard_normal((9, 2, 3)) * [1.0, 5.0, 0.1] + 4.0).astype(np.float32)
    prediction = y + rng.standard_normal(y.shape).astype(np.float32)
    error = float(np.square(y.astype(np.float64) - prediction).sum())
    expected = metrics.r2_score(
        y.reshape(9, -1).astype(np.float64),
        prediction.reshape(9, -1).astype(np.float64),
        multioutput="variance_weighted",
    )
    assert Spread.of(y).r_squared(error) == pytest.approx(expected, rel=1e-9)
    joined = Spread.joined([Spread.of(y[:2]), Spread.of(y[2:3]), Spread.of(y[3:])])
    assert joined.r_squared(error) == pytest.approx(expected, rel=1e-9)
    assert Spread.of(np.ones((4, 2), np.float32)).r_squared(error) is None
