"""Where a live run can be reached: written into its folder, readable by its owner only.

A restarted coordinator takes the same address and password again, so that devices that joined
by themselves find it where it was.
"""

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from wire.messages import MAX_CHUNK_BYTES

FILE = "endpoint.json"


class Endpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to talk to a run."""

    url: str
    """Broker address with user and password."""
    tenant: str
    host: str | None = None
    """Address the embedded broker listens on; None for a broker that is not ours."""
    port: int | None = None
    password: str | None = None
    max_chunk_bytes: int = MAX_CHUNK_BYTES
    """The largest chunk that the broker takes."""


def write_endpoint(folder: Path, endpoint: Endpoint) -> None:
    """Write the endpoint of the run in `folder`, mode 0600, atomically."""
    path = folder / FILE
    scratch = path.with_suffix(".tmp")
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(endpoint))
    scratch.replace(path)


def read_endpoint(folder: Path) -> Endpoint | None:
    """Return the endpoint of the run in `folder`; None if it has none, or it is unreadable."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Endpoint)
    except (OSError, msgspec.DecodeError):
        return None
