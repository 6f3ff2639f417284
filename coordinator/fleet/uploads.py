"""Uploads of updates: check of the offer, reception of the chunks, decoding, memory."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import anyio.to_thread

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.fleet.codec_agreement import pulled_blob, update_codec
from fairbed.coordinator.fleet.plausibility import fault_in_update
from fairbed.coordinator.policy.config import LimitsConfig
from fairbed.coordinator.store.schema import accepted, fault_in_measured
from fairbed.coordinator.store.tables import Source
from fairbed.wire.chunks import decode_chunk
from fairbed.wire.codec import Buffer
from fairbed.wire.codecs import Codec, packed_bytes, unpack
from fairbed.wire.errors import DecodeError
from fairbed.wire.evaluation import ONE_CLASS, Predicted
from fairbed.wire.messages import Manifest, Offer, Privacy, SteadyTransfer, Train, UploadDone
from fairbed.wire.tensors import Layout, vector_from_bytes
from fairbed.wire.transfer import UploadReceiver

CheckRaw = Callable[[memoryview], str | None]
"""Returns why the raw part of an update is not valid; None if it is."""

OTHER_MODEL = "update: must be trained from the model version of this exchange, got another one"


@dataclass(slots=True)
class _Upload:
    receiver: UploadReceiver
    codec: Codec | None
    """None is float32."""
    base: Vector | None
    """The model that the device was sent, shape (n_values,)."""
    privacy: Privacy | None
    sha256: bytes | None = None
    measured: Mapping[str, float] = field(default_factory=dict)
    vector: Vector | None = None
    """The update, shape (n_values,), once it has been verified."""
    decode_s: float | None = None


@dataclass(frozen=True, slots=True)
class CompletedUpload:
    """All chunks of an update and its hash have arrived."""

    at: float
    """Arrival of the last chunk."""
    bytes_up: int
    duplicates: int
    measured: Mapping[str, float]
    """Columns of the exchange that the device reports with the hash."""
    steady: SteadyTransfer | None


class Uploads:
    """The open uploads, of this round and of earlier ones.

    An upload gets its buffer when it is granted. A released buffer is reused for the next upload of
    its size, because allocating one takes as much time as receiving its chunks. So the number of
    buffers is the largest number of uploads that were open at the same time. An encoded update is
    decoded into a vector of its own, which is freed by `release`.

    `predicted` is what the model predicts: targets of an example, and the sign of a loss.
    `check_raw` returns the fault of the raw part of an update, off the event loop; without it an
    update must have none.
    """

    def __init__(
        self,
        layout: Layout,
        now: Callable[[], float],
        limits: LimitsConfig | None = None,
        predicted: Predicted = ONE_CLASS,
        check_raw: CheckRaw | None = None,
    ) -> None:
        self._layout = layout
        self._check_raw = check_raw
        self.predicted = predicted
        self.limits = limits or LimitsConfig()
        self._now = now
        self._open: dict[str, _Upload] = {}
        self._spare: dict[int, list[bytearray]] = {}

    def fault_in_offer(
        self, manifest: Manifest, codec: Codec | None = None, sent_raw: int = 0
    ) -> str | None:
        """Return the fault of an announced update; None if it is valid.

        Args:
            manifest: Its manifest.
            codec: Its codec; None is float32.
            sent_raw: Raw bytes of the model that the device was sent.
        """
        if manifest.kind != "update":
            return f"manifest: kind must be update, got {manifest.kind}"
        expected = packed_bytes(codec, self._layout)
        if manifest.vector_bytes != expected:
            kind = "float32" if codec is None else "values as agreed"
            return (
                f"update: must hold {self._layout.n_values} {kind} "
                f"({expected} bytes), got {manifest.vector_bytes} bytes"
            )
        most = 0 if self._check_raw is None else self.limits.most_raw_bytes(sent_raw)
        if manifest.raw_bytes > most:
            return (
                f"update: must have at most {most} raw bytes (limits.raw_bytes), got "
                f"{manifest.raw_bytes}"
            )
        return None

    def open(
        self,
        device: str,
        manifest: Manifest,
        window: int,
        codec: Codec | None = None,
        base: Vector | None = None,
        privacy: Privacy | None = None,
    ) -> None:
        """Open the upload of a device that is granted `window` chunks at a time.

        `base`, shape (n_values,), is the model that the device was sent, to which an encoded
        update is relative; `privacy` is the noise that the device adds.
        """
        spare = self._spare.get(manifest.size_bytes)
        memory = spare.pop() if spare else None
        self._open[device] = _Upload(UploadReceiver(manifest, window, memory), codec, base, privacy)

    def is_open(self, device: str) -> bool:
        """Return whether a device may send chunks."""
        return device in self._open

    def on_frame(self, device: str, frame: Buffer) -> tuple[bytes | None, CompletedUpload | None]:
        """Record a chunk; return the bitmap to acknowledge, if due, and the upload if complete.

        Raises:
            DecodeError: The chunk is malformed. A chunk of an upload that is not open is ignored.
        """
        upload = self._open.get(device)
        if upload is None:
            return None, None
        chunk = decode_chunk(frame)
        if chunk.blob != upload.receiver.manifest.id:
            return None, None
        ack = upload.receiver.on_chunk(chunk, self._now())
        return (upload.receiver.bitmap() if ack else None), self._complete(upload)

    def on_done(self, device: str, done: UploadDone) -> CompletedUpload | None:
        """Record the hash of an update; return the upload if all chunks have arrived."""
        upload = self._open.get(device)
        if upload is None or upload.receiver.manifest.id != done.id:
            return None
        upload.sha256 = done.sha256
        if done.measured:
            upload.measured = accepted(done.measured, Source.UPLOAD)
        return self._complete(upload)

    async def check(self, device: str) -> str | None:
        """Verify and decode an update off the event loop; return its fault, or None."""
        upload = self._open.get(device)
        if upload is None or upload.sha256 is None:
            return "update: incomplete"
        try:
            await anyio.to_thread.run_sync(self._verify, upload, upload.sha256)
        except DecodeError as exc:
            return str(exc)
        return None

    def vector(self, device: str) -> Vector:
        """Return a verified update, shape (n_values,), which is valid until `release`."""
        vector = self._open[device].vector
        assert vector is not None, "only a checked update has a vector"
        return vector

    def raw(self, device: str) -> memoryview:
        """Return the raw part of a verified update, which is valid until `release`."""
        return _parts(self._open[device])[1]

    def decode_s(self, device: str) -> float | None:
        """Return the time to decode a checked update; None if it came as float32."""
        upload = self._open.get(device)
        return None if upload is None else upload.decode_s

    def release(self, device: str) -> None:
        """Close an upload and reuse its buffer; the caller must hold no reference to its vector.

        Uploads with raw parts may all differ in size: buffers of the newest size are kept.
        """
        upload = self._open.pop(device, None)
        if upload is not None:
            data = upload.receiver.data
            if upload.receiver.manifest.raw_bytes and len(data) not in self._spare:
                self._spare.clear()
            self._spare.setdefault(len(data), []).append(data)

    def discard(self, device: str) -> None:
        """Drop an upload whose exchange has ended; its check may still be running."""
        self._open.pop(device, None)

    def clear(self) -> None:
        """Drop all uploads."""
        self._open.clear()

    def _verify(self, upload: _Upload, sha256: bytes) -> None:
        receiver, codec = upload.receiver, upload.codec
        receiver.verify(sha256)
        data, raw = _parts(upload)
        if codec is None:
            upload.vector = vector_from_bytes(data, self._layout.n_values)
        else:
            started = self._now()
            upload.vector = unpack(data, codec, self._layout, upload.base)
            upload.decode_s = self._now() - started
        fault = None if self._check_raw is None else self._check_raw(raw)
        if fault is not None:
            raise DecodeError(fault)
        if upload.base is not None:
            fault = fault_in_update(
                upload.vector, upload.base, self._layout.n_params, self.limits, upload.privacy
            )
            if fault is not None:
                raise DecodeError(fault)

    @staticmethod
    def _complete(upload: _Upload) -> CompletedUpload | None:
        receiver = upload.receiver
        if upload.sha256 is None or not receiver.is_complete or receiver.finished_at is None:
            return None
        return CompletedUpload(
            at=receiver.finished_at,
            bytes_up=receiver.received_bytes,
            duplicates=receiver.duplicates,
            measured=upload.measured,
            steady=receiver.steady,
        )


def _parts(upload: _Upload) -> tuple[memoryview, memoryview]:
    """Return the vector of an upload, encoded or not, and its raw part."""
    data, size = memoryview(upload.receiver.data), upload.receiver.manifest.vector_bytes
    return data[:size], data[size:]


def fault_in_offer(uploads: Uploads, offer: Offer, train: Train) -> str | None:
    """Return the fault of an offer that answers a `Train` message; None if it is valid."""
    fault = uploads.fault_in_offer(offer.manifest, update_codec(train), train.model.raw_bytes)
    if fault is not None:
        return fault
    if offer.model != train.model.sha256:
        return OTHER_MODEL
    if pulled_blob(train, offer) is None:
        return "offer: the model must have come in a blob that was announced"
    if offer.n_k < 1:
        return f"offer: n_k must be at least 1, got {offer.n_k}"
    y_shape = uploads.predicted.y_shape
    if not y_shape and offer.positions is not None:
        return "offer: must have no positions, as each example has one target"
    most = math.prod(y_shape) * offer.n_k
    if y_shape and not offer.n_k <= (offer.positions or 0) <= most:
        return f"offer: must have {offer.n_k} to {most} positions, got {offer.positions}"
    least = min(offer.loss_before or 0.0, offer.loss_train or 0.0)
    if least < 0.0 and not uploads.predicted.has_signed_loss:
        return f"offer: a loss must be at least 0, got {least:g}"
    if train.needs_loss and offer.loss_before is None:
        return "offer: loss_before is missing, and the aggregation rule needs it"
    if offer.measured and (fault := fault_in_measured(offer.measured, Source.OFFER)):
        return f"offer: {fault}"
    return None
