"""Measures what the codecs of a run cost on this machine: the agent's own coder, now and then.

Between two models a device trains, sleeps, and hands memory back, so the processor's caches hold
nothing of them any more: here other memory is walked over before each measurement.
"""

import time
from dataclasses import dataclass

import msgspec
import numpy as np

from coordinator.algorithms.arrays import Vector
from coordinator.coding import Agreement, encoded_version
from coordinator.config import ExchangeConfig
from device_agent.coding import Coder
from testbed.replay.task import ANY_DEVICE
from wire.artifact import TaskSpec
from wire.chunks import manifest_of
from wire.messages import Hyperparameters, Manifest, Packed, Train
from wire.selfcheck import selfcheck_inputs
from wire.tensors import vector_to_bytes

REPEATS = 15
"""Of each measurement; the median counts."""

CACHE_BYTES = 64 << 20
"""More than the caches of a core and what it shares with few others."""

_CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class _Scene:
    """A model that came, and what training has made of it; vectors of shape (n_values,)."""

    train: Train
    before: Train
    """Of the version before."""
    blob: bytes | None
    """The model packed; None if it came as it is."""
    base: Vector
    """The version before."""
    model: Vector
    trained: Vector


def codec_work_s(spec: TaskSpec, exchange: ExchangeConfig) -> tuple[float, float]:
    """Return what unpacking a model and packing an update cost, seconds of one core, the medians.

    Args:
        spec: Of the task.
        exchange: The codecs.

    Returns:
        Unpacking, 0 where models come as they are, and packing.
    """
    scene, cache = _scene(spec, exchange), np.ones(CACHE_BYTES // 8)
    decoded, encoded = list[float](), list[float]()
    for _ in range(REPEATS):
        if scene.blob is not None:
            cache += 1.0
            decoded.append(_decode_s(scene, spec, bytearray(scene.blob)))
        cache += 1.0
        encoded.append(_encode_s(scene, spec))
    return float(np.median(decoded)) if decoded else 0.0, float(np.median(encoded))


def _decode_s(scene: _Scene, spec: TaskSpec, blob: bytearray) -> float:
    coder = Coder()
    coder.keep(scene.before, scene.base)
    began = time.thread_time()
    coder.decode(scene.train, spec.layout, blob)
    return time.thread_time() - began


def _encode_s(scene: _Scene, spec: TaskSpec) -> float:
    coder = Coder()
    began = time.thread_time()
    coder.encode(scene.train, spec.layout, scene.model, scene.trained)
    return time.thread_time() - began


def _scene(spec: TaskSpec, exchange: ExchangeConfig) -> _Scene:
    """Return a model and its changes; each is a tenth of what it changes."""
    layout, rng = spec.layout, np.random.Generator(np.random.PCG64(0))
    agreement = Agreement(exchange, layout, "calibration")
    base, _, _ = selfcheck_inputs(spec, seed=0, batch=1)
    model, codec = _changed(base, rng), agreement.down
    blob: bytes | None = None
    packed: Packed | None = None
    if codec is not None:
        is_delta = exchange.down == "delta"
        blob, model = encoded_version(codec, layout, model, base if is_delta else None, rng)
        packed = Packed(
            manifest=manifest_of(blob, "model", _CHUNK_BYTES),
            codec="float16" if exchange.down == "float16" else "int8",
            base=_manifest(base).sha256 if is_delta else None,
        )
    train = Train(
        round=1,
        model=_manifest(model),
        hyperparameters=Hyperparameters(epochs=1, batch_size=1, learning_rate=1.0),
        seed=0,
        needs_loss=False,
        deadline_s=1.0,
        coding=agreement.coding(ANY_DEVICE, packed),
    )
    before = msgspec.structs.replace(train, model=_manifest(base))
    return _Scene(train, before, blob, base, model, _changed(model, rng))


def _changed(vector: Vector, rng: np.random.Generator) -> Vector:
    noise = rng.standard_normal(len(vector), dtype=np.float32)
    changed: Vector = vector * (np.float32(1.0) + np.float32(0.1) * noise)
    return changed


def _manifest(vector: Vector) -> Manifest:
    return manifest_of(vector_to_bytes(vector), "model", _CHUNK_BYTES)
