"""Settings that exclude each other are refused, and settings without effect are stated."""

from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
from msgspec.structs import replace

from examples.feddyn import FedDyn
from examples.scaffold import Scaffold
from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.base import Stack, Stateless, Updates
from fairbed.coordinator.algorithms.aggregation.contract import TrialRound, merged, trial_rounds
from fairbed.coordinator.algorithms.aggregation.guard import normalised
from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.algorithms.local_training import ServerHalf
from fairbed.coordinator.policy.combinations import (
    alternating_problem,
    are_weights_ignored,
    built_in_gradient,
    ignored_weights,
    kept_problem,
    local_rule_problem,
    local_step_problem,
    unread_keys,
    weights_problem,
    without_effect,
)
from fairbed.coordinator.policy.config import (
    PSEUDO_GRADIENTS,
    RULES,
    AggregationConfig,
    CoordinatorConfig,
    Defence,
    ModelConfig,
    PrivacyConfig,
    RoundConfig,
    SelectionConfig,
    TrainingConfig,
    rule_problem,
)
from fairbed.coordinator.policy.decisions import FleetSizeError, make_decisions
from fairbed.coordinator.policy.factories import make_aggregator, make_defence, step_problem
from fairbed.device_agent.trainer import Descent
from fairbed.wire.local_training import EXTRAS, UNDECLARED
from fairbed.wire.plugins import PluginError
from tests.coordinator.lab import make_config

M = 10
FEDAVG = AggregationConfig(weights="equal")
COMBINATIONS = list(product(PSEUDO_GRADIENTS, get_args(Defence)))
every_combination = pytest.mark.parametrize(("gradient", "defence"), COMBINATIONS)


class Fixed(Stateless):
    """Given weights, with sum 1 over the updates that count."""

    needs_loss = needs_norms = needs_models = False

    def __init__(self, a: Floats) -> None:
        self._a = a

    def decide(self, updates: Updates) -> Floats:
        return normalised(self._a[updates.rows])


def a_round() -> TrialRound:
    """Return a round of `M` devices with different losses and example counts."""
    trial = trial_rounds(3, count=1, registered=M)[0]
    at = np.resize(np.arange(len(trial.stack.rows)), M)
    rng = np.random.default_rng(4)
    models = trial.stack.models[at] + rng.normal(0.0, 0.1, (M, trial.sent.size))
    return trial.with_stack(
        rows=np.arange(M),
        n_k=10 * (1 + np.arange(M)),
        models=models.astype(np.float32),
        loss_before=np.linspace(0.1, 2.0, M),
    )


def chosen(gradient: str, defence: str, rule: str = "fedavg", **options: Any) -> AggregationConfig:
    return AggregationConfig(
        rule=rule,
        pseudo_gradient=gradient,
        defence=defence,  # type: ignore[arg-type]
        **options,
    )


@every_combination
def test_weights_are_ignored_exactly_where_other_weights_give_the_same_bits(
    gradient: str, defence: str
) -> None:
    config, training = chosen(gradient, defence), TrainingConfig()
    made = built_in_gradient(config, training)
    models = []
    for a in (np.ones(M), np.linspace(1.0, 2.0, M)):
        rule = Fixed(a)
        parts = Aggregator(rule, pseudo_gradient=made, defence=make_defence(config))
        models.append(merged(parts, a_round()).vector)
    found = ignored_weights(config, M, made)
    assert (found is not None) == np.array_equal(models[0], models[1])
    assert are_weights_ignored(defence, gradient) == (found is not None)


