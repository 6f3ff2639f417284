"""The control room as a Textual application: shows a run, sends commands.

`pause_s` limits how often the screen changes, so that it does not slow the measured processes.
"""

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import anyio
import anyio.to_thread
import msgspec
from rich.segment import Segment
from rich.style import Style
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.filter import LineFilter
from textual.screen import Screen
from textual.theme import Theme
from textual.widgets import Footer, Input

from fairbed.coordinator.report.result import RunResult, result_of
from fairbed.coordinator.store.errors import StoreError
from fairbed.coordinator.store.reader import LIVE, RunReader
from fairbed.coordinator.tui.attention import attention
from fairbed.coordinator.tui.keys import KeysError, read_keys
from fairbed.coordinator.tui.playback import Playback, history_line
from fairbed.coordinator.tui.preferences import (
    Preferences,
    ScreenChoices,
    load_preferences,
    save_preferences,
)
from fairbed.coordinator.tui.reading import ViewReader
from fairbed.coordinator.tui.screens.command_dialog import CommandDialog, Names
from fairbed.coordinator.tui.screens.device import DeviceDetail
from fairbed.coordinator.tui.screens.estimator import EstimatorScreen
from fairbed.coordinator.tui.screens.events import EventsScreen
from fairbed.coordinator.tui.screens.exit_dialog import Answer, ExitDialog
from fairbed.coordinator.tui.screens.fairness import FairnessScreen
from fairbed.coordinator.tui.screens.fleet import FleetScreen
from fairbed.coordinator.tui.screens.help import HelpScreen, key_helps
from fairbed.coordinator.tui.screens.jump_dialog import JumpDialog
from fairbed.coordinator.tui.screens.overlay import OverlayScreen
from fairbed.coordinator.tui.screens.overview import Overview
from fairbed.coordinator.tui.screens.result_card import ResultCard
from fairbed.coordinator.tui.screens.round import RoundScreen
from fairbed.coordinator.tui.screens.rounds import RoundsScreen
from fairbed.coordinator.tui.screens.run_screen import RunScreen
from fairbed.coordinator.tui.screens.runs import RunsScreen
from fairbed.coordinator.tui.view import DeviceView, RunView
from fairbed.coordinator.tui.widgets.filter_bar import FilterBar
from fairbed.coordinator.tui.widgets.fleet import FleetTable
from fairbed.coordinator.tui.widgets.history_bar import HISTORY_BINDINGS, HistoryBar
from fairbed.coordinator.tui.widgets.plot import LETTERED
from fairbed.coordinator.tui.widgets.tabs import ScreenTabs
from fairbed.wire.command_line import MEANINGS, usage
from fairbed.wire.errors import WireError
from fairbed.wire.messages import FIELDS_OF_ACTION, Action, OperatorAnswer, OperatorCommand
from fairbed.wire.printable import Printable, printable

SHORTEST_PAUSE_S = 0.25
"""The screen changes at most four times a second, however many events arrive."""

LONGEST_PAUSE_S = 1.0
"""The screen changes at least once a second, whatever the cost."""

CORE_SHARE = 0.05
"""Share of one core for the screen: contention below it leaves an exchange valid."""


def pause_s(spent_s: float) -> float:
    """Return the time until the next change of the screen, seconds.

    Args:
        spent_s: Processor time of the last change, seconds.
    """
    return min(max(SHORTEST_PAUSE_S, spent_s / CORE_SHARE), LONGEST_PAUSE_S)


ExitChoice = Literal["detach", "stop", "quit"]
Connect = Callable[[Path], "SendCommand | None"]
"""Returns what delivers commands to the run in a folder; None for one that takes none."""

SendCommand = Callable[[OperatorCommand], Awaitable[OperatorAnswer | None]]
"""Delivers a command to the coordinator; returns its answer, or None if none came in time."""

COMMANDS = ("pause", "resume", "exclude", "include", "kick", "command")
"""Actions that send commands."""

