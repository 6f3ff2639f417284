"""Claims that exchanges contradict are replaced, honest ones are not, and state survives."""

import math

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.estimation.base import (
    COLD,
    DOWN,
    INVERSE_MU,
    PHASES,
    UP,
)
from fairbed.coordinator.algorithms.estimation.context_check import (
    CONTRADICTIONS,
    RETRY_ROUNDS,
    WINDOW,
    CheckedRound,
    ContextChange,
    ContextCheck,
    Evidence,
)

FIVE = np.arange(5)
HONEST = (0.5, 1.0, 2.0, 4.0)
"""1/mu = 0.5: two free cores; a claimed cold start; 2 s down and 4 s up."""


def exchange(
    check: ContextCheck,
    claimed: Floats,
    round_id: int,
    *,
    slower: Floats | float = 1.0,
    load_s: Floats | float = 1.0,
) -> list[ContextChange]:
    """Give one exchange to each of n devices, 6 core-seconds of training, then return changes.

    `slower` multiplies what an honest context predicts: 3 s of computing, 2 s down, 4 s up.
    """
    n = len(claimed)
    phases_s = np.tile([2.0, 1.0, 3.0, 4.0, 0.1], (n, 1))
    factor = np.broadcast_to(np.asarray(slower, dtype=np.float64), n)
    phases_s[:, [0, 2, 3]] *= factor[:, None]
    phases_s[:, 1] = load_s
    return observe(check, claimed, phases_s, np.ones(n, dtype=np.int64), round_id)


def observe(
    check: ContextCheck, claimed: Floats, phases_s: Floats, steps: Ints, round_id: int
) -> list[ContextChange]:
    """Give one exchange to each device; the column `COLD` is whether it claims a cold start."""
    return judge(check, claimed, phases_s, steps, round_id).changes


def judge(
    check: ContextCheck,
    claimed: Floats,
    phases_s: Floats,
    steps: Ints,
    round_id: int,
    cores: float = 2.0,
) -> CheckedRound:
    """Give one exchange to each device; only the first start of a device is known to be cold."""
    n = len(claimed)
    evidence = Evidence(
        claims_cold=claimed[:, COLD] > 0.0,
        is_cold=np.full(n, round_id == 1),
        phases_s=phases_s,
        steps=steps,
        cores=np.full(n, cores),
    )
    return check.observe(np.arange(n), claimed, evidence, round_id)


def claims(n: int = 5, liar: tuple[float, ...] = HONEST) -> Floats:
    """Return honest claims of n devices, but for device 0."""
    context = np.tile(HONEST, (n, 1))
    context[0] = liar
    return context


FAST = (0.05, 0.0, 0.2, 0.4)
"""Ten times the free cores and the link rates of `HONEST`."""


def test_a_worked_example() -> None:
    """By hand: the liar claims 20 cores and has 2, ln 10 > ln 5.

    Of its 2 s of download at most 3 x 0.1 s are round trips, so l = ln(1.7 / 0.2) = 2.14 > ln 5; of
    its upload l = ln(3.7 / 0.4) = 2.22. The others have z = ln 6 for computing and 0 for the
    transfers, so that the liar's exchanges show 3 / 6 = 0.5, 2 s and 4 s: what they claim.
    """
    check, context = ContextCheck(5.0), claims(liar=FAST)
    assert exchange(check, context, 1) == []
    assert exchange(check, context, 2) == []
    np.testing.assert_array_equal(check.believed(context, 3), context)
    changes = exchange(check, context, 3)
    assert [(c.row, c.column, c.is_distrusted) for c in changes] == [
        (0, INVERSE_MU, True),
        (0, DOWN, True),
        (0, UP, True),
    ]
    assert [c.claimed for c in changes] == [0.05, 0.2, 0.4]
    assert [c.shown for c in changes] == pytest.approx([0.5, 2.0, 4.0], rel=1e-12)
    expected = claims(liar=(0.5, 0.0, 2.0, 4.0))
    np.testing.assert_allclose(check.believed(context, 4), expected, rtol=1e-12)
    np.testing.assert_array_equal(context, claims(liar=FAST), "inputs stay as they are")