@pytest.mark.parametrize("rule", RULES)
@every_combination
def test_a_rule_changes_the_bits_or_is_refused_and_fedavg_is_announced(
    rule: str, gradient: str, defence: str
) -> None:
    config = chosen(gradient, defence, rule)
    made = built_in_gradient(config, TrainingConfig())
    problem = weights_problem(config, M, made)
    lines = list(without_effect(settings(config, per_round=M), made))
    is_ignored = ignored_weights(config, M, made) is not None
    if problem:
        assert is_ignored
        assert rule != "fedavg"
        assert problem.startswith('aggregation.rule must be "fedavg" where weights have no effect')
        assert f"got {rule!r}: aggregation." in problem
    elif is_ignored:
        assert rule == "fedavg"
        assert lines[0].startswith("aggregation.weights 'n' has no effect: aggregation.")
    else:
        equal = replace(config, rule="fedavg", weights="equal")
        models = [merged(make_aggregator(x, None, M), a_round()).vector for x in (config, equal)]
        assert not np.array_equal(models[0], models[1])


def settings(
    aggregation: AggregationConfig = FEDAVG, per_round: int = 4, **sections: Any
) -> CoordinatorConfig:
    selection = SelectionConfig(policy="uniform", per_round=per_round)
    return make_config(aggregation=aggregation, selection=selection, **sections)


@pytest.mark.parametrize(
    ("aggregation", "per_round", "line"),
    [
        (
            {"pseudo_gradient": "median", "weights": "n_over_pi", "max_weight": 0.5},
            4,
            "aggregation.weights 'n_over_pi' and max_weight 0.5 have no effect: "
            "aggregation.pseudo_gradient 'median' ignores the weights of updates; to weight "
            'updates, set pseudo_gradient = "geometric-median", which counts them',
        ),
        (
            {"rule": "term", "max_weight": 0.25},
            4,
            "aggregation.rule 'term' and weights 'n' do not weight updates: aggregation.max_weight "
            "0.25 leaves each of the 4 of a round the same weight; raise it",
        ),
        (
            {"defence": "k-norm"},
            4,
            "aggregation.defence 'k-norm' leaves out nothing: f = floor(malicious_share 0.2 x 4 "
            "updates) = 0; raise aggregation.malicious_share, or selection.per_round",
        ),
        (
            {"rule": "afl"},
            1,
            "aggregation.rule 'afl' has no effect with one update per round, which has the whole "
            "weight; raise selection.per_round",
        ),
        (
            {"rule": "q-fedavg", "pseudo_gradient": "geometric-median"},
            5,
            "the length of the step of aggregation.rule 'q-fedavg' has no effect: "
            "aggregation.pseudo_gradient 'geometric-median' sets it; its weights count",
        ),
    ],
)
def test_what_has_no_effect_is_one_line(
    aggregation: dict[str, Any], per_round: int, line: str
) -> None:
    config = settings(AggregationConfig(**aggregation), per_round)
    gradient = built_in_gradient(config.aggregation, config.training)
    assert list(without_effect(config, gradient)) == [line]


def test_settings_with_an_effect_have_no_line() -> None:
    for config in (settings(), settings(AggregationConfig(rule="term", max_weight=0.3))):
        assert list(without_effect(config, None)) == []
        assert list(unread_keys(config)) == []


def test_fednova_after_a_clip_and_propfair_twice_are_stated() -> None:
    privacy = PrivacyConfig(clip=1.0, noise_multiplier=1.0)
    config = settings(AggregationConfig(pseudo_gradient="fednova"), privacy=privacy)
    (line,) = without_effect(config, None)
    assert "[privacy] has clipped it to one length before" in line
    twice = settings(AggregationConfig(rule="propfair"), training=TrainingConfig(rule="propfair"))
    (line,) = without_effect(twice, None)
    assert line.startswith("training.rule and aggregation.rule are both 'propfair'")


def test_a_key_that_nothing_reads_is_stated_and_one_that_is_read_is_not() -> None:
    config = settings(AggregationConfig(tilt=2.0, gamma=0.3))
    assert list(unread_keys(config)) == [
        "aggregation.gamma 0.3 has no effect with aggregation.rule 'fedavg': it is for 'afl'",
        "aggregation.tilt 2.0 has no effect with aggregation.rule 'fedavg': it is for 'term'",
    ]
    assert list(unread_keys(settings(AggregationConfig(rule="term", tilt=2.0)))) == []


# Local rules


def half_of(rule: object) -> ServerHalf:
    return ServerHalf("own", rule)


