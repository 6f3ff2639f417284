"""The identities of a lab: devices and persons, enrolment tokens, last contacts. One SQLite file.

The broker's configuration is generated from it, so it is the one truth. Each call is one
transaction; several processes and threads may use the file at the same time. Passwords and tokens
are random and are stored as hashes only.
"""

import base64
import hashlib
import hmac
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, get_args

import msgspec
from msgspec import Struct

from fairbed.testbed.broker.configuration import mosquitto_hash
from fairbed.testbed.broker.permissions import Role, user_of
from fairbed.testbed.errors import LabError
from fairbed.testbed.install import install_command
from fairbed.wire.messages import is_device_name
from fairbed.wire.printable import printable

LAB_SERVICE: tuple[str, Role] = ("lab", "coordinator")
"""Identity with which `fairbed lab up` notes the contacts of devices."""

ALL_TENANTS = "+"

PASSWORD_BYTES = 24
"""Random bytes of a password or token: 192 bits."""

BCRYPT_COST = 4
"""The least cost: a random password of 192 bits needs no more."""

BUSY_TIMEOUT_S = 10.0
"""How long to wait for another process's transaction, which takes milliseconds."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS identity (
    name TEXT NOT NULL, role TEXT NOT NULL, tenant TEXT NOT NULL,
    created_s REAL NOT NULL, expires_s REAL, revoked_s REAL,
    mosquitto_hash TEXT NOT NULL, nats_hash TEXT NOT NULL, run TEXT,
    PRIMARY KEY (name, role)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS alias (  -- earlier names of renamed devices
    old TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (old, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS token (
    hash TEXT PRIMARY KEY, name TEXT, role TEXT NOT NULL, tenant TEXT NOT NULL,
    made_s REAL NOT NULL, expires_s REAL NOT NULL, used_s REAL,
    identity_expires_s REAL, replaces INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS contact (
    name TEXT PRIMARY KEY, at_s REAL NOT NULL, address TEXT, agent TEXT, state TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS change (count INTEGER NOT NULL);
INSERT INTO change SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM change);
CREATE TRIGGER IF NOT EXISTS identity_added AFTER INSERT ON identity
    BEGIN UPDATE change SET count = count + 1; END;
CREATE TRIGGER IF NOT EXISTS identity_changed AFTER UPDATE ON identity
    BEGIN UPDATE change SET count = count + 1; END;
CREATE TRIGGER IF NOT EXISTS identity_removed AFTER DELETE ON identity
    BEGIN UPDATE change SET count = count + 1; END;
"""

_COLUMNS = "name, role, tenant, created_s, expires_s, revoked_s, mosquitto_hash, nats_hash, run"


class Identity(Struct, frozen=True, kw_only=True):
    """A login of the broker of a lab."""

    name: str
    """1 to 32 of a-z, 0-9 and hyphen; unique within its role."""
    role: Role
    tenant: str
    """Tenant of a device; `+`, all tenants, for the other roles."""
    created_s: float
    """Unix time, UTC; so are the next two."""
    expires_s: float | None
    """None never expires."""
    revoked_s: float | None
    """None is not revoked."""
    mosquitto_hash: str
    """Hash of the password in mosquitto's format: PBKDF2-HMAC-SHA512."""
    nats_hash: str
    """Hash of the password in NATS' format: bcrypt."""
    run: str | None
    """Run of an emulated device, removed with it; None for all others."""

    @property
    def user(self) -> str:
        """MQTT user name; a device's has no underscore, so no role can be confused with one."""
        return user_of(self.name, self.role)

    def is_accepted(self, now_s: float) -> bool:
        """Return whether the broker accepts it at a Unix time."""
        return self.revoked_s is None and (self.expires_s is None or now_s < self.expires_s)


class Contact(Struct, frozen=True, kw_only=True):
    """What is known of a device from its messages."""

    name: str
    at_s: float
    """Unix time of its last message."""
    address: str | None = None
    """Address that it enrolled from; None if unknown."""
    agent: str | None = None
    """Version of its agent."""
    state: str | None = None
    """`online`, `offline`, or None if unknown."""


