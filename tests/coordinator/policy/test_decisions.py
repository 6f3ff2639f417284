"""Selection and learning, without a network."""

import re
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.algorithms.aggregation.base import Report
from fairbed.coordinator.algorithms.estimation.base import COLD, DOWN, Measured
from fairbed.coordinator.algorithms.selection.base import WORDS
from fairbed.coordinator.algorithms.selection.explanation import Explanation
from fairbed.coordinator.policy.config import (
    AggregationConfig,
    CoordinatorConfig,
    EvaluationConfig,
    ModelConfig,
    RoundConfig,
    SelectionConfig,
    TrainingConfig,
    mini_batch_problem,
    rule_problem,
)
from fairbed.coordinator.policy.decisions import Decisions, FleetSizeError, make_decisions
from fairbed.coordinator.policy.selection import (
    ReportedLosses,
    SelectionBuilder,
)
from fairbed.coordinator.state.registry import Registry
from fairbed.wire.plugins import PluginError
from tests.coordinator.builders import Observation, context, hello, observations
from tests.local_rules import DRIFT, HERE

BOTH_WAYS = (8e6, 8e6)
"""Bits down and up."""


def decisions(**selection: object) -> Decisions:
    return make_decisions(config(selection=selection))


def config(
    selection: dict[str, object] | None = None,
    training: TrainingConfig | None = None,
    aggregation: AggregationConfig | None = None,
) -> CoordinatorConfig:
    return CoordinatorConfig(
        name="test",
        seed_init=1,
        seed_selection=2,
        seed_training=3,
        rounds=10,
        model=ModelConfig(),
        training=training or TrainingConfig(),
        selection=SelectionConfig(**({"per_round": 2} | (selection or {}))),  # type: ignore[arg-type]
        aggregation=aggregation or AggregationConfig(),
        round=RoundConfig(deadline_s=30.0),
        evaluation=EvaluationConfig(),
    )


def fleet(n: int = 5) -> Registry:
    registry = Registry()
    for i in range(n):
        registry.join(f"pi-{i}", hello(n_k=100), now=0.0)
        registry.update_context(f"pi-{i}", context(), now=1.0)
    return registry


def observe(made: Decisions, registry: Registry, round_id: int, tau_s: float) -> list[int]:
    selection = made.select(round_id, registry, BOTH_WAYS, now=1.0)
    seen = [Observation(int(row), tau_s + int(row), None, True, False) for row in selection.rows]
    made.learn(selection, observations(seen))
    return [int(row) for row in selection.rows]


def test_the_same_seed_and_round_give_the_same_cohort() -> None:
    registry = fleet()
    first = decisions().select(1, registry, BOTH_WAYS, now=1.0)
    second = decisions().select(1, registry, BOTH_WAYS, now=1.0)
    assert first.rows.tolist() == second.rows.tolist()


def test_a_restored_checkpoint_continues_the_same_run() -> None:
    registry = fleet()
    straight = decisions()
    for round_id in range(1, 6):
        observe(straight, registry, round_id, 1.0)
    resumed = decisions()
    resumed.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(straight.to_state())))
    futures = [
        [observe(made, registry, round_id, 1.0) for round_id in range(6, 16)]
        for made in (straight, resumed)
    ]
    assert futures[0] == futures[1]


def test_the_estimator_learns_from_valid_exchanges_only() -> None:
    registry, made = fleet(2), decisions()
    selection = made.select(1, registry, BOTH_WAYS, now=1.0)
    seen = [Observation(0, 4.0, None, True, False), Observation(1, None, None, True, False)]
    made.learn(selection, observations(seen))
    predicted = made.select(2, registry, BOTH_WAYS, now=1.0).prediction.tau_hat_s
    assert predicted[0] > 1.0
    assert predicted[1] == 0.0