BEYOND: dict[str, dict[str, Any]] = {
    "epochs": {"training": TrainingConfig(epochs=2)},
    "momentum": {"training": TrainingConfig(momentum=0.9)},
    "weight_decay": {"training": TrainingConfig(weight_decay=0.1)},
    "proximal": {"training": TrainingConfig(proximal=0.1)},
    "clip_norm": {"training": TrainingConfig(clip_norm=1.0)},
    "learning_rate_decay": {"training": TrainingConfig(learning_rate_decay=0.9)},
    "partial_participation": {"per_round": 3},
    "weights": {"aggregation": AggregationConfig(weights="n")},
    "changing_weights": {"aggregation": AggregationConfig(rule="term")},
    "pseudo_gradient": {
        "aggregation": AggregationConfig(weights="equal", pseudo_gradient="fednova")
    },
    "defence": {"aggregation": AggregationConfig(weights="equal", defence="clip")},
    "server": {"aggregation": AggregationConfig(weights="equal", server="momentum")},
    "optimiser": {"training": TrainingConfig(optimiser="adam")},
    "schedule": {"training": TrainingConfig(schedule_by="step", warm_up=3)},
}
"""An experiment with 4 devices for each setting beyond plain SGD and FedAvg."""


class Everything(Scaffold):
    defined_for = EXTRAS  # type: ignore[assignment]


def test_there_is_an_experiment_for_each_setting() -> None:
    assert set(BEYOND) == set(EXTRAS)


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_rule_is_refused_exactly_for_settings_that_it_does_not_declare(extra: str) -> None:
    class Without(Scaffold):
        defined_for = tuple(x for x in EXTRAS if x != extra)  # type: ignore[assignment]

    problem = local_rule_problem(half_of(Without()), settings(**BEYOND[extra]), 4)
    assert f" with local rule own, got {value_of(extra)}: " in problem
    assert problem.endswith(f"or add {extra!r} to defined_for of the rule if they do")
    assert local_rule_problem(half_of(Everything()), settings(**BEYOND[extra]), 4) == ""
    assert local_rule_problem(half_of(Without()), settings(), 4) == ""


def value_of(extra: str) -> str:
    values = {
        "epochs": "2",
        "momentum": "0.9",
        "clip_norm": "1",
        "learning_rate_decay": "0.9",
        "partial_participation": "3",
        "weights": '"n"',
        "changing_weights": '"term"',
        "pseudo_gradient": '"fednova"',
        "defence": '"clip"',
        "server": '"momentum"',
        "optimiser": '"adam"',
        "schedule": '"step"',
    }
    return values.get(extra, "0.1")


def test_a_rule_that_declares_nothing_counts_as_one_for_plain_sgd() -> None:
    class Undeclared(Scaffold):
        defined_for = None  # type: ignore[assignment]

    half = half_of(Undeclared())
    refused = {
        extra for extra in EXTRAS if local_rule_problem(half, settings(**BEYOND[extra]), devices=4)
    }
    assert refused == set(EXTRAS) - set(UNDECLARED)
    problem = local_rule_problem(half, settings(**BEYOND["momentum"]), 4)
    assert problem == (
        "training.momentum must be 0 with local rule own, got 0.9: the rule declares nothing "
        "(defined_for), so it counts as one for plain SGD; change the setting, or add 'momentum' "
        "to defined_for of the rule if they do"
    )


def test_our_examples_refuse_what_their_formulas_exclude() -> None:
    for rule, excluded in (
        (
            Scaffold(),
            "momentum weight_decay proximal clip_norm changing_weights pseudo_gradient defence "
            "optimiser schedule",
        ),
        (FedDyn(), "proximal changing_weights pseudo_gradient defence server optimiser schedule"),
    ):
        refused = [
            extra
            for extra in EXTRAS
            if local_rule_problem(half_of(rule), settings(**BEYOND[extra]), 4)
        ]
        assert refused == excluded.split()