def is_password_of(password: str, mosquitto: str) -> bool:
    """Return whether a password fits a hash of `mosquitto_hash`; takes constant time."""
    _, _, iterations, salt, _ = mosquitto.split("$")
    found = mosquitto_hash(password, base64.b64decode(salt), int(iterations))
    return hmac.compare_digest(found.encode(), mosquitto.encode())


def require_packages() -> None:
    """Check that the packages of the extra `lab` are installed.

    Raises:
        LabError: One is missing.
    """
    missing = [name for name in ("cryptography", "bcrypt", "segno") if find_spec(name) is None]
    if missing:
        raise LabError(
            f"lab: the package {missing[0]} must be installed, got none; run: "
            f"{install_command('fairbed[lab]')}"
        )


class Identities:
    """The registry of a lab; use it as `with Identities(path) as identities:`."""

    def __init__(self, path: Path) -> None:
        """Open the file, and make it if it does not exist.

        Raises:
            LabError: The file cannot be used.
        """
        self._path = path
        self._lock = threading.Lock()
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite keeps the mode
        except OSError as exc:
            raise LabError(f"{path}: must be writable, got {exc.strerror}") from exc
        with self._translated():
            self._db = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = FULL")  # an enrolment outlives power cuts
                if self._db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None:
                    self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
            except BaseException:
                self._db.close()
                raise

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> "Identities":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def create(
        self,
        name: str,
        role: Role = "device",
        *,
        tenant: str = "main",
        now_s: float | None = None,
        expires_s: float | None = None,
        run: str | None = None,
    ) -> str:
        """Add an identity, or renew a revoked or expired one.

        Args:
            name: Its name.
            role: Its role.
            tenant: Tenant of a device; other roles belong to all.
            now_s: Unix time; None is that of the system.
            expires_s: Unix time; None never expires.
            run: Run of an emulated device.

        Returns:
            Its password.

        Raises:
            LabError: The name is not valid or taken.
        """
        _check(name, role, tenant)
        with self._transaction() as db:
            return _create(db, _new_secret(), name, role, tenant, now_s, expires_s, run)

    def create_many(
        self, names: Iterable[str], *, tenant: str = "main", run: str, now_s: float | None = None
    ) -> dict[str, str]:
        """Add the emulated devices of a run, all or none.

        Those of an earlier run of this tenant are removed: a run that was killed cannot remove its
        own, and a tenant has one run at a time.

        Returns:
            Passwords by name.

        Raises:
            LabError: A name is not valid, or taken by an enrolled device.
        """
        wanted = list(names)
        for name in wanted:
            _check(name, "device", tenant)
        made = [_new_secret() for _ in wanted]  # before: takes seconds for thousands
        with self._transaction() as db:
            db.execute(
                "DELETE FROM identity WHERE role = 'device' AND tenant = ? AND run IS NOT NULL",
                (tenant,),
            )
            return {
                name: _create(db, secret, name, "device", tenant, now_s, None, run)
                for name, secret in zip(wanted, made, strict=True)
            }

    def remove_run(self, run: str) -> None:
        """Remove the emulated devices of a run, and their contacts."""
        with self._transaction() as db:
            db.execute(
                "DELETE FROM contact WHERE name IN "
                "(SELECT name FROM identity WHERE role = 'device' AND run = ?)",
                (run,),
            )
            db.execute("DELETE FROM identity WHERE run = ?", (run,))

    def get(self, name: str, role: Role = "device") -> Identity | None:
        """Return an identity, revoked and expired ones too; None if there is none."""
        with self._transaction("DEFERRED") as db:
            return _get(db, name, role)

    def all(self) -> list[Identity]:
        """Return all identities, by role and name."""
        with self._transaction("DEFERRED") as db:
            rows = db.execute(f"SELECT {_COLUMNS} FROM identity ORDER BY role, name").fetchall()
            return [_identity(row) for row in rows]

    def accepted(self, now_s: float) -> list[Identity]:
        """Return the identities that the broker is configured with at a Unix time."""
        return [identity for identity in self.all() if identity.is_accepted(now_s)]

    def authenticate(self, name: str, password: str) -> Identity | None:
        """Return the device with a present or earlier name and a password, revoked or not.

        A device that was renamed while it was offline so learns its new name.
        """
        with self._transaction("DEFERRED") as db:
            names = [name] + [
                row[0] for row in db.execute("SELECT name FROM alias WHERE old = ?", (name,))
            ]
            found = [_get(db, candidate, "device") for candidate in names]
        for identity in found:
            if identity is not None and is_password_of(password, identity.mosquitto_hash):
                return identity
        return None

    def rename(self, old: str, new: str, *, now_s: float = float("inf")) -> None:
        """Rename a device; its password stays, and its old name still authenticates it.

        It is offline until its agent connects under the new name.

        Args:
            old: Present name.
            new: New name.
            now_s: Unix time, at which no open token may have the new name; infinity: tokens do
                not count.

        Raises:
            LabError: There is no such device, or the new name is not valid, taken, or that of an
                open token, which could not be redeemed any more.
        """
        _check(new, "device", "main")
        with self._transaction() as db:
            _existing(db, old, "device")
            if _get(db, new, "device") is not None:
                raise LabError(f"device name {new}: taken; choose another, or see: fairbed devices")
            expires_s: float | None = db.execute(
                "SELECT max(expires_s) FROM token WHERE name = ? AND role = 'device' "
                "AND used_s IS NULL AND expires_s > ?",
                (new, now_s),
            ).fetchone()[0]
            if expires_s is not None:
                raise LabError(
                    f"device name {new}: an open token of fairbed enroll has this name, for "
                    f"{max(1, round((expires_s - now_s) / 60.0))} minutes more; choose another "
                    "name, or rename the device after that"
                )
            where = (new, old)
            db.execute("UPDATE identity SET name = ? WHERE name = ? AND role = 'device'", where)
            db.execute("UPDATE OR REPLACE alias SET name = ? WHERE name = ?", where)
            db.execute("INSERT OR REPLACE INTO alias (old, name) VALUES (?, ?)", (old, new))
            db.execute("DELETE FROM alias WHERE old = name")
            db.execute("UPDATE OR REPLACE contact SET name = ? WHERE name = ?", where)
            _mark_offline(db, new)

    def earlier_names(self, name: str) -> list[str]:
        """Return the names that a device had before, without those that another one has now."""
        with self._transaction("DEFERRED") as db:
            rows = db.execute(
                "SELECT old FROM alias WHERE name = ? AND old NOT IN "
                "(SELECT name FROM identity WHERE role = 'device') ORDER BY old",
                (name,),
            ).fetchall()
        return [row[0] for row in rows]

    def revoke(self, name: str, role: Role = "device", *, now_s: float) -> None:
        """Revoke an identity; a second call changes nothing.

        Raises:
            LabError: There is no such identity.
        """
        with self._transaction() as db:
            _existing(db, name, role)
            db.execute(
                "UPDATE identity SET revoked_s = ? WHERE name = ? AND role = ? "
                "AND revoked_s IS NULL",
                (now_s, name, role),
            )

    def version(self) -> int:
        """Return a number that grows with every change of an identity."""
        with self._transaction("DEFERRED") as db:
            count: int = db.execute("SELECT count FROM change").fetchone()[0]
            return count

    def new_token(
        self,
        name: str | None,
        role: Role = "device",
        *,
        tenant: str = "main",
        now_s: float,
        lifetime_s: float,
        identity_expires_s: float | None = None,
        replaces: bool = False,
    ) -> str:
        """Return a token that can be redeemed once; only its hash is stored.

        Args:
            name: The one name that it is good for; None takes any.
            role: Role of the new identity.
            tenant: Its tenant.
            now_s: Unix time.
            lifetime_s: Seconds until the token expires.
            identity_expires_s: Unix time at which the identity expires; None never.
            replaces: The new identity may replace a valid one of this name.

        Raises:
            LabError: The name is not valid.
        """
        if name is not None:
            _check(name, role, tenant)
        token = secrets.token_urlsafe(PASSWORD_BYTES)
        with self._transaction() as db:
            db.execute("DELETE FROM token WHERE expires_s < ?", (now_s - _TOKEN_MEMORY_S,))
            db.execute(
                "INSERT INTO token VALUES (?, ?, ?, ?, ?, ?, NULL, ?, ?)",
                (
                    _token_hash(token),
                    name,
                    role,
                    tenant,
                    now_s,
                    now_s + lifetime_s,
                    identity_expires_s,
                    replaces,
                ),
            )
        return token

    def check_token(self, token: str, *, now_s: float) -> None:
        """Check that a token could be redeemed now, and leave it open.

        Raises:
            LabError: The token is unknown, used or expired.
        """
        with self._transaction("DEFERRED") as db:
            _open_token(db, token, now_s)

    def redeem(
        self, token: str, name: str | None, *, host_name: str = "", now_s: float
    ) -> tuple[Identity, str]:
        """Use a token once: return the new identity with its password.

        A refused request does not use the token up.

        Args:
            token: The token.
            name: Name of the new identity; None is that of the token, or else `host_name`.
            host_name: Name for a token without one.
            now_s: Unix time.

        Raises:
            LabError: The token is unknown, used, expired or for another name; or the name is not
                valid or taken.
        """
        with self._transaction() as db:
            only_name, role, tenant, identity_expires_s, replaces = _open_token(db, token, now_s)
            name = name or only_name or host_name
            if only_name is not None and only_name != name:
                raise LabError(f"token: made for the name {only_name}, got {name!r}; {_NEW_TOKEN}")
            _check(name, role, tenant)
            password = _create(
                db,
                _new_secret(),
                name,
                role,
                tenant,
                now_s,
                identity_expires_s,
                None,
                replaces=bool(replaces),
            )
            db.execute("UPDATE token SET used_s = ? WHERE hash = ?", (now_s, _token_hash(token)))
            return _existing(db, name, role), password

    def saw(
        self,
        name: str,
        *,
        at_s: float,
        address: str | None = None,
        agent: str | None = None,
        state: str | None = None,
    ) -> None:
        """Note a contact of a device; None keeps what is known.

        Unknown and revoked devices are ignored.
        """
        self.saw_many([Contact(name=name, at_s=at_s, address=address, agent=agent, state=state)])

    def saw_many(self, contacts: Iterable[Contact]) -> None:
        """Note contacts as `saw` does, in one transaction."""
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO contact SELECT ?1, ?2, ?3, ?4, ?5 WHERE EXISTS "
                "(SELECT 1 FROM identity WHERE name = ?1 AND role = 'device' "
                "AND revoked_s IS NULL) "
                "ON CONFLICT (name) DO UPDATE SET "
                "at_s = max(at_s, excluded.at_s), address = coalesce(excluded.address, address), "
                "agent = coalesce(excluded.agent, agent), state = coalesce(excluded.state, state)",
                [(one.name, one.at_s, one.address, one.agent, one.state) for one in contacts],
            )

    def all_offline(self) -> None:
        """Note that no device is known to be online."""
        with self._transaction() as db:
            db.execute("UPDATE contact SET state = 'offline' WHERE state = 'online'")

    def contacts(self) -> dict[str, Contact]:
        """Return the last contact of each device that was seen, by name."""
        with self._transaction("DEFERRED") as db:
            rows = db.execute("SELECT name, at_s, address, agent, state FROM contact").fetchall()
        return {
            name: Contact(
                name=name,
                at_s=at_s,
                address=None if address is None else str(printable(address)),
                agent=None if agent is None else str(printable(agent)),
                state=state,
            )
            for name, at_s, address, agent, state in rows
        }

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """Commit what the block writes, or roll all of it back."""
        with self._lock, self._translated():
            self._db.execute(f"BEGIN {kind}")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk may have rolled back by itself
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            cause = str(exc)
            advice = next((a for key, a in _ADVICE.items() if key in cause), "see the cause")
            raise LabError(
                f"{self._path}: the identities must be usable, got {cause!r}; {advice}"
            ) from exc


