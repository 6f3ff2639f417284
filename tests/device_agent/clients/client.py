"""The client of tests, and a task with it."""

from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from fairbed.device_agent.config import AllowedClient
from fairbed.wire.artifact import Artifact, ClientArray, ClientSource, encode_artifact
from fairbed.wire.client_folder import folder_sha256
from fairbed.wire.records import Record, decode_records, encode_records
from fairbed.wire.tensors import Layout, Tensor
from tests.device_agent.softmax import softmax_artifact

CODE = Path(__file__).parents[2] / "cases" / "clients"
NAME = "behaving"
ALLOWED = {NAME: AllowedClient(folder=str(CODE))}
ARRAYS = (
    ClientArray(name="w", dtype="float64", shape=(2, 3)),
    ClientArray(name="seen", dtype="int64", shape=(2,)),
    ClientArray(name="b", dtype="float32", shape=(3,)),
    ClientArray(name="trees", dtype="bytes"),
)
LAYOUT = Layout(
    tensors=(
        Tensor(name="w", shape=(2, 3), offset=0),
        Tensor(name="b", shape=(3,), offset=6),
    )
)
VECTOR = np.zeros(9, np.float32)
"""`w`, then `b`."""


def raw_of(seen: int, trees: bytes) -> bytes:
    """Return the raw part of a model."""
    items = {"seen": np.array([seen, 0], np.int64), "trees": trees}
    return encode_records({"arrays": Record("arrays", items)})


RAW = raw_of(0, b"")


def raw_arrays(raw: bytes) -> dict[str, Any]:
    """Return the arrays in the raw part of an update."""
    return decode_records(raw)["arrays"].items


def config(how: str) -> bytes:
    """Return the configuration of a round that tells the client how to behave."""
    return encode_records({"config": Record("config", {"how": how})})


def client_artifact(path: str = "behaving:Client", **changed: Any) -> Artifact:
    """Return the task of a client."""
    source = ClientSource(
        **{
            "name": NAME,
            "sha256": folder_sha256(CODE),
            "path": path,
            "arrays": ARRAYS,
            "grace_s": 0.2,
            **changed,
        }
    )
    spec = structs.replace(softmax_artifact().spec, layout=LAYOUT)
    return Artifact(spec=spec, train=b"", evaluate=b"", client=source)


def client_task(path: str = "behaving:Client", **changed: Any) -> bytes:
    """Return the encoded task of a client."""
    return encode_artifact(client_artifact(path, **changed))
