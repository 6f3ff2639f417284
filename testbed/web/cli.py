"""`fairbed watch --web`: the control room in browsers."""

import argparse
import sys
from pathlib import Path

import anyio

from fairbed.coordinator.store import RunNotFoundError, RunReader, StoreError, resolve_run
from fairbed.testbed.backends.priority import low_priority
from fairbed.testbed.cli import DONE
from fairbed.testbed.cli.elsewhere import is_elsewhere
from fairbed.testbed.errors import RunError, UsageError
from fairbed.wire.printable import printable
from fairbed.wire.transport.address import is_loopback

WEB_PORT, WEB_SESSIONS, WEB_IDLE_MINUTES = 8885, 4, 60.0
"""Of `--web` without options."""


def watch(options: argparse.Namespace) -> int | None:
    """Show a run in browsers; None if the options ask for a terminal.

    Raises:
        UsageError: An option has no effect, or there is no such run.
        RunError: The run cannot be read.
    """
    _check_options(options)
    if not options.web or options.keys:
        return None
    try:
        _serve(resolve_run(options.runs, options.run), options)
    except RunNotFoundError as exc:
        raise UsageError(str(exc)) from exc
    except StoreError as exc:
        raise RunError(str(exc)) from exc
    return DONE


def _check_options(options: argparse.Namespace) -> None:
    """Check the options of the web server.

    Raises:
        UsageError: One has no effect, or a value that cannot be used.
    """
    names = ("host", "port", "sessions", "idle", "steer", "plain")
    values = {name: getattr(options, name) for name in names}
    given = [name for name, value in values.items() if value is not None and value is not False]
    if given and not options.web:
        raise UsageError(f"--{given[0]}: needs --web, got a terminal; add --web or leave it out")
    if options.web and options.headless:
        raise UsageError("--web: must not stand beside --headless; leave one of them out")
    if options.steer and options.read_only:
        raise UsageError("--steer: must not stand beside --read-only; leave one of them out")
    if options.web and is_elsewhere(options.run):
        raise UsageError(
            "--web: needs a run of this machine, got the address of another; use it there"
        )
    if options.host is not None and not (is_loopback(options.host) or options.plain):
        raise UsageError(
            f"--host: must be a loopback address, got {options.host}, where all travels in plain "
            "text; leave it out and type on the other machine: ssh -L "
            f"{options.port or WEB_PORT}:127.0.0.1:{options.port or WEB_PORT} USER@THIS_MACHINE; "
            "or add --plain"
        )
    for name, low, high in (("port", 0, 65535), ("sessions", 1, 64), ("idle", 0.1, 100_000)):
        value = values[name]
        if value is not None and not low <= value <= high:
            raise UsageError(f"--{name}: must be from {low:g} to {high:,}, got {value:g}")


def _serve(folder: Path, options: argparse.Namespace) -> None:
    """Show the run in browsers until Ctrl-C or a signal; the run goes on."""
    from fairbed.testbed.web.server import WebSettings, serve  # the extra `web`

    with RunReader(folder) as reader:
        run_id = reader.run().run_id
    own = [sys.executable, "-m", "fairbed.testbed.cli.main", "watch", str(folder.resolve())]
    flags = ["--reveal"] if options.reveal else []
    settings = WebSettings(
        title=printable(run_id),
        argv=[*own, "--page", *flags, *([] if options.steer else ["--read-only"])],
        host=options.host or "127.0.0.1",
        port=WEB_PORT if options.port is None else options.port,
        max_sessions=options.sessions or WEB_SESSIONS,
        idle_s=(options.idle or WEB_IDLE_MINUTES) * 60.0,
    )
    rights = "pages may send commands" if options.steer else "pages are read-only"
    print(f"run {run_id}: {rights}; Ctrl-C ends the server, not the run", flush=True)

    def announce(address: str) -> None:
        print(f"open in one browser: {address}", flush=True)

    with low_priority():
        anyio.run(serve, settings, announce)
