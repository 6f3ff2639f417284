"""`fairbed twin`: a device of a run beside the twin of its recorded profile."""

import json
import re
from pathlib import Path

import pytest
from msgspec import structs

from fairbed import profiles
from fairbed.coordinator.state.memory import TaskMemory
from fairbed.profiles.series import Series
from fairbed.testbed.cli.main import main
from fairbed.testbed.recording.analysis.findings import Finding
from fairbed.testbed.recording.analysis.twin import number_of, with_number
from tests.testbed.recording.rows import COSTS, EXPERIMENT, World, make_run
from tests.testbed.small_run import running


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the folder of a run of one device, whose profile is recorded beside it."""
    return _recorded(tmp_path, World())


def _recorded(folder: Path, world: World) -> Path:
    run = make_run(folder / "runs", world)
    assert main(["record", "pi-1", "--run", str(run), "--out", str(folder)]) == 0
    return run


def _phases(
    run: Path, folder: Path, capsys: pytest.CaptureFixture[str], exchanges: int = 20
) -> dict[str, dict]:  # type: ignore[type-arg]
    capsys.readouterr()
    assert main(["twin", str(run), "pi-1", "--profiles", str(folder), "--json"]) == 0
    [twin] = json.loads(capsys.readouterr().out)
    assert twin["exchanges"] == exchanges
    return {row["phase"]: row for row in twin["phases"]}


def test_the_twin_of_a_recorded_profile_takes_as_long_as_the_device(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = _phases(run, tmp_path, capsys)
    assert set(rows) == {"signal_s", "download_s", "load_s", "train_s", "upload_s"}
    for row in rows.values():
        assert row["twin_s"] == pytest.approx(row["device_s"], rel=0.02)
        assert not row["is_off"]
        assert row["key"] is None
    assert rows["load_s"]["exchanges"] == 4, "only cold exchanges load"


def test_a_device_that_chose_its_micro_batches_is_charged_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The device has 3 GiB for an agent: five examples."""
    memory = TaskMemory(fixed_bytes=2.0**30, example_bytes=0.39 * 2.0**30)
    text = EXPERIMENT.replace("epochs = 2", 'epochs = 2\nmicro_batch = "auto"')
    costs = structs.replace(COSTS, memory=memory)
    run = make_run(tmp_path / "runs", World(part_size=5), text, costs=costs)
    assert main(["record", "pi-1", "--run", str(run), "--out", str(tmp_path)]) == 0
    assert profiles.load(tmp_path / "pi-1.toml").core_speed == pytest.approx(0.4)
    rows = _phases(run, tmp_path, capsys)
    assert not any(row["is_off"] for row in rows.values())
    assert rows["train_s"]["twin_s"] == pytest.approx(rows["train_s"]["device_s"], rel=0.02)