class _Secret(NamedTuple):
    """A new password and its hashes."""

    password: str
    mosquitto_hash: str
    nats_hash: str


def _new_secret() -> _Secret:
    require_packages()
    import bcrypt

    password = secrets.token_urlsafe(PASSWORD_BYTES)
    salt = bcrypt.gensalt(BCRYPT_COST, prefix=b"2a")
    return _Secret(
        password,
        mosquitto_hash(password, secrets.token_bytes(12)),
        bcrypt.hashpw(password.encode(), salt).decode(),
    )


def _create(
    db: sqlite3.Connection,
    secret: _Secret,
    name: str,
    role: Role,
    tenant: str,
    now_s: float | None,
    expires_s: float | None,
    run: str | None,
    *,
    replaces: bool = False,
) -> str:
    """Add an identity, or renew a revoked or expired one; return its password.

    Raises:
        LabError: The name is taken.
    """
    now_s = time.time() if now_s is None else now_s
    found = _get(db, name, role)
    if found is not None and found.is_accepted(now_s) and not replaces:
        kind = "device name" if role == "device" else role
        raise LabError(
            f"{kind} {name}: taken; choose another, revoke it, or enrol it again with --replace"
        )
    if role == "device":
        _mark_offline(db, name)
    belongs_to = tenant if role == "device" else ALL_TENANTS
    db.execute(
        "INSERT OR REPLACE INTO identity VALUES (?, ?, ?, ?, ?, NULL, ?, ?, ?)",
        (name, role, belongs_to, now_s, expires_s, *secret[1:], run),
    )
    return secret.password