@pytest.mark.parametrize("names", [("momentun",), "momentum", ("epochs", 3)])
def test_a_declaration_of_other_names_is_refused(names: object) -> None:
    class Misspelt(Scaffold):
        defined_for = names  # type: ignore[assignment]

    with pytest.raises(PluginError, match="local rule own: defined_for must be a tuple of epochs"):
        half_of(Misspelt())


class OnlyAll(Scaffold):
    """A rule for silos, all in every round."""

    defined_for = ("epochs",)  # type: ignore[assignment]


ONLY_ALL = f"{__name__}:OnlyAll"


def test_decisions_refuse_a_rule_at_the_start_and_when_the_fleet_grows_beyond_its_rounds() -> None:
    training = TrainingConfig(rule=ONLY_ALL, momentum=0.5)
    with pytest.raises(PluginError, match=r"training\.momentum must be 0 with local rule tests"):
        make_decisions(settings(training=training))
    config = settings(training=TrainingConfig(rule=ONLY_ALL))
    with pytest.raises(PluginError, match=r"selection\.per_round must be all 5 devices with local"):
        make_decisions(config, devices=5)
    decisions = make_decisions(config, devices=4)
    decisions._registered = 5
    with pytest.raises(FleetSizeError, match=r"selection\.per_round must be all 5 devices"):
        decisions.begin_merge(1, np.zeros(3, dtype=np.float32), 3, list)  # type: ignore[arg-type]


# Local steps


@pytest.mark.parametrize(
    ("training", "diverges"),
    [
        (TrainingConfig(learning_rate=0.1, proximal=19.9), False),
        (TrainingConfig(learning_rate=0.1, proximal=20.1), True),
        (TrainingConfig(learning_rate=0.1, proximal=20.1, momentum=0.1), False),
        (TrainingConfig(learning_rate=0.1, proximal=37.0, momentum=0.9), False),
        (TrainingConfig(learning_rate=0.1, proximal=38.1, momentum=0.9), True),
        (TrainingConfig(learning_rate=0.1, proximal=10.0, weight_decay=10.1), True),
        (TrainingConfig(learning_rate=0.1, proximal=30.0, clip_norm=1.0), False),
        (TrainingConfig(learning_rate=0.1, weight_decay=20.1, clip_norm=1.0), True),
        (TrainingConfig(learning_rate=0.1, proximal=13.4, momentum=0.9, nesterov=True), False),
        (TrainingConfig(learning_rate=0.1, proximal=13.7, momentum=0.9, nesterov=True), True),
        (TrainingConfig(learning_rate=0.1, proximal=50.0, optimiser="adam"), False),
        (TrainingConfig(learning_rate=0.1, weight_decay=19.9, optimiser="adamw"), False),
        (TrainingConfig(learning_rate=0.1, weight_decay=20.1, optimiser="adamw"), True),
    ],
)
def test_steps_are_refused_exactly_where_they_diverge_without_any_loss(
    training: TrainingConfig, diverges: bool
) -> None:
    params = np.array([3.0, -1.0], dtype=np.float32)
    descent = Descent(params, training.hyperparameters(1), np.zeros(2, dtype=np.float32))
    for _ in range(3000):
        gradient = np.zeros(2, dtype=np.float32)
        if descent.has_rules:
            descent.apply_rules(gradient, np.zeros(()), params[:0], None)  # type: ignore[arg-type]
        with np.errstate(all="ignore"):
            descent.step(gradient)
    assert bool(np.abs(params).max() < 3.0) != diverges
    problem = local_step_problem(training)
    assert bool(problem) == diverges
    if diverges:
        assert "local training would diverge on any data" in problem


