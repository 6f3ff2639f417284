"""Declares two columns of the exchange, and shows that all else follows: ... FOLDER.

It is a process of its own, because the tables are derived when they are imported. The columns are
written into the text of the declarations and nowhere else. The stand-ins of the places that measure
them are here: an agent's stopwatch, the merge, the replayed world.
"""

import csv
import importlib.util
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio

import fairbed

TABLES = "fairbed.coordinator.store.tables"
BEFORE = "\n\n\n@dataclass(frozen=True, slots=True, kw_only=True)\nclass ReleaseRow:"
DECLARED = '''
    temporary_s: Annotated[
        float | None, Column(Source.OFFER, "temporary time", most=1e3, statistic="median")
    ] = None
    """Time of a test."""
    temporary_places: Annotated[
        int, Column(Source.MERGE, "temporary places", statistic="sum")
    ] = 0
    """Places of a test."""'''
ROUNDS = 6
LIVE_S, REPLAYED_S = 0.5, 0.25
NAMES = ("temporary_s", "temporary_places")


def declare(folder: Path) -> None:
    """Import the declarations with the further columns in place of those of the tree."""
    tree = Path(fairbed.__file__).parent / "coordinator" / "store" / "tables.py"
    head, rest = tree.read_text(encoding="utf-8").split(BEFORE)
    path = folder / "tables.py"
    path.write_text(f"{head}{DECLARED}{BEFORE}{rest}", encoding="utf-8")
    spec = importlib.util.spec_from_file_location(TABLES, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[TABLES] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


async def play_live(folder: Path) -> None:
    """Train with an agent that measures the time, and a merge that measures the places."""
    from fairbed.coordinator.algorithms.aggregation.base import Merge
    from fairbed.coordinator.policy.config import SelectionConfig
    from fairbed.device_agent.jobs import Stopwatch
    from tests.coordinator.lab import lab, make_config

    lap, columns = Stopwatch.lap, vars(Merge)["columns"].fget

    def measuring_lap(self: Stopwatch, name: str) -> float:
        if name == "train":
            self.measured["temporary_s"] = LIVE_S
            self.measured["of_a_newer_agent"] = 1.0
        return lap(self, name)

    with_places = property(lambda self: columns(self) | {"temporary_places": 3 * self.n_k})
    one = SelectionConfig(policy="uniform", per_round=1)
    with (
        patch.object(Stopwatch, "lap", measuring_lap),
        patch.object(Merge, "columns", with_places),
    ):
        async with lab(folder, agents=1) as place:
            await place.run(make_config(ROUNDS, 1, selection=one))


def play_replayed(folder: Path) -> None:
    """Replay a device whose world gives the time."""
    import numpy as np

    from fairbed.testbed.replay.run import replay_experiment
    from fairbed.testbed.replay.world.linear import LinearWorld
    from tests.testbed.replay.fleets import experiment, seconds

    exchange = LinearWorld.exchange

    def measured(self: LinearWorld, *arguments: Any) -> Any:
        planned = exchange(self, *arguments)
        return replace(planned, measured={"temporary_s": np.full(len(planned.steps), REPLAYED_S)})

    of = experiment(seconds(1.0), rounds=ROUNDS, selection={"per_round": 1})
    with patch.object(LinearWorld, "exchange", measured):
        replay_experiment(of, folder, "replayed", lambda replayed: None)


def check_readers(folder: Path, expected_s: float, places: int) -> None:
    """Check store, Python, exports, JSON, report and documentation of a run."""
    import msgspec

    from fairbed.coordinator.report.export import export_run
    from fairbed.coordinator.report.html import read_page, report_page
    from fairbed.coordinator.report.summary import summarise_run, summary_table
    from fairbed.coordinator.report.tables import read_table
    from fairbed.coordinator.store import RunReader

    with RunReader(folder) as reader:
        rows: list[Any] = [*reader.exchanges()]
        assert [(x.temporary_s, x.temporary_places) for x in rows] == [
            (expected_s, places)
        ] * ROUNDS
        assert (
            read_table(reader, "exchange").column("temporary_s").tolist() == [expected_s] * ROUNDS
        )
        export_run(reader, folder / "csv", "csv")
        summary = summarise_run(reader)
        page = report_page([read_page(reader, has_figures=False)])
    with (folder / "csv" / "exchange.csv").open(newline="") as file:
        assert {float(row["temporary_s"]) for row in csv.DictReader(file)} == {expected_s}
    with (folder / "csv" / "dictionary.csv").open(newline="") as file:
        (line,) = [row for row in csv.DictReader(file) if row["column"] == "temporary_s"]
    assert (line["unit"], line["meaning"]) == ("s", "Time of a test.")
    measures = msgspec.json.decode(msgspec.json.encode(summary))["measures"]
    assert measures["temporary_s_median"]["value"] == expected_s
    assert measures["temporary_places_sum"]["value"] == places * ROUNDS
    text = f"{expected_s:.2f} s ({ROUNDS} of {ROUNDS})"
    assert f"temporary time, median {text}" in summary_table(summary)
    assert "temporary time" in page
    assert text in page


async def check_control_room(folder: Path) -> None:
    """Check that the column can be chosen, is remembered, and can be asked for."""
    from textual.widgets import OptionList

    from fairbed.coordinator.tui.preferences import load_preferences
    from fairbed.coordinator.tui.screens.device import DeviceDetail
    from fairbed.coordinator.tui.screens.fleet_dialogs import ColumnsDialog
    from tests.coordinator.tui.screen import opens, room, shows, text_of

    file = folder / "control-room.json"
    async with room(folder, preferences=file) as (app, pilot):
        await pilot.press("enter")
        assert await opens(app, pilot, DeviceDetail)
        assert "temporary_s" not in text_of(app), "off by default"
        await pilot.press("C")
        assert await opens(app, pilot, ColumnsDialog)
        choices = app.screen.query_one(OptionList)
        prompts = [str(option.prompt) for option in choices.options]
        choices.highlighted = next(i for i, x in enumerate(prompts) if "temporary_s" in x)
        await pilot.press("space", "enter")
        assert await shows(app, pilot, "temporary_s", " 0.25 ")
        await pilot.press("slash", *"temporary_s>0.3", "enter")
        assert await shows(app, pilot, f"(0 of {ROUNDS})")
    assert load_preferences(file).screens["device"].columns == ("temporary_s",)


def main(folder: Path) -> None:
    """Declare the columns, play both kinds of runs, and check all readers."""
    declare(folder)
    from fairbed.coordinator.store.schema import fault_in_measured
    from fairbed.coordinator.store.tables import Source
    from tests.coordinator.lab import EXAMPLES
    from tests.idle_time import IdleSkippingLoop, busy_threads_counted
    from tools.write_reference import store_page

    assert "| `temporary_s` | float or empty | s | device | Time of a test. |" in store_page()
    assert fault_in_measured({"temporary_s": -1.0}, Source.OFFER) is not None
    with busy_threads_counted():
        options = {"loop_factory": IdleSkippingLoop}
        anyio.run(partial(play_live, folder), backend_options=options)
    check_readers(folder / "run", LIVE_S, 3 * EXAMPLES)
    play_replayed(folder / "replayed")
    check_readers(folder / "replayed", REPLAYED_S, 0)
    anyio.run(partial(check_control_room, folder / "replayed"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
