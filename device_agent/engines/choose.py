"""Chooses the engine of a task: onnxruntime for graphs, torch for a module."""

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fairbed.device_agent.engines.base import BucketEngine, Engine
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.device_agent.engines.optimised import OptimisedGraphs
from fairbed.device_agent.errors import EngineError
from fairbed.wire.artifact import Artifact, Base
from fairbed.wire.models import modules_of, package_of

if TYPE_CHECKING:
    from fairbed.device_agent.cache import BlobCache
    from fairbed.wire.base_files import BaseFiles


def open_engine(
    artifact: Artifact,
    threads: int = 1,
    models: Collection[str] = (),
    optimised: OptimisedGraphs | None = None,
    cache: "BlobCache | None" = None,
) -> Engine:
    """Open the engine of a task that a coordinator sent.

    Args:
        artifact: The task.
        threads: Threads of one training step.
        models: Python modules whose code the owner of this device allows to run.
        optimised: As for `OnnxEngine`.
        cache: Has the frozen part of the model, if there is one.

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
    bases = None if artifact.base is None or cache is None else cache.bases
    return open_own_engine(artifact, threads, optimised, bases)


def open_own_engine(
    artifact: Artifact,
    threads: int = 1,
    optimised: OptimisedGraphs | None = None,
    bases: "BaseFiles | None" = None,
) -> Engine:
    """Open the engine of a task that this process, or its owner, has made.

    Args:
        artifact: The task.
        threads: Threads of one training step.
        optimised: As for `OnnxEngine`.
        bases: Has the frozen parameters of the task, if they are beside it; None: the cache of this
            user has.

    Raises:
        EngineError: The engine is missing, or cannot run the task; its base is not here.
    """
    base = {} if artifact.base is None else _frozen(artifact.base, bases)
    if artifact.module is None and artifact.shorter:
        gradient = np.zeros(artifact.spec.layout.n_params, np.float32)
        tasks = [*artifact.shorter, artifact]
        graphs = [OnnxEngine(task, threads, optimised, gradient, base) for task in tasks]
        return BucketEngine(artifact.spec, dict(zip(artifact.spec.buckets, graphs, strict=True)))
    if artifact.module is None:
        return OnnxEngine(artifact, threads, optimised, base=base)
    try:
        from fairbed.device_agent.engines.torch import TorchEngine
    except ImportError as exc:
        raise EngineError(
            f"model {artifact.module.path}: must be trained with torch, got: {exc}; run "
            "`pip install torch` on this device"
        ) from exc
    longest = TorchEngine(artifact, threads, base)
    if not artifact.shorter:
        return longest
    modules = [*map(longest.of_length, artifact.shorter), longest]
    return BucketEngine(artifact.spec, dict(zip(artifact.spec.buckets, modules, strict=True)))


def _frozen(base: Base, bases: "BaseFiles | None") -> Mapping[str, NDArray[np.float32]]:
    """Return the frozen parameters of a task by name.

    Raises:
        EngineError: They are not on this machine.
    """
    from fairbed.wire.base_files import BaseMissing, default_bases

    try:
        return (default_bases(os.environ) if bases is None else bases).tensors(base)
    except (BaseMissing, OSError) as exc:
        raise EngineError(str(exc)) from exc