def _mark_offline(db: sqlite3.Connection, name: str) -> None:
    """Note that the link of a device, if it has one, ends: its login has changed."""
    db.execute("UPDATE contact SET state = 'offline' WHERE name = ? AND state = 'online'", (name,))


_TOKEN_MEMORY_S = 30 * 86400.0
"""For how long a used or expired token is known as such, seconds."""

_NEW_TOKEN = "make a new one on the lab's host with: fairbed enroll"

_ADVICE = {
    "full": "free space",
    "locked": "repeat the command",
    "readonly": "correct the rights of the folder",
    "unable to open": "correct the rights of the folder",
    "malformed": "restore a copy of the lab's folder",
    "not a database": "restore a copy of the lab's folder",
    "disk I/O": "check the disk",
}


def _check(name: str, role: Role, tenant: str) -> None:
    if not is_device_name(name):
        what = "device name" if role == "device" else f"name of the {role}"
        raise LabError(f"{what}: must be 1 to 32 of a-z, 0-9 and hyphen, got {name[:60]!r}")
    if role not in get_args(Role):
        raise LabError(f"role: must be one of {', '.join(get_args(Role))}, got {role!r}")
    if not is_device_name(tenant):
        raise LabError(f"tenant: must be 1 to 32 of a-z, 0-9 and hyphen, got {tenant[:60]!r}")


