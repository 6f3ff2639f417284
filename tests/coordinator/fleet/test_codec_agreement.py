"""The codecs that a run agrees on with each device, and the size of an exchange."""

import pytest
from msgspec import structs

from fairbed.coordinator.fleet.codec_agreement import (
    CodecAgreement,
    codecs_of,
    missing_codecs,
    pulled_blob,
)
from fairbed.coordinator.policy.config import ExchangeConfig
from fairbed.coordinator.state.registry import Device
from fairbed.wire.chunks import manifest_of
from fairbed.wire.messages import CODECS, Coding, Packed
from tests.coordinator.builders import CAPABILITIES, MODEL, TRAIN, offer
from tests.wire.codecs.vectors import layout_of

LAYOUT = layout_of(1000, 10)
BASE = b"\1" * 32
DELTA = Packed(manifest=manifest_of(b"\0" * 1056, "model"), codec="int8", base=BASE)
HALF = Packed(manifest=manifest_of(b"\1" * 2052, "model"), codec="float16")


def agreement(**exchange: object) -> CodecAgreement:
    return CodecAgreement(ExchangeConfig(**exchange), LAYOUT, "run-1")  # type: ignore[arg-type]


def device(*codecs: str, **known: object) -> Device:
    capabilities = structs.replace(CAPABILITIES, codecs=codecs)
    return Device(name="pi", row=0, capabilities=capabilities, **known)  # type: ignore[arg-type]


OLD = Device(name="old", row=1, capabilities=CAPABILITIES)
KNOWS_ALL = device(*CODECS)


def test_a_run_without_codecs_sends_no_new_field() -> None:
    for each in (KNOWS_ALL, OLD, Device(name="silent", row=2)):
        assert agreement().coding(each, None) == Coding()
        assert agreement().sizes(each, None) == (LAYOUT.size_bytes, LAYOUT.size_bytes)


@pytest.mark.parametrize("up", ["float16", "int8", "top-k"])
@pytest.mark.parametrize("down", ["float16", "int8", "delta"])
def test_an_older_device_gets_no_codec(up: str, down: str) -> None:
    agreed = agreement(up=up, down=down)
    assert agreed.coding(OLD, DELTA) == Coding()
    assert missing_codecs(agreed.config, OLD.capabilities) == sorted({up, down})
    assert missing_codecs(agreed.config, KNOWS_ALL.capabilities) == []


def test_each_direction_is_agreed_on_separately() -> None:
    agreed = agreement(up="int8", down="delta")
    assert agreed.coding(device("int8"), DELTA) == Coding(up="int8")
    assert agreed.coding(device("delta"), DELTA) == Coding(model=DELTA, keep_model=True)
    assert agreed.coding(device("delta"), None) == Coding(keep_model=True)


def test_top_k_has_its_number_its_run_and_the_last_merged_round() -> None:
    agreed = agreement(up="top-k", top_k=0.02)
    coding = agreed.coding(device("top-k", aggregated_round=4), None)
    assert coding == Coding(up="top-k", top_k=20, run="run-1", aggregated=4)
    least = agreement(up="top-k", top_k=1e-9).coding(KNOWS_ALL, None)
    assert isinstance(least, Coding)
    assert least.top_k == 1


def test_the_context_counts_the_encoded_bytes() -> None:
    agreed = agreement(up="int8", down="delta")
    up = 12 + 1000 + 4 + 40
    assert agreed.sizes(device(*CODECS, held_sha256=BASE), DELTA) == (1056, up)
    assert agreed.sizes(KNOWS_ALL, DELTA) == (LAYOUT.size_bytes, up)
    assert agreement(down="float16").sizes(KNOWS_ALL, HALF) == (2052, LAYOUT.size_bytes)


def test_an_upload_takes_its_blob_and_its_vector() -> None:
    assert agreement().memory_bytes == LAYOUT.size_bytes
    assert agreement(up="float16").memory_bytes == LAYOUT.size_bytes + 12 + 2000 + 40


def test_the_row_names_the_codecs_that_were_used() -> None:
    train = structs.replace(TRAIN, coding=Coding(up="int8", model=DELTA))
    whole, packed = offer(3), structs.replace(offer(3), pulled=DELTA.manifest.id)
    assert codecs_of(train, whole) == ("float32", "int8")
    assert codecs_of(train, packed) == ("delta", "int8")
    assert codecs_of(TRAIN, whole) == ("float32", "float32")
    assert (pulled_blob(train, whole), pulled_blob(train, packed)) == (MODEL, DELTA.manifest)
    assert pulled_blob(TRAIN, packed) is None
    assert pulled_blob(train, None) is None
