"""How long a control message takes to a device and back, measured once in each exchange."""

from collections.abc import Callable

from coordinator.exchange import Exchange
from coordinator.post import Post
from wire.messages import Ping, Pong


class Echo:
    """Sends pings, and writes into an exchange what its last one took."""

    def __init__(self, post: Post, now: Callable[[], float]) -> None:
        self._post = post
        self._now = now
        self._open: dict[str, tuple[int, float, Exchange]] = {}
        """Number and instant of the last ping to each device, and what it was sent in."""
        self._count = 0

    def ping(self, device: str, exchange: Exchange) -> None:
        """Ask a device for an echo; one that was asked for before is of no use any more."""
        self._count += 1
        self._open[device] = (self._count, self._now(), exchange)
        self._post.say(device, Ping(seq=self._count), qos=0)

    def on_pong(self, device: str, pong: Pong) -> None:
        """The echo came back."""
        ping = self._open.get(device)
        if ping is not None and pong.seq == ping[0]:
            _, sent, exchange = self._open.pop(device)
            exchange.signal_s = self._now() - sent
