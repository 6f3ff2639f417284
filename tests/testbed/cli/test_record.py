"""`fairbed record` from the command line."""

import json
import re
from pathlib import Path

import pytest

from fairbed import profiles
from fairbed.testbed.cli.main import main
from fairbed.testbed.emulation.power import PhasePower, phase_power
from fairbed.testbed.experiment.file import Experiment, FleetConfig
from fairbed.testbed.host.speed import REFERENCE_STEP_S, HostSpeed
from fairbed.testbed.recording.run_store import read_training
from fairbed.testbed.run.preflight import settings_findings
from tests.testbed.recording.rows import World, make_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the folder of a run of one device."""
    return make_run(tmp_path / "runs", World())


def _record(*arguments: str | Path) -> int:
    return main(["record", *map(str, arguments)])


def test_a_device_of_a_run_becomes_a_profile(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert _record("pi-1", "--run", run, "--like", "raspberry-pi-4b", "--out", out) == 0
    printed = capsys.readouterr().out
    assert "core_speed" in printed
    assert f'profile = "{out / "pi-1.toml"}"' in printed
    profile = profiles.load(out / "pi-1.toml")
    assert profile.core_speed == pytest.approx(0.4)
    assert profile.link.down_bps == pytest.approx(16e6)
    assert profile.title == "Raspberry Pi 4 Model B Rev 1.4, recorded"
    assert profile.cold_start is not None
    assert profile.storage_read.source.startswith("raspberry-pi-4b: ")
    assert "device pi-1 of run by-hand" in profile.one_core.source
    assert [path.name for path in out.iterdir()] == ["pi-1.toml"]


def test_a_run_alone_gives_a_profile_that_names_what_is_unknown(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _record("pi-1", "--run", "latest", "--runs", run.parent, "--out", tmp_path) == 0
    printed = capsys.readouterr().out
    assert re.search(r"storage_read_bytes_per_s +unknown +a run contains no storage rate", printed)
    assert re.search(r"storage_read_bytes_per_s +8.5e\+07 +unknown; the emulation takes", printed)
    path = tmp_path / "pi-1.toml"
    assert "storage_read_bytes_per_s =" not in path.read_text()
    assert profiles.load(path).storage_read_bytes_per_s == 85e6
    assert main(["profiles", "show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"storage_read_bytes_per_s +8.5e\+07 +unknown ", shown)
    experiment = Experiment(name="twin", fleet=(FleetConfig(profile=str(path), count=4),))
    events = [f.text for f in settings_findings(experiment, trains=False)]
    assert len(events) == 1
    assert "unknown numbers have default values: storage_read_bytes_per_s = 8.5e+07;" in events[0]


def test_every_recording_of_physical_devices_takes_the_speed_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = HostSpeed(
        cpu="any",
        cores=4,
        engine="any",
        step_s=REFERENCE_STEP_S / 5.0,
        spread_ratio=0.01,
        measured_at=0.0,
    )
    monkeypatch.setattr("fairbed.testbed.recording.run_store.host_speed", lambda _: measured)
    # The step costs are stored already, as by an earlier recording.
    physical = make_run(tmp_path / "physical", World(), is_emulated=False)
    assert read_training(physical).core_speed == 5.0
    assert read_training(make_run(tmp_path / "emulated", World())).core_speed == 2.0


def test_numbers_that_vary_are_written_to_a_trace_file(tmp_path: Path) -> None:
    run = make_run(tmp_path, World(down_bps=[16e6, 4e6]))
    arguments = ("pi-1", "--run", run, "--like", "raspberry-pi-4b", "--out", tmp_path)
    assert _record(*arguments, "--as", "on-the-train") == 0
    profile = profiles.load(tmp_path / "on-the-train.toml")
    assert profile.link.down.trace == str(tmp_path / "on-the-train.csv")
    assert profiles.check(tmp_path / "on-the-train.toml", {}) == []


def test_the_measured_power_of_a_run_replaces_that_of_a_profile(tmp_path: Path) -> None:
    run = make_run(tmp_path, World(compute_w=3.5, transfer_w=2.1))
    arguments = ("pi-1", "--run", run, "--like", "raspberry-pi-4b", "--out", tmp_path)
    assert _record(*arguments) == 0
    recorded = profiles.load(tmp_path / "pi-1.toml")
    assert phase_power(recorded) == PhasePower(transfer_w=2.1, compute_w=3.5)
    assert recorded.energy is not None
    assert recorded.energy.idle_w is None  # of another board


def test_json_is_one_object(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("pi-1", "--run", run, "--like", "raspberry-pi-4b", "--out", tmp_path, "--json")
    assert _record(*arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["profile"] == str(tmp_path / "pi-1.toml")
    assert printed["numbers"]["core_speed"]["value"] == pytest.approx(0.4)
    assert printed["numbers"]["core_speed"]["moves"] is False


def test_a_profile_is_replaced_only_with_force(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("pi-1", "--run", run, "--like", "raspberry-pi-4b", "--out", tmp_path)
    assert _record(*arguments) == 0
    assert _record(*arguments) == 2
    assert "exists already" in capsys.readouterr().err
    assert _record(*arguments, "--force") == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["pi-2"], 2, "similar names: pi-1; there are pi-1"),
        (
            ["pi-1", "--like", "raspberrypi4"],
            2,
            "--like raspberrypi4: no such profile; similar names:",
        ),
        (["pi-1", "--as", "Pi 1"], 2, "must be 1 to 32 of a-z"),
        ([], 2, "must have a name for the profile"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str],
    code: int,
    words: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _record(*arguments, "--run", run, "--out", tmp_path / "out") == code
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 1
    assert re.search(words, errors[0])


def test_an_unknown_run_lists_those_that_exist(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _record("pi-1", "--run", "nope", "--runs", run.parent) == 2
    assert "there are: by-hand" in capsys.readouterr().err


def test_a_run_that_is_too_short_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, World(rounds=1))
    assert _record("pi-1", "--run", run, "--out", tmp_path) == 1
    assert "needs 3 rounds of training" in capsys.readouterr().err


def test_bad_times_and_addresses_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (("--for", "soon"), ("--load", "1"), ("--probe", "nowhere")):
        assert _record("box", *arguments, "--out", tmp_path) == 2
        assert capsys.readouterr().err.startswith("fairbed: record: ")
    assert _record("--serve", "http") == 2


@pytest.mark.full
@pytest.mark.slow
def test_this_machine_becomes_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--for", "2s", "--load", "2s", "--like", "raspberry-pi-4b", "--out", tmp_path)
    assert _record("box", *arguments, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    profile = profiles.load(tmp_path / "box.toml")
    assert profile.cores == printed["numbers"]["cores"]["value"]
    assert profile.one_core.tag == "measured"
    assert "fairbed record" in profile.licence
    assert "training" in printed["numbers"]["core_speed"]["how"]
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"box.toml", "box.csv"}
