"""A broker that dies is started again as long as the run makes progress (issue #20, M5)."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import anyio
import pytest

from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.coordinator.server.service import Coordinator
from fairbed.testbed.broker.run_accounts import RunAccounts, enrol_user
from fairbed.testbed.errors import BrokerError
from fairbed.testbed.run.broker import Broker
from fairbed.testbed.run.run_broker import (
    BROKER_RESTARTS,
    RestartBudget,
    enrol_on_demand,
    keep_broker,
    suspend_user,
)
from fairbed.testbed.run.stopping import StopControl

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]


class DyingBroker(Broker):
    """A broker that dies as soon as it has started, `deaths` times.

    Args:
        folder: Of its log.
        deaths: Then it lives.
        failing: Numbers of the starts, from 1, that fail.
        budget: Recovers at every tenth start, by a round of this status.
    """

    def __init__(
        self, folder: Path, deaths: int, failing: range, budget: RestartBudget, status: str
    ) -> None:
        super().__init__("mosquitto", [], folder, "127.0.0.1", 1883)
        self.starts = 0
        self._deaths, self._failing, self._budget = deaths, failing, budget
        self._progress = cast(RoundProgress, SimpleNamespace(round=SimpleNamespace(status=status)))

    async def wait(self, on_growth: object = None) -> str:
        if self._deaths == 0:
            await anyio.sleep_forever()
        self._deaths -= 1
        return "killed"

    async def restart(self) -> None:
        self.starts += 1
        if self.starts in self._failing:
            raise BrokerError("mosquitto: must start, got exit status -9")
        if self.starts % 10 == 0:
            self._budget.on_round(self._progress)


async def keep(
    folder: Path, deaths: int, *, failing: range = range(0), status: str = "done"
) -> tuple[int, str]:
    """Return the starts of a broker, and why the run ended; empty if it did not."""
    stop, budget = StopControl(), RestartBudget()
    broker = DyingBroker(folder, deaths, failing, budget, status)
    with anyio.move_on_after(60.0):
        await keep_broker(broker, anyio.CancelScope(), stop, budget, lambda usage: None)
    return broker.starts, str(stop.failure or "")


async def test_a_hundred_deaths_with_rounds_in_between_do_not_end_the_run(tmp_path: Path) -> None:
    assert await keep(tmp_path, 100) == (100, "")


async def test_deaths_without_an_update_end_the_run(tmp_path: Path) -> None:
    starts, why = await keep(tmp_path, 100, status="void")
    assert starts == BROKER_RESTARTS
    assert why.startswith("mosquitto: died 21 times without a round with an update in between; see")


async def test_a_broker_that_is_killed_while_it_starts_is_started_again(tmp_path: Path) -> None:
    assert await keep(tmp_path, 1, failing=range(1, 6)) == (6, "")


async def test_a_broker_that_never_starts_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    starts, why = await keep(tmp_path, 1, failing=range(1, 1000))
    assert starts == BROKER_RESTARTS
    assert why == "mosquitto: must start, got exit status -9"


async def test_a_full_disk_while_a_device_floods_is_an_event_and_does_not_end_the_run() -> None:
    notes, stop = [], StopControl()
    stop.coordinator = cast(Coordinator, SimpleNamespace(note=lambda *note: notes.append(note)))

    async def refuse(device: str, for_s: float) -> None:
        raise BrokerError("acl: must fit on the disk")

    await suspend_user(refuse, "pi", 60.0, stop)
    assert notes == [
        ("broker", "it does not refuse pi: acl: must fit on the disk", "warning", None)
    ]
    assert stop.failure is None


async def test_enrolment_on_a_full_disk_is_one_event_and_is_tried_until_it_works(
    tmp_path: Path,
) -> None:
    notes, stop, accounts = [], StopControl(), RunAccounts("main")
    stop.coordinator = cast(Coordinator, SimpleNamespace(note=lambda *note: notes.append(note)))
    scope, tries = anyio.CancelScope(), 0
    enrol_user(tmp_path, "late")

    class FullDisk(Broker):
        async def enrol(self, users: Sequence[str]) -> None:
            nonlocal tries
            if not users:
                scope.cancel()
                return
            tries += 1
            if tries < 10:
                raise BrokerError("acl: must fit on the disk")
            accounts.add(users)

    broker = FullDisk("mosquitto", [], tmp_path, "127.0.0.1", 1883)
    await enrol_on_demand(broker, accounts, tmp_path, scope, stop)
    assert (tries, [note[1] for note in notes]) == (10, ["acl: must fit on the disk"])
