"""Vectors that the devices of a replay keep: personal models, and those of a local rule."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Ints, Vector
from fairbed.coordinator.policy.config import TrainingConfig
from fairbed.device_agent.local_training import make_rule
from fairbed.testbed.replay.cohort.base import CohortJob, CohortResult, CohortRule, Trainer
from fairbed.wire.messages import Hyperparameters
from fairbed.wire.tensors import Layout

BLOCK_BYTES = 1 << 24
"""Memory is taken in blocks of about this size, so that it grows with the devices that trained."""
STARTS_BYTES = 1 << 26
"""Limit of the copies of vectors that one call of the trainer begins at."""


class DeviceVectors:
    """A vector of each device that has trained, float32.

    Args:
        initial: The vector at which each begins, shape (n_values,).
    """

    def __init__(self, initial: Vector) -> None:
        self._initial = initial
        self._per_block = max(1, BLOCK_BYTES // max(1, initial.nbytes))
        self._blocks: list[Vector] = []
        self._place_of: dict[int, int] = {}
        """Place of each row, counted over all blocks."""

    @property
    def nbytes(self) -> int:
        """Bytes of the vector of one device."""
        return self._initial.nbytes

    def __len__(self) -> int:
        """Return the number of devices with a vector of their own."""
        return len(self._place_of)

    def __getitem__(self, row: int) -> Vector:
        """Return the vector of a device, shape (n_values,), as a view."""
        block, place = divmod(self._place_of[row], self._per_block)
        vector: Vector = self._blocks[block][place]
        return vector

    def starts(self, rows: Sequence[int], first: Vector | None = None) -> Vector:
        """Return a copy of the vector of each device, shape (K, n_values).

        Args:
            rows: The devices.
            first: At which one without a vector begins, shape (n_values,); None: `initial`.
        """
        starts = np.empty((len(rows), self._initial.size), dtype=np.float32)
        first = self._initial if first is None else first
        for at, row in enumerate(rows):
            starts[at] = self[row] if row in self._place_of else first
        return starts

    def keep(self, row: int, vector: Vector) -> None:
        """Keep a copy of the vector of a device, shape (n_values,)."""
        if row not in self._place_of:
            self._add(row)
        self[row][:] = vector

    def _add(self, row: int) -> None:
        self._place_of[row] = len(self._place_of)
        if len(self._place_of) > len(self._blocks) * self._per_block:
            self._blocks.append(np.zeros((self._per_block, self._initial.size), dtype=np.float32))

    def to_state(self) -> dict[str, Any]:
        """Return the vectors, without a copy of them, for the checkpoint."""
        return {"rows": list(self._place_of), "blocks": [block.data for block in self._blocks]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned."""
        shape = self._per_block, self._initial.size
        self._blocks = [
            np.frombuffer(block, dtype=np.float32).reshape(shape).copy()
            for block in state["blocks"]
        ]
        self._place_of = {row: place for place, row in enumerate(state["rows"])}


def optimiser_states(training: TrainingConfig, layout: Layout) -> DeviceVectors | None:
    """Return the state of the optimiser of each device, zero at first; None if none is kept."""
    if not training.keeps_state:
        return None
    from fairbed.device_agent.optimiser import state_size

    size = state_size(training.hyperparameters(1), layout.n_params)
    return DeviceVectors(np.zeros(size, dtype=np.float32))


class LocalValues:
    """The values of the model that each device of a replay keeps (`wire.tensors.Layout.local`).

    Args:
        layout: Layout of the model.
        initial: The model before round 1, shape (n_values,).
    """

    def __init__(self, layout: Layout, initial: Vector) -> None:
        self._places = layout.local
        self.kept = DeviceVectors(initial[self._places])
        """Values of each device whose update was merged; those of `initial` before."""

    def of(self, row: int, vector: Vector) -> Vector:
        """Return a model as a device has it, shape (n_values,)."""
        model: Vector = self.starts([row], vector)[0]
        return model

    def starts(self, rows: Sequence[int], vector: Vector) -> Vector:
        """Return a model, shape (n_values,), as each device has it, shape (K, n_values)."""
        models: Vector = np.repeat(vector[np.newaxis], len(rows), axis=0)
        models[:, self._places] = self.kept.starts(rows)
        return models

    def without(self, models: Vector, sent: Vector) -> Vector:
        """Return models, shape (K, n_values), with the values that were sent in these places."""
        others: Vector = models.copy()
        others[:, self._places] = sent[self._places]
        return others

    def keep(self, rows: Ints, trained: Vector) -> None:
        """Keep the values of devices whose updates, shape (K, n_values), are merged."""
        for row, values in zip(rows.tolist(), trained[:, self._places], strict=True):
            self.kept.keep(row, values)


