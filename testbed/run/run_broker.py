"""The broker of one run: its own, an external one, or one that a room adds and `broker.url` names.

`RunBroker` is what a run needs of it. What identities need beyond that, as those of a lab, a room
adds by a subclass.
"""

import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from fairbed.coordinator.ports import (
    Audit,
    EarlierNames,
    TaskKeyOf,
    no_earlier_names,
    no_task_key,
)
from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.coordinator.server.lease import check_tree_is_free
from fairbed.coordinator.server.service import Coordinator
from fairbed.testbed.broker.named import LoginSource, broker_of_room
from fairbed.testbed.broker.run_accounts import (
    RunAccounts,
    device_passwords,
    enrolled_users,
    parse_user,
)
from fairbed.testbed.errors import BrokerError
from fairbed.testbed.experiment.file import EMBEDDED, BrokerConfig
from fairbed.testbed.host.broker_usage import KEPT_S, Usage
from fairbed.testbed.host.slow_steps import named_if_slow
from fairbed.testbed.run.broker import (
    Broker,
    await_broker,
    check_names_are_free,
    external_url,
    find_chunk_limit,
    start_broker,
)
from fairbed.testbed.run.stopping import StopControl
from fairbed.testbed.run_folder import Endpoint, read_endpoint, write_endpoint
from fairbed.wire.topics import Topics
from fairbed.wire.transport.address import redact, with_client
from fairbed.wire.transport.client import MqttTransport

Suspend: TypeAlias = Callable[[str, float], Coroutine[Any, Any, None]]
"""Disconnects a user of the broker, and refuses it for some seconds."""

SUSPENDED_S = 60.0
"""How long the broker of a run refuses a device that floods."""

ENROL_POLL_S = 0.2
"""Time between two looks for enrolled users, as in a lab."""

BROKER_RESTARTS = 20
"""A broker that dies so often without a round with an update in between ends the run."""


BROKER_RETRY_S = 0.2
"""Time between two attempts to start a broker that does not start, seconds."""


@dataclass(slots=True)
class RunBroker:
    """The broker of a run while it is open; as it is: one that knows no devices."""

    endpoint: Endpoint
    suspend: Suspend | None = None
    """None: its operator refuses devices."""

    @property
    def pid(self) -> int | None:
        """Process of the broker; None if it is not on this machine, or down."""
        return None

    def flood_advice(self, device: str) -> str:
        """Return what an operator can do about a device that floods a broker without `suspend`."""
        return "take its user out there"

    def logins(self, names: Sequence[str]) -> AbstractAsyncContextManager[Mapping[str, str] | None]:
        """Return the passwords of emulated devices while a context lasts; None: they need none."""
        return _ready(self._passwords(names))

    def _passwords(self, names: Sequence[str]) -> Mapping[str, str] | None:
        secret = self.endpoint.secret
        return None if secret is None else device_passwords(secret, names)

    def url_at(self, address: str) -> str:
        """Return the address of the broker for hosts that reach this machine at `address`."""
        return self.endpoint.url

    @property
    def earlier_names(self) -> EarlierNames:
        """What returns the names that a device had before; blocks."""
        return no_earlier_names

    @property
    def task_key_of(self) -> TaskKeyOf:
        """What returns the task key of a device, or None; blocks."""
        return no_task_key

    def audit(self, run_id: str, on_problem: Callable[[str], None]) -> Audit:
        """Return what notes operator commands where the broker keeps such notes."""
        return lambda command, operator, answer: None

    async def watch(
        self,
        coordinator: Coordinator,
        physical: Sequence[str],
        waiting: Callable[[str], None],
        group: TaskGroup,
    ) -> None:
        """Report to the coordinator which devices the broker accepts, from now on.

        Args:
            coordinator: Of the run, which has not begun.
            physical: Names of the devices that join by themselves.
            waiting: Receives a line for each that cannot join.
            group: Ends with the run.
        """


@asynccontextmanager
async def _ready(value: Mapping[str, str] | None) -> AsyncIterator[Mapping[str, str] | None]:
    yield value


class NamedBroker(LoginSource, Protocol):
    """A broker that stays between runs; a room adds it, and `broker.url` names it."""

    def open(
        self, config: BrokerConfig, folder: Path, run_id: str
    ) -> AbstractAsyncContextManager[RunBroker]:
        """Open it for a run while the context lasts, and write the endpoint of the run.

        Raises:
            BrokerError: It does not answer.
            UsageError: It is down, or cannot be used.
        """
        ...

    def earlier_names(self, name: str) -> list[str]:
        """Return the names that a device had before. Blocks."""
        ...


