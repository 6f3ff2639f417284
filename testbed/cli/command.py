"""`fairbed command`: a command to a live run, and its answer."""

import argparse
import secrets
import sys

import anyio
import msgspec
from msgspec.structs import replace

from fairbed.coordinator.store import RunNotFoundError, StoreError
from fairbed.testbed.cli import DONE
from fairbed.testbed.cli.elsewhere import is_elsewhere, run_elsewhere
from fairbed.testbed.cli.runs import ANSWER_S, ask_run, live_endpoint
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.run_folder import Endpoint
from fairbed.wire.command_line import LOSSES, CommandTextError, parse_command
from fairbed.wire.errors import TransportError
from fairbed.wire.messages import OperatorCommand
from fairbed.wire.topics import LOCAL_OPERATOR


def main(options: argparse.Namespace) -> int:
    """Send the command and print the answer; return the exit code."""
    try:
        command = parse_command(options.words, secrets.token_bytes(16))
        name, endpoint, operator = _run_of(options)
        if command.action not in LOSSES or options.yes:
            answer = anyio.run(ask_run, endpoint, command, options.timeout, operator)
        else:
            trial = replace(command, is_trial=True)
            limit_s = options.timeout or ANSWER_S
            answer = anyio.run(ask_run, endpoint, trial, limit_s, operator)
            if answer is None:
                raise RunError(
                    f"{name}: must answer within {limit_s:g} s, got no answer; nothing was done"
                )
            if answer.is_accepted:
                confirm(command, name)
                answer = anyio.run(ask_run, endpoint, command, options.timeout, operator)
    except (CommandTextError, RunNotFoundError) as exc:
        raise UsageError(str(exc)) from exc
    except (StoreError, TransportError, OSError) as exc:
        raise RunError(str(exc)) from exc
    if answer is None:
        raise RunError(
            f"{name}: must answer within {options.timeout:g} s, got no answer; the command "
            f"may still be executed: fairbed watch {name}"
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


def _run_of(options: argparse.Namespace) -> tuple[str, Endpoint, str]:
    """Return the name of a live run, its endpoint, and the name of the operator.

    Raises:
        UsageError: There is no such run, or the user of its address may send no commands.
    """
    if not is_elsewhere(options.run):
        info, endpoint = live_endpoint(options.runs, options.run)
        return info.run_id, endpoint, LOCAL_OPERATOR
    target = run_elsewhere(options.run)
    if target.operator is None:
        raise UsageError(
            f"{target.shown}: a command needs the role operator, got a viewer; on the lab host: "
            "fairbed enroll NAME --role operator"
        )
    return target.shown, target.endpoint, target.operator


def confirm(command: OperatorCommand, run_id: str) -> None:
    """Ask before a command by which work is lost.

    Raises:
        UsageError: The answer is no, or there is no terminal to ask on.
    """
    loss = LOSSES[command.action]
    if not sys.stdin.isatty():
        raise UsageError(f"{command.line}: {loss}; add --yes to do it without a question")
    print(f"{run_id}: {command.line}: {loss}. Do it? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError(f"{command.line}: not sent")
