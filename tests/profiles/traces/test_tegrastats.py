"""Logs of tegrastats, of several releases, become load and clock of a board."""

import pytest

from fairbed.profiles.errors import TraceError
from fairbed.profiles.traces.tegrastats import is_tegrastats, read_tegrastats

RAM = "RAM 100/4000MB (lfb 1x4MB) SWAP 0/1000MB (cached 0MB) "
REST = " EMC_FREQ 1%@1600 GR3D_FREQ 9%@76 PLL@37C CPU@40C POM_5V_IN 1750/1628"


@pytest.mark.parametrize(
    ("cpu", "load", "clock", "cores"),
    [
        ("CPU [50%@1000,50%@1000]", 1.0, 1.0, 2),
        ("CPU [100%@1000,0%@2000]", 1.0, 0.5, 2),
        ("CPU [75%@1000,25%@2000]", 1.0, 0.625, 2),
        ("CPU [60%@500,off,off,40%@500]", 1.0, 1.0, 4),
        ("cpu [60%,40%]@1734", 1.0, 1.0, 2),
        ("CPU [60%,40%]", 1.0, None, 2),
        ("CPU [10%@1000,0%@2000]", 0.1, None, 2),
        ("CPU [0%@729,off]", 0.0, None, 2),
    ],
)
def test_load_and_clock_of_the_busy_cores(
    cpu: str, load: float, clock: float | None, cores: int
) -> None:
    content = f"{RAM}{cpu}{REST}\n".encode()
    assert is_tegrastats(content)
    found = read_tegrastats(content, "t.log")
    assert found.cores == cores
    assert found.trace.columns["background_load"].tolist() == pytest.approx([load])
    read = found.trace.columns.get("clock_ratio")
    assert (None if read is None else read.tolist()) == (None if clock is None else [clock])


def test_dates_intervals_and_a_nominal_clock() -> None:
    line = f"{RAM}CPU [100%@1000]{REST}"
    dated = f"12-31-2023 23:59:59 {line}\n01-01-2024 00:00:02 {line}\n".encode()
    found = read_tegrastats(dated, "t.log", nominal_mhz=2000.0)
    assert found.trace.t_s.tolist() == [0.0, 3.0]
    assert found.trace.columns["clock_ratio"].tolist() == [0.5, 0.5]
    plain = read_tegrastats(f"{line}\n{line}\n".encode(), "t.log", interval_s=5.0)
    assert plain.trace.t_s.tolist() == [0.0, 5.0]
    assert any("POM_5V_IN 1.75 W" in each for each in plain.lines)


def test_an_idle_row_keeps_the_clock_of_the_busy_row_before() -> None:
    cpus = ("CPU [0%@100]", "CPU [100%@900]", "CPU [0%@100]")
    found = read_tegrastats("\n".join(f"{RAM}{cpu}" for cpu in cpus).encode(), "t.log")
    assert found.trace.columns["clock_ratio"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["CPU [x%@1]"], "row 1: a core must be PERCENT%@MHZ or off, got 'x%@1'"),
        (["CPU [101%@1]"], "row 1: a core must be at most 100 %"),
        (["RAM 1/2MB"], "must have lines of tegrastats with CPU"),
        (["13-31-2023 10:00:00 CPU [1%@1]"], "row 1: a date must be MM-DD-YYYY HH:MM:SS"),
        (["12-31-2023 10:00:00 CPU [1%@1]", "CPU [1%@1]"], "all lines or none must have a date"),
        (
            ["12-31-2023 10:00:05 CPU [1%@1]", "12-31-2023 10:00:00 CPU [1%@1]"],
            "times must not decrease, got a fall after line 1",
        ),
    ],
)
def test_a_bad_log_is_one_line(lines: list[str], words: str) -> None:
    with pytest.raises(TraceError, match=r"^t\.log: ") as caught:
        read_tegrastats("\n".join(lines).encode(), "t.log")
    assert words in str(caught.value)
