"""What a run may leave in its folder, and what becomes of it when the run never began.

Where a live run can be reached: written into its folder, readable by its owner only.

A restarted coordinator takes the same address and password again, so that devices that joined
by themselves find it where it was.
"""

import os
import shutil
from pathlib import Path

import msgspec
from msgspec import Struct

from fairbed.wire.messages import MAX_CHUNK_BYTES

ENDPOINT_FILE = "endpoint.json"


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
    path = folder / ENDPOINT_FILE
    scratch = path.with_suffix(".tmp")
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(endpoint))
    scratch.replace(path)


def read_endpoint(folder: Path) -> Endpoint | None:
    """Return the endpoint of the run in `folder`; None if it has none, or it is unreadable."""
    try:
        return msgspec.json.decode((folder / ENDPOINT_FILE).read_bytes(), type=Endpoint)
    except (OSError, msgspec.DecodeError):
        return None


LOG = "run.log"
"""What a run says that a TUI started: opened and, when the run never began, removed by the TUI."""

WORK = "work.json"
"""What steps of training cost on this machine: a resumed run goes on with the same devices."""

GAUGES = "gauges"
"""What devices and their backend tell each other while they run; gone afterwards."""

RUN_FILES = {
    LOG,
    ENDPOINT_FILE,
    WORK,
    GAUGES,
    "broker.log",
    "cache",
    "experiment.toml",
    "lock",
    "logs",
    "models",
}
"""Names of what a run writes before its first row."""


def foreign_files(folder: Path) -> list[str]:
    """Return what a folder holds that no run wrote, sorted; nothing if there is no folder.

    Raises:
        OSError: It is no folder, or cannot be read.
    """
    try:
        return sorted({path.name for path in folder.iterdir()} - RUN_FILES)
    except FileNotFoundError:
        return []


def is_untouched(folder: Path) -> bool:
    """Tell whether no run has written to a folder yet.

    Raises:
        OSError: It is no folder, or cannot be read.
    """
    return not folder.exists() or all(path.name == LOG for path in folder.iterdir())


def clear(folder: Path, *, with_log: bool = False) -> None:
    """Remove what a run wrote that never began, and the folder if that was all."""
    for name in RUN_FILES if with_log else RUN_FILES - {LOG}:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
