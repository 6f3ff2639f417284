"""The task of a client: its arrays before round 1, which its class returns in a process of its own.

The same server of clients then forks the clients of the emulated devices of this machine.
"""

import logging
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import UNSET

from fairbed.coordinator.algorithms.aggregation.raw import RawRule, raw_arrays
from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.policy.config import RAW_RULES, TrainingConfig
from fairbed.device_agent.clients.process import (
    ClientCode,
    ClientFailed,
    ClientProcess,
    ClientServer,
    ClientStopped,
)
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.file import Experiment, ExperimentError
from fairbed.wire.artifact import Artifact, ClientArray, ClientSource, SelfCheck, TaskSpec
from fairbed.wire.client_folder import ClientFolderError, folder_sha256
from fairbed.wire.messages import MAX_VECTOR_BYTES
from fairbed.wire.plugins import factory_of
from fairbed.wire.tensors import Layout, Tensor

_log = logging.getLogger(__name__)

INITIAL_S: Final = 300.0
"""Longest time for `initial` of a class, beside the imports."""

MODEL: Final = "client"
"""Model of a task whose network only the client knows."""

LONGEST_NAME: Final = 32
"""Characters of the name of a folder, by which an owner allows it."""


@dataclass(frozen=True, slots=True)
class ClientTask:
    """A task, and the model before round 1."""

    artifact: Artifact
    vector: Vector
    """Shape (n_values,)."""
    raw: bytes
    has_evaluate: bool
    """Devices can evaluate the model."""


def folder_of(training: TrainingConfig, origin: Path) -> Path:
    """Return the folder with the code of a client.

    Args:
        training: Of the experiment.
        origin: Folder of the experiment file.
    """
    return (origin / (training.client_folder or "")).absolute()


def name_of(folder: Path) -> str:
    """Return the name of a folder by which owners of devices allow it: `My_Code` is `my-code`."""
    name = re.sub(r"[^a-z0-9-]+", "-", folder.name.lower()).strip("-")
    return name[:LONGEST_NAME].rstrip("-") or "client"


def code_of(training: TrainingConfig, folder: Path, kind: str = "class") -> ClientCode:
    """Return the code of a client of a kind, and the interpreter that runs it."""
    assert training.client is not None
    return ClientCode(
        kind=kind,
        folder=str(folder),
        path=training.client,
        options=training.client_options,
        python=training.client_python or sys.executable,
    )


