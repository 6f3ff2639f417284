"""`fairbed profiles`: output about the library, and import of traces."""

import json
import os
from pathlib import Path

import pytest

from fairbed import profiles
from fairbed.testbed.cli.main import main

real_data = pytest.mark.skipif(
    not (Path(os.environ.get("FAIRBED_DATA", "nowhere")) / "traces").is_dir(),
    reason="needs the published traces: FAIRBED_DATA is not set",
)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Run a command that must succeed; return its lines."""
    assert main(["profiles", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail; return its one line on stderr."""
    assert main(["profiles", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("fairbed: ")
    return line


def test_list_shows_every_device_link_and_population(capsys: pytest.CaptureFixture[str]) -> None:
    first = {line.split()[0] for line in printed(capsys, "list") if line}
    assert {*profiles.names(), *profiles.link_names(), *profiles.population_names()} <= first
    assert set(profiles.cell_names()) <= first


def test_list_sorts_by_a_column_largest_first(capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = printed(capsys, "list", "--json", "--sort", "speed")
    rows = json.loads(text)
    speeds = [row["speed"] for row in rows["devices"]]
    assert speeds == sorted(speeds, reverse=True)
    assert {"links", "populations"} <= set(rows)


def test_list_takes_names(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "list", "n100", "lte-driving")
    assert [line.split()[0] for line in lines if line] == [
        "device",
        "n100",
        "link",
        "lte-driving",
        "speed:",
    ]


def test_show_gives_every_number_its_tag_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("raspberry-pi-3b", "starlink-driving", "phones-2025"):
        lines = printed(capsys, "show", name)
        item = profiles.find(name).read_text(encoding="utf-8")
        assert sum(line.split()[-1] != "" for line in lines) >= item.count("source =") + 1
    lines = printed(capsys, "show", "starlink-driving")
    assert any("drawn every 25 s from 0 to 0.11, correlation 0" in line for line in lines)
    (text,) = printed(capsys, "show", "--json", "n100")
    assert json.loads(text)[0]["core_speed"]["value"] == 1.0


def test_an_unknown_name_lists_similar_names(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "show", "rasberry-pi-5")
    assert "rasberry-pi-5: no such profile; similar names: raspberry-pi-5" in line


def test_check_reports_every_problem_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    text = profiles.find("n100").read_text(encoding="utf-8")
    path.write_text(text.replace("cores = { value = 4", "cores = { value = 0") + "x = 1\n")
    assert main(["profiles", "check", str(path), "n100"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"{path}: ") for line in lines)


def test_check_follows_traces_beside_a_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("t_s,mbps\n0,1\n1,2\n")
    printed(
        capsys, "import", str(tmp_path / "a.csv"), "--name", "mine", "--to", str(tmp_path / "o")
    )
    assert printed(capsys, "check", str(tmp_path / "o" / "mine.toml")) == ["1 checked, no problems"]
    (tmp_path / "o" / "mine.csv").write_text("t_s,mbps\n0,1\n1,-2\n")
    assert main(["profiles", "check", str(tmp_path / "o" / "mine.toml")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2  # down and up follow the same trace
    assert "mine.csv: row 3: mbps must be from 0 to 1e+12, got -2; correct" in lines[0]


def test_without_names_the_whole_library_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = printed(capsys, "check")
    assert line.endswith("checked, no problems")


def test_import_of_a_csv_makes_a_link_that_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "Walk Home.csv"
    path.write_text("t_s, down_mbps, up_mbps\n0, 10, 1\n5, 20, 2\n")
    lines = printed(capsys, "import", str(path), "--to", str(tmp_path), "--delay", "20ms")
    assert lines[0].startswith("walk-home.csv: down_bps: 2 rows, 10 s, mean 1.5e+07, p5 1e+07")
    link = profiles.load_link(tmp_path / "walk-home.toml").link
    assert (link.down_bps, link.up_bps, link.delay_s) == (15e6, 1.5e6, 0.02)
    drawn = printed(capsys, "plot", str(tmp_path / "walk-home.toml"), "--size", "60x10")
    assert drawn[-2].split()[:3] == ["link.down_bps", "10", "1.5e+07"]
    assert any("Mbit/s" in line for line in drawn)


LOG = "Timestamp,DL_bitrate,UL_bitrate\n" + "".join(
    f"{second if second < 60 else second + 36_000},{1000 + second},200\n" for second in range(120)
)
"""A phone that logged for a minute in the morning, and for one in the evening."""

LOG_COLUMNS = "t=Timestamp:s,down=DL_bitrate:kbit,up=UL_bitrate:kbit"


@pytest.mark.parametrize(
    ("arguments", "mean_bps", "period_s", "done"),
    [
        ((), 1.0595e6, 120.0, "cut"),
        (("--gaps", "hold"), 1.059e6, 36_120.0, "held the last values"),
        (("--gaps", "zero"), 1.0595e6 * 120.0 / 36_120.0, 36_120.0, "set to a rate of 0"),
    ],
)
def test_import_takes_any_columns_and_states_what_it_did_with_gaps(
    arguments: tuple[str, ...],
    mean_bps: float,
    period_s: float,
    done: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Issue 19: a log of 2,963 rows became 40,548 s, 93 % of them invented."""
    (tmp_path / "phone.csv").write_text(LOG)
    command = ("import", str(tmp_path / "phone.csv"), "--to", str(tmp_path / "links"))
    lines = printed(capsys, *command, "--columns", LOG_COLUMNS, *arguments)
    assert f"{period_s:g} s, mean" in lines[0]
    rows = "120 rows, 0 without a value left out, 0 with the time of the row before averaged"
    gaps = f"1 gap of more than 10 s, 36000 s in all: {done}"
    assert lines[2:4] == [f"phone.csv: {rows}", f"phone.csv: {gaps}"]
    link = profiles.load_link(tmp_path / "links" / "phone.toml").link
    assert link.down_bps == pytest.approx(mean_bps, rel=1e-3)
    assert gaps in link.down.source
    if not arguments:
        assert main(["profiles", "check", str(tmp_path / "links" / "phone.toml")]) == 0


def test_import_takes_the_longest_time_without_a_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("t_s,mbps\n0,1\n1,2\n4,3\n5,3\n")
    command = ("import", str(tmp_path / "a.csv"), "--to", str(tmp_path))
    lines = printed(capsys, *command, "--gap", "2s", "--name", "one")
    assert lines[-2] == "a.csv: 1 gap of more than 2 s, 2 s in all: cut"
    lines = printed(capsys, *command, "--name", "two")
    assert not any("gap" in line for line in lines)


def test_import_bins_mahimahi_and_converts_it_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for way in ("down", "up"):
        (tmp_path / f"bus.{way}").write_text("".join(f"{ms}\n" for ms in range(0, 2001, 2)))
    lines = printed(
        capsys,
        "import",
        str(tmp_path / "bus.down"),
        str(tmp_path / "bus.up"),
        "--step",
        "100ms",
        "--to",
        str(tmp_path),
    )
    assert lines[0].startswith("bus.down.csv: bps: 20 rows, 2 s, mean 5.798e+06")  # 1001 x 1448 B
    assert main(["profiles", "check", str(tmp_path / "bus.toml")]) == 0


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        (
            "t_s,down_mbps\n0,1\n",
            (),
            "must have a column for up_bps, got down_bps; give the uplink",
        ),
        ("t_s,mbps\n0,-1\n", (), "a.csv: row 2: mbps must be from 0 to 1e+12, got -1; correct"),
        ("0\n5\n3\n", (), "a.csv: row 3: must be whole milliseconds that do not decrease"),
        ("", (), "a.csv: a trace must have rows, got an empty file"),
        ("t_s,mbps\n0,1\n", ("--name", "My Link"), "--name: must be 1 to 32 of a-z, 0-9 and hyph"),
        ("t_s,mbps\n0,1\n", ("--step", "0s"), "--step: must be more than 0, got 0s"),
        ("t_s,mbps\n0,1\n9,1\n", ("--step", "0.1us"), "must be at most 10000000 steps, got 18 s"),
        ("t_s,mbps\n0,1\n", ("--delay", "20"), "--delay: must be a duration such as 20ms"),
        ("t_s,mbps\n0,1\n", ("--delay", "2h"), "link.delay_s.value: must be float <= 60.0"),
        ("t_s,mbps\n0,1\n", ("--up-rate", "fast"), "--up-rate: must be a rate such as 10mbit"),
        ("t_s,mbps\n0,1\n", ("--columns", "t_s,mbps"), "--columns: must be NUMBER=COLUMN:UNIT"),
        ("time,dl\n0,1\n", (), "or import it with --columns t=NAME:s,down=NAME:kbit"),
        ("t_s,mbps\n0,1\n", ("--gap", "0s"), "a.csv: gaps must be longer than 0 s, got 0 s"),
        (
            "0\n5\n9\n",
            ("--columns", "t=a,rate=b:bit"),
            "--columns is for a table, got a trace of mahimahi; remove it",
        ),
        ("t_s,mbps\n0,1\n", ("--gap", "long"), "--gap: must be a duration such as 20ms"),
        ("t_s,mbps\n0,1\n", ("--queue", "0ms"), "--queue: must be a time up to 60s such as 300ms"),
    ],
)
def test_a_bad_import_is_one_line(
    content: str,
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content)
    out = tmp_path / "out"
    assert words in refused(capsys, "import", str(path), "--to", str(out), *arguments)
    assert not out.exists()


def test_import_replaces_files_only_with_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("t_s,mbps\n0,1\n")
    line = refused(capsys, "import", str(path), "--to", str(tmp_path))
    assert f"{path}: exists already; choose another --name or --to, or use --force" in line
    assert path.read_text() == "t_s,mbps\n0,1\n"


def test_import_log_writes_exchange_times_and_states_what_the_log_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "Boards.csv").write_text("pi,rnd,took_ms\na,1,1000\nb,1,3000\na,2,\nb,2,5000\n")
    command = ("import-log", str(tmp_path / "Boards.csv"), "--to", str(tmp_path / "out"))
    columns = ("--columns", "device=pi,round=rnd,total=took_ms")
    lines = printed(capsys, *command, *columns)
    assert lines[0] == "3 exchanges of 2 devices, 2 rounds; 1 rows without a value left out"
    assert lines[1].startswith("total: mean 3 s, p5 1.2, p25 2, p50 3, p75 4, p95 4.8; means of")
    assert lines[1].endswith("devices 1 to 4 s")
    assert lines[2].endswith(f"exchange_times = {str(tmp_path / 'out' / 'boards.csv')!r}")
    written = (tmp_path / "out" / "boards.csv").read_text()
    assert "# source = imported from Boards.csv: 3 exchanges of 2 devices" in written
    assert "exists already" in refused(capsys, *command, *columns)
    assert "--columns: must name the device" in refused(capsys, *command, "--columns", "total=x")
    assert "must name the device, got" in refused(capsys, *command)
    assert "--name: must be 1 to 32" in refused(capsys, *command, "--name", "My Pis")


def test_a_queue_of_an_import_is_listed_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    csv, link = tmp_path / "walk.csv", str(tmp_path / "walk.toml")
    csv.write_text("t_s,down_mbps,up_mbps\n0,8,1\n10,4,1\n", encoding="utf-8")
    options = ["--queue", "64k", "--queue-discipline", "fq_codel", "--force"]
    printed(capsys, "import", str(csv), "--to", str(tmp_path), *options)
    (row,) = json.loads(printed(capsys, "list", link, "--json")[0])["links"]
    assert row["queue"] == "fq_codel"
    assert row["queue_s"] == pytest.approx(8 * 65_536 * 1448 / 1514 / 6e6)  # at the mean rate
    shown = [line.split()[:3] for line in printed(capsys, "show", link)]
    assert ["link.queue_bytes", "65536", "literature"] in shown
    assert ["link.queue", "fq_codel", "literature"] in shown


def test_plot_draws_heat_and_names_what_can_be_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "plot", "radxa-rock-5a")
    assert lines[-1].split()[0] == "thermal"
    lines = printed(capsys, "plot", "radxa-rock-5a", "down_bps", "--size", "60x10")
    assert lines[-1].split()[0] == "link.down_bps"
    line = refused(capsys, "plot", "radxa-rock-5a", "altitude")
    assert "has no altitude over time; use one of clock_ratio, background_load, " in line


def test_plot_draws_the_availability_of_a_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "phone.toml"
    path.write_text(
        profiles.find("n100").read_text(encoding="utf-8").split("[energy]")[0] + "[availability]\n"
        'available = { value = 0.25, tag = "literature", source = "made up" }\n'
        'session_s = { value = 600, tag = "literature", source = "made up" }\n',
        encoding="utf-8",
    )
    lines = printed(capsys, "plot", str(path), "available", "--length", "12h")
    assert lines[-1].split()[0] == "availability.available"
    assert float(lines[-1].split()[2]) == pytest.approx(0.25, abs=1e-3)


def test_plot_draws_the_same_for_the_same_seed(capsys: pytest.CaptureFixture[str]) -> None:
    one = printed(capsys, "plot", "lte-driving", "--seed", "3")
    assert one == printed(capsys, "plot", "lte-driving", "--seed", "3")
    assert one != printed(capsys, "plot", "lte-driving", "--seed", "4")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("n100", "--size", "9x9"), "--size: must be from 40x8 to 400x100, got 9x9"),
        (("n100", "--length", "0s"), "--length: must be more than 0"),
        (("n100", "--start", "soon"), "--start: must be a duration such as 20ms"),
        (("phones-2025",), "must be a profile, a link or a trace, got a population"),
        (("nothing.csv",), "nothing.csv: must be a readable file, got: No such file or directory"),
        (("data:mine/none",), "FAIRBED_DATA must name the folder of the data"),
    ],
)
def test_a_bad_plot_is_one_line(
    arguments: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FAIRBED_DATA", raising=False)
    assert words in refused(capsys, "plot", *arguments)


@real_data
def test_plot_draws_a_published_trace(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "plot", "data:mahimahi/ATT-LTE-driving.down", "--length", "60s")
    assert lines[-1].split()[:2] == ["bps", "786.112"]


def test_the_docs_show_the_library_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    docs = Path(profiles.__file__).resolve().parents[1] / "docs" / "profiles.md"
    shown = docs.read_text(encoding="utf-8").split("## The library")[1].split("```\n")[1]
    assert shown.splitlines() == printed(capsys, "list"), "run fairbed profiles list, and paste it"
