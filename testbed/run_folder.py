"""The files in the folder of a run, among them the endpoint of a live run.

The endpoint is the address of the broker and the secret of its passwords, readable by the owner of
the run only. A restarted coordinator reuses both, so that devices that joined by themselves can
reconnect.
"""

import os
import re
import shutil
from pathlib import Path

import msgspec
from msgspec import Struct

from fairbed.wire.messages import MAX_CHUNK_BYTES

ENDPOINT_FILE = "endpoint.json"


class Endpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Address of a live run."""

    url: str
    """Broker address with the login of the coordinator; without password for that of a room."""
    tenant: str
    run_id: str = ""
    """Id of the run; empty if it is not known: then a command reaches whichever run is there."""
    host: str | None = None
    """Address that the embedded broker listens on; None for an external broker."""
    port: int | None = None
    secret: str | None = None
    """Passwords of the embedded broker are derived from it; None for another broker."""
    max_chunk_bytes: int = MAX_CHUNK_BYTES
    """The largest chunk that the broker accepts."""
    room: str | None = None
    """The name in `broker.url` of the broker that a room adds: `url` has no password, the room has
    it. None for another broker."""
    room_folder: str = ""
    """Folder of that broker."""


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

ENROLLED = "enrolled"
"""An empty file for each user that was enrolled while the run was live."""

RUN_FILES = {
    LOG,
    ENDPOINT_FILE,
    WORK,
    GAUGES,
    CA_FILE,
    "broker.log",
    "broker.log.1",
    "broker-subscriptions",
    "cache",
    "endpoint.tmp",
    "experiment.partial",
    ENROLLED,
    "experiment.toml",
    "lock",
    "logs",
    "model.task",
    "model.tmp",
    "models",
    "run.partial",
    "run.partial-journal",
    "shards.json",
    "shards.tmp",
    "state",
}
"""Files and folders that a run writes before its store exists, or leaves when it is killed: all of
them. `fairbed bench kills --parts start` kills a start at each file that it writes."""

_BROKER = re.compile(r"broker-\d+")
"""Folders of an embedded broker, which a killed run leaves."""


def foreign_files(folder: Path) -> list[str]:
    """Return the sorted names in a folder that no run wrote; empty if the folder does not exist.

    Raises:
        OSError: The path is not a folder, or cannot be read.
    """
    try:
        names = {path.name for path in folder.iterdir()} - RUN_FILES
    except FileNotFoundError:
        return []
    return sorted(name for name in names if not _BROKER.fullmatch(name))


def is_untouched(folder: Path) -> bool:
    """Return whether no run has written to a folder yet.

    Raises:
        OSError: The path is not a folder, or cannot be read.
    """
    return not folder.exists() or all(path.name == LOG for path in folder.iterdir())


def clear(folder: Path, *, with_log: bool = False) -> None:
    """Remove the files of a run that did not begin, then the folder if it is empty."""
    if not folder.is_dir():
        return
    for path in list(folder.iterdir()):
        is_ours = path.name in RUN_FILES or _BROKER.fullmatch(path.name)
        if not is_ours or (path.name == LOG and not with_log):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()