def test_a_timeout_counts_as_the_deadline_only_if_configured() -> None:
    for on_timeout, learnt in (("drop", False), ("lower_bound", True)):
        registry, made = fleet(2), decisions(on_timeout=on_timeout)
        selection = made.select(1, registry, BOTH_WAYS, now=1.0)
        made.learn(selection, observations([Observation(0, None, None, False, True)]))
        predicted = made.select(2, registry, BOTH_WAYS, now=1.0).prediction.tau_hat_s
        assert bool(predicted[0] > 5.0) is learnt


@pytest.mark.parametrize("estimator", ["ridge", "phases", "mixture"])
def test_a_missed_deadline_lowers_no_prediction(estimator: str) -> None:
    """A device that took 60 s now misses the deadline of 30 s: it may still need 60 s."""
    registry, made = fleet(2), decisions(estimator=estimator)
    for round_id in range(1, 9):
        selection = made.select(round_id, registry, BOTH_WAYS, now=1.0)
        phases_s = (20.0, 10.0, 20.0, 9.0, 1.0)
        made.learn(selection, observations([Observation(0, 60.0, phases_s, True, False)]))
    selection = made.select(9, registry, BOTH_WAYS, now=1.0)
    before_s = selection.prediction.tau_hat_s[0]
    assert before_s > 30.0
    made.learn(selection, observations([Observation(0, None, None, False, True)]))
    after_s = made.select(10, registry, BOTH_WAYS, now=1.0).prediction.tau_hat_s[0]
    assert after_s == pytest.approx(before_s, rel=1e-12)


def test_a_device_that_keeps_missing_the_deadline_is_selected_when_beta_requires_it() -> None:
    registry, made = fleet(3), decisions(beta=0.3, V=0.0)
    for round_id in range(1, 40):
        observe_misses(made, registry, round_id)
        if made.reached_limits:
            break
    assert [row for row, _ in made.reached_limits] == [0]
    assert "as often as beta requires" in made.miss_limit_text()
    assert made.select(round_id + 1, registry, BOTH_WAYS, now=1.0).is_available.all()
    first, calls = round_id + 1, 0
    for round_id in range(first, first + 100):
        calls += 0 in observe_misses(made, registry, round_id)
    assert 28 <= calls <= 30
    resumed = decisions(beta=0.3, V=0.0)
    resumed.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(made.to_state())))
    futures = [
        [observe_misses(one, registry, round_id) for round_id in range(200, 220)]
        for one in (made, resumed)
    ]
    assert futures[0] == futures[1]


def observe_misses(made: Decisions, registry: Registry, round_id: int) -> list[int]:
    """Run a round in which device 0 misses the deadline; return the cohort."""
    chosen = made.select(round_id, registry, BOTH_WAYS, now=1.0)
    rows: list[int] = chosen.rows.tolist()
    seen = [Observation(n, 2.0 if n else None, None, n != 0, n == 0) for n in rows]
    made.learn(chosen, observations(seen))
    return rows


@pytest.mark.parametrize(("wasted_s", "is_limited"), [(15.0, True), (4.9, False)])
def test_a_device_that_ends_exchanges_without_an_update_is_limited_if_rounds_wait_for_it(
    wasted_s: float, is_limited: bool
) -> None:
    """A round waits for it if it takes twice as long as the slowest update, and 1 s."""
    registry, made = fleet(3), decisions(policy="fedcs", per_round=3)
    for round_id in range(1, 4):
        chosen = made.select(round_id, registry, BOTH_WAYS, now=1.0)
        seen = [Observation(n, 2.0 if n else None, None, n != 0, False) for n in (0, 1, 2)]
        seen[0] = replace(seen[0], wasted_s=wasted_s)
        made.learn(chosen, observations(seen))
    assert [row for row, _ in made.reached_limits] == [0] * is_limited
    assert made.select(4, registry, BOTH_WAYS, now=1.0).rows.tolist() == [0, 1, 2][is_limited:]


@pytest.mark.parametrize(
    "policy", ["uniform", "weighted", "examples.longest_waiting:LongestWaiting"]
)
def test_the_miss_limit_is_not_for_random_policies_and_plug_ins(policy: str) -> None:
    registry, made = fleet(3), decisions(policy=policy)
    calls = sum(0 in observe_misses(made, registry, round_id) for round_id in range(1, 40))
    assert calls > 15


