"""What codecs need of a device: models decoded, updates encoded, and what is kept in between."""

import hashlib
from dataclasses import dataclass

import numpy as np

from fairbed.device_agent.errors import RoundFailed
from fairbed.wire.codecs import (
    Vector,
    codec_named,
    encode_with_feedback,
    pack,
    packed_bytes,
    unpack,
)
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import Coding, EvaluateRequest, Manifest, Packed, Train
from fairbed.wire.tensors import Layout, vector_to_bytes

ENCODING = 1
"""Purpose of the random stream that rounds, beside that of the mini-batches (no purpose)."""


@dataclass(frozen=True, slots=True)
class _Held:
    sha256: bytes
    vector: Vector


@dataclass(frozen=True, slots=True)
class _Owed:
    """What top-k left out, shape (n_params,), before and after the update of one round."""

    run: str
    round: int
    before: Vector | None
    after: Vector


class Coder:
    """Decodes models and encodes updates for the training thread.

    It keeps three vectors at most, and only where the run's codecs need them: the version of the
    model that the next one may be changes of, and what top-k owed before and after its last
    update. Which of the two holds the coordinator says (`Coding.merged`), so that an update that
    was lost, late or rejected, or a coordinator that starts a round again, takes nothing away and
    adds nothing twice. A restarted device owes nothing.
    """

    def __init__(self) -> None:
        self._held: _Held | None = None
        self._owed: _Owed | None = None

    def blob_for(self, train: Train | EvaluateRequest, layout: Layout) -> Manifest:
        """Return what to pull for this round: the smaller blob, or the model itself.

        Raises:
            RoundFailed: A blob is not of the size that model and codec have.
        """
        model, packed = train.model, train.coding.model
        _check_size(model, layout.size_bytes)
        if packed is None:
            return model
        _check_size(packed.manifest, packed_bytes(codec_named(packed.codec), layout))
        held = self._held
        if packed.base is None or (held is not None and held.sha256 == packed.base):
            return packed.manifest
        return model

    def decode(self, train: Train | EvaluateRequest, layout: Layout, data: bytearray) -> Vector:
        """Return the model in a verified packed blob, shape (n_values,), bit for bit.

        Raises:
            DecodeError: It does not become the model that was announced.
        """
        packed = train.coding.model
        assert packed is not None, "a packed blob was pulled"
        codec = codec_named(packed.codec)
        assert codec is not None, "float32 is not packed"
        held, self._held = self._held, None  # pulled whole the next time, if this fails
        vector = unpack(data, codec, layout, _base(packed, held))
        if hashlib.sha256(vector_to_bytes(vector)).digest() != train.model.sha256:
            raise DecodeError("model: the packed blob must become the announced one, got another")
        return vector

    def keep(self, train: Train | EvaluateRequest, vector: Vector) -> None:
        """Hold on to the model of this round, shape (n_values,), if the next may need it."""
        assert train.model.sha256 is not None, "a model has a hash"
        keeps = train.coding.keeps_model
        self._held = _Held(train.model.sha256, vector) if keeps else None

    def encode(self, train: Train, layout: Layout, model: Vector, trained: Vector) -> memoryview:
        """Return the update of a round, as it travels.

        Args:
            train: Says how.
            layout: Of both vectors.
            model: w_t, shape (n_values,); not changed.
            trained: w_k after local training, shape (n_values,); not changed.

        Raises:
            EncodeError: A change is too large for the codec.
        """
        coding, n = train.coding, layout.n_params
        codec = codec_named(coding.up, coding.top_k)
        if codec is None:
            self._owed = None
            return vector_to_bytes(trained)
        with np.errstate(over="ignore"):  # the codec refuses what is not finite
            change = trained[:n] - model[:n]
        rng = np.random.default_rng(np.random.SeedSequence([train.seed, ENCODING]))
        if coding.up == "top-k":
            before = self._owed_before(coding, n)
            payload, after = encode_with_feedback(codec, change, before, rng)
            self._owed = _Owed(coding.run, train.round, before, after)
        else:
            payload, self._owed = codec.encode(change, rng), None
        return memoryview(pack(codec, n, payload, trained[n:]))

    def _owed_before(self, coding: Coding, n_params: int) -> Vector | None:
        owed = self._owed
        if owed is None or owed.run != coding.run or len(owed.after) != n_params:
            return None
        return owed.after if owed.round == coding.merged else owed.before


def _base(packed: Packed, held: _Held | None) -> Vector | None:
    if packed.base is None:
        return None
    if held is None or held.sha256 != packed.base:
        raise DecodeError("model: came as changes of a version that is not here any more")
    return held.vector


def _check_size(manifest: Manifest, size_bytes: int) -> None:
    if manifest.kind != "model" or manifest.size_bytes != size_bytes:
        raise RoundFailed(
            f"model: must be {size_bytes} bytes for this task, "
            f"got {manifest.kind} of {manifest.size_bytes} bytes"
        )
