"""Settings that an operator may change while a run is live."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.estimation.base import Prediction
from fairbed.coordinator.policy.config import (
    AggregationConfig,
    CoordinatorConfig,
    RoundConfig,
    SelectionConfig,
)
from fairbed.coordinator.policy.decisions import Decisions, make_decisions
from fairbed.coordinator.policy.live_settings import (
    Change,
    SettingError,
    accepted_changes,
    changed,
    due_now,
    mean_beta,
    with_changes,
)
from fairbed.coordinator.policy.selection import Selection
from fairbed.coordinator.store.tables import CommandRow
from tests.coordinator.builders import Observation, observations
from tests.coordinator.lab import make_config

N = 6
SURE = np.ones(N)
RBCS_F = SelectionConfig(per_round=2, beta=0.3)


def config(**sections: object) -> CoordinatorConfig:
    return make_config(**({"selection": RBCS_F} | sections))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "got"),
    [
        ("V", 0.0, lambda c: c.selection.V),
        ("beta", 0.2, lambda c: c.selection.beta),
        ("per_round", 3.0, lambda c: c.selection.per_round),
        ("deadline_s", 5.0, lambda c: c.round.deadline_s),
    ],
)
def test_changes_one_setting_and_nothing_else(name: str, value: float, got: Any) -> None:
    before = config()
    after = changed(before, name, value, SURE)
    assert got(after) == value
    assert changed(after, name, got(before), SURE) == before


@pytest.mark.parametrize(
    ("sections", "name", "value", "message"),
    [
        (
            {},
            "alpha",
            1.0,
            "setting: must be one of V, beta, per_round, deadline_s, min_devices, got 'alpha'",
        ),
        ({}, "beta", 1.5, "selection.beta: Expected float <= 1.0, got 1.5"),
        ({}, "V", -1.0, "selection.V: Expected float >= 0.0, got -1"),
        ({}, "per_round", 2.5, "selection.per_round: Expected int, got float, got 2.5"),
        ({}, "per_round", 0.0, "selection.per_round: Expected int >= 1, got 0"),
        ({}, "per_round", 7.0, "selection.per_round: must be at most the 6 devices of this run"),
        ({}, "deadline_s", 0.0, "round.deadline_s: Expected float > 0.0, got 0"),
        (
            {},
            "beta",
            0.4,
            "selection.beta: 0.4 cannot be guaranteed: the 6 least available of 6 devices need 6 x "
            "0.4 = 2.4 selections per round, but 6 of them are available on average and 2 devices "
            "are selected per round; set beta to at most 0.333, or raise per_round first",
        ),
        (
            {},
            "per_round",
            1.0,
            "selection.per_round: 1 cannot be guaranteed: the 4 least available",
        ),
        (
            {"selection": SelectionConfig(policy="uniform", per_round=2)},
            "beta",
            0.1,
            "selection.beta: must be for policy 'rbcs-f', got 'uniform', which does not read it",
        ),
        (
            {"round": RoundConfig(late="merge")},
            "deadline_s",
            5.0,
            "round.deadline_s: must stay where late updates are merged, got 5",
        ),
        (
            {"round": RoundConfig(mode="async", buffer=2, concurrency=2)},
            "per_round",
            3.0,
            "selection.per_round: must be for runs without round.buffer and round.concurrency",
        ),
        (
            {"aggregation": AggregationConfig(max_weight=0.5)},
            "per_round",
            1.0,
            "aggregation.max_weight must be at least 1 / selection.per_round",
        ),
        (
            {
                "aggregation": AggregationConfig(
                    rule="term", defence="k-norm", malicious_share=0.6
                ),
                "selection": SelectionConfig(policy="uniform", per_round=4),
            },
            "per_round",
            2.0,
            "aggregation.rule must be \"fedavg\" where weights have no effect, got 'term': "
            "aggregation.defence 'k-norm' keeps one update of a round",
        ),
        (
            {"selection": SelectionConfig(policy="power-of-choice", per_round=2, candidates=3)},
            "per_round",
            4.0,
            "selection.per_round: candidates must be at least the 4 devices of per_round, got 3",
        ),
    ],
)
def test_refuses_what_the_run_cannot_do(
    sections: dict[str, object], name: str, value: float, message: str
) -> None:
    with pytest.raises(SettingError) as caught:
        changed(config(**sections), name, value, SURE)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_rate_must_be_feasible_with_the_stated_availability() -> None:
    changed(config(), "beta", 0.3, SURE)
    with pytest.raises(SettingError, match=r"^selection.beta: 0.3 cannot be guaranteed: the 1 "):
        changed(config(), "beta", 0.3, np.array([0.2, *SURE[1:]]))


def test_changes_of_a_resumed_run_are_taken_in_order() -> None:
    changes = [Change("beta", 0.9, 4), Change("V", 1.0, 5), Change("beta", 0.1, 9)]
    after = with_changes(config(), changes)
    assert (after.selection.beta, after.selection.V) == (0.1, 1.0)
    assert after.selection.per_round == 2


def row(
    action: str, name: str, value: float, round_id: int | None, *, is_accepted: bool = True
) -> CommandRow:
    return CommandRow(
        id=f"{action}{name}{value}",
        at_s=1.0,
        action=action,
        device=None,
        operator="alice",
        name=name,
        value=value,
        round=round_id,
        is_accepted=is_accepted,
    )


def test_a_resumed_run_takes_accepted_settings_from_its_first_round_at_the_latest() -> None:
    rows = [
        row("set", "beta", 0.2, 4),
        row("set", "beta", 0.9, None, is_accepted=False),
        row("throttle", "cpu", 0.5, None),
        row("set", "V", 1.0, 8),
    ]
    assert accepted_changes(rows) == [Change("beta", 0.2, 4), Change("V", 1.0, 8)]
    assert due_now(rows, first_round=7) == [replace(rows[3], round=7)]


def select(decisions: Decisions, round_id: int) -> Selection:
    """Return the selection of fixed rows, whatever the selector would take."""
    rows = np.array([round_id % N, (round_id + 1) % N], dtype=np.int64)
    nothing = np.zeros(N)
    return Selection(
        round=round_id,
        rows=np.sort(rows),
        is_available=np.ones(N, dtype=np.bool_),
        context=np.ones((N, 4)),
        prediction=Prediction(nothing, nothing, nothing),
        n_k=np.full(N, 10, dtype=np.int64),
        propensity=np.ones(N),
        audit_row=None,
        true_tau_s=None,
    )


def learn(decisions: Decisions, round_id: int) -> Selection:
    selection = select(decisions, round_id)
    seen = [
        Observation(
            row=int(row),
            tau_s=2.0 + row,
            phases_s=None,
            is_aggregated=True,
            timed_out=False,
            loss=None,
        )
        for row in selection.rows
    ]
    decisions.learn(selection, observations(seen))
    return selection


def test_virtual_queues_keep_their_length_and_grow_by_the_new_beta() -> None:
    """The worked example of the specification (1.2) with another beta from round 5 on.

    beta = 0.15: Z = .15 .30 0 .15 for x = 0 0 1 0; then beta = 0.25: .40 .65 .90 .15 for 0 0 0 1.
    """
    decisions = make_decisions(config(selection=SelectionConfig(per_round=1, beta=0.15)))
    picks = [False, False, True, False, False, False, False, True]
    queues = []
    for round_id, is_picked in enumerate(picks, 1):
        if round_id == 5:
            decisions.reconfigure(changed(decisions.config, "beta", 0.25, np.ones(2)))
        selection = select(decisions, round_id)
        rows = np.array([0] if is_picked else [1], dtype=np.int64)
        seen = observations([])
        object.__setattr__(selection, "rows", rows)
        decisions.learn(selection, seen)
        queues.append(float(decisions.selector.queues(1)[0]))
    assert queues == pytest.approx([0.15, 0.30, 0.0, 0.15, 0.40, 0.65, 0.90, 0.15], abs=1e-6)


@given(
    betas=st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.3]), min_size=1, max_size=12),
)
def test_the_rate_is_at_least_the_mean_beta_less_the_queue(betas: list[float]) -> None:
    decisions = make_decisions(config())
    changes, counts = [], np.zeros(N)
    for round_id, beta in enumerate(betas, 1):
        new = changed(decisions.config, "beta", beta, SURE)
        decisions.reconfigure(new)
        changes.append(Change("beta", beta, round_id))
        counts[learn(decisions, round_id).rows] += 1
    rounds = len(betas)
    mean = mean_beta(0.3, changes, 1, rounds)
    assert mean == pytest.approx(np.mean(betas))
    assert (counts / rounds >= mean - decisions.selector.queues(N) / rounds - 1e-9).all()


def test_the_mean_beta_of_some_rounds() -> None:
    changes = [Change("beta", 0.2, 5), Change("V", 9.0, 6), Change("beta", 0.4, 9)]
    assert mean_beta(0.1, changes, 1, 10) == pytest.approx((4 * 0.1 + 4 * 0.2 + 2 * 0.4) / 10)
    assert mean_beta(0.1, changes, 6, 8) == pytest.approx(0.2)
    assert mean_beta(0.1, changes, 10, 10) == pytest.approx(0.4)
    assert mean_beta(0.1, [], 3, 8) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "selection",
    [
        RBCS_F,
        SelectionConfig(policy="oort", per_round=2),
        SelectionConfig(policy="fedcs", per_round=2),
        SelectionConfig(policy="power-of-choice", per_round=2),
        SelectionConfig(per_round=2, beta=0.3, estimator="phases", context_check=5.0),
    ],
)
@pytest.mark.parametrize("rule", ["fedavg", "aaggff-d"])
def test_every_part_keeps_its_state(selection: SelectionConfig, rule: str) -> None:
    decisions = make_decisions(
        config(selection=selection, aggregation=AggregationConfig(rule=rule))
    )
    for round_id in range(1, 6):
        learn(decisions, round_id)
    before = decisions.to_state()
    decisions.reconfigure(changed(decisions.config, "per_round", 3.0, SURE))
    assert decisions.to_state() == before
    assert decisions.config.cohort_size == 3
