"""GRU and LSTM as operations that torch does not take apart while it records a module.

torch writes a recurrent layer as one graph node per gate and time step, and again as many for its
gradient. As one operation with a gradient of its own, a layer is lowered as a whole. These
operations have shapes and gradients, but no values: they exist in recorded graphs alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

torch.library.define(
    "fairbed::gru",
    "(Tensor x, Tensor h, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh)"
    " -> (Tensor y, Tensor gates, Tensor new, Tensor linear)",
)
torch.library.define(
    "fairbed::gru_backward",
    "(Tensor dy, Tensor x, Tensor h, Tensor w_ih, Tensor w_hh, Tensor y, Tensor gates, Tensor new,"
    " Tensor linear)"
    " -> (Tensor dx, Tensor dh, Tensor dw_ih, Tensor dw_hh, Tensor db_ih, Tensor db_hh)",
)
torch.library.define(
    "fairbed::lstm",
    "(Tensor x, Tensor h, Tensor c, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh)"
    " -> (Tensor y, Tensor c_n, Tensor gates, Tensor new, Tensor out, Tensor cells)",
)
torch.library.define(
    "fairbed::lstm_backward",
    "(Tensor dy, Tensor dc, Tensor x, Tensor h, Tensor c, Tensor w_ih, Tensor w_hh, Tensor y,"
    " Tensor gates, Tensor new, Tensor out, Tensor cells)"
    " -> (Tensor dx, Tensor dh, Tensor dc0, Tensor dw_ih, Tensor dw_hh, Tensor db_ih,"
    " Tensor db_hh)",
)


def _of_steps(x: Tensor, width: int) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], width)


def _gru_shapes(x: Tensor, h: Tensor, *weights: Any) -> tuple[Tensor, ...]:
    return tuple(_of_steps(x, n * h.shape[1]) for n in (1, 2, 1, 1))


def _gru_gradient_shapes(dy: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
    x, h, w_ih, w_hh = given[:4]
    biases = (w_ih.new_empty(w_ih.shape[0]) for _ in range(2))
    return *(torch.empty_like(part) for part in (x, h, w_ih, w_hh)), *biases


def _lstm_shapes(x: Tensor, h: Tensor, c: Tensor, *weights: Any) -> tuple[Tensor, ...]:
    y, *gates = (_of_steps(x, n * h.shape[1]) for n in (1, 2, 1, 1, 1))
    return y, torch.empty_like(c), *gates


def _lstm_gradient_shapes(dy: Tensor, dc: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
    x, h, c, w_ih, w_hh = given[:5]
    biases = (w_ih.new_empty(w_ih.shape[0]) for _ in range(2))
    return *(torch.empty_like(part) for part in (x, h, c, w_ih, w_hh)), *biases


_SHAPES: Mapping[str, Callable[..., tuple[Tensor, ...]]] = {
    "gru": _gru_shapes,
    "gru_backward": _gru_gradient_shapes,
    "lstm": _lstm_shapes,
    "lstm_backward": _lstm_gradient_shapes,
}
for _name, _shapes in _SHAPES.items():
    torch.library.register_fake(f"fairbed::{_name}", _shapes)


def _keep_gru(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.has_bias = inputs[4] is not None
    ctx.save_for_backward(*inputs[:4], *output)


def _gru_gradient(ctx: Any, dy: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
    found = torch.ops.fairbed.gru_backward(dy, *ctx.saved_tensors)
    return *found[:4], *(found[4:] if ctx.has_bias else (None, None))


def _keep_lstm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.has_bias = inputs[5] is not None
    y, _, *gates = output
    ctx.save_for_backward(*inputs[:5], y, *gates)


def _lstm_gradient(ctx: Any, dy: Tensor, dc: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
    found = torch.ops.fairbed.lstm_backward(dy, dc, *ctx.saved_tensors)
    return *found[:5], *(found[5:] if ctx.has_bias else (None, None))


torch.library.register_autograd("fairbed::gru", _gru_gradient, setup_context=_keep_gru)
torch.library.register_autograd("fairbed::lstm", _lstm_gradient, setup_context=_keep_lstm)


def gru(otherwise: Callable[..., Any], x: Tensor, *given: Any) -> Any:
    """Return what `torch.gru` returns: the states of the last layer, and each last state.

    Args:
        otherwise: Computes that of a packed sequence.
        x: As for `torch.gru`.
        given: As for `torch.gru`.
    """
    if isinstance(given[0], Tensor) and isinstance(given[1], Sequence):
        y, (h,) = _stacked(x, (given[0],), *given[1:])
        return y, h
    return otherwise(x, *given)


def lstm(otherwise: Callable[..., Any], x: Tensor, *given: Any) -> Any:
    """Return what `torch.lstm` returns.

    Args:
        otherwise: Computes that of a packed sequence, or one with projections.
        x: As for `torch.lstm`.
        given: As for `torch.lstm`.
    """
    if isinstance(given[0], Sequence) and len(given[1]) == _count(*given[2:]):
        y, (h, c) = _stacked(x, tuple(given[0]), *given[1:])
        return y, h, c
    return otherwise(x, *given)


def _count(has_biases: bool, layers: int, *options: Any) -> int:
    """Return the number of weights of an LSTM without projections."""
    is_bidirectional = bool(options[2])
    return layers * (4 if has_biases else 2) * (2 if is_bidirectional else 1)


def _stacked(
    x: Tensor,
    states: tuple[Tensor, ...],
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    is_bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, list[Tensor]]:
    """Return the states of the last layer, and the last ones of all, each shape (layers, B, H)."""
    x = x.transpose(0, 1) if batch_first else x
    directions, count = 2 if is_bidirectional else 1, 4 if has_biases else 2
    last: list[tuple[Tensor, ...]] = []
    for layer in range(layers):
        if layer:
            x = functional.dropout(x, dropout, training)
        found = []
        for direction in range(directions):
            at = layer * directions + direction
            own = weights[at * count : (at + 1) * count]
            y, ends = _layer(x.flip(0) if direction else x, [s[at] for s in states], own)
            found.append(y.flip(0) if direction else y)
            last.append(ends)
        x = torch.cat(found, 2) if is_bidirectional else found[0]
    y = x.transpose(0, 1) if batch_first else x
    return y, [torch.stack(parts) for parts in zip(*last, strict=True)]


def _layer(
    x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the states of one layer in one direction, shape (T, B, H), and the last ones."""
    given = [*weights, None, None][:4]
    if len(states) == 1:
        y = torch.ops.fairbed.gru(x, *states, *given)[0]
        return y, (y[-1],)
    y, c = torch.ops.fairbed.lstm(x, *states, *given)[:2]
    return y, (y[-1], c)
