"""Progress of long work: a bar, the rate and the time left.

On a terminal by `rich`, in a notebook as one line, on a dumb terminal as a line now and then, which
a screen reader can read; nothing elsewhere, as in a pipe or a log.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

from fairbed.wire.console import PrintableStream, for_controls, print_line
from fairbed.wire.printable import LINES, Printable, printable

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

PER_S = 4
"""Drawings per second."""

LINE_S = 10.0
"""Time between two lines on a dumb terminal."""

MIN_BAR = 10
"""Columns of the bar that the numbers leave free."""

SECONDS = "s"
"""Unit of work whose duration is planned; it has no rate."""


class Bar:
    """Counts finished units of work; this one draws nothing.

    Args:
        total: Number of units; None is unknown, and may be set later.
        unit: Plural noun of a unit, or `SECONDS`.
        label: What is done.
        file: Where to draw.
        now: Returns monotonic seconds.
    """

    interval_s = 1.0 / PER_S
    """Shortest time between two drawings."""

    def __init__(
        self,
        total: float | None,
        unit: str,
        label: str,
        file: TextIO,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.unit, self.label = total, unit, label
        self.done = 0.0
        """Finished units."""
        self._file, self._now = file, now
        self._skipped = 0.0
        self._started_s = self._drawn_s = self._updated_s = now()

    def advance(self, n: float = 1) -> None:
        """Count n more finished units."""
        self.update(self.done + n)

    def update(self, done: float) -> None:
        """Set the number of finished units."""
        self.done, self._updated_s = done, self._now()
        if self._updated_s - self._drawn_s >= self.interval_s:
            self._drawn_s = self._updated_s
            self._draw()

    def skip(self, n: float = 1) -> None:
        """Count n units that were finished before; they do not change the rate."""
        self._skipped += n
        self.done += n

    def line(self, text: str) -> None:
        """Print a line above the bar; where there is no bar, too."""
        print_line(text, self._file)

    def _draw(self) -> None:
        """Show the present state."""

    def rate(self) -> float | None:
        """Return units per second since the start; None until one is finished."""
        worked, elapsed_s = self.done - self._skipped, self._updated_s - self._started_s
        return worked / elapsed_s if worked > 0 and elapsed_s > 0 else None

    def left_s(self) -> float | None:
        """Return the estimated time until the end, seconds; None if unknown."""
        rate = 1.0 if self.unit == SECONDS else self.rate()
        if rate is None or self.total is None:
            return None
        return max((self.total - self.done) / rate - (self._now() - self._updated_s), 0.0)

    def count_text(self) -> str:
        """Return the finished units: `120 of 500 rounds`."""
        of = "" if self.total is None else f" of {self.total:,.0f}"
        return f"{self.done:,.0f}{of} {self.unit}"

    def speed_text(self) -> str:
        """Return the rate: `12.3 rounds/s`; nothing if it is unknown."""
        rate = None if self.unit == SECONDS else self.rate()
        return "" if rate is None else rate_text(rate, self.unit)

    def left_text(self) -> str:
        """Return the time left: `0:31 left`; nothing if it is unknown."""
        left_s = self.left_s()
        return "" if left_s is None else f"{clock_text(left_s)} left"

    def text(self, width: int | None = None) -> str:
        """Return what is finished, the rate and the time left, as far as `width` allows."""
        count, speed, left = self.count_text(), self.speed_text(), self.left_text()
        for parts in ((count, speed, left), (count, left), (left or count,)):
            text = ", ".join(filter(None, parts))
            if width is None or len(text) <= width:
                break
        return text


def rate_text(rate: float, unit: str) -> str:
    """Return a rate, units per second, per the shortest time in which one unit is finished."""
    for factor, per in ((1.0, "s"), (60.0, "min"), (3600.0, "h")):
        if rate * factor >= 1.0 or per == "h":
            break
    per_time = rate * factor
    return f"{per_time:,.0f} {unit}/{per}" if per_time >= 100 else f"{per_time:.3g} {unit}/{per}"


def clock_text(duration_s: float) -> str:
    """Return a duration as `0:31` or `2:05:00`."""
    minutes, seconds = divmod(round(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class _LineBar(Bar):
    """Prints a line now and then."""

    interval_s = LINE_S

    def _draw(self) -> None:
        print_line(f"{self.label}: {self.text()}", self._file)


class _NotebookBar(Bar):
    """Keeps one line of output up to date in the cell of a notebook."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        from IPython.display import display

        show: Callable[..., Any] = display
        self._output = show(self._mime(), raw=True, display_id=True)

    def _mime(self) -> dict[str, str]:
        return {"text/plain": str(printable(f"{self.label}: {self.text()}"))}

    def _draw(self) -> None:
        self._output.update(self._mime(), raw=True)