def named_broker(url: str) -> NamedBroker | None:
    """Return the broker that a room adds under a name; None if `broker.url` is no such name."""
    return cast("NamedBroker | None", broker_of_room(url))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnBroker:
    """How a run starts its own broker."""

    host: str
    """Address that it listens on."""
    is_virtual: bool
    """The address is of a virtual network of this machine."""
    port: int | None
    """None takes a free port."""
    keeps_logins: bool
    """A resumed run accepts the devices that joined before."""


@asynccontextmanager
async def open_broker(
    config: BrokerConfig,
    own: OwnBroker,
    folder: Path,
    run_id: str,
    *,
    emulated: Iterable[str],
    physical: Iterable[str],
    stop: StopControl,
    group: TaskGroup,
    budget: "RestartBudget",
) -> AsyncIterator[RunBroker]:
    """Start the broker of a run, or check the one that it names.

    Args:
        config: `[broker]`.
        own: How an embedded broker starts.
        folder: Folder of the run; devices of a resumed one find the old address.
        run_id: Name of the run.
        emulated: Names of the emulated devices.
        physical: Names of the others of `[[fleet]]`.
        stop: Of the run.
        group: Ends with the run.
        budget: Of the restarts of an embedded broker.

    Raises:
        BrokerError: It does not start, or does not answer.
        UsageError: A room cannot open its broker.
    """
    emulated = tuple(emulated)
    if config.url == EMBEDDED:
        names = (*emulated, *physical)
        async with _embedded(config, own, folder, run_id, names, stop, group, budget) as opened:
            yield opened
    elif (named := named_broker(config.url)) is not None:
        async with named.open(config, folder, run_id) as opened:
            yield opened
    else:
        yield await _external(config, folder, run_id, emulated)


async def check_broker(url: str, topics: Topics) -> None:
    """Return when a broker that stays has accepted a login, and no other coordinator is there.

    Raises:
        BrokerError: It does not answer.
        AnotherCoordinatorError: Another coordinator has this tenant.
    """
    with named_if_slow(f"the broker at {redact(url)}"):
        await await_broker(url)
    await check_tree_is_free(MqttTransport(url, f"look-{secrets.token_hex(4)}"), topics)


async def _external(
    config: BrokerConfig, folder: Path, run_id: str, emulated: Sequence[str]
) -> RunBroker:
    earlier = read_endpoint(folder)
    url = external_url(config.url, None if earlier is None else earlier.url)
    url, topics = with_client(url, config.client), Topics(config.tenant)
    await check_broker(url, topics)
    if emulated:
        await check_names_are_free(url, topics, set(emulated))
    limit = await find_chunk_limit(url, topics)
    endpoint = Endpoint(url=url, tenant=config.tenant, run_id=run_id, max_chunk_bytes=limit)
    write_endpoint(folder, endpoint)
    return RunBroker(endpoint)


@dataclass(slots=True)
class _EmbeddedBroker(RunBroker):
    """The broker that the run started."""

    process: Broker | None = None

    @property
    def pid(self) -> int | None:
        """Its process; None while it is down."""
        return None if self.process is None else self.process.pid


@asynccontextmanager
async def _embedded(
    config: BrokerConfig,
    own: OwnBroker,
    folder: Path,
    run_id: str,
    names: Sequence[str],
    stop: StopControl,
    group: TaskGroup,
    budget: "RestartBudget",
) -> AsyncIterator[RunBroker]:
    earlier = read_endpoint(folder)
    port, secret = own.port, None
    if earlier is not None and own.keeps_logins:
        port, secret = port or earlier.port, earlier.secret
    accounts = RunAccounts(config.tenant, secret, names)
    accounts.add(enrolled_users(folder))
    _remove_leftovers(folder)
    async with start_broker(
        config.kind,
        folder=folder,
        host=own.host,
        is_virtual=own.is_virtual,
        port=port,
        accounts=accounts,
    ) as started:
        endpoint = Endpoint(
            url=with_client(started.url, config.client),
            tenant=config.tenant,
            run_id=run_id,
            host=own.host,
            port=started.port,
            secret=accounts.secret,
        )
        write_endpoint(folder, endpoint)
        scopes = restart_scope, enrol_scope = anyio.CancelScope(), anyio.CancelScope()
        on_growth = partial(
            refuse_excess, accounts=accounts, suspend=started.suspend, group=group, stop=stop
        )
        group.start_soon(
            keep_broker, started, restart_scope, stop, budget, on_growth, name="run.broker"
        )
        group.start_soon(
            enrol_on_demand, started, accounts, folder, enrol_scope, stop, name="run.enrol"
        )
        try:
            yield _EmbeddedBroker(endpoint, started.suspend, started)
        finally:
            for scope in scopes:
                scope.cancel()


