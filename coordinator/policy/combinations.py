"""Settings that exclude each other, and settings that have no effect beside others.

weights_problem     why a rule of weights cannot matter: the experiment is refused
local_rule_problem  which setting a local rule is not defined for: likewise
kept_problem        what devices keep or draw that late updates exclude: likewise
alternating_problem what training in two sections (FedRep) is not defined with: likewise
local_step_problem  why local training diverges whatever the data: likewise
without_effect      settings whose formulas run and change nothing: warnings at the start
unread_keys         keys that differ from their defaults and are not read: a remark at the start
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import fields

from fairbed.coordinator.algorithms.aggregation.base import (
    LinearPseudoGradient,
    PseudoGradient,
    uses_weights_of,
)
from fairbed.coordinator.policy.config import (
    PSEUDO_GRADIENTS,
    AggregationConfig,
    CoordinatorConfig,
    ModelConfig,
    RoundConfig,
    TrainingConfig,
)
from fairbed.coordinator.policy.factories import (
    make_defence,
    make_pseudo_gradient,
    rule_rescales_step,
)

if TYPE_CHECKING:
    from fairbed.coordinator.algorithms.local_training import ServerHalf
    from fairbed.wire.local_training import Extra

Gradient = PseudoGradient | LinearPseudoGradient

FAIRNESS_FREE = "fedavg"
"""The rule that does not need its weights to have an effect."""

MANY = 1_000_000
"""Updates of a round of which a defence that keeps several keeps more than one."""

PREDICTING = ("rbcs-f", "fedcs", "oort")
"""Policies that decide by exchange times which they learn; an oracle knows those of the round."""

EXACT = 1e-9
"""Tolerance of a bound on weights for rounding."""


def built_in_gradient(config: AggregationConfig, training: TrainingConfig) -> Gradient | None:
    """Return the pseudo-gradient of a configuration; None for a plug-in, which is not imported."""
    if config.pseudo_gradient not in PSEUDO_GRADIENTS:
        return None
    return make_pseudo_gradient(config, training)


def ignored_weights(
    config: AggregationConfig, updates: int, gradient: Gradient | None
) -> tuple[str, str] | None:
    """Return why the weights of the updates have no effect, and what to do; None if they have.

    Args:
        config: `[aggregation]`.
        updates: Updates of a round.
        gradient: Its pseudo-gradient; None: one that uses weights.
    """
    filter_ = make_defence(config)
    if filter_ is not None and updates > 1 and filter_.kept(updates) == 1:
        return (
            f"aggregation.defence {config.defence!r} keeps one update of a round",
            'set defence = "multi-krum", which keeps several',
        )
    if gradient is not None and not uses_weights_of(gradient):
        return (
            f"aggregation.pseudo_gradient {config.pseudo_gradient!r} ignores the weights of "
            "updates",
            'set pseudo_gradient = "geometric-median", which counts them',
        )
    return None


def are_weights_ignored(defence: str, pseudo_gradient: str) -> bool:
    """Return whether the built-in parts with these names ignore the weights of updates."""
    config = AggregationConfig(defence=defence, pseudo_gradient=pseudo_gradient)  # type: ignore[arg-type] # of a stored run
    gradient = built_in_gradient(config, TrainingConfig())
    return ignored_weights(config, MANY, gradient) is not None


def weights_problem(config: AggregationConfig, updates: int, gradient: Gradient | None) -> str:
    """Return why a rule has no effect because nothing reads its weights; empty if it has.

    The arguments are those of `ignored_weights`.
    """
    found = ignored_weights(config, updates, gradient)
    if found is None or config.rule == FAIRNESS_FREE:
        return ""
    why, remedy = found
    return (
        f'aggregation.rule must be "{FAIRNESS_FREE}" where weights have no effect, got '
        f"{config.rule!r}: {why}, so every rule gives the same model; {remedy}, or set rule = "
        f'"{FAIRNESS_FREE}"'
    )


def _needed(config: CoordinatorConfig, devices: int) -> "Iterator[tuple[Extra, str, str, object]]":
    """Yield the settings beyond plain SGD and FedAvg: name, key, value without it, and value."""
    training, merge, updates = config.training, config.aggregation, config.updates_per_version
    if training.epochs > 1:
        yield "epochs", "training.epochs", "1", training.epochs
    if training.personal_epochs:
        yield "epochs", "training.personal_epochs", "0", training.personal_epochs
    for name in ("momentum", "weight_decay", "proximal"):
        if (value := getattr(training, name)) != 0.0:
            yield name, f"training.{name}", "0", value
    if training.clip_norm is not None:
        yield "clip_norm", "training.clip_norm", "unset", training.clip_norm
    if training.learning_rate_decay != 1.0:
        key = "training.learning_rate_decay"
        if training.schedule_by == "round":
            yield "learning_rate_decay", key, "1", training.learning_rate_decay
    if training.schedule_by == "round" and training.schedule == "cosine":
        yield "learning_rate_decay", "training.schedule", '"step"', training.schedule
    if training.schedule_by == "round" and training.warm_up:
        yield "learning_rate_decay", "training.warm_up", "0", training.warm_up
    if training.optimiser != "sgd":
        yield "optimiser", "training.optimiser", '"sgd"', training.optimiser
    if training.nesterov:
        yield "optimiser", "training.nesterov", "false", training.nesterov
    if training.keeps_state:
        yield "optimiser", "training.optimiser_state", '"reset"', training.optimiser_state
    if training.changes_within_round:
        yield "schedule", "training.schedule_by", '"round"', training.schedule_by
    if updates < devices:
        key = "selection.per_round" if config.round.buffer is None else "round.buffer"
        yield "partial_participation", key, f"all {devices} devices", updates
    if merge.rule != FAIRNESS_FREE:
        yield "changing_weights", "aggregation.rule", f'"{FAIRNESS_FREE}"', merge.rule
    elif merge.weighting == "n_over_pi":
        yield "changing_weights", "aggregation.weights", '"n" or "equal"', merge.weighting
    elif merge.weighting == "n":
        yield "weights", "aggregation.weights", '"equal"', merge.weighting
    if merge.pseudo_gradient != "average":
        yield "pseudo_gradient", "aggregation.pseudo_gradient", '"average"', merge.pseudo_gradient
    if merge.defence != "none":
        yield "defence", "aggregation.defence", '"none"', merge.defence
    if merge.server != "plain":
        yield "server", "aggregation.server", '"plain"', merge.server
    elif merge.server_learning_rate not in (None, 1.0):
        yield "server", "aggregation.server_learning_rate", "1", merge.server_learning_rate


def local_rule_problem(half: "ServerHalf | None", config: CoordinatorConfig, devices: int) -> str:
    """Return which setting a local rule is not defined for; empty if it is defined for all.

    Args:
        half: The rule; None: it is built in, and defined for every setting.
        config: The experiment.
        devices: Devices of the fleet, or those that have joined so far; 0: unknown.
    """
    if half is None:
        return ""
    for name, key, plain, value in _needed(config, devices):
        if name in half.defined_for:
            continue
        got = f"{value:g}" if isinstance(value, float) else f"{value!r}".replace("'", '"')
        reason = (
            "the rule does not declare that its formulas hold for other values"
            if half.is_declared
            else "the rule declares nothing (defined_for), so it counts as one for plain SGD"
        )
        return (
            f"{key} must be {plain} with local rule {half.name}, got {got}: {reason}; change the "
            f"setting, or add {name!r} to defined_for of the rule if they do"
        )
    return ""


def kept_problem(
    round_: RoundConfig, aggregation: AggregationConfig, training: TrainingConfig
) -> str:
    """Return why rounds that merge late updates exclude what devices keep or draw; else empty.

    A device may begin its next exchange before the round that merges the last one has closed; and
    a merge knows the round of the merge, not that of the dispatch.
    """
    if not round_.merges_late_updates:
        return ""
    if training.keeps_state:
        key, got = "optimiser_state", '"kept"'
    elif training.draws_work and aggregation.pseudo_gradient == "fednova":
        key = "least_steps" if training.least_epochs is None else "least_epochs"
        got = f"{getattr(training, key)} and pseudo_gradient 'fednova'"
    else:
        return ""
    return (
        f"training.{key} must be left out where late updates are merged, got {got}: it belongs to "
        'one round; remove it, or use round.mode = "sync" and round.late = "drop"'
    )


def alternating_problem(
    model: ModelConfig, aggregation: AggregationConfig, training: TrainingConfig
) -> str:
    """Return why the personal part cannot be trained before the other one; empty if it can."""
    if not training.personal_epochs:
        return ""
    got = f"training.personal_epochs must be 0 {{}}, got {training.personal_epochs}: {{}}"
    if not model.personal:
        return got.format(
            "without model.personal",
            "there are no parameters that a device keeps; name them, or remove the key",
        )
    if training.keeps_state:
        return got.format(
            'with training.optimiser_state "kept"',
            'each of the two parts has an optimiser that begins anew in each round; use "reset"',
        )
    if aggregation.pseudo_gradient == "fednova":
        return got.format(
            "with aggregation.pseudo_gradient 'fednova'",
            'it normalises by all steps, of which a part changes the update; choose "average"',
        )
    return ""


def local_step_problem(training: TrainingConfig) -> str:
    """Return why local steps diverge whatever the data are; empty if that is not certain.

    On a convex loss a step eta of momentum rho is stable if its curvature is below
    2 (1 + rho) / eta, with Nesterov's momentum below 2 (1 + rho) / (1 + 2 rho) / eta. `proximal`
    and `weight_decay` alone are curvatures. The steps of adam have a bound; the decay of adamw
    is a factor 1 - eta lambda.

    Source:
        Polyak, USSR Comput. Math. Math. Phys. 4(5), 1964: the heavy-ball method; Nesterov's: the
        roots of z^2 - (1 + rho) (1 - eta h) z + rho (1 - eta h) for a curvature h.
    """
    if training.optimiser == "adam" or training.changes_within_round:
        return ""
    if training.optimiser == "adamw" or training.clip_norm is not None:  # a step has a bound
        curvature, keys = training.weight_decay, "weight_decay"
    else:
        curvature = training.proximal + training.weight_decay
        used = [name for name in ("proximal", "weight_decay") if getattr(training, name)]
        keys = " + ".join(used)
    step, limit, bound = training.learning_rate * curvature, 2.0 * (1.0 + training.momentum), ""
    if training.nesterov:
        limit, bound = limit / (1.0 + 2.0 * training.momentum), " / (1 + 2 momentum)"
    if step < limit:
        return ""
    return (
        f"training.{keys} times training.learning_rate must be below 2 (1 + momentum){bound} = "
        f"{limit:g}, "
        f"got {curvature:g} x {training.learning_rate:g} = {step:g}: local training would diverge "
        "on any data; lower one of them"
    )


def without_effect(config: CoordinatorConfig, gradient: Gradient | None) -> Iterator[str]:
    """Yield the settings of training and aggregation that cancel each other, one line each.

    Args:
        config: The experiment.
        gradient: Its pseudo-gradient; None: one that uses weights.
    """
    merge, updates = config.aggregation, config.updates_per_version
    found, cap = ignored_weights(merge, updates, gradient), merge.max_weight
    if found is not None:
        verb = "has" if cap is None else f"and max_weight {cap:g} have"
        keys = f"aggregation.weights {merge.weighting!r} {verb}"
        yield f"{keys} no effect: {found[0]}; to weight updates, {found[1]}"
    elif cap is not None and updates > 1 and cap * updates <= 1.0 + EXACT:
        yield (
            f"aggregation.rule {merge.rule!r} and weights {merge.weighting!r} do not weight "
            f"updates: aggregation.max_weight {cap:g} leaves each of the {updates} of a round the "
            "same weight; raise it"
        )
    sets_step = rule_rescales_step(merge) and merge.step == "as-published"
    if updates == 1 and merge.rule != FAIRNESS_FREE and not sets_step:
        yield (
            f"aggregation.rule {merge.rule!r} has no effect with one update per round, which has "
            "the whole weight; raise selection.per_round"
        )
    reads = {merge.defence: "defence", merge.pseudo_gradient: "pseudo_gradient"}
    for name in ("k-norm", "multi-krum", "trimmed-mean"):
        if name not in reads:
            continue
        from fairbed.coordinator.algorithms.aggregation.defence import expected_malicious

        if not expected_malicious(updates, merge.malicious_share):
            yield (
                f"aggregation.{reads[name]} {name!r} leaves out nothing: f = floor(malicious_share "
                f"{merge.malicious_share:g} x {updates} updates) = 0; raise "
                "aggregation.malicious_share, or selection.per_round"
            )
    if merge.pseudo_gradient == "geometric-median" and sets_step:
        yield (
            f"the length of the step of aggregation.rule {merge.rule!r} has no effect: "
            "aggregation.pseudo_gradient 'geometric-median' sets it; its weights count"
        )
    if merge.pseudo_gradient == "fednova" and config.privacy.is_on:
        yield (
            "aggregation.pseudo_gradient 'fednova' divides each update by its number of local "
            "steps, and [privacy] has clipped it to one length before: devices with many steps "
            'count less than by FedNova; use "average"'
        )
    if config.training.rule == "propfair" and config.training.optimiser != "sgd":
        yield (
            "training.rule 'propfair' has little effect with training.optimiser "
            f"{config.training.optimiser!r}: it scales gradients, and the optimiser divides them "
            'by their size; use optimiser = "sgd"'
        )
    if config.training.draws_work and config.selection.policy in PREDICTING:
        yield (
            f"selection.policy {config.selection.policy!r} predicts exchange times from earlier "
            "ones and does not know how long a device draws to train in this round "
            "(training.least_epochs, least_steps): its predictions are those of the mean"
        )
    if config.training.rule == "propfair" and merge.rule == "propfair":
        yield (
            "training.rule and aggregation.rule are both 'propfair', so devices with large losses "
            "count twice as PropFair; set one of them"
        )


READ_BY: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "aggregation.q": ("aggregation.rule", ("q-fedavg", "q-fedsgd")),
    "aggregation.lipschitz": ("aggregation.rule", ("q-fedsgd",)),
    "aggregation.gamma": ("aggregation.rule", ("afl",)),
    "aggregation.tilt": ("aggregation.rule", ("term",)),
    "aggregation.epsilon": ("aggregation.rule", ("fedmgda+",)),
    "aggregation.cdf": ("aggregation.rule", ("aaggff-s", "aaggff-d")),
    "aggregation.beta_cap": ("aggregation.rule", ("aaggff-s",)),
    "aggregation.impute": ("aggregation.rule", ("aaggff-d",)),
    "aggregation.M": ("aggregation.rule", ("corefed", "propfair")),
    "training.M": ("training.rule", ("propfair",)),
    "training.betas": ("training.optimiser", ("adam", "adamw")),
    "training.epsilon": ("training.optimiser", ("adam", "adamw")),
    "training.learning_rate_decay": ("training.schedule", ("step",)),
    "training.schedule_length": ("training.schedule", ("cosine",)),
    "training.least_learning_rate": ("training.schedule", ("cosine",)),
    "selection.beta": ("selection.policy", ("rbcs-f", "rbcs-f-known")),
    "selection.V": ("selection.policy", ("rbcs-f", "rbcs-f-known")),
    "selection.alpha": ("selection.policy", ("rbcs-f", "rbcs-f-known")),
    "selection.lcb_floor": ("selection.policy", ("rbcs-f", "rbcs-f-known")),
    "selection.z_max": ("selection.policy", ("rbcs-f", "rbcs-f-known")),
    "selection.queue_counts": ("selection.policy", ("rbcs-f", "rbcs-f-known")),
    "selection.deadline_s": ("selection.policy", ("fedcs", "fedcs-oracle")),
    "selection.uploads": ("selection.policy", ("fedcs", "fedcs-oracle")),
    "selection.candidates": ("selection.policy", ("power-of-choice",)),
    "selection.variant": ("selection.policy", ("power-of-choice",)),
    "selection.oort": ("selection.policy", ("oort",)),
    "exchange.top_k": ("exchange.up", ("top-k",)),
    "personalisation.lambda_": ("personalisation.method", ("ditto",)),
    "personalisation.lambda_choice": ("personalisation.method", ("ditto",)),
    "personalisation.lambda_candidates": ("personalisation.lambda_choice", ("local", "dynamic")),
    "personalisation.epochs": ("personalisation.method", ("ditto", "local-only")),
    "personalisation.max_steps": ("personalisation.method", ("ditto", "local-only")),
}
"""Keys that are read only if another key has one of some values."""


def unread_keys(config: CoordinatorConfig) -> Iterator[str]:
    """Yield a line for each key that differs from its default and that nothing reads."""
    if config.training.client is not None:
        from fairbed.coordinator.policy.client import ignored_keys

        yield from ignored_keys(config)
    elif config.aggregation.raw != "mean":
        yield (
            f"aggregation.raw {config.aggregation.raw!r} has no effect without training.client: "
            "a model has floats only"
        )
    for key, (by, values) in READ_BY.items():
        value = _value(config, key)
        if value != _default(config, key) and _value(config, by) not in values:
            shown = key.rstrip("_")
            given = "" if isinstance(value, Struct) else f" {value!r}"
            yield (
                f"{shown}{given} has no effect with {by} {_value(config, by)!r}: it is for "
                f"{' and '.join(map(repr, values))}"
            )


def _value(config: CoordinatorConfig, key: str) -> object:
    section, _, name = key.partition(".")
    value: object = getattr(getattr(config, section), name)
    return value


def _default(config: CoordinatorConfig, key: str) -> object:
    section, _, name = key.partition(".")
    found = next(field for field in fields(getattr(config, section)) if field.name == name)
    value: object = found.default
    return value
