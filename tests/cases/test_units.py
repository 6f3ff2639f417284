"""Cases of units: each spelling gives the right value, or a line that names what fits."""

import re
from pathlib import Path

import pytest

from fairbed.profiles.errors import TraceError
from fairbed.profiles.exchange_log import parse_log_columns, read_exchange_log
from fairbed.profiles.traces.columns import Column, factor_of, parse_columns, read_columns
from fairbed.profiles.traces.files import read_file
from fairbed.profiles.traces.units import check_magnitudes
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.file import Experiment, FleetConfig
from fairbed.testbed.experiment.fleet import plan_fleet, unlikely_numbers

FILES = Path(__file__).parent / "files"

RATES = {
    "Throughput (Mbps)": 1e6,
    "DL (Mbit/s)": 1e6,
    "Rate [Mb/s]": 1e6,
    "rate_mbps": 1e6,
    "goodput-mbps": 1e6,
    "dl.kbps": 1e3,
    "throughput in kB/s": 8e3,
    "Durchsatz / Mbit/s": 1e6,
    "rateMBps": 8e6,
    "throughputMbps": 1e6,
    "bytes_per_s": 8.0,
    "bits_per_second": 1.0,
    "dl_bytes_per_sec": 8.0,
    "MiB/s": 8.0 * 2**20,
    "KiB_per_s": 8.0 * 2**10,
    "Kibit/s": 2.0**10,
    "kilobits per second": 1e3,
    "megabits/s": 1e6,
    "KBps": 8e3,
    "kBps": 8e3,
    "Bps": 8.0,
    "bps": 1.0,
    "Mbit s^-1": 1e6,
    "Mbit·s⁻¹": 1e6,
    "Mbit s-1": 1e6,
    "mbit_s": 1e6,
    "Octets/sec": 8.0,
    "KBYTES/SEC": 8e3,
    "GB/h": 8e9 / 3600.0,
    "Gbit/min": 1e9 / 60.0,
    "Rate_mbps (DL)": 1e6,
    "Rate<Mbps>": 1e6,
    "Throughput (Mbps) 10 s": 1e6,
    "DL bitrate (kilobit/s)": 1e3,
    "DL throughput (MBit/s)": 1e6,
    "Rx (Mib/s)": 2.0**20,
    "Mbit / s": 1e6,
    "mbits per sec": 1e6,
    "MB per second": 8e6,
    "Kilobytes per Second": 8e3,
    "kbit·s-1": 1e3,
    "GBps": 8e9,
    "Tbps": 1e12,
    "bandwidth[Mbps]avg": 1e6,
    "rate(bits/sec)": 1.0,
    "rate_bytes_s": 8.0,
    "Gibps": 2.0**30,
    "MiBps": 8.0 * 2**20,
    "speed (Kb/s)": 1e3,
    "kbit/ms": 1e6,
    "bytes/ms": 8e3,
    "GB/day": 8e9 / 86400.0,
    "E[Mbps]": 1e6,
}
TIMES = {
    "Time (ms)": 1e-3,
    "Time [ms]": 1e-3,
    "Time (µs)": 1e-6,
    "Time (μs)": 1e-6,
    "Time/ms": 1e-3,
    "Zeit in Sekunden": 1.0,
    "delayMs": 1e-3,
    "time_milliSeconds": 1e-3,
    "timeMilliSeconds": 1e-3,
    "durationSeconds": 1.0,
    "Time (min)": 60.0,
    "ELAPSED_MS": 1e-3,
    "t_ns": 1e-9,
    "t_s": 1.0,
}
SHARES = {
    "loss (%)": 0.01,
    "loss%": 0.01,
    "loss_pct": 0.01,
    "Loss [percent]": 0.01,
    "loss per cent": 0.01,
    "loss ‰": 1e-3,
    "loss_ratio": 1.0,
    "loss_ppm": 1e-6,
}
UNKNOWN = {
    "down": "DL|Throughput|MBPS|dl_MBPS|mb/s|kb_s|BPS|ratekBps|rate 100 bit/s|rate (1000 bit/s)"
    "|packets/s|bytes_per_10_s|rx_bytes|dl_kbit|rate_ms|speed (m/s)|rate_mbps (kbps)|b|Mbqs"
    "|Mo/s|ko/s|Mbaud|mbps_dl|dl_mbps_p95|pps|kpps|10 Mbit/s|Mbps*10|Mbps per MHz|bits/s/Hz"
    "|Mbit/(s)|1/Mbps|log10(bps)|ln Mbps|sqrt mbps|log_mbps|inverse Mbps|std of Mbps|var_mbps"
    "|dB(Mbps)|%Mbps"
    "|Mbit/5s|Mbps (x10)|rate [10 Mbit/s]|bps/1000|Mbit s⁻²"
    "|kbps_per_cell|deci Mbps|MB/S|KBPS|kb/sec"
    "|million bit/s|rate in thousand bit/s|10^3 bit/s|x1000 bit/s|kbit/s/user|bit/sample|dl (MB)",
    "delay": "echo ms|response time (ms)|srtt_us|RTT/2 (ms)|delay (10 ms)|delay_slots|log delay ms"
    "|delay std ms|delay|latency|rtt_ms|Ping (ms)|round trip [ms]|delay_min|delaymS|delay (%)",
    "loss": "loss_permil|loss count|loss x100|loss_dB|loss (of 100)|log loss|loss 1e-3|lost packets"
    "|loss|Packet loss rate|loss_ms|loss (0-100)|plr",
    "clock": "freq_mhz|cpu_ghz|clock|CPU clock",
    "load": "CPU (%)|load|loadavg|load_ratio",
}