def test_an_exchange_that_contradicts_is_learned_with_what_it_shows() -> None:
    """Before the verdict, too: an estimator that learned from a false context would keep it."""
    check, context, steps = ContextCheck(5.0), claims(liar=FAST), np.ones(5, dtype=np.int64)
    phases_s = np.tile([2.0, 1.0, 3.0, 4.0, 0.1], (5, 1))
    for round_id in range(1, 6):
        learned = judge(check, context, phases_s, steps, round_id).context
        np.testing.assert_allclose(learned, claims(liar=(0.5, 0.0, 2.0, 4.0)), rtol=1e-12)


def test_a_device_with_slower_cores_is_held_to_its_own_speed() -> None:
    """It was honest and twice as slow as the fleet per core; then it lies by a factor of 10."""
    check, slower = ContextCheck(5.0), np.where(FIVE == 0, 2.0, 1.0)
    for round_id in range(1, 8):
        liar = HONEST if round_id < 4 else FAST
        exchange(check, claims(liar=liar), round_id, slower=slower)
    believed = check.believed(claims(liar=FAST), 8)
    np.testing.assert_allclose(believed, claims(liar=(0.5, 0.0, 2.0, 4.0)), rtol=1e-12)


def test_a_fast_claim_is_found_in_three_exchanges() -> None:
    check = ContextCheck(5.0)
    found = [exchange(check, claims(liar=FAST), round_id) for round_id in range(1, 4)]
    assert [len(changes) for changes in found[:2]] == [0, 0]
    assert [(c.row, c.column) for c in found[2]] == [(0, INVERSE_MU), (0, DOWN), (0, UP)]


def test_a_slow_claim_of_a_link_is_found_in_five_exchanges() -> None:
    """One outage makes an honest rate, an average, as slow for three exchanges."""
    check, slow = ContextCheck(5.0), (5.0, 1.0, 20.0, 40.0)
    found = [exchange(check, claims(liar=slow), round_id) for round_id in range(1, 6)]
    assert found[:4] == [[]] * 4
    assert [(c.row, c.column, c.contradictions) for c in found[4]] == [(0, DOWN, 5), (0, UP, 5)]


def test_a_later_slow_claim_of_cores_is_found_in_three_exchanges() -> None:
    check, slow = ContextCheck(5.0), (5.0, *HONEST[1:])
    assert not any(exchange(check, claims(), round_id) for round_id in range(1, 4))
    found = [exchange(check, claims(liar=slow), round_id) for round_id in range(4, 7)]
    assert found[:2] == [[], []]
    assert [(c.row, c.column) for c in found[2]] == [(0, INVERSE_MU)]
    assert check.believed(claims(liar=slow), 7)[0, INVERSE_MU] == pytest.approx(0.5)


def test_slow_cores_are_no_false_claim() -> None:
    """Forty times as slow as the fleet, from the first exchange on: another processor."""
    check, slower = ContextCheck(5.0), np.where(FIVE == 0, 40.0, 1.0)
    for round_id in range(1, 20):
        phases_s = np.tile([2.0, 1.0, 3.0, 4.0, 0.1], (5, 1))
        phases_s[:, 2] *= slower
        assert observe(check, claims(), phases_s, np.ones(5, dtype=np.int64), round_id) == []


def test_a_fast_device_whose_transfers_are_round_trips_is_not_judged_by_the_slow_ones() -> None:
    """The others need 1,000 times what they claim, which is below the clock of this check."""
    check, context = ContextCheck(5.0), claims()
    context[:, COLD], context[:, [DOWN, UP]] = 0.0, 1e-5
    phases_s = np.tile([0.01, 1.0, 3.0, 0.01, 0.01], (5, 1))
    phases_s[0, [0, 3, 4]] = 5e-4
    steps = np.ones(5, dtype=np.int64)
    for round_id in range(1, 10):
        judged = judge(check, context, phases_s, steps, round_id)
        assert judged.changes == []
        assert judged.is_judged.all(), "by their cores"
    assert not any(judge(check, context, 1e-4 * phases_s, steps, 10).is_judged)


