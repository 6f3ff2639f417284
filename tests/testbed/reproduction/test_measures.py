"""Numbers in the metrics of the sources, against worked examples and printed rows."""

import math

import numpy as np
import pytest

from fairbed.testbed.reproduction.measures import MEASURES, Context, Scores, Undefined

ACCURACY = [0.9, 0.8, 0.6, 0.95, 0.4, 0.7, 0.85, 0.75, 0.5, 0.65]


def scores(n: list[float] | None = None, **columns: list[float]) -> Scores:
    size = len(next(iter(columns.values())))
    return Scores(
        np.array(n or [10.0] * size),
        {name: np.array(values) for name, values in columns.items()},
        {"total_s": 12.0, "jain": None},
    )


def of(metric: str, of_scores: Scores, context: Context | None = None) -> float:
    return MEASURES[metric].of(of_scores, context or Context())


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        *(("average", 71.0), ("variance", 279.0), ("worst", 40.0), ("best", 95.0)),
        *(("accuracy", 0.71), ("deviation", math.sqrt(0.0279)), ("top-gini", 13.380282)),
    ],
)
def test_accuracies_of_ten_devices(metric: str, expected: float) -> None:
    assert of(metric, scores(accuracy=ACCURACY)) == pytest.approx(expected)


def test_an_average_counts_examples_and_a_mean_devices() -> None:
    uneven = scores(n=[30.0, 10.0], accuracy=[1.0, 0.0])
    assert of("average", uneven) == 75.0
    assert of("accuracy", uneven) == 0.5


def test_a_tenth_of_23_devices_are_two() -> None:
    many = [0.1, 0.3, *[0.5] * 19, 0.7, 0.9]
    assert of("worst", scores(accuracy=many)) == pytest.approx(20.0)
    assert of("best", scores(accuracy=many)) == pytest.approx(80.0)
    weighted = scores(n=[3.0, 1.0, *[5.0] * 21], accuracy=many)
    assert of("top-worst", weighted) == pytest.approx(15.0)


@pytest.mark.parametrize(
    ("M", "fedavg", "corefed", "ratio"),
    [
        (3.0, [2.59, 0.77, 1.46], [2.62, 0.90, 1.53], 2.798),
        (1.0, [0.34, 0.29, 0.92], [0.36, 0.41, 0.91], 2.663),
        (3.0, [0.63, 1.40, 0.51], [0.73, 1.35, 0.71], 2.618),
    ],
)
def test_utilities_of_the_printed_rows_of_corefed(
    M: float, fedavg: list[float], corefed: list[float], ratio: float
) -> None:
    base, own = (scores(loss=[M - u for u in utilities]) for utilities in (fedavg, corefed))
    context = Context(M, base)
    assert of("ratio-sum", own, context) == pytest.approx(ratio, abs=5e-4)
    assert of("utility", own, context) == pytest.approx(sum(corefed) / 3)
    assert of("multi", own, context) == pytest.approx(math.prod(corefed))
    assert of("log-multi", own, context) == pytest.approx(math.log(math.prod(corefed)))
    assert of("least", own, context) == pytest.approx(min(corefed))


@pytest.mark.parametrize(
    ("metric", "given", "context", "reason"),
    [
        ("log-multi", scores(loss=[2.0, 1.0]), Context(2.0), "a loss is not below M = 2"),
        ("multi", scores(loss=[2.0]), Context(), "the panel has no M"),
        ("average", scores(accuracy=[0.5, float("nan")]), Context(), "1 of 2 devices have no acc"),
        ("auroc", scores(accuracy=[0.5]), Context(), "no device has auroc"),
        ("top-gini", scores(accuracy=[0.0, 0.0]), Context(), "every value is 0"),
        ("ratio-sum", scores(loss=[0.5]), Context(1.0), "it is the reference"),
        ("jain", scores(accuracy=[0.5]), Context(), "the run has no jain"),
        ("queues", scores(accuracy=[0.5]), Context(), "the run has no queue_last"),
    ],
)
def test_a_number_that_is_undefined_says_why(
    metric: str, given: Scores, context: Context, reason: str
) -> None:
    with pytest.raises(Undefined, match=f"^{reason}"):
        of(metric, given, context)


def test_an_accuracy_shows_no_less_than_one_example() -> None:
    assert MEASURES["average"].resolution(scores(n=[30.0, 20.0], accuracy=[1.0, 0.0])) == 2.0
    assert MEASURES["total"].resolution(scores(accuracy=[1.0])) == 0.0
