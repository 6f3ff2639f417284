"""The bytes on the wire: a change shows in the diff of `golden/`, and bumps PROTOCOL_VERSION."""

from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from fairbed.wire.artifact import decode_artifact, encode_artifact
from fairbed.wire.chunks import decode_chunk, encode_chunk
from fairbed.wire.codec import decode, encode
from fairbed.wire.codecs import pack, unpack
from fairbed.wire.messages import PROTOCOL_VERSION, AnyMessage
from fairbed.wire.scale import Scale
from fairbed.wire.shard import decode_shard, encode_shard, make_shard
from fairbed.wire.tensors import vector_from_bytes, vector_to_bytes
from tests.conftest import Golden
from tests.wire.codecs.vectors import CODECS, layout_of
from tests.wire.messages import MESSAGES
from tests.wire.test_artifact import ARTIFACT

FOLDER = Path(__file__).parent / "golden"
VECTOR = np.array([0.0, 1.0, -2.5, 1e-30], dtype=np.float32)


@pytest.mark.parametrize("name", MESSAGES)
def test_message_bytes(name: str, golden: Golden) -> None:
    golden(FOLDER / f"{name}.bin", encode(MESSAGES[name]))


@pytest.mark.parametrize(("name", "message"), MESSAGES.items(), ids=MESSAGES.keys())
def test_golden_bytes_are_decoded(name: str, message: AnyMessage) -> None:
    assert decode((FOLDER / f"{name}.bin").read_bytes()) == message


def test_chunk_bytes(golden: Golden) -> None:
    path = FOLDER / "chunk.bin"
    golden(path, encode_chunk(bytes(range(16)), 3, b"sixteen bytes..."))
    assert bytes(decode_chunk(path.read_bytes()).payload) == b"sixteen bytes..."


def test_vector_bytes(golden: Golden) -> None:
    path = FOLDER / "vector.bin"
    golden(path, bytes(vector_to_bytes(VECTOR)))
    np.testing.assert_array_equal(vector_from_bytes(path.read_bytes(), 4), VECTOR)


@pytest.mark.parametrize("name", sorted(CODECS))
def test_packed_bytes(name: str, golden: Golden) -> None:
    codec, path = CODECS[name], FOLDER / f"packed-{name}.bin"
    params = np.array([0.0, -127.0, 2.0, 64.0, 1.0, -1.0, 0.5, -0.5], dtype=np.float32)
    params[6:] *= 0.0 if name == "int8" else 1.0  # whole levels, so that nothing is random
    payload = codec.encode(params, np.random.default_rng(0))
    golden(path, pack(codec, len(params), payload, VECTOR))
    vector = unpack(path.read_bytes(), codec, layout_of(len(params), len(VECTOR)))
    np.testing.assert_array_equal(vector[len(params) :], VECTOR)
    if name != "top-k":
        np.testing.assert_array_equal(vector[: len(params)], params)


def test_shard_bytes(golden: Golden) -> None:
    path = FOLDER / "shard.bin"
    shard = make_shard(np.arange(8, dtype=np.uint8).reshape(2, 2, 2), np.array([1, 0]))
    golden(path, encode_shard(shard))
    assert decode_shard(path.read_bytes()) == shard


def test_shard_bytes_of_regression(golden: Golden) -> None:
    path = FOLDER / "shard-regression.bin"
    x, y = np.ones((2, 1), np.float32), np.array([0.5, -2.0])
    golden(path, encode_shard(make_shard(x, y)))
    targets = decode_shard(path.read_bytes()).arrays()[1]
    np.testing.assert_array_equal(targets, y.astype(np.float32), strict=True)


def test_task_bytes(golden: Golden) -> None:
    path = FOLDER / "task.bin"
    golden(path, encode_artifact(ARTIFACT))
    assert decode_artifact(path.read_bytes()) == ARTIFACT


def test_task_bytes_with_facts_of_its_data(golden: Golden) -> None:
    path = FOLDER / "task-data.bin"
    scale = Scale(low=0.0, high=1.0, mean=0.25, spread=0.5)
    task = structs.replace(ARTIFACT, scale=scale, labels=("ash", "elm", "Eiche, rot ü"))
    golden(path, encode_artifact(task))
    assert decode_artifact(path.read_bytes()) == task


def test_the_folder_holds_nothing_else() -> None:
    expected = {
        *MESSAGES,
        "chunk",
        "vector",
        "shard",
        "shard-regression",
        "task",
        "task-data",
        *(f"packed-{c}" for c in CODECS),
    }
    assert {path.stem for path in FOLDER.iterdir()} == expected


def test_golden_bytes_are_of_this_version() -> None:
    for name in MESSAGES:
        version = (FOLDER / f"{name}.bin").read_bytes()[0]
        assert version == PROTOCOL_VERSION, f"{name}: {version}"
