"""Ownership of the networks on this machine, by lock files.

    /run/fairbed/lock            held while runs come and leftovers go, seconds at most
    /run/fairbed/STEM.lock       held by the owner of a run as long as it lives

A lock is the kernel's (`flock`): it is free in the instant its owner dies, however it dies. What a
run uses is written into its lock file before anything of it exists, and the file goes last: so a
namespace of ours without a held lock is a leftover, always.

/run, because namespaces are there too (`ip netns` binds them to /run/netns): both are gone after
a reboot, and both are private to a user namespace that has its own /run.
"""

import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from ipaddress import IPv4Network
from pathlib import Path

import anyio
import msgspec

from fairbed.testbed.backends.network.plan.names import NetworkNames
from fairbed.testbed.errors import BackendError

FOLDER = Path("/run/fairbed")

WAIT_S = 60.0
"""Longest wait for another process that holds the lock; seconds."""

POLL_S = 0.02
"""Between two looks at a lock that is held."""


class NetworkOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a lock file."""

    block: str | None = None
    """Addresses of the run; None has no network."""
    pid: int
    """Of the owner; for people only, the lock is what counts."""


@asynccontextmanager
async def machine_lock() -> AsyncIterator[None]:
    """Keep all others on this machine from choosing addresses, and from sweeping.

    Raises:
        BackendError: /run cannot be written to, or someone has held the lock for too long.
    """
    try:
        descriptor = _open_shared_lock()
    except OSError as exc:
        raise BackendError(
            f"{FOLDER}: must be writable for locks, got {exc.strerror}; be root, "
            "or use another backend"
        ) from exc
    try:
        with anyio.move_on_after(WAIT_S) as scope:
            while not _try_lock(descriptor):  # noqa: ASYNC110  # the kernel has no event for it
                await anyio.sleep(POLL_S)
        if scope.cancelled_caught:
            raise BackendError(
                f"{FOLDER / 'lock'}: must be free within {WAIT_S:.0f} s, got one that is held; "
                f"find its owner with: fuser {FOLDER / 'lock'}"
            )
        yield
    finally:
        os.close(descriptor)


@contextmanager
def claimed(names: NetworkNames, block: IPv4Network | None = None) -> Iterator[None]:
    """Own a run's names and addresses; enter under `machine_lock`.

    Leaving gives up the lock and keeps the file, for `forget` once all is gone.

    Args:
        names: Of the run.
        block: Its addresses; None has no network.

    Raises:
        OSError: The file cannot be written.
    """
    descriptor = os.open(lock_file(names), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        if not _try_lock(descriptor):
            raise OSError(f"{lock_file(names)}: must be new, got one that is held")
        os.write(descriptor, _encoded(block))
        yield
    finally:
        os.close(descriptor)


def lock_file(names: NetworkNames) -> Path:
    """Return where a run's claim is."""
    return FOLDER / f"{names.stem}.lock"


def claims() -> dict[NetworkNames, IPv4Network]:
    """Return the addresses that runs have claimed, dead ones included."""
    found: dict[NetworkNames, IPv4Network] = {}
    for path in FOLDER.glob("*.lock"):
        with suppress(OSError, msgspec.DecodeError, ValueError):
            claim = msgspec.json.decode(path.read_bytes(), type=NetworkOwner)
            if claim.block is not None:
                found[NetworkNames(path.stem)] = IPv4Network(claim.block)
    return found


def owners() -> set[NetworkNames]:
    """Return the runs that have a lock file, held or not."""
    return {NetworkNames(path.stem) for path in FOLDER.glob("*.lock")}


def is_alive(names: NetworkNames) -> bool:
    """Return whether a run's owner lives."""
    try:
        descriptor = os.open(lock_file(names), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def remove_claim(names: NetworkNames) -> None:
    """Remove the claim of a run that has nothing left."""
    lock_file(names).unlink(missing_ok=True)


def _encoded(block: IPv4Network | None) -> bytes:
    claim = NetworkOwner(block=None if block is None else str(block), pid=os.getpid())
    return msgspec.json.encode(claim)


def _open_shared_lock() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    return os.open(FOLDER / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
