"""Operations of torch that networks are made of: exported, exact in float64, trained by a device.

The operations of a group read one map side by side, so one export tries all of them.
"""

from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing can be exported")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional

from fairbed.coordinator.task import lowering
from fairbed.coordinator.task.errors import Unsupported
from fairbed.coordinator.task.export import export_task
from fairbed.coordinator.task.ops import convolution
from fairbed.coordinator.task.ops.recurrent import WIDE
from fairbed.device_agent.engines.base import self_check
from fairbed.device_agent.engines.onnx import OnnxEngine
from tests.tiers import some_in_fast

Part = nn.Module | Callable[[Tensor], Tensor]


class Parts(nn.Module):
    """A stem, operations on its map, and a linear layer on all of their values."""

    def __init__(self, stem: nn.Module, x_shape: tuple[int, ...], *parts: Part) -> None:
        super().__init__()
        self.stem, self.parts = stem, parts
        self.layers = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))
        self.last = nn.LazyLinear(3)
        with torch.no_grad():
            self(torch.randn(2, *x_shape))

    def forward(self, x: Tensor) -> Tensor:
        map_ = self.stem(x)
        y: Tensor = self.last(torch.cat([part(map_).flatten(1) for part in self.parts], 1))
        return y


class States(nn.Module):
    """All states and last states of a recurrent layer, from lines with features last.

    Args:
        layer: The layer.
        is_first: Steps come first, then the batch.
        has_start: The layer starts from states that are trained.
    """

    def __init__(self, layer: nn.RNNBase, *, is_first: bool = False, has_start: bool = False):
        super().__init__()
        self.layer, self.is_first = layer, is_first
        count = layer.num_layers * (2 if layer.bidirectional else 1)
        start = nn.Parameter(torch.randn(count, 1, layer.hidden_size))
        self.start = start if has_start else None

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1) if self.is_first else x
        h = None if self.start is None else self.start.expand(-1, x.shape[1], -1).contiguous()
        start = h if h is None or self.layer.mode == "GRU" else (h, h * 0.5)
        y, last = self.layer(x, start)
        y = y.transpose(0, 1) if self.is_first else y
        ends = last if isinstance(last, tuple) else (last,)
        return torch.cat([y.flatten(1), *(end.transpose(0, 1).flatten(1) for end in ends)], 1)


class OneStep(States):
    """A layer that reads the first step alone."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, :1])


class Attending(nn.Module):
    """Attention of the positions of a line to each other.

    Args:
        mask: Of attention; with three axes one for each head of each example.
        is_causal: The hint of torch that the mask is causal.
        padded: Positions at the end that are padding.
        named: Of the layer.
    """

    def __init__(
        self,
        mask: Tensor | None = None,
        *,
        is_causal: bool = False,
        padded: int = 0,
        **named: bool,
    ) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(4, 2, **{"batch_first": True, **named})
        self.mask, self.is_causal = mask, is_causal
        self.padded = padded

    def forward(self, x: Tensor) -> Tensor:
        h = x.transpose(1, 2) if self.layer.batch_first else x.permute(2, 0, 1)
        mask = self.mask
        if mask is not None and mask.dim() == 3:
            mask = mask.repeat(x.shape[0], 1, 1)
        length = x.shape[2]
        padding = torch.arange(length).expand(x.shape[0], -1) >= length - self.padded
        y: Tensor = self.layer(
            *[h] * 3,
            attn_mask=mask,
            is_causal=self.is_causal,
            key_padding_mask=padding if self.padded else None,
            need_weights=False,
        )[0]
        return y if self.layer.batch_first else y.transpose(0, 1)


LATER = torch.ones(12, 12, dtype=torch.bool).triu(1)


class Cells(nn.Module):
    """The last state of a cell that reads the steps of lines one by one."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state: Tensor | tuple[Tensor, Tensor] | None = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state[0] * state[1] if isinstance(state, tuple) else torch.as_tensor(state)


def lines() -> nn.Module:
    return nn.Conv1d(2, 4, 3, padding=1)


def pictures() -> nn.Module:
    return nn.Conv2d(2, 4, 3, padding=1)


