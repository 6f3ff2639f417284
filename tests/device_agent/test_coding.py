"""Decoding and encoding on a device, and the codec state between rounds."""

import numpy as np
import pytest
from msgspec import structs

from fairbed.device_agent.coding import Coder
from fairbed.device_agent.errors import RoundFailed
from fairbed.wire.chunks import manifest_of
from fairbed.wire.codecs import Vector, codec_named, pack, packed_bytes, unpack
from fairbed.wire.codecs.int8 import Int8Blocks
from fairbed.wire.errors import DecodeError, EncodeError
from fairbed.wire.messages import Coding, Hyperparameters, Manifest, Packed, Train
from fairbed.wire.tensors import vector_to_bytes
from tests.wire.codecs.vectors import layout_of, rng_of

N, BUFFERS = 2000, 5
LAYOUT = layout_of(N, BUFFERS)
TOP_K = Coding(up="top-k", top_k=20, run="a")


def random_vector(seed: int) -> Vector:
    return rng_of(seed).standard_normal(N + BUFFERS).astype(np.float32)


OLD, NEW = random_vector(1), random_vector(2)


def model_of(vector: Vector) -> Manifest:
    return manifest_of(vector_to_bytes(vector), "model")


def changes(old: Vector, new: Vector) -> tuple[bytes, Vector]:
    """Return the int8 changes from one version to another, and the decoded model."""
    codec = Int8Blocks()
    payload = codec.encode(new[:N] - old[:N], rng_of(3))
    blob = pack(codec, N, payload, new[N:])
    return blob, unpack(blob, codec, LAYOUT, old)


def train(vector: Vector = NEW, round_id: int = 1, coding: Coding | None = None) -> Train:
    request = Train(
        round=round_id,
        model=model_of(vector),
        hyperparameters=Hyperparameters(epochs=1, batch_size=1, learning_rate=0.1),
        seed=round_id,
        needs_loss=False,
        deadline_s=1.0,
    )
    return request if coding is None else structs.replace(request, coding=coding)


def delta(old: Vector, new: Vector) -> tuple[Train, bytes]:
    """Return a `Train` whose model is also available as changes, and the blob of the changes."""
    blob, decoded = changes(old, new)
    packed = Packed(manifest=manifest_of(blob, "model"), codec="int8", base=model_of(old).sha256)
    return train(decoded, coding=Coding(model=packed, keep_model=True)), blob


def test_without_a_codec_the_whole_model_is_sent() -> None:
    coder, request = Coder(), train()
    assert coder.blob_for(request, LAYOUT) == request.model
    assert bytes(coder.encode(request, LAYOUT, OLD, NEW)) == bytes(vector_to_bytes(NEW))


def test_changes_are_downloaded_only_with_their_base_version() -> None:
    coder = Coder()
    request, blob = delta(OLD, NEW)
    assert coder.blob_for(request, LAYOUT) == request.model
    coder.keep(train(OLD, coding=Coding(keep_model=True)), OLD)
    assert coder.blob_for(request, LAYOUT) == manifest_of(blob, "model")
    vector = coder.decode(request, LAYOUT, bytearray(blob))
    assert model_of(vector) == request.model
    coder.keep(request, vector)
    following, _ = delta(vector, random_vector(4))
    assert coder.blob_for(following, LAYOUT) != following.model


def test_a_version_is_kept_only_if_requested() -> None:
    coder = Coder()
    coder.keep(train(OLD, coding=Coding(keep_model=True)), OLD)
    coder.keep(train(OLD), OLD)
    request, _ = delta(OLD, NEW)
    assert coder.blob_for(request, LAYOUT) == request.model


def test_after_wrong_changes_the_round_fails_and_the_next_model_is_sent_whole() -> None:
    coder = Coder()
    request, _ = delta(OLD, NEW)
    other, _ = changes(OLD, random_vector(5))
    coder.keep(train(OLD, coding=Coding(keep_model=True)), OLD)
    with pytest.raises(DecodeError, match="must decode to the announced model"):
        coder.decode(request, LAYOUT, bytearray(other))
    assert coder.blob_for(request, LAYOUT) == request.model
    with pytest.raises(DecodeError, match="base version is no longer on this device"):
        coder.decode(request, LAYOUT, bytearray(other))


