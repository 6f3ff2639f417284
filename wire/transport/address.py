"""Broker addresses: `mqtt://user:password@host:port` and `mqtts://...?cafile=ca.pem`.

Either may choose who speaks MQTT for us: `?client=aiomqtt`.
"""

import ssl
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast, get_args
from urllib.parse import parse_qs, unquote, urlsplit

Client: TypeAlias = Literal["direct", "aiomqtt"]
"""Who speaks MQTT for us: `wire.transport.own_client`, or the library."""

DEFAULT_CLIENT: Client = "direct"
"""A round of 20 devices costs a fifth less processor time (docs/decisions/0007)."""

_PORTS = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker is, and who we are there."""

    host: str
    port: int
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    is_tls: bool = False
    cafile: str | None = None
    """Certificates to trust, PEM; None trusts those of the system."""
    client: Client = DEFAULT_CLIENT
    """Nothing that the broker knows of."""

    def tls_context(self) -> ssl.SSLContext | None:
        """Return what a TLS connection needs; None for a plain one.

        Raises:
            ValueError: The file of certificates cannot be read.
        """
        if not self.is_tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.cafile)
        except OSError as exc:
            raise ValueError(f"broker address: cannot read cafile {self.cafile}, {exc}") from exc


def parse_url(url: str) -> Address:
    """Return the address that `url` names.

    Raises:
        ValueError: It is not a broker's address; the message is one line, without password.
    """
    shown = redact(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise ValueError(f"broker address: {exc}, got {shown!r}; write mqtt://host:port") from None
    if parts.scheme not in _PORTS:
        raise ValueError(f"broker address: must begin with mqtt:// or mqtts://, got {shown!r}")
    if not parts.hostname:
        raise ValueError(f"broker address: must name a host, got {shown!r}; write mqtt://host:port")
    if port == 0:
        raise ValueError(f"broker address: port must be 1 to 65535, got {shown!r}")
    if parts.path not in ("", "/") or parts.fragment:
        raise ValueError(f"broker address: must end after the port, got {shown!r}")
    if parts.password is not None and not parts.username:
        raise ValueError(f"broker address: a password needs a user before it, got {shown!r}")
    query = parse_qs(parts.query, keep_blank_values=True)
    if query.keys() - {"client", "cafile"} or ("cafile" in query and parts.scheme != "mqtts"):
        raise ValueError(
            f"broker address: takes only ?client=NAME, and ?cafile=FILE with mqtts, got {shown!r}"
        )
    client = query["client"][-1] if "client" in query else DEFAULT_CLIENT
    if client not in get_args(Client):
        raise ValueError(
            f"broker address: client must be {' or '.join(get_args(Client))}, got {shown!r}"
        )
    return Address(
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password is not None else None,
        is_tls=parts.scheme == "mqtts",
        cafile=query["cafile"][-1] if "cafile" in query else None,
        client=cast("Client", client),
    )


def with_client(url: str, client: Client) -> str:
    """Return `url` with the choice of who speaks MQTT for us, unless it names one itself."""
    if client == DEFAULT_CLIENT or "client" in parse_qs(urlsplit(url).query):
        return url
    return f"{url}{'&' if '?' in url else '?'}client={client}"


def redact(url: str) -> str:
    """Return `url` with its password hidden, fit for logs and messages."""
    head, at, tail = url.rpartition("@")
    start = head.find("//") + 2 if "//" in head else 0
    user, colon, _ = head[start:].partition(":")
    return f"{head[:start]}{user}:***@{tail}" if at and colon else url
