"""A device with a valid login attacks a live fleet: what has an effect, and what it costs others.

    fairbed bench hostile [--broker mosquitto,nats] [--messages 2000] [--agents 4] [--rounds 600]
                          [--seed 1] [--json]

The device joins a run of unthrottled agents, and never becomes ready. In every second block of
rounds it sends messages of all kinds in `benchmarks/_hostile_messages.py` in turn, the order and
content by the seed: on its own topics, where the coordinator must refuse them; on topics of the
coordinator, of operators and of other devices, as messages and last wills, where the broker must
drop them; subscriptions to foreign topics; logins as others; packets above the limit.

Three witnesses (logins of the coordinator, of an operator and of another device) read what the
broker forwards; the store of the run shows what the coordinator did. A message counts as refused if
no witness got it, and the run shows no effect of its kind. `lines_per_kind` is the largest number
of log lines of one kind about the device. Quiet and hostile blocks of rounds of one run alternate,
so that the load of the machine changes both; `ratio` compares the medians of their rounds.

Exits with 1 if anything was forwarded, read, or had an effect.
"""

import argparse
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
from msgspec import Struct

from benchmarks._hostile_client import ClosedError, HostileClient, is_refused
from benchmarks._hostile_messages import (
    BOOT,
    NAME,
    ON_OTHER_TOPICS,
    ON_OWN_TOPICS,
    SUBSCRIPTIONS,
    Attempt,
    Place,
    hello,
    not_ready,
)
from benchmarks._live_run import LiveRun, live_run, save_random_examples
from fairbed.coordinator.store import RunReader
from fairbed.testbed.broker.configuration import MAX_PACKET_BYTES, BrokerKind
from fairbed.testbed.broker.permissions import OPERATOR
from fairbed.testbed.broker.run_accounts import login_of
from fairbed.testbed.run_folder import Endpoint
from fairbed.wire.codec import encode
from fairbed.wire.topics import ANY, LOCAL_OPERATOR, Topics
from fairbed.wire.transport.address import Address, parse_url
from fairbed.wire.transport.base import Will

EXAMPLES = 400
"""Per device."""

BLOCK_ROUNDS = 20
"""Rounds of a quiet or hostile block."""

MANY_EVENTS = 1_000_000
"""More than a run writes."""

WITNESS = "witness"
"""A device that is enrolled and only reads."""

OTHER_KINDS = (
    "last will for the coordinator",
    "packet above the limit",
    "login of another device",
    "login of the coordinator",
    "login without a password",
)


class BrokerResult(Struct, frozen=True, kw_only=True):
    """The attack on one broker."""

    broker: str
    kinds: int
    """Kinds of hostile messages."""
    messages: int
    """Hostile messages."""
    refused: int
    """Those without an effect."""
    forwarded: int
    """Messages on foreign topics that a witness got."""
    read: int
    """Messages on foreign topics that the hostile device got."""
    logged_in: int
    """Logins as others that the broker took."""
    effects: list[str]
    """What the run should not show."""
    log_lines: dict[str, int]
    """Lines about the device in the log of the run, by kind."""
    lines_per_kind: int
    rounds: int
    quiet_median_s: float
    """Round time while the device sends nothing but a context a second."""
    hostile_median_s: float
    ratio: float
    ratio_quartiles: tuple[float, float]
    """Of the ratios of each hostile block to the quiet blocks before and after it."""
    coordinator_growth_mib: float
    """Growth of the resident memory during the attack."""
    broker_growth_mib: float


@dataclass(slots=True)
class _Witnesses:
    """Connections that read what the broker forwards."""

    clients: list[HostileClient]
    forged: set[tuple[str, bytes]] = field(default_factory=set)
    """Topic and payload of each message on a foreign topic."""
    forwarded: int = 0

    def look(self) -> None:
        """Count forged messages that arrived."""
        for client in self.clients:
            for message in client.take():
                self.forwarded += (message.topic, bytes(message.payload)) in self.forged


