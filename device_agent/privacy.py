"""Local noise: a device clips its update and adds Gaussian noise before anything is sent.

    D = w_k - w_t                      the update, all values of the model
    D = D min(1, C / |D|)              C = `clip`
    sent = w_t + D + z C e             z = `noise_multiplier`, e ~ N(0, 1) per value

Two updates of a device, whatever its data, differ by at most 2 C after the clip. So one update is a
Gaussian mechanism with noise z / 2 times its sensitivity. Encoding comes afterwards and costs no
privacy. What the noise covers, and what it does not: `docs/privacy.md`.

Source: Dwork and Roth, 2014, Appendix A; clip and noise of a whole update: McMahan et al., ICLR
2018 (arXiv:1710.06963), here on the device.
"""

import math
import os
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fairbed.wire.messages import EvaluateRequest, Privacy, Train
from fairbed.wire.tensors import Layout

Vector = NDArray[np.float32]

NOISE: Final = 3
"""Key of the random stream of seeded noise; 1 is that of stochastic rounding (`coding.ENCODING`),
2 one of the testbed."""


BLOCK: Final = 1 << 16
"""Values that are treated at a time: a large model takes little memory, and blocks fit a cache."""

Normals = Callable[[int], NDArray[np.float64]]
"""Returns that many further independent standard normal numbers."""


def secure_normals(n: int) -> NDArray[np.float64]:
    """Return `n` standard normal numbers.

    Box and Muller, 1958, on uniform numbers of 53 bits: the largest is 8.57.
    """
    half = -(-n // 2)
    bits = np.frombuffer(os.urandom(16 * half), dtype=np.uint64) >> np.uint64(11)
    uniform = bits.reshape(2, half) * 2.0**-53
    radius = np.sqrt(-2.0 * np.log1p(-uniform[0]))
    angle = 2.0 * np.pi * uniform[1]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:n]


class SeededNoise:
    """Noise that repeats: for emulated and replayed devices. It protects nothing."""

    def stream(self, seed: int) -> Normals:
        """Return the source of the noise of one update, keyed by the seed of its training."""
        rng = np.random.default_rng(np.random.SeedSequence([seed, NOISE]))
        return rng.standard_normal


def privatised(model: Vector, trained: Vector, privacy: Privacy, normals: Normals) -> Vector:
    """Return the model that a device sends, shape (n_values,).

    Args:
        model: w_t, shape (n_values,); not changed.
        trained: w_k, shape (n_values,); not changed.
        privacy: Clip and noise.
        normals: Draws the noise, block by block.
    """
    blocks = [slice(at, at + BLOCK) for at in range(0, len(model), BLOCK)]
    changes = (trained[block] - model[block].astype(np.float64) for block in blocks)
    norm = math.sqrt(sum(float(np.vdot(change, change)) for change in changes))
    scale, sd = privacy.clip / max(norm, privacy.clip), privacy.noise_multiplier * privacy.clip
    sent = np.empty_like(trained)
    for block in blocks:
        start = model[block].astype(np.float64)
        sent[block] = start + scale * (trained[block] - start) + sd * normals(len(start))
    return sent


def buffers_problem(layout: Layout) -> str:
    """Return why a model cannot be trained with noise; empty if it can."""
    others = sum(t.size for t in layout.tensors if t.role == "buffer" and t.is_local is not True)
    if not others:
        return ""
    return (
        f"privacy: every value of the model that is merged must be a parameter, got {others} "
        "others, such as running means: one clip does not fit both; use layers without them, such "
        'as GroupNorm, or model.batch_norm = "frozen" or "silobn"'
    )


def owner_problem(request: Train | EvaluateRequest, min_noise_multiplier: float) -> str:
    """Return why the owner of a device forbids a request; empty if it is allowed.

    Args:
        request: What the coordinator asks for.
        min_noise_multiplier: Least z that the owner accepts; 0 accepts everything.
    """
    if not min_noise_multiplier:
        return ""
    needs = (
        f"the owner of this device wants a noise_multiplier of at least {min_noise_multiplier:g}"
    )
    if isinstance(request, EvaluateRequest):
        remedy = (
            "select without loss queries"
            if request.split == "train"
            else 'evaluation.own_data can be "server-test-set" or "off"'
        )
        return f"privacy: {needs}, which no loss has; {remedy}"
    got = 0.0 if request.privacy is None else request.privacy.noise_multiplier
    if got >= min_noise_multiplier:
        return ""
    return f"privacy: {needs}, got {got:g}; raise privacy.noise_multiplier in the experiment"
