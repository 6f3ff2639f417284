"""Changes of emulated devices by an operator, on top of their schedules."""

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
from msgspec import structs

from fairbed import profiles
from fairbed.coordinator.ports import CommandRefusedError
from fairbed.profiles import Profile
from fairbed.testbed.backends.base import Backend, DeviceSpec, device_spec
from fairbed.testbed.emulation.conditions import Conditions, Shape
from fairbed.testbed.emulation.step_speed import AtTask
from fairbed.testbed.errors import BackendError
from fairbed.testbed.run.device_control import SteeredFleet
from fairbed.testbed.run.stopping import StopControl
from fairbed.wire.messages import OperatorCommand

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

SHAPE = Shape(down_bps=8e6, up_bps=2e6, delay_s=0.01)


class Bench:
    """A backend that only notes its calls; it cannot drop packets."""

    def __init__(self) -> None:
        self.now: dict[str, Conditions] = {}
        self.log: list[str] = []
        self.specs: dict[str, DeviceSpec] = {}
        """Of devices that were started as others."""
        self.broken = ""
        """Device that cannot be started."""
        self.pids = {"pi-1": 11, "this-1": 12, "driven-1": 13}

    async def apply(self, conditions: Mapping[str, Conditions]) -> None:
        await anyio.lowlevel.checkpoint()
        for name, wanted in conditions.items():
            if wanted.shape is not None and wanted.shape.loss_ratio > 0.0:
                raise BackendError(f"{name}: a proxy drops no packets")
        self.now.update(conditions)

    async def kill(self, name: str) -> None:
        await anyio.lowlevel.checkpoint()
        self.log.append(f"kill {name}")

    async def restart(self, name: str, spec: DeviceSpec | None = None) -> None:
        await anyio.lowlevel.checkpoint()
        if name == self.broken:
            raise BackendError(f"{name}: cannot be started")
        self.log.append(f"restart {name}")
        if spec is not None:
            self.specs[name] = spec


def command(action: str, device: str, name: str, value: float | None = None) -> OperatorCommand:
    return OperatorCommand(
        id=secrets.token_bytes(16),
        action=action,  # type: ignore[arg-type]  # one of those in the tests
        device=device,
        name=name,
        value=value,
    )


@asynccontextmanager
async def fleet(dilation: float = 1.0) -> AsyncIterator[tuple[SteeredFleet, Bench, StopControl]]:
    spec = device_spec("pi-1", profiles.load("raspberry-pi-4b"))
    specs = [
        DeviceSpec("pi-1", spec.device, SHAPE).dilated(dilation),
        DeviceSpec("this-1"),
        DeviceSpec("driven-1", spec.device, SHAPE, is_driven=True),
    ]
    bench, stop = Bench(), StopControl()
    async with anyio.create_task_group() as group:
        yield SteeredFleet(cast(Backend, bench), specs, dilation, 2.0, group, stop), bench, stop
        group.cancel_scope.cancel()


async def test_a_throttle_multiplies_what_the_schedule_says() -> None:
    async with fleet() as (steered, bench, _):
        assert await steered.execute(command("throttle", "pi-1", "cpu", 0.5)) == (
            "pi-1 has 50 % of its speed"
        )
        await steered.execute(command("throttle", "pi-1", "link", 0.25))
        own = device_spec("pi-1", profiles.load("raspberry-pi-4b")).device
        assert own is not None
        assert bench.now["pi-1"].speed_ratio == pytest.approx(0.5 * own.speed_ratio)
        assert bench.now["pi-1"].shape == structs.replace(SHAPE, down_bps=2e6, up_bps=5e5)
        await steered.apply({"pi-1": Conditions(0.2, SHAPE, outage="coverage", is_willing=False)})
        assert bench.now["pi-1"] == Conditions(
            0.1,
            structs.replace(SHAPE, down_bps=2e6, up_bps=5e5),
            outage="coverage",
            is_willing=False,
        )
        for part in ("cpu", "link"):
            await steered.execute(command("throttle", "pi-1", part, 1.0))
        assert bench.now["pi-1"] == Conditions(0.2, SHAPE, outage="coverage", is_willing=False)


async def test_another_link_is_dilated_as_the_fleet_is() -> None:
    async with fleet(dilation=4.0) as (steered, bench, _):
        await steered.execute(command("link", "pi-1", "gigabit-ethernet"))
        link = device_spec("x", None, profiles.load_link("gigabit-ethernet").link).shape
        assert link is not None
        assert bench.now["pi-1"].shape == link.dilated(4.0)
        await steered.execute(command("link", "pi-1", "own"))
        assert bench.now["pi-1"].shape == SHAPE.dilated(4.0)


async def test_another_profile_starts_the_device_again_and_keeps_link_and_throttle() -> None:
    async with fleet(dilation=4.0) as (steered, bench, _):
        await steered.execute(command("throttle", "pi-1", "cpu", 0.5))
        answer = await steered.execute(command("profile", "pi-1", "jetson-nano"))
        assert answer == "pi-1 starts again as jetson-nano; its link stays"
        nano = device_spec("pi-1", profiles.load("jetson-nano"), None, 2.0).dilated(4.0).device
        assert nano is not None
        assert bench.log == ["restart pi-1"]
        assert bench.specs["pi-1"].device == nano
        assert bench.now["pi-1"] == Conditions(0.5 * nano.speed_ratio, SHAPE.dilated(4.0))
        await steered.execute(command("fault", "pi-1", "frozen", 5.0))
        with pytest.raises(CommandRefusedError, match=r"^pi-1 is frozen; wait for its end$"):
            await steered.execute(command("profile", "pi-1", "raspberry-pi-4b"))