def _token_hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def _identity(row: tuple[object, ...]) -> Identity:
    return msgspec.convert(dict(zip(_COLUMNS.split(", "), row, strict=True)), Identity)


def _get(db: sqlite3.Connection, name: str, role: Role) -> Identity | None:
    row = db.execute(
        f"SELECT {_COLUMNS} FROM identity WHERE name = ? AND role = ?", (name, role)
    ).fetchone()
    return None if row is None else _identity(row)


def _open_token(
    db: sqlite3.Connection, token: str, now_s: float
) -> tuple[str | None, Role, str, float | None, bool]:
    """Return name, role, tenant, end of the identity and `replaces` of a token.

    Raises:
        LabError: The token is unknown, used or expired.
    """
    row = db.execute(
        "SELECT name, role, tenant, identity_expires_s, replaces, expires_s, used_s "
        "FROM token WHERE hash = ?",
        (_token_hash(token),),
    ).fetchone()
    if row is None:
        raise LabError(f"token: not known to this lab; {_NEW_TOKEN}")
    *found, expires_s, used_s = row
    if used_s is not None:
        raise LabError(f"token: already used; {_NEW_TOKEN}")
    if now_s >= expires_s:
        raise LabError(f"token: expired; {_NEW_TOKEN}")
    name, role, tenant, identity_expires_s, replaces = found
    return name, role, tenant, identity_expires_s, bool(replaces)


def _existing(db: sqlite3.Connection, name: str, role: Role) -> Identity:
    found = _get(db, name, role)
    if found is None:
        kind = "device" if role == "device" else role
        raise LabError(
            f"{kind} {name}: must be enrolled, got none of this name; see: fairbed devices"
        )
    return found
