"""Local training and evaluation on one flat vector: numpy, with the gradients of an engine."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from fairbed.device_agent.engines.base import Engine, Examples, parts
from fairbed.device_agent.host import Meter
from fairbed.wire.artifact import TaskSpec
from fairbed.wire.buckets import buckets_of, cut_batches
from fairbed.wire.evaluation import (
    Evaluation,
    Quality,
    Targets,
    are_complete,
    positions_of,
    unlabelled,
)
from fairbed.wire.messages import Hyperparameters, Schedule
from fairbed.wire.preparation import PADDING
from fairbed.wire.scale import scale_of, unscaled
from fairbed.wire.tensors import batch_text

if TYPE_CHECKING:
    from fairbed.device_agent.local_training import GradientRule
    from fairbed.device_agent.optimiser import Adam
    from fairbed.wire.augment import Augmented
    from fairbed.wire.local_training import Trained


def draw_examples(n: int, examples: int | None, seed: int) -> NDArray[np.int64] | slice:
    """Return the indices of the examples that a loss query evaluates, distinct and ascending.

    Args:
        n: Examples of the device.
        examples: Number of examples to draw; None, or n and more, returns all of them.
        seed: Seed of the draw (`wire.messages.EvaluateRequest`).
    """
    if examples is None or examples >= n:
        return slice(None)
    rng = np.random.Generator(np.random.PCG64(seed))
    return np.sort(rng.choice(n, examples, replace=False))


GradientAt = Callable[[NDArray[np.float32]], tuple[NDArray[np.float64], NDArray[np.float32]]]
"""See `wire.local_training.Step.gradient_at`."""

EVALUATION_BATCH = 256
"""Examples per evaluation step, the unit of work for an emulated host."""


LEAST_FACTOR, LARGEST_FACTOR = 1e-6, 1e3
"""Learning rates that an engine may compute a gradient with: others would move losses and
gradients to the ends of float32."""


class TrainingDiverged(Exception):
    """The loss or a parameter is not finite."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Result of local training."""

    vector: NDArray[np.float32]
    """`[params | buffers]` after the last step, shape (n_values,)."""
    steps: int
    """Number of mini-batches."""
    loss_train: float | None
    """Mean loss of the last started epoch over all positions, nats; None without any step."""
    kept: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """Vectors of the local rule that stay on the device, each of shape (n_params,)."""
    returned: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """Vectors of the local rule that go with the update, each of shape (n_params,)."""
    state: NDArray[np.float32] | None = None
    """State of the optimiser, shape (n_state,); None if it is not kept."""


