"""A device with a valid login fills the memory of the broker: how far it gets, what others lose.

    fairbed bench broker-memory [--broker mosquitto,nats,amqtt] [--agents 4] [--rounds 600] [--json]

In the second half of a run the device subscribes to new filters as fast as the broker takes them:
all in one session (`subscriptions`), or 100 in each of many sessions, which it asks the broker to
keep (`sessions`). It connects again whenever the broker ends its connection.

`subscriptions` counts what the device asked for, `peak_mib` is the largest memory of the broker,
`refused_after_s` is from the first message of the attack to the event that states the refusal; none
if the broker itself limits what the device keeps. `ratio` compares the median rounds of both
halves; the device shares the processor with the fleet.

Exits with 1 if an exchange was lost, or the broker grew by more than `MOST_MIB`.
"""

import argparse
import statistics
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import get_args

import msgspec
from msgspec import Struct

from benchmarks._hostile_client import ClosedError, HostileClient
from benchmarks._live_run import LiveRun, live_run, save_random_examples
from fairbed.coordinator.store import RunReader
from fairbed.testbed.broker.configuration import BrokerKind
from fairbed.wire.topics import Topics
from fairbed.wire.transport.address import Address, parse_url

NAME = "mallory"
ATTACKS = ("subscriptions", "sessions")
EXAMPLES = 400
"""Per device."""

FILTERS = 500
"""Of one packet."""

FILTERS_KEPT = 100
"""Of one session, in the attack by sessions."""

RETRY_S = 0.02
MOST_MIB = 512
"""Growth of a broker in the time until it refuses a device."""

MANY_EVENTS = 1_000_000


class Result(Struct, frozen=True, kw_only=True):
    """One attack."""

    broker: str
    attack: str
    subscriptions: int
    connections: int
    refused_after_s: float | None
    before_mib: float
    peak_mib: float
    quiet_median_s: float
    attacked_median_s: float
    ratio: float
    exchanges: int
    lost: int
    """Exchanges of the other devices without an update."""


class _Attacker(threading.Thread):
    """Subscribes until it is stopped."""

    def __init__(self, address: Address, topics: Topics, *, keeps_sessions: bool) -> None:
        super().__init__(name="attacker", daemon=True)
        self.subscriptions = self.connections = 0
        self.began_s = 0.0
        """Unix time."""
        self._address, self._topics, self._keeps = address, topics, keeps_sessions
        self._stopped = threading.Event()

    def run(self) -> None:
        """Attack."""
        self.began_s = time.time()
        while not self._stopped.is_set():
            try:
                self._connect()
            except ClosedError:
                self._stopped.wait(RETRY_S)

    def stop(self) -> None:
        """End the attack."""
        self._stopped.set()
        self.join()

    def _connect(self) -> None:
        self.connections += 1
        client = HostileClient(
            self._address, f"{NAME}-{self.connections}", keeps_session=self._keeps
        )
        try:
            while not self._stopped.is_set():
                number = FILTERS_KEPT if self._keeps else FILTERS
                first = self.subscriptions
                self.subscriptions += number
                client.subscribe_all(
                    [self._topics.chunk(f"x{first + k}", 0) for k in range(number)]
                )
                if self._keeps:
                    return
        finally:
            client.close()


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench broker-memory", description=__doc__)
    parser.add_argument("--broker", default="mosquitto,nats,amqtt", help="separated by commas")
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    brokers = options.broker.split(",")
    if unknown := [name for name in brokers if name not in get_args(BrokerKind)]:
        known = ", ".join(get_args(BrokerKind))
        parser.error(f"--broker: must be of {known}, got {unknown[0]!r}")
    results = [
        attack(broker, kind, options.agents, options.rounds)
        for broker in brokers
        for kind in ATTACKS
    ]
    if options.json:
        print(msgspec.json.encode(results).decode())
    else:
        for result in results:
            for key, value in msgspec.structs.asdict(result).items():
                print(f"{key:<20}{value:.3f}" if isinstance(value, float) else f"{key:<20}{value}")
            print()
    return int(any(one.lost or one.peak_mib - one.before_mib > MOST_MIB for one in results))


def attack(broker: str, kind: str, agents: int, rounds: int) -> Result:
    """Attack the broker of one run.

    Args:
        broker: Kind of broker.
        kind: One of `ATTACKS`.
        agents: Devices of the fleet.
        rounds: Rounds of the run; the second half is attacked.
    """
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder = Path(name)
        data = folder / "random.npz"
        save_random_examples(data, EXAMPLES * agents)
        with live_run(
            folder, data, agents=agents, rounds=rounds, broker=broker, batch_size=32, max_steps=4
        ) as run:
            attacker, before_mib, peak_mib = _attack(run, kind, rounds)
        with RunReader(run.folder) as reader:
            durations_s = [row.duration_s for row in reader.rounds()]
            exchanges = reader.exchanges(0)
            refusals = [
                datetime.fromisoformat(event.wall).timestamp()
                for _, event in reader.events(limit=MANY_EVENTS)
                if event.kind == "flood" and event.device == NAME
            ]
        half = rounds // 2
        quiet, attacked = map(statistics.median, (durations_s[:half], durations_s[half + 1 : -1]))
        return Result(
            broker=broker,
            attack=kind,
            subscriptions=attacker.subscriptions,
            connections=attacker.connections,
            refused_after_s=None if not refusals else refusals[0] - attacker.began_s,
            before_mib=before_mib,
            peak_mib=peak_mib,
            quiet_median_s=quiet,
            attacked_median_s=attacked,
            ratio=attacked / quiet,
            exchanges=len(exchanges),
            lost=sum(row.outcome != "done" for row in exchanges) + agents * rounds - len(exchanges),
        )


def _attack(run: LiveRun, kind: str, rounds: int) -> tuple[_Attacker, float, float]:
    """Return the attacker, and the broker's memory before and its largest during the attack."""
    closings = run.rounds()
    # Before the first round: a short run would be over.
    topics = Topics(run.endpoint().tenant)
    attacker = _Attacker(parse_url(run.enrol(NAME)), topics, keeps_sessions=kind == "sessions")
    before_mib = peak_mib = 0.0
    for closed in closings:
        if closed == rounds // 2:
            before_mib = run.rss_mib()["broker"]
            attacker.start()
        if rounds // 2 < closed < rounds - 1:
            peak_mib = max(peak_mib, run.rss_mib()["broker"])
        if closed == rounds - 1:
            attacker.stop()
    return attacker, before_mib, peak_mib
