"""The codecs of a run, and the agreement with each device. Pure.

A device that does not support a codec of the run downloads the same model as float32, and uploads
its update as float32.
"""

import numpy as np

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.policy.config import ExchangeConfig
from fairbed.coordinator.state.registry import Device
from fairbed.wire.codecs import Codec, codec_named, pack, packed_bytes, unpack
from fairbed.wire.messages import Capabilities, Coding, Manifest, Offer, Packed, Train
from fairbed.wire.tensors import Layout


class CodecAgreement:
    """The codecs of `[exchange]`, for each device.

    Args:
        config: `[exchange]`.
        layout: Layout of the model.
        run: Id of the run; devices keep the residuals of top-k by run.
        vector_counts: Vectors of the local rule that follow a model, and that follow an update.
    """

    def __init__(
        self,
        config: ExchangeConfig,
        layout: Layout,
        run: str,
        vector_counts: tuple[int, int] = (0, 0),
    ) -> None:
        self.config = config
        self.layout = layout
        self._sent, self._returned = vector_counts
        self.down_layout = layout.with_vectors(self._sent)
        """Layout of a model with the vectors that follow it."""
        self.up_layout = layout.with_vectors(self._returned)
        """Layout of an update with the vectors that follow it."""
        self._run = run
        self._top_k = max(1, round(config.top_k * layout.n_params))
        self._coded_bytes = packed_bytes(codec_named(config.up, self._top_k), self.up_layout)

    @property
    def down(self) -> Codec | None:
        """Codec of a model version, or of its difference to the last one; None is float32."""
        return codec_named("int8" if self.config.down == "delta" else self.config.down)

    def packed(self, blob: Manifest, previous: Manifest | None) -> Packed:
        """Describe an encoded version; `previous` is the version that a difference builds on."""
        down = self.config.down
        assert down != "float32", "a float32 version is not encoded"
        if down != "delta":
            return Packed(manifest=blob, codec=down)
        return Packed(
            manifest=blob, codec="int8", base=None if previous is None else previous.sha256
        )

    @property
    def up(self) -> Codec | None:
        """Codec of an update; None is float32."""
        return codec_named(self.config.up, self._top_k)

    @property
    def memory_bytes(self) -> int:
        """Largest memory of one upload: its vector and its encoded bytes."""
        return self.up_layout.size_bytes + (self.config.up != "float32") * self._coded_bytes

    def coding(self, device: Device, packed: Packed | None) -> Coding:
        """Return how a device downloads the model and encodes its update.

        Args:
            device: The device; its capabilities list the codecs that it supports.
            packed: The encoded blob of the current version; None if there is none.
        """
        missing = missing_codecs(self.config, device.capabilities)
        up = "float32" if self.config.up in missing else self.config.up
        keeps = self.config.down == "delta" and "delta" not in missing
        model = None if self.config.down in missing else packed
        if up == "top-k":
            return Coding(
                up=up,
                top_k=self._top_k,
                run=self._run,
                aggregated=device.aggregated_round,
                model=model,
                keep_model=keeps,
                sent=self._sent,
                returned=self._returned,
            )
        return Coding(
            up=up, model=model, keep_model=keeps, sent=self._sent, returned=self._returned
        )

    def sizes(self, device: Device, packed: Packed | None) -> tuple[int, int]:
        """Return the bytes of the vectors of the next exchange with a device, down and up."""
        missing = missing_codecs(self.config, device.capabilities)
        down, up = self.down_layout.size_bytes, self.up_layout.size_bytes
        if packed and self.config.down not in missing and packed.base in (None, device.held_sha256):
            down = packed.manifest.vector_bytes
        if self.config.up not in missing:
            up = self._coded_bytes
        return down, up


def encoded_version(
    codec: Codec, layout: Layout, vector: Vector, base: Vector | None, rng: np.random.Generator
) -> tuple[bytes, Vector]:
    """Return an encoded version, and its decoded values, shape (n_values,): the model of the run.

    Args:
        codec: The codec.
        layout: Layout of the model.
        vector: The model, shape (n_values,).
        base: The version that the encoded values are relative to; None encodes the whole model.
        rng: For stochastic rounding.

    Raises:
        EncodeError: A value is too large for the codec.
    """
    n = layout.n_params
    with np.errstate(over="ignore"):  # the codec rejects infinite values
        values = vector[:n] if base is None else vector[:n] - base[:n]
    blob = pack(codec, n, codec.encode(values, rng), vector[n:])
    return blob, unpack(blob, codec, layout, base)


def missing_codecs(config: ExchangeConfig, capabilities: Capabilities | None) -> list[str]:
    """Return the codecs of the run that a device does not support."""
    wanted = {config.up, config.down} - {"float32"}
    return sorted(wanted.difference(() if capabilities is None else capabilities.codecs))


def update_codec(train: Train) -> Codec | None:
    """Return the codec of an exchange's update; None is float32."""
    return codec_named(train.coding.up, train.coding.top_k)


def codecs_of(train: Train, offer: Offer | None) -> tuple[str, str]:
    """Return the names of the codecs of an exchange: of the model and of the update."""
    coding = train.coding
    packed = coding.model
    if packed is None or pulled_blob(train, offer) != packed.manifest:
        return "float32", coding.up
    return packed.codec if packed.base is None else "delta", coding.up


def pulled_blob(train: Train, offer: Offer | None) -> Manifest | None:
    """Return the blob that a device reports as pulled; None if it was never announced."""
    if offer is None:
        return None
    if offer.pulled is None or offer.pulled == train.model.id:
        return train.model
    packed = train.coding.model
    return packed.manifest if packed and packed.manifest.id == offer.pulled else None
