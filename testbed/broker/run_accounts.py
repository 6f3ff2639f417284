"""Logins at the broker of one run: a user of its own for each device and role.

The rights are those of a lab. All passwords are derived from one secret, so that a resumed run
accepts the devices that joined before, and no file of the broker has to keep them. Devices that are
enrolled while the run is live are names in a folder of the run.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fairbed.testbed.broker.configuration import mosquitto_hash
from fairbed.testbed.broker.permissions import COORDINATOR, OPERATOR, Role, user_of
from fairbed.testbed.run_folder import ENROLLED, Endpoint
from fairbed.wire.messages import is_device_name
from fairbed.wire.transport.address import with_login

SECRET_BYTES = 24
"""Random bytes of the secret: 192 bits, as a password of a lab."""

MAX_ENROLLED = 10_000
"""Devices and persons that can be enrolled in one run: as many devices as a run admits."""

PERSONS: tuple[Role, ...] = ("viewer", "operator")


def new_secret() -> str:
    """Return a random secret."""
    return secrets.token_urlsafe(SECRET_BYTES)


def password_of(secret: str, user: str) -> str:
    """Return the password of a user.

        base64url(HMAC-SHA256(secret, user)), its first 32 characters (192 bits)

    Args:
        secret: Secret of the run.
        user: MQTT user name.
    """
    digest = hmac.new(secret.encode(), user.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest[:SECRET_BYTES]).decode()


def device_passwords(secret: str, names: Iterable[str]) -> dict[str, str]:
    """Return the password of each device, by name."""
    return {name: password_of(secret, user_of(name, "device")) for name in names}


def login_of(endpoint: Endpoint, name: str, role: Role = "device") -> str:
    """Return the address of a run's broker with the login of a device or person.

    A broker that Fairbed did not start has the same login for all.
    """
    if endpoint.secret is None:
        return endpoint.url
    user = user_of(name, role)
    return with_login(endpoint.url, user, password_of(endpoint.secret, user))


@dataclass(frozen=True, slots=True)
class RunAccount:
    """One login (`testbed.lab.permissions.Account`)."""

    name: str
    role: Role
    tenant: str
    password: str = field(repr=False)

    @property
    def user(self) -> str:
        """MQTT user name."""
        return user_of(self.name, self.role)

    @property
    def mosquitto_hash(self) -> str:
        """Hash of the password in the format of `mosquitto_passwd`."""
        return mosquitto_hash(self.password, secrets.token_bytes(12))

    @property
    def nats_hash(self) -> str:
        """The password itself: a hash needs bcrypt, and the file is removed once it was read."""
        return self.password


class RunAccounts:
    """The logins of a run.

    Args:
        tenant: Tenant of the run.
        secret: None draws one.
        devices: Devices that are known from the start.
    """

    def __init__(self, tenant: str, secret: str | None = None, devices: Iterable[str] = ()) -> None:
        self.secret = secret or new_secret()
        self._tenant = tenant
        self._known: dict[str, tuple[str, Role]] = {}
        self.suspended: set[str] = set()
        """Users that the broker does not accept for now."""
        for name, role in (COORDINATOR, OPERATOR):
            self._known[user_of(name, role)] = name, role
        self.add(devices)

    def __contains__(self, user: object) -> bool:
        return user in self._known

    def add(self, users: Iterable[str]) -> list[str]:
        """Add devices and persons by their user names; return those that are new."""
        added = []
        for user in users:
            found = parse_user(user)
            if found is not None and user not in self._known:
                self._known[user] = found
                added.append(user)
        return added

    def remove(self, users: Iterable[str]) -> None:
        """Remove devices and persons."""
        for user in users:
            del self._known[user]

    def password(self, user: str) -> str:
        """Return the password of a user."""
        return password_of(self.secret, user)

    def all(self) -> list[RunAccount]:
        """Return all logins that the broker accepts."""
        return [
            RunAccount(name, role, self._tenant, self.password(user))
            for user, (name, role) in self._known.items()
            if user not in self.suspended
        ]


def parse_user(user: str) -> tuple[str, Role] | None:
    """Return name and role of a device or person; None if that name cannot be enrolled."""
    if is_device_name(user):
        return user, "device"
    prefix, _, name = user.partition("_")
    for role in PERSONS:
        if prefix == role and is_device_name(name):
            return name, role
    return None


def enrol_user(folder: Path, name: str, role: Role = "device") -> None:
    """Enrol a device or person in the live run in `folder`, which finds it there.

    Raises:
        OSError: The folder cannot be written.
    """
    place = folder / ENROLLED
    place.mkdir(mode=0o700, exist_ok=True)
    (place / user_of(name, role)).touch(mode=0o600)


def enrolled_users(folder: Path) -> list[str]:
    """Return the users that were enrolled in a live run, sorted; at most `MAX_ENROLLED`."""
    try:
        found = sorted(path.name for path in (folder / ENROLLED).iterdir())
    except OSError:
        return []
    return [user for user in found if parse_user(user) is not None][:MAX_ENROLLED]
