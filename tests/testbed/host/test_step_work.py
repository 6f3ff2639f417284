"""The arithmetic of a training step is counted, and equals what its layers say."""

import pytest

from fairbed.coordinator.task.catalogue import load_task
from fairbed.testbed.host.step_work import step_work


def test_products_of_an_mlp() -> None:
    hidden, last = 784 * 318, 318 * 10
    work = step_work(load_task("mlp", (784,), 10))
    # Forward and the gradient of the weights; the gradient of the inputs only of the last layer.
    assert work.matrix_flops == 2 * 2 * hidden + 3 * 2 * last
    assert work.conv_flops == 0.0
    assert work.moved_bytes > 4 * 784, "an example is read"
    assert work.fixed_bytes > 2 * 4 * hidden, "weights are read, and their gradient written"


def test_convolutions_of_a_cnn() -> None:
    first, second = 28 * 28 * 16 * 25, 14 * 14 * 32 * 25 * 16
    work = step_work(load_task("cnn", (1, 28, 28), 10))
    forward = 2 * (first + second)
    assert 2 * forward <= work.conv_flops + work.matrix_flops <= 4 * forward
    assert work == step_work(load_task("cnn", (1, 28, 28), 10)), "counting is no measurement"


def test_a_module_is_counted_like_a_graph() -> None:
    torch = pytest.importorskip("torch")
    from fairbed.testbed.host.torch_work import counted

    torch.manual_seed(0)
    layer, x = torch.nn.Linear(30, 7), torch.zeros(4, 30)
    work = counted(lambda: layer(x).sum().backward())
    assert work.matrix_flops == 2 * 2 * 4 * 30 * 7
    assert work.conv_flops == 0.0
    assert work.moved_bytes >= 4 * (4 * 30 + 30 * 7 + 4 * 7)
