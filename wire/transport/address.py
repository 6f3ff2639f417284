"""Broker addresses: `mqtt://user:password@host:port` and `mqtts://...?cafile=ca.pem`.

Both take the option `?client=aiomqtt`, which selects the MQTT client. With mqtts,
`?server_name=NAME` is the name in the broker's certificate where the connection goes to another
address, as through the shaping proxy of an emulated device.

`mqtt://user:password@a:1883,b:1883,c` lists the nodes of one cluster, with one login: a client
connects to one of them, and to the next one when that one is lost.
"""

import ipaddress
import ssl
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, cast, get_args
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

Client: TypeAlias = Literal["direct", "aiomqtt"]
"""MQTT client: `wire.transport.own_client` or the library aiomqtt."""

DEFAULT_CLIENT: Client = "direct"
"""A round of 20 devices costs a fifth less processor time (docs/decisions/0007)."""

PASSWORD_VARIABLE = "FAIRBED_BROKER_PASSWORD"
"""Environment variable with the password of a broker, for a URL without one: arguments can be read
by other users of a machine, and files are shared."""

HIDDEN = "***"
"""Stands in place of a password where a URL is shown or stored."""

_PORTS = {"mqtt": 1883, "mqtts": 8883}

MAX_NODES = 16
"""Nodes of one address: a client that finds the cluster down tries each in turn."""


@dataclass(frozen=True, slots=True)
class Address:
    """Host, port and credentials of a broker."""

    host: str
    port: int
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    is_tls: bool = False
    cafile: str | None = None
    """Certificates to trust, PEM; None trusts those of the system."""
    server_name: str | None = None
    """Name that the broker's certificate must have; None is `host`."""
    client: Client = DEFAULT_CLIENT
    """MQTT client on this side; the broker does not see it."""
    other_nodes: tuple[tuple[str, int], ...] = ()
    """Host and port of the further nodes of a cluster."""

    @property
    def nodes(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each node, in the order of the URL."""
        return ((self.host, self.port), *self.other_nodes)

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS settings of the connection; None for a connection without TLS.

        Raises:
            ValueError: The certificate file cannot be read.
        """
        if not self.is_tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.cafile)
        except OSError as exc:
            raise ValueError(
                f"broker address: cannot read cafile {self.cafile}, {exc.strerror or exc}; give "
                "the file with the certificate of the broker's CA"
            ) from exc


def _cut(url: str) -> tuple[str, str, str, str]:
    """Return the scheme with `//`, the login with `@`, the nodes, and what follows them."""
    scheme, slashes, rest = url.partition("//")
    end = min((rest.find(mark) for mark in "/?#" if mark in rest), default=len(rest))
    login, at, nodes = rest[:end].rpartition("@")
    return f"{scheme}{slashes}", f"{login}{at}", nodes, rest[end:]


def node_urls(url: str) -> list[str]:
    """Return a URL for each node that `url` lists; `[url]` if it is of one broker."""
    head, login, nodes, tail = _cut(url)
    return [f"{head}{login}{node}{tail}" for node in nodes.split(",")]


def parse_url(url: str) -> Address:
    """Return the address in `url`: the first node, and the further ones in `other_nodes`.

    Raises:
        ValueError: `url` is not a broker address; the message is one line, without password.
    """
    urls = node_urls(url)
    if len(urls) > MAX_NODES:
        raise ValueError(
            f"broker address: must list at most {MAX_NODES} nodes, got {len(urls)} in "
            f"{redact(url)!r}"
        )
    first, *others = [_parse_node(node) for node in urls]
    if len({(node.host, node.port) for node in (first, *others)}) < len(urls):
        raise ValueError(f"broker address: must list each node once, got {redact(url)!r}")
    return replace(first, other_nodes=tuple((node.host, node.port) for node in others))


