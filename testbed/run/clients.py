"""The client of a live run: its server on this machine, and its task."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import anyio.to_thread

from fairbed.coordinator.algorithms.aggregation.raw import RawRule
from fairbed.coordinator.policy.client import class_problem
from fairbed.coordinator.rounds.raw_updates import RuleMerger
from fairbed.coordinator.store.store import Checkpoint
from fairbed.device_agent.clients.process import ClientFailed, ClientServer
from fairbed.testbed.experiment.client_task import (
    ClientTask,
    StopFlag,
    code_of,
    load_client,
    raw_rule,
)
from fairbed.testbed.experiment.file import Experiment, ExperimentError
from fairbed.testbed.experiment.shards import FleetData
from fairbed.wire.artifact import ClientSource


def client_folder(experiment: Experiment) -> Path:
    """Return the folder with the code of the client of a planned experiment."""
    return Path(experiment.training.client_folder or "").absolute()


@contextmanager
def open_server(experiment: Experiment, kind: str = "class") -> Iterator[ClientServer]:
    """Start the server of the clients of a kind on this machine; it ends with the block.

    Raises:
        ExperimentError: Its interpreter cannot be started.
    """
    try:
        server = ClientServer(code_of(experiment.training, client_folder(experiment), kind))
    except ClientFailed as exc:
        raise ExperimentError(
            f"training.client_python: {str(exc).removeprefix('client: ')}"
        ) from exc
    try:
        yield server
    finally:
        server.close()


def check_resumed(task: ClientSource, n_values: int, checkpoint: Checkpoint) -> None:
    """Check that the arrays of a client are those of the run that is resumed.

    Raises:
        ExperimentError: They are others: its code, or an option, has changed meanwhile.
    """
    is_same = checkpoint.model.shape == (n_values,)
    if is_same and RawRule("first", task.arrays).fault(checkpoint.raw) is None:
        return
    raise ExperimentError(
        f"training.client {task.path}: initial must return the arrays that it returned when the "
        "run began, got others; undo the change of the code, or start a new run"
    )


async def load_task(
    experiment: Experiment, server: ClientServer, data: FleetData | None
) -> tuple[ClientTask, RuleMerger | None]:
    """Return the task of the client, and what merges its raw arrays; None without any.

    Raises:
        ExperimentError: The class cannot be used, or does not fit the other settings.
        PluginError: The function that merges raw arrays cannot be imported.
    """
    folder, config = client_folder(experiment), experiment.coordinator()
    with StopFlag() as is_stopped:
        task = await anyio.to_thread.run_sync(
            partial(
                load_client,
                experiment,
                folder,
                server,
                None if data is None else data.dataset,
                is_stopped,
            ),
            abandon_on_cancel=True,
        )
    problem = class_problem(
        config,
        has_evaluate=task.has_evaluate,
        queries_losses=config.selection.queries_losses,
        has_raw=bool(task.raw),
    )
    if problem:
        raise ExperimentError(problem)
    if not task.vector.size and (experiment.exchange.up, experiment.exchange.down) != (
        "float32",
        "float32",
    ):
        raise ExperimentError(
            f"exchange: must have no codecs with training.client {experiment.training.client}, "
            "which has no floats; remove [exchange]"
        )
    if not task.raw:
        return task, None
    assert task.artifact.client is not None
    rule = raw_rule(experiment, task.artifact.client.arrays, folder)
    return task, RuleMerger(rule)
