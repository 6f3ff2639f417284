"""What torch expresses by simpler operations while it records a module, and what it keeps."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fairbed.coordinator.task import attention, recurrent

aten = torch.ops.aten

MORE = (
    aten._trilinear,
    aten.replication_pad1d_backward,
    aten.replication_pad2d_backward,
    aten.replication_pad3d_backward,
    aten.reflection_pad1d_backward,
    aten.reflection_pad2d_backward,
    aten.reflection_pad3d_backward,
    aten.upsample_nearest1d_backward,
    aten.linalg_vector_norm,
    aten.logsumexp,
    aten.glu_backward,
)
"""Decomposed besides the standard ones: their parts have rules."""

KEPT = (
    aten._safe_softmax.default,
    aten._softmax_backward_data.default,
    aten.gelu_backward.default,
    aten.hardtanh_backward.default,
    aten.native_batch_norm_backward.default,
    aten.native_layer_norm_backward.default,
    aten.select_backward.default,
)
"""Not decomposed: their rules are simpler or faster."""


def unrecordable(model: torch.nn.Module) -> str:
    """Return which layer no graph can have, and what to do; empty if there is none."""
    for name, layer in model.named_modules():
        if getattr(layer, "momentum", 0.0) is None and getattr(layer, "track_running_stats", False):
            return (
                f"{name}: the running statistics must have a momentum, got None, which divides by "
                "a count of batches; set momentum=0.1"
            )
    return ""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the operations that torch replaces, and by what."""
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    table.update(get_decompositions(MORE))
    for kept in KEPT:
        table.pop(kept, None)
    return table


