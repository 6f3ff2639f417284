"""One chunk of a cohort: dense models that train side by side, step by step."""

from collections.abc import Sequence

import numpy as np

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.device_agent.trainer import Descent
from fairbed.testbed.replay.cohort.base import Job, Trained
from fairbed.testbed.replay.cohort.batches import Batches
from fairbed.testbed.replay.cohort.net import DenseNet
from fairbed.testbed.replay.cohort.progress import Progress
from fairbed.testbed.replay.cohort.shards import Examples
from fairbed.wire.messages import Hyperparameters


def train_chunk(
    net: DenseNet,
    examples: Examples,
    params: Vector,
    at: Sequence[int],
    jobs: Sequence[Job],
    hyperparameters: Hyperparameters,
) -> Trained:
    """Return the answers to a few jobs.

    Args:
        net: The models.
        examples: The training data.
        params: Where they begin, shape (G, n_params), and then where they have come to.
        at: Which jobs of the cohort they are.
        jobs: Those with more steps first.
        hyperparameters: Of the round.
    """
    rows = [examples.rows(job.device) for job in jobs]
    batches = Batches([job.seed for job in jobs], rows, hyperparameters)
    descent = Descent(params, hyperparameters)
    gradient = np.empty_like(params)
    factor = hyperparameters.learning_rate if descent.is_plain else 1.0
    progress = Progress(batches.steps)
    with np.errstate(all="ignore"):
        for step in range(progress.last):
            active = progress.active(step)
            batch, part = batches.next(active), slice(0, active)
            x, y = examples.take(batch.index)
            loss = net.gradient(params[part], x, y, batch.weights, gradient[part], factor)
            descent.step(gradient[part], part, is_scaled=descent.is_plain)
            progress.note(step, batch, loss)
    return progress.answers(at, params)