def load_client(
    experiment: Experiment,
    folder: Path,
    server: ClientServer,
    dataset: Dataset | None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> ClientTask:
    """Return the task of the client of an experiment; call off the event loop.

    Args:
        experiment: Has `training.client`.
        folder: Of its code.
        server: Loads its code.
        dataset: Examples that are divided over the devices; None without.
        is_stopped: The answer is no longer needed.

    Raises:
        ExperimentError: The class cannot be used; the last lines of its output are in the log.
    """
    training = experiment.training
    where = f"training.client {training.client}"
    try:
        sha256 = folder_sha256(folder)
        answer, parts = _initial(server, experiment, is_stopped)
    except ClientFolderError as exc:
        raise ExperimentError(f"training.client_folder {exc}") from exc
    except ClientFailed as exc:
        for line in exc.lines:
            _log.error("%s: %s", training.client, line)
        raise ExperimentError(f"{where}: {str(exc).removeprefix('client: ')}") from exc
    except ClientStopped as exc:
        raise ExperimentError(
            f"{where}: initial must return within {INITIAL_S:g} s, got none; make it faster"
        ) from exc
    arrays = _arrays(answer.get("arrays"), where)
    layout = client_layout(arrays, where)
    vector = np.frombuffer(bytes(parts.get("vector", b"")), "<f4").astype(np.float32)
    raw = bytes(parts.get("raw", b""))
    if vector.shape != (layout.n_values,) or bool(raw) != bool(raw_arrays(arrays)):
        raise ExperimentError(f"{where}: initial must return the arrays that it describes")
    source = ClientSource(
        name=name_of(folder),
        sha256=sha256,
        path=training.client or "",
        arrays=arrays,
        is_list=bool(answer.get("is_list")),
        options=tuple(training.client_options.items()),
        loss_metric=training.loss_metric,
    )
    artifact = Artifact(
        spec=client_spec(training.client or "", layout, dataset),
        train=b"",
        evaluate=b"",
        client=source,
    )
    return ClientTask(artifact, vector, raw, bool(answer.get("has_evaluate")))


def raw_rule(experiment: Experiment, arrays: Sequence[ClientArray], folder: Path) -> RawRule:
    """Return the merge of the raw arrays of a client.

    Args:
        experiment: Names it in `aggregation.raw`.
        arrays: All arrays of the client.
        folder: Of its code, which may have the function.

    Raises:
        ExperimentError: It does not fit the arrays.
        PluginError: A function of the user cannot be imported.
    """
    name, own = experiment.aggregation.raw, None
    if name not in RAW_RULES:
        if str(folder) not in sys.path:
            sys.path.append(str(folder))  # last, so that it shadows no installed package
        own = factory_of("raw merge", "", name, "package.module:merge")
    rule = RawRule(name, arrays, own)
    if problem := rule.problem():
        raise ExperimentError(problem)
    return rule


def _initial(
    server: ClientServer, experiment: Experiment, is_stopped: Callable[[], bool]
) -> tuple[dict[str, Any], dict[str, memoryview]]:
    request = {
        "do": "initial",
        "options": dict(experiment.training.client_options),
        "seed": experiment.seed_for("init"),
    }
    process = ClientProcess(server.address, threads=0, most=MAX_VECTOR_BYTES)
    try:
        process.await_fork(is_stopped, server)
        until = time.monotonic() + INITIAL_S
        answer, parts = process.request(
            request, {}, lambda: is_stopped() or time.monotonic() > until, 0.0
        )
    finally:
        process.close()
    return dict(answer), dict(parts)


def _arrays(found: Any, where: str) -> tuple[ClientArray, ...]:
    """Return the arrays that a class describes.

    Raises:
        ExperimentError: They cannot be sent.
    """
    try:
        described = [
            {"name": name, "dtype": dtype, "shape": shape} for name, dtype, shape in found or ()
        ]
        arrays = msgspec.convert(described, tuple[ClientArray, ...])
    except (TypeError, ValueError) as exc:
        raise ExperimentError(
            f"{where}: initial must return arrays that can be sent: {exc}"
        ) from exc
    if not arrays:
        raise ExperimentError(f"{where}: initial must return at least one array, got none")
    return arrays


def client_layout(arrays: Sequence[ClientArray], where: str) -> Layout:
    """Return the floats of a client as parameters, in its order.

    Raises:
        ExperimentError: They are too large, or one has no value.
    """
    tensors, end = list[Tensor](), 0
    for one in arrays:
        if not one.dtype.startswith("float"):
            continue
        if 0 in one.shape:
            raise ExperimentError(
                f"{where}: an array of floats must have a value, got {one.name!r:.60} of shape "
                f"{one.shape}; leave it out"
            )
        tensors.append(Tensor(name=one.name, shape=one.shape, offset=end))
        end += math.prod(one.shape)
    try:
        return Layout(tensors=tuple(tensors))
    except ValueError as exc:
        raise ExperimentError(f"{where}: initial: {exc}") from exc


def client_spec(path: str, layout: Layout, dataset: Dataset | None) -> TaskSpec:
    """Return a description of which the layout counts, and the examples if there are any."""
    check = SelfCheck(seed=0, batch=1, loss=0.0, gradient_l2=0.0)
    if dataset is None:
        return TaskSpec(
            name=path, model=MODEL, layout=layout, x_shape=(), classes=1, opset=1, selfcheck=check
        )
    return TaskSpec(
        name=path,
        model=MODEL,
        layout=layout,
        x_shape=dataset.x_shape,
        x_dtype="int64" if dataset.x.dtype.kind == "i" else "float32",
        x_classes=dataset.x_classes,
        classes=dataset.classes,
        opset=1,
        selfcheck=check,
        task=UNSET if dataset.kind == "classification" else dataset.kind,
        positions=dataset.y.shape[1:] or UNSET,
    )


class StopFlag:
    """Shows a thread that its answer is no longer needed: the block that waits for it is left."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __enter__(self) -> Callable[[], bool]:
        return self._event.is_set

    def __exit__(self, *exc: object) -> None:
        self._event.set()
