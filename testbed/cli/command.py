"""`fairbed command`: a command to a live run, and its answer."""

import argparse
import math
import secrets
import sys
from collections.abc import Sequence

import anyio
import msgspec

from fairbed.coordinator.store import RunNotFoundError, StoreError, resolve_run
from fairbed.testbed.cli import DONE
from fairbed.testbed.cli.runs import ask_run, live_endpoint
from fairbed.testbed.errors import RunError, UsageError
from fairbed.wire.errors import TransportError
from fairbed.wire.messages import FIELDS_OF_ACTION, MAX_TEXT, OperatorCommand, is_device_name

LOSSES = {
    "stop": "the open round is lost",
    "kick": "the work of the device in this round is lost",
    "exclude": "its open exchange is lost",
    "profile": "the device starts again, and its open exchange is lost",
    "fault": "its open exchange may be lost",
}
"""What is lost by the actions that are confirmed."""

METAVARS = {"device": "DEVICE", "name": "NAME", "value": "NUMBER", "text": "TEXT"}


def main(options: argparse.Namespace) -> int:
    """Send the command and print the answer; return the exit code."""
    command = parse(options.words)
    try:
        info, endpoint = live_endpoint(resolve_run(options.runs, options.run))
        confirm(command, info.run_id, is_confirmed=options.yes)
        answer = anyio.run(ask_run, endpoint, command, options.timeout)
    except RunNotFoundError as exc:
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


def parse(words: Sequence[str]) -> OperatorCommand:
    """Return the command of a command line such as `set beta 0.2`.

    Raises:
        UsageError: There is no such action, or its arguments are not as they must be.
    """
    action, *rest = words
    wanted = FIELDS_OF_ACTION.get(action)  # type: ignore[call-overload]  # any text
    if wanted is None:
        raise UsageError(f"command: must be one of {', '.join(FIELDS_OF_ACTION)}, got {action!r}")
    if wanted == ("text",) and rest:
        rest = [" ".join(rest)]
    if len(rest) != len(wanted):
        usage = " ".join([action, *(METAVARS[field] for field in wanted)])
        raise UsageError(f"command: must be {usage!r}, got {' '.join(words)!r}")
    fields: dict[str, str | float] = dict(zip(wanted, rest, strict=True))
    if "value" in fields:
        fields["value"] = _number(str(fields["value"]))
    if action == "set":
        fields["name"] = str(fields["name"]).rpartition(".")[2]
    device = fields.get("device")
    if device is not None and not is_device_name(str(device)):
        raise UsageError(
            f"command: a device must be 1 to 32 of a-z, 0-9 and hyphen, got {device!r}"
        )
    if len(str(fields.get("text", ""))) > MAX_TEXT:
        raise UsageError(f"command: a note must have at most {MAX_TEXT} characters; shorten it")
    try:
        return msgspec.convert(
            {"m": "command", "id": secrets.token_bytes(16), "action": action, **fields},
            OperatorCommand,
        )
    except msgspec.ValidationError as exc:
        raise UsageError(f"command: {exc}") from exc


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


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"command: must have a number, got {text!r}")
    return value
