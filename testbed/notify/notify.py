"""The link of a run to its notifier, the process that sends messages to a person.

The notifier is a process of its own: it never delays a round, and it is there when the process of
the run is killed. It gets the settings and then one line per occasion on its standard input.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from fairbed.coordinator.state.alerts import AlertChange
from fairbed.testbed.errors import UsageError
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.notify.settings import (
    NotifyConfig,
    NotifyError,
    NotifySettings,
    notify_settings,
)


class Start(Struct, frozen=True, tag="start"):
    """The first line: the run and the settings."""

    folder: str
    settings: NotifySettings


class AlertSeen(Struct, frozen=True, tag="alert"):
    """An alert begins or ends."""

    kind: str
    text: str
    is_over: bool
    is_long: bool = False
    """The run has waited for devices for `stall_alert_s`."""


class RunEnded(Struct, frozen=True, tag="end"):
    """The run has ended, and its store has its status."""


class Answer(Struct, frozen=True):
    """A message was sent, or not."""

    problem: str
    """Why it was not sent, in one line without a secret; empty if it was."""
    is_last: bool = False
    """The run has ended."""


def watcher(experiment: Experiment, environ: Mapping[str, str]) -> "NotifyWatcher | None":
    """Return what sends messages about a run; None: nothing does (`run.watchers.MakeWatcher`).

    Raises:
        UsageError: The command or the address cannot be used.
    """
    config = experiment.room_tables.get("notify", NotifyConfig())
    try:
        settings = notify_settings(config, environ)
    except NotifyError as exc:
        raise UsageError(str(exc)) from exc
    return None if settings is None else NotifyWatcher(settings)


@dataclass(frozen=True, slots=True)
class NotifyWatcher:
    """Sends messages about a run; a `testbed.run.watchers.Watcher`."""

    settings: NotifySettings

    @property
    def stall_alert_s(self) -> float:
        """Wait for devices after which `stall` is sent, seconds of the run's clock."""
        return self.settings.stall_alert_s

    def watch(self, folder: Path, on_problem: Callable[[str], None]) -> "Notifier":
        """Start the notifier of a run."""
        return Notifier(self.settings, folder, on_problem)


class Notifier:
    """Sends messages about one run through a process of its own.

    Args:
        settings: When and how.
        folder: Folder of the run.
        on_problem: Receives why a message was not sent, once per run; called by any thread.
    """

    def __init__(
        self, settings: NotifySettings, folder: Path, on_problem: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._on_problem = on_problem
        self._is_reported = False
        self._is_answered = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fairbed.testbed.notify.notifier"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a closed terminal or Ctrl-C must not end it
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._write(Start(str(folder.resolve()), settings))
        os.set_blocking(self._process.stdin.fileno(), False)  # a run never waits for it
        threading.Thread(
            target=self._read, args=(self._process.stdout,), name="run.notify", daemon=True
        ).start()

    def alert(self, change: AlertChange) -> None:
        """Send an alert that begins or ends, or a long wait for devices; returns at once."""
        if ("stall" if change.is_long else "alert") in self._settings.on:
            self._write(AlertSeen(change.kind, change.text, change.is_over, change.is_long))

    def end(self) -> None:
        """Send the end of the run, and wait for it at most as long as the settings allow."""
        self._write(RunEnded())
        if not self._is_answered.wait(self._settings.timeout_s):
            self._report(f"no confirmation within {self._settings.timeout_s:g} s")
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def _write(self, line: Struct) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(line) + b"\n")
            self._process.stdin.flush()
        except BlockingIOError:
            self._report("too many messages wait; some are lost")
        except OSError as exc:
            self._report(f"the notifier has ended: {exc.strerror}")
            self._is_answered.set()

    def _read(self, answers: IO[bytes]) -> None:
        with answers:
            for line in answers:
                answer = msgspec.json.decode(line, type=Answer)
                if answer.problem:
                    self._report(answer.problem)
                if answer.is_last:
                    self._is_answered.set()
        self._process.wait()
        self._is_answered.set()

    def _report(self, problem: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._on_problem(problem)