def test_an_audit_also_draws_excluded_devices() -> None:
    registry, made = fleet(4), decisions(policy="fedcs", audit=0.5)
    for round_id in range(1, 200):
        observe_misses(made, registry, round_id)
    chosen = [made.select(t, registry, BOTH_WAYS, now=1.0) for t in range(200, 260)]
    assert {0 in one.rows and one.audit_row != 0 for one in chosen} == {False}
    assert any(one.audit_row == 0 for one in chosen)


def reasons(why: Explanation) -> list[str]:
    return [str(word) for word in WORDS[why.reason]]


def test_each_device_has_a_reason() -> None:
    """Two of three candidates are selected; the others are excluded or not available."""
    registry, made = fleet(5), decisions()
    observe(made, registry, 1, 1.0)
    registry["pi-3"].is_excluded = True
    registry["pi-4"].busy_round = 1
    selection = made.select(2, registry, BOTH_WAYS, now=1.0)
    absences = registry.absences(selection.is_available, 1.0)
    why = made.explain(replace(selection, absences=absences))
    assert sorted(reasons(why)[:3]) == ["outranked", "ranked", "ranked"]
    assert reasons(why)[3:] == ["excluded", "busy"]
    assert [reasons(why)[row] for row in selection.rows] == ["ranked", "ranked"]
    assert np.isfinite(why.score[:3]).all()
    assert np.isnan(why.score[3:]).all()
    assert np.isnan(why.margin[3:]).all()
    assert why.objective is not None
    assert why.alternative is not None
    assert why.alternative >= why.objective
    assert reasons(made.explain(selection))[3:] == ["unavailable", "unavailable"]


def test_an_explanation_names_the_miss_limit_and_the_audit() -> None:
    registry, made = fleet(4), decisions(policy="fedcs", miss_limit=1, per_round=1)
    selection = made.select(1, registry, BOTH_WAYS, now=1.0)
    (missed,) = selection.rows.tolist()
    made.learn(selection, observations([Observation(missed, None, None, False, True)]))
    why = made.explain(made.select(2, registry, BOTH_WAYS, now=1.0))
    assert reasons(why)[missed] == "miss limit"
    audited = decisions(audit=1.0, per_round=1)
    for round_id in range(1, 20):
        selection = audited.select(round_id, registry, BOTH_WAYS, now=1.0)
        assert selection.picked is not None
        (picked,), (drawn,) = selection.picked.rows.tolist(), selection.rows.tolist()
        words = reasons(audited.explain(selection))
        if picked != drawn:
            assert (words[picked], words[drawn]) == ("audited out", "audit")
            break
    else:
        pytest.fail("no audit replaced a device")


def test_an_explanation_names_devices_without_a_loss() -> None:
    registry, made = fleet(4), decisions(policy="power-of-choice", variant="pow-d", per_round=1)
    losses = ReportedLosses(np.array([0, 1, 2]), np.array([2.0, np.nan, 1.0]))
    selection = made.select(1, registry, BOTH_WAYS, now=1.0, losses=losses)
    assert selection.rows.tolist() == [0]
    why = made.explain(selection)
    assert reasons(why) == ["ranked", "no loss", "outranked", "not drawn"]


def test_joined_selections_are_explained_by_the_last_without_an_objective() -> None:
    registry, made = fleet(4), decisions()
    first = made.select(1, registry, BOTH_WAYS, now=1.0, count=1)
    (taken,) = first.rows.tolist()
    registry.open_round([f"pi-{taken}"], 1)
    later = made.select(1, registry, BOTH_WAYS, now=1.0, count=1, selections_before=1)
    joined = SelectionBuilder(first)
    joined.add(replace(later, absences=registry.absences(later.is_available, 1.0)))
    why = made.explain(joined.build())
    assert sorted(reasons(why)) == ["earlier", "outranked", "outranked", "ranked"]
    assert reasons(why)[taken] == "earlier"
    assert (why.objective, why.alternative, why.exchange) == (None, None, None)