@dataclass(slots=True)
class _Attacker:
    """The hostile device: sends the kinds in turn."""

    address: Address
    place: Place
    witnesses: _Witnesses
    victims: Sequence[str]
    client: HostileClient | None = None
    sent: Counter[str] = field(default_factory=Counter)
    read: int = 0
    logged_in: int = 0
    _turn: Iterator[str] = field(default_factory=lambda: iter(()))
    _seq: int = 1

    def join(self) -> None:
        """Join the run with a hello."""
        self._own().publish(self.place.topics.up(NAME), encode(hello(BOOT)), qos=1)
        self.rest()

    def rest(self) -> None:
        """Send what an idle device sends."""
        self._seq += 1
        payload = encode(not_ready(self._seq))
        try:
            self._own().publish(self.place.topics.telemetry(NAME), payload)
        except ClosedError:  # it answers a message that was sent before
            self._drop()
        self._check_read()

    def attack(self, messages: int) -> None:
        """Send hostile messages; return when the broker has read them."""
        for _ in range(messages):
            self._attack()
        try:
            self._own().ping()
        except ClosedError:
            self._drop()
        self._check_read()

    def _attack(self) -> None:
        """Send one message, of the next kind."""
        kind = next(self._turn, None)
        if kind is None:
            names = [*ON_OWN_TOPICS, *ON_OTHER_TOPICS, *SUBSCRIPTIONS, *OTHER_KINDS]
            self._turn = iter([names[k] for k in self.place.rng.permutation(len(names))])
            kind = next(self._turn)
        self.sent[kind] += 1
        victim = self.victims[int(self.place.rng.integers(len(self.victims)))]
        place = self.place._replace(victim=victim)
        try:
            if kind in ON_OWN_TOPICS:
                self._send(ON_OWN_TOPICS[kind](place))
            elif kind in ON_OTHER_TOPICS:
                self._forge(ON_OTHER_TOPICS[kind](place))
            elif kind in SUBSCRIPTIONS:
                self._own().subscribe(SUBSCRIPTIONS[kind](place.topics, victim))
            else:
                self._other(kind, place)
                self._own().ping()  # before the next one: the broker may end the connection
        except ClosedError:
            self._drop()

    def close(self) -> None:
        """End the connection."""
        self._check_read()
        self._drop()

    def _send(self, attempt: Attempt) -> None:
        self._own().publish(attempt.topic, attempt.payload, qos=1, retain=attempt.retain)

    def _forge(self, attempt: Attempt) -> None:
        self.witnesses.forged.add((attempt.topic, attempt.payload))
        self._send(attempt)

    def _other(self, kind: str, place: Place) -> None:
        topics = place.topics
        match kind:
            case "last will for the coordinator":
                forged = ON_OTHER_TOPICS["forged status of the coordinator"](place)
                self.witnesses.forged.add((forged.topic, forged.payload))
                will = Will(forged.topic, forged.payload)
                HostileClient(self.address, self._client_id("will"), will).close()
            case "packet above the limit":
                payload = self.place.rng.bytes(8) + bytes(MAX_PACKET_BYTES + 1)
                self.witnesses.forged.add((topics.upload(NAME), payload))
                self._own().publish(topics.upload(NAME), payload)
            case _:
                user = {"login of another device": place.victim}.get(kind, "coordinator_main")
                password = None if kind == "login without a password" else self.address.password
                login = replace(self.address, username=user, password=password)
                self.logged_in += not is_refused(login, self._client_id("other"))

    def _check_read(self) -> None:
        if self.client is None:
            return
        topics = self.place.topics
        own = {topics.control(NAME), topics.data(NAME), topics.status(NAME), topics.coordinator}
        own |= {topics.control_all, topics.telemetry(NAME), topics.up(NAME), topics.upload(NAME)}
        try:
            messages = self.client.take()
        except ClosedError:
            self._drop()
            return
        prefix = topics.base + "/b/"  # models are for every device
        self.read += sum(m.topic not in own and not m.topic.startswith(prefix) for m in messages)

    def _own(self) -> HostileClient:
        if self.client is None:
            self.client = HostileClient(self.address, self._client_id())
            self.client.subscribe(self.place.topics.control(NAME))
        return self.client

    def _client_id(self, purpose: str = "own") -> str:
        """Return a client id, the same each time: the broker refuses a login with many."""
        return f"{NAME}-{purpose}"

    def _drop(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench hostile", description=__doc__)
    parser.add_argument("--broker", default="mosquitto,nats", help="separated by commas")
    parser.add_argument("--messages", type=int, default=2_000, help="at least so many, per broker")
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    brokers = options.broker.split(",")
    if unknown := [name for name in brokers if name not in get_args(BrokerKind)]:
        known = ", ".join(get_args(BrokerKind))
        parser.error(f"--broker: must be of {known}, got {unknown[0]!r}")
    if options.rounds < 3 * BLOCK_ROUNDS:
        parser.error(f"--rounds: must be at least {3 * BLOCK_ROUNDS}, got {options.rounds}")
    results = [
        attack(
            broker,
            messages=options.messages,
            agents=options.agents,
            rounds=options.rounds,
            seed=options.seed,
        )
        for broker in brokers
    ]
    if options.json:
        print(msgspec.json.encode(results).decode())
    else:
        for result in results:
            for key, value in msgspec.structs.asdict(result).items():
                print(f"{key:<24}{value:.3f}" if isinstance(value, float) else f"{key:<24}{value}")
    return int(any(result.refused < result.messages or result.effects for result in results))


def attack(broker: str, *, messages: int, agents: int, rounds: int, seed: int) -> BrokerResult:
    """Attack one run.

    Args:
        broker: Kind of broker.
        messages: Least number of hostile messages.
        agents: Devices of the fleet.
        rounds: Rounds of the run; half of those after the first block are hostile.
        seed: Of order and content of the messages.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairbed-bench-")))
        data = folder / "random.npz"
        save_random_examples(data, EXAMPLES * agents)
        run = stack.enter_context(
            live_run(
                folder,
                data,
                agents=agents,
                rounds=rounds,
                broker=broker,
                batch_size=32,
                max_steps=4,
            )
        )
        closings = run.rounds()
        # Before the first round: a short run would be over.
        attacker = _attacker(run, run.endpoint(), agents, seed, stack)
        next(closings)
        attacker.join()
        hostile = _hostile_rounds(rounds)
        quota = -(-messages // len(hostile))
        before: dict[str, float] = {}
        for closed in closings:
            if not before and closed >= BLOCK_ROUNDS:
                before = run.rss_mib()
            if closed + 1 in hostile:  # the round that is open now
                attacker.attack(quota)
            else:
                attacker.rest()
            attacker.witnesses.look()
            if closed == rounds - 1:
                after = run.rss_mib()
        attacker.close()
        with RunReader(run.folder) as reader:
            return _result(reader, broker, attacker, hostile, agents, before, after)


def _hostile_rounds(rounds: int) -> set[int]:
    """Return the rounds in which the device attacks: every second block after the first one."""
    return {
        number
        for number in range(BLOCK_ROUNDS + 1, rounds)
        if (number - 1) // BLOCK_ROUNDS % 2 == 1
    }


def _attacker(
    run: LiveRun, endpoint: Endpoint, agents: int, seed: int, stack: ExitStack
) -> _Attacker:
    """Enrol the hostile device, and connect the witnesses."""
    topics = Topics(endpoint.tenant)
    rng = np.random.default_rng(seed)
    reads = {
        endpoint.url: (
            topics.up(ANY),
            topics.status(ANY),
            topics.telemetry(ANY),
            topics.command(ANY),
            topics.watch(ANY),
            topics.intent(ANY),
            topics.limit(ANY),
            topics.coordinator,
            topics.upload(WITNESS),
            topics.upload(NAME),
        ),
        login_of(endpoint, *OPERATOR): (topics.answer(LOCAL_OPERATOR), topics.rows(LOCAL_OPERATOR)),
        run.enrol(WITNESS): (
            topics.control(WITNESS),
            topics.data(WITNESS),
            topics.status(WITNESS),
            topics.control_all,
            topics.chunk("ff" * 16, ANY),
        ),
    }
    witnesses = _Witnesses([])
    for url, filters in reads.items():
        client = HostileClient(parse_url(url), f"witness-{rng.bytes(8).hex()}")
        witnesses.clients.append(stack.enter_context(closing(client)))
        client.subscribe(*filters)
    return _Attacker(
        parse_url(run.enrol(NAME)),
        Place(topics, rng, WITNESS),
        witnesses,
        [WITNESS, *(f"agent-{k + 1}" for k in range(agents))],
    )


def _result(
    reader: RunReader,
    broker: str,
    attacker: _Attacker,
    hostile: set[int],
    agents: int,
    before: dict[str, float],
    after: dict[str, float],
) -> BrokerResult:
    rows = reader.rounds()
    blocks = _blocks([row.duration_s for row in rows])
    quiet_s, hostile_s = list(chain(*blocks[::2])), list(chain(*blocks[1::2]))
    ratios = [
        statistics.median(blocks[k]) / statistics.median(blocks[k - 1] + blocks[k + 1])
        for k in range(1, len(blocks) - 1, 2)
    ]
    lines = Counter(
        event.kind
        for _, event in reader.events(limit=MANY_EVENTS)
        if event.device == NAME and event.level != "info"
    )
    effects = _effects(reader, agents)
    forwarded, messages = attacker.witnesses.forwarded, attacker.sent.total()
    return BrokerResult(
        broker=broker,
        kinds=len(attacker.sent),
        messages=messages,
        refused=messages - forwarded - attacker.read - attacker.logged_in - len(effects),
        forwarded=forwarded,
        read=attacker.read,
        logged_in=attacker.logged_in,
        effects=effects,
        log_lines=dict(sorted(lines.items())),
        lines_per_kind=max(lines.values(), default=0),
        rounds=len(rows),
        quiet_median_s=statistics.median(quiet_s),
        hostile_median_s=statistics.median(hostile_s),
        ratio=statistics.median(hostile_s) / statistics.median(quiet_s),
        ratio_quartiles=(float(np.quantile(ratios, 0.25)), float(np.quantile(ratios, 0.75))),
        coordinator_growth_mib=after["coordinator"] - before["coordinator"],
        broker_growth_mib=after["broker"] - before["broker"],
    )


def _blocks(durations_s: Sequence[float]) -> list[list[float]]:
    """Return the durations of the rounds of each whole block: quiet, hostile, quiet and so on.

    The first block warms up, and the last round has the end of the run in it.
    """
    starts = range(0, len(durations_s) - BLOCK_ROUNDS, BLOCK_ROUNDS)
    blocks = [list(durations_s[start : start + BLOCK_ROUNDS]) for start in starts]
    blocks[0] = blocks[0][BLOCK_ROUNDS // 2 :]
    return blocks


def _effects(reader: RunReader, agents: int) -> list[str]:
    """Return what the store of the run should not show, one line each."""
    info, found = reader.run(), list[str]()
    if info.row.status != "done":
        found.append(f"the run ended as {info.row.status}")
    found += [
        f"round {row.round}: merged {row.aggregated} of {agents} updates"
        for row in reader.rounds()
        if row.status != "done" or row.aggregated != agents
    ]
    found += [
        f"round {row.round}: an exchange of {row.device} is {row.outcome}"
        for row in reader.exchanges(0)
        if row.device == NAME or row.outcome != "done"
    ]
    known = {NAME, *(f"agent-{k + 1}" for k in range(agents))}
    found += [f"a device {row.name} joined" for row in reader.devices() if row.name not in known]
    found += [f"command {row.action}" for row in reader.commands()]
    if reader.device_log(NAME, limit=1):
        found.append("lines of the device in the log")
    return found
