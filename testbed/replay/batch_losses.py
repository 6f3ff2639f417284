"""What devices find that are asked for the loss of one mini-batch: cpow-d asks so."""

from collections.abc import Sequence

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Vector
from fairbed.device_agent import trainer
from fairbed.device_agent.engines.base import Engine
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.device_agent.trainer import drawn
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.wire.artifact import Artifact


class BatchLosses:
    """Evaluates one mini-batch of each device by the devices' own engine: the bits are theirs.

    Args:
        artifact: The task.
        shards: The training data.
    """

    def __init__(self, artifact: Artifact, shards: Shards) -> None:
        self._artifact, self._shards = artifact, shards
        self._engine: Engine | None = None
        """Opened by the first question: few replays ask one."""

    def of(
        self, vector: Vector, devices: Sequence[int], seeds: Sequence[int], examples: int
    ) -> Floats:
        """Return the mean loss on a mini-batch of each device, nats, shape (K,).

        Args:
            vector: The model, shape (n_values,).
            devices: Whose shards.
            seeds: Each picks the examples of a device.
            examples: Size of a mini-batch.

        Returns:
            Infinite where it is not finite.
        """
        engine = self._engine = self._engine or OnnxEngine(self._artifact)
        losses = []
        for device, seed in zip(devices, seeds, strict=True):
            x, y = self._shards.whole(device)
            picked = drawn(len(y), examples, seed)
            try:
                loss, _ = trainer.evaluate(engine, vector, x[picked], y[picked], _Unpaced())
            except trainer.TrainingDiverged:
                loss = np.inf
            losses.append(max(0.0, loss))
        return np.array(losses, dtype=np.float64)


class _Unpaced:
    """The meter of a device that nothing holds back."""

    def step(self, n_examples: int) -> None:
        """Let it go on."""

    def read(self, n_bytes: int) -> None:
        """Let it go on."""
