"""The cost of a large fleet, measured on small ones and written to a page."""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks import scale
from benchmarks._scale import live, tables
from benchmarks._scale.curve import Curve, Row, exponent
from benchmarks._scale.tables import Cost

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
SMALL = ["--devices", "400", "--in-flight", "20", "--per-round", "10", "--repeats", "1"]


def cost(devices: int, seconds: float) -> Cost:
    times = dict.fromkeys(tables.TIMES, seconds)
    return Cost(devices=devices, in_flight=10, bytes_per_device=700.0, **times)


def test_tables_of_a_small_fleet_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert scale.main(["--part", "tables", *SMALL, "--json"]) == 0
    curve = json.loads(capsys.readouterr().out)["tables"]
    assert curve["sizes"] == [30, 40, 400]
    assert all(min(row["values"]) > 0.0 for row in curve["rows"][:-1])  # memory is in pages


def test_small_replays_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    parts = ["--part", "replays,replayed-rounds", "--rounds", "1000"]
    assert scale.main([*parts, *SMALL, "--json"]) == 0
    curves = json.loads(capsys.readouterr().out)
    assert curves["replays"]["sizes"] == [100]
    assert curves["replayed-rounds"]["sizes"] == [100, 1000]
    rows = {row["text"]: row["values"] for row in curves["replayed-rounds"]["rows"]}
    assert rows["store, MiB"][1] > rows["store, MiB"][0] > 0.0
    assert min(rows["a round, ms of a core"]) > 0.0


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(300)  # seven runs, one after the other
def test_small_live_fleets_are_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("AT_REST_S", 0.5), ("COHORT_ROUNDS", 100), ("MESSAGE_ROUNDS", (1, 3))):
        monkeypatch.setattr(live, name, value)
    parts = ["--part", "agents,models,rounds", "--agents", "2", "--sizes", "0.1"]
    assert scale.main([*parts, "--rounds", "100", "--json"]) == 0
    curves = json.loads(capsys.readouterr().out)
    assert {part: curve["sizes"] for part, curve in curves.items()} == {
        "agents": [2],
        "models": [0.1],
        "rounds": [10, 25, 50, 75, 95],
    }
    models = {row["text"]: row["values"] for row in curves["models"]["rows"]}
    assert models["bytes down of an exchange, MB"] == pytest.approx([0.1], rel=0.05)
    assert models["bytes up of an exchange, MB"] == pytest.approx([0.1], rel=0.05)
    assert 4.0 < models["messages to the broker per exchange"][0] < 30.0
    assert 4.0 < models["messages from the broker per exchange"][0] < 30.0
    agents = {row["text"]: row["values"] for row in curves["agents"]["rows"]}
    assert agents["exchanges done, of 5 x 100"] == [200]
    rounds = {row["text"]: row["values"] for row in curves["rounds"]["rows"]}
    assert min(rounds["a round: coordinator, ms of a core"]) > 0.0


def test_the_exponent_is_that_of_a_power_law() -> None:
    assert exponent([1e4, 1e5, 1e6], [1e-6 * n**1.5 for n in (1e4, 1e5, 1e6)]) == pytest.approx(1.5)


def test_a_table_has_a_column_for_each_size() -> None:
    rows = [
        Row(text="time, ms", values=[0.12345, 1234.5]),
        Row(text="done", values=[5.0, 5.0], has_exponent=False),
    ]
    assert Curve(title="agents", sizes=[10, 100], rows=rows).table().splitlines() == [
        "| agents | 10 | 100 | e |",
        "|---|---:|---:|---:|",
        "| time, ms | 0.123 | 1,234 | 4.00 |",
        "| done | 5 | 5 |  |",
    ]


def test_only_the_tables_of_one_part_are_replaced(tmp_path: Path) -> None:
    page = tmp_path / "scale.md"
    places = "".join(
        f"<!-- bench scale --part {part} -->\nold {part}\n<!-- end of {part} -->\n"
        for part in ("tables", "agents")
    )
    page.write_text(f"before\n{places}after\n", encoding="utf-8")
    costs = [cost(1000, 0.001), cost(10_000, 0.02)]
    scale.write(page, "tables", tables.curve_of(costs).table())
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old tables" not in text
    assert "old agents" in text
    assert "| decision of a round (RBCS-F, ridge) | 1 | 20 | 1.30 |" in text


def test_the_page_has_a_place_for_each_part() -> None:
    places = re.findall(r"<!-- bench scale --part (\S+) -->", PAGE.read_text(encoding="utf-8"))
    assert sorted(places) == sorted(scale.PARTS)


def test_a_page_without_a_place_for_the_table_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "scale.md"
    page.write_text("nothing\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="must have one line"):
        scale.write(page, "tables", "")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--devices", "100"], "--devices: must be at least"),
        (["--part", "prices"], "--part: must be some of tables, .*, got 'prices'"),
    ],
)
def test_bad_options_are_refused(
    options: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        scale.main(options)
    assert re.search(problem, capsys.readouterr().err)


def test_the_plan_grows_with_the_fleet_and_has_a_price_only_if_one_is_given() -> None:
    setting = tables.Setting(round_s=100.0, share=0.01, core_price=0.0, gb_price=0.0)
    lines = tables.plan(cost(1_000_000, 1.0), setting).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[0] for row in cells] == ["10,000", "100,000", "1,000,000"]
    assert [row[1] for row in cells] == ["3", "3", "20"]
    assert [row[4] for row in cells] == ["0.0001", "0.001", "0.01"]
    assert [row[5] for row in cells] == ["8.0", "80.0", "800.0"]
    paid = tables.plan(cost(1_000_000, 1.0), replace(setting, core_price=0.1))
    assert "price per hour" in paid
