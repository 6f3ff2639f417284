"""The files in the folder of a run, among them the endpoint of a live run.

The endpoint is the address and password of the broker, readable by the owner of the run only. A
restarted coordinator reuses both, so that devices that joined by themselves can reconnect.
"""

import os
import shutil
from pathlib import Path

import msgspec
from msgspec import Struct

from fairbed.wire.messages import MAX_CHUNK_BYTES

ENDPOINT_FILE = "endpoint.json"


class Endpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Address of a live run."""

    url: str
    """Broker address with user and, without a lab, password."""
    tenant: str
    host: str | None = None
    """Address that the embedded broker listens on; None for an external broker."""
    port: int | None = None
    password: str | None = None
    max_chunk_bytes: int = MAX_CHUNK_BYTES
    """The largest chunk that the broker accepts."""
    lab: str | None = None
    """Folder of the lab whose broker the run uses: `url` has no password, the lab has it. None for
    another broker."""


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
"""Output of a run that a TUI started. The TUI creates it, and removes it if no run began."""

WORK = "work.json"
"""Measured costs of training steps; a resumed run reuses them."""

CA_FILE = "ca.pem"
"""Copy of the certificates with which emulated devices in containers check the broker's."""

GAUGES = "gauges"
"""Memory shared by the devices and their backend while they run; removed at the end."""

RUN_FILES = {
    LOG,
    ENDPOINT_FILE,
    WORK,
    GAUGES,
    CA_FILE,
    "broker.log",
    "cache",
    "experiment.toml",
    "lock",
    "logs",
    "models",
}
"""Files and folders that a run writes before its store exists."""


def foreign_files(folder: Path) -> list[str]:
    """Return the sorted names in a folder that no run wrote; empty if the folder does not exist.

    Raises:
        OSError: The path is not a folder, or cannot be read.
    """
    try:
        return sorted({path.name for path in folder.iterdir()} - RUN_FILES)
    except FileNotFoundError:
        return []


def is_untouched(folder: Path) -> bool:
    """Return whether no run has written to a folder yet.

    Raises:
        OSError: The path is not a folder, or cannot be read.
    """
    return not folder.exists() or all(path.name == LOG for path in folder.iterdir())


def clear(folder: Path, *, with_log: bool = False) -> None:
    """Remove the files of a run that did not begin, then the folder if it is empty."""
    for name in RUN_FILES if with_log else RUN_FILES - {LOG}:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
