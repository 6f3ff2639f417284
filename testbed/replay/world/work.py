"""What of a task decides how long its exchanges take: sizes on the wire, and work on the device."""

from dataclasses import dataclass

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Sample
from fairbed.coordinator.fleet.codec_agreement import CodecAgreement
from fairbed.coordinator.policy.config import CoordinatorConfig
from fairbed.coordinator.state.exchange import upload_slots
from fairbed.device_agent.trainer import EVALUATION_BATCH
from fairbed.testbed.emulation.work import TaskCosts, passes_s
from fairbed.testbed.host.calibration import ANY_DEVICE
from fairbed.wire.codecs import packed_bytes
from fairbed.wire.tensors import Layout


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of an exchange, and what they are coded in."""

    whole_bytes: int
    """A model that goes down as it is."""
    packed_bytes: int
    """One that goes down packed."""
    codec_down: str
    """Of a packed one; float32 packs none."""
    is_delta: bool
    """Only who holds the version before can use it."""
    up_bytes: int
    codec_up: str
    slots: int
    """Updates that may be on their way at the same time (G)."""

    @classmethod
    def of(cls, config: CoordinatorConfig, layout: Layout) -> "Sizes":
        """Return the sizes that the coordinator of a run would agree on."""
        agreement = CodecAgreement(config.exchange, layout, "replay")
        whole, up = agreement.sizes(ANY_DEVICE, None)
        down = whole if agreement.down is None else packed_bytes(agreement.down, layout)
        return cls(
            whole_bytes=whole,
            packed_bytes=down,
            codec_down=config.exchange.down,
            is_delta=config.exchange.down == "delta",
            up_bytes=up,
            codec_up=config.exchange.up,
            slots=upload_slots(agreement.memory_bytes),
        )

    def is_packed(self, holds: Ints, version: int) -> Bools:
        """Return who gets a version packed, shape (N,).

        Args:
            holds: The version that each device pulled last, -1 for none, shape (N,).
            version: That goes out, 0 for the first.
        """
        if self.codec_down == "float32":
            return np.zeros(len(holds), dtype=np.bool_)
        if not self.is_delta:
            return np.ones(len(holds), dtype=np.bool_)
        packed: Bools = (holds == version - 1) & (version > 0)
        return packed

    def down_bytes(self, is_packed: Bools) -> Ints:
        """Return the bytes of a model on its way down, shape (N,)."""
        size: Ints = np.where(is_packed, self.packed_bytes, self.whole_bytes).astype(np.int64)
        return size


@dataclass(frozen=True, slots=True)
class Work:
    """What a round costs each device, seconds of one core of the reference machine, (N,)."""

    examples: Ints
    """n_k."""
    shard_bytes: Ints
    """Of its data on the storage."""
    steps: Ints
    """Mini-batches of a round."""
    train_s: Floats
    evaluate_s: Floats
    """0 where the rule does not ask for a loss."""
    load_s: Floats
    """Opening session and data, beside reading the storage."""
    answer_s: Floats
    """Finding the loss that a selection asks for; 0 where it asks for none."""
    decode_s: float
    """Making a packed model whole, the same for every device."""
    encode_s: float
    """Making an update ready for the wire, likewise."""

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
    ) -> "Work":
        """Return the work of a round, the same in every round.

        Args:
            config: How devices train.
            costs: Of a step.
            examples: n_k, shape (N,).
            shard_bytes: Shape (N,).
            needs_loss: The rule asks for the loss of the model that is sent.
            sample: What a selection has evaluated before; None is nothing.
        """
        training, n = config.training, len(examples)
        steps: Ints = training.epochs * -(-examples // training.batch_size)
        if training.max_steps is not None:
            steps = np.minimum(steps, training.max_steps)
        evaluate_s = _look_s(costs, examples)
        asked = np.minimum(examples, training.batch_size) if sample == "batch" else examples
        return cls(
            examples=examples,
            shard_bytes=shard_bytes,
            steps=steps,
            train_s=passes_s(costs.train, examples, steps, training.batch_size),
            evaluate_s=evaluate_s if needs_loss else np.zeros(n),
            load_s=np.full(n, costs.load_s),
            answer_s=np.zeros(n) if sample is None else _look_s(costs, asked),
            decode_s=costs.decode_s,
            encode_s=costs.encode_s,
        )


def _look_s(costs: TaskCosts, examples: Ints) -> Floats:
    """Return what one pass forward over so many examples costs, shape (N,)."""
    looks: Ints = -(-examples // EVALUATION_BATCH)
    return passes_s(costs.evaluate, examples, looks, EVALUATION_BATCH)