class RestartBudget:
    """How often a broker may be restarted; it recovers whenever the run makes progress."""

    def __init__(self, restarts: int = BROKER_RESTARTS) -> None:
        self.restarts = restarts
        self._left = restarts

    def spend(self) -> bool:
        """Use one restart; return whether there was one left."""
        self._left -= 1
        return self._left >= 0

    def on_round(self, progress: RoundProgress) -> None:
        """Recover after a closed round, unless it is void."""
        if progress.round.status == "done":
            self._left = self.restarts


def _remove_leftovers(folder: Path) -> None:
    """Remove the files of brokers of starts that were killed."""
    for left in folder.glob("broker-*"):
        shutil.rmtree(left, ignore_errors=True)


def stop_flood(device: str, broker: RunBroker, group: TaskGroup, stop: StopControl) -> None:
    """Have the broker of a run refuse a device for a while, or name what an operator can do."""
    if broker.suspend is not None:
        text = f"floods the broker, which refuses it for {SUSPENDED_S:g} s"
        group.start_soon(
            suspend_user, broker.suspend, device, SUSPENDED_S, stop, name=f"run.suspend[{device}]"
        )
    else:
        text = f"floods the broker; {broker.flood_advice(device)}"
    if stop.coordinator is not None:
        stop.coordinator.note("flood", text, "warning", device)


async def suspend_user(suspend: Suspend, user: str, for_s: float, stop: StopControl) -> None:
    """Have the broker of the run refuse a user for a while; a full disk does not end the run."""
    try:
        await suspend(user, for_s)
    except BrokerError as exc:
        stop.note("broker", f"it does not refuse {user}: {exc}")


def refuse_excess(
    usage: Mapping[str, Usage],
    accounts: RunAccounts,
    suspend: Suspend,
    group: TaskGroup,
    stop: StopControl,
) -> None:
    """Have the broker of the run refuse each user that keeps too much in its memory."""
    for user, kept in usage.items():
        found = parse_user(user)
        if found is None or user in accounts.suspended:  # a coordinator, or refused already
            continue
        name, role = found
        problem = kept.excess(role)
        if problem is None:
            continue
        subject = "" if role == "device" else f"{role} {name} "
        text = f"{subject}{problem}; the broker refuses it for {KEPT_S // 60} minutes"
        stop.note("flood", text, name if role == "device" else None)
        group.start_soon(suspend_user, suspend, user, KEPT_S, stop, name=f"run.suspend[{user}]")


async def keep_broker(
    broker: Broker,
    scope: anyio.CancelScope,
    stop: StopControl,
    budget: RestartBudget,
    on_growth: Callable[[Mapping[str, Usage]], None],
) -> None:
    """Restart the broker whenever it dies, also while it starts, until the budget is spent.

    Args:
        broker: It has been started.
        scope: Ends this.
        stop: Of the run.
        budget: Of the restarts.
        on_growth: Receives what each user keeps in its memory, whenever that has grown.
    """
    with scope:
        while True:
            why = await broker.wait(on_growth)
            stop.note("broker", f"{broker.kind} died and is restarted; {why}")
            problem = BrokerError(
                f"{broker.kind}: died {budget.restarts + 1} times without a round with an update "
                f"in between; see {broker.log}"
            )
            is_up = False
            while not is_up:
                if not budget.spend():
                    stop.fail(problem)
                    return
                try:
                    await broker.restart()
                    is_up = True
                except BrokerError as exc:
                    problem = exc
                    await anyio.sleep(BROKER_RETRY_S)


async def enrol_on_demand(
    broker: Broker, accounts: RunAccounts, folder: Path, scope: anyio.CancelScope, stop: StopControl
) -> None:
    """Let the broker accept each user that `fairbed enroll NAME --run` adds to the folder."""
    problem = ""
    with scope:
        while True:
            users = await anyio.to_thread.run_sync(enrolled_users, folder)
            new = [user for user in users if user not in accounts]
            try:
                await broker.enrol(new)
                problem = ""
            except BrokerError as exc:  # tried again until the disk has space
                if str(exc) != problem:
                    stop.note("broker", str(exc))
                problem = str(exc)
            await anyio.sleep(ENROL_POLL_S)
