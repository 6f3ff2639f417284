"""A viewer follows a run through a broker that dies, a relay that ends, and rows that are wrong."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskGroup

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.replication import Replica, RowSource
from fairbed.coordinator.tui.view import banner_lines
from fairbed.testbed.cli.elsewhere import is_elsewhere
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.remote import viewer as viewer_module
from fairbed.testbed.remote.relay import Relay, serve
from fairbed.testbed.remote.viewer import Target, Viewer, parse_target
from fairbed.wire.codec import encode
from fairbed.wire.errors import innermost
from fairbed.wire.messages import CoordinatorStatus, RowsPart
from fairbed.wire.topics import Topics
from tests.coordinator.store.fake_run import FakeRun
from tests.wire.transport.memory import MemoryBroker

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

TOPICS = Topics("main")
TARGET = Target("mqtt://viewer_alice:hush@broker", "main", "alice", None)


@dataclass
class Lab:
    """A run with a relay, and viewers, at a broker in memory."""

    folder: Path
    group: TaskGroup
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    over: anyio.Event = field(default_factory=anyio.Event)
    relays: int = 0
    problems: list[str] = field(default_factory=list)
    readers: list[RunReader] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run = FakeRun(self.folder / "run")
        self.run.play(3)
        self.run.store.flush()

    async def relay(self) -> anyio.CancelScope:
        """Start a relay; return what ends it as a kill does."""
        reader = RunReader(self.run.folder)
        self.readers.append(reader)
        relay = Relay(RowSource(reader), reader.data_version, "0.1.0")
        self.relays += 1
        transport = self.broker.transport(f"relay-{self.relays}")
        scope = anyio.CancelScope()

        async def run() -> None:
            with scope:
                await serve(relay, transport, TOPICS, 4_000, self.over)

        self.group.start_soon(run)
        return scope

    def coordinator(self, state: str) -> None:
        """Publish the status of the coordinator, as it does itself."""
        status = CoordinatorStatus(state=state, boot=1, run="digits")  # type: ignore[arg-type]
        self.broker.route(TOPICS.coordinator, encode(status), 1, True)

    async def watch(self, name: str = "alice") -> RunReader:
        """Start a viewer; return a reader of its replica, which is complete."""
        folder = self.folder / f"replica-{len(self.replicas)}"
        folder.mkdir()
        replica = Replica(folder)
        self.replicas.append(replica)
        target = Target(TARGET.url, "main", name, None)
        transport = self.broker.transport(f"viewer-{secrets.token_hex(4)}")
        viewer = Viewer(target, transport, replica, on_problem=self.problems.append)
        await self.group.start(viewer.run)
        reader = RunReader(folder)
        self.readers.append(reader)
        return reader


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Lab]:
    async with anyio.create_task_group() as group:
        made = Lab(folder, group)
        yield made
        group.cancel_scope.cancel()
    for reader in made.readers:
        reader.close()
    for replica in made.replicas:
        replica.close()
    made.run.store.close()


async def until(holds: Callable[[], bool], within_s: float = 60.0) -> None:
    with anyio.fail_after(within_s):
        while not holds():  # noqa: ASYNC110  # the store of another thread has no event
            await anyio.sleep(0.1)


async def test_two_viewers_follow_a_run_to_its_end(tmp_path: Path) -> None:
    async with opened(tmp_path) as lab:
        await lab.relay()
        first, second = await lab.watch("alice"), await lab.watch("bob")
        assert [reader.run().rounds_completed for reader in (first, second)] == [3, 3]
        lab.run.play(2)
        lab.run.store.flush()
        for reader in (first, second):
            await until(lambda reader=reader: reader.run().rounds_completed == 5)  # type: ignore[misc]
            assert reader.run().is_alive
        lab.run.finish()
        lab.over.set()
        for reader in (first, second):
            await until(lambda reader=reader: not reader.run().is_alive)  # type: ignore[misc]
            assert reader.run().status == "done"
        assert lab.problems == []


async def test_a_viewer_goes_on_where_it_was_when_the_broker_is_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as lab:
        await lab.relay()
        reader = await lab.watch()
        lab.broker.stop()
        await until(lambda: reader.run().alerts != ())
        [alert] = reader.run().alerts
        assert alert.kind == "connection"
        assert "no link to the run's broker" in alert.text
        assert banner_lines(reader.run()) == [f"! connection: {alert.text}"]
        assert reader.run().is_alive
        lab.run.play(1)
        lab.run.store.flush()
        lab.broker.start()
        await until(lambda: reader.run().rounds_completed == 4)
        assert reader.run().alerts == ()


async def test_a_viewer_asks_the_next_relay_when_one_was_killed(tmp_path: Path) -> None:
    async with opened(tmp_path) as lab:
        lab.coordinator("on")
        killed = await lab.relay()
        reader = await lab.watch()
        killed.cancel()
        await until(lambda: reader.run().alerts != ())
        assert "the run does not answer" in reader.run().alerts[0].text
        lab.coordinator("off")
        await until(lambda: "coordinator of the run is off" in lab.problems[-1])
        await lab.relay()
        lab.run.play(1)
        lab.run.store.flush()
        await until(lambda: reader.run().rounds_completed == 4)
        assert reader.run().alerts == ()


async def test_a_lost_part_is_asked_for_again(tmp_path: Path) -> None:
    lost = [3]

    def is_lost(receiver: str, packet: object) -> bool:
        lost[0] -= 1
        return receiver.startswith("viewer") and lost[0] == 0

    async with opened(tmp_path) as lab:
        lab.broker.faults.is_lost = is_lost
        await lab.relay()
        reader = await lab.watch()
        assert reader.run().rounds_completed == 3


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (None, "a run must be live in the tenant main, got none"),
        ("off", "a run must be live in the tenant main, got none"),
        (
            "on",
            "the run 'digits' must answer within 20 s, got no answer; the user must be a viewer",
        ),
    ],
)
async def test_an_address_without_an_answer_fails_in_one_line(
    tmp_path: Path, state: str | None, words: str
) -> None:
    async with opened(tmp_path) as lab:
        if state is not None:
            lab.coordinator(state)
        assert words in await failure_of_watching(lab)


async def failure_of_watching(lab: Lab) -> str:
    """Start a viewer that fails; return its error."""
    before = lab.group
    try:
        async with anyio.create_task_group() as lab.group:
            await lab.watch()
    except Exception as exc:
        error = innermost(exc)
    finally:
        lab.group = before
    assert isinstance(error, RunError)
    assert "hush" not in str(error)
    return str(error)


async def test_a_broker_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    async with opened(tmp_path) as lab:
        lab.broker.stop()
        assert "must answer within 10 s" in await failure_of_watching(lab)


async def test_a_refusal_at_the_start_is_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer_module, "SCHEMA", bytes(16))
    async with opened(tmp_path) as lab:
        await lab.relay()
        assert "pip install 'fairbed==0.1.0'" in await failure_of_watching(lab)


async def test_rows_of_a_stranger_are_ignored_and_wrong_rows_are_reported(tmp_path: Path) -> None:
    async with opened(tmp_path) as lab:
        await lab.relay()
        reader = await lab.watch()
        for payload in (b"", b"garbage", encode(RowsPart(id=bytes(16), body=b"no page"))):
            lab.broker.route(TOPICS.rows("alice"), payload, 0, False)
        lab.run.play(1)
        lab.run.store.flush()
        await until(lambda: reader.run().rounds_completed == 4)
        assert lab.problems == []


async def test_a_run_that_takes_the_place_of_another_ends_the_view(tmp_path: Path) -> None:
    async with opened(tmp_path) as lab:
        killed = await lab.relay()
        reader = await lab.watch()
        killed.cancel()
        (tmp_path / "next").mkdir()
        other = FakeRun(tmp_path / "next" / "second")
        other.play(1)
        other.store.flush()
        lab.run.store.close()
        lab.run = other
        await lab.relay()
        await until(lambda: not reader.run().is_alive)
        assert "the run has ended; second runs there now" in reader.run().alerts[0].text
        assert reader.run().rounds_completed == 3
        other.store.close()


def test_an_address_names_tenant_and_viewer() -> None:
    target = parse_target("mqtts://viewer_alice@lab.example:8883/second?cafile=ca.pem", "hush")
    assert (target.tenant, target.viewer, target.operator) == ("second", "alice", None)
    assert target.url == "mqtts://viewer_alice:hush@lab.example:8883?cafile=ca.pem"
    assert "hush" not in repr(target)
    assert "hush" not in target.shown
    operator = parse_target("mqtts://operator_bob:x@lab.example?cafile=ca.pem")
    assert (operator.tenant, operator.viewer, operator.operator) == ("main", "bob", "bob")
    private = parse_target("mqtt://fairbed:x@127.0.0.1:1883/main")
    assert private.operator == "local"
    assert private.viewer != parse_target("mqtt://fairbed:x@127.0.0.1:1883/main").viewer


def test_the_file_of_an_enrolled_person_is_an_address(tmp_path: Path) -> None:
    path = tmp_path / "viewer-alice.toml"
    path.write_text('broker_url = "mqtts://viewer_alice:hush@lab"\nrole = "viewer"\n')
    assert is_elsewhere(str(path))
    assert parse_target(str(path)).viewer == "alice"
    path.write_text("rounds = 3\n")
    with pytest.raises(UsageError, match="must be the file of an enrolled viewer"):
        parse_target(str(path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mqtts://viewer_alice@lab/a/b", "tenant: must be 1 to 32"),
        ("mqtts://viewer_alice@lab/Main", "tenant: must be 1 to 32"),
        ("mqtts://", "must name a host"),
        ("mqtts://lab/main?role=viewer", "takes only"),
    ],
)
def test_a_bad_address_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as found:
        parse_target(text)
    assert "\n" not in str(found.value)
