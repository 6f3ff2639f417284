"""Identities of the devices of a run at a lab.

Physical devices are enrolled once and stay; one that is revoked leaves the run at once. An
emulated device gets a login of its own, with the rights of a device, when its run starts, and
loses it when the run ends.
"""

import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from fairbed.testbed.errors import BrokerError, LabError
from fairbed.testbed.lab.folder import open_lab
from fairbed.testbed.lab.identities import Identities
from fairbed.testbed.run.broker import await_broker
from fairbed.wire.transport.address import with_login

ACCEPTED_S = 20.0
"""Longest time until the broker of a lab accepts new identities; it normally takes 0.3 s."""

RETRY_S = 0.1

WATCH_S = 0.2
"""Interval at which a run looks for changed identities, as the lab itself does."""

_log = logging.getLogger(__name__)


@asynccontextmanager
async def emulated_identities(
    lab: Path, url: str, names: Sequence[str], *, tenant: str, run_id: str
) -> AsyncIterator[Mapping[str, str]]:
    """Yield the password of each emulated device, once the broker of the lab accepts them.

    Args:
        lab: Folder of the lab.
        url: Address of its broker.
        names: The devices.
        tenant: Tenant of the run.
        run_id: Name of the run.

    Raises:
        LabError: A name is that of an enrolled device, or the broker accepts none in time.
    """
    wanted = set(names)

    def create() -> dict[str, str]:
        with Identities(open_lab(lab).database) as identities:
            for found in identities.all():
                is_replaced = found.run is not None and found.tenant == tenant
                if found.role == "device" and found.name in wanted and not is_replaced:
                    what = "an enrolled one" if found.run is None else f"one of run {found.run}"
                    raise LabError(
                        f"fleet: an emulated device must not have the name of {what}, got "
                        f"{found.name!r} for both; give its [[fleet]] another name"
                    )
            return identities.create_many(names, tenant=tenant, run=run_id)

    def remove() -> None:
        with Identities(open_lab(lab).database) as identities:
            identities.remove_run(run_id)

    passwords = await anyio.to_thread.run_sync(create)
    try:
        await _await_accepted(with_login(url, names[-1], passwords[names[-1]]))
        yield passwords
    finally:
        with anyio.CancelScope(shield=True):
            try:
                await anyio.to_thread.run_sync(remove)
            except LabError as exc:  # the next run of this tenant removes them
                _log.warning("identities of emulated devices remain: %s", exc)


async def _await_accepted(url: str) -> None:
    """Return when the broker accepts a login; it reads all new identities at once."""
    problem = ""
    with anyio.move_on_after(ACCEPTED_S):
        while True:
            try:
                await await_broker(url)
                return
            except BrokerError as exc:
                problem = str(exc)
            await anyio.sleep(RETRY_S)
    raise LabError(
        f"lab: its broker must accept new identities within {ACCEPTED_S:g} s, got: {problem}; see "
        "fairbed lab status"
    )


async def watch_identities(
    lab: Path, tenant: str, on_change: Callable[[frozenset[str]], None]
) -> None:
    """Pass on the names of the accepted devices of a tenant, at once and after each change.

    A registry that cannot be read is read again; until then nothing changes. A clock that was
    ahead and is set back makes expired identities valid again.

    Args:
        lab: Folder of the lab.
        tenant: Tenant of the run.
        on_change: Called on the event loop.
    """
    version, since_s, expires_s, problem = -1, math.inf, math.inf, ""

    def read(identities: Identities) -> tuple[int, float, float, frozenset[str]] | None:
        found, now_s = identities.version(), time.time()
        if found == version and since_s <= now_s < expires_s:
            return None
        devices = [
            one
            for one in identities.accepted(now_s)
            if one.role == "device" and one.tenant == tenant
        ]
        ends = min((one.expires_s for one in devices if one.expires_s is not None), default=None)
        names = frozenset(one.name for one in devices)
        return found, now_s, math.inf if ends is None else ends, names

    with Identities(open_lab(lab).database) as identities:
        while True:
            try:
                changed = await anyio.to_thread.run_sync(read, identities)
                problem = ""
            except LabError as exc:
                if str(exc) != problem:
                    _log.warning("the identities of the lab must be readable, got: %s", exc)
                problem, changed = str(exc), None
            if changed is not None:
                version, since_s, expires_s, accepted = changed
                on_change(accepted)
            await anyio.sleep(WATCH_S)


def not_enrolled(lab: Path, names: Iterable[str], tenant: str, now_s: float) -> list[str]:
    """Return the devices without a valid identity for a tenant, in the given order.

    Args:
        lab: Folder of the lab.
        names: Physical devices.
        tenant: Tenant of the run.
        now_s: Unix time.

    Raises:
        LabError: The registry of the lab cannot be read.
    """
    with Identities(open_lab(lab).database) as identities:
        known = {x.name for x in identities.accepted(now_s) if x.tenant == tenant}
    return [name for name in names if name not in known]


def enrolled_task_key(lab: Path, tenant: str, name: str) -> str | None:
    """Return the task key of a device that the lab accepts; None if there is none. Blocks.

    An emulated device has none: it was started by the process that would check its signatures.

    Raises:
        LookupError: The registry cannot be read; it is read again at the next hello of the device.
    """
    try:
        found = open_lab(lab)
        with Identities(found.database) as identities:
            identity = identities.get(name)
        if identity is None or identity.tenant != tenant or identity.run is not None:
            return None
        return found.task_key(identity) if identity.is_accepted(time.time()) else None
    except LabError as exc:
        _log.warning("%s: its task key must be readable, got: %s", name, exc)
        raise LookupError(name) from exc


def earlier_names(name: str) -> list[str]:
    """Return the names that a device of the lab on this machine had before. Blocks.

    A registry that cannot be read has none, with a line in the log.
    """
    try:
        with Identities(open_lab().database) as identities:
            return identities.earlier_names(name)
    except LabError as exc:
        _log.warning("%s: its earlier names must be readable, got: %s", name, exc)
        return []