@pytest.mark.parametrize(
    ("number", "name", "factor"),
    [
        (number, name, factor)
        for number, names in (("down", RATES), ("t", TIMES), ("duration", TIMES), ("loss", SHARES))
        for name, factor in names.items()
    ],
)
def test_the_unit_in_a_name_is_read(number: str, name: str, factor: float) -> None:
    assert factor_of("a.csv", number, Column(name)) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("number", "name"),
    [(number, name) for number, names in UNKNOWN.items() for name in names.split("|")],
)
def test_a_name_without_a_certain_unit_is_refused(number: str, name: str) -> None:
    with pytest.raises(TraceError, match=r"^a\.csv: .*: must have a unit of .*, got ") as caught:
        factor_of("a.csv", number, Column(name))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("number", "name"),
    [
        *(("loss", name) for name in ("success (%)", "delivery ratio", "PDR %", "received (%)")),
        *(("loss", name) for name in ("reception_ratio", "PRR [%]", "1-loss (%)", "1 - PLR [%]")),
        *(("clock", name) for name in ("throttle %", "throttled (%)")),
        *(("load", name) for name in ("idle cores", "cpu_idle_cores", "free cores")),
        *(("available", name) for name in ("offline", "unavailable", "down", "is_busy", "not up")),
    ],
)
@pytest.mark.parametrize("unit", [None, "%"])
def test_the_opposite_of_a_number_is_refused(number: str, name: str, unit: str | None) -> None:
    with pytest.raises(TraceError, match=r"its opposite; compute a column with it, and name that$"):
        factor_of("a.csv", number, Column(name, unit))


@pytest.mark.parametrize(
    ("name", "is_said"),
    [("latency_ms", True), ("lat (ms)", True), ("owd_ms", False), ("one-way delay ms", False)],
)
def test_a_delay_that_may_be_a_round_trip_is_a_line(name: str, is_said: bool) -> None:
    content = f"t_s,dl_mbps,{name}\n0,1,20\n1,1,20\n".encode()
    read = read_columns(content, "a.csv", parse_columns(f"t=t_s,down=dl_mbps,delay={name}"))
    assert ("is taken as one way; if it is of a round trip" in str(read)) == is_said


