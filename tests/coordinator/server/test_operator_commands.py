"""Commands of operators to a live run: answered, recorded, and still valid after a restart."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import structs

from fairbed.coordinator.policy.config import (
    CoordinatorConfig,
    OperatorConfig,
    RoundConfig,
    SelectionConfig,
)
from fairbed.coordinator.ports import CommandRefusedError
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_table import summary_table
from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.coordinator.server.service import Coordinator
from fairbed.coordinator.store.reader import ExperimentExcerpt, PlannedSelection
from fairbed.coordinator.store.tables import CommandRow
from fairbed.wire.codec import decode_answer, encode
from fairbed.wire.messages import OperatorAnswer, OperatorCommand
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp, Packet
from tests.coordinator.lab import Lab, lab, make_config

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

ENDLESS = 5_000
"""Rounds of a run that an operator ends."""


def command(action: str, **fields: Any) -> OperatorCommand:
    return OperatorCommand(id=secrets.token_bytes(16), action=action, **fields)  # type: ignore[arg-type]


class Operator:
    """An operator with the name alice, who waits for each answer."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._events = transport.events()

    async def connect(self) -> None:
        async for event in self._events:
            if isinstance(event, LinkUp):
                break
        await self._transport.subscribe(Topics().answer("alice"), qos=1)

    async def tell(self, message: OperatorCommand) -> OperatorAnswer:
        await self._transport.publish(Topics().command("alice"), encode(message), qos=1)
        async for event in self._events:
            if isinstance(event, Packet):
                answer = decode_answer(event.payload)
                if answer.id == message.id:
                    return answer
        raise AssertionError("the broker is gone")

    async def accepted(self, action: str, **fields: Any) -> str:
        answer = await self.tell(command(action, **fields))
        assert answer.is_accepted, answer.text
        return answer.text

    async def refused(self, action: str, **fields: Any) -> str:
        answer = await self.tell(command(action, **fields))
        assert not answer.is_accepted, answer.text
        return answer.text


@asynccontextmanager
async def operator_of(place: Lab) -> AsyncIterator[Operator]:
    async with place.broker.transport("operator") as transport:
        operator = Operator(transport)
        await operator.connect()
        yield operator


Steer = Callable[[Operator, Coordinator], Any]


async def steered(
    place: Lab, config: CoordinatorConfig, steer: Steer, at: int = 2
) -> list[CommandRow]:
    """Run an experiment, call `steer` after round `at`, and return the recorded commands."""
    store = place.open_store()
    coordinator = place.coordinator(config, store, attempt=0)
    begun = anyio.Event()
    earlier = place.on_progress

    def on_progress(progress: RoundProgress) -> None:
        earlier(progress)
        if progress.round.round >= at:
            begun.set()

    place.on_progress = on_progress
    async with operator_of(place) as operator, anyio.create_task_group() as group:

        async def work() -> None:
            await begun.wait()
            await steer(operator, coordinator)

        group.start_soon(work)
        try:
            end = await coordinator.run()
            store.set_status(end)
        finally:
            store.close()
    place.on_progress = earlier
    with place.reader() as reader:
        return reader.commands()


async def test_a_setting_holds_from_the_next_round_on_and_the_answer_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steer(operator: Operator, coordinator: Coordinator) -> None:
        text = await operator.accepted("set", name="per_round", value=3.0)
        first = int(text.removesuffix(" on, before 2").rpartition(" ")[2])
        assert text == f"selection.per_round is 3 from round {first} on, before 2"
        assert "cannot be guaranteed" in await operator.refused("set", name="per_round", value=1.0)
        await operator.accepted("set", name="beta", value=0.1)
        with anyio.fail_after(20):
            while place.progress[-1].round.round < first + 2:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        await operator.accepted("stop-after-round")
        firsts.append(first)

    firsts: list[int] = []
    async with lab(tmp_path) as place:
        guaranteed = SelectionConfig(per_round=2, beta=0.4)
        rows = await steered(place, make_config(rounds=ENDLESS, selection=guaranteed), steer)
        sizes = {x.round.round: len(x.cohort) for x in place.progress}
    (first,) = firsts
    assert {size for number, size in sizes.items() if number < first} == {2}
    assert {size for number, size in sizes.items() if number >= first} == {3}
    with place.reader() as reader:
        assert reader.run().status == "stopped"
        assert reader.rounds()[-1].round == max(sizes)
        plan = ExperimentExcerpt(selection=PlannedSelection(policy="rbcs-f", beta=0.4))
        monkeypatch.setattr(reader, "plan", plan)
        summary = summarise_run(reader)
    assert summary.fairness.invariant_holds
    lasted, beta_from = max(sizes), rows[2].round
    assert beta_from is not None
    assert summary.fairness.beta == pytest.approx(
        (0.4 * (beta_from - 1) + 0.1 * (lasted + 1 - beta_from)) / lasted
    )
    assert f"selection.beta 0.4 to 0.1 from round {beta_from} on, by alice" in summary_table(
        summary
    )
    assert [(x.action, x.name, x.value, x.is_accepted) for x in rows] == [
        ("set", "per_round", 3.0, True),
        ("set", "per_round", 1.0, False),
        ("set", "beta", 0.1, True),
        ("stop-after-round", None, None, True),
    ]
    assert [(x.round, x.before) for x in rows[:2]] == [(first, 2.0), (None, None)]
    assert {x.operator for x in rows} == {"alice"}
    assert all(x.answer and x.wall for x in rows)


