"""The brokers that stay between runs: a room adds them, and `broker.url` names them."""

from pathlib import Path
from typing import Protocol, cast

from fairbed.testbed import rooms
from fairbed.testbed.broker.permissions import Role
from fairbed.testbed.errors import UsageError
from fairbed.testbed.run_folder import Endpoint


class LoginSource(Protocol):
    """What has the logins of a broker; `testbed.run.run_broker.NamedBroker` is more."""

    def login(self, identity: tuple[str, Role], folder: Path | None = None) -> str:
        """Return the address of the broker with the login of an identity of this machine.

        Args:
            identity: Name and role.
            folder: That of the endpoint of a live run; None: the broker must be up.

        Raises:
            UsageError: It is down, or not there any more.
        """
        ...


def broker_of_room(url: str) -> LoginSource | None:
    """Return the broker that a room adds under a name; None for an address, and `embedded`."""
    path = rooms.broker(url)
    return None if path is None else cast(LoginSource, rooms.load(path)())


def room_login(endpoint: Endpoint, identity: tuple[str, Role]) -> str | None:
    """Return the address of a live run's broker if a room has its logins; None: the run has them.

    Raises:
        UsageError: The broker is not there any more, or its room.
    """
    if endpoint.room is None:
        return None
    broker = broker_of_room(endpoint.room)
    if broker is None:
        absent = rooms.absent("brokers", endpoint.room) or endpoint.room
        raise UsageError(rooms.lacking(f'broker.url = "{endpoint.room}"', absent))
    return broker.login(identity, Path(endpoint.room_folder))