def test_an_average_of_rates_after_one_outage_is_no_false_claim() -> None:
    """As recorded in a replay: 70 s after an outage, and half as much after each transfer."""
    check, context = ContextCheck(5.0), claims()
    for round_id in range(1, 12):
        context[0, DOWN] = 2.0 + max(0.0, 68.0 * 0.5 ** (round_id - 3)) * (round_id >= 3)
        assert exchange(check, context, round_id) == []


def test_a_link_that_varies_has_a_wider_limit() -> None:
    """Claims 8 times too fast, found on a steady link; the differences of this one are as large."""
    check, context, varied = ContextCheck(5.0), claims(), ContextCheck(5.0)
    context[0, DOWN] = 0.25
    steady = [len(exchange(check, context, round_id)) for round_id in range(1, 4)]
    assert steady == [0, 0, 1]
    for round_id in range(1, 30):
        context[0, DOWN] = 0.25 if round_id % 2 else 2.0
        assert exchange(varied, context, round_id) == []


def test_a_later_lie_is_found_in_three_exchanges() -> None:
    check = ContextCheck(5.0)
    assert not any(exchange(check, claims(), round_id) for round_id in range(1, 21))
    found = [exchange(check, claims(liar=FAST), round_id) for round_id in range(21, 24)]
    assert found[:2] == [[], []]
    assert [c.column for c in found[2]] == [INVERSE_MU, DOWN, UP]


def test_a_device_that_is_always_cold_is_found_in_three_warm_exchanges() -> None:
    check, context = ContextCheck(5.0), claims()
    assert exchange(check, context, 1) == [], "the first start of every device is cold"
    context[1:, COLD] = 0.0
    load_s = np.zeros(5)
    found = [exchange(check, context, round_id, load_s=load_s) for round_id in range(2, 5)]
    assert found[:2] == [[], []]
    [change] = found[2]
    assert (change.row, change.column, change.is_distrusted) == (0, COLD, True)
    np.testing.assert_array_equal(check.believed(context, 5), context, "no prediction uses it")
    assert "claims a cold start, but loads in 0.001 of the time of its known" in change.text()


def test_a_claim_counts_again_when_five_exchanges_agree() -> None:
    check = ContextCheck(5.0)
    for round_id in range(1, 9):
        exchange(check, claims(liar=FAST), round_id)
    found = [exchange(check, claims(), round_id) for round_id in range(9, 9 + WINDOW)]
    assert found[: WINDOW - 1] == [[]] * (WINDOW - 1)
    assert [(c.column, c.is_distrusted) for c in found[-1]] == [
        (INVERSE_MU, False),
        (DOWN, False),
        (UP, False),
    ]
    np.testing.assert_array_equal(check.believed(claims(), 20), claims())


def test_a_device_that_throttles_is_predicted_as_slow_and_then_as_it_claims() -> None:
    """Eight times slower for ten rounds, with an unchanged claim: only that time is held to it."""
    check, context = ContextCheck(5.0), claims()
    throttled = np.where(FIVE == 0, 8.0, 1.0)
    for round_id in range(1, 31):
        exchange(check, context, round_id, slower=throttled if 10 < round_id <= 20 else 1.0)
        slow = 13 <= round_id < 25
        expected = claims(liar=(4.0, 1.0, 16.0, 32.0)) if 15 <= round_id <= 20 else None
        if expected is not None:
            np.testing.assert_allclose(check.believed(context, round_id), expected, rtol=1e-12)
        assert check.distrusted[0, [INVERSE_MU, DOWN, UP]].tolist() == [slow] * 3
        assert not check.distrusted[1:].any()


def test_a_device_without_exchanges_is_tried_again_and_one_more_lie_suffices() -> None:
    check, context = ContextCheck(5.0), claims(liar=FAST)
    for round_id in (1, 2, 3):
        exchange(check, context, round_id)
    assert check.believed(context, 3 + RETRY_ROUNDS)[0, DOWN] == pytest.approx(2.0)
    retried = 4 + RETRY_ROUNDS
    np.testing.assert_array_equal(check.believed(context, retried), context)
    assert exchange(check, context, retried) == [], "it has not been trusted in between"
    assert check.believed(context, retried + 1)[0, DOWN] == pytest.approx(2.0)


