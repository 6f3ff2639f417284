"""What a client of the user cannot be combined with, and what it does not read.

client_problem    settings that exclude a client, whatever its class is: the experiment is refused
class_problem     what the class or its arrays must have beside: refused before round 1
ignored_keys      keys that only native training reads: remarks at the start
needs_metric      what needs `training.loss_metric` among the built-in parts
"""

from collections.abc import Iterator

from msgspec import structs

from fairbed.coordinator.policy.config import (
    RAW_RULES,
    RULES,
    AggregationConfig,
    CoordinatorConfig,
    SelectionConfig,
    TrainingConfig,
)
from fairbed.coordinator.policy.factories import make_defence, make_rule
from fairbed.wire.plugins import is_path

OWN_KEYS = ("client_folder", "client_python", "client_options", "loss_metric")
"""Keys of `[training]` for a client only."""


def keys_problem(training: TrainingConfig) -> str:
    """Return which key of a client is set without one; empty if none is."""
    for key in OWN_KEYS:
        if training.client is None and (got := getattr(training, key)):
            return (
                f"training.{key} must be set with training.client only, got {got!r}; set the "
                "client, or remove the key"
            )
    return ""


def client_problem(config: CoordinatorConfig) -> str:
    """Return which setting excludes the client of a configuration; empty if none does."""
    training, aggregation = config.training, config.aggregation
    client = training.client or ""
    if not is_path(client) or not all(client.split(":", 1)):
        return f"training.client must be package.module:Class, got {client!r}"
    if aggregation.raw not in RAW_RULES and not is_path(aggregation.raw):
        known = ", ".join(RAW_RULES)
        return f"aggregation.raw must be {known} or package.module:merge, got {aggregation.raw!r}"
    for key, got, plain in (
        ("training.rule", training.rule, "sgd"),
        ("training.micro_batch", training.micro_batch, None),
        ("training.optimiser", training.optimiser, "sgd"),
        ("training.optimiser_state", training.optimiser_state, "reset"),
        ("training.nesterov", training.nesterov, False),
        ("training.augment", training.augment or None, None),
        ("training.schedule_by", training.schedule_by, "round"),
        ("training.micro_batch_statistics", training.micro_batch_statistics, False),
        ("personalisation.method", config.personalisation.method, "none"),
        ("model.batch_norm", config.model.batch_norm, "merged"),
        ("model.weights", config.model.weights, None),
        ("model.trainable", config.model.trainable, ()),
        ("model.lora", config.model.lora, None),
        ("model.personal", config.model.personal, ()),
    ):
        if got != plain:
            shown = f'"{got}"' if isinstance(got, str) else str(got).lower()
            wanted = "left out" if plain in (None, False, ()) else f'"{plain}"'
            return (
                f"{key} must be {wanted} with training.client, got {shown}: the client trains by "
                "itself; do it in the client, or remove the key"
            )
    if config.evaluation.own_data == "server-test-set":
        return (
            'evaluation.own_data must be "devices" or "off" with training.client, got '
            '"server-test-set": the coordinator has no network to test; remove the key, and let '
            "the client evaluate"
        )
    if aggregation.pseudo_gradient == "fednova":
        return (
            'aggregation.pseudo_gradient must not be "fednova" with training.client: the number '
            'of its local steps is not known; choose "average"'
        )
    if config.selection.queries_losses and config.selection.variant == "cpow-d":
        return (
            'selection.variant must be "pow-d" or "rpow-d" with training.client, got "cpow-d": a '
            "client evaluates all its examples, not one mini-batch"
        )
    what = needs_metric(config.selection, aggregation)
    return "" if training.loss_metric or not what else missing_metric(what)


def needs_metric(selection: SelectionConfig, aggregation: AggregationConfig) -> str:
    """Return the built-in part that needs the loss before training; empty if none does.

    A plug-in is checked when it is loaded.
    """
    if selection.selects_by_losses and not selection.queries_losses:
        return f"selection.policy {selection.policy!r}"
    defence = make_defence(aggregation)
    if defence is not None and defence.needs_loss:
        return f"aggregation.defence {aggregation.defence!r}"
    if aggregation.rule in RULES and make_rule(aggregation, selection.per_round).needs_loss:
        return f"aggregation.rule {aggregation.rule!r}"
    return ""


def missing_metric(what: str) -> str:
    """Return the line that refuses a part that needs losses."""
    return (
        f"training.loss_metric must name the metric of fit that is the loss before training, as "
        f"{what} needs it, got none; let the client measure the loss of the model that it "
        "receives on its training examples, and set the name of the metric"
    )


def class_problem(
    config: CoordinatorConfig, *, has_evaluate: bool, queries_losses: bool, has_raw: bool
) -> str:
    """Return what the class of a client lacks for the other settings; empty if nothing.

    Args:
        config: The configuration.
        has_evaluate: The class has `evaluate`.
        queries_losses: The selector asks devices for losses before it selects.
        has_raw: It has integers, booleans or bytes.
    """
    if queries_losses and not has_evaluate:
        return (
            f"training.client {config.training.client}: must have evaluate(arrays, config) with "
            f"selection.policy {config.selection.policy!r}, which asks devices for the loss of the "
            "model before it selects; add it, or choose another policy"
        )
    if config.privacy.is_on and has_raw:
        return (
            f"training.client {config.training.client}: must have floats only with [privacy], got "
            "integers, booleans or bytes, which no noise covers; remove them, or [privacy]"
        )
    return ""


def ignored_keys(config: CoordinatorConfig) -> Iterator[str]:
    """Yield a line for each key that is set and that only native training reads."""
    if config.training.client is None:
        return
    plain = type(config.model)()
    for field in structs.fields(config.model):
        got = getattr(config.model, field.name)
        if got != getattr(plain, field.name):
            yield (
                f"model.{field.name} {got!r} has no effect with training.client, which has a "
                "model of its own"
            )