def volumes() -> nn.Module:
    return nn.Conv3d(2, 4, 3, padding=1)


LINE, PICTURE, VOLUME = (2, 12), (2, 8, 9), (2, 4, 5, 6)

GROUPS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[Part]]] = {
    "convolutions": (
        pictures,
        PICTURE,
        [
            nn.Conv2d(4, 6, 3, groups=2),
            nn.Conv2d(4, 8, 3, stride=2, groups=2, padding=1),
            nn.Conv2d(4, 4, 3, padding=1, groups=4),
            nn.Conv2d(4, 4, 3, padding=1, stride=2, groups=4, bias=False),
            nn.Conv2d(4, 8, 3, padding=1, groups=4),
            nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=4),
            nn.Conv2d(4, 4, (5, 3), padding=(2, 1), stride=(2, 1), groups=4),
            nn.Conv2d(4, 4, (7, 2), padding=(6, 1), dilation=(2, 1), groups=4),
            nn.Conv2d(4, 8, 3, padding=1, stride=3, groups=4),
            nn.Conv2d(4, 5, 1),
            nn.Conv2d(4, 5, 1, stride=2),
            nn.Conv2d(4, 5, 1, padding=1),
            nn.Conv2d(4, 5, 4, padding="same"),
            nn.Conv2d(4, 5, 3, padding=1, padding_mode="circular"),
            nn.Conv2d(4, 5, 3, padding=1, padding_mode="reflect"),
            nn.ConvTranspose2d(4, 5, 3, stride=2, padding=1, output_padding=1),
            nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2),
            nn.ConvTranspose2d(4, 5, 3, dilation=2),
            nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3)),
        ],
    ),
    "rules of fast steps": (
        pictures,
        PICTURE,
        [
            nn.Sequential(nn.Conv2d(4, 256, 1, stride=3), nn.Conv2d(256, 256, 3, padding=1)),
            nn.Sequential(
                nn.Conv2d(4, 4, 1, stride=2),
                nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=4),
            ),
            nn.Sequential(
                nn.Conv2d(4, 4, 1, stride=2),
                nn.Conv2d(4, 4, (3, 2), padding=1, stride=2, groups=4, bias=False),
            ),
            nn.Sequential(nn.BatchNorm2d(4), nn.ReLU6()),
            nn.BatchNorm2d(4, affine=False),
            nn.BatchNorm2d(4).eval(),
            nn.LayerNorm([8, 9]),
            lambda x: x[:, 0] * x[:, 2] + x[:, 1] * x[:, 3],
            lambda x: functional.scaled_dot_product_attention(x, x, x),
            lambda x: functional.scaled_dot_product_attention(
                x, x, x, torch.arange(8).unsqueeze(1) > torch.arange(8)
            ),
        ],
    ),
    "attention": (
        lines,
        LINE,
        [
            Attending(),
            Attending(LATER, bias=False, batch_first=False),
            Attending(LATER, is_causal=True, padded=3),
            Attending(torch.linspace(-1.0, 1.0, 288).view(2, 12, 12)),
            Attending(padded=12),
            Attending(add_bias_kv=True),
            lambda x: functional.scaled_dot_product_attention(x, x, x[:, :, :7], scale=0.3),
            lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True),
        ],
    ),
    "convolutions of lines": (
        lines,
        LINE,
        [
            nn.Conv1d(4, 4, 3, groups=4, padding=1),
            nn.ConvTranspose1d(4, 3, 4, stride=2, padding=1),
            nn.MaxPool1d(3, 2),
            nn.MaxPool1d(2),
            nn.AvgPool1d(3, 2),
            nn.AdaptiveAvgPool1d(5),
            nn.AdaptiveMaxPool1d(5),
            nn.Upsample(scale_factor=2, mode="linear"),
        ],
    ),
    "convolutions of volumes": (
        volumes,
        VOLUME,
        [
            nn.Conv3d(4, 3, 2),
            nn.Conv3d(4, 4, 2, groups=4),
            nn.MaxPool3d(2),
            nn.MaxPool3d(3, 2, 1),
            nn.AvgPool3d(2),
            nn.AdaptiveAvgPool3d(2),
            nn.BatchNorm3d(4),
        ],
    ),
    "recurrent layers": (
        lines,
        LINE,
        [
            States(nn.GRU(12, 5, 2, batch_first=True, bidirectional=True)),
            States(nn.LSTM(12, 5, 2, batch_first=True, bidirectional=True)),
            States(nn.GRU(12, 5, bias=False), is_first=True, has_start=True),
            States(nn.LSTM(12, 5, bias=False), is_first=True, has_start=True),
            States(nn.LSTM(12, WIDE), is_first=True, has_start=True),
            States(nn.LSTM(12, 5, proj_size=3, batch_first=True)),
            States(nn.RNN(12, 5, nonlinearity="relu", batch_first=True)),
        ],
    ),
    "cells and one step": (
        lines,
        LINE,
        [
            Cells(nn.GRUCell(12, 5)),
            Cells(nn.LSTMCell(12, 5)),
            Cells(nn.RNNCell(12, 5)),
            OneStep(nn.GRU(12, 5, batch_first=True)),
            OneStep(nn.LSTM(12, 5, batch_first=True)),
        ],
    ),
    "pools": (
        pictures,
        PICTURE,
        [
            nn.MaxPool2d(3, 2, 1),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.MaxPool2d(2, 1, dilation=2),
            nn.AvgPool2d(3, 2, ceil_mode=True),
            nn.AvgPool2d(3, 2, 1, count_include_pad=False),
            nn.AvgPool2d(3, 2, 1, ceil_mode=True),
            nn.AvgPool2d(3, 2, divisor_override=5),
            nn.AdaptiveAvgPool2d((3, 4)),
            nn.AdaptiveAvgPool2d((10, 7)),
            nn.AdaptiveMaxPool2d((3, 4)),
            nn.AdaptiveMaxPool2d(1),
            nn.LPPool2d(2, 2),
            lambda x: functional.max_unpool2d(
                *functional.max_pool2d(x[..., :8], 2, return_indices=True), [2, 2]
            ),
        ],
    ),
    "activations": (
        pictures,
        PICTURE,
        [
            *[nn.ReLU6(), nn.SELU(), nn.CELU(), nn.Softsign(), nn.Tanhshrink(), nn.Hardshrink()],
            *[nn.Softshrink(), nn.LogSigmoid(), nn.Softmin(1), nn.GLU(1), nn.Threshold(0.1, 0.3)],
            *[nn.Softmax2d(), nn.LogSoftmax(1), nn.PReLU(4), nn.GELU(), nn.GELU("tanh")],
        ],
    ),
    "norms": (
        pictures,
        PICTURE,
        [
            nn.BatchNorm2d(4, track_running_stats=False),
            nn.InstanceNorm2d(4),
            nn.InstanceNorm2d(4, affine=True),
            nn.InstanceNorm2d(4, track_running_stats=True),
            nn.LocalResponseNorm(3),
            nn.GroupNorm(2, 4),
            nn.LayerNorm(9, elementwise_affine=False),
            nn.RMSNorm(9),
            lambda x: functional.layer_norm(x.permute(0, 2, 3, 1), (4,)),
            lambda x: functional.normalize(x, dim=1),
            lambda x: functional.cosine_similarity(x, x.roll(1, 1), dim=1),
        ],
    ),
    "pads and sizes": (
        pictures,
        PICTURE,
        [
            nn.ZeroPad2d((1, 2, 0, 1)),
            nn.ConstantPad2d(1, 0.7),
            nn.ReflectionPad2d(2),
            nn.ReplicationPad2d((1, 2, 1, 0)),
            nn.CircularPad2d(1),
            nn.PixelShuffle(2),
            nn.ChannelShuffle(2),
            nn.Upsample(scale_factor=2),
            nn.Upsample(size=(5, 7)),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
            nn.Upsample(scale_factor=2, mode="bicubic"),
            lambda x: functional.pad(x, (-1, 1)),
            lambda x: functional.interpolate(x, size=(4, 3), mode="area"),
            lambda x: functional.pixel_unshuffle(x[:, :, :, :8], 2),
        ],
    ),
    "columns": (
        pictures,
        PICTURE,
        [
            nn.Unfold(2),
            nn.Sequential(
                nn.Unfold(3, padding=1, stride=2), nn.Fold((8, 9), 3, padding=1, stride=2)
            ),
        ],
    ),
    "parts and joins": (
        pictures,
        PICTURE,
        [
            lambda x: x[:, 1:, ::2, :-1],
            lambda x: x[:, 0],
            lambda x: x[:, :, -1],
            lambda x: torch.cat([x, x * x], 1),
            lambda x: torch.stack([x, x + 1.0], 2),
            lambda x: torch.cat(torch.split(x, [1, 3], 1)[::-1], 1),
            lambda x: x.chunk(2, 1)[0] * x.chunk(2, 1)[1],
            lambda x: torch.stack(x.unbind(1)[:2], 1),
            lambda x: x.flip(2, 3),
            lambda x: x.roll((1, 2), (2, 3)),
            lambda x: x[:, [2, 0, 0]],
            lambda x: x[:, :, [0, 1], [2, 3]],
            lambda x: x.index_select(1, torch.tensor([2, 0])),
            lambda x: x.gather(1, x.argmax(1, keepdim=True)),
            lambda x: x.flatten(1).gather(1, torch.arange(80).expand(x.shape[0], -1)),
            lambda x: x.repeat(1, 2, 1, 1),
            lambda x: x.repeat_interleave(2, 1),
            lambda x: x.masked_fill(x > 0.3, 0.1),
            lambda x: x.tril(),
            lambda x: x.triu(1),
            lambda x: x.movedim(1, -1) * torch.arange(4.0),
        ],
    ),
    "in place": (
        pictures,
        PICTURE,
        [
            nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2, inplace=True)),
            nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.ReLU(inplace=True)),
            lambda x: (x * 2.0)[:, 1:].mul_(x[:, :3]),
        ],
    ),
    "products": (
        pictures,
        PICTURE,
        [
            lambda x: torch.einsum("bchw,bdhw->bcd", x, x),
            lambda x: x @ x.transpose(2, 3),
            lambda x: torch.matmul(x.flatten(2), x.flatten(2).transpose(1, 2)),
            lambda x: x[:, 0, 0].unsqueeze(2) * x[:, 1, 1].unsqueeze(1),
            lambda x: x.prod(1),
            lambda x: torch.prod(x, 3, keepdim=True),
            lambda x: torch.cdist(x[:, 0], x[:, 1]),
            lambda x: torch.cdist(x[:, 0], x[:, 0], p=1.0),
            lambda x: torch.addcmul(x, x, x, value=0.5),
            lambda x: torch.lerp(x, x * x, 0.3),
            lambda x: torch.sub(x, x * x, alpha=0.3),
        ],
    ),
    "reductions": (
        pictures,
        PICTURE,
        [
            lambda x: x.max(2).values,
            lambda x: x.min(2).values,
            lambda x: x.amax((2, 3)),
            lambda x: x.amin((2, 3)),
            lambda x: x.std((2, 3)),
            lambda x: x.var(1, unbiased=False),
            lambda x: x.norm(dim=1),
            lambda x: x.cumsum(2),
            lambda x: x.logsumexp(1),
            lambda x: x.topk(2, 1).values,
            lambda x: x.sort(1).values,
        ],
    ),
    "functions": (
        pictures,
        PICTURE,
        [
            *[torch.sin, torch.cos, torch.atan, torch.asinh],
            lambda x: torch.sinh(x.tanh()) + torch.tan(x.tanh()) + torch.exp2(x.tanh()),
            lambda x: x**3,
            lambda x: (x * x + 1.0) ** 0.5,
            lambda x: (x * x + 1.0) ** x.tanh(),
            lambda x: torch.log2(x * x + 1.0),
            lambda x: (x * x + 1.0).rsqrt(),
            lambda x: torch.acos(x.tanh() * 0.9),
            lambda x: torch.maximum(x, x * x),
            lambda x: torch.minimum(x, x * x),
            lambda x: x.clamp(-0.1, 0.2),
            lambda x: x - x.floor().detach(),
            lambda x: x - x.round().detach(),
            lambda x: torch.remainder(x, 0.3),
            lambda x: 1.0 - x,
            lambda x: x * (x > 0.0),
        ],
    ),
}