class _RichBar(Bar):
    """Draws a bar on a terminal."""

    def __init__(self, is_ticking: bool, *args: Any) -> None:
        super().__init__(*args)
        from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
        from rich.table import Column
        from rich.text import Text

        bar, console = self, rich_console(self._file)

        class Numbers(ProgressColumn):
            def render(self, task: Task) -> Text:
                return Text(bar.text(console.width - len(bar.label) - MIN_BAR - 2))

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            Numbers(table_column=Column(no_wrap=True)),
            console=console,
            expand=True,
            transient=True,
            auto_refresh=is_ticking,
            refresh_per_second=PER_S,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._task = self._progress.add_task(self.label, total=self.total)

    def __enter__(self) -> "_RichBar":
        from rich.file_proxy import FileProxy

        self._progress.start()
        for name in ("stdout", "stderr"):  # until `stop`, what is printed comes above the bar
            stream = getattr(sys, name)
            if isinstance(stream, FileProxy):
                setattr(sys, name, PrintableStream(cast(TextIO, stream)))
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def skip(self, n: float = 1) -> None:
        super().skip(n)
        self._progress.update(self._task, completed=self.done)

    def line(self, text: str) -> None:
        self._progress.console.print(text, markup=False, soft_wrap=True)

    def _draw(self) -> None:
        self._progress.update(self._task, total=self.total, completed=self.done, refresh=True)


def rich_console(file: TextIO) -> "Console":
    """Return the console of rich for a stream: what is drawn on it controls no terminal."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.style import Style

    def segment(text: Printable, style: Style | None) -> Segment:
        return Segment(text, style)

    class PrintableConsole(Console):
        """Draws `Printable` texts beside the controls of rich itself.

        It leaves the cursor visible, so that a killed process does not leave it hidden.
        """

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for drawn in super().render(renderable, options):
                yield (
                    drawn
                    if drawn.control
                    else segment(printable(drawn.text, kept=LINES), drawn.style)
                )

        def show_cursor(self, show: bool = True) -> bool:
            return False

    return PrintableConsole(file=for_controls(file), highlight=False)


def is_dumb_terminal() -> bool:
    """Return whether the terminal can only add lines."""
    return os.environ.get("TERM", "") in ("", "dumb", "unknown")


def _is_notebook() -> bool:
    shell = sys.modules.get("IPython")
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


@contextmanager
def progress(
    total: float | None,
    unit: str,
    label: str,
    file: TextIO | None = None,
    *,
    done: float = 0,
    is_ticking: bool = True,
) -> Iterator[Bar]:
    """Show the progress of some work until it ends.

    Args:
        total: Number of units; None is unknown.
        unit: Plural noun of a unit, or `SECONDS`.
        label: What is done.
        file: Where to draw; None is stderr, or the output of the cell in a notebook.
        done: Units that were finished before.
        is_ticking: Draw in a thread, between calls of the bar, too. Work that is measured must not.
    """
    out = sys.stderr if file is None else file
    if file is None and _is_notebook():
        yield _started(_NotebookBar(total, unit, label, out), done)
    elif not out.isatty():
        yield _started(Bar(total, unit, label, out), done)
    elif is_dumb_terminal():
        yield _started(_LineBar(total, unit, label, out), done)
    else:
        bar: _RichBar | None = None
        with suppress(ImportError):
            bar = _RichBar(is_ticking, total, unit, label, out)
        if bar is None:
            yield _started(Bar(total, unit, label, out), done)
        else:
            with bar:
                yield _started(bar, done)


def _started(bar: Bar, done: float) -> Bar:
    if done:
        bar.skip(done)
    return bar


def tracked(items: Sequence[T], unit: str, label: str) -> Iterator[T]:
    """Yield items and show how many were finished, drawing only between two of them."""
    with progress(len(items), unit, label, is_ticking=False) as bar:
        bar.interval_s = 0.0
        for item in items:
            yield item
            bar.advance()
