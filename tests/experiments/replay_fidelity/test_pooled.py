"""All repeats as one statement: by hand, and where every number is drawn from a known law."""

import math

import numpy as np
import pytest

from experiments.replay_fidelity.pooled import Timed, loss_windows, pooled
from experiments.replay_fidelity.report import pooled_lines
from fairbed.profiles.series import Series


def exchanges(*taus_s: float, at_s: float = 0.0) -> dict[tuple[int, str], Timed]:
    """Exchanges of one device, one per round, 10 s apart; a tenth of each is the signal."""
    return {
        (number, "pi"): Timed(
            at_s + 10.0 * number, tau, (0.1 * tau, 0.4 * tau, 0.2 * tau, 0.3 * tau)
        )
        for number, tau in enumerate(taus_s)
    }


WINDOWS = {"pi": Series.sampled([0.0, 0.02, 0.01, 0.05], 25.0)}


def test_the_ratio_is_that_of_the_medians_of_the_runs() -> None:
    live = exchanges(1.0, 2.0, 4.0)
    runs = [
        ("b-1", live, exchanges(1.1, 2.2, 9.0)),
        ("b-2", live, exchanges(0.9, 1.8, 3.6)),
    ]
    found = pooled(runs, {})
    assert [one.ratio for one in found.runs] == pytest.approx([1.1, 0.9])
    middle = math.sqrt(1.1 * 0.9)
    half = 12.7062 * math.log(1.1 / 0.9) / 2.0  # t(0.975, 1) sd / sqrt 2
    assert found.ratio == pytest.approx(middle)
    assert found.low == pytest.approx(middle * math.exp(-half), rel=1e-4)
    assert found.high == pytest.approx(middle * math.exp(half), rel=1e-4)
    assert found.pairs == 6
    assert found.mean_ratio == pytest.approx((1.1 + 2.2 + 9.0 + 0.9 + 1.8 + 3.6) / 14.0)


def test_only_exchanges_of_both_are_pairs_and_one_run_has_no_interval() -> None:
    found = pooled([("b-1", exchanges(2.0, 2.0), exchanges(3.0)), ("b-2", exchanges(1.0), {})], {})
    assert (found.pairs, len(found.runs)) == (1, 1)
    assert found.ratio == pytest.approx(1.5)
    assert found.low is None
    assert "no interval" in " ".join(pooled_lines(found))
    empty = pooled([], {})
    assert empty.ratio is None
    assert "no exchange is valid" in pooled_lines(empty)[-1]


def test_parts_add_up_to_the_exchange() -> None:
    found = pooled([("b-1", exchanges(1.0, 3.0), exchanges(2.0, 4.0))], {})
    assert [part.name for part in found.parts] == ["signal", "download", "compute", "upload"]
    assert sum(part.live_s for part in found.parts) == pytest.approx(2.0)
    assert sum(part.replay_s for part in found.parts) == pytest.approx(3.0)


def test_windows_are_counted_once_over_all_repeats() -> None:
    """Exchanges at 0, 10, 20 s; that at 20 s lasts into the second window."""
    live = exchanges(1.0, 1.0, 7.0)
    found = pooled([("b-1", live, live), ("b-2", live, live)], WINDOWS)
    assert [one.windows for one in found.runs] == [2, 2]
    assert found.windows == 2
    assert found.has_few_windows
    assert "loss windows seen: 2, the same in every repeat" in pooled_lines(found)[-1]


def test_a_window_that_comes_again_is_another_one() -> None:
    assert loss_windows("pi", WINDOWS, 10.0, 1.0) != loss_windows("pi", WINDOWS, 110.0, 1.0)
    assert len(loss_windows("pi", WINDOWS, 0.0, 200.0)) == 8


def test_constant_loss_has_no_windows() -> None:
    live = exchanges(1.0)
    found = pooled([("b-1", live, live)], {"pi": Series.constant(0.02)})
    assert found.windows is None
    assert not found.has_few_windows
    assert loss_windows("elsewhere", WINDOWS, 0.0, 10.0) == set()


def test_the_interval_holds_its_level_although_the_pairs_of_a_run_are_alike() -> None:
    """Each run has an effect of its own: pairs taken as independent would be far too sure."""
    rng, held, runs, pairs = np.random.default_rng(7), 0, 6, 40
    for _ in range(400):
        ones = []
        for number in range(runs):
            live = rng.lognormal(1.0, 0.3, pairs)
            replay = live * 0.95 * np.exp(rng.normal(0.0, 0.05) + rng.normal(0.0, 0.3, pairs))
            ones.append((f"b-{number}", exchanges(*live), exchanges(*replay)))
        found = pooled(ones, {})
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.95 <= found.high
    assert 0.92 <= held / 400 <= 0.98
