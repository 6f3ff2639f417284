"""The arithmetic of a training step is counted, and equals what its layers say."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("onnx", reason="onnx is not installed: graphs cannot be counted")

from fairbed.coordinator.task.catalogue import load_task
from fairbed.testbed.emulation.work import StepWork
from fairbed.testbed.host.step_work import COUNTED, evaluation_work, step_and_frozen_work, step_work

COUNTED_TWICE = (
    *("ResNet-50", "ResNeXt", "MobileNetV2", "EfficientNet", "ShuffleNetV2", "U-Net", "M5"),
    *("ConvNeXt", "CRNN", "GRU", "LSTM of both directions", "DistilBERT", "rotary transformer"),
)


def counted(work: StepWork | None) -> StepWork:
    assert work is not None, "a shape is unknown"
    return work


def test_products_of_an_mlp() -> None:
    hidden, last = 784 * 318, 318 * 10
    work = counted(step_work(load_task("mlp", (784,), 10)))
    # Forward and the gradient of the weights; the gradient of the inputs only of the last layer.
    assert work.matrix_flops == 2 * 2 * hidden + 3 * 2 * last
    assert work.convolutions == work.attention_flops == work.recurrent_flops == 0.0
    assert work.moved_bytes > 4 * 784, "an example is read"
    assert work.fixed_bytes > 2 * 4 * hidden, "weights are read, and their gradient written"


def test_convolutions_of_a_cnn() -> None:
    first, second = 28 * 28 * 16 * 25, 14 * 14 * 32 * 25 * 16
    artifact = load_task("cnn", (1, 28, 28), 10)
    work = counted(step_work(artifact))
    assert work.conv_flops == 2 * (2 * first + 3 * second)
    assert counted(evaluation_work(artifact)).conv_flops == 2 * (first + second)
    assert work == step_work(artifact), "counting is no measurement"


def test_the_part_below_all_trained_layers_is_counted_apart() -> None:
    torch = pytest.importorskip("torch")
    from fairbed.coordinator.task.export import export_task

    layers = [torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.Conv2d(4, 4, 3, padding=1, groups=4)]
    layers += [torch.nn.Flatten(), torch.nn.Linear(4 * 36, 8), torch.nn.Linear(8, 3)]
    model = torch.nn.Sequential(*layers)
    dense, depthwise, product, last = 36 * 9 * 4, 36 * 9 * 4, 4 * 36 * 8, 8 * 3

    def works(*trained: int) -> tuple[StepWork, StepWork | None]:
        for at, layer in enumerate(model):
            layer.requires_grad_(at in trained)
        whole, frozen = step_and_frozen_work(export_task(model, "test", "test", (1, 6, 6), 3))
        return counted(whole), frozen

    whole, frozen = works(4)
    assert frozen is not None
    assert (frozen.conv_flops, frozen.depthwise_flops) == (2 * dense, 2 * depthwise)
    assert frozen.matrix_flops == 2 * product
    assert whole.matrix_flops == 2 * product + 2 * 2 * last, "no gradient of the inputs"
    assert 0.0 < frozen.moved_bytes < whole.moved_bytes
    assert whole.without(frozen).matrix_flops == 2 * 2 * last
    whole, frozen = works(1, 4)
    assert frozen is not None
    assert (frozen.conv_flops, frozen.depthwise_flops, frozen.matrix_flops) == (2 * dense, 0.0, 0.0)
    assert whole.matrix_flops == 2 * 2 * product + 3 * 2 * last, "a gradient passes the frozen one"
    assert works(0, 1, 3, 4)[1] is None


def test_a_size_may_be_a_float() -> None:
    import onnx

    graph = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        task (float[batch, 3] x, float[3, 2] w) => (float loss, float[3, 2] g) {
            size = Size (x)
            n = Cast <to = 1> (size)
            y = MatMul (x, w)
            total = ReduceSum <keepdims = 0> (y)
            loss = Div (total, n)
            g = Div (w, n)
        }""")
    graph.graph.value_info.append(onnx.helper.make_tensor_value_info("n", 1, []))
    artifact = replace(load_task("softmax", (64,), 10), train=graph.SerializeToString())
    assert counted(step_work(artifact)).moved_bytes == 4 * (3 + 2 + 2), "x, and y twice"