IN_FOOTER = frozenset({*COMMANDS, "show_now", "why"}) - {"kick"}
"""Actions that the footer names while they are offered."""

DELIVERY_S = 30.0
"""Longest delivery of a command, its answer included; `SendCommand` gives up before."""

MAX_OPEN = 8
"""Runs whose stores stay open for the way back."""

HISTORY = ("step", "play", "speed", "jump", "show_now")
"""Actions that move in the past of the run."""


NOTICE_S = 20.0
"""How long a line is shown that must be read before it can be mended."""


class PrintableOnly(LineFilter):
    """Shows no character that controls the terminal, whatever a widget gives it."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments of a line; those of Textual itself stay."""
        return [
            segment
            if segment.control or (text := printable(segment.text)) == segment.text
            else self._segment(text, segment.style)
            for segment in segments
        ]

    @staticmethod
    def _segment(text: Printable, style: Style | None) -> Segment:
        return Segment(text, style)


PRINTABLE_ONLY = PrintableOnly()


class Tab(NamedTuple):
    """A screen that a key opens from everywhere."""

    key: str
    title: str
    screen: type[RunScreen]

    @property
    def name(self) -> str:
        """Name of the screen."""
        return self.screen.TAB


TABS = (
    Tab("1", "Overview", Overview),
    Tab("2", "Fleet", FleetScreen),
    Tab("3", "Rounds", RoundsScreen),
    Tab("4", "Fairness", FairnessScreen),
    Tab("5", "Estimator", EstimatorScreen),
    Tab("6", "Events", EventsScreen),
    Tab("7", "Runs", RunsScreen),
)