def test_a_selection_without_its_choice_has_no_reasons() -> None:
    registry, made = fleet(3), decisions()
    selection = made.select(1, registry, BOTH_WAYS, now=1.0)
    why = made.explain(replace(selection, picked=None))
    assert reasons(why) == ["", "", ""]
    assert why.objective is None


def test_a_plug_in_without_reasons_leaves_them_out() -> None:
    registry, made = fleet(3), decisions(policy="examples.longest_waiting:LongestWaiting")
    registry["pi-2"].is_excluded = True
    why = made.explain(made.select(1, registry, BOTH_WAYS, now=1.0))
    assert reasons(why) == ["", "", "unavailable"]
    assert np.isnan(why.score).all()


def test_a_cancelled_exchange_counts_only_if_its_bound_exceeds_the_prediction() -> None:
    for bound_s, learnt_s in ((50.0, 50.0), (1.0, 20.0)):
        registry, made = fleet(2), decisions(on_timeout="lower_bound")
        for round_id in (1, 2):
            observe(made, registry, round_id, 20.0)
        selection = made.select(3, registry, BOTH_WAYS, now=1.0)
        before = selection.prediction.tau_hat_s.copy()
        assert 1.0 < before[1] < 50.0
        cancelled = Observation(1, None, None, False, False, at_least_s=bound_s)
        made.learn(selection, observations([cancelled]))
        after = made.select(4, registry, BOTH_WAYS, now=1.0).prediction.tau_hat_s
        assert after[0] == before[0]
        assert bool(after[1] > before[1]) is (bound_s == learnt_s)


def test_each_of_two_exchanges_of_a_device_is_learned_with_its_own_context() -> None:
    registry, made, alone = fleet(2), decisions(), decisions()
    selection = made.select(1, registry, BOTH_WAYS, now=1.0)
    earlier = 2.0 * selection.context[0]
    late = Observation(0, 9.0, None, True, False, context=earlier)
    now = Observation(0, 4.0, None, True, False)
    made.learn(selection, observations([now, late]))
    rows = np.array([0])
    alone.estimator.observe(rows, earlier[np.newaxis], Measured.whole(np.array([9.0])))
    alone.estimator.observe(rows, selection.context[:1], Measured.whole(np.array([4.0])))
    assert made.to_state()["estimator"] == alone.to_state()["estimator"]


def observe_liar(made: Decisions, registry: Registry, round_id: int, speed: float) -> None:
    """Run a round of equal devices, of which device 0 claims `speed` times its cores and rates."""
    claim = context(round_id + 1, mu_cores=speed, downlink_bps=8e6 * speed, uplink_bps=4e6 * speed)
    registry.update_context("pi-0", claim, now=1.0)
    selection = made.select(round_id, registry, BOTH_WAYS, now=1.0)
    phases_s = (1.0, 0.5, 3.0, 2.0, 0.1)
    rows = selection.rows.tolist()
    made.learn(selection, observations([Observation(n, 6.6, phases_s, True, False) for n in rows]))


@pytest.mark.parametrize("estimator", ["ridge", "phases", "mixture"])
def test_a_context_that_exchanges_contradict_is_replaced_for_the_estimator(estimator: str) -> None:
    registry, settings = fleet(5), {"estimator": estimator, "per_round": 5}
    made, believing = decisions(context_check=5.0, **settings), decisions(**settings)
    for round_id in range(1, 9):
        speed = 1.0 if round_id < 4 else 20.0
        observe_liar(believing, registry, round_id, speed)
        observe_liar(made, registry, round_id, speed)
        assert [c.row for c in made.context_changes] == ([0, 0, 0] if round_id == 6 else [])
    chosen = made.select(9, registry, BOTH_WAYS, now=1.0)
    times_s = chosen.prediction.tau_hat_s
    assert chosen.context[0, DOWN] == pytest.approx(0.05), "the store keeps the claim"
    assert times_s[0] == pytest.approx(times_s[1], rel=1e-9)
    deceived_s = believing.select(9, registry, BOTH_WAYS, now=1.0).prediction.tau_hat_s
    if estimator != "mixture":  # it sees that the last exchange was as long as before
        assert deceived_s[0] < 0.9 * deceived_s[1]
    assert believing.context_changes == []


