"""Bars of long work: their numbers, and where they are drawn."""

import io
import os
import pty
import sys
from types import SimpleNamespace

import pytest

from fairbed.testbed.progress import LINE_S, SECONDS, Bar, clock_text, progress, rate_text, tracked


class Terminal(io.StringIO):
    """A terminal that keeps what was written."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Monotonic seconds that only the test advances."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def bar_after(done: float, elapsed_s: float, total: float | None, unit: str = "rounds") -> Bar:
    clock = Clock()
    bar = Bar(total, unit, "replay", io.StringIO(), clock)
    clock.now_s += elapsed_s
    bar.update(done)
    return bar


def test_shows_count_rate_and_time_left() -> None:
    assert bar_after(120, 10.0, 500).text() == "120 of 500 rounds, 12 rounds/s, 0:32 left"


def test_shows_no_rate_before_the_first_unit_and_no_end_without_a_total() -> None:
    assert bar_after(0, 10.0, 500).text() == "0 of 500 rounds"
    assert bar_after(1_200, 10.0, None).text() == "1,200 rounds, 120 rounds/s"


def test_leaves_out_what_does_not_fit() -> None:
    bar = bar_after(120, 10.0, 500)
    assert bar.text(38) == "120 of 500 rounds, 0:32 left"
    assert bar.text(20) == "0:32 left"


def test_units_finished_before_do_not_change_the_rate() -> None:
    clock = Clock()
    bar = Bar(100, "cells", "compare", io.StringIO(), clock)
    bar.skip(90)
    clock.now_s += 20.0
    bar.advance(2)
    assert bar.text() == "92 of 100 cells, 6 cells/min, 1:20 left"


def test_the_time_left_falls_between_two_units() -> None:
    clock = Clock()
    bar = Bar(4, "cells", "compare", io.StringIO(), clock)
    clock.now_s += 60.0
    bar.advance()
    clock.now_s += 50.0
    assert bar.left_s() == 130.0
    clock.now_s += 500.0
    assert bar.left_s() == 0.0


def test_planned_seconds_have_no_rate() -> None:
    assert bar_after(23, 30.0, 126, SECONDS).text() == "23 of 126 s, 1:43 left"


@pytest.mark.parametrize(
    ("rate", "text"),
    [(1234.5, "1,234 rows/s"), (12.34, "12.3 rows/s"), (0.5, "30 rows/min"), (1e-3, "3.6 rows/h")],
)
def test_rates_are_per_the_shortest_time_with_a_unit(rate: float, text: str) -> None:
    assert rate_text(rate, "rows") == text


def test_durations_are_clock_times() -> None:
    assert [clock_text(s) for s in (0.4, 59.6, 3_600, 7_505)] == [
        "0:00",
        "1:00",
        "1:00:00",
        "2:05:05",
    ]


def test_a_pipe_gets_only_lines() -> None:
    out = io.StringIO()
    with progress(3, "cells", "compare", out) as bar:
        bar.advance()
        bar.line("cell 2: failed")
        bar.advance(2)
    assert out.getvalue() == "cell 2: failed\n"


def test_a_dumb_terminal_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    with progress(100, "rounds", "replay", out, done=10) as bar:
        bar.advance()
        assert (bar.interval_s, out.getvalue()) == (LINE_S, "")
        bar.interval_s = 0.0
        bar.advance()
    assert out.getvalue().startswith("replay: 12 of 100 rounds, ")
    assert out.getvalue().count("\n") == 1
    assert "\x1b" not in out.getvalue()


def test_a_terminal_gets_a_bar_that_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    with progress(2, "cells", "compare", out) as bar:
        bar.interval_s = 0.0
        bar.advance()
        bar.line("[bold] failed")
        drawn = out.getvalue()
    assert "1 of 2 cells" in drawn
    assert "[bold] failed\n" in drawn, "markup of a device or an arm stays text"
    assert "\x1b[?25l" not in out.getvalue(), "the cursor stays visible, even if this is killed"
    assert out.getvalue().endswith("\x1b[2K"), "the line is erased"


def test_without_rich_a_terminal_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    out = Terminal()
    with progress(2, "cells", "compare", out) as bar:
        bar.advance(2)
    assert (bar.done, out.getvalue()) == (2, "")


def test_a_notebook_updates_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def display(data: dict[str, str], **_: object) -> SimpleNamespace:
        shown.append(data["text/plain"])
        return SimpleNamespace(update=display)

    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    with progress(2, "cells", "compare") as bar:
        bar.interval_s = 0.0
        bar.advance()
    assert shown[0] == "compare: 0 of 2 cells"
    assert shown[1].startswith("compare: 1 of 2 cells, ")


def test_tracked_yields_every_item_between_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, os.fdopen(ours, "rb"):
        monkeypatch.setattr(sys, "stderr", terminal)
        assert list(tracked(["a", "b"], "codecs", "codecs")) == ["a", "b"]