class ControlRoom(App[ExitChoice]):
    """Shows a run, live or finished.

    Closing it never stops a run that another process started. `run` and `run_async` return the
    operator's choice: `stop` and `detach` only for an owned run that is still alive.
    """

    CSS_PATH = "app.tcss"
    TITLE = "Fairbed"
    SCREENS: ClassVar[dict[str, Callable[[], Screen[Any]]]] = {tab.name: tab.screen for tab in TABS}
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(
                tab.key,
                f"open_tab('{tab.name}')",
                tab.title,
                id=tab.name,
                show=False,
                tooltip=tab.screen.PURPOSE,
            )
            for tab in TABS
        ),
        Binding("p", "pause", "Pause", id="pause", tooltip="No further round begins"),
        Binding("p", "resume", "Resume", id="pause", tooltip="Rounds begin again"),
        Binding("x", "exclude", "Exclude", id="exclude", tooltip="Do not select this device"),
        Binding("x", "include", "Include", id="exclude", tooltip="Select this device again"),
        Binding("k", "kick", "Kick", id="kick", show=False, tooltip="Cancel its open exchange"),
        Binding("c", "command", "Command", id="command", tooltip="Steer the run or a device"),
        Binding("w", "why", "Why", id="why", tooltip="Why it was selected last, or not"),
        *HISTORY_BINDINGS,
        Binding("i", "result", "Result", id="result", show=False, tooltip="How the run ended"),
        Binding("escape", "back", "Back", id="back", show=False, tooltip="Clear the filter"),
        Binding("question_mark", "help", "Help", id="help", tooltip="Explain this screen"),
        Binding("q", "leave", "Quit", id="quit", tooltip="Leave the control room"),
        Binding(
            "ctrl+q,ctrl+c",
            "leave",
            "Quit",
            id="quit_now",
            show=False,
            priority=True,
            tooltip="The same, while a dialog is open, too",
        ),
    ]

    def __init__(
        self,
        reader: RunReader,
        *,
        send_command: SendCommand | None = None,
        names: Names | None = None,
        owns_run: bool = False,
        reveals: bool = False,
        preferences: Path | None = None,
        keys: Path | None = None,
        runs: Path | None = None,
        connect: Connect = lambda _folder: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the application.

        Args:
            reader: Reader of the run; the caller closes it.
            send_command: Delivers a command to the coordinator; None for a run without a process.
            names: Links, faults and profiles that commands can name.
            owns_run: The coordinator runs in the process of this terminal.
            reveals: Show malicious devices although the run is live.
            preferences: File of the user's choices; None remembers nothing.
            keys: File of the user's keys; None for the usual ones.
            runs: Folder of the runs that can be opened here; None offers no other run.
            connect: Returns what sends commands to another run; a thread calls it.
            clock: Monotonic clock by which past rounds are played, seconds.
        """
        super().__init__()
        self._keys_file, self._preferences_file = keys, preferences
        self._preferences = load_preferences(preferences) if preferences else Preferences()
        self.animation_level = "none"  # a new round during a scroll would end it half way
        self._view_reader = ViewReader(reader, reveals=reveals)
        self._reveals = reveals
        self._send_command = send_command
        self._home = reader.folder.resolve()
        """Folder of the run for which the control room was started."""
        self._former: Path | None = None
        self._readers = {self._home: reader}
        """Open runs by folder, in the order in which they were opened."""
        self._runs = None if runs is None else runs.resolve()
        self._connect: Connect = lambda folder: (
            send_command if folder == self._home else connect(folder)
        )
        self._names = names or {}
        self._owns_run = owns_run
        self._is_reading = False
        self._problem = ""
        self._home_loop: asyncio.AbstractEventLoop | None = None
        self._must_leave = False
        self._is_opening = False
        self._cpu_s = 0.0
        self._clock = clock
        self._playback: Playback | None = None
        """The past round that is shown; None shows the newest state."""
        self._is_reading_past = False
        self._showing = asyncio.Lock()
        self.now = RunView()
        """The newest state of the run."""
        self.view = self.now
        """What the screens show: the newest state, or that after a past round."""

    async def on_mount(self) -> None:
        """Show the run, and start the periodic refresh."""
        self._home_loop = asyncio.get_running_loop()
        theme, letters = self._preferences.theme, self._preferences.letters
        self.theme = theme if theme in self.available_themes else self._default_theme
        self.set_class(self.lacks_colours if letters is None else letters, LETTERED)
        self.theme_changed_signal.subscribe(self, self._on_theme)
        last = self._preferences.screen
        is_known = last in self.SCREENS and last != RunsScreen.TAB
        await self._open(last if last is not None and is_known else Overview.TAB)
        self._take_keys()
        await self._tick()

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the filters that each line of each widget passes."""
        return [PRINTABLE_ONLY, *super().get_line_filters()]

    @property
    def lacks_colours(self) -> bool:
        """The terminal shows 16 colours at most, or none; a picture has all."""
        has_few = self.console.color_system in (None, "standard", "windows")
        return self.no_color or (has_few and not self.is_headless)

    @property
    def _default_theme(self) -> str:
        """The theme of the terminal's own 16 colours where it has no others."""
        return "ansi-dark" if self.lacks_colours and not self.no_color else "tokyo-night"

    def _on_theme(self, theme: Theme) -> None:
        """Remember the theme; the default one only if it replaces a chosen one."""
        if self._preferences.theme is not None or theme.name != self._default_theme:
            self._remember(theme=theme.name)

    def _remember(self, **choices: Any) -> None:
        """Remember choices of the user that differ from the remembered ones."""
        before = self._preferences
        self._preferences = msgspec.structs.replace(before, **choices)
        if self._preferences_file is not None and self._preferences != before:
            save_preferences(self._preferences_file, self._preferences)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Offer what keys do, and the glyphs of phases, beside what every application offers."""
        own = "Quit"  # asks what becomes of the run
        yield from (x for x in super().get_system_commands(screen) if x.title != own)
        seen = {"quit_now"}  # is the same
        for node, binding, is_enabled, _tooltip in screen.active_bindings.values():
            if binding.id and is_enabled and binding.id not in seen:
                seen.add(binding.id)
                run = partial(self.run_action, binding.action, node)
                yield SystemCommand(binding.description, binding.tooltip, run)
        is_lettered = self.has_class(LETTERED)
        yield SystemCommand(
            "Phases as blocks" if is_lettered else "Phases as letters",
            "Distinguish phases and curves by colour alone"
            if is_lettered
            else "Distinguish phases and curves by letters, too",
            self.action_toggle_letters,
        )
        calls = self._preferences.calls
        yield SystemCommand(
            "No bell at the end of a run" if calls else "Bell at the end of a run",
            "The bell of the terminal, and a desktop notification where it has one",
            self.action_toggle_calls,
        )
        if self.is_live and self._send_command is not None:
            for action, meaning in MEANINGS.items():
                begin = f"{action} " if FIELDS_OF_ACTION[action] else action
                yield SystemCommand(
                    f"Command: {usage(action)}", meaning, partial(self.action_command, begin)
                )

    def action_help(self) -> None:
        """Explain the screen."""
        screen = self.screen
        if isinstance(screen, RunScreen):
            titles = [tab.title for tab in TABS if tab.name == screen.TAB]
            self.push_screen(
                HelpScreen(
                    titles[0] if titles else screen.selected_device or "",
                    screen.PURPOSE,
                    screen.explanations(),
                    key_helps(self),
                    has_phases=screen.HAS_PHASES,
                )
            )

    def action_toggle_letters(self) -> None:
        """Draw phases and curves with letters, or with blocks and dots again."""
        self.toggle_class(LETTERED)
        self._remember(letters=self.has_class(LETTERED))
        for screen in self.screen_stack:
            if isinstance(screen, RunScreen):
                screen.redraw()

    def leave(self) -> None:
        """Exit, or exit as soon as the screen that is opening is complete; for signal handlers."""
        self._must_leave = True
        if self._home_loop is not None:
            self._home_loop.call_soon_threadsafe(self._leave_if_complete)

    def _leave_if_complete(self) -> None:
        if self._must_leave and not self._is_opening:
            self.exit()

    async def _open(self, screen: RunScreen | str) -> None:
        """Push a screen, or show a tab in place of all screens, and wait for its widgets.

        Textual composes no widgets after an exit.
        """
        self._is_opening = True
        if isinstance(screen, RunScreen):
            await self.push_screen(screen)
        else:
            while len(self.screen_stack) > 2:  # the blank screen of Textual, and a tab
                await self.pop_screen()
            if len(self.screen_stack) == 1:
                await self.push_screen(screen)
            else:
                await self.switch_screen(screen)
        for line in self.screen.query(ScreenTabs):
            tabs = [tab for tab in TABS if self.check_action("open_tab", (tab.name,))]
            line.show([(tab.name, tab.key, tab.title) for tab in tabs])
        if isinstance(self.screen, RunsScreen) and self._runs is not None:
            self.screen.list_runs(self._runs, self._folder, self._former)
        if isinstance(self.screen, RunScreen):
            self.screen.recall(self._preferences.screens.get(self.screen.memory, ScreenChoices()))
        self._is_opening = False
        self._leave_if_complete()

    def _take_keys(self) -> None:
        """Use the keys of the user; a bad file is reported, and the usual keys stay."""
        if self._keys_file is not None:
            try:
                self.set_keymap(read_keys(self._keys_file))
            except KeysError as exc:
                title = "Your keys are not used"
                self.notify(str(exc), title=title, severity="warning", timeout=NOTICE_S)

    async def action_open_tab(self, name: str) -> None:
        """Show one of the screens that keys open from everywhere; the next start shows it.

        It does not show the list of runs: each start names one.
        """
        await self._open(name)
        if name != RunsScreen.TAB:
            self._remember(screen=name)
        await self._show()

    async def _tick(self) -> None:
        """Show new rows, and schedule the next tick after a pause proportional to the cost."""
        await self.refresh_view()
        self._offer()  # the footer may not have existed at the first call
        before, self._cpu_s = self._cpu_s, time.process_time()
        self.set_timer(pause_s(self._cpu_s - before), self._tick)

    async def refresh_view(self) -> None:
        """Read new rows and show them; do nothing while another call does so."""
        if self._is_reading:
            return
        self._is_reading = True
        feed = self._view_reader
        was_live = self.is_live
        try:
            view = await anyio.to_thread.run_sync(feed.refresh, self.now)
        except StoreError as exc:
            self._report(exc)
        else:
            self._problem = ""
            if view is not None and feed is self._view_reader:
                self.now = view
                await self._keep_place()
                if was_live and not self.is_live:
                    await self._announce_end()
            await self._play_on()
        finally:
            self._is_reading = False

    async def _announce_end(self) -> None:
        """Call a person to the terminal, and show how the run has ended."""
        result = await self._read_result()
        if result is None:
            return
        info = result.info
        if self._preferences.calls and self._driver is not None:
            text = f"{info.run_id}: {info.status} after {info.rounds_completed} rounds"
            self._driver.write(attention("Fairbed", text, os.environ))
        if not self.screen.is_modal:
            self.push_screen(ResultCard(result))

    async def action_result(self) -> None:
        """Show how the run ended."""
        if (result := await self._read_result()) is not None:
            self.push_screen(ResultCard(result))

    async def _read_result(self) -> RunResult | None:
        try:
            return await anyio.to_thread.run_sync(result_of, self._view_reader.reader)
        except StoreError as exc:
            self._report(exc)
            return None

    def action_toggle_calls(self) -> None:
        """Call a person to the terminal at the end of a run, or do not."""
        self._remember(calls=not self._preferences.calls)

    def _report(self, error: StoreError) -> None:
        """Show an error of the store, once."""
        if str(error) != self._problem:
            self.notify(str(error), severity="error", title="Cannot read the run")
        self._problem = str(error)

    async def _show(self) -> None:
        async with self._showing:
            self.sub_title = self.view.info.run_id if self.view.info else ""
            for screen in tuple(self._uncovered()):
                if isinstance(screen, RunScreen) and screen.has_parts:
                    screen.show(self.view)
                    if (read := screen.lacks(self.view)) is not None:
                        try:
                            rows = await anyio.to_thread.run_sync(read, self._view_reader.reader)
                        except StoreError as exc:
                            self._report(exc)
                        else:
                            if screen.has_parts and screen in self._uncovered():
                                screen.receive(rows)
            self._show_place()
            self._offer()

    def _show_place(self) -> None:
        """Show which past round is shown."""
        playback, newest = self._playback, self.now.cursor.round
        for screen in self._uncovered():
            for bar in screen.query(HistoryBar):
                bar.line = history_line(playback, self.view, self.now) if playback else ""
                bar.share = playback.round / newest if playback and newest else 0.0

    async def _keep_place(self) -> None:
        """Show the newest state, or stay at a past round that there still is."""
        newest = self.now.cursor.round
        if self._playback is None or not newest:
            await self._go(None)
        elif self._playback.round > newest:  # a resumed run repeats rounds
            await self._go(self._playback.paused_at(newest))
        else:
            self._show_place()

    async def _go(self, playback: Playback | None) -> None:
        """Show a past round, or the newest state; a later choice replaces one that is read."""
        self._playback = playback
        if playback is None:
            self.view = self.now
            await self._show()
            return
        self._show_place()
        if not self._is_reading_past:
            self._is_reading_past = True
            self.run_worker(self._read_past(), name="tui.history")

    async def _read_past(self) -> None:
        """Read and show the chosen past round until it is shown."""
        try:
            while self._playback is not None and self.view.until_round != self._playback.round:
                round_id, now, feed = self._playback.round, self.now, self._view_reader
                view = await anyio.to_thread.run_sync(feed.at, round_id, now)
                if self._playback is not None and feed is self._view_reader:
                    self.view = view
                    await self._show()
        except StoreError as exc:
            self._report(exc)
        finally:
            self._is_reading_past = False

    async def _play_on(self) -> None:
        """Go to the round that is due, and after the newest one back to now."""
        playback = self._playback
        if playback is None or not playback.is_playing or self.view.until_round != playback.round:
            return
        if playback.began_s is None:
            self._playback = playback.begun(self._clock(), self.view.elapsed_s)
            return
        due = playback.due(self._clock())
        if playback.rounds_per_s is not None:
            round_id, is_over = int(due), int(due) > self.now.cursor.round
        else:
            round_id = await anyio.to_thread.run_sync(self._view_reader.round_at, due)
            is_over = due >= self.now.elapsed_s
        if self._playback is not playback:  # a key was pressed meanwhile
            return
        if is_over:
            await self._go(None)
        elif round_id > playback.round:
            await self._go(replace(playback, round=round_id))

    async def action_step(self, rounds: int) -> None:
        """Show the run as it was some rounds later, or before; after the newest round comes now."""
        newest = self.now.cursor.round
        playback = self._playback or Playback(newest + 1)
        round_id = max(playback.round + rounds, self._oldest_round)
        await self._go(None if round_id > newest else playback.paused_at(round_id))

    async def action_play(self) -> None:
        """Let the rounds pass, or stop them; at now, from the first one on."""
        playback = self._playback or Playback(self._oldest_round)
        await self._go(playback.playing(is_playing=not playback.is_playing))

    async def action_speed(self, steps: int) -> None:
        """Let the rounds pass faster or slower."""
        if self._playback is not None:
            await self._go(self._playback.at_speed(self._playback.speed + steps))

    def action_jump(self) -> None:
        """Ask for a round, and show the run as it was after it."""
        self.push_screen(JumpDialog(self._oldest_round, self.now.cursor.round), self._jump)

    async def _jump(self, round_id: int | None) -> None:
        if round_id is not None:
            await self._go((self._playback or Playback(round_id)).paused_at(round_id))

    @property
    def _oldest_round(self) -> int:
        """The first round that can be shown."""
        return 1 if self.now.info is None else self.now.info.oldest_round

    async def action_show_now(self) -> None:
        """Show the newest state of the run."""
        await self._go(None)

    @property
    def is_live(self) -> bool:
        """The run accepts commands."""
        return self.now.info is not None and self.now.info.status in LIVE

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer commands only for a live run that accepts them, and only at its newest state."""
        if action == "open_tab":
            return parameters != (RunsScreen.TAB,) or self._runs is not None
        if action == "result":
            return self.now.info is not None and not self.is_live
        if action == "back":
            return len(self.screen_stack) > 2 or bool(self._filter_bars)
        if action in HISTORY:
            screen = self.screen_stack[-1] if self.screen_stack else None
            if not (isinstance(screen, RunScreen) and self.now.cursor.round):
                return False
            is_past = self._playback is not None or action not in ("speed", "show_now")
            return is_past and not isinstance(screen.focused, Input)
        if action == "why":
            is_out_of_place = self._selected_device is None or isinstance(self.screen, RoundScreen)
            return self.view.cursor.round > 0 and not is_out_of_place
        if action not in COMMANDS:
            return super().check_action(action, parameters)
        if not self.is_live or self._send_command is None or self._playback is not None:
            return False
        if action in ("pause", "resume"):
            is_paused = self.now.info is not None and self.now.info.status == "paused"
            return is_paused == (action == "resume")
        if action == "command":
            return True
        device = self._selected_device
        if device is None:
            return False
        if action == "kick":
            return True
        is_excluded = device.state == "excluded"
        return is_excluded == (action == "include")

    async def action_why(self) -> None:
        """Show why the device under the cursor was selected in the newest round, or not."""
        if (device := self._selected_device) is not None:
            await self._open(RoundScreen(self.view.cursor.round, device.name))
            await self._show()

    async def action_quit(self) -> None:
        """Exit as the key does; the command palette calls this."""
        self.action_leave()

    def deliver_screenshot(
        self,
        filename: str | None = None,
        path: str | None = None,
        time_format: str | None = None,
    ) -> str | None:
        """Save a picture in the current folder; machines without a desktop have no Downloads."""
        here = Path.cwd() if os.access(Path.cwd(), os.W_OK) else Path.home()
        return super().deliver_screenshot(filename, path or str(here), time_format)

    @property
    def _selected_device(self) -> DeviceView | None:
        screen = self.screen_stack[-1] if self.screen_stack else None
        if not (isinstance(screen, RunScreen) and screen.has_parts):
            return None
        name = screen.selected_device
        return self.view.device(name) if name else None

    def on_data_table_row_highlighted(self) -> None:
        """Offer the commands for the device under the cursor."""
        self._offer()

    def _uncovered(self) -> Iterator[Screen[Any]]:
        """Yield the screen on top and, below a dialog, the screen behind it."""
        for screen in reversed(self.screen_stack):
            yield screen
            if not screen.is_modal:
                return

    def _offer(self) -> None:
        """Rebuild the footer if the offered commands changed."""
        offered = {command for command in IN_FOOTER if self.check_action(command, ())}
        for screen in self.screen_stack[-1:]:  # empty while the application closes
            for footer in screen.query(Footer):
                named = {getattr(key, "action", "") for key in footer.children}
                if not named or named & IN_FOOTER != offered:
                    self.refresh_bindings()

    @property
    def _filter_bars(self) -> list[FilterBar]:
        """Filters of the screen that hide lines."""
        return [bar for bar in self.screen.query(FilterBar) if bar.filter.text]

    async def action_back(self) -> None:
        """Clear the filter or, without one, return to the previous screen, and update it."""
        if filters := self._filter_bars:
            for bar in filters:
                bar.action_clear()
            return
        await self.pop_screen()
        await self._show()

    def action_pause(self) -> None:
        """Pause the run: no further round starts."""
        self._command("pause")

    def action_resume(self) -> None:
        """Resume a paused run."""
        self._command("resume")

    def action_exclude(self) -> None:
        """Exclude the device under the cursor from selection; ask if its work would be lost."""
        if (device := self._selected_device) is not None:
            if device.is_working:
                self.action_command(f"exclude {device.name}")
            else:
                self._command("exclude", device.name)

    def action_include(self) -> None:
        """Include the device under the cursor again."""
        if self._selected_device is not None:
            self._command("include", self._selected_device.name)

    def action_kick(self) -> None:
        """Cancel the open exchange of the device under the cursor, after a question."""
        if self._selected_device is not None:
            self.action_command(f"kick {self._selected_device.name}")

    def action_command(self, typed: str = "") -> None:
        """Open the dialog for commands."""
        device = self._selected_device
        dialog = CommandDialog(
            secrets.token_bytes(16),
            [device.name for device in self.view.devices],
            device.name if device is not None else None,
            self._names,
            typed,
        )
        self.push_screen(dialog, self._on_command)

    def _on_command(self, command: OperatorCommand | None) -> None:
        if command is not None:
            self.run_worker(self._send(command), name=f"tui.{command.action}")

    def action_leave(self) -> None:
        """Exit; for an owned live run open the exit dialog first, a second time means stop."""
        is_live = self.is_live
        if self._folder != self._home:
            is_live = self._readers[self._home].is_alive()
        if not (self._owns_run and is_live):
            self.exit("quit")
        elif isinstance(self.screen, ExitDialog):
            self.exit("stop")
        else:
            self.push_screen(ExitDialog(), self._on_answer)

    async def on_run_screen_lacking(self) -> None:
        """Read what the screen lacks, without a new row in the store."""
        await self._show()

    def on_run_screen_chosen(self, message: RunScreen.Chosen) -> None:
        """Remember the choices for one screen."""
        screens = {**self._preferences.screens, message.screen: message.choices}
        self._remember(screens=screens)

    async def on_run_screen_opens(self, message: RunScreen.Opens) -> None:
        """Open a screen over the one that wants it."""
        await self._open(message.screen)
        await self._show()

    async def on_fleet_table_opened(self, message: FleetTable.Opened) -> None:
        """Open the screen of one device."""
        rows = await anyio.to_thread.run_sync(self._view_reader.reader.devices)
        row = next((row for row in rows if row.name == message.device), None)
        if row is not None:
            await self._open(DeviceDetail(row))
            await self._show()

    @property
    def _folder(self) -> Path:
        """Folder of the run that is shown."""
        return self._view_reader.reader.folder.resolve()

    async def on_runs_screen_opened(self, message: RunsScreen.Opened) -> None:
        """Show another run in place of this one; the list of runs, too, leads back."""
        if message.folder == self._folder:
            await self.action_open_tab(Overview.TAB)
            return
        try:
            if message.folder not in self._readers:
                reader = await anyio.to_thread.run_sync(RunReader, message.folder)
                self._readers[message.folder] = reader
            send = await anyio.to_thread.run_sync(self._connect, message.folder)
        except StoreError as exc:
            self.notify(str(exc), severity="error", title="Cannot open the run", markup=False)
            return
        async with self._showing:
            self._former = self._folder
            feed = ViewReader(self._readers[message.folder], reveals=self._reveals)
            self._view_reader, self._send_command = feed, send
            self._playback, self._problem = None, ""
            self.now = self.view = RunView()
            await self._forget_screens()
        await self._close_readers({self._home, self._former, self._folder}, MAX_OPEN)
        await self._open(Overview.TAB)
        await self.refresh_view()

    async def on_runs_screen_compared(self, message: RunsScreen.Compared) -> None:
        """Lay two runs over each other."""
        await self._open(OverlayScreen(*message.folders))
        await self._show()

    async def _forget_screens(self) -> None:
        """Replace all screens by new ones: they remember what they have shown."""
        while len(self.screen_stack) > 1:
            await self.pop_screen()
        for tab in TABS:
            screen = self.get_screen(tab.name)
            self.uninstall_screen(tab.name)
            if screen.is_running:
                await screen.remove()
            self.install_screen(tab.screen(), tab.name)

    async def _close_readers(self, kept: Collection[Path], limit: int) -> None:
        """Close the runs that were opened first, except some, until there are few enough."""
        for folder in [folder for folder in self._readers if folder not in kept]:
            if len(self._readers) > limit:
                await anyio.to_thread.run_sync(self._readers.pop(folder).close)

    async def on_unmount(self) -> None:
        """Close the runs that were opened here; the caller closes the first one."""
        await self._close_readers({self._home}, 0)

    def _on_answer(self, answer: Answer | None) -> None:
        if answer in ("stop", "detach"):
            self.exit(answer)

    def _command(self, action: Action, device: str | None = None) -> None:
        self._on_command(OperatorCommand(id=secrets.token_bytes(16), action=action, device=device))

    async def _send(self, command: OperatorCommand) -> None:
        """Send a command and show the answer."""
        if self._send_command is None:
            return
        try:
            with anyio.fail_after(DELIVERY_S):
                answer = await self._send_command(command)
        except (WireError, OSError, TimeoutError) as exc:
            reason = str(exc) or f"no reply within {DELIVERY_S:g} s"
            text = f"{command.line}: {reason}"
            self.notify(text, severity="error", title="Command not delivered", markup=False)
            return
        if answer is None:
            text = f"{command.line}: the run has not answered; it may still be executed"
            self.notify(text, severity="warning", title="No answer", markup=False)
        elif answer.is_accepted:
            self.notify(answer.text, title=command.line, timeout=5.0, markup=False)
        else:
            text = f"{command.line}: {answer.text}"
            self.notify(text, severity="warning", title="Refused", timeout=15.0, markup=False)