def _parse_node(url: str) -> Address:
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
    if "\0" in unquote(f"{parts.username}{parts.password}"):
        raise ValueError(f"broker address: must have no zeros in user and password, got {shown!r}")
    query = parse_qs(parts.query, keep_blank_values=True)
    allowed = {"client", "cafile", "server_name"} if parts.scheme == "mqtts" else {"client"}
    if query.keys() - allowed:
        raise ValueError(
            "broker address: takes only ?client=NAME, and ?cafile=FILE and ?server_name=NAME with "
            f"mqtts, got {shown!r}"
        )
    client = query["client"][-1] if "client" in query else DEFAULT_CLIENT
    if client not in get_args(Client):
        raise ValueError(
            f"broker address: client must be {' or '.join(get_args(Client))}, got {shown!r}"
        )
    server_name = query["server_name"][-1] if "server_name" in query else None
    if server_name == "" or (server_name and client != "direct"):
        raise ValueError(
            "broker address: server_name must be a name, and needs the client direct, got "
            f"{shown!r}; a proxy to a broker with TLS needs it, too"
        )
    return Address(
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password is not None else None,
        is_tls=parts.scheme == "mqtts",
        cafile=query["cafile"][-1] if "cafile" in query else None,
        server_name=server_name,
        client=cast("Client", client),
    )


def redirected(url: str, host: str, port: int) -> str:
    """Return `url` with one other host and port, where the same broker answers, as by a proxy.

    Raises:
        ValueError: `url` is no broker address, or its client cannot check the broker's certificate
            at another address.
    """
    address, (head, login, _, tail) = parse_url(url), _cut(url)
    if address.is_tls and address.server_name is None:
        if address.other_nodes:
            raise ValueError(
                "broker address: a proxy to several nodes with TLS needs a name that is in the "
                f"certificate of each, got {redact(url)!r}; add ?server_name=NAME"
            )
        tail += f"{'&' if '?' in tail else '?'}server_name={quote(address.host, safe='')}"
    where = f"[{host}]" if ":" in host else host
    changed = f"{head}{login}{where}:{port}{tail}"
    parse_url(changed)
    return changed


def with_password(url: str, password: str) -> str:
    """Return `url` with a password, unless it has one that is not hidden.

    Raises:
        ValueError: The URL has no user for the password.
    """
    user, colon, present = _cut(url)[1].rpartition("@")[0].partition(":")
    if colon and present != HIDDEN:
        return url
    if not user:
        raise ValueError("needs a user for the password; write mqtt://USER@HOST")
    return with_login(url, unquote(user), password)


def without_password(url: str) -> str:
    """Return `url` without its password."""
    head, login, nodes, tail = _cut(url)
    user = login.rpartition("@")[0].partition(":")[0]
    return f"{head}{user}{'@' if login else ''}{nodes}{tail}"


def with_login(url: str, user: str, password: str) -> str:
    """Return `url` with this user and password."""
    head, _, nodes, tail = _cut(url)
    return f"{head}{quote(user, safe='')}:{quote(password, safe='')}@{nodes}{tail}"


def with_cafile(url: str, cafile: str) -> str:
    """Return `url` with another file of certificates to trust."""
    path, _, query = url.partition("?")
    return f"{path}?{urlencode({**parse_qs(query), 'cafile': [cafile]}, doseq=True)}"


def with_client(url: str, client: Client) -> str:
    """Return `url` with the option `client` added, unless it has one."""
    if client == DEFAULT_CLIENT or "client" in parse_qs(url.partition("?")[2]):
        return url
    return f"{url}{'&' if '?' in url else '?'}client={client}"


def redact(url: str) -> str:
    """Return `url` with its password hidden, for logs and messages."""
    head, at, tail = url.rpartition("@")
    start = head.find("//") + 2 if "//" in head else 0
    user, colon, _ = head[start:].partition(":")
    return f"{head[:start]}{user}:{HIDDEN}@{tail}" if at and colon else url


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