# Optimisers


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"optimiser": "adam", "momentum": 0.9}, "training.momentum must be left out with"),
        ({"optimiser": "adamw", "nesterov": True}, "training.nesterov must be left out with"),
        ({"nesterov": True}, "training.nesterov must have a momentum above 0, got 0"),
        ({"optimiser_state": "kept"}, 'must be "reset" for sgd without momentum'),
        ({"schedule": "cosine"}, "training.schedule_length must be set with schedule cosine by"),
        (
            {"schedule": "cosine", "schedule_length": 5, "warm_up": 5},
            "training.schedule_length must be above warm_up, got 5 and 5",
        ),
        (
            {"schedule": "cosine", "schedule_length": 5, "least_learning_rate": 0.2},
            "training.least_learning_rate must be at most learning_rate, got 0.2 and 0.1",
        ),
        ({"least_epochs": 3, "epochs": 2}, "training.least_epochs must be at most training.epochs"),
        ({"least_steps": 3}, "training.least_steps must be at most training.max_steps, got 3 with"),
        ({"augment": ({"kind": "flop"},)}, "kind must be one of flip, crop"),
    ],
)
def test_keys_of_an_optimiser_that_contradict_each_other_are_refused(
    keys: dict[str, Any], line: str
) -> None:
    problem = TrainingConfig(**keys).optimiser_problem()
    assert line in problem
    assert "\n" not in problem
    assert TrainingConfig().optimiser_problem() == ""


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"optimiser": "adam"}, 'optimiser "adam"'),
        ({"momentum": 0.9, "nesterov": True}, "nesterov true"),
        ({"momentum": 0.9, "optimiser_state": "kept"}, 'optimiser_state "kept"'),
        ({"schedule_by": "step", "warm_up": 3}, 'schedule_by "step"'),
    ],
)
def test_fednova_is_refused_for_steps_that_its_normalisation_does_not_know(
    keys: dict[str, Any], named: str
) -> None:
    fednova = AggregationConfig(pseudo_gradient="fednova")
    problem = step_problem(fednova, TrainingConfig(**keys))
    assert problem.startswith(
        f"aggregation.pseudo_gradient must not be 'fednova' with training.{named}: "
    )
    assert step_problem(AggregationConfig(), TrainingConfig(**keys)) == ""


def test_q_ffl_is_refused_for_steps_that_are_no_gradients_unless_they_are_normalised() -> None:
    adam = TrainingConfig(optimiser="adam")
    published = AggregationConfig(rule="q-fedavg", q=1.0)
    assert 'aggregation.step must be "normalised" with rule ' in step_problem(published, adam)
    for plain in (
        AggregationConfig(rule="q-fedavg", q=0.0),
        AggregationConfig(rule="q-fedavg", q=1.0, step="normalised"),
    ):
        assert step_problem(plain, adam) == ""
    assert step_problem(published, TrainingConfig(momentum=0.9, nesterov=True)) == ""


def test_late_updates_exclude_what_devices_keep_and_what_a_merge_cannot_know() -> None:
    late, sync = RoundConfig(late="merge"), RoundConfig()
    kept = TrainingConfig(momentum=0.9, optimiser_state="kept")
    drawn, fednova = TrainingConfig(epochs=3, least_epochs=1), AggregationConfig()
    assert "training.optimiser_state must be left out" in kept_problem(late, fednova, kept)
    assert kept_problem(sync, fednova, kept) == kept_problem(late, fednova, drawn) == ""
    fednova = AggregationConfig(pseudo_gradient="fednova")
    assert "training.least_epochs must be left out" in kept_problem(late, fednova, drawn)
    assert kept_problem(sync, fednova, drawn) == ""


@pytest.mark.parametrize(
    ("model", "merge", "keys", "line"),
    [
        ({}, {}, {}, "0 without model.personal, got 2: there are no parameters"),
        (
            {"personal": ("head.*",)},
            {},
            {"momentum": 0.9, "optimiser_state": "kept"},
            '0 with training.optimiser_state "kept", got 2',
        ),
        (
            {"personal": ("head.*",)},
            {"pseudo_gradient": "fednova"},
            {},
            "0 with aggregation.pseudo_gradient 'fednova', got 2: it normalises",
        ),
    ],
)
def test_settings_that_two_parts_of_training_are_not_defined_with_are_refused(
    model: dict[str, Any], merge: dict[str, Any], keys: dict[str, Any], line: str
) -> None:
    one, aggregation = ModelConfig(**model), AggregationConfig(**merge)
    problem = alternating_problem(one, aggregation, TrainingConfig(personal_epochs=2, **keys))
    assert problem.startswith(f"training.personal_epochs must be {line}")
    assert "\n" not in problem
    assert alternating_problem(one, aggregation, TrainingConfig(**keys)) == ""


