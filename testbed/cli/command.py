"""`fairbed command`: a command to a live run, and its answer."""

import argparse
import secrets
import sys

import anyio
import msgspec

from fairbed.coordinator.store import RunNotFoundError, StoreError, resolve_run
from fairbed.testbed.cli import DONE
from fairbed.testbed.cli.runs import ask_run, live_endpoint
from fairbed.testbed.errors import RunError, UsageError
from fairbed.wire.command_line import LOSSES, CommandTextError, parse_command
from fairbed.wire.errors import TransportError
from fairbed.wire.messages import OperatorCommand


def main(options: argparse.Namespace) -> int:
    """Send the command and print the answer; return the exit code."""
    try:
        command = parse_command(options.words, secrets.token_bytes(16))
        info, endpoint = live_endpoint(resolve_run(options.runs, options.run))
        confirm(command, info.run_id, is_confirmed=options.yes)
        answer = anyio.run(ask_run, endpoint, command, options.timeout)
    except (CommandTextError, RunNotFoundError) as exc:
        raise UsageError(str(exc)) from exc
    except (StoreError, TransportError, OSError) as exc:
        raise RunError(str(exc)) from exc
    if answer is None:
        raise RunError(
            f"{info.run_id}: must answer within {options.timeout:g} s, got no answer; the command "
            f"may still be executed: fairbed watch {info.run_id}"
        )
    if options.json:
        found = {
            "id": command.id.hex(),
            "command": command.line,
            "is_accepted": answer.is_accepted,
            "answer": answer.text,
        }
        print(msgspec.json.encode(found).decode())
    if not answer.is_accepted:
        raise RunError(f"{command.line} is refused: {answer.text}")
    if not options.json:
        print(answer.text)
    return DONE


def confirm(command: OperatorCommand, run_id: str, *, is_confirmed: bool) -> None:
    """Ask before a command by which work is lost.

    Raises:
        UsageError: The answer is no, or there is no terminal to ask on.
    """
    loss = LOSSES.get(command.action)
    if loss is None or is_confirmed:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{command.line}: {loss}; add --yes to do it without a question")
    print(f"{run_id}: {command.line}: {loss}. Do it? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError(f"{command.line}: not sent")
