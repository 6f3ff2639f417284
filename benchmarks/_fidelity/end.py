"""A measuring end: one process, inside a device or outside, that does as it is told.

`python -m benchmarks._fidelity.end PARENT [first]` obeys `orders` on stdin, one after the other,
until it ends. It has one thread and blocking sockets: nothing else stands between a byte and its
moment.
"""

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks._fidelity import datagrams, orders, streams, work
from fairbed.testbed.backends.priority import raise_priority
from fairbed.testbed.host.guard import die_with_parent


class End:
    """Knows who carries out what."""

    def __init__(self) -> None:
        stream, shower = streams.Stream(), datagrams.Shower()
        self._do: dict[type[orders.Order], Callable[[Any], orders.Answers]] = {
            orders.Listen: stream.listen,
            orders.Connect: stream.connect,
            orders.Accept: stream.accept,
            orders.Pour: stream.pour,
            orders.Drink: stream.drink,
            orders.Hand: stream.hand,
            orders.Take: stream.take,
            orders.Tick: stream.tick,
            orders.Hear: stream.hear,
            orders.OpenDatagrams: shower.open,
            orders.Shoot: shower.shoot,
            orders.Count: shower.count,
            orders.Knead: work.knead,
            orders.Burn: work.burn,
            orders.Paced: work.paced,
        }

    def obey(self, order: orders.Orders) -> orders.Answers:
        """Carry an order out; return what came of it."""
        try:
            return self._do[type(order)](order)
        except (OSError, EOFError) as exc:
            return orders.Failed(reason=f"{type(order).__name__}: {exc!r}")


def main() -> None:
    """Obey; the arguments are our parent's process id and, for an instrument, `first`."""
    die_with_parent(int(sys.argv[1]))
    if "first" in sys.argv[2:]:
        raise_priority()
    end, decoder = End(), msgspec.json.Decoder(orders.Orders)
    for line in sys.stdin.buffer:
        answer = msgspec.json.encode(end.obey(decoder.decode(line)))
        sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