def _pad(
    x: torch.Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> torch.Tensor:
    """Return a padded tensor, as slices and joins: the gradient of torch's own fixes the batch."""
    for at in range(len(pad) // 2):
        dim, low, high = x.dim() - 1 - at, pad[2 * at], pad[2 * at + 1]
        if low < 0 or high < 0:
            start, stop = max(0, -low), x.shape[dim] - max(0, -high)
            x = x.narrow(dim, start, stop - start)
        first = [_border(x, dim, low, mode, value, is_end=False)] if low > 0 else []
        last = [_border(x, dim, high, mode, value, is_end=True)] if high > 0 else []
        x = torch.cat([*first, x, *last], dim) if first or last else x
    return x


def _border(
    x: torch.Tensor, dim: int, count: int, mode: str, value: float | None, *, is_end: bool
) -> torch.Tensor:
    """Return what a pad adds before or after a tensor along an axis."""
    size = x.shape[dim]
    if mode == "constant":
        shape = [*x.shape[:dim], count, *x.shape[dim + 1 :]]
        return torch.full(shape, value or 0, dtype=x.dtype)
    if mode == "circular":
        return x.narrow(dim, 0 if is_end else size - count, count)
    if mode == "reflect":
        return x.narrow(dim, size - 1 - count if is_end else 1, count).flip(dim)
    edge = x.narrow(dim, size - 1 if is_end else 0, 1)
    return torch.cat([edge] * count, dim)


def _same(convolution: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a convolution with `padding="same"`, whose pads may differ at the two ends."""

    def rewritten(
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> torch.Tensor:
        if padding in ("same", "valid"):
            rank = weight.dim() - 2
            steps = [dilation] * rank if isinstance(dilation, int) else list(dilation) * rank
            pads: list[int] = []
            for size, step in zip(reversed(weight.shape[2:]), reversed(steps[:rank]), strict=True):
                total = step * (int(size) - 1)
                pads += [total // 2, total - total // 2]
            x = _pad(x, pads) if padding == "same" else x
            padding = 0
        return convolution(x, weight, bias, stride, padding, dilation, groups)

    return rewritten


def _weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """Return v g / |v|, with the norm over all axes but one; -1 stands for none left out."""
    axes = [axis for axis in range(v.dim()) if dim == -1 or axis != dim % v.dim()]
    return v * (g / (v * v).sum(axes, keepdim=True).sqrt())


def _bilinear(
    x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x W_o z + b_o for each output o."""
    found = ((x @ weight).movedim(0, -2) * z.unsqueeze(-2)).sum(-1)
    return found if bias is None else found + bias


def _unfold(
    x: torch.Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> torch.Tensor:
    """Return the windows of pictures as columns, shape (B, C k k, positions)."""
    kernel, steps, pads, strides = (
        [given] * 2 if isinstance(given, int) else list(given)
        for given in (kernel_size, dilation, padding, stride)
    )
    x = _pad(x, [pads[1], pads[1], pads[0], pads[0]])
    counts = [
        (size - step * (k - 1) - 1) // by + 1
        for size, k, step, by in zip(x.shape[2:], kernel, steps, strides, strict=True)
    ]
    rows, columns = (step * (count - 1) + 1 for step, count in zip(strides, counts, strict=True))
    parts = [
        x[:, :, i : i + rows : strides[0], j : j + columns : strides[1]]
        for i in range(0, kernel[0] * steps[0], steps[0])
        for j in range(0, kernel[1] * steps[1], steps[1])
    ]
    return torch.stack(parts, 2).flatten(3).flatten(1, 2)


def _local_response_norm(
    x: torch.Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> torch.Tensor:
    """Return x / (k + alpha mean over neighbouring channels of x^2)^beta."""
    squares = _pad(x * x, [0, 0] * (x.dim() - 2) + [size // 2, (size - 1) // 2])
    channels = x.shape[1]
    total = squares.narrow(1, 0, channels)
    for at in range(1, size):
        total = total + squares.narrow(1, at, channels)
    return x / (k + total * (alpha / size)) ** beta


def _rms_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """Normalise with the epsilon of float32, which torch takes from the type of x."""
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return torch.rms_norm(x, list(normalized_shape), weight, eps)


def _by_layers(recurrent: Callable[..., Any]) -> Callable[..., Any]:
    """Return a recurrent network one layer at a time: torch's own recording has no dropout.

    Masks between layers have the axes of `recurrent.gru`: (T, B, H), also where the batch is first.
    """

    def rewritten(x: torch.Tensor, *given: Any) -> Any:
        if not isinstance(given[1], Sequence):  # a packed sequence
            return recurrent(x, *given)
        states, weights, has_biases, layers, dropout, training, is_bidirectional, is_first = given
        directions, count = 1 + bool(is_bidirectional), len(weights) // layers
        all_states = [states] if isinstance(states, torch.Tensor) else list(states)
        ends: list[Sequence[torch.Tensor]] = []
        x = x.transpose(0, 1) if is_first else x
        for layer in range(layers):
            x = functional.dropout(x, dropout, training) if layer else x
            own = [state.narrow(0, layer * directions, directions) for state in all_states]
            start = own[0] if isinstance(states, torch.Tensor) else own
            part = weights[layer * count : (layer + 1) * count]
            x, *last = recurrent(
                x, start, part, has_biases, 1, 0.0, training, is_bidirectional, False
            )
            ends.append(last)
        y = x.transpose(0, 1) if is_first else x
        return y, *(torch.cat(parts) for parts in zip(*ends, strict=True))

    return rewritten


def _fold(
    x: torch.Tensor,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> torch.Tensor:
    """Return the sums of columns at their places: a transposed convolution that moves values."""
    sizes, kernel, steps, pads, strides = (
        [given] * 2 if isinstance(given, int) else list(given)
        for given in (output_size, kernel_size, dilation, padding, stride)
    )
    reach = [
        size + 2 * pad - step * (k - 1) - 1
        for size, k, step, pad in zip(sizes, kernel, steps, pads, strict=True)
    ]
    counts = [room // by + 1 for room, by in zip(reach, strides, strict=True)]
    uncovered = [room % by for room, by in zip(reach, strides, strict=True)]
    places = kernel[0] * kernel[1]
    channels = x.shape[1] // places
    one_place = torch.arange(places).unsqueeze(1) == torch.arange(places)
    moved = one_place.to(x.dtype).view(places, 1, *kernel).repeat(channels, 1, 1, 1)
    columns = x.reshape(x.shape[0], x.shape[1], *counts)
    return functional.conv_transpose2d(
        columns, moved, None, strides, pads, uncovered, channels, steps
    )


def _cdist(
    x: torch.Tensor, z: torch.Tensor, p: float = 2.0, compute_mode: str | None = None
) -> torch.Tensor:
    """Return the p-norms of all differences; that of equal points has no gradient, as in torch."""
    sizes = (x.unsqueeze(-2) - z.unsqueeze(-3)).abs()
    if p == float("inf"):
        return sizes.amax(-1)
    if p == 1.0:
        return sizes.sum(-1)
    total = (sizes * sizes if p == 2.0 else sizes**p).sum(-1)
    is_zero = total == 0.0
    total = total.masked_fill(is_zero, 1.0)
    root = total.sqrt() if p == 2.0 else total ** (1.0 / p)
    return root.masked_fill(is_zero, 0.0)


def _prod(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """Return products along an axis, by halves: torch's gradient looks for zeros."""
    if dim is None:
        return torch.prod(x)
    while (size := x.shape[dim]) > 1:
        half = size // 2
        pairs = x.narrow(dim, 0, half) * x.narrow(dim, half, half)
        rest = [x.narrow(dim, size - 1, 1)] if size % 2 else []
        x = torch.cat([pairs, *rest], dim) if rest else pairs
    return x if keepdim else x.squeeze(dim)


def _instance_norm(
    x: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Normalise each channel of each example: torch stacks the examples as channels."""
    if not use_input_stats:
        return functional.batch_norm(x, running_mean, running_var, weight, bias, eps=eps)
    axes, values = list(range(2, x.dim())), x.detach()
    for running, found in ((running_mean, values.mean(axes)), (running_var, values.var(axes))):
        if running is not None:
            running.copy_(running * (1.0 - momentum) + found.mean(0) * momentum)
    return torch.group_norm(x, x.shape[1], weight, bias, eps)


def _embedding_bag(
    x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor | None = None, **given: Any
) -> torch.Tensor:
    """Return the sum, mean or maximum of the rows of each bag; all bags have one size."""
    is_unlike = x.dim() != 2 or offsets is not None or given.get("max_norm") is not None
    if is_unlike or given.get("scale_grad_by_freq"):
        plain: torch.Tensor = functional.embedding_bag(x, weight, offsets, **given)
        return plain
    mode, padding = given.get("mode", "mean"), given.get("padding_idx")
    rows = functional.embedding(x, weight, padding)
    kept = None if padding is None else (x != padding % weight.shape[0]).unsqueeze(2)
    if mode == "max":
        if kept is None:
            return rows.max(1).values
        most = rows.masked_fill(~kept, float("-inf")).max(1).values
        return most.masked_fill(~kept.any(1), 0.0)
    if (factors := given.get("per_sample_weights")) is not None:
        rows = rows * factors.unsqueeze(2)
    if kept is None:
        return rows.sum(1) if mode == "sum" else rows.mean(1)
    total: torch.Tensor = (rows * kept).sum(1)
    return total if mode == "sum" else total / kept.to(rows.dtype).sum(1).clamp(min=1.0)


_ALIKE: Mapping[Any, Callable[..., Any]] = {
    functional.rms_norm: _rms_norm,
    torch.gru: _by_layers(torch.gru),
    torch.lstm: _by_layers(torch.lstm),
    torch.rnn_tanh: _by_layers(torch.rnn_tanh),
    torch.rnn_relu: _by_layers(torch.rnn_relu),
}
"""Functions whose result depends on the type of numbers, or that draw their own random masks."""

_RECORDED: Mapping[Any, Callable[..., Any]] = {
    functional.pad: _pad,
    functional.unfold: _unfold,
    functional.fold: _fold,
    functional.bilinear: _bilinear,
    functional.local_response_norm: _local_response_norm,
    functional.embedding_bag: _embedding_bag,
    functional.instance_norm: _instance_norm,
    torch.cdist: _cdist,
    torch.prod: _prod,
    torch.Tensor.prod: _prod,
    torch._weight_norm: _weight_norm,
    torch.conv1d: _same(torch.conv1d),
    torch.conv2d: _same(torch.conv2d),
    torch.conv3d: _same(torch.conv3d),
    functional.scaled_dot_product_attention: partial(
        attention.attention, functional.scaled_dot_product_attention
    ),
    functional.multi_head_attention_forward: partial(
        attention.multi_head_attention, functional.multi_head_attention_forward
    ),
    torch.gru: partial(recurrent.gru, _by_layers(torch.gru)),
    torch.lstm: partial(recurrent.lstm, _by_layers(torch.lstm)),
}
"""Functions whose own gradient cannot be recorded for every size of a batch, or is slow."""


class Rewriting(TorchFunctionMode):
    """Replaces functions of a module by others with the same result.

    Args:
        is_recording: The module is being recorded, and runs without values.
    """

    def __init__(self, *, is_recording: bool = False) -> None:
        super().__init__()
        self._replaced = {**_ALIKE, **(_RECORDED if is_recording else {})}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function, or what replaces it."""
        return self._replaced.get(func, func)(*args, **(kwargs or {}))