async def test_a_stop_after_the_round_keeps_the_round(tmp_path: Path) -> None:
    async def steer(operator: Operator, coordinator: Coordinator) -> None:
        await operator.accepted("pause")
        with anyio.fail_after(20):
            while coordinator._parts.loop._open_round is not None:  # type: ignore[union-attr]  # noqa: ASYNC110
                await anyio.sleep(0.01)
        assert await operator.accepted("stop-after-round") == "no round is open: the run ends now"

    async with lab(tmp_path) as place:
        await steered(place, make_config(rounds=ENDLESS), steer)
    with place.reader() as reader:
        assert reader.run().status == "stopped"
        assert [row.round for row in reader.rounds()] == [x.round.round for x in place.progress]


async def test_a_kicked_device_is_cancelled_and_selected_again(tmp_path: Path) -> None:
    slow = make_config(
        rounds=ENDLESS,
        round=RoundConfig(min_devices=3, deadline_s=60.0, join_timeout_s=30.0),
        selection=SelectionConfig(policy="uniform", per_round=3),
    )

    async def steer(operator: Operator, coordinator: Coordinator) -> None:
        for is_trial in (True, False):
            assert await operator.refused("kick", device="pi-9", is_trial=is_trial) == (
                "no device 'pi-9' is known to this run; there are: pi-0, pi-1, pi-2"
            )
        executor = coordinator._parts.executor  # type: ignore[union-attr]
        with anyio.fail_after(20):
            while True:
                if "pi-1" in executor.open_devices():
                    text = await operator.accepted("kick", device="pi-1")
                    if "is cancelled" in text:
                        break
                await anyio.sleep(0.0)
        assert text == "pi-1: its exchange is cancelled; it may be selected again"
        seen = len(place.progress)
        with anyio.fail_after(20):
            while not any("pi-1" in x.cohort for x in place.progress[seen + 2 :]):  # noqa: ASYNC110
                await anyio.sleep(0.01)
        await operator.accepted("note", text="the fan is off")
        await operator.accepted("stop")

    async with lab(tmp_path) as place:
        rows = await steered(place, slow, steer)
    with place.reader() as reader:
        (kicked,) = [x for x in reader.exchanges() if x.reason == "cancelled by operator alice"]
        assert (kicked.device, kicked.outcome) == ("pi-1", "cancelled")
        later = {
            x.outcome for x in reader.exchanges() if x.device == "pi-1" and x.round > kicked.round
        }
        assert "done" in later
        assert ("note", "the fan is off (alice)") in [(e.kind, e.text) for _, e in reader.events()]
    assert rows[-1].action == "stop"


async def test_a_resumed_run_goes_on_with_what_operators_set(tmp_path: Path) -> None:
    async def steer(operator: Operator, coordinator: Coordinator) -> None:
        await operator.accepted("set", name="beta", value=0.05)
        await operator.accepted("set", name="per_round", value=1.0)
        await operator.accepted("exclude", device="pi-0")
        coordinator.stop()

    config = make_config(rounds=ENDLESS)
    async with lab(tmp_path) as place:
        await steered(place, config, steer)
        before = len(place.progress)
        store = place.open_store()
        again = place.coordinator(config, store, attempt=1)

        def on_progress(progress: RoundProgress) -> None:
            if len(place.progress) == before + 3:
                again.stop()

        place.on_progress = on_progress
        assert await again.run() == "stopped"
        store.close()
    first = place.progress[before].round.round
    assert [len(x.cohort) for x in place.progress[before:]] == [1, 1, 1]
    assert all("pi-0" not in x.cohort for x in place.progress[before:])
    with place.reader() as reader:
        (resumed,) = [e.text for _, e in reader.events() if e.kind == "resumed"]
        assert [x.round for x in reader.commands()[:2]] == [first, first]
        grown = [row.queue for row in reader.selections(first) if row.device == "pi-0"]
        last = [row.queue for row in reader.selections(first - 1) if row.device == "pi-0"]
    assert resumed == (
        f"continues with round {first}; set while it ran: selection.beta = 0.05, "
        "selection.per_round = 1"
    )
    assert grown[0] == pytest.approx(last[0] + 0.05)


