"""`fairbed command`: a command to a live run, and its answer."""

import argparse
import os
import secrets
import sys

import anyio
import msgspec

from fairbed.coordinator.store import RunNotFoundError, RunReader, StoreError, resolve_run
from fairbed.testbed.cli import DONE
from fairbed.testbed.cli.runs import ask_run, live_endpoint
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.remote.viewer import is_target, parse_target
from fairbed.testbed.run_folder import Endpoint
from fairbed.wire.command_line import LOSSES, CommandTextError, parse_command
from fairbed.wire.errors import TransportError
from fairbed.wire.messages import OperatorCommand
from fairbed.wire.topics import LOCAL_OPERATOR
from fairbed.wire.transport.address import PASSWORD_VARIABLE


def main(options: argparse.Namespace) -> int:
    """Send the command and print the answer; return the exit code."""
    try:
        command = parse_command(options.words, secrets.token_bytes(16))
        name, endpoint, operator = _run_of(options)
        _check_device(options, command)
        confirm(command, name, is_confirmed=options.yes)
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


def _check_device(options: argparse.Namespace, command: OperatorCommand) -> None:
    """Refuse a device that a run of this machine does not know, before a question about it.

    Raises:
        UsageError: There is no such device.
    """
    if command.device is None or is_target(options.run):
        return
    with RunReader(resolve_run(options.runs, options.run)) as reader:
        known = sorted(device.name for device in reader.devices())
    if command.device not in known:
        raise UsageError(
            f"{command.line}: there is no device {command.device!r} in this run; there are: "
            f"{', '.join(known[:20]) or 'none'}{', ...' if len(known) > 20 else ''}"
        )


def _run_of(options: argparse.Namespace) -> tuple[str, Endpoint, str]:
    """Return the name of a live run, its endpoint, and the name of the operator.

    Raises:
        UsageError: There is no such run, or the user of its address may send no commands.
    """
    if not is_target(options.run):
        info, endpoint = live_endpoint(options.runs, options.run)
        return info.run_id, endpoint, LOCAL_OPERATOR
    target = parse_target(options.run, os.environ.get(PASSWORD_VARIABLE))
    if target.operator is None:
        raise UsageError(
            f"{target.shown}: a command needs the role operator, got a viewer; on the lab host: "
            "fairbed enroll NAME --role operator"
        )
    return target.shown, Endpoint(url=target.url, tenant=target.tenant), target.operator


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
