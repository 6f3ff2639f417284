"""Tasks whose sequences are padded to several lengths: one task of each length, in one artifact.

The graphs of a recurrent network are unrolled, and constants such as causal masks depend on the
length, so each length has graphs of its own, checked like any others. All share one layout.
"""

import copy
from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from torch import nn

from fairbed.coordinator.task.errors import Unsupported
from fairbed.wire.artifact import Artifact, TaskSpec
from fairbed.wire.losses import first_output
from fairbed.wire.messages import MAX_TEXT
from fairbed.wire.plugins import users_code
from fairbed.wire.preparation import PADDING

TRIED = 4
"""Sequences of each length on which padding is tested."""

TOLERANCE = 1e-3
"""Largest change of an output by padding, relative to the largest output: rounding is 1e-6."""


def with_lengths(
    artifact: Artifact, lengths: Sequence[int], shorter: tuple[Artifact, ...]
) -> Artifact:
    """Return a task with those of its shorter lengths.

    Args:
        artifact: The task of the longest sequences.
        lengths: All lengths, ascending; empty or one: there are no others.
        shorter: The task of each length but the longest.
    """
    if not shorter:
        return artifact
    spec = msgspec.structs.replace(artifact.spec, lengths=tuple(lengths))
    return msgspec.structs.replace(artifact, spec=spec, shorter=shorter)


def padding_remarks(model: nn.Module, spec: TaskSpec, shorter: Sequence[int]) -> list[str]:
    """Return a line if the outputs of a module depend on padding, and so on the bucket.

    Args:
        model: Maps tokens, shape (B, T), to logits, for any T up to that of the task.
        spec: The task of the longest sequences.
        shorter: Shorter lengths.

    Raises:
        Unsupported: The module does not accept a shorter length.
    """
    longest, worst, where = spec.x_shape[:1], 0.0, 0
    rng = np.random.default_rng(0)
    module = copy.deepcopy(model).eval()
    for length in shorter:
        shape = (TRIED, length, *spec.x_shape[1:])
        x = rng.integers(min(PADDING + 1, spec.x_classes - 1), spec.x_classes, shape)
        padded = np.full((TRIED, *spec.x_shape), PADDING)
        padded[:, :length] = x

        def broken(problem: str, length: int = length) -> Unsupported:
            return Unsupported(
                f"data.buckets: the model must accept sequences of {length} tokens as well as of "
                f"{longest[0]}, got {problem}; slice positions and masks to x.shape[1]"
            )

        with users_code(broken, Unsupported), torch.no_grad():
            whole, short = map(first_output, map(module, map(torch.from_numpy, (padded, x))))
            if spec.labels_tokens:
                axis = 2 if spec.classes_axis == "first" else 1
                whole = whole.narrow(axis, 0, length)
            if whole.shape != short.shape:
                raise ValueError(f"an output of shape {tuple(short.shape)}")
            change = float((whole - short).abs().max() / whole.abs().max().clamp(min=1e-12))
        if change > worst:
            worst, where = change, length
    if worst <= TOLERANCE:
        return []
    return [
        f"{spec.name}: with data.buckets the outputs must not depend on padding, got a change of "
        f"{worst:.2g} of the largest output between {where} and {longest[0]} tokens, so the bucket "
        "of a sequence decides its result; let forward() mask the padding, where x == 0"[:MAX_TEXT]
    ]