def test_a_blob_of_another_size_is_not_downloaded() -> None:
    coder = Coder()
    short = structs.replace(train(), model=model_of(NEW[:-1]))
    with pytest.raises(RoundFailed, match=f"must be {LAYOUT.size_bytes} bytes for this task"):
        coder.blob_for(short, LAYOUT)
    request = train(coding=Coding(model=Packed(manifest=model_of(NEW), codec="float16")))
    size = packed_bytes(codec_named("float16"), LAYOUT)
    with pytest.raises(RoundFailed, match=f"must be {size} bytes"):
        coder.blob_for(request, LAYOUT)


@pytest.mark.parametrize("name", ["float16", "int8", "top-k"])
def test_an_update_is_the_change_and_the_buffers(name: str) -> None:
    top_k = 20 if name == "top-k" else None
    request = train(coding=Coding(up=name, top_k=top_k))  # type: ignore[arg-type]
    blob = Coder().encode(request, LAYOUT, OLD, NEW)
    codec = codec_named(name, top_k)
    assert codec is not None
    change = unpack(blob, codec, LAYOUT)
    np.testing.assert_array_equal(change[N:], NEW[N:])
    error = np.abs(change[:N] - (NEW[:N] - OLD[:N]))
    assert error[change[:N] != 0.0].max() < 0.05
    assert bytes(blob) == bytes(Coder().encode(request, LAYOUT, OLD, NEW)), "the seed decides"


def test_a_change_out_of_the_range_of_the_codec_is_an_error() -> None:
    with pytest.raises(EncodeError, match="within 65504"):
        Coder().encode(train(coding=Coding(up="float16")), LAYOUT, OLD, NEW * np.float32(1e6))
    huge = np.full(N + BUFFERS, 3e38, np.float32)
    with pytest.raises(EncodeError, match="must be finite"):
        Coder().encode(train(coding=TOP_K), LAYOUT, -huge, huge)


def sent_by(coder: Coder, round_id: int, merged: int | None, run: str = "a") -> Vector:
    """Return the decoded change of one round, always between the same two models."""
    coding = structs.replace(TOP_K, aggregated=merged, run=run)
    blob = coder.encode(train(NEW, round_id, coding), LAYOUT, OLD, NEW)
    codec = codec_named("top-k", TOP_K.top_k)
    assert codec is not None
    return unpack(blob, codec, LAYOUT)[:N]


def test_values_omitted_by_top_k_are_sent_with_a_later_update() -> None:
    coder, sent = Coder(), np.zeros(N)
    rounds = 400
    for round_id in range(1, rounds + 1):
        sent += sent_by(coder, round_id, round_id - 1 or None)
    # Each value is sent when it is among the largest: 20 of 2000 per update.
    np.testing.assert_allclose(sent / rounds, NEW[:N] - OLD[:N], atol=0.6)
    assert (sent != 0.0).mean() > 0.8, "20 at a time alone would be 0.01"


def test_an_update_that_was_not_aggregated_does_not_change_the_residual() -> None:
    straight, shaky = Coder(), Coder()
    for coder in (straight, shaky):
        sent_by(coder, 1, None)
    sent_by(shaky, 2, 1)  # lost
    sent_by(shaky, 3, 1)  # lost, too
    np.testing.assert_array_equal(sent_by(shaky, 4, 1), sent_by(straight, 4, 1))


def test_a_restarted_round_sends_the_same_update() -> None:
    coder = Coder()
    sent_by(coder, 1, None)
    np.testing.assert_array_equal(sent_by(coder, 2, 1), sent_by(coder, 2, 1))


@pytest.mark.parametrize("run", ["b", ""])
def test_the_residual_of_another_run_is_dropped(run: str) -> None:
    coder = Coder()
    sent_by(coder, 1, None)
    np.testing.assert_array_equal(sent_by(coder, 2, 1, run), sent_by(Coder(), 2, 1, run))


def test_the_residual_of_another_layout_is_dropped() -> None:
    coder, n = Coder(), N // 2
    sent_by(coder, 1, None)
    request = train(NEW, 2, structs.replace(TOP_K, aggregated=1))
    small = layout_of(n)
    blobs = [c.encode(request, small, OLD[:n], NEW[:n]) for c in (coder, Coder())]
    assert bytes(blobs[0]) == bytes(blobs[1])