async def test_a_read_only_run_refuses_every_command(tmp_path: Path) -> None:
    async def steer(operator: Operator, coordinator: Coordinator) -> None:
        for action, fields in (
            ("stop", {}),
            ("pause", {}),
            ("set", {"name": "V", "value": 1.0}),
            ("throttle", {"device": "pi-0", "name": "cpu", "value": 0.5}),
        ):
            text = await operator.refused(action, **fields)
            assert text.startswith("this run takes no commands (operator.read_only)")
        coordinator.stop()

    config = structs.replace(make_config(rounds=ENDLESS), operator=OperatorConfig(read_only=True))
    async with lab(tmp_path) as place:
        rows = await steered(place, config, steer)
    assert [row.is_accepted for row in rows] == [False] * 4
    assert [answer.is_accepted for _, _, answer in place.audited] == [False] * 4


async def test_a_command_for_a_run_that_has_ended_changes_nothing_in_the_next_one(
    tmp_path: Path,
) -> None:
    async def steer(operator: Operator, coordinator: Coordinator) -> None:
        for action, fields in (
            ("stop", {}),
            ("throttle", {"device": "pi-0", "name": "cpu", "value": 0.5}),
        ):
            text = await operator.refused(action, run="earlier", **fields)
            assert text == "it is for run earlier, which has ended; lab runs there now"
        await operator.accepted("stop", run="lab")

    bench = Bench()
    async with lab(tmp_path) as place:
        place.devices = bench
        rows = await steered(place, make_config(rounds=ENDLESS), steer)
    assert [row.is_accepted for row in rows] == [False, False, True]
    assert not bench.lines


class Bench:
    """Notes the commands to emulated devices; refuses those about pi-2."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def execute(self, command: OperatorCommand) -> str:
        await anyio.lowlevel.checkpoint()
        if command.device == "pi-2":
            raise CommandRefusedError("pi-2 is physical; only emulated devices can be changed")
        self.lines.append(command.line)
        return f"{command.device}: done"


async def test_changes_of_emulated_devices_go_to_the_testbed_and_are_repeated_by_a_resume(
    tmp_path: Path,
) -> None:
    async def steer(operator: Operator, coordinator: Coordinator) -> None:
        for value in (0.5, 0.25):
            await operator.accepted("throttle", device="pi-0", name="cpu", value=value)
        await operator.accepted("throttle", device="pi-0", name="link", value=0.1)
        await operator.accepted("fault", device="pi-0", name="unplugged", value=3.0)
        assert "is physical" in await operator.refused("link", device="pi-2", name="lte")
        coordinator.stop()

    config = make_config(rounds=ENDLESS)
    async with lab(tmp_path) as place:
        first = place.devices = Bench()
        await steered(place, config, steer)
        second = place.devices = Bench()
        store = place.open_store()
        again = place.coordinator(config, store, attempt=1)
        place.on_progress = lambda progress: again.stop()
        await again.run()
        store.close()
    assert first.lines == [
        "throttle pi-0 cpu 0.5",
        "throttle pi-0 cpu 0.25",
        "throttle pi-0 link 0.1",
        "fault pi-0 unplugged 3",
    ]
    assert second.lines == ["throttle pi-0 cpu 0.25", "throttle pi-0 link 0.1"]


async def test_without_emulated_devices_none_can_be_changed(tmp_path: Path) -> None:
    async def steer(operator: Operator, coordinator: Coordinator) -> None:
        text = await operator.refused("fault", device="pi-0", name="killed", value=1.0)
        assert text == "no device of this run is emulated, so none can be changed"
        message = command("exclude", device="pi-0")
        assert await operator.tell(message) == await operator.tell(message)
        coordinator.stop()

    async with lab(tmp_path) as place:
        rows = await steered(place, make_config(rounds=ENDLESS), steer)
    assert [row.action for row in rows] == ["fault", "exclude"]
