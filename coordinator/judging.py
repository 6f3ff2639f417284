"""The model of now on everybody's held-out data, off the record."""

import anyio.to_thread

from coordinator.algorithms.arrays import Vector
from coordinator.grades import metric_rows
from coordinator.journal import Journal
from coordinator.ports import Evaluator
from coordinator.store.records import MetricRow


async def judge(
    evaluator: Evaluator, journal: Journal, round_id: int, vector: Vector
) -> MetricRow | None:
    """Evaluate `vector`, shape (n_values,), and write down what came of it.

    None if it could not be evaluated: whatever went wrong, the training goes on.
    """
    started = journal.now()
    try:
        scores = await anyio.to_thread.run_sync(evaluator.evaluate, vector, abandon_on_cancel=True)
    except Exception as exc:  # off the record
        said = f"{type(exc).__name__}: {exc}"
        journal.event("not evaluated", said, level="warning", round_id=round_id)
        return None
    took_s = journal.now() - started
    devices, metric = metric_rows(round_id, scores, journal.at_s(), took_s)
    for row in devices:
        journal.add(row)
    if metric is not None:
        journal.add(metric)
    return metric
