"""Losses and metrics by name and of the user: torch's own numbers in both engines, and refusals."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch", reason="models are exported with torch")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

import torch
from msgspec import UNSET
from numpy.typing import NDArray
from torch.nn import functional

from fairbed.coordinator.policy.config import ModelEngine
from fairbed.coordinator.task.catalogue import build_task, make_module
from fairbed.coordinator.task.errors import TaskError
from fairbed.coordinator.task.kept import ExportCache
from fairbed.device_agent import trainer
from fairbed.device_agent.engines.base import self_check
from fairbed.device_agent.engines.choose import open_engine, open_own_engine
from fairbed.device_agent.errors import EngineError
from fairbed.testbed.replay.cohort.devices import Unpaced
from fairbed.wire.artifact import Artifact, TaskKind, decode_artifact, encode_artifact
from fairbed.wire.messages import Hyperparameters
from fairbed.wire.named_metrics import pooled, value_of
from fairbed.wire.selfcheck import selfcheck_inputs

HERE = "tests.coordinator.task.own_code"
B, LABELS = 7, 3
WEIGHT = [0.5, 2.0, 1.25]
Tensor = torch.Tensor


@dataclass(frozen=True)
class Case:
    """A loss by name, and torch's own for the same."""

    loss: str
    own: Callable[[Tensor, Tensor], Tensor]
    """Mean over a mini-batch of what the module returns."""
    options: dict[str, Any] = field(default_factory=dict)
    model: str = "Linear"
    x_shape: tuple[int, ...] = (4,)
    classes: int = LABELS
    kind: TaskKind = "classification"
    y_shape: tuple[int, ...] = ()

    @property
    def is_tokens(self) -> bool:
        return self.model == "Tokens"

    def build(self, engine: ModelEngine) -> Artifact:
        return build_task(
            f"{HERE}:{self.model}",
            self.x_shape,
            self.classes,
            self.kind,
            engine=engine,
            x_classes=12 if self.is_tokens else 0,
            y_shape=self.y_shape,
            loss=self.loss,
            loss_options=self.options,
        )


