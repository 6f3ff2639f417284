"""Training of a personal model v_k, with lambda fixed or chosen on the device (Ditto).

    v <- v - eta (grad F_k(v) + lambda (v - w_t))

    fixed     one lambda for all devices
    local     each round, a section from v_k with each candidate; the model of least validation
              loss is kept
    dynamic   each step, a trial step with each candidate from the same gradient; the step of least
              validation loss is taken

Validation examples are a tenth of the device's own, drawn once; the section trains on the others.

Source:
    Li et al., ICML 2021, Algorithm 1 and the choice of lambda in its experiments
    (arXiv:2012.04221); `dynamic` is in the authors' code alone.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fairbed.device_agent import trainer
from fairbed.device_agent.engines.base import Engine, Examples
from fairbed.device_agent.host import Meter
from fairbed.device_agent.stored_vector import PERSONAL, StoredVector, VectorStore
from fairbed.device_agent.trainer import TrainingDiverged, draw_examples
from fairbed.wire.artifact import TaskSpec, initial_vector
from fairbed.wire.evaluation import Targets
from fairbed.wire.local_training import Step
from fairbed.wire.messages import Personal

_log = logging.getLogger(__name__)

LEAST_VALIDATION = 4
"""A device with fewer validation examples takes the fixed lambda."""

VALIDATION_SEED = 0
"""The same examples in every round; the source takes the last tenth, which may be one class."""


def validation_size(examples: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the validation examples of devices that choose lambda, 0 where they are too few.

    Args:
        examples: n_k, shape (N,).
    """
    size = -(-examples // 10)
    return np.where(size < LEAST_VALIDATION, 0, size)


def train_personal(
    engine: Engine,
    start: NDArray[np.float32],
    w_t: NDArray[np.float32],
    x: Examples,
    y: Targets,
    personal: Personal,
    seed: int,
    meter: Meter,
    validating: Callable[[], AbstractContextManager[Meter]],
    should_stop: Callable[[], bool],
) -> NDArray[np.float32]:
    """Return the personal model after a round, shape (n_values,).

    Args:
        engine: Computes gradients and validation losses.
        start: v_k before the round, shape (n_values,); not changed.
        w_t: The global model that was sent, shape (n_values,); not changed.
        x: Examples of the device, shape (n, *x_shape).
        y: Targets, shape (n,).
        personal: Hyperparameters, and where lambda comes from.
        seed: Seed of the mini-batch orders (`wire.messages.Train`).
        meter: Counts every mini-batch.
        validating: Entered for the validation of a section or step; its meter counts its steps.
        should_stop: Called before every mini-batch; True ends the training.

    Raises:
        ValueError: There are no examples, or a label is not one of the classes.
        TrainingDiverged: The loss or a parameter is not finite, with every candidate.
    """
    h, n = personal.hyperparameters, len(y)
    size = 0 if personal.choice == "fixed" else int(validation_size(np.array(n)))
    if not size or not personal.candidates:
        return trainer.train(engine, start, x, y, h, seed, meter, should_stop, w_t).vector
    drawn = draw_examples(n, size, VALIDATION_SEED)
    is_left = np.ones(n, dtype=np.bool_)
    is_left[drawn] = False
    x_drawn, y_drawn, x, y = x[drawn], y[drawn], x[is_left], y[is_left]

    def loss_of(vector: NDArray[np.float32], evaluation: Meter) -> float:
        try:
            return trainer.evaluate(engine, vector, x_drawn, y_drawn, evaluation)[0]
        except TrainingDiverged:
            return np.inf

    if personal.choice == "local":
        best, least = None, np.inf
        for candidate in personal.candidates:
            with_it = replace(h, proximal=candidate)
            try:
                trained = trainer.train(
                    engine, start, x, y, with_it, seed, meter, should_stop, w_t
                ).vector
            except TrainingDiverged:
                continue
            with validating() as evaluation:
                loss = loss_of(trained, evaluation)
            if loss < least:
                best, least = trained, loss
        if best is None:
            raise TrainingDiverged(NO_CANDIDATE)
        return best

    alone, pull = replace(h, proximal=0.0), _BestPull(personal.candidates, validating, loss_of)
    return trainer.train(engine, start, x, y, alone, seed, meter, should_stop, w_t, pull).vector


class _BestPull:
    """Pulls towards w_t with the candidate of lambda whose step has the least validation loss.

    Args:
        validating: Entered for the candidates of a step.
        loss_of: Returns the validation loss of a model, shape (n_values,), in nats.
    """

    def __init__(
        self,
        candidates: Sequence[float],
        validating: Callable[[], AbstractContextManager[Meter]],
        loss_of: Callable[[NDArray[np.float32], Meter], float],
    ) -> None:
        self._candidates, self._validating, self._loss_of = candidates, validating, loss_of

    def gradient(self, step: Step) -> None:
        """Add the pull of the best candidate to the gradient."""
        best, least = None, np.inf
        with self._validating() as meter:
            for candidate in self._candidates:
                pulled = step.gradient + np.float32(candidate) * (step.params - step.anchor)
                params = step.params - np.float32(step.learning_rate) * pulled
                loss = self._loss_of(np.concatenate([params, step.buffers]), meter)
                if loss < least:
                    best, least = pulled, loss
        if best is None:
            raise TrainingDiverged(NO_CANDIDATE)
        step.gradient = best


NO_CANDIDATE = (
    "training: the validation loss must be finite with one lambda at least, got none; "
    "lower learning_rate or set clip_norm"
)


class PersonalModel:
    """The personal model v_k of this device, which it keeps in a file.

    Args:
        state: Folder of the file.
    """

    def __init__(self, state: Path) -> None:
        self._store = VectorStore(state, PERSONAL)
        self._unscored: StoredVector | None = None
        """The model of the last round, until it is scored."""

    def load(
        self, task: bytes, personal: Personal, round_id: int, size: int, meter: Meter
    ) -> StoredVector | None:
        """Return the model before a round, shape (size,); None if the device has none.

        A repeated round does not train it again: model and mini-batches are the same.
        """
        old = self._store.load(task, personal.run, size)
        if old is not None:
            meter.read(old.vector.nbytes)
            if old.round == round_id:
                self._unscored = old
        return old

    def first(
        self, spec: TaskSpec, personal: Personal, round_id: int, w_t: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the model at which a new personal model begins, shape (n_values,)."""
        if personal.init_seed is None:
            _log.info("personal model: begins at the global model of round %d", round_id)
            return w_t
        _log.info("personal model: begins at the model before round 1")
        return initial_vector(spec, personal.init_seed)

    def keep(self, model: StoredVector) -> None:
        """Save the model after a round."""
        self._store.save(model)
        self._unscored = model

    def take_unscored(self) -> StoredVector | None:
        """Return the model of the last round, if it was not scored; it then counts as scored."""
        model, self._unscored = self._unscored, None
        return model
