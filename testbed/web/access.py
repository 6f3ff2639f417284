"""Which requests the web server answers: host names, origins, tokens and cookies.

Every program and every page on this machine can send requests to a port on loopback, so a request
needs more than to arrive:

* `Host` must be an address or a name of this server: a page whose name was rebound to 127.0.0.1
  (DNS rebinding) sends its own name.
* A WebSocket and a login must come from a page of this server (`Origin`), as browsers let every
  page open a WebSocket to every address.
* The browser must hold a cookie, for which it has exchanged a token that the terminal shows.
"""

import ipaddress
import secrets
from collections import deque

MAX_COOKIES = 64
"""Browsers with access; the next one replaces the one that has had it longest."""

TOKEN_BYTES = 32


class Access:
    """Access of browsers to one server.

    Args:
        host: Address or name on which the server listens.
    """

    def __init__(self, host: str) -> None:
        self._host = host.strip("[]").lower()
        self._cookies: deque[str] = deque(maxlen=MAX_COOKIES)
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        """Good for one login; a login replaces it."""

    def redeem(self, token: str) -> str | None:
        """Exchange the token for the value of a new cookie; None if it is another token."""
        if not _equal(token, self.token):
            return None
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self._cookies.append(secrets.token_urlsafe(TOKEN_BYTES))
        return self._cookies[-1]

    def has_cookie(self, value: str | None) -> bool:
        """Return whether a login made this cookie."""
        return value is not None and any(_equal(value, cookie) for cookie in self._cookies)

    def is_host(self, header: str | None) -> bool:
        """Return whether a `Host` header names this server, at any port.

        The port is free because a tunnel (`ssh -L 9000:127.0.0.1:8885`) has another one. A server
        beyond loopback is reached by every address, but by no name other than its own: an address
        cannot be rebound.
        """
        name = _name_of(header or "")
        if name in ("localhost", self._host):
            return True
        address = _address(name)
        if address is None:
            return False
        own = _address(self._host)
        is_local = self._host == "localhost" or (own is not None and own.is_loopback)
        return address.is_loopback or not is_local

    def is_own_origin(self, origin: str | None, host: str | None) -> bool:
        """Return whether an `Origin` header names the page of the server that `host` names."""
        scheme, separator, rest = (origin or "").partition("://")
        return bool(separator) and scheme in ("http", "https") and bool(rest) and rest == host


def _equal(left: str, right: str) -> bool:
    return secrets.compare_digest(left.encode(errors="replace"), right.encode())


def _name_of(header: str) -> str:
    """Return the name or address in a `Host` header, without port and brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