def flat(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return output.reshape(-1, output.shape[-1]), y.reshape(-1)


def weights() -> Tensor:
    return torch.tensor(WEIGHT, dtype=torch.float64)


def smoothed(output: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(
        *flat(output, y), weight=weights(), ignore_index=-1, label_smoothing=0.2
    )


def ignoring(output: Tensor, y: Tensor) -> Tensor:
    y = torch.where(y == 1, -1, y)
    return functional.cross_entropy(*flat(output, y), ignore_index=-1)


def hinge(output: Tensor, y: Tensor) -> Tensor:
    return functional.multi_margin_loss(output, y, p=2, margin=0.7, weight=weights())


def one_hinge(output: Tensor, y: Tensor) -> Tensor:
    signs, known = 2.0 * y - 1.0, y >= 0
    return (1.0 - signs * output).clamp(min=0.0)[known].mean()


def labels(output: Tensor, y: Tensor) -> Tensor:
    losses = functional.binary_cross_entropy_with_logits(
        output, y.clamp(min=0).double(), reduction="none", pos_weight=weights()
    )
    return losses[y >= 0].mean()


def dice(output: Tensor, y: Tensor) -> Tensor:
    found = []
    for logits, labels_of in zip(output, y, strict=True):
        known = labels_of >= 0
        shares = torch.softmax(logits, 1)[known]
        hot = functional.one_hot(labels_of[known], LABELS).double()
        both, total = (shares * hot).sum(0), (shares + hot).sum(0)
        found.append(1.0 - ((2.0 * both + 1.0) / (total + 1.0)).mean())
    return torch.stack(found).mean()


TOKENS: dict[str, Any] = {"model": "Tokens", "x_shape": (6,), "y_shape": (6,)}
CASES = {
    "smoothed": Case(
        "cross-entropy", smoothed, {"label_smoothing": 0.2, "weight": WEIGHT}, **TOKENS
    ),
    "ignored": Case("cross-entropy", ignoring, {"ignore_index": 1}),
    "hinge": Case("hinge", hinge, {"p": 2, "margin": 0.7, "weight": WEIGHT}),
    "one-hinge": Case(
        "hinge", one_hinge, model="OneLogit", classes=2, y_shape=(4,), kind="classification"
    ),
    "huber": Case(
        "huber",
        lambda output, y: functional.huber_loss(output.reshape(-1), y, delta=0.3),
        {"delta": 0.3},
        classes=1,
        kind="regression",
    ),
    "multi-label": Case(
        "multi-label",
        labels,
        {"pos_weight": WEIGHT},
        kind="multi-label",
        y_shape=(LABELS,),
    ),
    "dice": Case("dice", dice, **TOKENS),
}


@cache
def artifact_of(name: str, engine: ModelEngine) -> Artifact:
    return decode_artifact(encode_artifact(CASES[name].build(engine)))


def expected(
    case: Case, spec: Any, vector: NDArray[np.float32], x: Any, y: Any
) -> tuple[float, NDArray[np.float64]]:
    """Return loss and gradient of torch's own loss, in float64."""
    module = make_module(f"{HERE}:{case.model}", case.x_shape, case.classes, case.kind).double()
    views, named = spec.layout.views(vector), dict(module.named_parameters())
    with torch.no_grad():
        for name, tensor in named.items():
            tensor.copy_(torch.from_numpy(views[name]))
    inputs, target = torch.from_numpy(x), torch.from_numpy(y)
    output = module(inputs if case.is_tokens else inputs.double())
    loss = case.own(output, target.double() if case.kind == "regression" else target)
    gradients = torch.autograd.grad(loss, [named[t.name] for t in spec.layout.tensors])
    return loss.item(), np.concatenate([g.numpy().ravel() for g in gradients])


@pytest.mark.parametrize("engine", ["onnx", "torch"])
@pytest.mark.parametrize("name", CASES)
def test_a_loss_by_name_is_that_of_torch(name: str, engine: ModelEngine) -> None:
    case, artifact = CASES[name], artifact_of(name, engine)
    assert (artifact.module is None) == (engine == "onnx")
    device = open_own_engine(artifact)
    self_check(device)
    for seed, batch in ((3, B), (4, 1), (5, 2)):
        vector, x, y = selfcheck_inputs(artifact.spec, seed, batch)
        if name == "ignored":
            y[0] = 0  # one that counts, beside rows of weight 0
        loss, gradient = expected(case, artifact.spec, vector, x, y)
        for micro_batch, factor in ((None, 1.0), (3, 1.0), (2, 0.05)):
            got, of_engine = device.gradient(vector, x, y, micro_batch, factor)
            assert got == pytest.approx(loss, rel=1e-6, abs=1e-7)
            error = np.linalg.norm(of_engine / factor - gradient)
            assert error <= 1e-6 * max(float(np.linalg.norm(gradient)), 0.1)
        found = device.evaluate(vector, x, y)
        assert found.loss_of(y) == pytest.approx(loss, rel=1e-6, abs=1e-7)


def test_a_mini_batch_without_weight_has_no_gradient_and_counts_nothing() -> None:
    engines: tuple[ModelEngine, ...] = ("onnx", "torch")
    for engine in engines:
        device = open_own_engine(artifact_of("ignored", engine))
        vector, x, y = selfcheck_inputs(device.spec, 3, B)
        y[:] = 1
        loss, gradient = device.gradient(vector, x, y)
        assert loss == 0.0
        assert not gradient.any()
        problem = "must have a weight above 0 in the loss, got 0 for all 7"
        with pytest.raises(trainer.TrainingDiverged, match=problem):
            trainer.evaluate(device, vector, x, y, Unpaced())
        y[:4] = [0, 1, 2, 1]
        once = Hyperparameters(epochs=1, batch_size=B, learning_rate=0.1)
        arguments = (vector, x, y, once, 1, Unpaced(), lambda: False)
        of_all, _ = device.gradient(vector, x, y)
        assert trainer.train(device, *arguments).loss_train == pytest.approx(of_all, rel=1e-6)
        twos = msgspec.structs.replace(once, batch_size=2, learning_rate=1e-6)
        by_parts = trainer.train(device, vector, x, y, twos, 1, Unpaced(), lambda: False)
        assert by_parts.loss_train == pytest.approx(of_all, rel=1e-5), "weighted by c"


def test_padded_lengths_have_the_same_loss() -> None:
    artifact = build_task(
        f"{HERE}:Tokens",
        (6,),
        LABELS,
        x_classes=12,
        y_shape=(6,),
        lengths=(3, 6),
        loss="cross-entropy",
        loss_options={"weight": WEIGHT},
        metrics=["f1"],
    )
    assert [len(task.counts) > 0 for task in (*artifact.shorter, artifact)] == [True, True]
    device, whole = open_own_engine(artifact), artifact_of("smoothed", "torch")
    self_check(device)
    vector, x, y = selfcheck_inputs(whole.spec, 3, B)
    x[:, 3:], y[:, 3:] = 0, -1
    long = open_own_engine(msgspec.structs.replace(artifact, shorter=(), spec=spec_of(artifact)))
    loss, gradient = device.gradient(vector, x, y)
    kept = gradient.copy()
    other, of_long = long.gradient(vector, x, y)
    assert loss == pytest.approx(other, rel=1e-6)
    assert np.allclose(kept, of_long, atol=1e-7)
    assert device.counts(y).tolist() == long.counts(y).tolist()
    one, two = device.evaluate(vector, x, y), long.evaluate(vector, x, y)
    assert one.loss_of(y) == pytest.approx(two.loss_of(y), rel=1e-6)
    assert np.array_equal(one.metrics[0], two.metrics[0])


def spec_of(artifact: Artifact) -> Any:
    return msgspec.structs.replace(artifact.spec, lengths=msgspec.UNSET)


def test_several_outputs_go_to_the_loss_of_the_user_in_both_engines() -> None:
    found = list[Any]()
    engines: tuple[ModelEngine, ...] = ("onnx", "torch")
    for engine in engines:
        artifact = build_task(
            f"{HERE}:TwoOutputs",
            (4,),
            LABELS,
            engine=engine,
            loss=f"{HERE}:of_both",
            loss_options={"share": 0.25},
        )
        device = open_own_engine(artifact)
        self_check(device)
        vector, x, y = selfcheck_inputs(artifact.spec, 9, B)
        loss, gradient = device.gradient(vector, x, y, 3)
        assert device.counts(y).tolist() == (1.0 + (y == 0)).tolist()
        evaluated = device.evaluate(vector, x, y)
        found.append((loss, gradient.copy(), evaluated.correct, evaluated.loss_of(y)))
    (loss, gradient, correct, mean), (other, of_torch, of_other, mean_of_torch) = found
    assert (loss, mean) == (pytest.approx(other, rel=1e-6), pytest.approx(mean_of_torch, rel=1e-6))
    assert np.linalg.norm(gradient - of_torch) <= 1e-6 * np.linalg.norm(of_torch)
    assert correct == of_other


REFUSED = {
    "scalar": ('got a scalar; compute it with reduction="none"', "losses.flatten(1).sum(1)"),
    "per_class": ("got the shape (6, 3) for B = 6", "losses.flatten(1).sum(1)"),
    "centred": ("each row must depend on its own example alone", "leave out means"),
    "undefined": ("must be finite, got nan", "add an epsilon"),
    "no_gradient": ("must have a gradient by the output, got none", "leave out argmax"),
    "fails": ("got ValueError: no such thing (", "own_code.py, line"),
    "count_of_output": ("c must depend on y alone", "put that factor into the loss"),
    "count_of_zero": ("above 0 for an example, got 0 for all examples", "positions that count"),
    "count_of_batch": ("c of an example must depend on its y alone", "sum over the batch"),
    "absent": ("must name a function in the module", "got no such name"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_that_breaks_its_contract_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(TaskError) as caught:
        build_task(f"{HERE}:Linear", (4,), LABELS, loss=f"{HERE}:{name}")
    text = str(caught.value)
    assert "\n" not in text
    assert "model.loss" in text
    assert all(part in text for part in REFUSED[name]), text


def test_a_negative_loss_is_refused_only_beside_what_takes_it_as_at_least_0() -> None:
    build = partial(build_task, f"{HERE}:Linear", (4,), LABELS, engine="torch")
    artifact = build(loss=f"{HERE}:negative")
    assert artifact.spec.has_signed_loss
    assert artifact.spec.selfcheck.loss < -90.0
    part = "aggregation.rule 'q-fedavg'"
    with pytest.raises(TaskError) as caught:
        build(loss=f"{HERE}:negative", bounded_by=part)
    assert f"must be at least 0 with {part}, got -" in str(caught.value)
    assert "\n" not in str(caught.value)
    bounded = build(loss=f"{HERE}:nats", bounded_by=part)
    assert not bounded.spec.has_signed_loss
    built_in = build(loss="hinge")
    assert not built_in.spec.has_signed_loss


def test_checks_draw_targets_from_those_of_the_data() -> None:
    """A loss need not accept numbers and classes that the data do not have."""
    build = partial(build_task, f"{HERE}:Linear", (4,), engine="torch")
    y = np.random.default_rng(0).uniform(0.5, 90.0, 200).astype(np.float32)
    artifact = build(1, "regression", loss=f"{HERE}:of_log", targets=y)
    values = artifact.spec.selfcheck.y
    assert values is not UNSET
    assert len(values) == 16
    assert set(values) <= set(y.tolist())
    assert (values[0], values[-1]) == (y.min(), y.max())
    self_check(open_own_engine(artifact))
    labels = np.array([0, 2, 2, 0, -1])
    artifact = build(LABELS, loss=f"{HERE}:of_some_labels", targets=labels)
    assert artifact.spec.selfcheck.y == (0.0, 2.0)
    self_check(open_own_engine(artifact))
    cases: list[tuple[str, TaskKind, int]] = [
        ("of_log", "regression", 1),
        ("of_some_labels", "classification", LABELS),
    ]
    for loss, kind, classes in cases:
        with pytest.raises(TaskError, match="must be finite, got nan"):
            build(classes, kind, loss=f"{HERE}:{loss}")
    plain = build(LABELS, loss="hinge", targets=labels)
    assert plain.spec.selfcheck.y is UNSET, "a built-in loss accepts every label"


@pytest.mark.parametrize(
    ("loss", "options", "model", "expected_text"),
    [
        ("huber", {}, "Linear", "huber must have a task of regression, got classification"),
        ("dice", {}, "Linear", "at several positions, got classification with one target"),
        ("cross-entropy", {"weight": [1.0]}, "Linear", "a list of 3 numbers of at least 0"),
        ("cross-entropy", {"weight": 2.0}, "Linear", "a list of 3 numbers of at least 0"),
        ("cross-entropy", {"alpha": 1.0}, "Linear", "must have options of label_smoothing, weight"),
        ("cross-entropy", {"label_smoothing": 2}, "Linear", "must be a number from 0 to 1, got 2"),
        ("focal", {}, "Linear", "must be auto, cross-entropy, hinge"),
        ("auto", {"p": 1}, "Linear", "must be left out with model.loss"),
        (f"{HERE}:nats", {"beta": 1.0}, "Linear", "got TypeError"),
        (f"{HERE}:of_both", {}, "Shared", "each output of the module must be a tensor with a row"),
    ],
)
def test_names_options_and_outputs_that_do_not_fit_are_refused(
    loss: str, options: dict[str, Any], model: str, expected_text: str
) -> None:
    with pytest.raises(TaskError) as caught:
        build_task(f"{HERE}:{model}", (4,), LABELS, loss=loss, loss_options=options)
    assert expected_text in str(caught.value)


METRICS_REFUSED = {
    "ratio_of_batch": ("must add up, got a", "no ratio of a batch"),
    "mean_alone": ("must return (sum, weight)", "got Tensor"),
    "of_no_row": ("must be of shape (B,)", "got () and () for B = 6"),
    "infinite": ("must be finite, got NaN or infinity", "have the weight 0"),
    "unsure": ("better must be more or less, got 'much'", "correct it"),
}


@pytest.mark.parametrize("name", METRICS_REFUSED)
def test_a_metric_that_does_not_add_up_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(TaskError) as caught:
        build_task(f"{HERE}:Linear", (4,), LABELS, metrics=[f"{HERE}:{name}"])
    text = str(caught.value)
    assert "\n" not in text
    assert all(part in text for part in METRICS_REFUSED[name]), text


def test_metrics_that_do_not_fit_the_task_or_have_one_name_are_refused() -> None:
    path = f"{HERE}:Linear"
    for metrics, expected_text in (
        (["mse"], "mse must have a task of regression, got classification"),
        (["best"], "must be top5, f1, iou"),
        (["f1", "f1"], "a name of its own, got two of that name"),
        (["os:accuracy"], "got the name accuracy"),
    ):
        with pytest.raises(TaskError, match=expected_text):
            build_task(path, (4,), LABELS, metrics=metrics)


NAMES = ["top2", "f1", "iou", "perplexity", f"{HERE}:large"]


def test_metrics_are_those_of_all_examples_in_both_engines() -> None:
    engines: tuple[ModelEngine, ...] = ("onnx", "torch")
    for engine in engines:
        artifact = build_task(f"{HERE}:Linear", (4,), LABELS, engine=engine, metrics=NAMES)
        metrics, device = artifact.spec.named_metrics, open_own_engine(artifact)
        assert [each.columns for each in metrics] == [1, LABELS, LABELS, 1, 1]
        assert [each.better for each in metrics] == ["more", "more", "more", "less", "less"]
        vector, x, y = selfcheck_inputs(artifact.spec, 3, 200)
        loss, quality = trainer.evaluate(device, vector, x, y, Unpaced())
        values = {each.name: value_of(each, quality.sums[each.name]) for each in metrics}
        module = make_module(f"{HERE}:Linear", (4,), LABELS).double()
        views = artifact.spec.layout.views(vector)
        with torch.no_grad():
            for name, tensor in module.named_parameters():
                tensor.copy_(torch.from_numpy(views[name]))
            logits = module(torch.from_numpy(x).double()).numpy()
        found, order = logits.argmax(1), np.argsort(-logits, axis=1)
        sizes = [(found == c, y == c) for c in range(LABELS)]
        ious = [np.sum(p & t) / np.sum(p | t) for p, t in sizes if np.any(p | t)]
        f1 = [2 * np.sum(p & t) / (p.sum() + t.sum()) for p, t in sizes if np.any(p | t)]
        assert values["top2"] == pytest.approx(np.mean((order[:, :2] == y[:, None]).any(1)))
        assert values["f1"] == pytest.approx(np.mean(f1))
        assert values["iou"] == pytest.approx(np.mean(ious))
        assert values["perplexity"] == pytest.approx(np.exp(loss), rel=1e-6)
        assert values["large"] == pytest.approx(np.mean(logits.max(1)[y == 0] > 0))
        parts = [trainer.evaluate(device, vector, x[at], y[at], Unpaced())[1] for at in HALVES]
        for each in metrics:
            whole = values[each.name]
            assert pooled(each, [part.sums for part in parts]) == pytest.approx(whole, rel=1e-6)
        empty = np.full(3, 1)
        _, of_none = trainer.evaluate(device, vector, x[:3], empty, Unpaced())
        assert value_of(metrics[4], of_none.sums["large"]) is None, "no example counts"


HALVES = slice(0, 37), slice(37, None)


def test_errors_of_regression_do_not_follow_from_another_loss() -> None:
    engines: tuple[ModelEngine, ...] = ("onnx", "torch")
    for engine in engines:
        artifact = build_task(
            f"{HERE}:Linear",
            (4,),
            1,
            "regression",
            engine=engine,
            loss="huber",
            loss_options={"delta": 0.1},
            metrics=["mse", "rmse", "mae"],
        )
        device = open_own_engine(artifact)
        vector, x, y = selfcheck_inputs(artifact.spec, 3, 100)
        loss, quality = trainer.evaluate(device, vector, x, y, Unpaced())
        scores = device.evaluate(vector, x, y).scores
        assert scores is not None
        error = scores.reshape(-1).astype(np.float64) - y
        values = [value_of(m, quality.sums[m.name]) for m in artifact.spec.named_metrics]
        rmse = np.sqrt(np.mean(error**2))
        assert values == pytest.approx([rmse**2, rmse, np.mean(np.abs(error))], rel=1e-5)
        assert quality.rmse == pytest.approx(rmse, rel=1e-5)
        assert loss < 0.1 * rmse, "the loss is another one"


def test_a_device_runs_no_loss_that_its_owner_does_not_allow_or_that_differs() -> None:
    artifact = build_task(
        "tests.device_agent.engines.torch_models:smooth",
        (4,),
        LABELS,
        engine="torch",
        loss=f"{HERE}:nats",
    )
    model = "tests.device_agent.engines.torch_models"
    with pytest.raises(EngineError, match=f"start the agent with --allow-models {HERE}"):
        open_engine(artifact, models=[model])
    self_check(open_engine(artifact, models=[model, HERE]))
    assert not isinstance(artifact.spec.loss, msgspec.UnsetType)
    other = msgspec.structs.replace(artifact.spec.loss, sha256=b"x" * 32)
    spec = msgspec.structs.replace(artifact.spec, loss=other)
    with pytest.raises(EngineError, match=r"model.loss .*: the source of .* must be that of the"):
        open_engine(msgspec.structs.replace(artifact, spec=spec), models=[model, HERE])


def test_an_export_is_kept_for_its_loss_alone(tmp_path: Path) -> None:
    kept = ExportCache(tmp_path)

    def export(**more: Any) -> Artifact:
        return build_task(f"{HERE}:Linear", (4,), LABELS, kept=kept, **more)

    found = [
        export(),
        export(loss=f"{HERE}:nats"),
        export(loss="cross-entropy", loss_options={"weight": WEIGHT}),
        export(loss="cross-entropy", loss_options={"weight": [1.0, 1.0, 2.0]}),
        export(metrics=["f1"]),
    ]
    assert len(list(tmp_path.iterdir())) == len(found)
    assert export(loss="cross-entropy", loss_options={"weight": WEIGHT}) == found[2]
    assert len({encode_artifact(task) for task in found}) == len(found)
