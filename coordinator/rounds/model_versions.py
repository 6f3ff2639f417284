"""Versions of the global model in the broker: each one as float32, and encoded if configured.

The raw part of a version, which only a client reads, follows either of them unchanged.

A lossy codec is applied here, once per version: its decoded values become the model of the run.
Devices decode the same values, updates are relative to them, and merge, store and evaluation use
them. So the errors of the codec do not accumulate.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

import anyio.to_thread
import numpy as np
from msgspec import structs

from fairbed.coordinator.algorithms.arrays import Floats, Vector
from fairbed.coordinator.fleet.codec_agreement import CodecAgreement, encoded_version
from fairbed.coordinator.messaging.blobs import PublicBlobs
from fairbed.coordinator.state.registry import Device, Registry
from fairbed.coordinator.store.event_log import EventLog
from fairbed.wire.chunks import (
    RETAINED_CHUNK_BYTES,
    manifest_of,
    stable_chunk_bytes,
    suitable_chunk_bytes,
)
from fairbed.wire.codecs import Codec
from fairbed.wire.errors import EncodeError
from fairbed.wire.messages import MAX_CHUNK_BYTES, Coding, Manifest, Packed
from fairbed.wire.tensors import vector_to_bytes

B = TypeVar("B", bytes, memoryview)


@dataclass(frozen=True, slots=True)
class _Encoded:
    blob: bytes
    vector: Vector
    """The decoded blob: the model and what follows it."""
    manifest: Manifest
    took_s: float


class ModelVersions:
    """The current model version, and how each device downloads it.

    Args:
        agreement: The codecs of the run.
        vector: The model before the first `publish`, shape (n_values,).
        raw: Its raw part; no bytes without one.
        with_vectors: Returns a model, shape (n_values,), followed by what is sent with it.
        public: Publishes the blobs.
        registry: Its slowest link limits the size of chunks.
        event_log: Clock, and log of versions that cannot be encoded.
        max_chunk_bytes: Largest chunk that the broker accepts.
    """

    def __init__(
        self,
        agreement: CodecAgreement,
        vector: Vector,
        public: PublicBlobs,
        registry: Registry,
        event_log: EventLog,
        *,
        raw: bytes = b"",
        with_vectors: Callable[[Vector], Vector] = lambda model: model,
        max_chunk_bytes: int = MAX_CHUNK_BYTES,
    ) -> None:
        self.vector = vector
        """The model that devices train, shape (n_values,)."""
        self.raw = raw
        """Its raw part."""
        self.encode_s: float | None = None
        """Time to encode the current version, off the loop; None if it is not encoded."""
        self._with_vectors = with_vectors
        self._whole = vector
        """The current version as it travels: the model and what follows it."""
        self._agreement = agreement
        self._public = public
        self._registry = registry
        self._event_log = event_log
        self._max_chunk_bytes = min(RETAINED_CHUNK_BYTES, max_chunk_bytes)
        self._manifest: Manifest | None = None
        self._packed: Packed | None = None
        self._kept: set[bytes] = set()
        """Blobs of earlier versions that are still in the broker."""

    @property
    def manifest(self) -> Manifest:
        """Manifest of the current version as float32; its hash identifies the version."""
        assert self._manifest is not None, "nothing is published yet"
        return self._manifest

    def coding(self, device: Device) -> Coding:
        """Return how a device downloads this version and encodes its update."""
        return self._agreement.coding(device, self._packed)

    def transfer_bits(self) -> tuple[Floats, Floats]:
        """Return the sizes of the next exchanges down and up, bits, both of shape (N,).

        The raw part of an update counts as large as that of the model.
        """
        sizes = [self._agreement.sizes(device, self._packed) for device in self._registry]
        bits = 8.0 * (np.array(sizes, dtype=np.float64).reshape(-1, 2) + len(self.raw))
        return bits[:, 0], bits[:, 1]

    async def publish(
        self,
        vector: Vector,
        rng: np.random.Generator | None,
        pulled: Collection[bytes] = frozenset(),
        raw: bytes | None = None,
    ) -> None:
        """Make `vector`, shape (n_values,), rounded by the codec, the current version.

        The previous version is removed from the broker, except blobs that are still `pulled`.

        Args:
            vector: The next model.
            rng: For stochastic rounding in the codec; None publishes the vector unchanged, because
                it was encoded before.
            pulled: Ids of blobs that devices may still be downloading.
            raw: The raw part of the version; None: that of the last one.
        """
        old, packed = self._manifest, self._packed
        whole = self._with_vectors(vector)
        self.raw = self.raw if raw is None else raw
        encoded = None if rng is None else await self._encode(whole, rng)
        if encoded is not None:
            whole = encoded.vector
        data = self._with_raw(vector_to_bytes(whole))
        chunk_bytes = self._chunk_bytes(len(data), old)
        manifest = await anyio.to_thread.run_sync(self._manifest_of, data, chunk_bytes)
        self._whole, self.vector = whole, whole[: vector.size]
        self.encode_s = encoded.took_s if encoded else None
        if old is not None and old.id == manifest.id:
            return
        manifest = self._public.named(manifest)
        # Remove first, then publish: the broker holds one version, not two.
        blobs = (None if packed is None else packed.manifest, old)
        self._kept |= {blob.id for blob in blobs if blob is not None}
        self._kept.discard(manifest.id)
        await self.retire_all_but(pulled)
        self._manifest, self._packed = manifest, None
        if encoded is not None:
            smaller = self._public.named(encoded.manifest)
            self._packed = self._agreement.packed(smaller, old)
            self._kept.discard(smaller.id)
            await self._public.publish(smaller, encoded.blob)
        await self._public.publish(manifest, data)

    async def publish_beside(self, raw: bytes) -> Manifest:
        """Publish a blob that devices get in place of the version; return its manifest.

        It is removed with the next version. An application sends such blobs, without vectors.
        """
        chunk_bytes = self._chunk_bytes(len(raw), self._manifest)
        manifest = await anyio.to_thread.run_sync(manifest_of, raw, "model", chunk_bytes)
        manifest = self._public.named(structs.replace(manifest, raw_bytes=len(raw)))
        if manifest.id not in self._kept:
            self._kept.add(manifest.id)
            await self._public.publish(manifest, raw)
        return manifest

    async def retire_all_but(self, pulled: Collection[bytes]) -> None:
        """Remove the blobs of earlier versions from the broker, except those that are `pulled`."""
        for blob_id in sorted(self._kept.difference(pulled)):
            self._kept.discard(blob_id)
            await self._public.retire(blob_id)

    async def _encode(self, vector: Vector, rng: np.random.Generator) -> _Encoded | None:
        """Return the encoded version; None without a codec, or without a base for `delta`."""
        codec, base = self._agreement.down, None
        if self._agreement.config.down == "delta":
            if self._manifest is None:
                return None
            base = self._whole
        if codec is None:
            return None
        try:
            return await anyio.to_thread.run_sync(self._encode_now, codec, vector, base, rng)
        except EncodeError as exc:
            self._event_log.event(
                "not encoded", f"{exc}; the model is sent as float32", level="warning"
            )
            return None

    def _encode_now(
        self, codec: Codec, vector: Vector, base: Vector | None, rng: np.random.Generator
    ) -> _Encoded:
        started = self._event_log.now()
        coded, decoded = encoded_version(codec, self._agreement.down_layout, vector, base, rng)
        last, blob = None if self._packed is None else self._packed.manifest, self._with_raw(coded)
        manifest = self._manifest_of(blob, self._chunk_bytes(len(blob), last))
        return _Encoded(blob, decoded, manifest, self._event_log.now() - started)

    def _with_raw(self, data: B) -> B | bytes:
        """Return the bytes of a vector, encoded or not, followed by the raw part."""
        return data if not self.raw else b"".join((data, self.raw))

    def _manifest_of(self, blob: bytes | memoryview, chunk_bytes: int) -> Manifest:
        manifest = manifest_of(blob, "model", chunk_bytes)
        return structs.replace(manifest, raw_bytes=len(self.raw)) if self.raw else manifest

    def _chunk_bytes(self, size_bytes: int, last: Manifest | None) -> int:
        rate_bps = self._registry.slowest_bps()
        suitable = suitable_chunk_bytes(rate_bps, size_bytes, self._max_chunk_bytes)
        return stable_chunk_bytes(None if last is None else last.chunk_bytes, suitable)
