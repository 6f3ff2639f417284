"""Defences: the worked example, oracles in float64, and changes with a large common part."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fairbed.coordinator.algorithms.aggregation.base import Changes, Updates
from fairbed.coordinator.algorithms.aggregation.defence import (
    BLOCK,
    Clip,
    GeometricMedian,
    KLoss,
    KNorm,
    Krum,
    Median,
    TrimmedMean,
    expected_malicious,
    geometric_median_weights,
    krum_scores,
)
from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.policy.config import AggregationConfig
from fairbed.coordinator.policy.factories import defence_problem, make_aggregator
from tests.coordinator.algorithms.aggregation.rounds import merged, reports, vector
from tests.tiers import ROOT, examples

U = np.array([[1.0, 0.0], [1.0, 0.2], [0.8, 0.0], [1.2, -0.2], [10.0, 10.0]])
FIFTH = 0.2
"""Malicious share that makes f = 1 of five updates."""


def updates(
    changes: Floats, losses: list[float] | None = None, sent: Floats | None = None
) -> Updates:
    """Return updates with these changes of the parameters."""
    k, d = changes.shape
    base = np.zeros(d, dtype=np.float32) if sent is None else sent.astype(np.float32)
    models = [(base + change).astype(np.float32) for change in changes]
    exact = Changes(base, models, d)
    return Updates(
        rows=np.arange(k),
        n_k=np.ones(k, dtype=np.int64),
        steps=np.ones(k, dtype=np.int64),
        shares=np.ones(k),
        losses=np.array(losses or [1.0] * k),
        squared_norms=np.array([float(np.square(exact[at]).sum()) for at in range(k)]),
        learning_rate=0.1,
        registered=k,
        changes=exact,
    )


def mean(given_: Updates, treated: object) -> list[float]:
    """Return the unweighted mean of what a filter leaves."""
    kept, scale = treated.is_kept, treated.scale  # type: ignore[attr-defined]
    assert given_.changes is not None
    left = np.array([scale[k] * given_.changes[k] for k in np.flatnonzero(kept).tolist()])
    return list(left.mean(axis=0))


def test_worked_example_of_the_filters() -> None:
    five = updates(U, [0.5, 0.9, 0.7, 0.6, 3.0])
    assert mean(five, Clip().treat(five)) == pytest.approx([0.905408, 0.150691], abs=1e-6)
    assert KNorm(FIFTH).treat(five).is_kept.tolist() == [True] * 4 + [False]
    assert mean(five, KNorm(FIFTH).treat(five)) == pytest.approx([1.0, 0.0], abs=1e-6)
    assert np.flatnonzero(KLoss(FIFTH).treat(five).is_kept).tolist() == [1]
    assert np.flatnonzero(Krum(FIFTH).treat(five).is_kept).tolist() == [0]
    multiple = Krum(FIFTH, is_multiple=True).treat(five)
    assert mean(five, multiple) == pytest.approx([1.0, 0.0], abs=1e-6)


def test_worked_example_of_krum_scores() -> None:
    five = updates(U)
    assert five.changes is not None
    scores = krum_scores(five.changes.squared_distances(), 1)
    assert scores.tolist() == pytest.approx([0.08, 0.12, 0.12, 0.28, 358.04], abs=1e-5)


def test_worked_example_of_the_robust_means() -> None:
    five, a = updates(U), np.ones(5)
    assert Median().combine(five, a).tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    trimmed = TrimmedMean(FIFTH).combine(five, a)
    assert trimmed.tolist() == pytest.approx([1.066667, 0.066667], abs=1e-6)


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 10_000), m=st.integers(1, 12), shift=st.sampled_from([0.0, 1e3]))
def test_robust_means_agree_with_brute_force(seed: int, m: int, shift: float) -> None:
    """Also with a part that all changes share and that is 1000 times their differences."""
    rng = np.random.default_rng(seed)
    given_ = updates(rng.standard_normal((m, 5)) + shift)
    assert given_.changes is not None
    D = np.array(list(given_.changes))
    f = expected_malicious(m, 0.3)
    np.testing.assert_allclose(
        Median().combine(given_, np.ones(m)), np.median(D, axis=0), rtol=1e-6, atol=1e-9
    )
    b = min(f, (m - 1) // 2)
    trimmed = np.sort(D, axis=0)[b : m - b].mean(axis=0)
    np.testing.assert_allclose(TrimmedMean(0.3).combine(given_, np.ones(m)), trimmed, rtol=1e-6)
    direct = np.array([[((x - y) ** 2).sum() for y in D] for x in D])
    np.testing.assert_allclose(
        given_.changes.squared_distances(), direct, rtol=1e-6, atol=1e-9 * max(direct.max(), 1e-9)
    )
    scores = [sum(sorted(np.delete(row, k))[: max(m - f - 2, 1)]) for k, row in enumerate(direct)]
    if m > 1:
        assert np.flatnonzero(Krum(0.3).treat(given_).is_kept).tolist() == [int(np.argmin(scores))]


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 10_000), m=st.integers(1, 9), shift=st.sampled_from([0.0, 1e3]))
def test_the_geometric_median_is_the_minimum(seed: int, m: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    given_, a = updates(rng.standard_normal((m, 3)) + shift), rng.uniform(0.1, 2.0, m)
    assert given_.changes is not None
    D = np.array(list(given_.changes))

    def cost(z: Floats) -> float:
        return float(a @ np.sqrt(((D - z) ** 2).sum(axis=1)))

    found = GeometricMedian().combine(given_, a)
    best = min(cost(minimize(cost, start, method="Nelder-Mead", tol=1e-10).x) for start in D[:3])
    assert cost(found) <= min(best, *(cost(point) for point in D)) * (1.0 + 1e-9) + 1e-12


def test_a_common_part_of_a_million_times_the_differences_changes_nothing() -> None:
    """Beside an attacker, too: against all pairs in float64, and Weiszfeld's iteration."""
    rng = np.random.default_rng(4)
    changes = rng.standard_normal((9, 3000))
    changes[8] *= 100.0
    given_ = updates(changes + 1e6 * rng.standard_normal(3000))
    assert given_.changes is not None
    D = np.array(list(given_.changes))
    direct = np.array([[np.square(x - y).sum() for y in D] for x in D])
    np.testing.assert_allclose(given_.changes.squared_distances(), direct, rtol=1e-6)
    scores = [np.delete(np.sort(row), 0)[:5].sum() for row in direct]
    best = np.argsort(scores)
    assert np.flatnonzero(Krum(FIFTH).treat(given_).is_kept).tolist() == [best[0]]
    multiple = Krum(FIFTH, is_multiple=True).treat(given_)
    assert np.flatnonzero(multiple.is_kept).tolist() == sorted(best[:8].tolist())
    z = D.mean(axis=0)
    for _ in range(1000):
        pull = 1.0 / np.sqrt(np.square(D - z).sum(axis=1))
        z = (pull[:, None] * D).sum(axis=0) / pull.sum()
    found = GeometricMedian().combine(given_, np.ones(9))
    np.testing.assert_allclose(found - D.mean(axis=0), z - D.mean(axis=0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [1e6, 1e12])
def test_a_huge_update_does_not_change_the_distances_of_the_others(size: float) -> None:
    """As a difference from the mean, it would be in all of them and cancel with large errors."""
    rng = np.random.default_rng(6)
    changes = rng.standard_normal((7, 3000))
    changes[:2] *= size
    given_ = updates(changes)
    assert given_.changes is not None
    D = np.array(list(given_.changes))
    direct = np.array([[np.square(x - y).sum() for y in D] for x in D])
    np.testing.assert_allclose(given_.changes.squared_distances(), direct, rtol=1e-8)


def test_inner_products_are_those_of_exact_sums() -> None:
    rng = np.random.default_rng(5)
    exact = updates(rng.lognormal(0.0, 3.0, (4, 5000)) * rng.choice([-1, 1], (4, 5000))).changes
    assert exact is not None
    expected = [[math.fsum((x * y).tolist()) for y in exact] for x in exact]
    lengths = np.sqrt(np.diag(expected))
    error = np.abs(exact.inner_products() - expected) / (lengths[:, None] * lengths[None, :])
    assert error.max() < 1e-9
    nothing = updates(np.zeros((2, 3))).changes
    assert nothing is not None
    assert not nothing.squared_distances().any()


@pytest.mark.full
def test_the_number_of_threads_changes_no_bit() -> None:
    """Products of this size are divided among threads, and so is the sum of the weighted rows."""
    program = """
import hashlib, numpy as np
from fairbed.coordinator.algorithms.aggregation.base import Changes
from fairbed.coordinator.policy.config import AggregationConfig
from fairbed.coordinator.policy.factories import make_aggregator
from tests.coordinator.algorithms.aggregation.rounds import merged, reports
rng = np.random.default_rng(0)
sent = rng.standard_normal(40_000).astype(np.float32)
models = [sent + rng.standard_normal(40_000).astype(np.float32) for _ in range(100)]
for keys in ({"defence": "krum"}, {"defence": "multi-krum"}, {"rule": "fedmgda+"},
             {"pseudo_gradient": "geometric-median"}):
    merge = merged(make_aggregator(AggregationConfig(**keys)), sent, 40_000, reports(models))
    print(hashlib.sha256(merge.vector.tobytes() + merge.weights.tobytes()).hexdigest())
print(hashlib.sha256(Changes(sent, models, 40_000).squared_distances().tobytes()).hexdigest())
"""
    found = []
    for threads in ("1", "2"):
        limits = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), threads)
        found.append(
            subprocess.run(
                [sys.executable, "-c", program],
                env=os.environ | limits,
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
    assert len(found[0].splitlines()) == 5
    assert found[0] == found[1]


def test_the_geometric_median_of_a_line_is_its_weighted_median() -> None:
    points = np.array([0.0, 1.0, 5.0])
    distances = np.square(points[:, None] - points[None, :])
    for a, expected in (([1.0, 1.0, 1.0], 1.0), ([1.0, 1.0, 5.0], 5.0), ([4.0, 1.0, 2.0], 0.0)):
        weights = geometric_median_weights(distances, np.array(a))
        assert float(weights @ points) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("points", "a", "expected"),
    [
        ([-1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0], 0.0),
        ([-2.0, 1.0, 0.0], [5.0, 10.0, 1.0], 1.0),
        ([0.0, 1.0], [1.0, 0.0], 0.0),
    ],
    ids=["it is the median", "the others pull it away", "the others have no weight"],
)
def test_the_geometric_median_may_begin_at_a_point(
    points: list[float], a: list[float], expected: float
) -> None:
    """The weighted mean, where the iteration begins, is exactly 0."""
    x = np.array(points)
    weights = geometric_median_weights(np.square(x[:, None] - x[None, :]), np.array(a))
    assert float(weights @ x) == pytest.approx(expected, abs=1e-9)


def test_a_tie_between_a_point_and_the_pull_of_the_others_ends_at_the_limit() -> None:
    """The distance from the point, the median, falls like 1 / steps only."""
    points = np.array([[0.0, 0.0], [3.0, 4.0], [3.0, -4.0]])
    distances = np.array([[0.0, 25.0, 25.0], [25.0, 0.0, 64.0], [25.0, 64.0, 0.0]])
    weights = geometric_median_weights(distances, np.array([1.0, 5 / 6, 5 / 6]))
    assert np.abs(weights @ points).max() < 1e-3
    assert weights.sum() == pytest.approx(1.0)


def test_blocks_do_not_change_a_result() -> None:
    rng = np.random.default_rng(1)
    wide = updates(rng.standard_normal((5, BLOCK + 7)))
    assert wide.changes is not None
    D = np.array(list(wide.changes))
    np.testing.assert_allclose(Median().combine(wide, np.ones(5)), np.median(D, axis=0), rtol=1e-12)
    direct = np.array([[((x - y) ** 2).sum() for y in D] for x in D])
    np.testing.assert_allclose(wide.changes.squared_distances(), direct, rtol=1e-9, atol=1e-6)


def test_a_defence_says_when_a_round_is_too_small() -> None:
    assert Krum(0.2).problem(5) == ""
    assert Krum(0.4).problem(5).startswith("krum needs at least 2 f + 3 updates per round, got 5")
    assert KNorm(0.5).problem(2) == KLoss(0.5).problem(2) == Clip().problem(1) == ""
    assert KNorm(1.0).problem(2).startswith("k-norm needs at least f + 1 updates")
    assert TrimmedMean(0.5).problem(4).startswith("trimmed-mean needs at least 2 f + 1 updates")


def test_a_round_of_one_update_keeps_it() -> None:
    one = updates(U[:1])
    for defence in (Clip(), KNorm(0.4), KLoss(0.4), Krum(0.4), Krum(0.4, is_multiple=True)):
        treated = defence.treat(one)
        assert (treated.is_kept.tolist(), treated.scale.tolist()) == ([True], [1.0])


def test_all_malicious_still_leaves_an_update() -> None:
    five = updates(U)
    for one in (KNorm(1.0), KLoss(1.0), Krum(1.0), Krum(1.0, is_multiple=True)):
        assert one.treat(five).is_kept.sum() == 1
    assert np.isfinite(TrimmedMean(1.0).combine(five, np.ones(5))).all()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"defence": "clip"}, [0.905408, 0.150691]),
        ({"defence": "k-norm"}, [1.0, 0.0]),
        ({"defence": "krum"}, [1.0, 0.0]),
        ({"defence": "multi-krum"}, [1.0, 0.0]),
        ({"defence": "k-loss"}, [1.0, 0.2]),
        ({"pseudo_gradient": "median"}, [1.0, 0.0]),
        ({"pseudo_gradient": "trimmed-mean"}, [1.066667, 0.066667]),
        ({"defence": "clip", "pseudo_gradient": "median"}, [1.0, 0.0]),
    ],
)
def test_a_defence_acts_before_the_weighting_in_any_order(
    config: dict[str, str], expected: list[float]
) -> None:
    rule = make_aggregator(AggregationConfig(weights="equal", **config))  # type: ignore[arg-type]
    losses = [0.5, 0.9, 0.7, 0.6, 3.0]
    models, sent = (U + 5.0).tolist(), vector(5, 5)
    first = merged(rule, sent, 2, reports(models, losses=losses))
    assert first.vector.tolist() == pytest.approx([5.0 + x for x in expected], abs=1e-5)
    order = [3, 0, 4, 2, 1]
    again = merged(
        rule,
        sent,
        2,
        reports([models[k] for k in order], losses=[losses[k] for k in order], rows=order),
    )
    np.testing.assert_array_equal(again.vector, first.vector)
    np.testing.assert_array_equal(again.scale, first.scale[order])
    np.testing.assert_array_equal(again.weights, first.weights[order])
    if config.get("defence", "clip") != "clip":
        assert first.scale[4] == first.weights[4] == 0.0


