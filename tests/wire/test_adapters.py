"""Adapters of low rank in torch modules: names, values, and what is refused."""

import copy

import pytest

pytest.importorskip("torch", reason="torch is not installed: there are no modules")

import torch
from torch import nn

from fairbed.wire.adapters import AdaptationError, adapt, merged_weights
from fairbed.wire.artifact import Adaptation, Lora
from tests.cases.fine_tuning.networks import Pictures, Rows

ALL = Lora(rank=1, on=("*",), alpha=2.0)


class Layers(nn.Module):
    """One layer of each kind that can have an adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.dense = nn.Conv2d(1, 6, 3, padding=1, stride=2, dilation=2)
        self.depthwise = nn.Conv2d(6, 6, 3, groups=6, padding=1)
        self.around = nn.Conv2d(6, 6, 3, padding=1, padding_mode="circular")
        self.wider = nn.ConvTranspose2d(6, 6, 2, stride=2)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = self.wider(self.around(self.depthwise(self.dense(x))))
        rows = maps.flatten(2).transpose(1, 2)
        seen = self.attention(rows, rows, rows, need_weights=False)[0]
        output: torch.Tensor = self.linear(seen).mean(1)
        return output


def drawn(module: nn.Module, seed: int = 0) -> None:
    """Give all adapters values other than 0."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.3 * torch.randn_like(parameter))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (Layers, (3, 1, 8, 8)),
        (lambda: Pictures((1, 8, 8), 4), (3, 1, 8, 8)),
        (lambda: Rows((1, 8, 8), 4), (3, 1, 8, 8)),
    ],
)
def test_an_adapted_module_is_the_plain_one_with_the_merged_weights(
    make: object, shape: tuple[int, ...]
) -> None:
    """In both modes: `nn.TransformerEncoderLayer` reads weights of its layers in evaluation."""
    assert callable(make)
    torch.manual_seed(1)
    plain, x = make(), torch.randn(shape)
    adapted = copy.deepcopy(plain)
    adapt(adapted, Adaptation(lora=ALL))
    names = [name for name, _ in adapted.named_parameters()]
    assert {name for name in names if "lora_" not in name} == {
        name for name, _ in plain.named_parameters()
    }
    trained = {name for name, value in adapted.named_parameters() if value.requires_grad}
    assert trained == {name for name in names if "lora_" in name}
    with torch.no_grad():
        assert torch.equal(adapted.eval()(x), plain.eval()(x)), "B begins at 0"
    drawn(adapted)
    other = make()
    other.load_state_dict(merged_weights(adapted))
    for mode in (True, False):
        with torch.no_grad():
            wanted, found = other.train(mode)(x), adapted.train(mode)(x)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(found, plain.train(mode)(x), atol=1e-3)
    copied = copy.deepcopy(adapted)
    with torch.no_grad():
        assert torch.equal(copied(x), adapted(x))


def test_patterns_choose_layers_and_trained_parameters() -> None:
    module = Pictures((1, 8, 8), 4)
    adapt(module, Adaptation(trainable=("head.*",), lora=Lora(rank=2, on=("body.2",))))
    trained = {name for name, value in module.named_parameters() if value.requires_grad}
    assert trained == {"head.weight", "head.bias", "body.2.lora_a", "body.2.lora_b"}
    assert dict(module.named_parameters())["body.2.lora_a"].shape == (2, 32 * 9)
    other = Pictures((1, 8, 8), 4)
    adapt(other, Adaptation(trainable=("head.*", "body.5.*")))
    trained = {name for name, value in other.named_parameters() if value.requires_grad}
    assert trained == {"head.weight", "head.bias", "body.5.weight", "body.5.bias"}


@pytest.mark.parametrize(
    ("adaptation", "line"),
    [
        (
            Adaptation(trainable=("heads.*",)),
            "model.trainable: heads.* must fit the name of a parameter, got body.0.weight",
        ),
        (
            Adaptation(lora=Lora(rank=1, on=("body.1",))),
            "model.lora: on: body.1 must fit the name of a linear layer or a convolution, got body",
        ),
        (
            Adaptation(lora=Lora(rank=5, on=("head",))),
            "model.lora: rank must be at most 4, the rank of head.weight of shape (4, 64), got 5",
        ),
    ],
)
def test_what_does_not_fit_is_refused(adaptation: Adaptation, line: str) -> None:
    with pytest.raises(AdaptationError) as caught:
        adapt(Pictures((1, 8, 8), 4), adaptation)
    assert str(caught.value).startswith(line)


class Tied(nn.Module):
    """One matrix for embedding and output, and a mask that is no part of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.middle = nn.Linear(6, 6)
        self.last = nn.Linear(6, 7, bias=False)
        self.last.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(6), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(self.middle(self.embedding(x)) * self.mask)
        return output


def test_merged_weights_are_the_state_of_the_plain_module() -> None:
    """A tied weight has two names in it, and a buffer that is not saved has none."""
    torch.manual_seed(1)
    plain, x = Tied(), torch.arange(5)[None]
    adapted = copy.deepcopy(plain)
    adapt(adapted, Adaptation(lora=Lora(rank=2, on=("middle",))))
    drawn(adapted)
    other = Tied()
    other.load_state_dict(merged_weights(adapted))
    with torch.no_grad():
        torch.testing.assert_close(other(x), adapted(x))
