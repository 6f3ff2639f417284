"""The owner's permission: which client may run on this device, from which folder."""

import sys
from collections.abc import Mapping
from pathlib import Path

from fairbed.device_agent.clients.process import ClientCode
from fairbed.device_agent.config import AllowedClient
from fairbed.device_agent.errors import NotPrepared
from fairbed.wire.artifact import ClientSource
from fairbed.wire.client_folder import ClientFolderError, files_of, folder_sha256
from fairbed.wire.printable import one_line

SHOWN_DIGITS = 12
"""Digits of a hash in an error message."""


def client_code(
    source: ClientSource, allowed: Mapping[str, AllowedClient], threads: int
) -> ClientCode:
    """Return the code of the client of a task, as the owner allows it.

    Args:
        source: The client that the coordinator names.
        allowed: The clients that the owner allows, by name.
        threads: Threads of a step.

    Raises:
        NotPrepared: It is not allowed, or its folder has other files than that of the run.
    """
    name = source.name
    client = allowed.get(name)
    if client is None:
        known = ", ".join(sorted(allowed)) or "none"
        raise NotPrepared(
            f"client {name}: must be allowed by the owner of this device, which allows {known}; "
            f"copy its folder here and start the agent with --allow-client {name}=FOLDER"
        )
    found = client_hash(name, client)
    if found != source.sha256:
        raise NotPrepared(
            f"client {name}: must have the code of the run, sha256 "
            f"{source.sha256.hex()[:SHOWN_DIGITS]}, got {found.hex()[:SHOWN_DIGITS]} in "
            f"{client.folder} ({_files(client)}); copy the folder of the experiment to this "
            "device again"
        )
    return ClientCode(
        kind=source.kind,
        folder=str(folder_of(client)),
        path=source.path,
        options=dict(source.options),
        python=client.python or sys.executable,
        threads=threads,
        processes=client.processes,
    )


def _files(client: AllowedClient) -> str:
    """Return how many files a folder has, and the newest one, which may be no code."""
    folder = folder_of(client)
    files = files_of(folder)
    newest = max(files, key=lambda path: (folder / path).stat().st_mtime, default=Path("none"))
    return f"{len(files)} files, the newest is {one_line(str(newest), 60)}"


def folder_of(client: AllowedClient) -> Path:
    """Return the folder of an allowed client, absolute."""
    return Path(client.folder).expanduser().absolute()


def client_hash(name: str, client: AllowedClient) -> bytes:
    """Return the hash of the folder of an allowed client.

    Raises:
        NotPrepared: It cannot be read, or is not the one that the owner has pinned.
    """
    try:
        found = folder_sha256(folder_of(client))
    except ClientFolderError as exc:
        raise NotPrepared(f"client {name}: {exc}") from exc
    if client.sha256 is not None and found.hex() != client.sha256:
        raise NotPrepared(
            f"client {name}: {client.folder} must have the pinned sha256 "
            f"{client.sha256[:SHOWN_DIGITS]}, got {found.hex()[:SHOWN_DIGITS]}; look at what has "
            "changed, and correct clients in agent.toml"
        )
    return found