def test_the_check_of_contexts_is_in_the_checkpoint() -> None:
    registry, made = fleet(5), decisions(context_check=5.0, per_round=5)
    resumed = decisions(context_check=5.0, per_round=5)
    observe_liar(made, registry, 1, 20.0)
    observe_liar(made, registry, 2, 20.0)
    resumed.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(made.to_state())))
    observe_liar(made, registry, 3, 20.0)
    observe_liar(resumed, registry, 3, 20.0)
    assert made.context_changes
    assert resumed.context_changes == made.context_changes
    assert resumed.to_state() == made.to_state()


def test_an_honest_fleet_is_selected_as_without_the_check() -> None:
    registry = fleet(5)
    made, plain = decisions(context_check=5.0), decisions()
    for round_id in range(1, 30):
        assert observe(made, registry, round_id, 1.0) == observe(plain, registry, round_id, 1.0)
    assert made.to_state()["estimator"] == plain.to_state()["estimator"]


def test_queues_grow_in_a_round_without_available_devices() -> None:
    registry, made = fleet(3), decisions(beta=0.2)
    selection = made.select(1, registry, BOTH_WAYS, now=99.0)
    assert selection.rows.size == 0
    made.learn(selection, observations([]))
    np.testing.assert_allclose(made.selector.queues(3), 0.2)


def test_mini_batch_orders_differ_between_rounds_and_devices() -> None:
    made = decisions()
    seeds = [[made.training_seed(r, d) for d in range(5)] for r in range(5)]
    assert len({seed for of_round in seeds for seed in of_round}) == 25
    assert [made.training_seeds(r, np.arange(5)).tolist() for r in range(5)] == seeds


@pytest.mark.parametrize("on_timeout", ["drop", "lower_bound"])
def test_the_phase_estimator_learns_seen_phases_and_bounds_the_rest(on_timeout: str) -> None:
    registry, made = fleet(4), decisions(estimator="phases", on_timeout=on_timeout)
    selection = made.select(1, registry, BOTH_WAYS, now=1.0)
    nan = float("nan")
    observed = [
        Observation(0, 4.0, (1.0, 0.5, 1.5, 0.75, 0.25), True, False),
        Observation(1, None, None, False, True),
        Observation(2, None, (4.0, 2.0, 4.0, nan, nan), False, True),
    ]
    made.learn(selection, observations(observed))
    predicted = made.select(2, registry, BOTH_WAYS, now=1.0).prediction
    known_s, late_s, offered_s, unknown_s = predicted.tau_hat_s.tolist()
    assert known_s > 1.0
    assert unknown_s == 0.0
    assert predicted.width_s[0] < predicted.width_s[1]
    if on_timeout == "drop":
        assert (late_s, offered_s) == (0.0, 0.0)
    else:
        assert late_s == 30.0, "the deadline"
        assert offered_s == pytest.approx(10.0 + 20.0, rel=0.05)


POW_D = {"policy": "power-of-choice", "variant": "pow-d", "candidates": 4}


def test_a_round_without_an_audit_has_the_same_cohort() -> None:
    """The audit has its own random stream, so it does not change rounds without an audit."""
    plain, audited = decisions(policy="uniform"), decisions(policy="uniform", audit=0.3)
    pairs = [
        (
            plain.select(t, fleet(8), BOTH_WAYS, now=1.0),
            audited.select(t, fleet(8), BOTH_WAYS, now=1.0),
        )
        for t in range(1, 101)
    ]
    drawn = [(one, other) for one, other in pairs if other.audit_row is not None]
    assert 15 <= len(drawn) <= 45
    assert all(
        one.rows.tolist() == other.rows.tolist() for one, other in pairs if other.audit_row is None
    )
    assert any(one.rows.tolist() != other.rows.tolist() for one, other in drawn)
    assert all(other.audit_row in other.rows for _, other in drawn)


