"""Valid and invalid round policies of an experiment."""

from typing import Any

import pytest

from fairbed.testbed.experiment.file import Experiment, ExperimentError, parse_experiment


def experiment(**sections: Any) -> Experiment:
    fleet = [{"profile": "raspberry-pi-4b", "count": 4}]
    raw = {"name": "x", "selection": {"per_round": 2}, "fleet": fleet}
    return parse_experiment(raw | sections, "x.toml")


def test_an_asynchronous_round_has_its_concurrency_and_buffer() -> None:
    config = experiment(round={"mode": "async", "buffer": 3, "concurrency": 4}).coordinator()
    assert (config.updates_per_version, config.cohort_size) == (3, 4)
    config = experiment(round={"mode": "async"}).coordinator()
    assert (config.updates_per_version, config.cohort_size) == (2, 2)
    config = experiment(round={"over_select": 1}).coordinator()
    assert (config.updates_per_version, config.cohort_size) == (2, 3)


def test_the_late_limit_has_a_deadline_for_each_allowed_version() -> None:
    settings = experiment(round={"late": "merge", "deadline_s": 10.0, "max_staleness": 3}).round
    assert settings.late_limit_s == 40.0
    assert experiment(round={"deadline_s": 10.0}).round.late_limit_s is None


def test_a_policy_equals_itself_after_a_round_trip() -> None:
    policy = experiment(
        round={"mode": "async", "buffer": 3, "concurrency": 4, "staleness": "constant"}
    )
    assert "buffer = 3" in policy.resolved_toml()


@pytest.mark.parametrize(
    ("sections", "rule"),
    [
        ({"round": {"buffer": 2}}, 'round: buffer must not be set with mode = "sync", got 2'),
        (
            {"round": {"mode": "async", "buffer": 5}},
            "round.buffer must be at most the 4 devices of the fleet, got 5",
        ),
        (
            {"round": {"mode": "async", "concurrency": 5}},
            "round.concurrency must be at most the 4 devices of the fleet, got 5",
        ),
        (
            {"round": {"late": "merge"}, "aggregation": {"rule": "q-fedavg"}},
            "aggregation.rule must be one of fedavg with round.late = \"merge\", got 'q-fedavg'",
        ),
        (
            {"round": {"mode": "async"}, "aggregation": {"rule": "q-fedavg"}},
            "aggregation.rule must be one of fedavg with round.mode = \"async\", got 'q-fedavg'",
        ),
        (
            {
                "round": {"mode": "async"},
                "selection": {"policy": "power-of-choice", "variant": "pow-d", "per_round": 2},
            },
            'selection.variant must be "rpow-d" with round.mode = "async", got \'pow-d\'',
        ),
        (
            {"round": {"late": "merge"}, "aggregation": {"rule": "aaggff-s"}},
            "aggregation.rule must be one of fedavg with round.late = \"merge\", got 'aaggff-s'",
        ),
        (
            {"aggregation": {"rule": "aaggff-d", "weights": "n"}},
            "aggregation.weights must be 'equal' or 'n_over_pi' with rule 'aaggff-d', got 'n': it "
            "decides the weights without example counts; remove the key",
        ),
        (
            {"aggregation": {"rule": "aaggff-s", "weights": "n_over_pi"}},
            "aggregation.weights must be 'equal' with rule 'aaggff-s', got 'n_over_pi': it "
            "decides the weights without example counts; remove the key",
        ),
        (
            {"aggregation": {"rule": "aaggff-d"}, "selection": {"per_round": 1}},
            "selection.per_round must be at least 2 with aggregation.rule 'aaggff-d', got 1",
        ),
        (
            {
                "aggregation": {"rule": "aaggff-s"},
                "fleet": [{"profile": "raspberry-pi-4b", "count": 201}],
            },
            "aggregation.rule must not be 'aaggff-s' with more than 200 devices, got 201; use",
        ),
        (
            {"aggregation": {"rule": "aaggff-s", "cdf": "erfc"}},
            "aggregation.cdf: must be one of ",
        ),
        ({"aggregation": {"rule": "corefed", "M": 0.0}}, "aggregation.M: must be"),
        (
            {"aggregation": {"rule": "propfair", "M": 0.2}},
            "aggregation.M must be above 0.2 with rule 'propfair', got 0.2; take one above every",
        ),
        (
            {"aggregation": {"rule": "afl", "weights": "n"}},
            "aggregation.weights must be 'equal' with rule 'afl', got 'n'",
        ),
        (
            {
                "aggregation": {"rule": "fedmgda+"},
                "selection": {"per_round": 201},
                "fleet": [{"profile": "raspberry-pi-4b", "count": 300}],
            },
            "selection.per_round must be at most 200 with aggregation.rule 'fedmgda+', got 201",
        ),
        (
            {"aggregation": {"rule": "fedmgda+", "max_weight": 0.9}},
            "aggregation.max_weight must not be set with rule 'fedmgda+', got 0.9; epsilon",
        ),
        (
            {"aggregation": {"max_weight": 0.49}},
            "aggregation.max_weight must be at least 1 / selection.per_round = 0.5, got 0.49",
        ),
        ({"aggregation": {"max_weight": 0.0}}, "aggregation.max_weight: must be"),
        ({"aggregation": {"tilt": float("nan")}}, "aggregation.tilt: must be"),
        ({"aggregation": {"gamma": -0.1}}, "aggregation.gamma: must be"),
        ({"aggregation": {"epsilon": 1.5}}, "aggregation.epsilon: must be"),
        (
            {"aggregation": {"rule": "q-fedsgd"}},
            "training.max_steps must be 1 with aggregation.rule 'q-fedsgd', got none: the rule "
            "needs the gradient of one step on all examples; set max_steps = 1",
        ),
        (
            {
                "aggregation": {"rule": "q-fedsgd"},
                "training": {"max_steps": 1, "weight_decay": 0.1},
            },
            "training.weight_decay must be 0 with aggregation.rule 'q-fedsgd', got 0.1: the rule",
        ),
        (
            {"aggregation": {"rule": "q-fedsgd"}, "training": {"max_steps": 1, "clip_norm": 2.0}},
            "training.clip_norm must be unset with aggregation.rule 'q-fedsgd', got 2: the rule",
        ),
        ({"round": {"late": "keep"}}, "round.late: must be one of 'drop', 'merge', got 'keep'"),
        ({"round": {"max_staleness": 0}}, "round.max_staleness: must be"),
    ],
)
def test_an_invalid_policy_is_one_line(sections: dict[str, Any], rule: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        experiment(**sections)
    assert rule in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
