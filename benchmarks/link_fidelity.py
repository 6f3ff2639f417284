"""Links of network namespaces against what they should be: goodput, times, delay, loss, outages.

    fairbed bench link-fidelity [--json] [--repeats 3] [--patience 60] [--only goodput,delay]

A value is the median of its repeats, beside it their least and greatest. A repeat counts when no
process that took part waited for other programs for more than 5 % of the time; a row without a
repeat that counts is not `ok`. Needs root, or a user namespace.
"""

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import anyio
import anyio.from_thread
import msgspec

from benchmarks._quiet import Row, line, repeat, row
from benchmarks._traffic import Flight, Peer, Stream, traffic
from testbed.backends.errors import BackendError
from testbed.backends.network.network import Network, open_network
from testbed.emulation.conditions import Outage, Shape

RATES_BPS = (1e5, 1e6, 1e7, 5e7, 1e8, 5e8)
SIZES_KIB = (64, 256, 1024)
DELAYS_S = (0.005, 0.02, 0.1)
LOSSES = (0.01, 0.05)
FAR_RATES_BPS = (1e7, 5e7)
FAR_S = 0.02

GOODPUT_LIMIT, FAST_LIMIT = 0.03, 0.05
FAST_BPS = 1e8
"""Faster than this `FAST_LIMIT` holds."""
TRANSFER_LIMIT, SHORT_LIMIT = 0.03, 0.1
SHORT_KIB = 256
"""Of messages shorter than this, one burst is more than a few percent."""
DELAY_LIMIT_S = 2e-3
LOSS_LIMIT = 0.1

MIN_STREAM_S, STREAM_BYTES = 5.0, 2e5
"""A stream takes so long, or for so many bytes."""
SETTLE_S = 2.0
"""Before the rate counts: the first burst, a window that opens, and what TCP holds back after the
first losses are not of it."""
MAX_TRANSFER_S = 12.0

FLIGHT_PACKETS, FLIGHT_INTERVAL_S = 500, 2e-3
LOSS_INTERVAL_S = 1e-4
LOSS_DEVIATIONS = 3.0
"""Packets enough for the limit to be so many standard deviations of the share lost."""

OUTAGE_S = 3.0
OUTAGE_LIMITS_S: Mapping[Outage, float] = {"coverage": 4.0, "unplugged": 0.5}
"""Silence after the end. TCP doubles its timeout from 0.2 s while nothing comes back: the next try
after 3 s is up to 3.4 s later. A plug wakes it."""

Way = tuple[str, Callable[..., tuple[float, Stream]]]