def test_the_propensities_of_a_selection_add_up_to_the_cohort() -> None:
    selection = decisions(audit=0.05).select(1, fleet(5), BOTH_WAYS, now=1.0)
    assert selection.propensity.sum() == pytest.approx(2.0)
    assert selection.propensity[selection.rows] == pytest.approx(1.0 - 0.05 * 3 / 10)


def test_only_a_two_step_selector_demands_losses() -> None:
    assert decisions().loss_demand(1, fleet(), BOTH_WAYS, now=1.0) is None
    made = decisions(**POW_D)
    demand = made.loss_demand(1, fleet(), BOTH_WAYS, now=1.0)
    assert demand is not None
    assert (len(set(demand.rows.tolist())), demand.sample) == (4, "all")
    again = made.loss_demand(1, fleet(), BOTH_WAYS, now=1.0)
    assert again is not None
    assert again.rows.tolist() == demand.rows.tolist()


def test_a_device_that_reported_a_loss_needs_no_download_and_no_cold_start() -> None:
    losses = ReportedLosses(np.array([0, 1, 3]), np.array([0.5, np.nan, 2.0]))
    selection = decisions(**POW_D).select(1, fleet(), BOTH_WAYS, now=1.0, losses=losses)
    assert selection.rows.tolist() == [0, 3]
    assert selection.is_available.tolist() == [True, False, True, True, True]
    assert selection.context[[0, 3], COLD].tolist() == [0.0, 0.0]
    assert selection.context[[0, 3], DOWN].tolist() == [0.0, 0.0]
    assert selection.context[[1, 2, 4], COLD].tolist() == [1.0] * 3
    assert selection.context[[1, 2, 4], DOWN].tolist() == [1.0] * 3


def test_a_huge_loss_is_clamped() -> None:
    losses = ReportedLosses(np.array([0, 1, 2]), np.array([1e308, 1e308, 3.0]))
    made = decisions(**POW_D)
    rows = made.select(1, fleet(), BOTH_WAYS, now=1.0, losses=losses).rows.tolist()
    assert rows == [0, 1]


def test_without_replies_no_device_is_selected() -> None:
    losses = ReportedLosses(np.array([0, 1, 2, 3, 4]), np.full(5, np.nan))
    selection = decisions(**POW_D).select(1, fleet(), BOTH_WAYS, now=1.0, losses=losses)
    assert selection.rows.size == 0


@pytest.mark.parametrize(("policy", "weights"), [("uniform", (1.0, 2.0)), ("weighted", (0.0, 0.0))])
def test_weights_need_their_policy_and_a_positive_sum(
    policy: str, weights: tuple[float, ...]
) -> None:
    with pytest.raises(ValueError, match=f"got policy '{policy}' with a sum of {sum(weights):g}"):
        SelectionConfig(policy=policy, weights=weights)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"over_select": 2}, 'over_select must be 0 with mode = "async", got 2'),
        ({"late": "merge"}, 'late must not be set with mode = "async", got "merge"'),
    ],
)
def test_asynchronous_rounds_exclude_settings_of_a_cohort(
    settings: dict[str, Any], rule: str
) -> None:
    with pytest.raises(ValueError, match=rule):
        RoundConfig(mode="async", **settings)


def test_late_devices_and_candidates_are_at_work_too() -> None:
    plain = decisions().config
    assert plain.max_computing == 2
    late = RoundConfig(deadline_s=30.0, late="merge", max_staleness=3, over_select=1)
    assert msgspec.structs.replace(plain, round=late).max_computing == 3 + 3 * 3
    assert decisions(**POW_D).config.max_computing == 4


