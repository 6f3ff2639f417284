"""The interface of all trainers of a cohort."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from msgspec import structs

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints, Vector
from fairbed.device_agent.local_training import GuardedRule
from fairbed.device_agent.trainer import local_steps
from fairbed.testbed.errors import HostLostError
from fairbed.wire.artifact import Artifact, TaskSpec
from fairbed.wire.messages import LOCAL_RULES_GROUP, Hyperparameters
from fairbed.wire.plugins import registered

if TYPE_CHECKING:
    from fairbed.testbed.replay.cohort.shards import DividedData, Shards


@dataclass(frozen=True, slots=True)
class CohortJob:
    """The training of one device in a round."""

    device: int
    """Number of its shard."""
    seed: int
    """Seed of the order of its mini-batches, as in `wire.messages.Train`."""
    micro_batch: int | None = None
    """As `Hyperparameters.micro_batch`, where it follows from the memory of the device; None: that
    of the round."""
    epochs: int | None = None
    """Passes that the device has drawn; None: those of the round."""
    max_steps: int | None = None
    """Limit of mini-batches that the device has drawn; None: that of the round."""

    def fitted(self, hyperparameters: Hyperparameters) -> Hyperparameters:
        """Return the hyperparameters of a round for this device."""
        own: dict[str, Any] = {
            name: value
            for name in ("micro_batch", "epochs", "max_steps")
            if (value := getattr(self, name)) is not None
        }
        return structs.replace(hyperparameters, **own) if own else hyperparameters


def steps_of(
    n_k: Sequence[int], jobs: Sequence[CohortJob], hyperparameters: Hyperparameters
) -> list[int]:
    """Return the mini-batches of each job, given the examples of its device, n_k."""
    return [local_steps(n, job.fitted(hyperparameters)) for n, job in zip(n_k, jobs, strict=True)]


@dataclass(frozen=True, slots=True)
class CohortRule:
    """The local rule of K devices (`wire.local_training`), and its vectors by name."""

    rule: GuardedRule
    options: Mapping[str, bool | int | float | str]
    """Arguments of the rule; another process makes it again."""
    sent: Mapping[str, Vector]
    """Vectors sent with the model, each of shape (n_params,)."""
    kept: Mapping[str, Vector]
    """Vectors of each device before the round, each of shape (K, n_params)."""

    @property
    def vectors(self) -> dict[str, Vector]:
        """All vectors, as in `Step.vectors`."""
        return {**self.sent, **self.kept}

    def of(self, at: Sequence[int]) -> "CohortRule":
        """Return the rule with copies of the vectors of some of the devices."""
        return replace(self, kept={name: kept[at] for name, kept in self.kept.items()})

    @property
    def n_results(self) -> int:
        """Vectors that a device keeps and returns, for the memory of a chunk."""
        return 2 * len(self.rule.kept) + len(self.rule.returned)


@dataclass(frozen=True, slots=True)
class CohortPart:
    """G jobs that are trained together, or all of a cohort."""

    at: Sequence[int]
    """Indices of the jobs in the cohort."""
    jobs: Sequence[CohortJob]
    hyperparameters: Hyperparameters
    """Hyperparameters of the round."""
    starts: Vector | None = None
    """Models before the first step, shape (G, n_values); None: each is the global model."""
    rule: CohortRule | None = None
    """The local rule, with the vectors of these jobs."""
    states: Vector | None = None
    """States of the optimiser before the first step, shape (G, n_state); None: it begins anew."""

    def take(self, at: Sequence[int]) -> "CohortPart":
        """Return some jobs of a whole cohort, with copies of their models and vectors."""
        places = list(at)
        return CohortPart(
            places,
            [self.jobs[place] for place in places],
            self.hyperparameters,
            None if self.starts is None else self.starts[places],
            None if self.rule is None else self.rule.of(places),
            None if self.states is None else self.states[places],
        )


def own_states(part: CohortPart, n_params: int) -> Vector | None:
    """Return the states that the optimiser of each job changes, shape (G, n_state); None if none.

    Without states in the part they begin at zero.
    """
    h = part.hyperparameters
    if not h.keeps_state:
        return None
    if part.states is not None:
        states: Vector = part.states.copy()
        return states
    from fairbed.device_agent.optimiser import state_size

    return np.zeros((len(part.jobs), state_size(h, n_params)), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class CohortResult:
    """Training results of G devices; columns of shape (G,)."""

    at: Ints
    """Indices of the jobs."""
    vectors: Vector
    """`[params | buffers]` after the last step, (G, n_values); valid until the next result."""
    steps: Ints
    """Mini-batches taken."""
    loss_train: Floats
    """Mean loss of the last epoch begun, nats per example; NaN if no step was taken."""
    problems: tuple[str, ...]
    """Why there is no update, as the device reports it; empty where there is one."""
    kept: Mapping[str, Vector] = field(default_factory=dict)
    """Vectors of the local rule that stay on the devices, each (G, n_params); valid as `vectors`.
    Without meaning where there is no update, as are those returned."""
    returned: Mapping[str, Vector] = field(default_factory=dict)
    """Vectors of the local rule that go with the updates, each (G, n_params); valid as `vectors`.
    """
    states: Vector | None = None
    """States of the optimiser, shape (G, n_state), valid as `vectors`; None if none is kept.
    Without meaning where there is no update."""

    @property
    def has_failed(self) -> Bools:
        """Whether there is no update."""
        return np.array([bool(problem) for problem in self.problems], dtype=np.bool_)


class HelperPool(Protocol):
    """Processes that train a part of each cohort beside the replay, with the same bits."""

    @property
    def size(self) -> int:
        """Number of processes, and of threads that may call `train` at a time."""
        ...

    def is_ready(self) -> bool:
        """Return whether every process has begun; any thread may call it."""
        ...

    def begin_at(self, vector: Vector) -> None:
        """Set the global model w_t of all later training, shape (n_values,)."""
        ...

    def train(self, part: CohortPart) -> CohortResult:
        """Train some jobs of a cohort in a process.

        Raises:
            EngineError: A process has ended, and with it the replay.
            HostLostError: A process is gone; the jobs can be trained elsewhere.
            PluginError: The rule breaks its contract.
        """
        ...

    def close(self) -> None:
        """End all processes."""
        ...


class CohortHelpers(Protocol):
    """Hosts that train a part of each cohort of a replay."""

    def dense(self, spec: TaskSpec, shards: "Shards") -> HelperPool:
        """Return the processes that train dense models on the data of a fleet."""
        ...

    def device(self, artifact: Artifact, data: "DividedData") -> HelperPool:
        """Return the processes that train any model on the data of a fleet."""
        ...


def train_in(pool: HelperPool | None, cohort: CohortPart, at: Sequence[int]) -> CohortResult | None:
    """Train a part of a cohort in a process of a pool; None: the replay itself has to.

    That is so until every process has begun, with a local rule that the program has registered and
    no other process can load, and after the loss of a host.

    Args:
        pool: The processes; None if there are none.
        cohort: The whole cohort.
        at: Indices of the jobs of the part.

    Raises:
        EngineError: A process has ended, and with it the replay.
        PluginError: The rule breaks its contract.
    """
    rule = cohort.rule
    is_unknown_there = rule is not None and rule.rule.name in registered(LOCAL_RULES_GROUP)
    if pool is None or is_unknown_there or not pool.is_ready():
        return None
    try:
        return pool.train(cohort.take(at))
    except HostLostError:
        return None


class Trainer(Protocol):
    """Trains many devices from one model. One call at a time."""

    name: str
    """Name of the method, for messages."""
    spec: TaskSpec

    def train(
        self,
        vector: Vector,
        jobs: Sequence[CohortJob],
        hyperparameters: Hyperparameters,
        starts: Vector | None = None,
        rule: CohortRule | None = None,
        states: Vector | None = None,
    ) -> Iterator[CohortResult]:
        """Yield the results of all jobs, in an order that depends only on the jobs.

        Every device does what `device_agent.trainer.train` does: the same mini-batches in the
        same order, the same steps.

        Args:
            vector: The global model w_t, shape (n_values,); not changed.
            jobs: Any number, each device at most once.
            hyperparameters: Hyperparameters of the round.
            starts: Model of each job before its first step, shape (K, n_values), not changed; not
                set: it is `vector`, which always is the anchor of the proximal term.
            rule: Changes local training; its vectors are not changed.
            states: State of the optimiser of each job, shape (K, n_state), not changed; not set: it
                begins anew.

        Raises:
            PluginError: The rule breaks its contract.
        """
        ...

    def losses(self, vector: Vector, devices: Sequence[int]) -> Floats:
        """Return F_k(w), nats per example, on the training data of each device, shape (K,).

        A loss that is not finite is infinite, because no report of a device may contain it.
        """
        ...

    def close(self) -> None:
        """End its threads."""
        ...
