"""A device that the broker refuses leaves the fleet of a live run; a renamed one stays in it."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from msgspec import structs

from fairbed.coordinator.policy.config import SelectionConfig
from fairbed.coordinator.report.facts import fairness_of
from fairbed.coordinator.report.summary_table import guarantee
from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.coordinator.server.service import Coordinator
from tests.coordinator.lab import Lab, lab, make_config

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

GUARANTEED = SelectionConfig(per_round=2, beta=0.4)


async def run(place: Lab, rounds: int, act: Callable[[Coordinator], None]) -> None:
    """Run some rounds of three devices, all of which each needs, and `act` after round 5."""
    store = place.open_store()
    config = make_config(rounds=rounds, min_linked=3, selection=GUARANTEED)
    coordinator = place.coordinator(config, store)

    def on_progress(progress: RoundProgress) -> None:
        if progress.round.round == 5:
            act(coordinator)

    place.on_progress = on_progress
    store.set_status(await coordinator.run())
    store.close()


async def test_a_revoked_device_leaves_the_fleet_and_the_guarantee(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=3) as place:
        await run(place, 40, lambda coordinator: coordinator.refuse_all_but(["pi-0", "pi-1"]))
    with place.reader() as reader:
        rounds, fair = reader.rounds(), fairness_of(reader)
        rows = [row for number in range(1, 41) for row in reader.selections(number)]
        events = [event.kind for _, event in reader.events() if event.device == "pi-2"]
    assert {row.round for row in rows if row.device == "pi-2"} <= set(range(1, 7))
    assert max(row.queue_total for row in rounds[6:]) < 3.0, "0.4 in each round if it counted"
    assert fair.left == ["pi-2"]
    assert fair.min_selection_rate is not None
    assert fair.min_selection_rate > 0.4
    text = guarantee(structs.replace(fair, beta=0.4))  # the store of the lab has no experiment
    assert text == "guarantee of 0.4 kept, pi-2 left the fleet and is not counted"
    assert events.count("revoked") == 1


async def test_a_renamed_device_keeps_its_row_its_data_and_its_queue(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=3) as place:

        def rename(coordinator: Coordinator) -> None:
            place.kill_agent("pi-2")
            place.former["board-9"] = ["pi-2"]
            place.shards.given = ["pi-0", "pi-1", "board-9"]  # as the testbed's shards do
            place.start_agent("board-9")
            coordinator.refuse_all_but(["pi-0", "pi-1", "board-9"])

        place.shards.limit = 3
        with anyio.fail_after(60):
            await run(place, 20, rename)
    with place.reader() as reader:
        devices = {row.name: row.row for row in reader.devices()}
        selections = {number: reader.selections(number) for number in range(1, 21)}
        exchanges = {row.device for row in reader.exchanges()}
        fair, events = fairness_of(reader), [event for _, event in reader.events()]
    assert devices.keys() == {"pi-0", "pi-1", "board-9"} == exchanges
    assert sorted(devices.values()) == [0, 1, 2]
    of_device = {
        number: row
        for number, rows in selections.items()
        for row in rows
        if row.device == "board-9"
    }
    back = next(number for number in range(8, 21) if number in of_device)
    assert set(of_device) >= {*range(1, 6), *range(back, 21)}
    last = max(number for number in of_device if number < back)
    step = 0.4 - of_device[back].is_selected
    assert of_device[back].queue == pytest.approx(max(of_device[last].queue + step, 0.0))
    (renamed,) = [event for event in events if event.kind == "renamed"]
    assert (renamed.device, renamed.text.partition(";")[0]) == ("board-9", "was pi-2")
    assert fair.left == []
    assert "refused" not in {event.kind for event in events}
