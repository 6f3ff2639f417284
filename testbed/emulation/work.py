"""Calibrated costs of the steps of a task: devices are charged for work, not for measured time.

On a shared machine the processor time of one step varies by half with caches and other load; on
the emulated device it does not. So each step is charged its calibrated cost, the same for every
device of the fleet.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct, structs
from numpy.typing import NDArray

from fairbed.coordinator.state.memory import TaskMemory
from fairbed.wire.buckets import count_batches

Seconds = Annotated[float, Meta(ge=0.0, le=1e6)]
Work = Annotated[float, Meta(ge=0.0, le=1e18)]
PositiveInt = Annotated[int, Meta(ge=1, le=1 << 31)]


class StepWork(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arithmetic and memory traffic of a training step, forward and backward."""

    conv_flops: float = 0.0
    """Operations of dense convolutions per example; a multiplication with its addition counts as
    two."""
    grouped_flops: float = 0.0
    """Operations of convolutions of several groups per example."""
    depthwise_flops: float = 0.0
    """Operations of convolutions of one group per channel, per example."""
    matrix_flops: float = 0.0
    """Operations of matrix products with parameters per example."""
    attention_flops: float = 0.0
    """Operations of matrix products of two values that depend on the example."""
    recurrent_flops: float = 0.0
    """Operations of matrix products with the same parameters one after the other, per example."""
    moved_bytes: float = 0.0
    """Bytes that all operations read and write per example."""
    fixed_bytes: float = 0.0
    """Bytes that a step reads and writes whatever its examples."""

    @classmethod
    def between(cls, small: tuple[int, "StepWork"], large: tuple[int, "StepWork"]) -> "StepWork":
        """Return the work per example from two steps, each given by its examples and its total."""
        (n, a), (m, b) = small, large
        slope = max(0.0, (b.moved_bytes - a.moved_bytes) / (m - n))
        return cls(
            conv_flops=b.conv_flops / m,
            grouped_flops=b.grouped_flops / m,
            depthwise_flops=b.depthwise_flops / m,
            matrix_flops=b.matrix_flops / m,
            attention_flops=b.attention_flops / m,
            recurrent_flops=b.recurrent_flops / m,
            moved_bytes=slope,
            fixed_bytes=max(0.0, b.moved_bytes - slope * m),
        )

    def without(self, other: "StepWork") -> "StepWork":
        """Return the rest of a step that has `other` as a part."""
        fields = self.__struct_fields__
        rest = {name: max(0.0, getattr(self, name) - getattr(other, name)) for name in fields}
        return StepWork(**rest)

    @property
    def convolutions(self) -> float:
        """Operations of all convolutions per example."""
        return self.conv_flops + self.grouped_flops + self.depthwise_flops

    @property
    def products(self) -> float:
        """Operations of all matrix products per example."""
        return self.matrix_flops + self.attention_flops + self.recurrent_flops