@pytest.mark.parametrize("late", [{"mode": "async"}, {"late": "merge"}])
def test_a_rule_that_needs_losses_is_refused_where_late_updates_are_merged(
    late: dict[str, Any],
) -> None:
    aggregation = AggregationConfig(rule="examples.term:Term")
    config = msgspec.structs.replace(decisions().config, aggregation=aggregation)
    assert make_decisions(config).aggregator.needs_loss
    config = msgspec.structs.replace(config, round=RoundConfig(**late))
    with pytest.raises(PluginError, match=r"^weight rule .*: must need neither losses nor"):
        make_decisions(config)


def test_a_two_step_selector_is_refused_in_asynchronous_rounds() -> None:
    config = msgspec.structs.replace(decisions(**POW_D).config, round=RoundConfig(mode="async"))
    with pytest.raises(PluginError, match="must select without losses"):
        make_decisions(config)


def test_power_of_choice_draws_at_least_a_cohort_of_candidates() -> None:
    with pytest.raises(ValueError, match="candidates must be at least the 4 devices of per_round"):
        SelectionConfig(policy="power-of-choice", per_round=4, candidates=3)


def test_queues_that_count_aggregations_cannot_keep_beta_for_a_device_that_misses() -> None:
    text = decisions(queue_counts="aggregated", beta=0.2).miss_limit_text()
    assert "cannot be aggregated at the rate beta = 0.2; it is excluded, and tried again" in text


def test_without_queues_a_device_that_misses_is_excluded_for_some_rounds() -> None:
    text = decisions(policy="fedcs").miss_limit_text()
    assert "; it is excluded, and tried again after" in text
    assert "beta" not in text


def models() -> Any:
    raise AssertionError("a streaming rule stores no models")


def drift() -> Decisions:
    training = TrainingConfig(rule=DRIFT, learning_rate=0.5)
    return make_decisions(config(training=training, aggregation=AggregationConfig(weights="equal")))


def test_vectors_of_a_local_rule_follow_model_and_update() -> None:
    made, model = drift(), np.array([1.0, 2.0, 9.0], dtype=np.float32)
    made.select(1, fleet(4), BOTH_WAYS, now=1.0)
    assert made.vector_counts == (1, 1)
    assert made.with_vectors(model, 2).tolist() == [1.0, 2.0, 9.0, 0.0, 0.0]
    merge = made.begin_merge(1, model, 2, models)
    for row, change in ((0, 2.0), (1, 6.0)):
        update = np.array([3.0, 4.0, 9.0, change, 0.0], dtype=np.float32)
        merge.add(Report(row=row, n_k=10, model=update, loss_before=None))
    done = merge.finish()
    assert done.vector.tolist() == [3.0, 4.0, 9.0], "the next model has no vectors"
    # c = 0 + |S| / N mean of the changes
    sent = [*done.vector.tolist(), 2 / 4 * 4.0, 0.0]
    assert made.with_vectors(done.vector, 2).tolist() == sent
    resumed = drift()
    resumed.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(made.to_state())))
    assert resumed.with_vectors(done.vector, 2).tolist() == sent


def test_a_round_without_a_usable_update_leaves_the_vectors() -> None:
    made, model = drift(), np.zeros(3, dtype=np.float32)
    assert made.begin_merge(1, model, 2, models).finish().vector.tolist() == [0.0] * 3
    assert made.with_vectors(model, 2).tolist() == [0.0] * 5


def test_the_coordinator_half_may_move_the_model_without_vectors() -> None:
    training = TrainingConfig(rule=f"{HERE}:Momentum", rule_options={"beta": 0.5})
    made = make_decisions(config(training=training))
    model, n_merged = np.zeros(3, dtype=np.float32), []
    for round_id in (1, 2):
        merge = made.begin_merge(round_id, model, 2, models)
        update = model + np.array([2.0, 4.0, 0.0], dtype=np.float32)
        merge.add(Report(row=0, n_k=10, model=update, loss_before=None))
        model = merge.finish().vector
        n_merged.append(model.tolist())
    # v = (2, 4); w = (2, 4) + (2, 4) + v / 2; buffers stay
    assert n_merged == [[2.0, 4.0, 0.0], [5.0, 10.0, 0.0]]