def train(
    engine: Engine,
    vector: NDArray[np.float32],
    x: Examples,
    y: Targets,
    hyperparameters: Hyperparameters,
    seed: int,
    meter: Meter,
    should_stop: Callable[[], bool],
    anchor: NDArray[np.float32] | None = None,
    rule: "GradientRule | None" = None,
    vectors: Mapping[str, NDArray[np.float32]] | None = None,
    state: NDArray[np.float32] | None = None,
) -> TrainResult:
    """Train by an optimiser, starting from the global model or, for Ditto, from a personal one.

        g = grad F(w), changed by the local rule   SGD without one
        g = g + mu (w - w_t)                       FedProx, mu = `proximal`; Ditto, mu = lambda
        g = g min(1, c / |g|)                      c = `clip_norm`
        g = g + weight_decay w
        v = momentum v + g                         v = 0 at the start, if no state is kept
        w = w - learning_rate v                    Nesterov: g + momentum v in the place of v

    Adam and AdamW replace the last three lines (`device_agent.optimiser`).

    Every epoch visits all examples in a new random order; one mini-batch may be smaller. Sequences
    of tokens with several padded lengths come in mini-batches of about equal ones (`wire.buckets`).
    Without rules and terms the weights of the examples carry the learning rate, so that a step
    reads the gradient once; it rounds otherwise than a step with a rule that changes nothing.
    All terms act on parameters; the engine updates the buffers. The anchor of a value that the
    device keeps for itself (`Layout.local`) is its value before the first step. With `micro_batch`
    the engine computes a mini-batch in parts, which bounds its memory; all else sees whole
    mini-batches. Augmentations change each of them by its seed (`wire.augment`). With
    `personal_epochs` the values of `Layout.local` are trained first, and the others afterwards, as
    two trainings with momentum and schedule of their own (`device_agent.alternating`).

    Args:
        engine: Computes the gradients.
        vector: The model before the first step, shape (n_values,); not changed.
        x: Examples, shape (n, *x_shape).
        y: Targets, shape (n, *y_shape).
        hyperparameters: Epochs, batch size, step size and the terms above.
        seed: Seed of the mini-batch orders (`wire.messages.Train`).
        meter: Counts every mini-batch, or every part of it, after its step.
        should_stop: Called before every mini-batch; True ends the training.
        anchor: The global model w_t, shape (n_values,); not set: it is `vector`.
        rule: Changes each gradient; not set: none does.
        vectors: Those sent to the rule and kept by it, each of shape (n_params,).
        state: State of the optimiser at which it goes on, shape (n_state,), not changed; not set:
            it begins at zero.

    Raises:
        ValueError: There are no examples, or a target does not fit the task.
        TrainingDiverged: The loss or a parameter is not finite.
        PluginError: The rule breaks its contract.

    Source:
        McMahan et al., AISTATS 2017, Algorithm 1, ClientUpdate (arXiv:1602.05629); proximal term:
        Li et al., MLSys 2020, Algorithm 2 (arXiv:1812.06127); personal models: Li et al., ICML
        2021, Algorithm 1 (arXiv:2012.04221).
    """
    check_targets(engine.spec, y)
    counts: NDArray[Any] | None = None if are_complete(y) else positions_of(y)
    of_example = math.prod(y.shape[1:])
    if engine.spec.weighs is True:
        counts = engine.counts(y)
    work, n_params = vector.copy(), engine.spec.layout.n_params
    w_t, local = vector if anchor is None else anchor, engine.spec.layout.local
    if local.size and anchor is not None:
        w_t = anchor.copy()
        w_t[local] = vector[local]
    vectors = {} if vectors is None else vectors
    turns = None
    limit, micro_batch = hyperparameters.max_steps, hyperparameters.micro_batch
    if hyperparameters.personal_epochs:
        from fairbed.device_agent.alternating import Alternation

        turns = Alternation(engine.spec.layout, vector, hyperparameters, len(y))
        limit = None if limit is None else limit + turns.personal_steps
    lengths = None
    if hyperparameters.schedule is not None:
        total = local_steps(len(y), hyperparameters)
        lengths = np.array([total if turns is None else turns.personal_steps])
    if hyperparameters.optimiser is not None:
        state = _own_state(hyperparameters, state, n_params)
    descent = Descent(
        work[:n_params], hyperparameters, w_t[:n_params], rule, vectors, state, lengths
    )
    rate = hyperparameters.learning_rate
    is_scaled = descent.is_plain and LEAST_FACTOR <= rate <= LARGEST_FACTOR
    factor = rate if is_scaled else 1.0
    steps, loss_sum, seen = 0, 0.0, 0.0
    augmented = None
    if hyperparameters.augment:
        from fairbed.wire.augment import Augmenter

        augmented = Augmenter(hyperparameters.augment, engine.spec)
    buckets = buckets_of(engine.spec, x, y)
    for is_first, batch in mini_batches(len(y), hyperparameters, seed, buckets):
        if (limit is not None and steps >= limit) or should_stop():
            break
        if is_first:
            loss_sum, seen = 0.0, 0.0
        if turns is not None and steps == turns.personal_steps:
            turns.begin_shared(work[:n_params])
            lengths = None if lengths is None else total - lengths
            descent = Descent(
                work[:n_params], hyperparameters, w_t[:n_params], rule, vectors, lengths=lengths
            )
        engine.reseed(seed, steps)
        changed = None  # not one step longer: examples may be as large as the model
        if augmented is None:
            loss, gradient = engine.gradient(work, x[batch], y[batch], micro_batch, factor)
        else:
            changed = _MiniBatch.of(augmented.batch(x[batch], y[batch], seed, steps))
            loss, gradient = changed.gradient(engine, work, micro_batch, factor)
        steps += 1
        if not math.isfinite(loss):
            raise divergence_error("the loss", loss, steps, x)
        if loss < 0.0 and engine.spec.has_own_loss and not engine.spec.has_signed_loss:
            raise TrainingDiverged(_negative("training", engine.spec, loss))
        if descent.has_rules:
            gradient_at = partial(
                _gradient_at,
                engine,
                work,
                changed or _MiniBatch(x[batch], y[batch]),
                micro_batch,
                gradient,
            )
            descent.apply_rules(gradient, np.array(loss), work[n_params:], gradient_at)
        if turns is None:
            descent.step(gradient, is_scaled=is_scaled)
        else:
            turns.mask(gradient)
            descent.step(gradient, is_scaled=is_scaled)
            turns.hold(work[:n_params])
        padded = None if buckets is None else int(buckets[batch].max())
        for part in parts(len(batch), micro_batch):
            meter.step(part.stop - part.start, padded)
            if changed is not None and changed.other is not None:  # a second gradient
                meter.step(part.stop - part.start, padded)
        positions = len(batch) * of_example if counts is None else counts[batch].sum().item()
        if changed is not None and counts is not None:
            weighs = engine.spec.weighs is True
            positions = (
                (engine.counts(changed.y) if weighs else positions_of(changed.y)).sum().item()
            )
        loss_sum += loss * positions
        seen += positions
    if not np.isfinite(work).all():
        raise divergence_error("every parameter", work[~np.isfinite(work)][0], steps, x)
    loss_train = loss_sum / seen if seen else None
    if state is not None:
        descent.count_steps(np.array([steps]))
    if rule is None:
        return TrainResult(work, steps, loss_train, state=state)
    from fairbed.device_agent.local_training import GuardedRule

    if not isinstance(rule, GuardedRule):
        return TrainResult(work, steps, loss_train, state=state)
    kept, returned = rule.end(descent.trained(np.array(steps)))
    return TrainResult(work, steps, loss_train, kept, returned, state)


