"""Local training of your own: what a local rule does on a device and at the coordinator.

An object of the rule is on each device, and one is at the coordinator. In a replay one object
trains many devices at once. So the methods of the device keep no state in the object: all that a
device knows is in `vectors`. In all arrays of the device, leading axes `...` are independent
devices; on a device there are none. Those of a replay include devices whose training has diverged,
with values that are not finite; their results are dropped.

Vectors beside the model, each as long as its parameters, float32, and zero before round 1:

    sent        from the coordinator to each device of a cohort, with the model
    kept        on the device from round to round, also through restarts and power loss; a round
                counts only if its update was merged: otherwise the next one begins as it did
    returned    from the device to the coordinator, with the update

A rule with vectors needs rounds that merge no late updates: a device may begin its next exchange
before the last one is merged, or with vectors of another model version.

`defined_for` names the settings beyond plain SGD and FedAvg for which the formulas of a rule hold
(`Extra`). An experiment with another one is refused before its first round.

`docs/own-local-training.md` has examples.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from fairbed.wire.messages import MAX_VECTORS
from fairbed.wire.plugins import PluginError

NOUN = "local rule"

Floats32 = NDArray[np.float32]

Extra: TypeAlias = Literal[
    "epochs",
    "momentum",
    "weight_decay",
    "proximal",
    "clip_norm",
    "learning_rate_decay",
    "partial_participation",
    "weights",
    "changing_weights",
    "pseudo_gradient",
    "defence",
    "server",
    "optimiser",
    "schedule",
]
"""A setting beyond plain SGD and FedAvg that a local rule may be defined for: several epochs;
momentum; weight decay; a proximal term; clipped gradients; a learning rate that changes between
rounds; rounds with a part of the fleet; weights by examples; weights that change between rounds, by
another rule than fedavg or by n_over_pi; another pseudo-gradient than the average; a defence;
another server step than w + d; Adam, AdamW, Nesterov's momentum, or a kept state; a learning rate
that changes within a round."""

EXTRAS: tuple[Extra, ...] = get_args(Extra)

UNDECLARED: tuple[Extra, ...] = (
    "epochs",
    "learning_rate_decay",
    "partial_participation",
    "weights",
)
"""Settings of a rule that declares nothing: it sees each mini-batch, its learning rate and the
merged mean, so that these do not enter its formulas by themselves."""


@dataclass(slots=True)
class Step:
    """One mini-batch of local training, before its step."""

    params: Floats32
    """w, the parameters before the step, shape (..., n_params); not to be changed."""
    gradient: Floats32
    """Gradient of the loss of the mini-batch at w, shape (..., n_params); to be changed in place.
    Clipping, weight decay, momentum and the step size follow."""
    loss: NDArray[np.float64]
    """Mean loss of the mini-batch at w, nats, shape (...)."""
    anchor: Floats32
    """w_t, the parameters that were sent, shape (n_params,); not to be changed."""
    buffers: Floats32
    """Values of the model that are no parameters, shape (..., n_buffers); not to be changed."""
    vectors: Mapping[str, Floats32]
    """By name: those sent, shape (n_params,), and those kept, shape (..., n_params), as they were
    before the round; not to be changed."""
    learning_rate: float
    """Step size of this round."""
    gradient_at: Callable[[Floats32], tuple[NDArray[np.float64], Floats32]]
    """Returns loss, shape (...), and gradient, shape (..., n_params), of the same mini-batch at
    other parameters, shape (..., n_params). It costs as much as the step itself."""


@dataclass(slots=True)
class Trained:
    """Local training of a round, after its last step."""

    params: Floats32
    """w_k, shape (..., n_params); not to be changed."""
    anchor: Floats32
    """w_t, the parameters that were sent, shape (n_params,); not to be changed."""
    steps: NDArray[np.int64]
    """Mini-batches, shape (...)."""
    vectors: Mapping[str, Floats32]
    """As in `Step`."""
    learning_rate: float
    """Step size of this round."""


@dataclass(slots=True)
class Merged:
    """A round at the coordinator, after its updates were merged."""

    params: Floats32
    """w_{t+1} after aggregation, shape (n_params,); may be changed in place."""
    before: Floats32
    """w_t, shape (n_params,); not to be changed."""
    sent: Mapping[str, Floats32]
    """Vectors that were sent, each of shape (n_params,); not to be changed."""
    returned: Mapping[str, Floats32]
    """Mean of each returned vector over the merged updates, shape (n_params,). Its weights are
    those of the updates: equal ones with `aggregation.weights = "equal"` and the rule `fedavg`."""
    n_merged: int
    """Updates that were merged."""
    n_devices: int
    """Devices that have joined, selected or not."""
    learning_rate: float
    """Step size of local training in this round."""


def vector_names(name: str, rule: object, kind: str) -> tuple[str, ...]:
    """Return the names of the vectors of a kind, `sent`, `kept` or `returned`, of a rule.

    Raises:
        PluginError: They are no tuple of a few names.
    """
    names = getattr(rule, kind, ())
    is_tuple = isinstance(names, (tuple, list)) and all(isinstance(n, str) for n in names)
    if not is_tuple or len(set(names)) < len(names) or len(names) > MAX_VECTORS:
        raise PluginError(
            f"{NOUN} {name}: {kind} must be a tuple of at most {MAX_VECTORS} distinct names, "
            f"got {names!r}"
        )
    return tuple(names)


def defined_for(name: str, rule: object) -> tuple[Extra, ...] | None:
    """Return the settings that a rule declares to be defined for; None if it declares nothing.

    Raises:
        PluginError: The declaration is no tuple of names of settings.
    """
    names = getattr(rule, "defined_for", None)
    if names is None:
        return None
    if not isinstance(names, (tuple, list)) or not set(map(str, names)) <= set(EXTRAS):
        raise PluginError(
            f"{NOUN} {name}: defined_for must be a tuple of {', '.join(EXTRAS)}, got {names!r}"
        )
    return tuple(extra for extra in EXTRAS if extra in names)


class LocalRule(Protocol):
    """Changes local training. A plug-in is a class with these members; options are its arguments.

    All names of vectors are distinct. The attribute `defined_for`, a tuple of `Extra`, is optional:
    settings beyond plain SGD and FedAvg for which the formulas hold; not given: `UNDECLARED`.
    """

    sent: tuple[str, ...]
    """Names of the vectors sent with the model."""
    kept: tuple[str, ...]
    """Names of the vectors kept on the device."""
    returned: tuple[str, ...]
    """Names of the vectors returned with the update."""

    def gradient(self, step: Step) -> None:
        """Change the gradient of a mini-batch in place."""
        ...

    def end(self, trained: Trained) -> Mapping[str, Floats32]:
        """Return the vectors after a round, by name, each of shape (..., n_params), float32.

        All `returned` ones, and those of `kept` that change.
        """
        ...

    def merge(self, merged: Merged) -> Mapping[str, Floats32]:
        """Return the vectors to send next, by name, each of shape (n_params,): those that change.

        Runs at the coordinator after each round with an update. It may also change
        `merged.params`, the next model, in place.
        """
        ...

    def to_state(self) -> dict[str, Any]:
        """Return the state at the coordinator as plain numbers, bytes and lists."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        ...
