"""The TUI of `fairbed watch`, and of `fairbed run` on a terminal.

`fairbed run` starts the run as a child process and shows it here. The viewer lowers its own
scheduling priority, so that it does not delay the measured processes. With `sched_autogroup`
(sched(7)) the kernel first divides the processor between sessions, and niceness counts only within
a session. So the viewer also lowers the priority of its session, which is that of the shell that
started it, until it closes.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

from fairbed import profiles
from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.coordinator.state.alerts import ALERT_KINDS
from fairbed.coordinator.store import RunInfo, RunNotFoundError, RunReader, StoreError, resolve_run
from fairbed.coordinator.store.connection import DATABASE, is_locked
from fairbed.coordinator.store.tables import EventRow, ExchangeRow
from fairbed.coordinator.tui.app import Connect, ControlRoom, ExitChoice, SendCommand
from fairbed.coordinator.tui.keys import keys_file, keys_toml
from fairbed.coordinator.tui.preferences import preferences_file
from fairbed.coordinator.tui.screens.command_dialog import Names
from fairbed.coordinator.tui.view import EVENTS_KEPT, banner
from fairbed.testbed.api import RUNS
from fairbed.testbed.api.errors import without_errno
from fairbed.testbed.backends.priority import low_priority
from fairbed.testbed.cli import BAD_USAGE, DONE, FAILED, room_words, shows_screens
from fairbed.testbed.cli.elsewhere import is_elsewhere, run_elsewhere
from fairbed.testbed.cli.runs import ask_run
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.run.device_control import FAULTS, OWN_LINK
from fairbed.testbed.run.stopping import DETACH
from fairbed.testbed.run.supervisor import RunPlan
from fairbed.testbed.run_folder import LOG, clear, read_endpoint
from fairbed.wire.console import for_controls

FOLLOW_S = 0.25
"""Pause between two reads of a run whose rounds are printed, seconds."""

START_S = 120.0
"""Longest wait for the first row of a run, seconds."""

JOIN_S = 220.0
"""Longest time to join other hosts and to start their processes, which comes before; seconds."""

STOP_S = 30.0
"""Longest graceful end of a run, seconds; then it is killed."""


def main(options: argparse.Namespace) -> int:
    """Show a live or finished run; a live run continues when its viewer is closed.

    The TUI needs a terminal or a page; otherwise the rounds are printed, and those to come.
    """
    if options.keys:
        print(keys_toml(), end="")
        return DONE
    try:
        if is_elsewhere(options.run):
            _watch_remote(options)
            return DONE
        folder = resolve_run(options.runs, options.run)
        if options.headless or not (options.page or shows_screens()):
            _follow(folder)
        else:
            sends = not options.read_only
            _watch(
                folder,
                runs=None if options.page else listed(folder, options.runs),  # a page: one run
                owns_run=False,
                reveals=options.reveal,
                sends=sends,
            )
    except RunNotFoundError as exc:
        raise UsageError(str(exc)) from exc
    except StoreError as exc:
        raise RunError(str(exc)) from exc
    return DONE


def _watch_remote(options: argparse.Namespace) -> None:
    """Show a live run of another machine, and its end."""
    if options.reveal:
        raise UsageError(
            "--reveal: needs a run of this machine, got the address of another; use it there"
        )
    target = run_elsewhere(options.run)
    shows_lines = options.headless or not shows_screens()

    def show_progress(done: int, newest: int) -> None:
        if is_loading:
            out = for_controls(sys.stderr)
            print(f"\rround {done} of {newest} ", end="", file=out, flush=True)

    def show_problem(line: str) -> None:
        if shows_lines:
            print(line, file=sys.stderr, flush=True)

    for number in (signal.SIGTERM, signal.SIGHUP):  # or the replica would be left behind
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
    is_loading = sys.stderr.isatty()
    print(f"connecting to {target.shown}", file=sys.stderr, flush=True)
    with target.followed(show_progress, show_problem) as folder:
        is_loading = False
        if shows_lines:
            _follow(folder)
            return
        send = None
        if target.operator is not None and not options.read_only:
            send = partial(ask_run, target.endpoint, operator=target.operator)
        with RunReader(folder) as reader:
            _show_run(reader, send)


def _follow(folder: Path) -> None:
    """Print one line per round, warning and report of the wait for round 1, until the run ends."""
    last_round = last_event = 0
    seen: tuple[int, bool] | None = None
    was_empty = False
    with low_priority(), RunReader(folder) as reader:
        info = reader.run()
        print(f"run {info.run_id}: {info.status}, in {info.folder}", flush=True)
        while True:
            now = reader.data_version(), reader.is_alive()
            if now != seen:
                seen = now
                with reader.snapshot():
                    info = reader.run()
                    rounds = _complete_rounds(reader, info, last_round)
                    events = reader.events(last_event, EVENTS_KEPT)
                lines = [(row.at_s, text) for _, row in events if (text := _event_line(row))]
                for progress in rounds:
                    row = progress.round
                    planned = info.plan.rounds or row.round - row.rounds_empty
                    if not (row.is_empty and was_empty):
                        lines.append((row.closed_at_s, progress.line(planned)))
                    was_empty = row.is_empty
                for _, line in sorted(lines, key=lambda pair: pair[0]):
                    print(line, flush=True)
                last_event = events[-1][0] if events else last_event
                last_round = rounds[-1].round.round if rounds else last_round
            if not now[1]:
                break
            time.sleep(FOLLOW_S)
    print(banner(info) or f"{info.status} after {info.rounds_completed} rounds", flush=True)


def _complete_rounds(reader: RunReader, info: RunInfo, since: int) -> list[RoundProgress]:
    """Return the closed rounds after `since`; the last one once it is evaluated, or will not be."""
    metrics = {row.round: row for row in reader.metrics(since)}
    names = ("round", "attempt", "device")
    cohorts: dict[tuple[int, int], list[str]] = defaultdict(list)
    for round_id, attempt, device in reader.columns(
        ExchangeRow, names, "WHERE round > ? ORDER BY dispatched_at_s, device", (since,)
    ):
        cohorts[round_id, attempt].append(device)
    begun = max((round_id for round_id, _ in cohorts), default=0)
    rounds = reader.rounds(since)
    if rounds and info.is_alive:
        last = rounds[-1].round
        if last not in metrics and begun <= last:
            rounds.pop()
    return [
        RoundProgress(row, tuple(cohorts[row.round, row.attempt]), metrics.get(row.round))
        for row in rounds
    ]


def _event_line(row: EventRow) -> str:
    """Return the line of an event that a reader must not miss; otherwise nothing."""
    device = f"{row.device}: " if row.device else ""
    if row.kind == "waiting":
        return f"waiting: {row.text}"
    if row.kind in ALERT_KINDS:
        return f"alert: {row.kind}: {row.text}"
    return f"{row.level}: {device}{row.text}" if row.level in ("warning", "error") else ""


def run_with_tui(plan: RunPlan, options: argparse.Namespace) -> bool:
    """Run in a child process and show it here; return whether the user detached from the run."""
    log = plan.folder / LOG
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
        output = log.open("ab")
    except OSError as exc:
        raise RunError(without_errno(exc)) from exc
    hosts: str | None = options.hosts
    process = None
    try:
        joins = "" if hosts is None else f"joining the hosts of {hosts}, "
        print(
            f"run {plan.run_id}: {joins}starting broker and devices, in {plan.folder}", flush=True
        )
        with output:
            process = subprocess.Popen(
                _command(plan, options),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        _wait_for_store(plan.folder, process, log, START_S if hosts is None else JOIN_S + START_S)
        choice = _watch(plan.folder, runs=plan.folder.parent, owns_run=True)
        if choice == "detach":
            _detach(process)
            name = plan.run_id if plan.folder.parent == RUNS else plan.folder
            print(f"the run continues; watch it again with: fairbed watch {name}")
            return True
    finally:
        if process is not None:
            if hosts is not None and not (plan.folder / DATABASE).exists():
                process.terminate()  # while it joins them, it does not read its input
            _stop(process)
        if not (plan.folder / DATABASE).exists():
            clear(plan.folder, with_log=True)
    if process.returncode not in (DONE, FAILED):
        raise RunError(
            f"the run ended with exit code {process.returncode}; see {log}, and resume it "
            f"with: fairbed run {plan.folder}"
        )
    return False


def listed(folder: Path, root: Path) -> Path:
    """Return the folder whose runs the control room lists: of the run, unless one was chosen."""
    return folder.parent if root == RUNS and folder.name not in ("", "..") else root


def _watch(
    folder: Path, *, runs: Path | None, owns_run: bool, reveals: bool = False, sends: bool = True
) -> ExitChoice | None:
    with RunReader(folder) as reader:
        connect = _sender if sends else _no_sender
        send = connect(folder)
        return _show_run(
            reader, send, owns_run=owns_run, reveals=reveals, runs=runs, connect=connect
        )


def _sender(folder: Path) -> SendCommand | None:
    """Return what sends commands to the run in a folder; None if no process owns it."""
    endpoint = read_endpoint(folder) if is_locked(folder) else None
    return None if endpoint is None else partial(ask_run, endpoint)


def _no_sender(_folder: Path) -> SendCommand | None:
    return None


def _show_run(
    reader: RunReader,
    send: SendCommand | None,
    *,
    owns_run: bool = False,
    reveals: bool = False,
    runs: Path | None = None,
    connect: Connect = _no_sender,
) -> ExitChoice | None:
    with low_priority():
        room = ControlRoom(
            reader,
            send_command=send,
            names=steering_names(),
            owns_run=owns_run,
            reveals=reveals,
            preferences=preferences_file(os.environ),
            keys=keys_file(os.environ),
            runs=runs,
            connect=connect,
        )
        return _show(room)


def steering_names() -> Names:
    """Return the links, faults and profiles that commands can name."""
    return {
        "link": (OWN_LINK, *profiles.link_names()),
        "fault": FAULTS,
        "profile": profiles.names(),
    }


def _show(room: ControlRoom) -> ExitChoice | None:
    """Show the control room until the user leaves it.

    Until Textual controls the terminal, Ctrl-C is a signal. The event loop would turn it into a
    cancellation, which Textual ignores during its start.

    Raises:
        KeyboardInterrupt: Such a signal arrived.
    """
    signals = []

    def note(number: int, frame: object) -> None:
        signals.append(number)
        room.leave()

    before = signal.signal(signal.SIGINT, note)
    try:
        choice = room.run()
    finally:
        signal.signal(signal.SIGINT, before)
    if signals:
        raise KeyboardInterrupt
    return choice


def _command(plan: RunPlan, options: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "fairbed.testbed.cli.main", options.command]
    if (plan.folder / DATABASE).exists():
        command += [str(plan.folder)]
    else:
        command += [str(options.experiment), "--out", str(plan.folder)]
        command += [part for setting in options.set for part in ("--set", setting)]
        command += [] if options.seed is None else ["--seed", str(options.seed)]
    if options.command == "coordinator":
        command += ["--listen", options.listen, *(["--plain"] if options.plain else [])]
    command += room_words(options)
    command += ["--debug"] if hasattr(options, "debug") else []
    return [*command, "--headless", "--attached"]


def _wait_for_store(
    folder: Path, process: "subprocess.Popen[bytes]", log: Path, limit_s: float
) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise _start_error(process.returncode, log)
        try:
            with RunReader(folder) as reader:
                if reader.run().is_alive:
                    return
        except StoreError:
            pass
        time.sleep(0.05)
    raise RunError(f"the run must start within {limit_s:g} s, got no first row; see {log}")


def _start_error(code: int, log: Path) -> UsageError | RunError:
    """Return the error that the run printed last; otherwise an error with its last line."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    last = lines[-1] if lines else ""
    if not last.startswith("fairbed: "):
        return RunError(
            f"the run ended with exit code {code} before its first row; its log ends with {last!r}"
        )
    line = last.removeprefix("fairbed: ")
    return UsageError(line) if code == BAD_USAGE else RunError(line)


def _detach(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.write(DETACH)
    process.stdin.close()
    process.stdin = None


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Stop an attached run: it ends gracefully when its standard input closes."""
    if process.stdin is None:
        return
    process.stdin.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
