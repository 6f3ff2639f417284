"""The control room in a real terminal, by keys alone: tmux shows what a person sees."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fairbed.coordinator.store import RunReader, StoreError
from tests.testbed.cli.test_watch import FAIRBED
from tests.testbed.small_run import EMULATED, EXPERIMENT, LIMIT_S, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux"),
]

SIZE = ("120", "40")


class Terminal:
    """A tmux server of its own with one window."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "tmux"

    def open(self, command: str) -> None:
        """Run a command in the window; it stays readable when the command has ended."""
        width, height = SIZE
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", width, "-y", height, command)
        self._tmux("set-option", "-g", "remain-on-exit", "on")

    def press(self, *keys: str) -> None:
        """Press keys: characters, or names such as `Enter`."""
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        """Type a text."""
        self._tmux("send-keys", "-l", text)

    def screen(self) -> str:
        """Return the text of the window."""
        return self._tmux("capture-pane", "-p")

    def shows(self, *texts: str) -> None:
        """Wait until texts are on the screen together."""
        seen = ""

        def has_all() -> bool:
            nonlocal seen
            seen = self.screen()
            return all(text in seen for text in texts)

        try:
            wait_until(has_all, f"{texts}")
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{seen}") from None

    def close(self) -> None:
        """End the server and what it runs."""
        with suppress(subprocess.CalledProcessError):
            self._tmux("kill-server")

    def _tmux(self, *arguments: str) -> str:
        size = ("COLUMNS", "LINES")  # would be the size of the screen, not that of the window
        env = {name: value for name, value in os.environ.items() if name not in size}
        return subprocess.run(
            ["tmux", "-S", str(self._socket), *arguments],
            env=env | {"TERM": "xterm-256color"},
            capture_output=True,
            text=True,
            check=True,
            timeout=LIMIT_S,
        ).stdout


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def commands(run: Path) -> list[tuple[str, str | None, bool]]:
    """Return action, device and acceptance of each command of a run."""
    try:
        with RunReader(run) as reader:
            return [(row.action, row.device, row.is_accepted) for row in reader.commands()]
    except StoreError:
        return []


def test_a_run_is_paused_throttled_kicked_looked_back_at_and_stopped(
    terminal: Terminal, tmp_path: Path
) -> None:
    experiment, run = tmp_path / "small.toml", tmp_path / "run"
    fleet = EMULATED.format(host_core_speed=1.0)
    experiment.write_text(EXPERIMENT.format(rounds=5_000, epochs=1, fleet=fleet))
    command = shlex.join([*FAIRBED, "run", str(experiment), "--out", str(run)])
    state = f"XDG_STATE_HOME={shlex.quote(str(tmp_path))}"
    terminal.open(f"{state} {command}; echo ended with $?; sleep 900")
    terminal.shows("[1 Overview]", "Fleet · 2 devices", "running")

    terminal.press("p")
    terminal.shows("● paused", "p Resume")
    terminal.press("p")
    terminal.shows("● running", "p Pause")

    terminal.press("c")
    terminal.shows("Command to the run")
    terminal.type("throttle raspberry-pi-4b-1 cpu 0.5")
    terminal.press("Enter")
    wait_until(lambda: ("throttle", "raspberry-pi-4b-1", True) in commands(run), "the throttle")

    terminal.press("k")
    terminal.shows("kick raspberry-pi-4b-1", "Enter sends it")
    terminal.press("Enter")
    wait_until(lambda: ("kick", "raspberry-pi-4b-1", True) in commands(run), "the kick")

    terminal.press("[")
    terminal.shows("history: round")
    terminal.press("g")
    terminal.shows("Show the run as it was after round")
    terminal.type("2")
    terminal.press("Enter")
    terminal.shows("history: round 2 of")
    terminal.press("End")
    wait_until(lambda: "history: round" not in terminal.screen(), "the newest round")

    terminal.press("q")
    terminal.shows("This terminal started the run")
    terminal.press("s")
    terminal.shows("ended with 0")
    assert commands(run) == [
        ("pause", None, True),
        ("resume", None, True),
        ("throttle", "raspberry-pi-4b-1", True),
        ("kick", "raspberry-pi-4b-1", True),
    ]
    with RunReader(run) as reader:
        assert reader.run().status == "stopped"


def test_a_run_without_screens_shows_its_rounds_above_a_bar(
    terminal: Terminal, tmp_path: Path
) -> None:
    experiment, run = tmp_path / "small.toml", tmp_path / "run"
    fleet = EMULATED.format(host_core_speed=1.0)
    experiment.write_text(EXPERIMENT.format(rounds=5_000, epochs=1, fleet=fleet))
    command = shlex.join([*FAIRBED, "run", str(experiment), "--headless", "--out", str(run)])
    terminal.open(f"{command}; echo ended with $?; sleep 900")
    terminal.shows("round    2/5000", "of 5,000 rounds", " left")
    terminal.press("C-c")
    terminal.shows("stopped", "ended with 0")