class StepCost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Processor time of one kind of step, in seconds of one core of this machine."""

    fixed_s: Seconds
    per_example_s: Seconds

    def seconds(self, n_examples: int) -> float:
        """Return the cost of a step on `n_examples` examples."""
        return self.fixed_s + self.per_example_s * n_examples

    def scaled(self, factor: float) -> "StepCost":
        """Return the cost times a factor."""
        return StepCost(fixed_s=self.fixed_s * factor, per_example_s=self.per_example_s * factor)


def passes_s(
    cost: StepCost,
    n_examples: NDArray[np.int64],
    steps: NDArray[np.int64],
    batch_size: int,
    part_size: int | NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Return the cost of training steps, seconds, shape (K,).

    Each pass over the examples is split into batches; the last batch has the remainder.

    Args:
        cost: Cost of one step.
        n_examples: Examples of each device, shape (K,).
        steps: Steps of each device, shape (K,); the last pass may be incomplete.
        batch_size: Size of all batches but the last of a pass.
        part_size: Examples of a batch that are computed at once, of all devices or of each, shape
            (K,); each part has the fixed cost of a step. None: a whole batch.
    """
    size = batch_size if part_size is None else part_size
    whole, rest = np.divmod(n_examples, batch_size)
    passes, more = np.divmod(steps, np.maximum(whole + (rest > 0), 1))
    batch_s = cost.fixed_s * -(-batch_size // size) + cost.per_example_s * batch_size
    rest_s = cost.fixed_s * -(-rest // size) + cost.per_example_s * rest
    total_s: NDArray[np.float64] = passes * (whole * batch_s + rest_s) + more * batch_s
    return total_s


def bucket_passes_s(
    costs: Sequence[StepCost],
    counts: NDArray[np.int64],
    steps: NDArray[np.int64],
    batch_size: int,
    part_size: int | NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Return the cost of training steps on sequences of several padded lengths, seconds, (K,).

    A pass has the mini-batches that `wire.buckets.cut_batches` makes. Those of an incomplete pass
    depend on its order: they cost their share of a whole one.

    Args:
        costs: Cost of one step at each length, ascending.
        counts: Examples of each device at each length, shape (K, L).
        steps: Steps of each device, shape (K,).
        batch_size: Examples of a mini-batch.
        part_size: As for `passes_s`.
    """
    batches, examples = count_batches(counts, batch_size)
    pass_s = np.zeros(len(counts), np.float64)
    for at, cost in enumerate(costs):
        pass_s += passes_s(cost, examples[:, at], batches[:, at], batch_size, part_size)
    total_s: NDArray[np.float64] = pass_s * steps / np.maximum(batches.sum(axis=1), 1)
    return total_s


def share_of(counts: NDArray[np.int64], examples: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return so many examples of each device, shape (K,), in proportion to its lengths, (K, L).

    Which ones are drawn depends on the round.
    """
    ends = np.cumsum(counts, axis=1)
    cut = np.round(ends * (examples / np.maximum(ends[:, -1], 1))[:, np.newaxis]).astype(np.int64)
    return np.diff(cut, axis=1, prepend=np.zeros((len(counts), 1), np.int64))


class LengthCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Costs of the steps on sequences that are padded to a shorter length."""

    length: PositiveInt
    train: StepCost
    evaluate: StepCost

    def scaled(self, factor: float) -> "LengthCosts":
        """Return the costs times a factor."""
        train, evaluate = self.train.scaled(factor), self.evaluate.scaled(factor)
        return LengthCosts(length=self.length, train=train, evaluate=evaluate)


class WorkCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Costs of the steps of a task at one batch size, and of its codecs if measured."""

    train: StepCost
    evaluate: StepCost
    decode_s: Seconds = 0.0
    """Cost to decode one model; used by replay. Live devices are charged their processor time."""
    encode_s: Seconds = 0.0
    """Cost to encode one update; used by replay."""
    load_s: Seconds = 0.0
    """Cost to open a session in a cold start; used by replay."""
    spread_ratio: Seconds | None = None
    """Half the distance of the quartiles of the windows in which the training step was measured,
    relative to their median; None is unknown."""
    work: StepWork | None = None
    """Arithmetic and memory traffic of the training step; None is unknown."""
    frozen_work: StepWork | None = None
    """The part of `work` below all layers that are trained; None: no layer is frozen."""
    evaluation_work: StepWork | None = None
    """The same of an evaluation; None if it is not counted."""
    memory: TaskMemory | None = None
    """Peak memory of training; None if it is small, or a step is not counted."""
    measured_at: float | None = None
    """Time of the measurement, seconds since 1970; None is unknown."""
    shorter: tuple[LengthCosts, ...] = ()
    """Steps at each of `TaskSpec.buckets` but the last, which all other costs are of."""

    def scaled(self, factor: float) -> "WorkCosts":
        """Return the costs times a factor: the same measurement on a machine of another speed."""
        return structs.replace(
            self,
            train=self.train.scaled(factor),
            evaluate=self.evaluate.scaled(factor),
            decode_s=self.decode_s * factor,
            encode_s=self.encode_s * factor,
            load_s=self.load_s * factor,
            shorter=tuple(each.scaled(factor) for each in self.shorter),
        )

    @property
    def train_of_lengths(self) -> list[StepCost]:
        """Cost of a training step at each length, ascending."""
        return [*(each.train for each in self.shorter), self.train]

    def of(self, section: str, length: int | None = None) -> StepCost | None:
        """Return the cost of a step in a compute section; None if processor time is charged.

        Args:
            section: Name of the section.
            length: Padded length of its sequences; None: the longest, or there are none.
        """
        at: WorkCosts | LengthCosts = self
        at = next((each for each in self.shorter if each.length == length), at)
        return {"train": at.train, "evaluate": at.evaluate}.get(section)


class BucketCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Costs of the steps on sequences padded to a shorter length, in the units of `TaskCosts`."""

    length: PositiveInt
    """Tokens of an example."""
    step_s: Seconds
    """Fixed cost of one mini-batch of training."""
    example_s: Seconds
    """Cost of each example of the mini-batch."""
    evaluation_step_s: Seconds
    """Fixed cost of one mini-batch of evaluation."""
    evaluation_example_s: Seconds
    """Cost of each example of it."""


class TaskCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Costs of a task in seconds of one core of the reference machine."""

    step_s: Seconds
    """Fixed cost of one mini-batch of training."""
    example_s: Seconds
    """Cost of each example of the mini-batch."""
    evaluation_step_s: Seconds
    """Fixed cost of one mini-batch of evaluation."""
    evaluation_example_s: Seconds
    """Cost of each example of it."""
    load_s: Seconds = 0.0
    """Opening session and data, without reading the storage; a profile may override it."""
    decode_s: Seconds = 0.0
    """Decoding one model with the codec of the run."""
    encode_s: Seconds = 0.0
    """Encoding one update with the codec of the run."""
    conv_flops: Work = 0.0
    """Arithmetic of dense convolutions in a training step, operations per example."""
    grouped_flops: Work = 0.0
    """Arithmetic of convolutions of several groups in it, operations per example."""
    depthwise_flops: Work = 0.0
    """Arithmetic of convolutions of one group per channel in it, operations per example."""
    matrix_flops: Work = 0.0
    """Arithmetic of matrix products with parameters in it, operations per example."""
    attention_flops: Work = 0.0
    """Arithmetic of the products of attention in it, operations per example."""
    recurrent_flops: Work = 0.0
    """Arithmetic of products that follow each other with the same parameters, as in an LSTM,
    operations per example."""
    moved_bytes: Work = 0.0
    """Bytes that a training step reads and writes, per example."""
    fixed_bytes: Work = 0.0
    """Bytes of a training step whatever its examples. All are 0 if they are unknown."""
    memory_bytes: Work = 0.0
    """Peak memory of an agent in training, without activations and data."""
    memory_example_bytes: Work = 0.0
    """Memory of each example that is computed at once."""
    memory_least_bytes: Work = 0.0
    """Peak memory of the self-check. All three are 0 if they are small."""
    frozen_work: StepWork | None = None
    """The part of the work of a training step below all layers that are trained; not set: none."""
    evaluation_work: StepWork | None = None
    """Arithmetic and memory traffic of an evaluation; not set: it is unknown, and an evaluation has
    the speed of training."""
    shorter: tuple[BucketCosts, ...] = ()
    """Steps at each shorter length of `data.buckets`; all other costs are of the longest."""

    @classmethod
    def of(cls, costs: WorkCosts, core_speed: float) -> "TaskCosts":
        """Return costs that were measured on another machine, in reference seconds.

        Args:
            costs: In seconds of one core of that machine.
            core_speed: Speed of one of its cores, in cores of the reference machine.
        """
        return cls(
            step_s=costs.train.fixed_s * core_speed,
            example_s=costs.train.per_example_s * core_speed,
            evaluation_step_s=costs.evaluate.fixed_s * core_speed,
            evaluation_example_s=costs.evaluate.per_example_s * core_speed,
            decode_s=costs.decode_s * core_speed,
            encode_s=costs.encode_s * core_speed,
            load_s=costs.load_s * core_speed,
            shorter=tuple(
                BucketCosts(
                    length=each.length,
                    step_s=each.train.fixed_s * core_speed,
                    example_s=each.train.per_example_s * core_speed,
                    evaluation_step_s=each.evaluate.fixed_s * core_speed,
                    evaluation_example_s=each.evaluate.per_example_s * core_speed,
                )
                for each in costs.shorter
            ),
            frozen_work=costs.frozen_work,
            evaluation_work=costs.evaluation_work,
            **({} if costs.work is None else structs.asdict(costs.work)),
            **({} if costs.memory is None else _numbers_of(costs.memory)),
        )

    @property
    def memory(self) -> TaskMemory | None:
        """Peak memory of training; None if it is small, or a step is not counted."""
        if not self.memory_least_bytes:
            return None
        return TaskMemory(
            fixed_bytes=self.memory_bytes,
            example_bytes=self.memory_example_bytes,
            least_bytes=self.memory_least_bytes,
        )

    @property
    def work(self) -> StepWork | None:
        """Arithmetic and memory traffic of a training step; None if it is not counted."""
        found = StepWork(**{name: getattr(self, name) for name in StepWork.__struct_fields__})
        return None if found == StepWork(fixed_bytes=found.fixed_bytes) else found

    @property
    def train_of_lengths(self) -> list[StepCost]:
        """Cost of a training step at each length, ascending."""
        shorter = self.shorter
        return [
            *(StepCost(fixed_s=c.step_s, per_example_s=c.example_s) for c in shorter),
            self.train,
        ]

    @property
    def evaluate_of_lengths(self) -> list[StepCost]:
        """Cost of an evaluation step at each length, ascending."""
        return [
            *(
                StepCost(fixed_s=c.evaluation_step_s, per_example_s=c.evaluation_example_s)
                for c in self.shorter
            ),
            self.evaluate,
        ]

    @property
    def train(self) -> StepCost:
        """Cost of a training step."""
        return StepCost(fixed_s=self.step_s, per_example_s=self.example_s)

    @property
    def evaluate(self) -> StepCost:
        """Cost of an evaluation step."""
        return StepCost(fixed_s=self.evaluation_step_s, per_example_s=self.evaluation_example_s)


def _numbers_of(memory: TaskMemory) -> dict[str, float]:
    """Return the fields of `TaskCosts` for the memory of a task."""
    return {
        "memory_bytes": memory.fixed_bytes,
        "memory_example_bytes": memory.example_bytes,
        "memory_least_bytes": memory.least_bytes,
    }


def fit_cost(small: tuple[int, float], large: tuple[int, float]) -> StepCost:
    """Return the linear cost through two measurements, with both terms at least 0.

    Args:
        small: Examples and seconds of a small step.
        large: Examples and seconds of a larger step.

    Raises:
        ValueError: The second step is not larger than the first.
    """
    (n_small, small_s), (n_large, large_s) = small, large
    if not 0 < n_small < n_large:
        raise ValueError(
            f"steps: must have two sizes, the smaller one first, got {n_small} and {n_large}"
        )
    slope = (large_s - small_s) / (n_large - n_small)
    slope = min(max(slope, 0.0), large_s / n_large)
    return StepCost(fixed_s=max(0.0, large_s - slope * n_large), per_example_s=slope)
