"""Ownership of the networks on this machine, by lock files.

    /run/fairbed/lock            locked while a run claims names or removes leftovers: seconds
    /run/fairbed/STEM.lock       locked by the owner of a run as long as it is alive

Locks are `flock`s: the kernel frees a lock when its owner ends, whatever the cause. A run writes
its lock file before it makes anything, and the file is removed last. So a namespace with our prefix
and without a locked file is always a leftover.

The files are in /run because `ip netns` keeps namespaces in /run/netns: a reboot clears both, and a
user namespace with its own /run has both for itself.
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
from fairbed.testbed.host.slow_steps import named_if_slow

FOLDER = Path("/run/fairbed")

WAIT_S = 60.0
"""Longest wait for a lock of another process, seconds."""

POLL_S = 0.02
"""Interval of attempts to get a lock, seconds."""


class NetworkOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a lock file."""

    block: str | None = None
    """Addresses of the run; None is a run without a network."""
    pid: int
    """Process id of the owner, for information: only the lock proves ownership."""


@asynccontextmanager
async def machine_lock() -> AsyncIterator[None]:
    """Exclude other processes from claiming addresses and from removing leftovers.

    Raises:
        BackendError: /run is not writable, or another process kept the lock for too long.
    """
    try:
        descriptor = _open_shared_lock()
    except OSError as exc:
        raise BackendError(
            f"{FOLDER}: must be writable for locks, got {exc.strerror}; be root, "
            "or use another backend"
        ) from exc
    try:
        what = f"{FOLDER / 'lock'}, which another start holds"
        with named_if_slow(what, WAIT_S), anyio.move_on_after(WAIT_S) as scope:
            while not _try_lock(descriptor):  # noqa: ASYNC110  # the kernel has no event for it
                await anyio.sleep(POLL_S)
        if scope.cancelled_caught:
            raise BackendError(
                f"{FOLDER / 'lock'}: must be free within {WAIT_S:.0f} s, is still locked; "
                f"find its owner with: fuser {FOLDER / 'lock'}"
            )
        yield
    finally:
        os.close(descriptor)


@contextmanager
def claimed(names: NetworkNames, block: IPv4Network | None = None) -> Iterator[None]:
    """Claim the names and addresses of a run; enter under `machine_lock`.

    Leaving frees the lock but keeps the file; call `remove_claim` when everything is removed.

    Args:
        names: Names of the run.
        block: Addresses of the run; None is a run without a network.

    Raises:
        OSError: The file cannot be written.
    """
    descriptor = os.open(lock_file(names), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        if not _try_lock(descriptor):
            raise OSError(f"{lock_file(names)}: must be new, is locked by another process")
        os.write(descriptor, _encoded(block))
        yield
    finally:
        os.close(descriptor)


def lock_file(names: NetworkNames) -> Path:
    """Return the lock file of a run."""
    return FOLDER / f"{names.stem}.lock"


def claims() -> dict[NetworkNames, IPv4Network]:
    """Return the addresses that runs have claimed, including dead runs."""
    found: dict[NetworkNames, IPv4Network] = {}
    for path in FOLDER.glob("*.lock"):
        with suppress(OSError, msgspec.DecodeError, ValueError):
            claim = msgspec.json.decode(path.read_bytes(), type=NetworkOwner)
            if claim.block is not None:
                found[NetworkNames(path.stem)] = IPv4Network(claim.block)
    return found


def owners() -> set[NetworkNames]:
    """Return the runs that have a lock file, locked or not."""
    return {NetworkNames(path.stem) for path in FOLDER.glob("*.lock")}


def is_alive(names: NetworkNames) -> bool:
    """Return whether the owner of a run is alive."""
    try:
        descriptor = os.open(lock_file(names), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def remove_claim(names: NetworkNames) -> None:
    """Remove the claim of a run; its namespaces and links must be removed before."""
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
