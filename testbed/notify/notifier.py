"""The notifier: the process that sends messages about one run, by a command or a webhook.

It reads `testbed.notify.notify` lines. If they end before the run has, the process of the run was
killed: that is a failure, too.
"""

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from fairbed.coordinator.report.facts import fairness_of
from fairbed.coordinator.report.quality import measure
from fairbed.coordinator.report.summary_table import counted_rate, guarantee, is_kept
from fairbed.coordinator.store import RunNotFoundError, RunReader, StoreError
from fairbed.testbed.notify.notify import AlertSeen, Answer, RunEnded, Start
from fairbed.testbed.notify.settings import NotifySettings, Occasion
from fairbed.wire.console import print_line
from fairbed.wire.printable import printable
from fairbed.wire.transport.address import is_loopback

NICENESS = 10
"""A message may wait; a measured process may not."""

ALERT_PAUSE_S = 600.0
"""Shortest time between two messages about alerts of one kind: a link may come and go."""

DEATH_S = 5.0
"""Longest wait until the lock of a killed run is free."""

PAUSES_S = (0.0, 1.0, 3.0)
"""Waits before the attempts to reach a webhook."""

RETRIED = (408, 425, 429, 500, 502, 503, 504)
"""HTTP statuses after which another attempt may succeed."""

MARGIN = 0.8
"""Share of the time limit for sending; the rest is for reading the run and for the answer."""

SHOWN = 200
"""Longest quoted line of a command's errors, characters."""


class Notification(Struct, frozen=True, kw_only=True):
    """The facts of one message: JSON of the webhook and of the command's standard input.

    Its texts are printable, whatever it is made of: a command may show them on a terminal.
    """

    format: int = 1
    event: Occasion
    """end, failure, stall or alert."""
    run_id: str
    name: str
    """Name of the experiment."""
    status: str
    """running, paused, done, stopped, failed, or interrupted: the process was killed."""
    rounds: int
    """Closed rounds."""
    rounds_planned: int | None
    rounds_empty: int
    """Closed rounds without an available device, on top of the planned ones."""
    reason: str
    """Why the run failed; empty otherwise."""
    accuracy: float | None
    """Mean over devices at the latest evaluation; null for regression."""
    beta: float | None
    """Guaranteed selection rate; null without one."""
    lowest_rate: float | None
    """Lowest rate of a device, of what the guarantee counts."""
    is_kept: bool | None
    """Whether every device has had its guaranteed rate."""
    alert: str | None = None
    """Kind of the alert."""
    is_over: bool | None = None
    """The alert is over."""
    title: str
    """A few words."""
    text: str
    """One line."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if isinstance(value := getattr(self, name), str):
                force_setattr(self, name, str(printable(value)))

    def environment(self) -> dict[str, str]:
        """Return the facts as environment variables; an unknown one is empty."""
        facts = msgspec.to_builtins(self)
        del facts["format"]
        return {f"FAIRBED_{name.upper()}": _word(value) for name, value in facts.items()}


def _word(value: object) -> str:
    """Return a fact as the value of an environment variable."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def notification(reader: RunReader, seen: AlertSeen | None = None) -> Notification:
    """Return the message about an alert, or about the end of a run.

    Args:
        reader: Reads the run.
        seen: The alert; None: the run has ended.
    """
    with reader.snapshot():
        info = reader.run()
        fairness = fairness_of(reader)
    planned = f" of {info.last_round}" if info.last_round else ""
    after = f"after {info.rounds_completed}{planned} rounds"
    quality = "" if info.quality is None else f", {measure(info.row.task)} {info.quality:.3f}"
    promise = "" if fairness.beta is None else f", {guarantee(fairness)}"
    event: Occasion = "end" if info.status in ("done", "stopped") else "failure"
    reason, title = info.row.reason, f"{info.row.name} is {info.status}"
    if info.status == "interrupted":
        reason = "the process of the run was killed"
        title = f"{info.row.name} was killed"
    text = f"{info.status} {after}{f': {reason}' if reason else ''}{quality}{promise}"
    if seen is not None:
        event, reason = "stall" if seen.is_long else "alert", ""
        what = f"{seen.kind} is over" if seen.is_over else seen.kind
        what = f"waits for {info.waiting}" if seen.is_long and info.waiting else what
        title, text = f"{info.row.name}: {what}", what if seen.is_over else seen.text
    return Notification(
        event=event,
        run_id=info.run_id,
        name=info.row.name,
        status=info.status,
        rounds=info.rounds_completed,
        rounds_planned=info.plan.rounds,
        rounds_empty=info.rounds_empty,
        reason=reason,
        accuracy=info.accuracy_mean,
        beta=fairness.beta,
        lowest_rate=counted_rate(fairness),
        is_kept=is_kept(fairness),
        alert=None if seen is None else seen.kind,
        is_over=None if seen is None else seen.is_over,
        title=f"Fairbed: {title}",
        text=f"{info.run_id}: {text}",
    )


class AlertLimit:
    """Limits the messages about alerts of one kind. An end is worth one if its begin was."""

    def __init__(self) -> None:
        self._sent_at: dict[str, float] = {}
        self._open: set[str] = set()

    def allows(self, seen: AlertSeen, now: float) -> bool:
        """Return whether to send a message at this instant, seconds on a monotonic clock."""
        if seen.is_long:  # the run reports each wait once
            return True
        if seen.is_over:
            is_open = seen.kind in self._open
            self._open.discard(seen.kind)
            return is_open
        if now - self._sent_at.get(seen.kind, float("-inf")) < ALERT_PAUSE_S:
            return False
        self._sent_at[seen.kind] = now
        self._open.add(seen.kind)
        return True