class RuleCohort:
    """The devices' half of a local rule (`wire.local_training`): one object trains all devices.

    Args:
        name: Name of the rule in the experiment.
        options: Its arguments.
        n_params: Parameters of the model.

    Raises:
        PluginError: It is unknown, cannot be imported, or does not take the options.
    """

    def __init__(
        self, name: str, options: Mapping[str, bool | int | float | str], n_params: int
    ) -> None:
        self._rule, self._options, self._n = make_rule(name, options), options, n_params
        self.kept = DeviceVectors(np.zeros(len(self._rule.kept) * n_params, dtype=np.float32))
        """Vectors that each device keeps, one after the other; zero before its first round."""

    def train(
        self,
        trainer: Trainer,
        w_t: Vector,
        jobs: Sequence[CohortJob],
        hyperparameters: Hyperparameters,
        sent: Vector,
        starts: Vector | None = None,
        states: Vector | None = None,
    ) -> Iterator[CohortResult]:
        """Yield the results of all jobs, in an order that depends only on the jobs.

        Args:
            trainer: Trains the models.
            w_t: The global model, shape (n_values,).
            jobs: Training of each device.
            hyperparameters: Hyperparameters of the round.
            sent: Vectors that are sent, one after the other, shape (len(sent) * n_params,).
            starts: Model of each job before its first step; not set: it is `w_t`.
            states: State of the optimiser of each job; not set: it begins anew.

        Raises:
            PluginError: The rule breaks its contract.
        """
        names, bytes_each = self._rule.kept, 4 * self._n * len(self._rule.kept)
        size = max(1, STARTS_BYTES // bytes_each) if names else max(1, len(jobs))
        for begin in range(0, len(jobs), size):
            part = jobs[begin : begin + size]
            kept = self.kept.starts([job.device for job in part])
            rule = CohortRule(
                self._rule,
                self._options,
                self._named(self._rule.sent, sent),
                self._named(names, kept),
            )
            own = None if starts is None else starts[begin : begin + size]
            at_first = None if states is None else states[begin : begin + size]
            for result in trainer.train(w_t, part, hyperparameters, own, rule, at_first):
                yield replace(result, at=result.at + begin)

    def updates(self, models: Vector, result: CohortResult, places: Ints) -> Vector:
        """Return models, shape (K, n_values), each followed by the vectors that its device returns.

        Args:
            models: Models of some devices of `result`.
            result: The result of the trainer.
            places: The places of these devices in it, shape (K,).
        """
        names = self._rule.returned
        if not names:
            return models
        return np.concatenate([models, *(result.returned[name][places] for name in names)], axis=1)

    def keep(self, rows: Ints, result: CohortResult, places: Ints) -> None:
        """Keep the vectors of devices whose updates are merged.

        Args:
            rows: The devices, shape (K,).
            result: The result of the trainer.
            places: The places of these devices in it, shape (K,).
        """
        names = self._rule.kept
        if not names:
            return
        for row, place in zip(rows.tolist(), places.tolist(), strict=True):
            self.kept.keep(row, np.concatenate([result.kept[name][place] for name in names]))

    def _named(self, names: tuple[str, ...], vectors: Vector) -> dict[str, Vector]:
        """Return each of some vectors, shape (..., n_params), that follow each other, as a view."""
        n = self._n
        return {name: vectors[..., i * n : (i + 1) * n] for i, name in enumerate(names)}
