"""The task in the folder of a run: layout of the model and its graphs, without values."""

from pathlib import Path

from fairbed.coordinator.task.errors import TaskError
from fairbed.wire.artifact import Artifact, decode_artifact, encode_artifact
from fairbed.wire.errors import DecodeError

TASK = "model.task"
"""Name of the file."""


def write_task(folder: Path, artifact: Artifact) -> None:
    """Write the task of a new run, atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / TASK
    scratch = path.with_suffix(".tmp")
    scratch.write_bytes(encode_artifact(artifact))
    scratch.replace(path)


def read_task(folder: Path) -> Artifact | None:
    """Return the task of a run; None if it has none, or its file is damaged."""
    try:
        return decode_artifact((folder / TASK).read_bytes())
    except (OSError, DecodeError):
        return None


def check_same_base(folder: Path, artifact: Artifact) -> None:
    """Check that the frozen part of the model of a resumed run is the one that it began with.

    Raises:
        TaskError: It is another one.
    """
    before = read_task(folder)
    if before is None or before.base == artifact.base:
        return
    old, new = (
        "none" if base is None else base.sha256.hex()[:12] for base in (before.base, artifact.base)
    )
    raise TaskError(
        f"model: the frozen part must be the one that the run began with ({old}), got {new}: "
        "model.weights, model.trainable, model.lora or the module has changed; restore it, or "
        "start a new run"
    )
