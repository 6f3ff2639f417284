"""`fairbed doctor --model NAME`: what a model costs, before any run, or why it is refused."""

import argparse
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from fairbed import profiles
from fairbed.coordinator.policy.config import TrainingConfig
from fairbed.coordinator.state.memory import SHARE, Fitting
from fairbed.coordinator.task.catalogue import build_task, make_module
from fairbed.coordinator.task.errors import UnknownTask, Unsupported, WrongArtifact
from fairbed.coordinator.task.recipes import MODELS
from fairbed.profiles import Profile
from fairbed.testbed.emulation.step_speed import several_speeds_s, step_s
from fairbed.testbed.emulation.work import StepWork, TaskCosts
from fairbed.testbed.errors import BackendError, UsageError
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.experiment.shards import bounding_part_of, changes_of, load_examples
from fairbed.testbed.host.calibration import Probe
from fairbed.testbed.host.memory import bound_bytes, fitting_of
from fairbed.testbed.host.model_steps import step_times
from fairbed.testbed.host.speed import host_speed, machine_costs_now
from fairbed.testbed.host.step_work import evaluation_work, step_work
from fairbed.wire.artifact import Artifact, BatchNorm, ClassesAxis, TaskKind

if TYPE_CHECKING:
    from fairbed.coordinator.task.changes import ModelChanges
    from fairbed.coordinator.task.selfcheck import ExportFigures

DEFAULT_BATCH, MIB = 16, 1 << 20

FLOPS = {
    "conv_flops": "dense convolutions",
    "grouped_flops": "grouped convolutions",
    "depthwise_flops": "depthwise convolutions",
    "matrix_flops": "matrix products",
    "attention_flops": "attention",
    "recurrent_flops": "recurrent products",
}


class ModelFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One line about a model."""

    name: str
    is_ok: bool
    found: str
    what_to_do: str = ""
    values: dict[str, float] = {}
    """The numbers of the line, in the units of their names."""


@dataclass(frozen=True, slots=True)
class _Task:
    """The model, and the data that it is to learn."""

    model: str
    x_shape: tuple[int, ...]
    classes: int
    kind: TaskKind
    batch: int
    examples: Any
    """x of the data, shape (n, ...); None draws normal numbers."""
    boards: list[Profile]
    x_classes: int = 0
    """Number of tokens; 0: x are floats."""
    y_shape: tuple[int, ...] = ()
    classes_axis: ClassesAxis | None = None
    batch_norm: BatchNorm = "merged"
    lengths: tuple[int, ...] = ()
    """Lengths of `data.buckets`, ascending; empty: one."""
    loss: str = "auto"
    loss_options: Mapping[str, object] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    changes: "ModelChanges | None" = None
    """Weights, and what is trained, if the experiment has this model."""
    personal: tuple[str, ...] = ()
    targets: Any = None
    """y of the data, shape (n, *y_shape); None draws all classes, or normal numbers."""
    bounded_by: str = ""
    """What takes losses as at least 0."""

    @property
    def of_longest(self) -> str:
        """What a line adds that is of the longest sequences alone; empty without buckets."""
        return f" of {self.lengths[-1]} tokens" if self.lengths else ""


def main(options: argparse.Namespace, experiment: Experiment | None) -> int:
    """Export the model and print what it costs; return 0 if it is exported, 1 if it is refused.

    Raises:
        UsageError: Shape or classes are missing, or there is no such model.
    """
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("onnx") is None:
        raise UsageError("--model: must have torch to export, got none; install fairbed[torch]")
    task = _task_of(options, experiment)
    findings = list[ModelFinding]()
    try:
        for finding in _findings(task):
            findings.append(finding)
            if not options.json:
                mark = "ok     " if finding.is_ok else "REFUSED"
                hint = f"; {finding.what_to_do}" if finding.what_to_do else ""
                print(f"{mark}  model    {finding.name:<14} {finding.found}{hint}", flush=True)
    except UnknownTask as exc:
        raise UsageError(str(exc)) from exc
    if options.json:
        print(msgspec.json.encode(findings).decode())
    return 0 if all(finding.is_ok for finding in findings) else 1


def _task_of(options: argparse.Namespace, experiment: Experiment | None) -> _Task:
    if experiment is not None:
        try:
            data = load_examples(experiment, os.environ)
        except DatasetError as exc:
            raise UsageError(str(exc)) from exc
        named = dict.fromkeys(g.profile for g in experiment.fleet if g.profile is not None)
        return _Task(
            options.model,
            data.x_shape,
            data.classes,
            data.kind,
            options.batch or experiment.training.batch_size,
            data.x,
            [profiles.load(name) for name in named],
            data.x_classes,
            data.y_shape,
            experiment.model.classes_axis,
            experiment.model.batch_norm,
            data.buckets,
            experiment.model.loss,
            experiment.model.loss_options,
            experiment.evaluation.metrics,
            *(
                (changes_of(experiment), experiment.model.personal)
                if options.model == experiment.model.name
                else (None, ())
            ),
            data.y,
            bounding_part_of(experiment),
        )
    if options.x_shape is None:
        if str(options.model).endswith(".toml"):
            raise UsageError(
                f"--model: must be a model, got the file {options.model}; an experiment file is no "
                f"option: fairbed doctor {options.model} --model MODULE:FUNCTION"
            )
        raise UsageError(
            "--model: must have the shape of the data, got none; name an experiment file, or give "
            "--x-shape 3x96x96 --classes 10"
        )
    kind: TaskKind = options.task or "classification"
    classes = {"regression": 1, "binary": 2}.get(kind, options.classes)
    if classes is None:
        raise UsageError("--classes: must be given with --x-shape, got none; or --task regression")
    x_shape = _shape("--x-shape", options.x_shape)
    known = [profiles.load(name) for name in profiles.names()]
    boards = [profile for profile in known if profile.matrix is not None]
    batch = options.batch or DEFAULT_BATCH
    y_shape = () if options.y_shape is None else _shape("--y-shape", options.y_shape)
    tokens = options.tokens or 0
    return _Task(options.model, x_shape, classes, kind, batch, None, boards, tokens, y_shape)


def _shape(where: str, text: str) -> tuple[int, ...]:
    sizes = text.split("x")
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise UsageError(
            f"{where}: must be sizes such as 3x96x96, got {text!r}; separate them by x"
        )
    return tuple(int(size) for size in sizes)


def _findings(task: _Task) -> Iterator[ModelFinding]:
    figures = list["ExportFigures"]()
    try:
        artifact = build_task(
            task.model,
            task.x_shape,
            task.classes,
            task.kind,
            engine="auto" if task.model in MODELS else "onnx",
            examples=task.examples,
            x_classes=task.x_classes,
            y_shape=task.y_shape,
            classes_axis=task.classes_axis,
            batch_norm=task.batch_norm,
            lengths=task.lengths,
            changes=task.changes,
            personal=task.personal,
            loss=task.loss,
            loss_options=task.loss_options,
            metrics=task.metrics,
            targets=task.targets,
            bounded_by=task.bounded_by,
            report=figures.append,
        )
    except (Unsupported, WrongArtifact) as exc:
        yield from _refused(exc)
        return
    in_order = [*task.lengths[-1:], *task.lengths[:-1]] or [0]
    exported = [(f"{n} tokens: ", {"length": n}) if n else ("", {}) for n in in_order]
    for (of, n), found in zip(exported, figures, strict=False):  # none if it is shipped
        yield _finding(
            "export",
            f"{of}recorded and written in {found.export_s:.1f} s, compared with torch in "
            f"{found.check_s:.1f} s",
            export_s=found.export_s,
            check_s=found.check_s,
            **n,
        )
    for remark in artifact.remarks:
        yield _finding("remark", remark)
    yield from _size(artifact, task)
    for (of, n), found in zip(exported, figures, strict=False):
        errors = found.errors
        yield _finding(
            "error",
            f"{of}gradient off by {errors.in_float64:.1e} in float64, {errors.in_float32:.1e} in "
            f"float32 with onnxruntime (median); loss {errors.loss:.1e}, buffers "
            f"{errors.buffers:.1e}",
            in_float64=errors.in_float64,
            in_float32=errors.in_float32,
            **n,
        )
    yield from _operations(artifact, task)
    yield _here(artifact, task)
    yield from _on_machines(artifact, task)


def _refused(exc: Exception) -> Iterator[ModelFinding]:
    """Yield one line per operation without a rule, or the reason; the last one has the advice."""
    text, _, advice = str(exc).rpartition("; ")
    problems = getattr(exc.__cause__ or exc, "problems", ()) or (text or str(exc),)
    for at, problem in enumerate(problems):
        last = at == len(problems) - 1
        yield ModelFinding(
            name="export", is_ok=False, found=problem, what_to_do=advice if last and text else ""
        )


def _finding(name: str, found: str, **values: float) -> ModelFinding:
    return ModelFinding(name=name, is_ok=True, found=found, values=values)


def _size(artifact: Artifact, task: _Task) -> Iterator[ModelFinding]:
    import onnx

    layout = artifact.spec.layout
    n_bytes, buffers = 4 * layout.n_values, layout.n_values - layout.n_params
    kept = f", {buffers:,} of them buffers" if buffers else ""
    yield _finding(
        "values",
        f"{layout.n_values:,} values{kept}; {_bytes(n_bytes)} to a device and back in each round, "
        "without a codec",
        n_values=layout.n_values,
        round_bytes=2 * n_bytes,
    )
    nodes = [
        len(onnx.load_model_from_string(graph).graph.node)
        for graph in (artifact.train, artifact.evaluate)
    ]
    sizes = len(artifact.train), len(artifact.evaluate)
    whole = sum(sizes) + sum(len(each.train) + len(each.evaluate) for each in artifact.shorter)
    of_all = f",{task.of_longest}; of all lengths {_bytes(whole)}" if task.lengths else ""
    yield _finding(
        "graphs",
        f"training {nodes[0]:,} nodes, {_bytes(sizes[0])}; evaluation {nodes[1]:,} nodes, "
        f"{_bytes(sizes[1])}{of_all}; sent once",
        train_nodes=nodes[0],
        train_bytes=sizes[0],
        evaluate_nodes=nodes[1],
        evaluate_bytes=sizes[1],
        all_bytes=whole,
    )


def _operations(artifact: Artifact, task: _Task) -> Iterator[ModelFinding]:
    for name, work, n in (
        ("operations", step_work(artifact), task.batch),
        ("evaluation", evaluation_work(artifact), 1),
    ):
        step = f"a training step of {task.batch}{task.of_longest and ' examples' + task.of_longest}"
        what = step if name == "operations" else f"an example{task.of_longest} evaluated"
        if work is None:
            yield _finding(name, f"{what}: unknown, as the shape of a value is")
            continue
        moved = work.moved_bytes * n + work.fixed_bytes * (name == "operations")
        yield _finding(
            name,
            f"{what}: {_kinds(work, n)}; reads and writes {_bytes(moved)}",
            **{kind: getattr(work, kind) * n for kind in FLOPS},
            moved_bytes=moved,
        )


def _kinds(work: StepWork, n: int) -> str:
    counted = [
        f"{_scaled(getattr(work, kind) * n)}FLOP in {text}"
        for kind, text in FLOPS.items()
        if getattr(work, kind) > 0.0
    ]
    return ", ".join(counted) or "no product"


def _here(artifact: Artifact, task: _Task) -> ModelFinding:
    from fairbed.coordinator.task.modules import make_trainable

    module = make_module(
        task.model, task.x_shape, task.classes, task.kind, x_classes=task.x_classes
    )
    make_trainable(module, artifact.spec.name, artifact.spec.x_shape, task.x_classes)
    times = step_times(artifact, module, task.batch)
    return _finding(
        "step here",
        f"{task.batch} examples{task.of_longest} in {times.onnx_s * 1e3:.3g} ms with onnxruntime, "
        f"{times.torch_s * 1e3:.3g} ms with torch, on one thread: ratio {times.ratio:.2f} "
        f"({times.low:.2f} to {times.high:.2f} in half of {times.windows} pairs)",
        onnx_s=times.onnx_s,
        torch_s=times.torch_s,
        ratio=times.ratio,
    )


def _on_machines(artifact: Artifact, task: _Task) -> Iterator[ModelFinding]:
    """Yield peak memory, and time and parts of a step on each board, as a run would predict."""
    training = TrainingConfig(batch_size=task.batch, micro_batch="auto")
    try:
        speed = host_speed(os.environ).core_speed
        costs = TaskCosts.of(machine_costs_now(Probe.of(artifact, training), os.environ), speed)
    except BackendError as exc:
        yield ModelFinding(name="boards", is_ok=True, found=f"unknown: {exc}")
        return
    fitting = fitting_of(training, artifact.spec, costs.memory)
    yield _memory(artifact, task, costs, fitting)
    if costs.shorter:
        seconds = [cost.seconds(task.batch) / speed for cost in costs.train_of_lengths]
        yield _finding(
            "step by length",
            f"{task.batch} examples here, with onnxruntime: {_by_length(task.lengths, seconds)}",
            **{f"of_{n}_s": s for n, s in zip(task.lengths, seconds, strict=True)},
        )
    for board in task.boards:
        reference_s, work = costs.train.seconds(task.batch), costs.work
        found_s = step_s(board, reference_s, work, task.batch)
        is_known = work is not None and several_speeds_s(board, work, task.batch) is not None
        basis = (
            "by arithmetic and memory traffic"
            if is_known
            else "by core_speed alone, which is too fast for large models"
        )
        # A run, too, has one speed for all lengths: that at which the longest takes this long.
        each_s = [
            cost.seconds(task.batch) * found_s / reference_s for cost in costs.train_of_lengths[:-1]
        ]
        shorter = f"; {_by_length(task.lengths[:-1], each_s)}" if each_s else ""
        part = task.batch if fitting is None else fitting.part_size(board.memory_bytes, 0)
        yield _finding(
            f"on {board.name}",
            f"{task.batch} examples{task.of_longest} in {found_s * 1e3:.3g} ms, predicted {basis}"
            f"{_parts(part, task.batch, board.memory_bytes)}{shorter}",
            step_s=found_s,
            micro_batch=part,
        )


def _by_length(lengths: Sequence[int], seconds: Sequence[float]) -> str:
    """Return what a step takes at each length."""
    return ", ".join(
        f"{length} tokens in {each_s * 1e3:.3g} ms"
        for length, each_s in zip(lengths, seconds, strict=True)
    )


def _memory(
    artifact: Artifact, task: _Task, costs: TaskCosts, fitting: Fitting | None
) -> ModelFinding:
    """Return the predicted peak of an agent in training, without the data of its device."""
    batch = task.batch
    if costs.work is None:
        return _finding("memory", "unknown, as the steps cannot be counted; no board is checked")
    if costs.memory is None or fitting is None:
        bound = bound_bytes(artifact.spec.layout, costs.work, batch)
        return _finding(
            "memory",
            f"at most {bound / MIB:.0f} MiB for {batch} examples{task.of_longest} at once, "
            "by memory traffic: fits into every board",
            bound_bytes=bound,
        )
    whole, one = costs.memory.peak_bytes(batch), fitting.memory.peak_bytes(1)
    return _finding(
        "memory",
        f"an agent needs {whole / MIB:.0f} MiB for {batch} examples{task.of_longest} at once, "
        f"{one / MIB:.0f} MiB for one at a time, and its data; predicted from two measured sizes",
        peak_bytes=whole,
        least_bytes=one,
    )


def _parts(part: int, batch: int, memory_bytes: int) -> str:
    """Return what a board computes at once, if it cannot compute whole mini-batches."""
    if part == batch:
        return ""
    share = f"{SHARE:.0%} of its {memory_bytes >> 20} MiB"
    if part == 0:
        return f"; does not fit into {share}"
    return f"; fits into {share} with training.micro_batch of at most {part}"


_PREFIXES: Sequence[tuple[float, str]] = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def _scaled(value: float) -> str:
    for factor, prefix in _PREFIXES:
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "


def _bytes(value: float) -> str:
    return f"{_scaled(value)}B"