async def test_a_device_that_cannot_start_again_keeps_its_speed() -> None:
    async with fleet() as (steered, bench, _):
        bench.broken = "pi-1"
        with pytest.raises(CommandRefusedError, match=r"^pi-1: cannot be started$"):
            await steered.execute(command("profile", "pi-1", "jetson-nano"))
        await steered.execute(command("throttle", "pi-1", "cpu", 1.0))
        own = device_spec("pi-1", profiles.load("raspberry-pi-4b")).device
        assert own is not None
        assert bench.now["pi-1"].speed_ratio == own.speed_ratio


async def test_an_outage_ends_after_its_time() -> None:
    async with fleet() as (steered, bench, _):
        assert await steered.execute(command("fault", "pi-1", "unplugged", 20.0)) == (
            "pi-1 is unplugged for 20 s"
        )
        began = anyio.current_time()
        with pytest.raises(CommandRefusedError, match=r"^pi-1 is unplugged already"):
            await steered.execute(command("fault", "pi-1", "frozen", 1.0))
        while bench.now["pi-1"].outage == "unplugged":  # noqa: ASYNC110
            await anyio.sleep(1.0)
        assert 19.0 <= anyio.current_time() - began <= 22.0
        await steered.execute(command("fault", "pi-1", "killed", 5.0))
        assert bench.log == ["kill pi-1"]
        await anyio.sleep(6.0)
        assert bench.log == ["kill pi-1", "restart pi-1"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("throttle", "pi-9", "cpu", 0.5), "pi-9 is not emulated by this run; only emulated"),
        (("throttle", "pi-1", "gpu", 0.5), "throttle: must be of cpu or link, got 'gpu'"),
        (("throttle", "pi-1", "cpu", 0.0), "throttle: the share that is left must be above 0"),
        (("throttle", "pi-1", "cpu", 1.5), "throttle: the share that is left must be above 0"),
        (("throttle", "this-1", "cpu", 0.5), "this-1 has no profile, so its speed is not emulated"),
        (("throttle", "this-1", "link", 0.5), "this-1 has no link with a rate, so none"),
        (("link", "pi-1", "/etc/passwd"), "link: must be own or one of "),
        (("fault", "pi-1", "fire", 1.0), "fault: must be one of coverage, unplugged, frozen, kill"),
        (("fault", "pi-1", "frozen", 0.0), "fault: must last above 0 and at most 86400 s, got 0"),
        (("profile", "pi-9", "jetson-nano"), "pi-9 is not emulated by this run; only emulated"),
        (("profile", "this-1", "jetson-nano"), "this-1 has no profile, so its speed is not"),
        (("profile", "driven-1", "jetson-nano"), "driven-1 keeps its profile: its conditions"),
        (("profile", "pi-1", "/etc/passwd"), "profile: must be one of "),
    ],
)
async def test_refuses_what_the_backend_cannot_do(fields: tuple[Any, ...], message: str) -> None:
    async with fleet() as (steered, bench, _):
        with pytest.raises(CommandRefusedError) as caught:
            await steered.execute(command(*fields))
        assert str(caught.value).startswith(message)
        assert not bench.now


async def test_a_change_that_the_backend_refuses_leaves_the_device_as_it_was() -> None:
    lossy = next(
        name
        for name in profiles.link_names()
        if (shape := device_spec("x", None, profiles.load_link(name).link).shape)
        and shape.loss_ratio > 0.0
    )
    async with fleet() as (steered, bench, _):
        with pytest.raises(CommandRefusedError, match=r"^pi-1: a proxy drops no packets$"):
            await steered.execute(command("link", "pi-1", lossy))
        await steered.apply({"pi-1": Conditions(0.2, SHAPE)})
        assert bench.now["pi-1"] == Conditions(0.2, SHAPE)


async def test_another_profile_has_its_speed_at_the_task_of_the_run() -> None:
    def halved(profile: Profile) -> AtTask:
        speed = structs.replace(profile.one_core, value=0.5 * profile.core_speed)
        return AtTask(structs.replace(profile, one_core=speed), evaluation_speed=3.0)

    spec = device_spec("pi-1", profiles.load("raspberry-pi-4b"))
    bench, stop = Bench(), StopControl()
    async with anyio.create_task_group() as group:
        steered = SteeredFleet(cast(Backend, bench), [spec], 1.0, 2.0, group, stop, halved)
        await steered.execute(command("profile", "pi-1", "jetson-nano"))
        nano = device_spec("x", profiles.load("jetson-nano"), None, 2.0).device
        assert nano is not None
        assert bench.now["pi-1"].speed_ratio == pytest.approx(0.5 * nano.speed_ratio)
        made = bench.specs["pi-1"].device
        assert made is not None
        assert made.evaluation_speed == 3.0
        group.cancel_scope.cancel()


async def test_a_killed_agent_is_started_again_as_it_was() -> None:
    async with fleet() as (steered, bench, _):
        await steered.execute(command("fault", "pi-1", "frozen", 60.0))
        bench.now.clear()
        await steered.start_again("pi-1")
        assert not bench.log  # it is alive
        del bench.pids["pi-1"], bench.pids["this-1"]
        await steered.start_again("pi-1")
        await steered.start_again("this-1")
        assert bench.log == ["restart pi-1", "restart this-1"]
        assert {name: now.outage for name, now in bench.now.items()} == {"pi-1": "frozen"}


async def test_an_agent_that_an_operator_has_killed_stays_away_until_then() -> None:
    async with fleet() as (steered, bench, _):
        del bench.pids["pi-1"]
        await steered.execute(command("fault", "pi-1", "killed", 5.0))
        await steered.start_again("pi-1")
        assert bench.log == ["kill pi-1"]
        await anyio.sleep(6.0)
        assert bench.log == ["kill pi-1", "restart pi-1"]
