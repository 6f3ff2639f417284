"""Where the time of a round went: each exchange a bar, each phase a colour."""

from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.reactive import reactive
from textual.widget import Widget

from coordinator.quantities import seconds
from coordinator.tui.bars import Cell, bar
from coordinator.tui.spans import MISSED, PHASES
from coordinator.tui.view import ExchangeView, RoundView

NAME_WIDTH = 16
"""Always granted to names; more where that leaves the bars two thirds of the line."""
NUMBER_WIDTH = 6
MIN_BAR_WIDTH = 8
MIN_ROUND_HEIGHT = 3
"""A round is begun where its title and two exchanges fit."""
SHORT = {
    "download": "down",
    "decode": "dec",
    "evaluate": "eval",
    "encode": "enc",
    "queued": "wait",
    "upload": "up",
}
"""Names in the legend where the whole ones do not fit."""


class Timeline(Widget):
    """The newest rounds, newest first, all on one scale."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"timeline--{phase}" for phase in (*PHASES, MISSED)),
        "timeline--title",
        "timeline--dim",
        "timeline--bad",
    }

    rounds: reactive[tuple[RoundView, ...]] = reactive(())

    def watch_rounds(self, rounds: tuple[RoundView, ...]) -> None:
        """Say in the title which round is shown."""
        self.border_title = "Rounds by phase"
        self.border_subtitle = f"round {rounds[-1].round}" if rounds else ""

    def render(self) -> Text:
        """Draw as many rounds as fit."""
        width, height = self.content_size
        shown = fitting(self.rounds, height - 1)
        if not shown:
            return Text("no round yet", self._style("dim"))
        scale_s = max(
            [round_.duration_s for round_ in shown]
            + [x.spans[-1].end_s for r in shown for x in r.exchanges if x.spans]
        )
        name_width = width_of_names([x.device for r in shown for x in r.exchanges], width)
        lines = [self._legend(width)]
        for round_ in shown:
            lines.append(self._title(round_))
            lines += [self._line(x, scale_s, name_width, width) for x in round_.exchanges]
        return Text("\n", no_wrap=True).join(lines[:height])

    def _legend(self, width: int) -> Text:
        for names in ({}, SHORT):
            legend = Text(no_wrap=True)
            for phase in PHASES:
                legend.append("■ ", self._style(phase))
                legend.append(f"{names.get(phase, phase)} ", self._style("dim"))
            if legend.cell_len <= width:
                break
        return legend

    def _title(self, round_: RoundView) -> Text:
        done = sum(x.outcome == "done" for x in round_.exchanges)
        if round_.status == "open":
            what = f"open for {seconds(round_.duration_s)} s"
        elif not round_.exchanges:
            what = f"void, nobody available for {seconds(round_.duration_s)} s"
        else:
            what = f"{seconds(round_.duration_s)} s, {done} of {len(round_.exchanges)} merged"
        return Text.assemble(
            (f"round {round_.round} ", self._style("title")), (what, self._style("dim"))
        )

    def _line(self, exchange: ExchangeView, scale_s: float, name_width: int, width: int) -> Text:
        bar_width = max(width - name_width - NUMBER_WIDTH, 1)
        name = shortened(exchange.device, name_width - 1).ljust(name_width)
        line = Text(name, no_wrap=True)
        for cell in bar(exchange.spans, scale_s, bar_width):
            line.append(cell.glyph, self._cell_style(cell))
        if exchange.outcome in ("", "done"):
            number = seconds(exchange.tau_s) if exchange.outcome else "…"
            line.append(number.rjust(NUMBER_WIDTH))
        else:
            line.append(
                exchange.outcome[: NUMBER_WIDTH - 1].rjust(NUMBER_WIDTH), self._style("bad")
            )
        return line

    def _cell_style(self, cell: Cell) -> Style:
        ink = self._style(cell.ink).color if cell.ink else self.rich_style.bgcolor
        paper = self._style(cell.paper).color if cell.paper else None
        return Style(color=ink, bgcolor=paper)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"timeline--{name}", partial=True)


def width_of_names(names: Sequence[str], width: int) -> int:
    """Return how many of `width` columns names get, with the space after them."""
    longest = max((len(name) + 1 for name in names), default=0)
    wished = max(NAME_WIDTH, min(longest, width // 3))
    return min(wished, max(width - NUMBER_WIDTH - MIN_BAR_WIDTH, 0))


def shortened(name: str, width: int) -> str:
    """Return a name in at most `width` characters; its end tells devices of a kind apart."""
    if len(name) <= width:
        return name
    return f"…{name[len(name) - width + 1 :]}" if width > 0 else ""


def fitting(rounds: tuple[RoundView, ...], height: int) -> list[RoundView]:
    """Return the newest rounds for `height` lines, newest first; the last one may be cut."""
    kept: list[RoundView] = []
    for round_ in reversed(rounds):
        if height < min(1 + len(round_.exchanges), MIN_ROUND_HEIGHT):
            break
        kept.append(round_)
        height -= 1 + len(round_.exchanges)
    return kept
