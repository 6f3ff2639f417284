"""Register own parts by name: data sets, models, selectors, rules, estimators, local training."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar, overload

from fairbed.coordinator.policy.plugins import (
    ESTIMATOR,
    LOCAL_RULE,
    PSEUDO_GRADIENT,
    RULE,
    SELECTOR,
    SERVER_STEP,
)
from fairbed.coordinator.task.recipes import MODEL_NAMES
from fairbed.testbed.errors import UsageError
from fairbed.testbed.experiment.data import GROUP, NAMES
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.inputs import named_parts
from fairbed.wire import models, plugins

Kind: TypeAlias = Literal[
    "dataset",
    "estimator",
    "local-rule",
    "model",
    "pseudo-gradient",
    "selector",
    "server-step",
    "weight-rule",
]
"""What a part is."""

F = TypeVar("F", bound=Callable[..., Any])

_PARTS = {
    "estimator": ESTIMATOR,
    "local-rule": LOCAL_RULE,
    "pseudo-gradient": PSEUDO_GRADIENT,
    "selector": SELECTOR,
    "server-step": SERVER_STEP,
    "weight-rule": RULE,
}

GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "dataset": (GROUP, NAMES),
    "model": (models.GROUP, MODEL_NAMES),
    **{name: (part.group, part.built_in) for name, part in _PARTS.items()},
}
"""The group of entry points of each kind, and the names that are built in."""


@overload
def register(kind: Kind, name: str) -> Callable[[F], F]: ...


@overload
def register(kind: Kind, name: str, factory: F) -> F: ...


def register(kind: Kind, name: str, factory: Any = None) -> Any:
    """Register a part under a name that experiments of this program may use.

    Use it as a decorator of a class or function, or call it with one. A later part of the same
    name replaces an earlier one. Other processes do not know the name: write `package.module:Name`
    in an experiment for the command line, and for local rules of a live run.

    Args:
        kind: What it is.
        name: Its name: letters, digits and `_.+-`.
        factory: A class, or a function that makes one; that of a data set returns the data, that
            of a model a `torch.nn.Module`.

    Returns:
        The factory, or the decorator.

    Raises:
        UsageError: The kind is unknown, the name is built in, or the factory cannot be called.
    """
    if kind not in GROUPS:
        raise UsageError(f"register: the kind must be one of {', '.join(GROUPS)}, got {kind!r}")
    group, built_in = GROUPS[kind]
    if name in built_in:
        raise UsageError(f"register: {name!r} is a built-in {kind}; choose another name")

    def add(factory: F) -> F:
        try:
            plugins.register(group, name, factory)
        except plugins.PluginError as exc:
            raise UsageError(str(exc)) from exc
        return factory

    return add if factory is None else add(factory)


def registered_parts(experiment: Experiment) -> list[str]:
    """Return the parts of an experiment that this program registered, as `key = "name"`."""
    return [
        f'{part.key} = "{part.name}"'
        for part in named_parts(experiment)
        if part.name in plugins.registered(part.group)
    ]