@pytest.mark.parametrize(
    ("unit", "factor"),
    [("mbit", 1e6), ("MB", 8e6), ("MBps", 8e6), ("mbps", 1e6), ("kbyte", 8e3), ("Mbit/s", 1e6)],
)
def test_a_given_unit_has_the_same_spellings(unit: str, factor: float) -> None:
    assert factor_of("a.csv", "down", Column("DL", unit)) == factor


@pytest.mark.parametrize("number", ["t", "down", "delay", "loss", "clock", "load"])
def test_the_units_that_a_message_names_work(number: str) -> None:
    with pytest.raises(TraceError) as caught:
        factor_of("a.csv", number, Column("x", "furlong"))
    listed = re.search(r"must have a unit of (.*?), got", str(caught.value))
    assert listed is not None
    for word in listed.group(1).split(", "):
        unit = word.removeprefix("or ").split()[0].replace("/NUMBER", "/1500")
        if unit != "as":
            factor_of("a.csv", number, Column("x", unit))


@pytest.mark.parametrize("unit", ["bit", "kbit", "ms"])
def test_a_given_unit_must_not_contradict_the_name(unit: str) -> None:
    with pytest.raises(TraceError, match="must have a unit"):
        factor_of("a.csv", "down", Column("Throughput (Mbps)", unit))


def test_a_round_trip_is_halved_as_the_message_states() -> None:
    with pytest.raises(TraceError, match="write 'delay=RTT \\(ms\\):rtt-ms' for half of it"):
        factor_of("a.csv", "delay", Column("RTT (ms)"))
    assert factor_of("a.csv", "delay", Column("RTT (ms)", "rtt-ms")) == 5e-4


def test_the_cases_have_their_values() -> None:
    loss = read_columns(
        read_file(FILES / "loss.csv"),
        "loss.csv",
        parse_columns("t=time_s,rate=rate_mbps,loss=loss (%)"),
    ).trace
    assert loss.columns["loss_ratio"].tolist() == pytest.approx([0.005, 0.002, 0.008])
    for unit in ("", ":mbps"):
        columns = parse_columns(f"t=Time (ms),rate=Throughput (Mbps){unit}")
        trace = read_columns(read_file(FILES / "pm.csv"), "pm.csv", columns).trace
        assert (trace.t_s.tolist(), trace.period_s) == ([0.0, 1.0, 2.0], 3.0)
        assert trace.columns["bps"].tolist() == [1e7, 2e7, 3e7]


@pytest.mark.parametrize(
    ("first", "unit"), [("1700000000", "s"), ("1700000000000", "ms"), ("1700000000000000", "us")]
)
def test_an_epoch_without_a_unit_is_refused_by_its_digits(first: str, unit: str) -> None:
    content = f"Timestamp,dl_mbps\n{first},1\n".encode()
    with pytest.raises(TraceError, match=f"since 1970 in {unit} by its digits.* Timestamp:{unit}$"):
        read_columns(content, "a.csv", parse_columns("t=Timestamp,down=dl_mbps"))
    read_columns(content, "a.csv", parse_columns(f"t=Timestamp:{unit},down=dl_mbps"))


@pytest.mark.parametrize("name", ["time_s", "Time (s)"])
def test_milliseconds_since_1970_are_no_seconds(name: str) -> None:
    content = f"{name},dl_mbps\n1700000000000,1\n".encode()
    with pytest.raises(TraceError, match="must be before the year 2103"):
        read_columns(content, "a.csv", parse_columns(f"t={name},down=dl_mbps"))


