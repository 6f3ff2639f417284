"""A group with several links: each device draws one, live as in a replay."""

from pathlib import Path

import pytest
from msgspec import structs

from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_table import summary_table
from fairbed.coordinator.store import RunReader
from fairbed.profiles import load_link
from fairbed.testbed.cli.main import main
from fairbed.testbed.compare.needed_files import reads_files
from fairbed.testbed.experiment.file import (
    Experiment,
    ExperimentError,
    FleetConfig,
    make_experiment,
)
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.replay.vector_fleet import vector_fleet_of

DRIVES = "trace,t_s,mbps\n" + "".join(f"{k},0,{k}\n{k},1,{k}\n" for k in range(1, 6))


@pytest.fixture
def drives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Return the line of an experiment file that the import of five drives advises."""
    monkeypatch.chdir(tmp_path)
    Path("d.csv").write_text(DRIVES)
    command = ["profiles", "import", "d.csv", "--name", "city", "--split", "trace", "--to", "out"]
    assert main(command) == 0
    return next(
        line.removeprefix("use them as: ").partition(";")[0]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("use them as: ")
    )


def experiment(
    link: object, *before: dict[str, object], count: int = 40, seed: int = 1
) -> Experiment:
    group = {"profile": "raspberry-pi-4b", "name": "bus", "count": count, "link": link}
    document = {"name": "x", "seed": seed, "fleet": [*before, group], "selection": {"per_round": 1}}
    return make_experiment(document, "x.toml")


def rates(of: Experiment) -> dict[str, float | None]:
    return {d.spec.name: d.truth_row().down_bps for d in plan_fleet(of, {})}


@pytest.mark.usefixtures("drives")
def test_each_device_draws_by_its_name_and_the_seed() -> None:
    found = rates(experiment("out/city-*.toml"))
    assert set(found.values()) == {1e6, 2e6, 3e6, 4e6, 5e6}
    assert found == rates(experiment([f"out/city-{k}.toml" for k in range(1, 6)]))
    assert found != rates(experiment("out/city-*.toml", seed=2))
    other = {"profile": "phone-mid", "name": "other", "count": 3}
    beside = rates(experiment("out/city-*.toml", other, count=50))
    assert {name: beside[name] for name in found} == found


@pytest.mark.usefixtures("drives")
def test_a_stored_experiment_names_the_links() -> None:
    stored = experiment("out/city-*.toml")
    assert stored.fleet[0].link == tuple(f"out/city-{k}.toml" for k in range(1, 6))
    assert reads_files(stored)
    Path("out/city-9.toml").write_text(Path("out/city-1.toml").read_text())
    assert rates(stored) != rates(experiment("out/city-*.toml"))


def test_a_vector_fleet_has_the_draws_of_planned_devices() -> None:
    group = FleetConfig(
        population="phones-2025", name="p", count=60, link=("wifi-phone", "lte-steady")
    )
    few = Experiment(name="x", fleet=(group,))
    planned = [device.truth_row() for device in plan_fleet(few, {})]
    fleet = vector_fleet_of(few)
    assert fleet.means.down_bps.tolist() == [row.down_bps for row in planned]
    for row, expected in enumerate(planned):
        _, truth = fleet.device_records(row, fleet.means.cores.astype("int64"))
        assert truth.drawn_link == expected.drawn_link in group.links  # type: ignore[union-attr]  # a truth
    one = vector_fleet_of(structs.replace(few, fleet=(structs.replace(group, link="wifi-phone"),)))
    assert set(one.means.down_bps) == {load_link("wifi-phone").link.down_bps}


def test_a_replay_states_the_link_of_each_device(
    drives: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("e.toml").write_text(
        'name = "e"\nrounds = 1\n[data]\ndataset = "digits"\n[selection]\nper_round = 2\n'
        f'[[fleet]]\nprofile = "raspberry-pi-4b"\ncount = 3\n{drives}\n'
    )
    assert main(["replay", "e.toml", "--out", "run", "--json"]) == 0
    capsys.readouterr()
    with RunReader(Path("run")) as reader:
        summary = summarise_run(reader)
        drawn = {row.name: row.drawn_link for row in reader.truths()}
    assert {device.name: device.link for device in summary.fleet} == drawn
    assert all(str(name).startswith("out/city-") for name in drawn.values())
    assert all(str(name) in summary_table(summary) for name in drawn.values())


@pytest.mark.parametrize(
    ("link", "words"),
    [
        (
            "trace-x*",
            "x.toml: fleet[0].link: must match a link, got 'trace-x*', which matches none",
        ),
        ("no-*.toml", "got 'no-*.toml', which matches no file; check the path"),
        (["lte-steady", "lte-steady"], "links must differ, got 'lte-steady' twice; remove one"),
        (["lte-steady", "lte-st*"], "links must differ, got 'lte-steady' twice; remove one"),
        ([], "link"),
    ],
)
def test_links_that_cannot_be_drawn_are_refused(link: object, words: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        experiment(link)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_links_of_an_earlier_import_are_named(
    drives: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("d.csv").write_text("\n".join(DRIVES.splitlines()[:7]) + "\n")
    command = ["profiles", "import", "d.csv", "--name", "city", "--split", "trace", "--to", "out"]
    assert main([*command, "--force"]) == 0
    assert "matches 2 files of earlier imports, too: city-4.toml" in capsys.readouterr().out
