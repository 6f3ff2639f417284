"""An emulated agent that is killed is started again, a bounded number of times (issue #20)."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import EventRow
from fairbed.testbed.backends.helper import HelperEnded
from fairbed.testbed.errors import BackendError
from fairbed.testbed.run.agent_restarts import RESTARTS, STABLE_S, AgentRestarts
from tests.testbed.small_run import Running, wait_until
from tests.testbed.small_run import running as live_run

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]


class Fleet:
    """Agents whose starts are counted, and which die when the test says so."""

    def __init__(self) -> None:
        self.starts: list[tuple[float, str]] = []
        self.notes: list[str] = []
        self.tries = 0
        self.failures = 0
        """Starts that fail from now on."""
        self.short_lives = 0
        """Starts during which the agent dies."""
        self.restarts = AgentRestarts(self._note, self._on_tried, now=anyio.current_time)

    def die(self, name: str = "pi", status: int = -9, *, was_requested: bool = False) -> str:
        """End an agent; return what follows."""
        return self.restarts.on_end(HelperEnded(name, status, was_requested, is_device=True))

    def _note(self, kind: str, text: str, device: str) -> None:
        self.notes.append(f"{kind} {device}: {text}")

    def _on_tried(self) -> None:
        self.tries += 1

    async def start(self, name: str) -> None:
        self.starts.append((anyio.current_time(), name))
        if self.failures:
            self.failures -= 1
            raise BackendError(f"{name}: cannot be started, no memory")
        if self.short_lives:
            self.short_lives -= 1
            assert self.die(name) == ""


@asynccontextmanager
async def running() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    async with fleet.restarts.running():
        fleet.restarts.start_with(fleet.start)
        yield fleet


async def test_a_killed_agent_is_started_again_after_half_a_second() -> None:
    async with running() as fleet:
        died_s = anyio.current_time()
        assert fleet.die() == "it is started again in 0.5 s"
        assert fleet.restarts.is_pending
        await anyio.sleep(1.0)
        ((at_s, name),) = fleet.starts
        assert name == "pi"
        assert at_s - died_s == pytest.approx(0.5, abs=0.05)
        assert not fleet.restarts.is_pending


async def test_the_waits_grow_and_end() -> None:
    async with running() as fleet:
        said = []
        for _ in range(RESTARTS + 1):
            said.append(fleet.die())
            await anyio.sleep(10.0)
        assert said[:-1] == [f"it is started again in {x:g} s" for x in (0.5, 1, 2, 4, 8)]
        assert said[-1] == "it is not started again after 5 starts that each lasted less than 60 s"
        assert len(fleet.starts) == RESTARTS


async def test_single_deaths_of_a_long_run_never_end_it() -> None:
    async with running() as fleet:
        for _ in range(100):
            assert fleet.die() == "it is started again in 0.5 s"
            await anyio.sleep(STABLE_S + 1.0)
        assert len(fleet.starts) == 100


async def test_an_agent_that_ends_by_itself_or_on_request_stays_away() -> None:
    async with running() as fleet:
        assert fleet.die(status=1) == ""
        assert fleet.die(was_requested=True) == ""
        await anyio.sleep(60.0)
        assert not fleet.starts


async def test_devices_are_counted_each_by_itself() -> None:
    async with running() as fleet:
        assert fleet.die("pi") == fleet.die("nano") == "it is started again in 0.5 s"
        await anyio.sleep(1.0)
        assert sorted(name for _, name in fleet.starts) == ["nano", "pi"]


async def test_a_start_that_fails_is_tried_again_and_recorded() -> None:
    async with running() as fleet:
        fleet.failures = 2
        fleet.die()
        await anyio.sleep(10.0)
        assert len(fleet.starts) == 3
        assert fleet.notes == [
            "died pi: the agent cannot be started: pi: cannot be started, no memory; it is started "
            f"again in {wait_s:g} s"
            for wait_s in (1, 2)
        ]
        assert not fleet.restarts.is_pending


async def test_a_start_that_always_fails_is_given_up() -> None:
    async with running() as fleet:
        fleet.failures = 1000
        fleet.die()
        await anyio.sleep(600.0)
        assert len(fleet.starts) == RESTARTS
        assert "it is not started again" in fleet.notes[-1]
        assert fleet.tries == RESTARTS


async def test_an_agent_that_dies_while_it_is_started_is_started_again() -> None:
    async with running() as fleet:
        fleet.short_lives = 1
        fleet.die()
        await anyio.sleep(10.0)
        assert len(fleet.starts) == 2
        text = "the agent ended while it was started; it is started again in 1 s"
        assert fleet.notes == [f"died pi: {text}"]
        assert not fleet.restarts.is_pending


async def test_the_end_of_a_run_ends_the_waits() -> None:
    async with running() as fleet:
        fleet.die()
    assert not fleet.starts
    assert fleet.die() == ""


@pytest.mark.broker
@pytest.mark.full
@pytest.mark.slow
def test_a_killed_agent_of_a_live_run_is_back_within_five_seconds(tmp_path: Path) -> None:
    with live_run(tmp_path, rounds=500) as run:
        run.wait_round(2)
        agents = [p for p in run.family() if "fork_server" in " ".join(p.cmdline())]
        oldest = min(agents, key=lambda p: p.create_time())  # the fork server itself
        next(p for p in agents if p.pid != oldest.pid).kill()
        wait_until(lambda: bool(events_of(run, "rejoined")), "the agent")
        run.process.send_signal(signal.SIGINT)
        code, _, err = run.finish()
    assert code == 0, err
    (died,), (back,) = events_of(run, "died"), events_of(run, "rejoined")
    assert died.text == "the agent ended with signal 9; see its log; it is started again in 0.5 s"
    assert died.device == back.device
    assert back.at_s - died.at_s <= 5.0


def events_of(run: Running, kind: str) -> list[EventRow]:
    with RunReader(run.folder) as reader:
        return [event for _, event in reader.events() if event.kind == kind]