def send(
    settings: NotifySettings,
    message: Notification,
    limit_s: float,
    pauses_s: Sequence[float] = PAUSES_S,
) -> str:
    """Send a message every configured way at the same time; return what failed, in one line.

    Args:
        settings: How.
        message: The facts.
        limit_s: Longest time for all, seconds.
        pauses_s: Waits before the attempts to reach a webhook.
    """
    ways: dict[str, Callable[[], str]] = {}
    until = time.monotonic() + limit_s
    if settings.command:
        ways[settings.command[0]] = lambda: run_command(settings.command, message, limit_s)
    if settings.url is not None:
        url, host = settings.url, urlsplit(settings.url).hostname
        ways[f"webhook of {host}"] = lambda: post(url, message, until, pauses_s)
    problems = {name: f"no answer within {limit_s:g} s" for name in ways}

    def work(name: str, way: Callable[[], str]) -> None:
        problems[name] = way()

    threads = [threading.Thread(target=work, args=way, daemon=True) for way in ways.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0.0))
    line = "; ".join(f"{name}: {problem}" for name, problem in problems.items() if problem)
    return line if settings.url is None else line.replace(settings.url, "(address)")


def run_command(command: Sequence[str], message: Notification, limit_s: float) -> str:
    """Run a command with a message; return what failed, or nothing."""
    arguments = [
        part.replace("{title}", message.title).replace("{text}", message.text) for part in command
    ]
    try:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **message.environment()},
        )
    except OSError as exc:
        return f"cannot be started: {exc.strerror}"
    with process:
        try:
            _, errors = process.communicate(msgspec.json.encode(message), timeout=limit_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return f"did not end within {limit_s:g} s and was killed"
    if process.returncode == 0:
        return ""
    lines = errors.decode(errors="replace").strip().splitlines()
    last = f": {lines[-1][:SHOWN]}" if lines else ""
    return f"ended with exit status {process.returncode}{last}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A webhook must not send its message, or its secret, on to another address."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(
    url: str, message: Notification, until: float, pauses_s: Sequence[float] = PAUSES_S
) -> str:
    """Post a message to a webhook; return what failed, without the address, or nothing.

    Args:
        url: The address.
        message: The facts.
        until: Last instant of an attempt on the monotonic clock, seconds.
        pauses_s: Waits before the attempts.
    """
    handlers: list[Any] = [_NoRedirect()]
    if is_loopback(urlsplit(url).hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    request = urllib.request.Request(
        url,
        data=msgspec.json.encode(message),
        headers={"Content-Type": "application/json", "User-Agent": "fairbed"},
    )
    problem = ""
    for pause_s in pauses_s:
        left_s = until - time.monotonic() - pause_s
        if left_s <= 0:
            break
        time.sleep(pause_s)
        try:
            with opener.open(request, timeout=left_s):
                return ""
        except HTTPError as exc:
            exc.close()
            problem = f"HTTP status {exc.code}"
            if exc.code not in RETRIED:
                break
        except URLError as exc:
            problem = str(exc.reason)
        except (OSError, ValueError) as exc:  # a time-out, or an answer that is no HTTP
            problem = str(exc) or type(exc).__name__
    return problem or "no time is left for an attempt"


def serve(lines: Iterator[bytes], answers: IO[bytes]) -> None:
    """Send messages for the lines of a run until they end.

    Args:
        lines: Of `testbed.notify.notify`.
        answers: Receives one line for each message.
    """
    start = msgspec.json.decode(next(lines), type=Start)
    settings, folder, limit = start.settings, Path(start.folder), AlertLimit()
    is_ended = False
    for line in lines:
        received = time.monotonic()
        seen = msgspec.json.decode(line, type=AlertSeen | RunEnded)
        is_ended = isinstance(seen, RunEnded)
        alert = seen if isinstance(seen, AlertSeen) else None
        problem = ""
        if alert is None or limit.allows(alert, received):
            spent_s = time.monotonic() - received
            problem = _send_about(settings, folder, alert, MARGIN * settings.timeout_s - spent_s)
        with suppress(OSError):  # the run is gone, or does not wait any more
            answers.write(msgspec.json.encode(Answer(problem, is_last=is_ended)) + b"\n")
            answers.flush()
        if is_ended:
            return
    _await_death(folder)
    if problem := _send_about(settings, folder, None, settings.timeout_s):
        print_line(f"fairbed: no notification: {problem}")


def _send_about(
    settings: NotifySettings, folder: Path, seen: AlertSeen | None, limit_s: float
) -> str:
    """Send a message about a run, if it is an occasion; return what failed, or nothing."""
    try:
        with RunReader(folder) as reader:
            message = notification(reader, seen)
    except RunNotFoundError:  # it ended before it began
        return ""
    except StoreError as exc:
        return f"the run cannot be read: {exc}"
    return send(settings, message, limit_s) if message.event in settings.on else ""


def _await_death(folder: Path) -> None:
    """Wait until the process of a run has released its lock."""
    until = time.monotonic() + DEATH_S
    while time.monotonic() < until:
        with suppress(StoreError), RunReader(folder) as reader:
            if not reader.is_alive():
                return
        time.sleep(0.1)


def main() -> None:
    """Serve the run that started this process."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    serve(iter(sys.stdin.buffer), sys.stdout.buffer)


if __name__ == "__main__":
    main()
