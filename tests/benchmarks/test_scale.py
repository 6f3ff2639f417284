"""The cost of a large fleet, measured on a small one and written to a page."""

from pathlib import Path

import msgspec
import pytest

from benchmarks import scale
from benchmarks.scale import Cost


def cost(devices: int, seconds: float) -> Cost:
    times = dict.fromkeys(scale.TIMES, seconds)
    return Cost(devices=devices, in_flight=10, bytes_per_device=700.0, **times)


def test_a_small_fleet_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--devices", "400", "--in-flight", "20", "--per-round", "10", "--rounds", "1"]
    assert scale.main([*arguments, "--json"]) == 0
    costs = msgspec.json.decode(capsys.readouterr().out, type=list[Cost])
    assert [one.devices for one in costs] == [30, 40, 400]
    assert all(one.select_s > 0.0 for one in costs)


def test_the_exponent_is_that_of_a_power_law() -> None:
    costs = [cost(10**k, 1e-6 * 10 ** (1.5 * k)) for k in (4, 5, 6)]
    assert scale.exponent(costs, "select_s") == pytest.approx(1.5)


def test_only_the_table_of_a_page_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "scale.md"
    page.write_text(f"before\n{scale.MARKS[0]}\nold\n{scale.MARKS[1]}\nafter\n", encoding="utf-8")
    scale.write(page, scale.table([cost(1000, 0.001), cost(10_000, 0.02)]))
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| decision of a round (RBCS-F, ridge) | 1 | 20 | 1.30 |" in text


def test_a_page_without_a_place_for_the_table_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "scale.md"
    page.write_text("nothing\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="must have one line"):
        scale.write(page, "")


def test_more_devices_at_work_than_devices_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scale.main(["--devices", "100"])
    assert "--devices: must be at least" in capsys.readouterr().err


def test_the_plan_grows_with_the_fleet_and_has_a_price_only_if_one_is_given() -> None:
    setting = scale.Setting(round_s=100.0, share=0.01, core_price=0.0, gb_price=0.0)
    lines = scale.plan(cost(1_000_000, 1.0), setting).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[0] for row in cells] == ["10,000", "100,000", "1,000,000"]
    assert [row[1] for row in cells] == ["3", "3", "20"]
    assert [row[4] for row in cells] == ["0.0001", "0.001", "0.01"]
    assert [row[5] for row in cells] == ["8.0", "80.0", "800.0"]
    paid = scale.plan(cost(1_000_000, 1.0), msgspec.structs.replace(setting, core_price=0.1))
    assert "price per hour" in paid
