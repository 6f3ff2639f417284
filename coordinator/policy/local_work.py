"""How long each device trains in a round, if it draws that by seed."""

from dataclasses import dataclass

import numpy as np
from msgspec import structs

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.coordinator.algorithms.random_streams import uniforms
from fairbed.coordinator.policy.config import TrainingConfig
from fairbed.wire.messages import Hyperparameters

_EPOCHS, _STEPS = 1002, 1003
"""Purposes of the random numbers, beside those of `decisions`."""


@dataclass(frozen=True, slots=True)
class DrawnWork:
    """What K devices have drawn for a round."""

    epochs: Ints | None
    """Passes over the examples, shape (K,); None: `training.epochs`."""
    max_steps: Ints | None
    """Limits of mini-batches, shape (K,); None: `training.max_steps`."""

    def of(self, at: int, hyperparameters: Hyperparameters) -> Hyperparameters:
        """Return the hyperparameters of one of the devices."""
        if self.epochs is not None:
            hyperparameters = structs.replace(hyperparameters, epochs=int(self.epochs[at]))
        if self.max_steps is not None:
            hyperparameters = structs.replace(hyperparameters, max_steps=int(self.max_steps[at]))
        return hyperparameters


@dataclass(frozen=True, slots=True)
class LocalWork:
    """Draws passes and steps, uniformly between two bounds that belong to the range.

    Args:
        training: `[training]`.
        seed: Seed of training.
    """

    training: TrainingConfig
    seed: int

    def drawn(self, round_id: int, rows: Ints) -> DrawnWork:
        """Return what devices draw for the round of their dispatch.

        Args:
            round_id: The round, from 1.
            rows: The devices, shape (K,).
        """
        training = self.training
        epochs = self._between(training.least_epochs, training.epochs, round_id, rows, _EPOCHS)
        steps = self._between(training.least_steps, training.max_steps, round_id, rows, _STEPS)
        return DrawnWork(epochs, steps)

    def steps(self, round_id: int, rows: Ints, n_k: Ints) -> Ints:
        """Return the mini-batches of devices with n_k examples, shape (K,), at least 1."""
        drawn = self.drawn(round_id, rows)
        return self.training.local_steps(n_k, drawn.epochs, drawn.max_steps)

    def _between(
        self, least: int | None, most: int | None, round_id: int, rows: Ints, purpose: int
    ) -> Ints | None:
        if least is None or most is None:
            return None
        share = uniforms(self.seed, round_id, rows, purpose)
        drawn: Ints = least + np.floor(share * (most - least + 1)).astype(np.int64)
        return drawn