JOINED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[Part]]] = {
    "pictures": (
        pictures,
        PICTURE,
        [
            nn.Conv2d(4, 5, 3, padding=1),
            nn.Conv2d(4, 5, 3, bias=False),
            nn.Conv2d(4, 5, 4, padding=1),
            nn.Conv2d(4, 5, 3, padding=2, dilation=2),
            nn.Conv2d(4, 5, 3, padding=1, stride=2),
            nn.Conv2d(4, 5, 2, stride=3),
            nn.Conv2d(4, 5, (5, 3), padding=(2, 1), stride=(2, 1)),
            nn.Conv2d(4, 5, (2, 3), padding=(1, 0), stride=(3, 2), dilation=(2, 1)),
            nn.Conv2d(4, 5, 1, stride=2),
        ],
    ),
    "lines": (
        lines,
        LINE,
        [nn.Conv1d(4, 5, 3, padding=1), nn.Conv1d(4, 5, 4, stride=3, padding=2, dilation=2)],
    ),
}
"""Convolutions whose input gradient, and with stride 1 also the result, joins the pictures."""


@pytest.mark.filterwarnings("ignore:Using padding=:UserWarning")
@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("name", some_in_fast(GROUPS, "convolutions"))
def test_operations_are_exact_and_run_on_the_device_engine(name: str) -> None:
    torch.manual_seed(1)
    stem, x_shape, parts = GROUPS[name]
    artifact = export_task(Parts(stem(), x_shape, *parts), "test", "test", x_shape, 3)
    self_check(OnnxEngine(artifact))


