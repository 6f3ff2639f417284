"""Which codecs a run uses, and what is agreed with each device. Pure.

A device that does not know a codec of the run gets the same model, and sends its update, as
float32.
"""

from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from coordinator.config import ExchangeConfig
from coordinator.registry import Device
from wire.codecs import Codec, Int8Blocks, codec_named, packed_bytes
from wire.messages import Capabilities, Coding, Manifest, Offer, Packed, Train
from wire.tensors import Layout


@dataclass(frozen=True, slots=True)
class Agreement:
    """The codecs of `[exchange]`, device by device."""

    config: ExchangeConfig
    layout: Layout
    run: str
    """Id of the run, to which what a device owes belongs."""

    @property
    def down(self) -> Codec | None:
        """What encodes a version, or the changes to it; None sends it as it is."""
        return Int8Blocks() if self.config.down == "delta" else codec_named(self.config.down)

    @property
    def memory_bytes(self) -> int:
        """What one upload takes at most: its vector, and what that is decoded from."""
        is_coded = self.config.up != "float32"
        return self.layout.size_bytes + is_coded * self._up_bytes(self.config.up)

    def coding(self, device: Device, packed: Packed | None) -> Coding | UnsetType:
        """Return how a device gets the model and sends its update.

        Args:
            device: Says what it knows.
            packed: The smaller blob that becomes the version of now; None if there is none.
        """
        missing = missing_codecs(self.config, device.capabilities)
        up = "float32" if self.config.up in missing else self.config.up
        keeps = self.config.down == "delta" and "delta" not in missing
        model = None if self.config.down in missing else packed
        if up == "top-k":
            return Coding(
                up=up,
                top_k=self._top_k,
                run=self.run,
                merged=device.merged_round,
                model=model,
                keeps_model=keeps,
            )
        coding = Coding(up=up, model=model, keeps_model=keeps)
        return UNSET if coding == Coding() else coding

    def sizes(self, device: Device, packed: Packed | None) -> tuple[int, int]:
        """Return the bytes down and up that an exchange with a device is going to take."""
        coding = self.coding(device, packed)
        if coding is UNSET:
            return self.layout.size_bytes, self.layout.size_bytes
        model, down = coding.model, self.layout.size_bytes
        if model is not None and model.base in (None, device.holds):
            down = model.manifest.size_bytes
        return down, self._up_bytes(coding.up)

    @property
    def _top_k(self) -> int:
        return max(1, round(self.config.top_k * self.layout.n_params))

    def _up_bytes(self, name: str) -> int:
        return packed_bytes(codec_named(name, self._top_k), self.layout)


def missing_codecs(config: ExchangeConfig, capabilities: Capabilities | None) -> list[str]:
    """Return which of the run's codecs a device does not know."""
    told = capabilities.codecs if capabilities is not None else UNSET
    known = () if told is UNSET else told
    return sorted({config.up, config.down} - {"float32", *known})


def update_codec(train: Train) -> Codec | None:
    """Return what the update of an exchange comes in; None is float32 as it is."""
    coding = train.coding
    return None if coding is UNSET else codec_named(coding.up, coding.top_k)


def codecs_of(train: Train, offer: Offer | None) -> tuple[str, str]:
    """Return the names of what brought the model down and brings the update up."""
    coding = Coding() if train.coding is UNSET else train.coding
    packed = coding.model
    if packed is None or pulled_blob(train, offer) != packed.manifest:
        return "float32", coding.up
    return packed.codec if packed.base is None else "delta", coding.up


def pulled_blob(train: Train, offer: Offer | None) -> Manifest | None:
    """Return the blob that a device says it pulled; None before it has, or if it lies."""
    if offer is None:
        return None
    if offer.pulled is UNSET or offer.pulled == train.model.id:
        return train.model
    packed = None if train.coding is UNSET else train.coding.model
    return packed.manifest if packed and packed.manifest.id == offer.pulled else None
