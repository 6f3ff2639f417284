"""Decoding of tasks and models, encoding of updates; what is kept of them between rounds."""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fairbed.device_agent.errors import NotPrepared, RoundFailed
from fairbed.wire.artifact import Artifact, decode_artifact
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
from fairbed.wire.tensors import Layout, vector_from_bytes, vector_to_bytes

if TYPE_CHECKING:
    from fairbed.device_agent.cache import BlobCache
    from fairbed.device_agent.host import Host
    from fairbed.device_agent.jobs import Stopwatch, TrainingJob
    from fairbed.wire.transfer import Download

ENCODING = 1
"""Key of the random stream for stochastic rounding; mini-batches use the seed without a key."""


@dataclass(frozen=True, slots=True)
class _KeptModel:
    sha256: bytes
    vector: Vector


@dataclass(frozen=True, slots=True)
class _Residual:
    """The top-k residual before and after one update, shape (n_params,)."""

    run: str
    round: int
    before: Vector | None
    after: Vector


class Coder:
    """Decodes models and encodes updates for the training thread.

    Keeps at most three vectors, and only if the codecs of the run need them: the model version that
    is the base of the next one, and the top-k residual before and after the last update.
    `Coding.aggregated` selects the valid residual: after a lost, late or rejected update, or a
    repeated round, no part of the residual is lost or added twice. A restarted device has no
    residual.
    """

    def __init__(self) -> None:
        self._kept_model: _KeptModel | None = None
        self._residual: _Residual | None = None

    def blob_for(
        self, train: Train | EvaluateRequest, layout: Layout, *, has_raw: bool = False
    ) -> Manifest:
        """Return the blob to download for this round: the packed model, or the model itself.

        Args:
            train: The request.
            layout: Layout of the vector.
            has_raw: The task has arrays that are no vector.

        Raises:
            RoundFailed: The size of a blob does not match the model and the codec.
        """
        model, packed = train.model, train.coding.model
        raw_bytes = model.raw_bytes if has_raw else 0
        _check_size(model, layout.size_bytes, raw_bytes)
        if packed is None:
            return model
        encoded_bytes = packed_bytes(codec_named(packed.codec), layout)
        _check_size(packed.manifest, encoded_bytes, raw_bytes)
        kept = self._kept_model
        if packed.base is None or (kept is not None and kept.sha256 == packed.base):
            return packed.manifest
        return model

    def decode(
        self,
        train: Train | EvaluateRequest,
        layout: Layout,
        data: bytearray | memoryview,
        raw: bytes | memoryview = b"",
    ) -> Vector:
        """Return the model in a verified packed blob, shape (n_values,), bit for bit.

        Args:
            train: The request.
            layout: Layout of the vector.
            data: The encoded vector.
            raw: What follows it, which the hash of the model covers, too.

        Raises:
            DecodeError: The blob does not decode to the announced model.
        """
        packed = train.coding.model
        assert packed is not None, "a packed blob was pulled"
        codec = codec_named(packed.codec)
        assert codec is not None, "float32 is not packed"
        kept, self._kept_model = (
            self._kept_model,
            None,
        )  # after an error: pull it whole
        vector = unpack(data, codec, layout, _base(packed, kept))
        digest = hashlib.sha256(vector_to_bytes(vector))
        digest.update(raw)
        if digest.digest() != train.model.sha256:
            raise DecodeError("model: packed blob must decode to the announced model, got another")
        return vector

    def keep(self, train: Train | EvaluateRequest, vector: Vector) -> None:
        """Keep the model of this round, shape (n_values,), if the coordinator requests it."""
        assert train.model.sha256 is not None, "a model has a hash"
        is_kept = train.coding.keep_model
        self._kept_model = _KeptModel(train.model.sha256, vector) if is_kept else None

    def encode(self, train: Train, layout: Layout, model: Vector, trained: Vector) -> memoryview:
        """Return the encoded update of a round.

        Args:
            train: The request, with codec and seed.
            layout: Layout of both vectors.
            model: w_t, shape (n_values,); not changed.
            trained: w_k after local training, shape (n_values,); not changed.

        Raises:
            EncodeError: A change is too large for the codec.
        """
        coding, n = train.coding, layout.n_params
        codec = codec_named(coding.up, coding.top_k)
        if codec is None:
            self._residual = None
            return vector_to_bytes(trained)
        with np.errstate(over="ignore"):  # the codec refuses values that are not finite
            change = trained[:n] - model[:n]
        rng = np.random.default_rng(np.random.SeedSequence([train.seed, ENCODING]))
        if coding.up == "top-k":
            before = self._residual_before(coding, n)
            payload, after = encode_with_feedback(codec, change, before, rng)
            self._residual = _Residual(coding.run, train.round, before, after)
        else:
            payload, self._residual = codec.encode(change, rng), None
        return memoryview(pack(codec, n, payload, trained[n:]))

    def _residual_before(self, coding: Coding, n_params: int) -> Vector | None:
        residual = self._residual
        if residual is None or residual.run != coding.run or len(residual.after) != n_params:
            return None
        return residual.after if residual.round == coding.aggregated else residual.before