def test_the_rule_weights_those_that_a_filter_leaves() -> None:
    """Of five devices, k-norm leaves out the last one; the others count by their examples."""
    rule = make_aggregator(AggregationConfig(defence="k-norm"))
    merge = merged(rule, vector(0, 0), 2, reports(U.tolist(), n_k=[1, 2, 3, 4, 90]))
    assert merge.weights.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.0])
    assert merge.vector.tolist() == pytest.approx([1.02, -0.04], abs=1e-6)


@pytest.mark.parametrize(
    ("keys", "needs"),
    [
        ({"defence": "krum"}, "krum needs at least 2 f + 3"),
        ({"defence": "multi-krum"}, "multi-krum needs at least 2 f + 3"),
        ({"pseudo_gradient": "trimmed-mean"}, "trimmed-mean needs at least 2 f + 1"),
    ],
)
def test_a_round_that_is_too_small_is_reported_and_merged(keys: dict[str, str], needs: str) -> None:
    """Rounds of five or more are planned, and four updates arrive."""
    config = AggregationConfig(malicious_share=0.5, **keys)  # type: ignore[arg-type]
    merge = merged(make_aggregator(config), vector(0, 0), 2, reports(U[:4].tolist()))
    (note,) = merge.notes
    assert note.kind == "defence"
    assert note.about(["pi-0", "pi-1", "pi-2", "pi-3"]) == note.text
    assert note.text == (
        f"{needs} updates per round, got 4 with f = 2 expected malicious ones; raise "
        "selection.per_round, or lower aggregation.malicious_share"
    )
    assert np.abs(merge.vector - [1.0, 0.0]).max() < 0.3
    assert defence_problem(config, 4) == note.text


def test_a_round_that_is_large_enough_is_not_reported() -> None:
    for keys, m in (({"defence": "krum"}, 7), ({"pseudo_gradient": "trimmed-mean"}, 5)):
        config = AggregationConfig(malicious_share=0.3, **keys)  # type: ignore[arg-type]
        models = [[1.0, 0.01 * k] for k in range(m)]
        merge = merged(make_aggregator(config), vector(0, 0), 2, reports(models))
        assert (merge.notes, defence_problem(config, m)) == ((), "")