@pytest.mark.parametrize("rule", [DRIFT, f"{HERE}:Keeping"])
@pytest.mark.parametrize("settings", [{"mode": "async"}, {"late": "merge"}])
def test_refuses_vectors_of_a_local_rule_where_late_updates_are_merged(
    settings: dict[str, str], rule: str
) -> None:
    late = msgspec.convert(settings, RoundConfig)
    with_vectors = config(training=TrainingConfig(rule=rule))
    with pytest.raises(PluginError, match="must have no vectors where late updates are merged"):
        make_decisions(msgspec.structs.replace(with_vectors, round=late))


def test_a_device_gets_the_local_rule_unless_it_is_sgd() -> None:
    assert make_decisions(config()).local_training("run-a", None) is None
    local = drift().local_training("run-a", 3)
    assert local is not None
    assert (local.rule, local.run, local.merged) == (DRIFT, "run-a", 3)


@pytest.mark.parametrize(
    ("rule", "devices", "per_round", "line"),
    [
        ("aaggff-s", 201, 2, "with more than 200 devices, got 201; use another rule"),
        ("fedmgda+", 300, 201, "with more than 200 updates per round, got 201; use another rule"),
    ],
)
def test_refuses_a_fleet_or_a_round_that_the_weight_rule_is_not_made_for(
    rule: str, devices: int, per_round: int, line: str
) -> None:
    aggregation = AggregationConfig(rule=rule)
    one = config({"per_round": per_round}, aggregation=aggregation)
    with pytest.raises(FleetSizeError, match=line):
        make_decisions(one, devices)
    make_decisions(config(aggregation=aggregation), 200)


@pytest.mark.parametrize(
    ("aggregation", "per_round", "text"),
    [
        ({"rule": "aaggff-s"}, 2, "'aaggff-s' with more than 200 devices, got 201; use"),
        ({"rule": "aaggff-s", "max_weight": 0.5}, 2, "'aaggff-s' with more than 200 devices"),
        ({"rule": "fedmgda+"}, 201, "'fedmgda+' with more than 200 updates per round, got 201"),
    ],
)
def test_a_rule_is_refused_beyond_the_size_that_it_declares(
    aggregation: dict[str, Any], per_round: int, text: str
) -> None:
    rule = AggregationConfig(**aggregation)
    with pytest.raises(FleetSizeError, match=re.escape(f"aggregation.rule must not be {text}")):
        make_decisions(config({"per_round": per_round}, aggregation=rule), 201)
    assert make_decisions(config({"per_round": 2}, aggregation=rule), 200).aggregator is not None


def test_q_fedsgd_needs_mini_batches_with_all_examples_of_a_device() -> None:
    rule, training = AggregationConfig(rule="q-fedsgd"), TrainingConfig(batch_size=50)
    n_k = np.array([10, 50, 51, 80])
    assert mini_batch_problem(rule, training, n_k) == (
        "training.batch_size must be at least the 80 examples of the largest device with "
        "aggregation.rule 'q-fedsgd', got 50: 2 of 4 devices send the gradient of a random "
        "mini-batch, which is longer on average, so that steps are too short; raise it"
    )
    assert mini_batch_problem(rule, training, n_k[:2]) == ""
    assert mini_batch_problem(rule, training, n_k[:0]) == ""
    assert mini_batch_problem(AggregationConfig(), training, n_k) == ""


def test_q_fedsgd_fits_one_plain_step() -> None:
    rule, selection = AggregationConfig(rule="q-fedsgd"), SelectionConfig(per_round=2)
    assert rule_problem(rule, selection, TrainingConfig(max_steps=1), 4) == ""
    for fault in ({"max_steps": 2}, {"weight_decay": 0.1}, {"clip_norm": 1.0}):
        training = TrainingConfig(**({"max_steps": 1} | fault))
        (key,) = fault
        assert rule_problem(rule, selection, training, 4).startswith(f"training.{key} must be ")
    other = TrainingConfig(max_steps=1, rule="propfair")
    assert rule_problem(rule, selection, other, 4).startswith('training.rule must be "sgd" with')
