"""Files with several drives, one direction, or no link: each is imported as the thing it is."""

from pathlib import Path

import pytest

from fairbed import profiles
from fairbed.testbed.cli.main import main

FILES = Path(__file__).parent / "files"


def imported(capsys: pytest.CaptureFixture[str], out: Path, *arguments: object) -> list[str]:
    texts = [str(argument) for argument in arguments]
    assert main(["profiles", "import", *texts, "--to", str(out), "--name", "x"]) == 0
    return capsys.readouterr().out.splitlines()


def refused(capsys: pytest.CaptureFixture[str], out: Path, *arguments: object) -> str:
    texts = [str(argument) for argument in arguments]
    assert main(["profiles", "import", *texts, "--to", str(out), "--name", "x"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def advised(line: str, option: str) -> list[str]:
    """Return the option of an advice, and the value that it gives."""
    return [option, line.partition(f"{option} ")[2].split()[0].rstrip(",;")]


def test_an_uplink_needs_the_rate_that_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, tmp_path, FILES / "uponly.csv", "--up-rate", "5mbit")
    imported(capsys, tmp_path, FILES / "uponly.csv", *advised(line, "--down-rate"))
    link = profiles.load_link(tmp_path / "x.toml").link
    assert (link.down_bps, link.up_bps) == (20e6, 5.5e6)
    both = ("--down-rate", "1mbit", "--up-rate", "1mbit")
    assert "at most one rate beside a trace" in refused(
        capsys, tmp_path, FILES / "uponly.csv", *both
    )


def test_a_file_of_drives_gives_a_link_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "d.csv"
    path.write_text("t_s,mbps\n0,1\n1,3\n0,5\n1,7\n0,5\n1,7\n0,0\n1,0\n0,9\n")
    line = refused(capsys, tmp_path, path)
    assert "sort the rows" not in line
    lines = imported(capsys, tmp_path, path, *advised(line, "--split"))
    assert [profiles.load_link(tmp_path / f"x-{n}.toml").link.down_bps for n in (1, 2)] == [
        2e6,
        6e6,
    ]
    assert any("1 drives of one row, 1 that repeat another left out" in each for each in lines)
    assert any(each.startswith("x-3: left out: ") for each in lines)
    assert not (tmp_path / "x-3.toml").exists()
    assert main(["profiles", "check", str(tmp_path / "x-2.toml")]) == 0


def test_the_advice_for_a_column_of_names_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "buses.csv"
    path.write_text("trace,t_s,mbps\nbus 1,0,1\nbus 1,1,3\nbus 2,0,5\nbus 2,1,7\n")
    lines = imported(capsys, tmp_path, path, *advised(refused(capsys, tmp_path, path), "--split"))
    assert lines[1].endswith("(bus 2)")
    assert profiles.load_link(tmp_path / "x-2.toml").title == "Link imported from buses.csv (bus 2)"


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("t_s,clock_ratio\n0,1\n1,0.5\n", "clock", 0.75),
        ("t_s,background_load\n0,1\n1,3\n", "busy", 2.0),
        ("t_s,background_load\n0,4\n1,4\n", "busy", 3.99),
        ("t_s,available\n0,1\n1,0\n", "available", 0.5),
    ],
)
def test_a_log_without_a_link_is_a_part_of_a_profile(
    text: str, key: str, value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    lines = imported(capsys, tmp_path, path)
    assert any(line.startswith("for a profile: ") for line in lines)
    assert not (tmp_path / "x.toml").exists()
    imported(capsys, tmp_path, path, "--profile", "raspberry-pi-4b", "--force")
    profile = profiles.load(tmp_path / "x.toml")
    number = profile.availability.share if key == "available" else getattr(profile, key)  # type: ignore[union-attr]  # given
    assert (number.value, number.tag) == (value, "measured")
    assert profile.cores == profiles.load("raspberry-pi-4b").cores
    assert "a trace of a device has no link, so --up-rate must not be given" in refused(
        capsys, tmp_path, path, "--up-rate", "1mbit"
    )


def test_a_log_of_tegrastats_becomes_a_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "jetson.log"
    path.write_text("RAM 1/2MB CPU [90%@1000,0%@1000]\nRAM 1/2MB CPU [90%@500,10%@500]\n")
    lines = imported(capsys, tmp_path, path, "--profile", "jetson-nano", "--interval", "2s")
    assert any("relative to 1000 MHz, the highest in the log" in line for line in lines)
    profile = profiles.load(tmp_path / "x.toml")
    assert profile.clock is not None
    assert (profile.background_load, profile.clock.value) == (0.95, 0.75)


def test_two_tests_of_iperf_make_both_directions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for reverse, rate in ((0, "2e6"), (1, "8e6")):
        (tmp_path / f"{reverse}.json").write_text(
            f'{{"start": {{"test_start": {{"reverse": {reverse}}}}}, "intervals": [{{"sum": '
            f'{{"start": 0, "end": 1, "bits_per_second": {rate}}}}}]}}'
        )
    imported(capsys, tmp_path, tmp_path / "0.json", tmp_path / "1.json")
    link = profiles.load_link(tmp_path / "x.toml").link
    assert (link.down_bps, link.up_bps) == (8e6, 2e6)


IPERF = (
    '{"start": {"test_start": {"reverse": 1}}, "intervals": ['
    + ",".join(
        f'{{"sum": {{"start": {k}, "end": {k + 1}, "bits_per_second": {k}e6}}}}'
        for k in (1, 2, 3, 9)
    )
    + "]}"
)
FORMATS = {
    "mahimahi": "0\n10\n999\n2000\n5000\n",
    "iperf3": IPERF.replace('"start": 9', '"start": 99').replace('"end": 10', '"end": 100'),
    "tegrastats": "RAM 1/2MB CPU [90%@1000]\nRAM 1/2MB CPU [90%@500]\n",
    "dated tegrastats": "".join(
        f"01-02-2024 10:00:0{k} RAM 1/2MB CPU [90%]\n" for k in (0, 1, 2, 3)
    ),
    "both": "t_s,down_bps,up_bps,delay_s\n0,1e6,2e6,1\n1,3e6,1e6,1\n2,4e6,1e6,0\n90,4e6,1e6,0\n",
    "other names": "a,b\n0,1\n1,1\n2,3\n60,5\n",
    "load": "t_s,background_load\n0,1\n1,0.5\n2,1\n60,1\n",
}
OPTIONS = {
    "--step": "2s",
    "--columns": "t=a:s,rate=b:mbit",
    "--gaps": "zero",
    "--gap": "500ms",
    "--split": "time",
    "--up-rate": "7mbit",
    "--down-rate": "7mbit",
    "--profile": "raspberry-pi-4b",
    "--nominal": "2000",
    "--interval": "3s",
    "--delay": "7ms",
    "--queue": "70ms",
    "--queue-discipline": "fq_codel",
    "--title": "Mine",
    "--source": "mine",
    "--licence": "mine",
    "UP": "",
}


def written(
    capsys: pytest.CaptureFixture[str], out: Path, *arguments: object
) -> tuple[int, str, dict[str, str]]:
    """Return the exit code of an import, its last line of errors, and the files."""
    texts = [str(argument) for argument in arguments]
    code = main(["profiles", "import", *texts, "--to", str(out), "--name", "x"])
    files = {path.name: path.read_text() for path in out.glob("*")} if out.exists() else {}
    return code, capsys.readouterr().err, files


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("form", FORMATS)
def test_an_option_changes_the_files_or_is_refused(
    form: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, other = tmp_path / "a.csv", tmp_path / "up.csv"
    path.write_text(FORMATS[form])
    other.write_text("t_s,up_bps\n0,8e6\n1,9e6\n")
    named = () if form != "other names" else ("--columns", "t=a:s,down=b:mbit")
    rates = () if form != "iperf3" else ("--up-rate", "9mbit")
    base = written(capsys, tmp_path / "base", path, *named, *rates)
    up, given = ((other,), ()) if option == "UP" else ((), (option, OPTIONS[option]))
    code, line, files = written(capsys, tmp_path / "out", path, *up, *named, *rates, *given)
    if code == 2:
        word = "up.csv" if option == "UP" else option
        allowed = word in line or "the second file" in line or base[0] == 2
        assert allowed, line
        assert len(line.splitlines()) == 1
    else:
        assert files != base[2]


def test_columns_that_are_not_used_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("t_s,down_bps,up_bps,clock_ratio\n0,1e6,2e6,1\n1,3e6,1e6,1\n")
    (tmp_path / "b.csv").write_text("t_s,up_bps,delay_s\n0,8e6,0.1\n1,9e6,0.1\n")
    lines = imported(capsys, tmp_path / "o", tmp_path / "a.csv", tmp_path / "b.csv")
    assert any("a.csv: up_bps, clock_ratio: not used; " in line for line in lines)
    assert any("b.csv: delay_s: not used; " in line for line in lines)
    assert "up_bps, clock_ratio: not used" in (tmp_path / "o" / "x.toml").read_text()
    device = ("--profile", "raspberry-pi-4b")
    lines = imported(capsys, tmp_path / "d", tmp_path / "a.csv", *device)
    assert any("a.csv: down_bps, up_bps: not used; a device has the link of" in x for x in lines)


def test_a_dated_log_of_tegrastats_takes_no_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sunday's local clock is set back, and the log has no clock of a core."""
    path = tmp_path / "a.log"
    moments = ("01:59:59", "02:59:59", "02:00:00", "02:00:01")
    path.write_text("".join(f"10-27-2024 {each} RAM 1/2MB CPU [90%]\n" for each in moments))
    assert "must not be given" in refused(capsys, tmp_path, path, "--interval", "1s")
    assert "--nominal must not be given" in refused(capsys, tmp_path, path, "--nominal", "1479")
    lines = imported(capsys, tmp_path, path)
    assert any("clock set back 1 h after 2 rows" in line for line in lines)


@pytest.mark.parametrize("label", ["", "nan", "-", "N/A"])
def test_rows_without_a_drive_are_left_out_and_counted(
    label: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"bus,t_s,mbps\nA,0,1\n{label},1,9\n{label},2,9\nA,3,1\n")
    lines = imported(capsys, tmp_path, path, "--split", "bus")
    assert any("2 rows without a value of bus left out" in line for line in lines)
    assert any("wrote 1 of 1 drives" in line for line in lines)
    assert profiles.load_link(tmp_path / "x-1.toml").link.down_bps == 1e6


@pytest.mark.parametrize(
    ("name", "first", "second", "is_said"),
    [
        ("bus", "A", "B", True),
        ("Trace ID", "1", "2", True),
        ("run", "1", "1", False),
        ("operator", "x", "y", True),
        ("rsrp", "-90", "-95", False),
    ],
)
@pytest.mark.parametrize("step", [0, 0.5])
def test_a_column_that_may_name_drives_is_a_line(
    name: str,
    first: str,
    second: str,
    is_said: bool,
    step: float,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "a.csv"
    rows = "".join(f"{first},{k},1\n{second},{k + step},9\n" for k in range(3))
    path.write_text(f"{name},t_s,mbps\n{rows}")
    text = "\n".join(imported(capsys, tmp_path, path, "--columns", "t=t_s,rate=mbps"))
    assert ("if each is a drive, split the file by it: --split" in text) == is_said
    if is_said:
        split = ("--split", name, "--columns", "t=t_s,rate=mbps", "--force")
        imported(capsys, tmp_path, path, *split)
        assert profiles.load_link(tmp_path / "x-2.toml").link.down_bps == 9e6