@dataclass(frozen=True, slots=True)
class ReceivedModel:
    """A model version that was verified."""

    sha256: bytes
    vector: Vector
    """Shape (n_values,), and what a local rule sends with it."""
    raw: memoryview
    """What follows the vector: arrays of a client that are no vector."""


class ReceivedModels:
    """Verifies and decodes the models of a device, and keeps that of a loss query for its round.

    Args:
        host: The machine, at whose pace packed models are decoded.
    """

    def __init__(self, host: "Host") -> None:
        self._host, self.coder = host, Coder()
        self.evaluated: ReceivedModel | None = None
        """The model of the last loss query, until its round or the next query."""

    def has(self, train: Train) -> bool:
        """Return whether the model of a round is on the device since its loss query."""
        return self.evaluated is not None and self.evaluated.sha256 == train.model.sha256

    def blob_for(
        self, request: Train | EvaluateRequest, layout: Layout, *, has_raw: bool = False
    ) -> Manifest:
        """Return the blob to download, as `Coder.blob_for` does."""
        return self._coder_for(request).blob_for(request, layout, has_raw=has_raw)

    def of_round(self, job: "TrainingJob", layout: Layout) -> ReceivedModel:
        """Return the model of a round.

        Raises:
            DecodeError: It is not the announced one, or no longer on this device.
        """
        evaluated, self.evaluated = self.evaluated, None
        if job.model is not None:
            return self.downloaded(job.train, layout, job.model, job.watch)
        if evaluated is None or evaluated.sha256 != job.train.model.sha256:
            raise DecodeError("model: the evaluated model is no longer on this device")
        self.coder.keep(job.train, evaluated.vector)
        job.watch.lap("download")
        return evaluated

    def downloaded(
        self,
        request: Train | EvaluateRequest,
        layout: Layout,
        model: "Download",
        watch: "Stopwatch",
    ) -> ReceivedModel:
        """Verify and decode a downloaded model; its hash is that of the request.

        Raises:
            DecodeError: It is not the announced one.
        """
        coder, sha256 = self._coder_for(request), request.model.sha256
        assert sha256 is not None, "a model has a hash"
        model.verify()
        at, data = model.manifest.vector_bytes, memoryview(model.data)
        encoded, raw = data[:at], data[at:]
        if model.manifest.id == request.model.id:
            vector = vector_from_bytes(encoded, layout.n_values)
            watch.lap("download")
        else:
            watch.lap("download")
            with self._host.pace.section("decode"):
                vector = coder.decode(request, layout, encoded, raw)
        coder.keep(request, vector)
        return ReceivedModel(sha256, vector, raw)

    def _coder_for(self, request: Train | EvaluateRequest) -> Coder:
        """Return the decoder of a request; a test must not change the base of the next model."""
        is_test = isinstance(request, EvaluateRequest) and request.split == "test"
        return Coder() if is_test else self.coder


def artifact_in(cache: "BlobCache", manifest: Manifest) -> Artifact:
    """Return a task from the cache.

    Raises:
        NotPrepared: It is not there.
        DecodeError: It is no task.
    """
    blob = cache.get(manifest)
    if blob is None:
        raise NotPrepared("task: missing or corrupt on disk; the device downloads it again")
    return decode_artifact(blob)


def _base(packed: Packed, kept: _KeptModel | None) -> Vector | None:
    if packed.base is None:
        return None
    if kept is None or kept.sha256 != packed.base:
        raise DecodeError("model: its base version is no longer on this device; send it whole")
    return kept.vector


def _check_size(manifest: Manifest, vector_bytes: int, raw_bytes: int) -> None:
    size_bytes = vector_bytes + raw_bytes
    has_raw = manifest.raw_bytes == raw_bytes
    if manifest.kind != "model" or manifest.size_bytes != size_bytes or not has_raw:
        raise RoundFailed(
            f"model: must be {size_bytes} bytes for this task, "
            f"got {manifest.kind} of {manifest.size_bytes} bytes"
        )
