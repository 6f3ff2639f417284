"""Sizes on the wire and work on the device, which determine the exchange times of a task."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Sample
from fairbed.coordinator.fleet.codec_agreement import CodecAgreement
from fairbed.coordinator.policy.config import CoordinatorConfig
from fairbed.coordinator.state.exchange import upload_slots
from fairbed.device_agent.ditto import validation_size
from fairbed.device_agent.trainer import EVALUATION_BATCH
from fairbed.testbed.emulation.work import TaskCosts, bucket_passes_s, passes_s, share_of
from fairbed.testbed.host.calibration import ANY_DEVICE
from fairbed.wire.codecs import packed_bytes
from fairbed.wire.messages import Hyperparameters
from fairbed.wire.tensors import Layout


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes and codecs of an exchange."""

    whole_bytes: int
    """A model that is sent unpacked."""
    packed_bytes: int
    """A model that is sent packed."""
    codec_down: str
    """Codec of a packed model; float32 packs none."""
    is_delta: bool
    """Only a device that holds the previous version can decode a packed model."""
    up_bytes: int
    codec_up: str
    slots: int
    """Updates that may be uploaded at the same time (G)."""

    @classmethod
    def of(
        cls,
        config: CoordinatorConfig,
        layout: Layout,
        vector_counts: tuple[int, int] = (0, 0),
        raw_bytes: int = 0,
    ) -> "Sizes":
        """Return the sizes that the coordinator of a run would agree on.

        Args:
            config: The codecs.
            layout: Layout of the model.
            vector_counts: Vectors of the local rule that follow a model, and that follow an update.
            raw_bytes: Bytes of a client that follow a model and an update.
        """
        agreement = CodecAgreement(config.exchange, layout, "replay", vector_counts)
        whole, up = agreement.sizes(ANY_DEVICE, None)
        codec, sent = agreement.down, agreement.down_layout
        down = whole if codec is None else packed_bytes(codec, sent)
        return cls(
            whole_bytes=whole + raw_bytes,
            packed_bytes=down + raw_bytes,
            codec_down=config.exchange.down,
            is_delta=config.exchange.down == "delta",
            up_bytes=up + raw_bytes,
            codec_up=config.exchange.up,
            slots=upload_slots(agreement.memory_bytes),
        )

    def is_packed(self, holds: Ints, version: int) -> Bools:
        """Return which devices receive a version packed, shape (N,).

        Args:
            holds: The version that each device pulled last, -1 for none, shape (N,).
            version: The version that is sent, 0 for the first.
        """
        if self.codec_down == "float32":
            return np.zeros(len(holds), dtype=np.bool_)
        if not self.is_delta:
            return np.ones(len(holds), dtype=np.bool_)
        packed: Bools = (holds == version - 1) & (version > 0)
        return packed

    def down_bytes(self, is_packed: Bools) -> Ints:
        """Return the bytes of the model that each device downloads, shape (N,)."""
        size: Ints = np.where(is_packed, self.packed_bytes, self.whole_bytes).astype(np.int64)
        return size


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a round, seconds of one core of the reference machine, columns of shape (N,).

    That of an evaluation is shorter by the factor by which the device is faster at it.
    """

    examples: Ints
    """n_k."""
    shard_bytes: Ints
    """Size of the shard on the storage."""
    steps: Ints
    """Mini-batches of a round."""
    train_s: Floats
    personal_s: Floats
    """0 if devices train no personal model."""
    evaluate_s: Floats
    """0 if the aggregation rule needs no loss."""
    load_s: Floats
    """Opening session and data, without reading the storage."""
    query_s: Floats
    """Evaluating the loss that a selection queries; 0 if it queries none."""
    decode_s: float
    """Unpacking a model, the same for every device."""
    encode_s: float
    """Encoding an update, the same for every device."""
    draws: Callable[[int, Ints], tuple[Ints, Floats]] | None = None
    """Returns steps and `train_s` of devices, each of shape (K,), given the round of their dispatch
    and their rows; None: they are the same in every round."""

    @classmethod
    def of(
        cls,
        config: CoordinatorConfig,
        costs: TaskCosts,
        examples: Ints,
        shard_bytes: Ints,
        *,
        needs_loss: bool,
        sample: Sample | None = None,
        part_size: Ints | None = None,
        lengths: Ints | None = None,
        evaluation_speed: Floats | float = 1.0,
    ) -> "Work":
        """Return the work of a round: `steps` and `train_s` are the most that devices draw.

        Args:
            config: Settings of training.
            costs: Costs of a step.
            examples: n_k, shape (N,).
            shard_bytes: Shape (N,).
            needs_loss: Whether the aggregation rule needs the loss of the model that is sent.
            sample: Examples that a loss query evaluates before a selection; None for no query.
            part_size: Examples that each device computes at once, shape (N,); None: as configured.
            lengths: Examples of each device at each padded length, ascending, shape (N, L); None:
                all have the same.
            evaluation_speed: Speed of each device in an evaluation, relative to that in training,
                shape (N,), or of all.
        """
        training, n = config.training, len(examples)
        size = training.part_size if part_size is None else part_size
        steps = steps_of(training.hyperparameters(1), examples)
        counts = examples[:, np.newaxis] if lengths is None else lengths
        evaluate_s = _forward_pass_s(costs, counts) / evaluation_speed
        queried = np.minimum(examples, training.batch_size) if sample == "batch" else examples
        draws = None
        if training.draws_work:
            from fairbed.coordinator.policy.local_work import LocalWork

            work = LocalWork(training, config.seed_training)

            def draws(round_id: int, rows: Ints) -> tuple[Ints, Floats]:
                drawn = work.steps(round_id, rows, examples[rows])
                sizes = size if isinstance(size, int) else size[rows]
                train_s = _train_s(costs, counts[rows], drawn, training.batch_size, sizes)
                return drawn, training.gradients_per_step * train_s

        return cls(
            examples=examples,
            shard_bytes=shard_bytes,
            steps=steps,
            train_s=training.gradients_per_step
            * _train_s(costs, counts, steps, training.batch_size, size),
            personal_s=_personal_s(config, costs, counts, size, evaluation_speed),
            evaluate_s=evaluate_s if needs_loss else np.zeros(n),
            load_s=np.full(n, costs.load_s),
            query_s=np.zeros(n)
            if sample is None
            else _forward_pass_s(costs, share_of(counts, queried)) / evaluation_speed,
            decode_s=costs.decode_s,
            encode_s=costs.encode_s,
            draws=draws,
        )


def steps_of(h: Hyperparameters, examples: Ints) -> Ints:
    """Return the mini-batches of local training, shape (N,)."""
    per_epoch: Ints = -(-examples // h.batch_size)
    steps = h.epochs * per_epoch
    limited = steps if h.max_steps is None else np.minimum(steps, h.max_steps)
    return limited + h.personal_epochs * per_epoch


def _train_s(
    costs: TaskCosts, counts: Ints, steps: Ints, batch_size: int, part_size: int | Ints
) -> Floats:
    """Return the cost of training steps, shape (N,), given the examples at each length, (N, L)."""
    if counts.shape[1] == 1:
        return passes_s(costs.train, counts[:, 0], steps, batch_size, part_size)
    return bucket_passes_s(costs.train_of_lengths, counts, steps, batch_size, part_size)


def _personal_s(
    config: CoordinatorConfig,
    costs: TaskCosts,
    counts: Ints,
    part_size: int | Ints,
    evaluation_speed: Floats | float,
) -> Floats:
    """Return the cost of training the personal model (`device_agent.ditto`), shape (N,)."""
    settings, training = config.personalisation, config.training
    if not settings.is_on:
        return np.zeros(len(counts))
    h, candidates = settings.hyperparameters(training, 1), len(settings.lambda_candidates)
    is_fixed, examples = settings.choice == "fixed", counts.sum(axis=1)
    drawn = np.zeros_like(examples) if is_fixed else validation_size(examples)
    left = examples - drawn
    steps = steps_of(h, left)
    section_s = _train_s(costs, share_of(counts, left), steps, h.batch_size, part_size)
    section_s = training.gradients_per_step * section_s
    if is_fixed:
        return section_s
    sections, validations = (candidates, 1) if settings.choice == "local" else (1, steps)
    validation_s = candidates * validations * _forward_pass_s(costs, share_of(counts, drawn))
    return np.where(drawn > 0, sections, 1) * section_s + validation_s / evaluation_speed


def _forward_pass_s(costs: TaskCosts, counts: Ints) -> Floats:
    """Return the cost of one forward pass over the examples at each length, shape (N, L): (N,)."""
    total_s = np.zeros(len(counts))
    for at, cost in enumerate(costs.evaluate_of_lengths[-counts.shape[1] :]):
        steps: Ints = -(-counts[:, at] // EVALUATION_BATCH)
        total_s += passes_s(cost, counts[:, at], steps, EVALUATION_BATCH)
    return total_s