class Bench:
    """Measures one network, from a thread beside its event loop."""

    def __init__(self, repeats: int, patience_s: float) -> None:
        self._repeats, self._patience_s = repeats, patience_s

    def rows(self, only: set[str]) -> Iterator[Row]:
        """Measure everything, or only some."""
        if only & {"goodput", "transfer"}:
            for rate_bps in RATES_BPS:
                with _open({"pi": _both(rate_bps)}) as (network, _), _peer(network) as peer:
                    if "goodput" in only:
                        yield from self._goodput(peer, rate_bps)
                    if "transfer" in only:
                        yield from self._transfers(peer, rate_bps)
        if only & {"delay", "loss", "far"}:
            with _open({"pi": None}) as (network, apply), _peer(network) as peer:
                for delay_s in DELAYS_S if "delay" in only else ():
                    apply(Shape(delay_s=delay_s), None)
                    yield from self._delays(peer, delay_s)
                for loss_ratio in LOSSES if "loss" in only else ():
                    apply(Shape(loss_ratio=loss_ratio), None)
                    yield from self._losses(peer, loss_ratio)
                for rate_bps in FAR_RATES_BPS if "far" in only else ():
                    apply(_both(rate_bps, FAR_S), None)
                    yield from self._goodput(peer, rate_bps, f", {_ms(FAR_S)} away")
        if "outage" in only:
            for outage, limit_s in OUTAGE_LIMITS_S.items():
                with _open({"pi": _both(1e7)}) as (network, apply), _peer(network) as peer:
                    yield self._outage(peer, apply, outage, limit_s)

    def _row(self, name: str, target: float, what: Callable[[], float], limit: float) -> Row:
        return row(name, target, repeat(what, self._repeats, self._patience_s), limit)

    def _goodput(self, peer: Peer, rate_bps: float, where: str = "") -> Iterator[Row]:
        seconds = max(MIN_STREAM_S, 8 * STREAM_BYTES / rate_bps) + SETTLE_S
        for way, stream in _ways(peer):

            def rate(stream: Callable[..., tuple[float, Stream]] = stream) -> float:
                began, seen = stream(seconds=seconds)
                return seen.goodput_bps(began + SETTLE_S)

            limit = GOODPUT_LIMIT if rate_bps <= FAST_BPS else FAST_LIMIT
            yield self._row(f"goodput {way} {_mbit(rate_bps)}{where}", rate_bps, rate, limit)

    def _transfers(self, peer: Peer, rate_bps: float) -> Iterator[Row]:
        for size_kib in SIZES_KIB:
            ideal_s = size_kib * 8192 / rate_bps
            if ideal_s > MAX_TRANSFER_S:
                continue
            for way, stream in _ways(peer):

                def took(
                    stream: Callable[..., tuple[float, Stream]] = stream, n: int = size_kib * 1024
                ) -> float:
                    began, seen = stream(n_bytes=n)
                    return seen.ended_at - began

                is_easy = size_kib >= SHORT_KIB and rate_bps <= FAST_BPS
                limit = TRANSFER_LIMIT if is_easy else SHORT_LIMIT
                name = f"time of {size_kib} KiB {way} at {_mbit(rate_bps)}"
                yield self._row(name, ideal_s, took, limit)

    def _delays(self, peer: Peer, delay_s: float) -> Iterator[Row]:
        for way, fly in _flights(peer):

            def p95_error_s(fly: Callable[[int, float], Flight] = fly) -> float:
                delays = fly(FLIGHT_PACKETS, FLIGHT_INTERVAL_S).delays_s
                errors = sorted(abs(each - delay_s) for each in delays)
                return errors[int(0.95 * len(errors))]

            name = f"p95 error of {_ms(delay_s)} {way}, s"
            yield self._row(name, 0.0, p95_error_s, DELAY_LIMIT_S)

    def _losses(self, peer: Peer, loss_ratio: float) -> Iterator[Row]:
        spread = LOSS_DEVIATIONS / LOSS_LIMIT
        count = int(spread**2 * (1 - loss_ratio) / loss_ratio)
        for way, fly in _flights(peer):

            def lost(fly: Callable[[int, float], Flight] = fly) -> float:
                return fly(count, LOSS_INTERVAL_S).loss_ratio

            yield self._row(f"loss {way} {loss_ratio:g}", loss_ratio, lost, LOSS_LIMIT)

    def _outage(
        self,
        peer: Peer,
        apply: Callable[[Shape | None, Outage | None], None],
        outage: Outage,
        limit_s: float,
    ) -> Row:
        link = _both(1e7)

        def silence_s() -> float:
            seen: list[Stream] = []
            thread = threading.Thread(
                target=lambda: seen.append(peer.stream_down(seconds=3 * OUTAGE_S + 1)[1])
            )
            thread.start()
            time.sleep(1.0)
            apply(link, outage)
            time.sleep(OUTAGE_S)
            apply(link, None)
            ended_at = time.monotonic()
            thread.join()
            return min(at for at, _ in seen[0].marks if at > ended_at) - ended_at

        name = f"silence after {outage} of {OUTAGE_S:g} s, s"
        return self._row(name, 0.0, silence_s, limit_s)


def _both(rate_bps: float, delay_s: float = 0.0) -> Shape:
    return Shape(down_bps=rate_bps, up_bps=rate_bps, delay_s=delay_s)


def _ways(peer: Peer) -> tuple[Way, Way]:
    return ("down", peer.stream_down), ("up", peer.stream_up)


def _flights(peer: Peer) -> Iterator[tuple[str, Callable[[int, float], Flight]]]:
    yield "down", peer.fly_down
    yield "up", peer.fly_up


def _mbit(rate_bps: float) -> str:
    return f"{rate_bps / 1e6:g} Mbit/s"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:g} ms"


@contextmanager
def _open(
    shapes: Mapping[str, Shape | None],
) -> Iterator[tuple[Network, Callable[[Shape | None, Outage | None], None]]]:
    """Keep a network open in a thread of its own; yield it and how to change its one device."""
    delayed = [name for name, shape in shapes.items() if shape is None]
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(
            open_network("bench", shapes, delayed=delayed)
        ) as network,
    ):
        (name,) = shapes

        def apply(shape: Shape | None, outage: Outage | None) -> None:
            portal.call(network.apply, {name: (shape, outage)})

        yield network, apply


@contextmanager
def _peer(network: Network) -> Iterator[Peer]:
    with traffic(network.namespace("pi"), network.hub_address) as peer:
        yield peer


def main(arguments: list[str]) -> int:
    """Run the benchmark and print what it measured; return the exit code."""
    kinds = ("goodput", "transfer", "delay", "loss", "far", "outage")
    parser = argparse.ArgumentParser(
        prog="fairbed bench link-fidelity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds for each row")
    parser.add_argument("--only", default=",".join(kinds), help=f"some of {', '.join(kinds)}")
    options = parser.parse_args(arguments)
    rows = []
    try:
        for each in Bench(options.repeats, options.patience).rows(set(options.only.split(","))):
            rows.append(each)
            if not options.json:
                print(line(each), flush=True)
    except BackendError as exc:
        print(exc, file=sys.stderr)
        return 1
    if options.json:
        print(msgspec.json.encode(rows).decode())
    return 0
