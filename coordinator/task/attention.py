"""Attention as few operations, in place of torch's own while it records a module."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def attention(
    otherwise: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return what `scaled_dot_product_attention` returns; only the queries are scaled.

    Args:
        otherwise: Computes it with dropout, and with groups of queries.
        query: As for torch, shape (..., L, E).
        key: As for torch, shape (..., S, E).
        value: As for torch, shape (..., S, V).
        attn_mask: As for torch.
        dropout_p: As for torch.
        is_causal: As for torch.
        scale: As for torch.
        enable_gqa: As for torch.
    """
    if dropout_p or enable_gqa or (is_causal and attn_mask is not None):
        given = attn_mask, dropout_p, is_causal
        return otherwise(query, key, value, *given, scale=scale, enable_gqa=enable_gqa)
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query if factor == 1.0 else query * factor) @ key.transpose(-2, -1)
    if is_causal:  # each position sees the first one
        later = torch.arange(query.shape[-2]).unsqueeze(1) < torch.arange(key.shape[-2])
        scores = scores + _hidden(later)
    if attn_mask is None:
        return torch.softmax(scores, -1) @ value
    mask = _hidden(~attn_mask) if attn_mask.dtype == torch.bool else attn_mask
    weights: Tensor = torch._safe_softmax(scores + mask, -1)
    return weights @ value


def _hidden(mask: Tensor) -> Tensor:
    """Return what is added to scores: -inf where a mask is set."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill(mask, float("-inf"))


_NAMES = (
    *("width", "heads", "weight", "bias", "bias_k", "bias_v", "add_zero_attn", "dropout_p"),
    *("out_weight", "out_bias"),
)
"""Arguments of `multi_head_attention_forward` that follow the query, the key and the value."""


def multi_head_attention(
    otherwise: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *given: Any,
    **named: Any,
) -> Any:
    """Return what `multi_head_attention_forward` returns, of a sequence that attends to itself.

    The batch comes first throughout: torch's own turns the sequence around twice.

    Args:
        otherwise: Computes it with other arguments.
        query: As for torch, shape (T, B, E).
        key: As for torch.
        value: As for torch.
        given: As for torch.
        named: As for torch.
    """
    of = dict(zip(_NAMES, given, strict=True)) | named
    is_self = query is key and key is value and query.dim() == 3
    is_plain = is_self and of["bias_k"] is None and of.get("static_k") is None
    is_other = of.get("use_separate_proj_weight") or of.get("need_weights", True)
    drops = of["dropout_p"] > 0.0 and of.get("training", True)
    if not is_plain or is_other or drops or of["add_zero_attn"]:
        return otherwise(query, key, value, *given, **named)
    x, heads = query.transpose(0, 1), (of["heads"], of["width"] // of["heads"])
    weights, factor = list(of["weight"].chunk(3)), 1.0 / math.sqrt(heads[1])
    biases = [None] * 3 if of["bias"] is None else list(of["bias"].chunk(3))
    weights[0] = weights[0] * factor  # scales the queries, and is smaller than they are
    biases[0] = None if biases[0] is None else biases[0] * factor
    q, k, v = (
        torch.unflatten(functional.linear(x, weight, bias), 2, heads).transpose(1, 2)
        for weight, bias in zip(weights, biases, strict=True)
    )
    mask, padding = of.get("attn_mask"), of.get("key_padding_mask")
    is_causal = bool(of.get("is_causal")) and padding is None  # as torch, which merges the two
    mask = None if mask is None or is_causal else _hidden(mask)
    if mask is not None and mask.dim() == 3:
        mask = torch.unflatten(mask, 0, (-1, heads[0]))
    if padding is not None:
        of_keys = _hidden(padding).unsqueeze(1).unsqueeze(1)
        mask = of_keys if mask is None else mask + of_keys
    found = attention(otherwise, q, k, v, mask, is_causal=is_causal, scale=1.0)
    joined = found.transpose(1, 2).flatten(2)
    return functional.linear(joined, of["out_weight"], of["out_bias"]).transpose(0, 1), None
