"""The trained model of a run as files of its own, with a page that states what it is."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.report.quantities import ratio
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_schema import RunSummary
from fairbed.coordinator.store import RunReader
from fairbed.testbed.api.run import Run
from fairbed.testbed.errors import UsageError
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.experiment.shards import changes_of
from fairbed.testbed.experiment.task_file import TASK, read_task
from fairbed.wire.artifact import Artifact, Base

if TYPE_CHECKING:
    from torch import nn

    from fairbed.coordinator.task.trained import ModelFormat

CARD = "README.md"
"""The page beside the model."""

UNKNOWN = "not known to Fairbed: fill in"


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """What was written."""

    folder: Path
    file: Path
    round: int
    """After which the model is that of the run."""
    bytes: int


def export_model(
    run: Run,
    form: "ModelFormat",
    folder: Path | None = None,
    round_id: int | None = None,
    licence: str = "",
) -> ExportedModel:
    """Write the model of a run, and a page about it.

    Adapters are added to the weights. Values that devices keep for themselves are those before
    round 1, and the page states that.

    Args:
        run: The run; it may be live.
        form: onnx, safetensors or torch.
        folder: New or empty; None: the name of the run with `-model`.
        round_id: After which round; None: the newest stored one.
        licence: Of the model, for the page.

    Raises:
        UsageError: The run has no such model, or the folder has files.
        TaskError: The module is another one, or cannot be exported.
        StoreError: The run cannot be read.
    """
    folder = Path(f"{run.id}-model") if folder is None else folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--out: {folder} must be a new or empty folder, got one with files")
    artifact = _task_of(run)
    experiment = run.experiment
    with RunReader(run.folder) as reader:
        round_id, vector = _model_of(reader, round_id)
        summary = summarise_run(reader)
    module = _module_of(artifact, experiment, vector)
    from fairbed.coordinator.task.trained import SUFFIXES, write_model

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"model{SUFFIXES[form]}"
    write_model(module, artifact.spec, form, file)
    card = _card(run, experiment, summary, artifact, round_id, file.name, licence)
    (folder / CARD).write_text(card, encoding="utf-8")
    return ExportedModel(folder, file, round_id, file.stat().st_size)


def _task_of(run: Run) -> Artifact:
    if (client := run.experiment.training.client) is not None:
        raise UsageError(
            f"run {run.id}: must have a model of Fairbed, got the arrays of the client {client}, "
            "which only it understands; read them with RunReader.final_model()"
        )
    artifact = read_task(run.folder)
    if artifact is None:
        raise UsageError(
            f"run {run.id}: must have the file {TASK}, got none: it trained no model, or is of an "
            "older version of Fairbed; run it again"
        )
    return artifact


def _model_of(reader: RunReader, round_id: int | None) -> tuple[int, NDArray[np.float32]]:
    stored = reader.stored_rounds()
    if not stored:
        raise UsageError("run: must have a stored model, got none yet; wait for its first round")
    chosen = stored[-1] if round_id is None else round_id
    vector = reader.model_at(chosen)
    if vector is None:
        shown = ", ".join(map(str, stored[-8:]))
        raise UsageError(
            f"--round: must be a round whose model is stored, got {chosen}; the last ones are "
            f"{shown}; others were removed as the run went on"
        )
    return chosen, vector


def _module_of(
    artifact: Artifact, experiment: Experiment, vector: NDArray[np.float32]
) -> "nn.Module":
    try:
        from fairbed.coordinator.task.catalogue import changed_module, make_module
        from fairbed.coordinator.task.modules import frozen_values
        from fairbed.coordinator.task.trained import plain_module, trained_module
    except ImportError as exc:
        raise UsageError(f"torch must be installed, got: {exc}; install fairbed[torch]") from exc
    spec, changes = artifact.spec, changes_of(experiment)
    changed = changed_module(spec, changes)
    module = make_module(
        spec.model, spec.x_shape, spec.classes, spec.kind, x_classes=spec.x_classes
    )
    plain = plain_module(module, spec)
    frozen: Mapping[str, NDArray[np.float32]] = {}
    if artifact.base is not None:
        frozen = _frozen(artifact.base, frozen_values(changed, artifact.base.layout))
    return trained_module(artifact, changes, changed, plain, vector, frozen)


def _frozen(
    base: Base, of_module: Mapping[str, NDArray[np.float32]]
) -> Mapping[str, NDArray[np.float32]]:
    """Return the frozen part of a model: that of the module, or of the cache, by its hash."""
    from fairbed.wire.base_files import BaseMissing, base_of, default_bases

    if base_of(base.layout, of_module)[0].sha256 == base.sha256:
        return of_module
    try:
        return default_bases(os.environ).tensors(base)
    except BaseMissing as exc:
        raise UsageError(
            f"model: the frozen part must be that of the run ({base.sha256.hex()[:12]}), got "
            "another one from the module and none in the cache; restore model.weights"
        ) from exc


def _card(
    run: Run,
    experiment: Experiment,
    summary: RunSummary,
    artifact: Artifact,
    round_id: int,
    file: str,
    licence: str,
) -> str:
    """Return the page about a model, in Markdown."""
    spec, model = artifact.spec, experiment.model
    provenance = summary.provenance
    base_values = 0 if artifact.base is None else artifact.base.layout.n_values
    is_last = round_id == summary.rounds_completed
    rows: list[tuple[str, str]] = [
        ("file", f"`{file}`"),
        ("network", f"`{spec.model}`, x {spec.x_shape} {spec.x_dtype}"),
        ("task", f"{spec.kind}, {spec.classes} classes" if spec.classes > 1 else spec.kind),
        ("trained values", f"{spec.layout.n_params:,} of {spec.layout.n_params + base_values:,}"),
        ("began with", model.weights or "random values"),
        ("rounds", f"{round_id} of {summary.rounds_completed}"),
        ("devices", f"{summary.devices}"),
        ("data", experiment.data.name),
        ("hash of the data", provenance.data_sha256 or "none"),
        ("hash of the partition", provenance.partition_sha256 or "none"),
        ("selection, merge", f"{experiment.selection.policy}, {experiment.aggregation.rule}"),
        ("run", f"{summary.run_id}, {experiment.name}, seed {summary.seed}"),
        ("made by", ", ".join(f"{n} {v}" for n, v in sorted(provenance.packages.items()))),
        ("licence of the model", licence or UNKNOWN),
        ("licence of the data", UNKNOWN),
        ("licence of the first weights", UNKNOWN if model.weights else "none"),
    ]
    if model.lora is not None:
        lora = model.lora
        rows.insert(5, ("adapters", f"rank {lora.rank}, scale {lora.scale:g}, added to weights"))
    scores = [
        ("accuracy, mean over devices", summary.accuracy.mean),
        ("accuracy, worst 10 % of devices", summary.accuracy.worst10),
        ("accuracy, pooled", summary.accuracy.pooled),
        ("loss, mean over devices", summary.loss.mean),
    ]
    notes = []
    if not is_last:
        notes.append(
            f"The scores are of the model after round {summary.rounds_completed}, not of this one."
        )
    if spec.layout.local.size:
        notes.append(
            "Each device of the run keeps values of its own (model.personal, model.batch_norm). In "
            "this file they are those before round 1; the scores are with those of the devices."
        )
    lines = [
        "---",
        f"license: {licence or 'unknown'}",
        "tags: [federated-learning, fairbed]",
        "---",
        f"# {experiment.name}, model after round {round_id}",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {_cell(value)} |" for name, value in rows),
        "",
        "| score | |",
        "|---|---|",
        *(f"| {name} | {ratio(value)} |" for name, value in scores),
        "",
        *(f"{note}\n" for note in notes),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