@pytest.mark.parametrize(
    ("text", "columns", "words"),
    [
        ("t_s,dl\n0,10\n1,20\n", "t=t_s,down=dl:bit", "the 95th percentile of down_bps"),
        ("t_s,dl\n0,10\n1,0\n", "t=t_s,down=dl:gbyte", None),
        ("t_s,dl\n0,10\n1,20\n", "t=t_s,down=dl:gbyte", "from 1 kbit/s to 100 Gbit/s, got 1.56"),
        ("t_s,dl\n0,1\n4000,1\n8000,1\n", "t=t_s,down=dl:mbit", "at most an hour, got 4000 s"),
        ("t_s,dl\n0,1\n1,0\n2,0\n9000,0\n9001,1\n", "t=t_s,down=dl:mbit", None),  # an outage
        ("t_s,dl,l\n0,1,60\n1,1,55\n", "t=t_s,down=dl:mbit,loss=l:%", "the mean loss must be"),
        ("t_s,c\n0,100\n1,50\n", "t=t_s,clock=c:ratio", "the median of clock_ratio must be from"),
        ("t_s,c\n0,80\n1,50\n", "t=t_s,load=c:cores", "the median of background_load must be"),
        ("t_s,c\n0,0\n1,0\n", "t=t_s,available=c", "available must be above 0 at some time"),
        ("t_s,dl,d\n0,1,40\n1,1,50\n", "t=t_s,down=dl:mbit,jitter=d:s", "median of jitter_s"),
        ("t_s,dl,d\n0,1,40\n1,1,50\n", "t=t_s,down=dl:mbit,delay=d:s", "the median of delay_s"),
    ],
)
def test_magnitudes_of_a_wrong_unit_are_refused(text: str, columns: str, words: str | None) -> None:
    trace = read_columns(text.encode(), "a.csv", parse_columns(columns)).trace
    if words is None:
        check_magnitudes(trace, "a.csv")
        return
    with pytest.raises(TraceError, match=re.escape(words)) as caught:
        check_magnitudes(trace, "a.csv")
    assert "add --as-is" in str(caught.value)


def test_as_is_imports_what_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.csv"
    log.write_text("t_s,dl\n0,10\n1,20\n")
    command = ["profiles", "import", str(log), "--name", "slow", "--to", str(tmp_path / "to")]
    command += ["--columns", "t=t_s,rate=dl:bit"]
    assert main(command) == 2
    assert "add --as-is if it is right" in capsys.readouterr().err
    assert main([*command, "--as-is"]) == 0


def test_a_log_of_exchanges_has_the_same_units() -> None:
    content = b"pi,took (ms),A,B_ms\nx,2500,1,2\n"
    log = read_exchange_log(content, "a.csv", parse_log_columns("device=pi,total=took (ms)"))
    assert log.durations_s["total"].tolist() == [2.5]
    with pytest.raises(TraceError, match=r"wide=A: must have a unit of .*'wide=A:UNIT'$"):
        read_exchange_log(content, "a.csv", parse_log_columns("wide=A|B_ms"))


def test_names_may_have_colons_and_commas() -> None:
    content = b"t_s;Rate: DL (Mbps);Rate, UL (Mbps)\n0;1;2\n"
    columns = parse_columns("t=t_s,down=Rate: DL (Mbps),up=Rate, UL (Mbps)")
    found = read_columns(content, "a.csv", columns).trace
    assert (found.columns["down_bps"][0], found.columns["up_bps"][0]) == (1e6, 2e6)


def test_a_name_of_two_columns_is_refused() -> None:
    with pytest.raises(TraceError, match="columns must have different names, got 'Mbps' twice"):
        read_columns(b"t_s,Mbps,Mbps\n0,1,2\n", "a.csv", parse_columns("t=t_s,down=Mbps"))


@pytest.mark.parametrize("row", ["0;1,5", "0;1"])
def test_a_comma_in_the_header_is_no_separator_beside_semicolons(row: str) -> None:
    content = f"Time [s];Rate, DL [Mbit/s]\n{row}\n1;2,5\n".encode()
    columns = parse_columns("t=Time [s],rate=Rate, DL [Mbit/s]")
    assert read_columns(content, "a.csv", columns).trace.columns["bps"][1] == 2.5e6