def test_two_outages_of_a_link_replace_nothing() -> None:
    check = ContextCheck(5.0)
    for round_id in range(1, 30):
        outage = np.where(FIVE == 0, 100.0 if round_id % 5 < 2 else 1.0, 1.0)
        assert exchange(check, claims(), round_id, slower=outage) == []


def false_positives(
    noise: float, outages: float, n: int, rounds: int, seed: int
) -> tuple[int, int]:
    """Return how often an honest fleet is distrusted, and the number of exchanges.

    Cores of five speeds (1 to 3.5 times), noise of every phase lognormal with sd `noise`, and a
    share `outages` of the transfers ten times as long.
    """
    rng, check, found = np.random.default_rng(seed), ContextCheck(5.0), 0
    core_s = np.resize([1.0, 1.3, 1.6, 2.5, 3.5], n)
    for round_id in range(1, rounds + 1):
        context = np.column_stack(
            [
                rng.uniform(0.25, 2.0, n),
                (rng.random(n) < 0.5).astype(np.float64),
                rng.uniform(0.1, 5.0, (n, 2)),
            ]
        )
        phases_s = np.empty((n, len(PHASES)))
        outage = np.where(rng.random((n, 2)) < outages, 10.0, 1.0)
        phases_s[:, [0, 3]] = context[:, [DOWN, UP]] * outage
        phases_s[:, 1] = np.where(context[:, COLD] > 0.0, core_s, 0.0)
        phases_s[:, 2] = 20.0 * core_s * context[:, INVERSE_MU]
        phases_s[:, :4] *= np.exp(noise * rng.standard_normal((n, 4)))
        phases_s[:, 4] = 0.05
        steps = np.full(n, 20)
        changes = observe(check, context, phases_s, steps, round_id)
        found += sum(change.is_distrusted for change in changes)
    return found, n * rounds


@pytest.mark.parametrize(
    ("noise", "outages", "bound"),
    [(0.1, 0.0, 0.0), (0.3, 0.0, 1e-4), (0.1, 0.02, 2e-4), (0.1, 0.05, 2e-3)],
)
def test_honest_devices_are_hardly_ever_distrusted(
    noise: float, outages: float, bound: float
) -> None:
    """At most `bound` false verdicts per exchange, over five seeds of 20 devices in 100 rounds.

    With outages alone, 3 of 5 exchanges contradict one transfer with a probability of at most
    10 p^3: 0.00125 for p = 0.05, and there are two transfers.
    """
    runs = [false_positives(noise, outages, 20, 100, seed) for seed in range(5)]
    found, exchanges = (sum(column) for column in zip(*runs, strict=True))
    assert exchanges == 10_000
    assert found <= bound * exchanges


def test_a_fleet_of_two_is_not_judged() -> None:
    check, context = ContextCheck(5.0), claims(2, (0.5, 0.0, 0.2, 0.4))
    assert not any(exchange(check, context, round_id) for round_id in range(1, 20))
    np.testing.assert_array_equal(check.believed(context, 20), context)


def test_phases_that_were_not_seen_and_unknown_rates_are_not_judged() -> None:
    check, context = ContextCheck(5.0), claims(liar=(0.05, 0.0, 0.0, 0.0))
    for round_id in range(1, 10):
        phases_s = np.tile([2.0, np.nan, np.nan, 4.0, 0.1], (5, 1))
        assert observe(check, context, phases_s, np.ones(5, dtype=np.int64), round_id) == []
    assert not check.distrusted.any()


def test_a_transfer_that_is_not_needed_stays_zero() -> None:
    check = ContextCheck(5.0)
    for round_id in (1, 2, 3):
        exchange(check, claims(liar=FAST), round_id)
    asked = claims(liar=(0.05, 0.0, 0.0, 0.4))
    assert check.believed(asked, 4)[0].tolist() == pytest.approx([0.5, 0.0, 0.0, 4.0])