def test_q_fedsgd_and_rules_without_declaration_exclude_a_personal_part_before_the_other() -> None:
    sgd = AggregationConfig(rule="q-fedsgd", q=1.0)
    training = TrainingConfig(max_steps=1, personal_epochs=1)
    problem = rule_problem(sgd, SelectionConfig(), training, 10)
    assert problem.startswith("training.personal_epochs must be 0 with aggregation.rule 'q-fedsgd'")


def test_personal_epochs_count_as_steps_of_a_round() -> None:
    training = TrainingConfig(epochs=2, personal_epochs=3, batch_size=10, max_steps=5)
    assert training.local_steps(np.array([30, 10])).tolist() == [5 + 9, 2 + 3]
    assert training.needed_skills == ("personal-epochs",)
    assert TrainingConfig().needed_skills == ()


def test_fednova_counts_the_steps_that_each_device_has_drawn() -> None:
    config = settings(
        AggregationConfig(pseudo_gradient="fednova", weights="equal"),
        training=TrainingConfig(epochs=5, least_epochs=1, batch_size=10),
    )
    decisions, rows = make_decisions(config), np.arange(40)
    n_k = np.full(40, 30)
    steps = decisions.local_steps(7, rows, n_k)
    assert set(steps.tolist()) == {3, 6, 9, 12, 15}
    assert steps.tolist() != decisions.local_steps(8, rows, n_k).tolist()
    sent = np.zeros(3, np.float32)
    merge = decisions.begin_merge(7, sent, 3, list)  # type: ignore[arg-type]
    models = np.outer(steps, np.ones(3)).astype(np.float32)
    merge.add_all(Stack(rows, n_k, models, None))
    assert merge.finish().vector == pytest.approx(steps.mean()), "each step has length 1"


def test_what_an_optimiser_cancels_or_leaves_unread_is_stated() -> None:
    propfair = settings(training=TrainingConfig(rule="propfair", optimiser="adam"))
    (line,) = without_effect(propfair, None)
    assert line.startswith("training.rule 'propfair' has little effect with training.optimiser")
    sgd = settings(training=TrainingConfig(betas=(0.5, 0.9), least_learning_rate=0.01))
    assert [line.partition(" has no effect")[0] for line in unread_keys(sgd)] == [
        "training.betas (0.5, 0.9)",
        "training.least_learning_rate 0.01",
    ]


@pytest.mark.parametrize("schedule", ["step", "cosine"])
def test_a_schedule_by_round_is_that_of_torch(schedule: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    training = TrainingConfig(
        learning_rate=0.4,
        schedule=schedule,  # type: ignore[arg-type]
        warm_up=4,
        schedule_length=20,
        least_learning_rate=0.01,
        learning_rate_decay=0.5,
        decay_every=3,
    )
    rates = torch.optim.lr_scheduler
    made = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    then = (
        rates.CosineAnnealingLR(made, 16, 0.01)
        if schedule == "cosine"
        else rates.StepLR(made, 3, 0.5)
    )
    both = rates.SequentialLR(made, [rates.LinearLR(made, 0.25, 1.0, 3), then], [4])
    for round_id in range(1, 21):
        assert training.learning_rate_at(round_id) == pytest.approx(made.param_groups[0]["lr"])
        made.step()
        both.step()
    if schedule == "cosine":
        assert training.learning_rate_at(99) == pytest.approx(0.01), "it stays"


def test_a_client_reports_only_keys_of_the_model_that_are_set() -> None:
    """An empty table is a default, too."""
    training = TrainingConfig(client="mine:Client")
    config = make_config(1, 3, training=training, model=ModelConfig(name="softmax", loss="hinge"))
    lines = [line for line in unread_keys(config) if "with training.client" in line]
    assert [line.split()[0] for line in lines] == ["model.name", "model.loss"]