@pytest.mark.parametrize(("unit", "is_right"), [("s", False), ("ms", True), ("ns", False)])
def test_durations_of_a_wrong_unit_are_refused(unit: str, is_right: bool, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("pi,took\na,200000\nb,300000\n")
    command = ["profiles", "import-log", str(log), "--to", str(tmp_path / unit)]
    command += ["--columns", f"device=pi,total=took:{unit}"]
    assert main(command) == (0 if is_right else 2)
    assert main([*command, "--as-is", "--force"]) == 0


@pytest.mark.parametrize(
    ("number", "value", "words"),
    [
        ("down_bps", "20.0", "the 95th percentile of down_bps must be from 1 kbit/s"),
        ("up_bps", "5e11", "the 95th percentile of up_bps must be from 1 kbit/s to 100 Gbit/s"),
        ("delay_s", "30.0", "the median of delay_s must be at most 10 s, got 30 s"),
        ("loss_ratio", "0.6", "the mean loss must be at most 50 %, got 0.6"),
        ("delay_s", "0.03", None),
    ],
)
def test_a_number_that_a_person_edited_is_a_warning(
    number: str, value: str, words: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = {"down_bps": "1e6", "up_bps": "1e6", "delay_s": "0.01"} | {number: value}
    lines = (
        f'{key} = {{ value = {each}, tag = "measured", source = "edited" }}\n'
        for key, each in numbers.items()
    )
    link = tmp_path / "mine.toml"
    link.write_text('title = "Mine"\nlicence = "CC0"\n[link]\n' + "".join(lines))
    assert main(["profiles", "check", str(link)]) == 0
    out = capsys.readouterr().out
    group = FleetConfig(profile="raspberry-pi-4b", link=str(link), count=4)
    found = unlikely_numbers(plan_fleet(Experiment(name="x", fleet=(group,)), {}))
    assert ("warning: " in out, len(found)) == (words is not None, int(words is not None))
    assert words is None or (words in out and words in found[0])


def test_a_trace_that_a_person_edited_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log.csv").write_text("t_s,bps\n0,1e6\n1,2e6\n")
    to = ["--to", str(tmp_path), "--name", "x"]
    assert main(["profiles", "import", str(tmp_path / "log.csv"), *to]) == 0
    trace = tmp_path / "x.csv"
    trace.write_text(trace.read_text().replace("000", ""))
    capsys.readouterr()
    assert main(["profiles", "check", str(tmp_path / "x.toml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 checked, no problems, 2 warnings"
    group = FleetConfig(profile="raspberry-pi-4b", trace=str(trace), count=4)
    assert len(unlikely_numbers(plan_fleet(Experiment(name="x", fleet=(group,)), {}))) == 2


@pytest.mark.parametrize(
    "option", [("--down-rate", "20bit"), ("--down-rate", "500gbit"), ("--delay", "30s")]
)
def test_a_given_number_of_a_wrong_unit_is_refused(
    option: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.csv"
    log.write_text("t_s,up_mbps\n0,1\n1,2\n")
    rate = () if option[0] == "--down-rate" else ("--down-rate", "20mbit")
    command = ["profiles", "import", str(log), "--to", str(tmp_path / "o"), *rate, *option]
    assert main(command) == 2
    assert "add --as-is if it is right" in capsys.readouterr().err
    assert main([*command, "--as-is"]) == 0


def test_a_load_in_per_cent_is_refused_beside_the_cores_of_a_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.csv"
    log.write_text("t_s,load\n0,20\n1,30\n")
    to = str(tmp_path / "o")
    command = ["profiles", "import", str(log), "--to", to, "--profile", "phone-mid"]
    assert main([*command, "--columns", "t=t_s,load=load:cores"]) == 2
    assert "divide per cent by 100: load=COLUMN:/100" in capsys.readouterr().err
    assert main([*command, "--columns", "t=t_s,load=load:/100"]) == 0
