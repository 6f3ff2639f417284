"""Distances of runs, by hand and against what they have to be."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.replay_fidelity.distances import RunTimes, errors, gap, mean_gap, relative_errors


def run(
    tau_s: Mapping[tuple[int, str], float],
    *,
    close_s: float = 0.0,
    spoilt: frozenset[int] = frozenset(),
    rates: Mapping[str, float] | None = None,
    queue: float = 0.0,
) -> RunTimes:
    """A run whose rounds last as long as their slowest exchange."""
    rounds = sorted({round_id for round_id, _ in tau_s})
    return RunTimes(
        tau_s=tau_s,
        round_s={
            r: max(tau for (of, _), tau in tau_s.items() if of == r) + close_s for r in rounds
        },
        valid_rounds=frozenset(rounds) - spoilt,
        rates=rates or {},
        queue_mean=queue,
    )


LIVE = run({(1, "a"): 2.0, (1, "b"): 4.0, (2, "a"): 2.0, (2, "c"): 5.0})


def test_a_run_is_no_distance_from_itself() -> None:
    found = gap(LIVE, LIVE)
    assert set(found.as_dict().values()) == {0.0}
    assert errors(LIVE, LIVE).tau.median == 0.0
    assert errors(LIVE, LIVE).round.p95 == 0.0


def test_errors_are_of_the_exchanges_that_both_made() -> None:
    predicted = run({(1, "a"): 2.2, (1, "b"): 3.0, (2, "a"): 2.0, (2, "d"): 9.0})
    found = errors(LIVE, predicted)
    assert found.tau.count == 3
    assert found.tau.median == pytest.approx(0.1)
    assert found.tau.bias == pytest.approx(0.0)
    assert found.round.count == 1, "the second round had another cohort"
    assert found.round.median == pytest.approx(0.25)


def test_a_round_in_which_an_exchange_does_not_count_tells_nothing_of_its_length() -> None:
    spoilt = run(LIVE.tau_s, spoilt=frozenset({2}))
    assert errors(spoilt, LIVE).round.count == 1
    assert errors(spoilt, LIVE).tau.count == 4
    assert gap(spoilt, LIVE).round_ratio > 0.0, "its rounds are those of the first length only"


def test_a_gap_is_relative_to_the_first_run() -> None:
    slower = run({key: 1.1 * tau for key, tau in LIVE.tau_s.items()}, close_s=0.0)
    found = gap(LIVE, slower)
    assert found.tau_ratio == pytest.approx(0.1)
    assert found.round_ratio == pytest.approx(0.1)
    assert found.total_ratio == pytest.approx(0.1)


def test_rates_and_queues_are_compared_device_by_device() -> None:
    one = run(LIVE.tau_s, rates={"a": 1.0, "b": 0.5, "c": 0.5}, queue=3.0)
    other = run(LIVE.tau_s, rates={"a": 1.0, "b": 0.8}, queue=1.0)
    found = gap(one, other)
    assert found.rate == pytest.approx((0.0 + 0.3 + 0.5) / 3)
    assert found.queue == 2.0


def test_the_gap_of_pairs_is_their_mean() -> None:
    slower = run({key: 1.2 * tau for key, tau in LIVE.tau_s.items()})
    assert mean_gap([(LIVE, LIVE), (slower, LIVE)]).tau_ratio == pytest.approx(
        (0.0 + gap(slower, LIVE).tau_ratio) / 2
    )


def test_runs_without_exchanges_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="every exchange is valid, got none"):
        gap(LIVE, run({}))
    assert relative_errors([], []).median is None


@given(
    st.lists(st.floats(0.1, 100.0), min_size=1, max_size=20).flatmap(
        lambda taus: st.tuples(st.just(taus), st.permutations(taus))
    )
)
def test_who_made_which_exchange_does_not_matter_to_a_gap(
    both: tuple[list[float], list[float]],
) -> None:
    """Nor does their order: only the distribution does."""
    taus, shuffled = both
    one = run({(i, "a"): tau for i, tau in enumerate(taus)})
    other = run({(i, "b"): tau for i, tau in enumerate(shuffled)})
    assert gap(one, other).tau_ratio == pytest.approx(0.0, abs=1e-9)
    assert gap(one, other).total_ratio == pytest.approx(0.0, abs=1e-9)
