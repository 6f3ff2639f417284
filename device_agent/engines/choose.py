"""Chooses the engine of a task: onnxruntime for graphs, torch for a module."""

from collections.abc import Collection

import numpy as np

from fairbed.device_agent.engines.base import BucketEngine, Engine
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.device_agent.engines.optimised import OptimisedGraphs
from fairbed.device_agent.errors import EngineError
from fairbed.wire.artifact import Artifact
from fairbed.wire.models import modules_of, package_of


def open_engine(
    artifact: Artifact,
    threads: int = 1,
    models: Collection[str] = (),
    optimised: OptimisedGraphs | None = None,
) -> Engine:
    """Open the engine of a task that a coordinator sent.

    Args:
        artifact: The task.
        threads: Threads of one training step.
        models: Python modules whose code the owner of this device allows to run.
        optimised: As for `OnnxEngine`.

    Raises:
        EngineError: The engine is missing or cannot run the task, or the owner does not allow it.
    """
    for module in modules_of(artifact):
        if module not in models:
            source = artifact.module
            path = module if source is None or package_of(source.path) != module else source.path
            raise EngineError(
                f"model {path}: must be allowed by this device, got a module that is not; start "
                f"the agent with --allow-models {module}"
            )
    return open_own_engine(artifact, threads, optimised)


def open_own_engine(
    artifact: Artifact, threads: int = 1, optimised: OptimisedGraphs | None = None
) -> Engine:
    """Open the engine of a task that this process, or its owner, has made.

    Raises:
        EngineError: The engine is missing, or cannot run the task.
    """
    if artifact.module is None and artifact.shorter:
        gradient = np.zeros(artifact.spec.layout.n_params, np.float32)
        tasks = [*artifact.shorter, artifact]
        graphs = [OnnxEngine(task, threads, optimised, gradient) for task in tasks]
        return BucketEngine(artifact.spec, dict(zip(artifact.spec.buckets, graphs, strict=True)))
    if artifact.module is None:
        return OnnxEngine(artifact, threads, optimised)
    try:
        from fairbed.device_agent.engines.torch import TorchEngine
    except ImportError as exc:
        raise EngineError(
            f"model {artifact.module.path}: must be trained with torch, got: {exc}; run "
            "`pip install torch` on this device"
        ) from exc
    longest = TorchEngine(artifact, threads)
    if not artifact.shorter:
        return longest
    modules = [*map(longest.of_length, artifact.shorter), longest]
    return BucketEngine(artifact.spec, dict(zip(artifact.spec.buckets, modules, strict=True)))