def test_more_mini_batches_are_no_contradiction() -> None:
    """One device trains 100 times as long, on as many mini-batches."""
    check, context = ContextCheck(5.0), claims()
    phases_s = np.tile([2.0, 1.0, 3.0, 4.0, 0.1], (5, 1))
    phases_s[0, 2] *= 100.0
    steps = np.array([100, 1, 1, 1, 1])
    for round_id in range(1, 10):
        assert observe(check, context, phases_s, steps, round_id) == []


def test_the_order_of_exchanges_changes_no_bit() -> None:
    check, mirrored, context = ContextCheck(5.0), ContextCheck(5.0), claims(liar=FAST)
    rng = np.random.default_rng(0)
    for round_id in range(1, 8):
        phases_s = rng.uniform(0.5, 1.5, (5, 1)) * [[2.0, 1.0, 3.0, 4.0, 0.1]]
        steps = np.ones(5, dtype=np.int64)
        evidence = Evidence(context[:, COLD] > 0.0, FIVE < 0, phases_s, steps, np.full(5, 2.0))
        judged = check.observe(FIVE, context, evidence, round_id)
        order = FIVE[::-1]
        turned = Evidence(*(getattr(evidence, name)[order] for name in Evidence.__slots__))
        same = mirrored.observe(order, context[order], turned, round_id)
        np.testing.assert_array_equal(same.context[order], judged.context)
        assert same.changes == judged.changes
    assert check.to_state() == mirrored.to_state()
    np.testing.assert_array_equal(check.believed(context, 8), mirrored.believed(context, 8))


@pytest.mark.parametrize("saved_after", [0, 2, 4])
def test_a_restored_check_goes_on_as_before(saved_after: int) -> None:
    check, resumed, context = ContextCheck(5.0), ContextCheck(5.0), claims(liar=FAST)
    exchange(resumed, claims(8), 1)
    for round_id in range(1, saved_after + 1):
        exchange(check, context, round_id)
    resumed.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(check.to_state())))
    for round_id in range(saved_after + 1, saved_after + 6):
        assert exchange(resumed, context, round_id) == exchange(check, context, round_id)
        np.testing.assert_array_equal(
            resumed.believed(context, round_id), check.believed(context, round_id)
        )
    assert resumed.to_state() == check.to_state()


@pytest.mark.parametrize("tolerance", [1.0, 0.0, -5.0, math.nan, math.inf])
def test_a_bad_tolerance_is_refused(tolerance: float) -> None:
    with pytest.raises(ValueError, match=r"^context check: tolerance must be > 1, got .*; 5 cov"):
        ContextCheck(tolerance)


def test_shapes_that_disagree_are_refused_and_change_nothing() -> None:
    check = ContextCheck(5.0)
    before = check.to_state()
    with pytest.raises(ValueError, match="pass one row per exchange"):
        judge(check, claims(4), np.ones((5, 5)), FIVE, 1)
    assert check.to_state() == before
    assert observe(check, claims()[:0], np.ones((0, 5)), FIVE[:0], 1) == []


def test_the_events_state_claim_and_measurement() -> None:
    check, context = ContextCheck(5.0), claims(liar=FAST)
    changes = [exchange(check, context, round_id) for round_id in range(1, CONTRADICTIONS + 1)][-1]
    texts = [change.text() for change in changes]
    assert texts[0] == (
        "claims 20 free cores, but its exchange shows 2; 3 of the last 5 that were judged "
        "contradict its claims, so predictions use what they show until none does, or 100 rounds "
        "pass without one"
    )
    assert texts[1].startswith("claims 0.2 s for its download, but its exchange shows 2 s; 3 of")
    back = [exchange(check, claims(), round_id) for round_id in range(4, 4 + WINDOW)][-1]
    assert back[2].text() == (
        "claims 4 s for its upload, and its exchange shows 4 s; none of the last 5 that were "
        "judged contradicts its claims, so predictions use them again"
    )


def test_a_cold_start_that_is_believed_again_is_said_so() -> None:
    change = ContextChange(0, COLD, is_distrusted=False, claimed=1.0, shown=1.0, contradictions=0)
    assert change.text() == "its claimed cold starts agree with its loading times again"