@pytest.mark.parametrize(
    ("key", "factor", "phase"),
    [
        ("core_speed", 2.0, "train_s"),
        ("core_speed", 0.7, "train_s"),
        ("link.down_bps", 0.5, "download_s"),
        ("link.up_bps", 3.0, "upload_s"),
        ("cold_start_s", 2.0, "load_s"),
        ("background_load", 36.0, "train_s"),
    ],
)
def test_the_number_that_is_off_is_named_with_the_value_that_fits(
    key: str,
    factor: float,
    phase: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "pi-1.toml"
    recorded = profiles.load(path)
    right = number_of(recorded, key)
    assert right is not None
    wrong = with_number(recorded, key, Finding(factor * right, "a guess"))
    path.write_text(profiles.to_toml(wrong), encoding="utf-8")
    rows = _phases(run, tmp_path, capsys)
    assert [name for name, row in rows.items() if row["is_off"]] == [phase]
    row = rows[phase]
    assert row["key"] == key
    assert row["value"] == pytest.approx(factor * right, rel=1e-5)
    assert row["fits"] == pytest.approx(right, rel=1e-3)
    assert row["twin_then_s"] == pytest.approx(row["device_s"], rel=0.02)
    assert main(["twin", str(run), "pi-1", "--profiles", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"off: {phase[:-2]}: {key} is \S+, and \S+ fits, [+-]\d+%", printed)


def test_the_delay_is_named_where_it_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _recorded(tmp_path, World(delay_s=0.2))
    path = tmp_path / "pi-1.toml"
    wrong = with_number(profiles.load(path), "link.delay_s", Finding(0.02, "a guess"))
    path.write_text(profiles.to_toml(wrong), encoding="utf-8")
    rows = _phases(run, tmp_path, capsys)
    off = {name: row["key"] for name, row in rows.items() if row["is_off"]}
    assert off == dict.fromkeys(("signal_s", "download_s", "upload_s"), "link.delay_s")
    assert rows["signal_s"]["fits"] == pytest.approx(0.2, rel=1e-3)
    assert main(["twin", str(run), "pi-1", "--profiles", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "off:" in line]
    assert len(lines) == 1
    assert lines[0].startswith("  off: signal, download, upload: link.delay_s is 0.02, and 0.2 fi")


def test_a_link_that_varies_is_replayed_at_the_instants_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _recorded(tmp_path, World(down_bps=[16e6, 4e6]))
    assert profiles.load(tmp_path / "pi-1.toml").link.down.trace is not None
    rows = _phases(run, tmp_path, capsys)
    assert rows["download_s"]["twin_s"] == pytest.approx(rows["download_s"]["device_s"], rel=0.05)
    path = tmp_path / "pi-1.toml"
    wrong = with_number(profiles.load(path), "link.down_bps", Finding(40e6, "a guess"))
    path.write_text(profiles.to_toml(wrong), encoding="utf-8")
    row = _phases(run, tmp_path, capsys)["download_s"]
    assert row["key"] == "link.down_bps"
    assert row["twin_then_s"] == pytest.approx(row["device_s"], rel=0.05)


def test_a_number_that_the_run_does_not_measure_is_found_with_the_twin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _recorded(tmp_path, World(rounds=5))
    path = tmp_path / "pi-1.toml"
    wrong = with_number(profiles.load(path), "cold_start_s", Finding(4.5, "a guess"))
    path.write_text(profiles.to_toml(wrong), encoding="utf-8")
    row = _phases(run, tmp_path, capsys, exchanges=5)["load_s"]
    assert row["is_off"]
    assert row["key"] == "cold_start_s"
    assert row["fits"] == pytest.approx(1.51, rel=1e-3)
    assert row["reason"].startswith("found with the twin, as needs 2 cold rounds")


def test_a_phase_that_the_measured_numbers_do_not_explain_gets_a_value_that_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Contexts of a machine that is busy: 0.4 free cores, but the training got a whole one.
    run = _recorded(tmp_path, World(free_cores=0.4))
    row = _phases(run, tmp_path, capsys)["train_s"]
    assert row["twin_s"] == pytest.approx(2.5 * row["device_s"], rel=1e-3)
    assert row["key"] == "core_speed"
    assert row["value"] == pytest.approx(0.4)
    assert row["fits"] == pytest.approx(1.0, rel=1e-3)
    assert "does not explain it" in row["reason"]


def test_a_mean_that_rounding_puts_outside_its_series_is_a_valid_number() -> None:
    load = Series((0.0, 1.0), (1.5, 1.5), 2.0)
    pi = profiles.load("raspberry-pi-4b")
    found = Finding(1.5000000000000002, "samples", load)
    assert with_number(pi, "background_load", found).background_load == 1.5


def test_a_measured_number_that_the_profile_cannot_have_is_not_the_one(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pi-1.toml"
    wrong = profiles.load(path)
    for key, value in (("cores", 8.0), ("engine_threads", 6.0)):  # the device has 4 and 1
        wrong = with_number(wrong, key, Finding(value, "a guess"))
    path.write_text(profiles.to_toml(wrong), encoding="utf-8")
    row = _phases(run, tmp_path, capsys)["train_s"]
    assert (row["key"], row["value"], row["fits"]) == ("engine_threads", 6.0, 1.0)


def test_a_mistake_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    for arguments, code, words in (
        ((run,), 2, "must have a physical device, got none; name an emulated one"),
        ((run, "pi-1", "--profiles", empty), 2, "pi-1.toml: no such profile; record it: fairbed"),
        ((run, "pi-2", "--profiles", empty), 2, "pi-2.toml: no such profile"),
        (("nope", "--runs", run.parent), 2, "there are: by-hand"),
    ):
        assert main(["twin", *map(str, arguments)]) == code
        errors = capsys.readouterr().err.strip().splitlines()
        assert len(errors) == 1
        assert words in errors[0]


def test_too_few_exchanges_are_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = make_run(tmp_path / "short", World(rounds=2))
    assert main(["twin", str(short), "pi-1", "--profiles", str(tmp_path)]) == 1
    assert "needs 3 valid exchanges" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_agents_on_this_machine_are_physical_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = '[[fleet]]\nname = "pi"\ncount = 2\n'
    with running(tmp_path, rounds=12, epochs=30, fleet=fleet) as run:
        code, _, errors = run.finish()
        assert code == 0, errors
    names = ["pi-1", "pi-2"]
    for name in names:
        assert main(["record", name, "--run", str(run.folder), "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    arguments = ["twin", str(run.folder), "--profiles", str(tmp_path), "--json"]
    assert main(arguments) == 0
    twins = json.loads(capsys.readouterr().out)
    assert [twin["device"] for twin in twins] == names
    for twin in twins:
        assert twin["exchanges"] >= 3
        phases = {row["phase"] for row in twin["phases"]}
        assert {"download_s", "train_s", "upload_s"} <= phases
    path = tmp_path / "pi-1.toml"
    right = profiles.load(path)
    # Other programs may slow these agents down, but not twenty times.
    wrong = with_number(right, "core_speed", Finding(right.core_speed / 20.0, "a guess"))
    path.write_text(profiles.to_toml(wrong), encoding="utf-8")
    assert main(arguments) == 0
    rows = json.loads(capsys.readouterr().out)[0]["phases"]
    train = next(row for row in rows if row["phase"] == "train_s")
    assert train["is_off"]
    assert train["key"] == "core_speed"
    assert train["fits"] == pytest.approx(right.core_speed, rel=1e-3)
