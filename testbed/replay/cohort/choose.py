"""Chooses the trainer of a cohort for a model and this machine."""

import ctypes
import importlib.util

from fairbed.coordinator.task.catalogue import make_module
from fairbed.coordinator.task.recipes import FLAT_MODELS
from fairbed.testbed.experiment.file import CohortEngine, ExperimentError
from fairbed.testbed.replay.cohort.base import CohortHelpers, Trainer
from fairbed.testbed.replay.cohort.devices import DeviceTrainer
from fairbed.testbed.replay.cohort.shards import DividedData, Shards
from fairbed.testbed.run.evaluation import check_fit
from fairbed.wire.artifact import Artifact
from fairbed.wire.models import freeze_statistics

CUDA_DRIVER = "libcuda.so.1"
"""Loaded to check for a GPU before torch is imported, which takes about a second."""


def make_trainer(
    artifact: Artifact,
    data: DividedData,
    engine: CohortEngine = "auto",
    threads: int = 1,
    helpers: CohortHelpers | None = None,
) -> Trainer:
    """Return a trainer of cohorts for a model on the data of a fleet.

    `auto` takes batched matrix products for softmax and mlp, torch for other models if there is a
    GPU, and else the devices' own engine (docs/decisions/0011-a-cohort-trains-in-cache.md).
    With helpers, processes on other hosts train beside this one in place of `threads`.

    Raises:
        ExperimentError: `engine` cannot train this model, or torch is not installed.
        DatasetError: Model and data do not fit.
        EngineError: The engine cannot run the task.
    """
    spec = artifact.spec
    check_fit(data.dataset, spec)
    shards = Shards(data, spec.x_shape)
    if engine == "auto":
        engine = _best(artifact, has_helpers=helpers is not None)
    if engine == "batched":
        if spec.model not in FLAT_MODELS or artifact.adaptation is not None:
            raise ExperimentError(
                f"replay.engine: batched must have one of the models {', '.join(FLAT_MODELS)}, all "
                f"of it trained, got {spec.model}"
                f"{' with model.trainable or model.lora' if artifact.adaptation else ''}; choose "
                "auto, device or torch"
            )
        other = "model.loss" if spec.has_own_loss else ""
        if not other and spec.layout.local.size:
            other = "model.personal"
        if other:
            raise ExperimentError(
                f"replay.engine: batched must have the loss of the task, and merge all values, got "
                f"{other}; choose auto or device"
            )
        # threadpoolctl inspects every library of the process, which only training needs.
        from fairbed.testbed.replay.cohort.dense import DenseTrainer

        pool = None if helpers is None else helpers.dense(spec, shards)
        return DenseTrainer(spec, shards, threads, pool)
    if engine == "device":
        if helpers is None:
            return DeviceTrainer(artifact, shards, threads)
        pool = helpers.device(artifact, data)
        return DeviceTrainer(artifact, shards, threads, pool=pool)
    if helpers is not None:
        raise ExperimentError(
            "replay.engine: must be auto, batched or device on a cluster, got torch; change it, or "
            "leave --cluster out"
        )
    return _torch(artifact, shards)


def _best(artifact: Artifact, *, has_helpers: bool) -> CohortEngine:
    spec = artifact.spec
    is_plain = artifact.adaptation is None and not spec.has_own_loss and not spec.layout.local.size
    if spec.model in FLAT_MODELS and is_plain:
        return "batched"
    if has_helpers or _not_vectorised(artifact) or not _has_gpu():
        return "device"
    return "torch"


def _not_vectorised(artifact: Artifact) -> list[str]:
    """Return what of a model vmap cannot train.

    It cannot update buffers in place, draws other random numbers than a device, and stacks the
    mini-batches of several devices, whose sequences must have one length.
    """
    spec, module = artifact.spec, artifact.module
    has_buffers = spec.layout.n_values > spec.layout.n_params
    is_random = bool(spec.masks) or (module is not None and module.is_random)
    found = {
        "buffers": has_buffers,
        "model.personal": spec.layout.local.size > 0,
        "dropout": is_random,
        "data.buckets": bool(spec.buckets),
        "model.trainable or model.lora": artifact.adaptation is not None,
        "frozen parameters": artifact.base is not None,
        "model.loss": spec.has_own_loss,
    }
    return [name for name, has in found.items() if has]


def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    try:
        ctypes.CDLL(CUDA_DRIVER)
    except OSError:
        return False
    import torch

    return torch.cuda.is_available()


def _torch(artifact: Artifact, shards: Shards) -> Trainer:
    spec = artifact.spec
    if found := _not_vectorised(artifact):
        raise ExperimentError(
            "replay.engine: torch must have a model without buffers and dropout, all of it "
            "trained by the loss of the task and merged, and sequences of one length, got "
            f"{' and '.join(found)} in {spec.name}; choose auto or device"
        )
    try:
        from fairbed.coordinator.task.modules import make_trainable
        from fairbed.device_agent.engines.torch import make_module as module_of
        from fairbed.testbed.replay.cohort.functional import TorchTrainer
    except ImportError as exc:
        raise ExperimentError(
            f"replay.engine: torch must be installed, got: {exc}; install fairbed[torch], or "
            "choose auto"
        ) from exc
    if artifact.module is None:
        model = make_module(
            spec.model, spec.x_shape, spec.classes, spec.kind, x_classes=spec.x_classes
        )
        if artifact.batch_norm == "frozen":
            freeze_statistics(model)
        make_trainable(model, spec.name, spec.x_shape, spec.x_classes)
    else:
        model = module_of(artifact)
    return TorchTrainer(model, spec, shards, "cuda" if _has_gpu() else "cpu")