def local_steps(n: int, hyperparameters: Hyperparameters) -> int:
    """Return the number of mini-batches of a round on `n` examples."""
    per_epoch, limit = -(-n // hyperparameters.batch_size), hyperparameters.max_steps
    steps = hyperparameters.epochs * per_epoch
    steps = steps if limit is None else min(steps, limit)
    return steps + hyperparameters.personal_epochs * per_epoch


def _own_state(
    h: Hyperparameters, state: NDArray[np.float32] | None, n_params: int
) -> NDArray[np.float32] | None:
    """Return the state that the optimiser changes, shape (n_state,); None if it keeps none."""
    if not h.keeps_state:
        return None
    from fairbed.device_agent.optimiser import state_size

    return np.zeros(state_size(h, n_params), np.float32) if state is None else state.copy()


@dataclass(frozen=True, slots=True)
class _MiniBatch:
    """Examples of a step, with the targets of those that were mixed in, if any were."""

    x: Examples
    y: Targets
    other: Targets | None = None
    share: float = 1.0
    """Weight of the loss with `y`; that with `other` has the rest."""

    @classmethod
    def of(cls, found: "Augmented") -> "_MiniBatch":
        """Return what augmentations made of it."""
        return cls(found.x, found.y, found.other, found.share)

    def gradient(
        self, engine: Engine, work: NDArray[np.float32], micro_batch: int | None, factor: float
    ) -> tuple[float, NDArray[np.float32]]:
        """Return loss and gradient, as `Engine.gradient`; the buffers are updated once."""
        share, other = self.share, self.other
        if other is None:
            return engine.gradient(work, self.x, self.y, micro_batch, factor)
        n_params = engine.spec.layout.n_params
        loss, gradient = engine.gradient(work, self.x, self.y, micro_batch, factor)
        first, buffers = np.float32(share) * gradient, work[n_params:].copy()
        rest = 1.0 - share
        loss_2, gradient = engine.gradient(work, self.x, other, micro_batch, factor)
        gradient *= np.float32(rest)
        gradient += first
        work[n_params:] = buffers
        return share * loss + rest * loss_2, gradient


def _gradient_at(
    engine: Engine,
    work: NDArray[np.float32],
    mini_batch: _MiniBatch,
    micro_batch: int | None,
    here: NDArray[np.float32],
    params: NDArray[np.float32],
) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Return loss and gradient of a mini-batch at other parameters; see `Step.gradient_at`.

    Keeps the values of `here`, the gradient of the step, in the array that the engine overwrites.
    """
    other, before = work.copy(), here.copy()
    other[: len(params)] = params
    loss, gradient = mini_batch.gradient(engine, other, micro_batch, 1.0)
    there = gradient.copy()
    np.copyto(here, before)
    return np.array(loss), there


def evaluate(
    engine: Engine,
    vector: NDArray[np.float32],
    x: Examples,
    y: Targets,
    meter: Meter,
) -> tuple[float, Quality]:
    """Return the mean loss F_k(w) over all positions of the examples, and what else is measured.

    Args:
        engine: Runs the model in evaluation mode.
        vector: The model w, shape (n_values,).
        x: Examples, shape (n, *x_shape).
        y: Targets, shape (n, *y_shape).
        meter: Counts every `EVALUATION_BATCH` examples, of one length each.

    Raises:
        ValueError: There are no examples, or a target does not fit the task.
        TrainingDiverged: The loss is not finite, or one of the user is below 0 and may not, or no
            example has a weight in it.
    """
    check_targets(engine.spec, y)
    parts = list[Evaluation]()
    buckets = buckets_of(engine.spec, x, y)
    if buckets is not None:
        order = np.argsort(buckets, kind="stable")
        x, y, buckets = x[order], y[order], buckets[order]
    for batch, length in _evaluation_batches(len(y), buckets):
        parts.append(engine.evaluate(vector, x[batch], y[batch]))
        meter.step(len(y[batch]), length)
    found = Evaluation.pooled(parts)
    if not np.isfinite(found.loss_sum):
        remedy = unscaled(scale_of(x)) or "lower learning_rate"
        raise TrainingDiverged(
            f"evaluation: the loss must be finite, got {found.loss_sum}; {remedy}"
        )
    loss, quality = found.loss_of(y), Quality.of(y, found)
    if engine.spec.has_own_loss:
        if math.isnan(loss):
            raise TrainingDiverged(
                "evaluation: an example must have a weight above 0 in the loss, got 0 for all "
                f"{len(y)}; give the device others"
            )
        if loss < 0.0 and not engine.spec.has_signed_loss:
            raise TrainingDiverged(_negative("evaluation", engine.spec, loss))
    if engine.spec.named_metrics:
        from fairbed.wire.named_metrics import sums_by_name

        quality = replace(quality, sums=sums_by_name(engine.spec.named_metrics, found))
    return loss, quality


def _negative(where: str, spec: TaskSpec, loss: float) -> str:
    assert spec.loss is not UNSET, "the loss of a kind is at least 0"
    beside = f" with {spec.loss.bounded_by}" if spec.loss.bounded_by else ""
    return f"{where}: model.loss must be at least 0{beside}, got {loss:.4g}; add a constant"


def reported_loss(spec: TaskSpec, loss: float) -> float:
    """Return a loss as a device reports it: rounding can leave one just below 0."""
    return loss if spec.has_signed_loss else max(0.0, loss)


def _evaluation_batches(
    n: int, buckets: NDArray[np.int64] | None
) -> Iterator[tuple[slice, int | None]]:
    """Yield the batches of an evaluation with their length; buckets, shape (n,), ascend."""
    ends = [n] if buckets is None else [*(np.flatnonzero(np.diff(buckets)) + 1).tolist(), n]
    first = 0
    for end in ends:
        length = None if buckets is None else int(buckets[first])
        for start in range(first, end, EVALUATION_BATCH):
            yield slice(start, min(start + EVALUATION_BATCH, end)), length
        first = end


class Descent:
    """Descent by an optimiser on parameters, shape (..., n_params), in place.

    Leading axes, if any, are independent models that train in parallel. The arithmetic has the
    dtype of the parameters, which is float32 on a device.

    Args:
        params: The models; changed by each step.
        hyperparameters: Step size, optimiser and terms of a step.
        anchor: Parameters of the global model w_t, shape (n_params,); not changed.
        rule: Changes each gradient before the terms; not set: none does.
        vectors: Those sent to the rule, shape (n_params,), and kept by it, shape (..., n_params).
        state: State of the optimiser, shape (..., n_state), changed by each step; not set: it
            begins at zero, and is dropped.
        lengths: Steps of each model in this round, shape (A,), for a schedule within the round; A
            is 1 without leading axes.
    """

    def __init__(
        self,
        params: NDArray[Any],
        hyperparameters: Hyperparameters,
        anchor: NDArray[Any],
        rule: "GradientRule | None" = None,
        vectors: Mapping[str, NDArray[np.float32]] | None = None,
        state: NDArray[Any] | None = None,
        lengths: NDArray[np.int64] | None = None,
    ) -> None:
        self._params = params
        self._h = hyperparameters
        self._anchor = anchor
        self._dtype = params.dtype.type
        self._state, self._lengths, self._steps = state, lengths, 0
        """The steps so far are those of the model with most."""
        self._velocity: NDArray[Any] | None = None
        self._adam: Adam | None = None
        self._count: NDArray[np.int64] | None = None
        """Steps of the state before the round, shape (..., 1)."""
        if hyperparameters.optimiser is None:
            self._velocity = np.zeros_like(params) if hyperparameters.momentum else None
        else:
            self._begin(hyperparameters, state)
        self._rule = rule
        self._vectors = {} if vectors is None else vectors
        self._rules = list["GradientRule"]([] if rule is None else [rule])
        self._pull: NDArray[Any] | None = None
        if self.is_plain and hyperparameters.proximal:
            # w - eta (g + mu (w - w_t)) = (1 - eta mu) w + eta mu w_t - eta g reads memory half as
            # often as `Proximal`. Up to eta mu = 1/2 the factors add up to exactly 1.
            with np.errstate(over="ignore", invalid="ignore"):
                share = hyperparameters.learning_rate * hyperparameters.proximal
                self._rest = self._dtype(1.0 - share)
                self._pull = (self._dtype(1.0) - self._rest) * anchor
        elif hyperparameters.proximal:
            from fairbed.device_agent.local_training import Proximal

            self._rules.append(Proximal(hyperparameters.proximal))

    def _begin(self, h: Hyperparameters, state: NDArray[Any] | None) -> None:
        """Begin an optimiser other than SGD with momentum from zero."""
        from fairbed.device_agent import optimiser

        params = self._params
        n, is_adam = params.shape[-1], h.is_adam
        moments = [
            np.zeros_like(params) if state is None else state[..., i * n : (i + 1) * n]
            for i in range(h.n_moments)
        ]
        self._count = np.zeros(1, np.int64) if state is None else optimiser.count_of(state)
        if is_adam:
            self._adam = optimiser.Adam(h, *moments)
        elif moments:
            self._velocity = moments[0]

    @property
    def has_rules(self) -> bool:
        """`apply_rules` comes before each step."""
        return bool(self._rules)

    @property
    def is_plain(self) -> bool:
        """A step scales the gradient by the learning rate only; it may have a proximal term."""
        h = self._h
        has_terms = h.momentum or h.weight_decay or h.clip_norm is not None
        is_other = self._adam is not None or h.schedule is not None
        return not (self.has_rules or has_terms or is_other)

    def apply_rules(
        self,
        gradient: NDArray[np.float32],
        loss: NDArray[np.float64],
        buffers: NDArray[np.float32],
        gradient_at: GradientAt,
        part: slice | EllipsisType = ...,
    ) -> None:
        """Change the gradient of a mini-batch in place.

        Args:
            gradient: Gradient of the models in `part`, shape (..., n_params).
            loss: Mean loss of their mini-batches, nats, shape (...).
            buffers: The other values of these models, shape (..., n_buffers).
            gradient_at: As `Step.gradient_at`.
            part: Models that take the step, on the first axis.

        Raises:
            PluginError: The rule breaks its contract.
        """
        from fairbed.wire.local_training import Step

        step = Step(
            params=self._params[part],
            gradient=gradient,
            loss=loss,
            anchor=self._anchor,
            buffers=buffers,
            vectors=self._vectors_of(part),
            learning_rate=self._h.learning_rate,
            gradient_at=gradient_at,
        )
        # A diverging run overflows here; `train` detects it by its loss and raises.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for rule in self._rules:
                rule.gradient(step)
        if step.gradient is not gradient:
            np.copyto(gradient, step.gradient)

    def step(
        self,
        gradient: NDArray[np.float32],
        part: slice | EllipsisType = ...,
        *,
        is_scaled: bool = False,
    ) -> None:
        """Take one step.

        Args:
            gradient: Gradient of the models in `part`; overwritten.
            part: Models that take the step, on the first axis.
            is_scaled: The gradient includes the learning rate; only if `is_plain`.
        """
        h, direction, params = self._h, gradient, self._params[part]
        rate = h.learning_rate if h.schedule is None else self._rate(h.schedule, part)
        self._steps += 1
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if h.clip_norm is not None:
                norm = np.sqrt(np.vecdot(direction, direction)).astype(np.float64)
                scale = np.fmin(h.clip_norm / norm, 1.0).astype(self._dtype)
                direction *= scale[..., np.newaxis]
            if self._adam is not None:
                assert self._count is not None, "Adam counts its steps"
                before = self._count if self._state is None else self._count[part]
                self._adam.step(direction, params, rate, before + self._steps, part)
                return
            if h.weight_decay:
                direction += self._dtype(h.weight_decay) * params
            if self._velocity is not None:
                velocity = self._velocity[part]
                velocity *= self._dtype(h.momentum)
                velocity += direction
                if h.optimiser is not None and h.optimiser.nesterov:
                    direction += self._dtype(h.momentum) * velocity
                else:
                    np.copyto(direction, velocity)
            if not is_scaled:
                direction *= np.asarray(rate, self._dtype)
            if self._pull is not None:
                direction -= self._pull
                params *= self._rest
            params -= direction

    def _rate(self, schedule: Schedule, part: slice | EllipsisType) -> NDArray[np.float64]:
        """Return the learning rate of the next step, shape (..., 1)."""
        from fairbed.wire.schedule import rate_factors

        assert self._lengths is not None, "a schedule needs the steps of each model"
        factors = rate_factors(schedule, self._steps, self._lengths[part])
        rates: NDArray[np.float64] = self._h.learning_rate * factors
        return rates if self._params.ndim == 1 else rates[:, np.newaxis]

    def count_steps(self, steps: NDArray[np.int64]) -> None:
        """Add the steps of each model, shape (A,), to those of its state, after the last one."""
        from fairbed.device_agent.optimiser import write_count

        assert self._state is not None, "a state counts steps"
        assert self._count is not None, "a state counts steps"
        write_count(self._state, self._count + steps.reshape(self._count.shape))

    def trained(self, steps: NDArray[np.int64]) -> "Trained":
        """Return the description of the round after its last step, for a rule.

        Args:
            steps: Mini-batches of each model, shape (...).
        """
        from fairbed.wire.local_training import Trained

        return Trained(self._params, self._anchor, steps, self._vectors, self._h.learning_rate)

    def _vectors_of(self, part: slice | EllipsisType) -> Mapping[str, NDArray[np.float32]]:
        if part is ... or self._rule is None:
            return self._vectors
        from fairbed.device_agent.local_training import GuardedRule

        if not isinstance(self._rule, GuardedRule):
            return self._vectors
        kept = {name: self._vectors[name][part] for name in self._rule.kept}
        return {**self._vectors, **kept}


def mini_batches(
    n: int,
    hyperparameters: Hyperparameters,
    seed: int,
    buckets: NDArray[np.int64] | None = None,
) -> Iterator[tuple[bool, NDArray[np.int64]]]:
    """Yield whether a mini-batch is the first of its epoch, and its indices, shape (B,).

    Every epoch visits all `n` examples in a new random order; one mini-batch may be smaller.

    Args:
        n: Number of examples.
        hyperparameters: Epochs and batch size.
        seed: Seed of the orders.
        buckets: Bucket of each example, shape (n,), as for `wire.buckets.cut_batches`.
    """
    orders = EpochOrders()
    for epoch in range(hyperparameters.personal_epochs + hyperparameters.epochs):
        order = orders.draw(seed, epoch, n)
        for at, batch in enumerate(cut_batches(order, buckets, hyperparameters.batch_size)):
            yield at == 0, batch


class EpochOrders:
    """Draws the order of the examples of an epoch, keyed by seed and epoch.

    The numbers of a Philox generator depend only on its key and counter. One generator therefore
    serves all keys: setting its state costs a tenth of creating a generator.
    """

    def __init__(self) -> None:
        philox = np.random.Philox(key=0)
        self._generator, self._philox = np.random.Generator(philox), philox
        self._state = philox.state

    def draw(self, seed: int, epoch: int, n: int) -> NDArray[np.int64]:
        """Return a random order of `n` examples, shape (n,).

        Equals `Generator(Philox(key=seed, counter=[0, 0, 0, epoch])).permutation(n)`.

        Args:
            seed: Seed of the device and round.
            epoch: Number of the epoch, from 0.
            n: Number of examples.
        """
        self._state["state"]["key"][0] = seed
        self._state["state"]["counter"][3] = epoch
        self._philox.state = self._state
        return self._generator.permutation(n)


def check_targets(spec: TaskSpec, y: Targets, name: str = "data") -> None:
    """Check that targets, shape (n, *y_shape), fit a task; `name` begins the message of an error.

    Raises:
        ValueError: There are none, or one is not finite, or not one of the classes, or an example
            has no label at any position.
    """
    classes = 2 if spec.kind == "multi-label" else spec.classes
    if len(y) == 0:
        raise ValueError(f"{name}: must hold at least one example, got 0; give the device more")
    if y.dtype != spec.y_dtype:
        raise ValueError(
            f"{name}: y must be {spec.y_dtype} for {spec.name}, a {spec.kind}, got {y.dtype}"
        )
    if y.shape[1:] != spec.y_shape:
        raise ValueError(
            f"{name}: y must be {batch_text(spec.y_shape)} for {spec.name}, got "
            f"{batch_text(y.shape[1:])}; choose a model for these targets"
        )
    if spec.kind == "regression":
        if not np.isfinite(y).all():
            raise ValueError(f"{name}: every target must be finite, got NaN or infinity")
    elif y.min() < (-1 if spec.y_shape else 0) or y.max() >= classes:
        unset = " (-1: none)" if spec.y_shape else ""
        raise ValueError(
            f"{name}: every label must be in 0..{classes - 1}{unset}, got {y.min()}..{y.max()}; "
            f"choose a model for these classes"
        )
    elif (row := unlabelled(y)) is not None:
        raise ValueError(
            f"{name}: every example must have a label at one position, got -1 at all of example "
            f"{row}; leave it out"
        )


def check_tokens(spec: TaskSpec, x: NDArray[Any], name: str = "data") -> None:
    """Check that integer x, shape (n, ...), are in the vocabulary of a task.

    Raises:
        ValueError: A token is not.
    """
    if spec.x_dtype == "int64" and x.size and not 0 <= x.min() <= x.max() < spec.x_classes:
        raise ValueError(
            f"{name}: every token must be in 0..{spec.x_classes - 1}, the vocabulary of "
            f"{spec.name}, got {x.min()}..{x.max()}; number the tokens as the data of the run do"
        )
    if spec.buckets and (is_empty := (x == PADDING).reshape(len(x), -1).all(axis=1)).any():
        raise ValueError(
            f"{name}: every sequence must have a token, got padding alone (token {PADDING}) in "
            f"example {int(is_empty.argmax())}; leave it out"
        )


def divergence_error(
    name: str, value: float, steps: int, x: NDArray[Any] | None = None
) -> TrainingDiverged:
    """Return the error of a training whose loss or parameters are not finite.

    Args:
        name: The number that is not finite.
        value: Its value.
        steps: Mini-batches so far.
        x: Examples, shape (n, ...); with large values they are the likely cause.
    """
    remedy = "" if x is None else unscaled(scale_of(x))
    return TrainingDiverged(
        f"training: {name} must be finite, got {value} at step {steps}; "
        f"{remedy or 'lower learning_rate or set clip_norm'}"
    )