def joined_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every dense convolution read all pictures as one."""
    for limit in ("JOINED_PAIRS", "JOINED_FORWARD_PAIRS"):
        monkeypatch.setattr(convolution, limit, 1)
    for limit in ("JOINED_POSITIONS", "JOINED_FORWARD_POSITIONS"):
        monkeypatch.setattr(convolution, limit, 1000)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("name", ["pictures", "lines"])
def test_joined_pictures_are_exact(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    joined_everywhere(monkeypatch)
    stem, x_shape, parts = JOINED[name]
    torch.manual_seed(1)
    artifact = export_task(Parts(stem(), x_shape, *parts), "test", "test", x_shape, 3)
    self_check(OnnxEngine(artifact))
    graph = onnx.load_model_from_string(artifact.train).graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("Pad") >= len(parts), "rows of zeros part the pictures"


class Counting(nn.Module):
    """Makes the number of examples an integer."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.last = nn.Parameter(torch.zeros(1, 4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(x + self.bias.expand(len(x), -1))
        return y


def test_a_module_that_fixes_the_batch_is_named() -> None:
    with pytest.raises(
        Unsupported, match=r"batches of any size, .* as len\(x\) does; use x\.shape"
    ):
        export_task(Counting(), "test", "test", (4,), 3)


class Turned(nn.Module):
    """Reads examples as the steps of one sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.last = nn.GRU(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.cells(x)[0][:, -1])
        return y


def test_a_layer_that_reads_the_batch_as_its_steps_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"cells: .*gru.* number of steps.*batch_first=True"):
        export_task(Turned(), "test", "test", (5, 4), 3)


def test_statistics_without_momentum_are_refused() -> None:
    norm = nn.BatchNorm1d(4, momentum=None)
    with pytest.raises(Unsupported, match=r"0: the running statistics must have a momentum"):
        export_task(nn.Sequential(norm, nn.Linear(4, 3)), "test", "test", (4,), 3)


def test_a_graph_of_too_many_operations_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "MOST_NODES", 3)
    graph = lowering.GraphBuilder()
    value = graph.op("Tanh", graph.op("Tanh", graph.op("Tanh", "x")))
    with pytest.raises(Unsupported, match="must have at most 3 operations, got more"):
        graph.op("Tanh", value)
