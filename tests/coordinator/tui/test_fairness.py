"""Screen of fairness."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from fairbed.coordinator.policy.live_settings import Change
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.tui.reading import ViewReader
from fairbed.coordinator.tui.screens.device import DeviceDetail
from fairbed.coordinator.tui.screens.fairness import (
    FairnessScreen,
    Rows,
    facts_text,
    rate_curves,
    read_rows,
    shares_of,
    sorted_accuracies,
)
from fairbed.coordinator.tui.view import RunView
from tests.coordinator.store.fake_run import BETA, LATE_ROUND, FakeRun, fake_run
from tests.coordinator.tui.conftest import Colours, Looks
from tests.coordinator.tui.screen import SMALL, opens, room, settled, shows

NOTHING = Rows((), {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_run(tmp_path_factory.mktemp("runs") / "digits-run")


@pytest.fixture(scope="module")
def view(folder: Path) -> RunView:
    with RunReader(folder) as reader:
        found = ViewReader(reader).refresh(RunView())
    assert found is not None
    return found


def with_counts(view: RunView, *selected: int, queue: float = 0.0) -> RunView:
    """Return a view whose devices were selected so often in 20 rounds."""
    devices = [
        structs.replace(device, selected=count, aggregated=count - 1, rounds=20, queue=queue)
        for device, count in zip(view.devices, selected, strict=False)
    ]
    return replace(view, devices=tuple(devices))


def test_devices_stand_in_the_order_of_their_rates(view: RunView) -> None:
    shares = shares_of(with_counts(view, 5, 2, 4), NOTHING)
    assert [share.rate for share in shares] == [0.1, 0.2, 0.25]
    assert [share.excess for share in shares] == pytest.approx(
        [0.1 - BETA, 0.2 - BETA, 0.25 - BETA]
    )
    (_guarantee, rates) = rate_curves(shares)
    assert rates.points == ((1.0, 0.1), (2.0, 0.2), (3.0, 0.25))


@pytest.mark.parametrize(("queue", "mark"), [(0.0, "!!"), (0.9, "!!"), (1.0, "!"), (3.0, "!")])
def test_a_rate_below_the_guarantee_is_allowed_by_the_queue_only(
    view: RunView, queue: float, mark: str
) -> None:
    short, enough = shares_of(with_counts(view, 2, 3, queue=queue), NOTHING)
    assert short.mark == mark  # 2 / 20 = 0.15 - 1 / 20
    assert short.slack == pytest.approx(queue / 20 - 0.05)
    assert enough.mark == ""


def test_the_guarantee_is_that_of_the_rounds_of_the_device(view: RunView) -> None:
    changed = with_counts(view, 3, 3)
    first, second = changed.devices
    changed = replace(changed, devices=(first, structs.replace(second, rounds=5)))
    rows = Rows((Change(name="beta", value=0.35, round=11),), {})
    betas = {share.device.name: share.beta for share in shares_of(changed, rows)}
    assert betas == {first.name: pytest.approx(0.25), second.name: pytest.approx(0.35)}


def test_a_policy_without_guarantee_has_no_marks(view: RunView) -> None:
    assert view.info is not None
    selection = structs.replace(view.info.plan.selection, policy="uniform")
    plan = structs.replace(view.info.plan, selection=selection)
    free = replace(with_counts(view, 0, 3), info=replace(view.info, plan=plan))
    shares = shares_of(free, NOTHING)
    assert [(share.mark, share.slack) for share in shares] == [("", None), ("", None)]
    assert facts_text(free, shares).startswith("the policy uniform guarantees no rate")


def test_weights_are_relative_to_examples(folder: Path, view: RunView) -> None:
    with RunReader(folder) as reader:
        rows = read_rows(30, reader)
        early = read_rows(LATE_ROUND, reader)
        exchanges = [x for x in reader.exchanges() if x.weight_share and x.n_share]
    for share in shares_of(view, rows):
        own = [x for x in exchanges if x.device == share.device.name]
        weight, n = sum(x.weight_share or 0 for x in own), sum(x.n_share or 0 for x in own)
        assert share.weight_ratio == pytest.approx(weight / n)
        until = [x for x in own if x.round <= LATE_ROUND]
        assert early.weights[share.device.name][0] == pytest.approx(0.25 * len(until))


def test_weights_by_examples_are_called_so(view: RunView) -> None:
    even = {device.name: (0.2, 0.2) for device in view.devices}
    text = facts_text(view, shares_of(view, Rows((), even)))
    assert "weights in the merge are the shares of the examples" in text


def test_accuracies_are_sorted(view: RunView) -> None:
    (curve,) = sorted_accuracies(view)
    values = [y for _, y in curve.points]
    assert values == sorted(d.accuracy for d in view.devices if d.accuracy is not None)


def test_without_a_round_there_are_no_shares(view: RunView) -> None:
    assert shares_of(RunView(), NOTHING) == ()
    assert facts_text(RunView(), ()) == "no round yet"


def test_the_worst_tenth_has_its_share_of_noise_beside_it(view: RunView) -> None:
    """As the summary; with many examples per test there is little."""

    def noise(view: RunView) -> int:
        found = re.search(
            r"worst 10 % 0\.\d+ \(noise (\d+) %\)", facts_text(view, shares_of(view, NOTHING))
        )
        assert found is not None
        return int(found[1])

    assert {device.test_n for device in view.devices} == {40}
    many = [structs.replace(device, test_n=100_000) for device in view.devices]
    assert noise(view) > 50 > 5 > noise(replace(view, devices=tuple(many)))


@pytest.mark.anyio
async def test_shares_are_shown(folder: Path) -> None:
    async with room(folder) as (app, pilot):
        await pilot.press("4")
        assert await shows(app, pilot, "guarantee 0.15: all devices have it, bound holds for all")
        assert await shows(app, pilot, "Jain index 0.998", "w/n", "Rate by device", "■ sum")
        await pilot.press("down", "enter")
        assert await opens(app, pilot, DeviceDetail)
        assert isinstance(app.screen, DeviceDetail)
        assert app.screen.selected_device == "phone-07"
    async with room(folder, SMALL) as (app, pilot):
        await pilot.press("4")
        assert await shows(app, pilot, "weight / share of examples from 0.83", "phone-03")


@pytest.mark.anyio
async def test_a_new_round_changes_the_shares(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.store.flush()
    async with room(run.folder) as (app, pilot):
        await pilot.press("4")
        assert await shows(app, pilot, "no round yet")
        assert isinstance(app.screen, FairnessScreen)
        assert app.screen.selected_device is None
        run.play(2)
        run.store.flush()
        await app.refresh_view()
        assert await shows(app, pilot, "guarantee 0.15: 4 of 12 devices below it")
        assert "!0.00" in await settled(app, pilot)
    run.store.close()


@pytest.mark.anyio
@pytest.mark.parametrize("colours", ["all", "none", pytest.param("16", marks=pytest.mark.full)])
async def test_fairness_looks_as_it_should(folder: Path, looks: Looks, colours: Colours) -> None:
    await looks(folder, "fairness", ("4",), colours=colours)
