"""The screen of one round: which devices were selected in it, and why."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from fairbed.coordinator.report.selection_reasons import DeviceChoice
from fairbed.coordinator.tui.app import ControlRoom
from fairbed.coordinator.tui.screens.device import DeviceDetail
from fairbed.coordinator.tui.screens.round import ORDERS, RoundScreen, ordered, sentence
from tests.coordinator.store.fake_run import VOID_ROUND, FakeRun, fake_run
from tests.coordinator.tui.conftest import Looks
from tests.coordinator.tui.screen import SMALL, comes, opens, room, settled, shows, text_of

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of twelve devices and 12 rounds, four devices per round."""
    return fake_run(tmp_path_factory.mktemp("runs") / "demo-1", rounds=12)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[FakeRun]:
    run = FakeRun(tmp_path / "live-run")
    run.play(3)
    run.store.flush()
    yield run
    run.store.close()


def round_screen(app: ControlRoom) -> RoundScreen:
    assert isinstance(app.screen, RoundScreen)
    return app.screen


async def opened(app: ControlRoom, pilot: Pilot[Any], *keys: str) -> RoundScreen:
    """Press keys that open a round, and wait until it was read."""
    await pilot.press(*keys)
    assert await opens(app, pilot, RoundScreen)
    assert await shows(app, pilot, "was ", "selected:")
    return round_screen(app)


@pytest.mark.parametrize("size", [SMALL, (120, 40)])
async def test_three_keys_show_why_a_device_was_not_selected(
    folder: Path, size: tuple[int, int]
) -> None:
    """The third device of the overview, in the newest round; at most five keys are asked for."""
    async with room(folder, size) as (app, pilot):
        screen = await opened(app, pilot, "down", "down", "w")
        name = screen.selected_device
        assert name == "jetson-02"
        assert await shows(app, pilot, f"{name} was not selected: outranked; with it 0.3 worse")
        assert await shows(app, pilot, "Round 12", "4 of 12 available, by rbcs-f")


async def test_why_works_on_the_screen_of_a_device_and_returns_there(folder: Path) -> None:
    async with room(folder) as (app, pilot):
        await pilot.press("down", "enter")
        assert await opens(app, pilot, DeviceDetail)
        screen = await opened(app, pilot, "w")
        assert screen.selected_device == "raspberry-pi-01"
        assert "w Why" not in await settled(app, pilot)
        await pilot.press("escape")
        assert await opens(app, pilot, DeviceDetail)


@pytest.mark.full
async def test_brackets_step_through_the_rounds_at_the_same_device(folder: Path) -> None:
    async with room(folder) as (app, pilot):
        screen = await opened(app, pilot, "down", "w")
        assert "] Later" not in await settled(app, pilot)
        await pilot.press("left_square_bracket")
        assert await shows(app, pilot, "Round 11", "] Later", "raspberry-pi-01 was ")
        assert screen.selected_device == "raspberry-pi-01"
        for _ in range(10):
            await pilot.press("left_square_bracket")
        assert await shows(app, pilot, "Round 1 ", "raspberry-pi-01 was ")
        await pilot.press("left_square_bracket")
        assert "Round 1 " in await settled(app, pilot)
        assert "[ Earlier" not in text_of(app)


@pytest.mark.full
async def test_a_void_round_has_reasons_and_no_bars(folder: Path) -> None:
    async with room(folder) as (app, pilot):
        await opened(app, pilot, "w")
        for number in range(11, VOID_ROUND - 1, -1):
            await pilot.press("left_square_bracket")
            assert await shows(app, pilot, f"Round {number} ", "was ")
        assert await shows(app, pilot, "offline, or silent", "void, no device available")


async def test_devices_are_filtered_and_sorted(folder: Path) -> None:
    async with room(folder) as (app, pilot):
        screen = await opened(app, pilot, "w")
        await pilot.press("slash", *"selected:no", "enter")
        assert await shows(app, pilot, "8 of 12 devices")
        await pilot.press("s", "ctrl+home")
        assert await shows(app, pilot, "8 of 12 devices · by device")
        assert screen.selected_device == "jetson-02"
        await pilot.press("s", "ctrl+home")
        assert await shows(app, pilot, "by predicted time")
        assert screen.selected_device == "phone-11"
        await pilot.press("escape")
        assert await shows(app, pilot, "· 12 devices ·")


async def test_enter_opens_the_device(folder: Path) -> None:
    async with room(folder) as (app, pilot):
        screen = await opened(app, pilot, "w", "down")
        name = screen.selected_device
        await pilot.press("enter")
        assert await opens(app, pilot, DeviceDetail)
        assert isinstance(app.screen, DeviceDetail)
        assert app.screen.selected_device == name


async def test_an_open_round_gets_its_reasons_when_it_closes(live: FakeRun) -> None:
    live.begin_round()
    live.store.flush()
    async with room(live.folder) as (app, pilot):
        await opened(app, pilot, "w")
        await pilot.press("right_square_bracket")
        assert await shows(app, pilot, "Round 4", "Reasons are stored when the round closes.")
        live.close_round()
        live.store.flush()
        await app.refresh_view()
        assert await shows(app, pilot, "4 of 12 available", "was ", "selected:")


async def test_without_a_closed_round_there_is_no_why(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.store.flush()
    async with room(run.folder) as (app, pilot):
        await pilot.press("w")
        assert "w Why" not in await settled(app, pilot)
        assert not isinstance(app.screen, RoundScreen)
        run.play(1)
        run.store.flush()
        await app.refresh_view()
        assert await comes(pilot, lambda: "w Why" in text_of(app))
    run.store.close()


async def test_the_looks_of_a_round(folder: Path, looks: Looks) -> None:
    await looks(folder, "round", ["w", "down"])


@pytest.mark.full
async def test_a_round_without_colours(folder: Path, looks: Looks) -> None:
    for colours in ("16", "none"):
        await looks(folder, "round", ["w", "down"], sizes=[(120, 40)], colours=colours)


def choice(device: str, tau_s: float | None) -> DeviceChoice:
    return DeviceChoice(
        device=device,
        is_selected=tau_s is not None,
        is_aggregated=False,
        reason="",
        why="not drawn" if tau_s is None else "drawn at random",
        score=None,
        margin=None,
        tau_hat_s=None,
        tau_s=tau_s,
        queue_before=0.0,
        queue=0.15,
        outcome="" if tau_s is None else "late",
    )


def test_devices_without_a_value_come_last_in_an_order() -> None:
    devices = [choice("a", None), choice("b", 1.0), choice("c", 2.0)]
    (by_time,) = [order for order in ORDERS if order and order.name == "measured time"]
    assert [one.device for one in ordered(devices, by_time)] == ["c", "b", "a"]
    assert ordered(devices, None) == devices


def test_a_sentence_has_the_numbers_that_are_known() -> None:
    assert sentence(choice("pi-1", None)) == (
        "pi-1 was not selected: not drawn · predicted – s · Z 0.00 → 0.15"
    )
    assert sentence(choice("pi-2", 1.5)) == (
        "pi-2 was selected: drawn at random · predicted – s, measured 1.50 s (late) · Z 0.00 → 0.15"
    )