def test_a_weight_that_is_repeated_for_each_example_is_no_attention() -> None:
    import onnx

    graph = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        task (float[batch, 4, 3] x, float[3, 2] "p.w") => (float loss, float[3, 2] "g.w")
        <int64[2] last = {3, 2}, int64[1] first = {0}> {
            whole = Shape (x)
            n = Gather (whole, first)
            shape = Concat <axis = 0> (n, last)
            each = Expand ("p.w", shape)
            y = MatMul (x, each)
            squares = Mul (y, y)
            loss = ReduceSum <keepdims = 0> (squares)
            "g.w" = Identity ("p.w")
        }""")
    artifact = replace(load_task("softmax", (64,), 10), train=graph.SerializeToString())
    work = counted(step_work(artifact))
    assert work.attention_flops == 0.0
    assert work.matrix_flops == 2 * 2 * 4 * 3 * 2, "forward, and the gradient of the weights"


def test_a_module_is_counted_like_a_graph() -> None:
    torch = pytest.importorskip("torch")
    from fairbed.testbed.host.torch_work import counted

    torch.manual_seed(0)
    layer, x = torch.nn.Linear(30, 7), torch.zeros(4, 30)
    work = counted(lambda: layer(x).sum().backward())
    assert work.matrix_flops == 2 * 2 * 4 * 30 * 7
    assert work.conv_flops == 0.0
    assert work.moved_bytes >= 4 * (4 * 30 + 30 * 7 + 4 * 7)


@pytest.mark.parametrize(
    ("groups", "kind"), [(1, "conv_flops"), (2, "grouped_flops"), (8, "depthwise_flops")]
)
def test_convolutions_of_a_module_are_counted_by_their_groups(groups: int, kind: str) -> None:
    torch = pytest.importorskip("torch")
    from fairbed.testbed.host.torch_work import counted

    torch.manual_seed(0)
    layer, x = torch.nn.Conv2d(8, 8, 3, groups=groups), torch.zeros(2, 8, 5, 5)
    work = counted(lambda: layer(x).sum().backward())
    assert getattr(work, kind) == 2 * 2 * (2 * 8 * 9) * (8 // groups * 9), "no gradient of x"
    assert work.convolutions == getattr(work, kind)


@pytest.mark.slow
@pytest.mark.full
def test_zeros_between_joined_pictures_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from fairbed.coordinator.task.export import export_task
    from tests.coordinator.task.test_operations import joined_everywhere

    joined_everywhere(monkeypatch)
    layers = [torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.Conv2d(4, 6, 3, padding=1)]
    layers += [torch.nn.Conv2d(6, 8, 3, stride=2, padding=1), torch.nn.Flatten()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(8 * 9, 3))
    artifact = export_task(model, "test", "test", (2, 6, 6), 3)
    first, second, third = 36 * 9 * 2 * 4, 36 * 9 * 4 * 6, 9 * 9 * 6 * 8
    assert counted(step_work(artifact)).conv_flops == 2 * (2 * first + 3 * second + 3 * third)
    assert counted(evaluation_work(artifact)).conv_flops == 2 * (first + second + third)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("name", COUNTED_TWICE)
def test_a_graph_has_the_operations_that_torch_counts(name: str) -> None:
    torch = pytest.importorskip("torch")
    from tests.coordinator.task.architectures import ARCHITECTURES

    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    model = architecture.make()
    artifact = architecture.export(model)
    dtype = torch.int64 if architecture.x_classes else torch.float32
    x = torch.zeros(COUNTED[1], *architecture.x_shape, dtype=dtype)

    def step() -> None:
        model.train()(x).sum().backward()

    def evaluate() -> None:
        with torch.no_grad():
            model.eval()(x)

    work, evaluation = counted(step_work(artifact)), counted(evaluation_work(artifact))
    assert (work.convolutions, work.products) == pytest.approx(_by_torch(step))
    assert (evaluation.convolutions, evaluation.products) == pytest.approx(_by_torch(evaluate))
    text = name.split()[0]
    assert (work.recurrent_flops > 0.0) == (text in ("CRNN", "GRU", "LSTM"))
    assert (work.attention_flops > 0.0) == (text in ("DistilBERT", "rotary"))
    assert (work.grouped_flops > 0.0) == (text == "ResNeXt")
    is_depthwise = text in ("MobileNetV2", "EfficientNet", "ShuffleNetV2", "ConvNeXt")
    assert (work.depthwise_flops > 0.0) == is_depthwise


def _by_torch(run: Callable[[], None]) -> tuple[float, float]:
    """Return the operations per example of convolutions and products, as torch counts them.

    Fused layers are off: torch does not count what they do. Its count of the gradient of grouped
    weights is too large by the number of groups; here it is the one of the forward pass.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

    def backward(grad: Any, x: Any, w: Any, *given: Any, out_shape: Any, **_: Any) -> int:
        transposed, mask = given[4], given[7]
        return int(conv_flop_count(x, w, grad, transposed) * sum(mask[:2]))

    convolution_backward = torch.ops.aten.convolution_backward
    counter = FlopCounterMode(display=False, custom_mapping={convolution_backward: backward})
    is_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the flags of another library
            with torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH), counter:
                run()
    finally:
        torch.backends.mha.set_fastpath_enabled(is_fast)
    totals = counter.get_flop_counts().get("Global", {})
    conv = sum(count for op, count in totals.items() if "conv" in str(op))
    return conv / COUNTED[1], (sum(totals.values()) - conv) / COUNTED[1]
