"""The commands on existing runs: `show`, `runs`, `stop`, `rm`, `logs`.

Operator commands to a live run go over the wire: `send_command`.
"""

import argparse
import os
import secrets
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import msgspec

from fairbed.coordinator.algorithms.estimation.base import Learner
from fairbed.coordinator.policy.config import ESTIMATORS, SelectionConfig
from fairbed.coordinator.policy.factories import make_estimator
from fairbed.coordinator.report.estimators import compare_estimators, estimates_table, stated
from fairbed.coordinator.report.quantities import instant
from fairbed.coordinator.report.selection_reasons import choice_table, read_choice
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_table import summary_table
from fairbed.coordinator.store import (
    RunInfo,
    RunNotFoundError,
    RunReader,
    StoreError,
    find_runs,
    list_runs,
    resolve_run,
)
from fairbed.coordinator.store.connection import CONFIG, is_locked
from fairbed.coordinator.store.runs import LATEST
from fairbed.testbed.broker.named import room_login
from fairbed.testbed.broker.permissions import OPERATOR
from fairbed.testbed.broker.run_accounts import login_of
from fairbed.testbed.cli import DONE, from_clone, output_width
from fairbed.testbed.errors import BackendError, RunError, UsageError
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.explain import part_options
from fairbed.testbed.experiment.file import ExperimentError
from fairbed.testbed.run_folder import Endpoint, read_endpoint
from fairbed.wire.codec import decode_answer, encode
from fairbed.wire.errors import DecodeError, Disconnected, TransportError
from fairbed.wire.messages import Action, OperatorAnswer, OperatorCommand, is_device_name
from fairbed.wire.plugins import PluginError
from fairbed.wire.printable import printable
from fairbed.wire.topics import LOCAL_OPERATOR, Topics
from fairbed.wire.transport.base import Incoming, LinkUp, Packet
from fairbed.wire.transport.client import MqttTransport

CONNECT_S = 5.0
"""Longest wait for the broker of a live run, seconds; it answers within milliseconds."""

HEADINGS = ("run", "status", "kind", "rounds", "devices", "accuracy")
"""Of the list of runs: three texts, then numbers."""

RESUMES_SHOWN = 3
"""Interrupted runs, newest first, whose command to continue is printed below the list."""

NAMES_SHOWN = 5
"""Devices named where an unknown one was given."""

ANSWER_S = 10.0
"""Longest wait for the answer of a run, seconds; it decides within milliseconds."""

REPEAT_S = 1.0
"""Time between two messages of one command; the run executes it once."""

_EFFECTIVE_IDS = os.access in os.supports_effective_ids

STOP_S = 30.0
"""Longest end of a run, in which it ends its devices and closes its store; seconds."""


def make_command(action: Action, device: str | None = None) -> OperatorCommand:
    """Return a new command; the coordinator acts once on a repeated message."""
    return OperatorCommand(id=secrets.token_bytes(16), action=action, device=device)


async def send_command(endpoint: Endpoint, command: OperatorCommand) -> None:
    """Publish a command to the run's broker; the coordinator records it when it acts on it.

    Raises:
        TransportError: The broker cannot be reached, or its lab is not there any more.
    """
    await ask_run(endpoint, command, 0.0)


async def ask_run(
    endpoint: Endpoint,
    command: OperatorCommand,
    timeout_s: float = ANSWER_S,
    operator: str = LOCAL_OPERATOR,
) -> OperatorAnswer | None:
    """Publish a command to the run's broker; return the answer, or None if none came in time.

    Args:
        endpoint: Address of the run.
        command: The command.
        timeout_s: Longest wait for the answer; 0 waits for none.
        operator: Name of the operator in the topics.

    Raises:
        TransportError: The broker cannot be reached, or its lab is not there any more.
    """
    try:
        url = room_login(endpoint, OPERATOR) or login_of(endpoint, *OPERATOR)
    except UsageError as exc:
        raise TransportError(str(exc)) from exc
    transport = MqttTransport(url, f"operator-{secrets.token_hex(6)}")
    topics = Topics(endpoint.tenant)
    command = msgspec.structs.replace(command, run=endpoint.run_id)
    send = partial(transport.publish, topics.command(operator), encode(command), qos=1)
    is_sent = False
    try:
        with anyio.fail_after(CONNECT_S) as limit:
            async with transport:
                async for event in (events := transport.events()):
                    if isinstance(event, LinkUp):
                        break
                await transport.subscribe(topics.answer(operator), qos=1)
                await send()
                is_sent, limit.deadline = True, anyio.current_time() + timeout_s
                if not timeout_s:
                    return None
                async with anyio.create_task_group() as group:
                    group.start_soon(_repeat, send)
                    answer = await _answer_to(command, events)
                    group.cancel_scope.cancel()
                return answer
    except TimeoutError as exc:
        if is_sent:
            return None
        raise TransportError(
            f"{transport.url}: must answer within {CONNECT_S:g} s, got "
            f"{transport.down_reason or 'no answer'}"
        ) from exc


async def _repeat(send: Callable[[], Awaitable[None]]) -> None:
    """Publish a command again until it is answered: a run that starts does not listen yet."""
    while True:
        await anyio.sleep(REPEAT_S)
        with suppress(Disconnected):
            await send()


async def _answer_to(
    command: OperatorCommand, events: AsyncIterator[Incoming]
) -> OperatorAnswer | None:
    """Wait for the answer to a command; None if the transport has ended."""
    async for event in events:
        if isinstance(event, Packet):
            with suppress(DecodeError):
                answer = decode_answer(event.payload)
                if answer.id == command.id:
                    return answer
    return None


def main(options: argparse.Namespace) -> int:
    """Run one of the commands; return the exit code."""
    command = {
        "show": _show,
        "runs": _list,
        "stop": _stop,
        "rm": _remove,
        "logs": _logs,
    }[options.command]
    try:
        return command(options)
    except RunNotFoundError as exc:
        raise UsageError(str(exc)) from exc
    except BrokenPipeError:
        raise
    except (PluginError, StoreError, TransportError, OSError) as exc:
        raise RunError(str(exc)) from exc


def live_endpoint(root: Path, ref: str) -> tuple[RunInfo, Endpoint]:
    """Return a live run and its endpoint.

    `latest` is the newest run, or the only live one: a start that was refused leaves a newer run
    that is not live.

    Args:
        root: Folder of all runs.
        ref: As for `resolve_run`.

    Raises:
        RunError: The run is not live; the message has the live ones.
        RunNotFoundError: There is no such run.
    """
    with RunReader(resolve_run(root, ref)) as reader:
        info = reader.run()
    live = [] if info.is_alive else [run for run in list_runs(root) if run.is_alive]
    if ref == LATEST and len(live) == 1:
        info = live[0]
    endpoint = read_endpoint(info.folder)
    if not info.is_alive or endpoint is None:
        names = ", ".join(run.run_id for run in live[:NAMES_SHOWN]) or "none"
        raise RunError(f"{info.run_id}: must be live, got status {info.status}; live runs: {names}")
    return info, endpoint


def _show(options: argparse.Namespace) -> int:
    folder = resolve_run(options.runs, options.run)
    others = _plugin_estimators(options.estimator, options.option)
    if options.estimators or others:
        return _estimators(folder, others, as_json=options.json)
    if options.why is not None:
        return _why(folder, options)
    if options.device is not None:
        raise UsageError("--device: must be beside --why ROUND; add it, or remove --device")
    with RunReader(folder) as reader:
        summary = summarise_run(reader, reveals=options.reveal)
    for line in _differences_in_grid(folder):
        print(f"fairbed: warning: {printable(line)}", file=sys.stderr)
    print(
        msgspec.json.encode(summary).decode()
        if options.json
        else summary_table(summary, output_width())
    )
    return DONE


def _differences_in_grid(folder: Path) -> list[str]:
    """Return the inputs in which the runs of the grid of a run differ; none for other runs."""
    from fairbed.testbed.compare.folder import inputs_of_siblings
    from fairbed.testbed.compare.run_warnings import differing_inputs

    return differing_inputs(inputs_of_siblings(folder))


def _why(folder: Path, options: argparse.Namespace) -> int:
    """Print why devices were selected in a round, or not."""
    with RunReader(folder) as reader:
        choice, closed = read_choice(reader, options.why), reader.run().rounds_completed
    if choice is None:
        raise UsageError(
            f"--why: must be a closed round of {folder.name}, 1 to {closed}, got {options.why}"
            if closed
            else f"--why: {folder.name} must have a closed round, got none; wait for the first"
        )
    if (name := options.device) is not None:
        found = tuple(one for one in choice.devices if one.device == name)
        if not found:
            known = ", ".join(sorted(one.device for one in choice.devices)[:NAMES_SHOWN])
            raise UsageError(
                f"--device: must be a device of round {choice.round}, such as {known}, got {name!r}"
            )
        choice = msgspec.structs.replace(choice, devices=found)
    print(
        msgspec.json.encode(choice).decode()
        if options.json
        else choice_table(choice, output_width())
    )
    return DONE


def _plugin_estimators(names: Sequence[str], options: Sequence[str]) -> dict[str, Learner]:
    """Return plug-in estimators with empty state, by name.

    Raises:
        UsageError: One cannot be loaded, or the options are not for one plug-in.
    """
    if options and len(names) != 1:
        raise UsageError(
            f"--option: must be for one --estimator, got {len(names)}; compare one at a time"
        )
    made = dict[str, Learner]()
    try:
        for name in names:
            if name in ESTIMATORS:
                raise UsageError(
                    f"--estimator: must be a plug-in, got {name!r}; the built-in ones are compared "
                    "anyway"
                )
            section = SelectionConfig(estimator=name, estimator_options=part_options(options))
            made[name] = make_estimator(section)
    except (PluginError, ValueError) as exc:
        raise UsageError(str(exc)) from exc
    return made


def _estimators(folder: Path, others: Mapping[str, Learner], *, as_json: bool) -> int:
    """Print the errors of the estimators; in a clone also those of the oracle predictors."""
    try:
        found = from_clone("experiments.oracle.errors").errors_of_run(folder, others=others)
    except UsageError:  # an installed package has no oracle predictors
        with RunReader(folder) as reader:
            found = compare_estimators(reader, others=others)
    except (BackendError, DatasetError, ExperimentError) as exc:
        raise RunError(str(exc)) from exc
    with RunReader(folder) as reader:
        found = stated(found, reader)
    print(msgspec.json.encode(found).decode() if as_json else estimates_table(found))
    return DONE


def _list(options: argparse.Namespace) -> int:
    runs = find_runs(options.runs)
    if options.json:
        rows: list[dict[str, str | int | float | list[str] | None]] = [
            {
                "run_id": run.run_id,
                "name": run.row.name,
                "status": run.status,
                "waiting": run.waiting,
                "kind": _kind(run),
                "resume_command": run.resume_command,
                "created": run.row.created,
                "rounds_completed": run.rounds_completed,
                "rounds_empty": run.rounds_empty,
                "devices": run.devices,
                "task": run.row.task,
                "accuracy_mean": run.accuracy_mean,
                "rmse_mean": run.rmse_mean,
                "alerts": [f"{alert.kind}: {alert.text}" for alert in run.alerts],
                "folder": str(run.folder),
            }
            for run in runs.readable
        ]
        rows += [
            {
                "run_id": run.folder.name,
                "name": None,
                "status": run.status,
                "waiting": "",
                "kind": None,
                "resume_command": None,
                "created": None,
                "rounds_completed": None,
                "rounds_empty": None,
                "devices": None,
                "task": None,
                "accuracy_mean": None,
                "rmse_mean": None,
                "alerts": [],
                "folder": str(run.folder),
            }
            for run in runs.unreadable
        ]
        print(msgspec.json.encode(rows).decode())
        return DONE
    if not runs.readable and not runs.unreadable:
        print(f"no runs in {options.runs}; start one with: fairbed run examples/quickstart.toml")
        return DONE
    table = [HEADINGS, *(_cells(run) for run in runs.readable)]
    widths = [max(len(cells[i]) for cells in table) for i in range(len(HEADINGS))]
    widths[0] = max([widths[0], *(len(found.folder.name) for found in runs.unreadable)])
    for cells in table:
        texts = [cell.ljust(width) for cell, width in zip(cells[:3], widths[:3], strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(cells[3:], widths[3:], strict=True)]
        print("  ".join([*texts, *numbers]))
    for found in runs.unreadable:
        print(f"{found.folder.name.ljust(widths[0])}  {found.status}: {printable(found.problem)}")
    for run in runs.readable:
        for alert in run.alerts:
            print(f"{run.run_id}: {alert.kind}: {alert.text}")
    for run in [run for run in runs.readable if run.status == "interrupted"][:RESUMES_SHOWN]:
        print(f"{run.run_id} was interrupted; continue it with: {run.resume_command}")
    return DONE


def _quality(run: RunInfo) -> str:
    """Return the latest accuracy, or the error of regression with its name."""
    if run.quality is None:
        return "-"
    return f"{'RMSE ' if run.row.task == 'regression' else ''}{run.quality:.3f}"


def _cells(run: RunInfo) -> tuple[str, ...]:
    """Return the cells of a run, below `HEADINGS`."""
    planned = f"/{run.last_round}" if run.last_round else ""
    return (
        run.run_id,
        run.shown_status,
        _kind(run),
        f"{run.rounds_completed}{planned}",
        str(run.devices),
        _quality(run),
    )


def _kind(run: RunInfo) -> str:
    """Return whether processes took part in a run, or a virtual clock replayed it."""
    return "replay" if run.row.clock == "virtual" else "live"


def _stop(options: argparse.Namespace) -> int:
    info, endpoint = live_endpoint(options.runs, options.run)
    folder = info.folder
    answer = anyio.run(ask_run, endpoint, make_command("stop"), 1.0)
    if answer is not None and not answer.is_accepted:
        raise RunError(f"{info.run_id}: {answer.text}")
    deadline = time.monotonic() + STOP_S
    while time.monotonic() < deadline:
        with RunReader(folder) as reader:
            info = reader.run()
        if not info.is_alive:
            print(f"{info.run_id}: {info.status} after {info.rounds_completed} rounds")
            return DONE
        time.sleep(0.1)
    raise RunError(
        f"{info.run_id}: must end within {STOP_S:g} s of the stop command, got a live run; wait, "
        "or kill its process"
    )


def _remove(options: argparse.Namespace) -> int:
    folder = resolve_run(options.runs, options.run)
    if is_locked(folder):
        raise UsageError(f"{folder}: this run is live; stop it first: fairbed stop {folder}")
    if not (folder / CONFIG).is_file():
        raise UsageError(f"{folder}: must have the file {CONFIG}, got none; delete it by hand")
    locked = _first_not_writable(folder)
    if locked is not None:  # checked first, so that nothing is deleted in part
        raise RunError(
            f"{locked}: must be writable to delete the run, got: Permission denied; change its "
            "permissions, or delete the run as its owner"
        )
    try:
        shutil.rmtree(folder)
    except OSError as exc:
        raise RunError(
            f"{folder}: must be deletable, got: {exc.strerror or exc} at {exc.filename}; a part "
            "may be left, delete it by hand"
        ) from exc
    print(f"{folder}: deleted")
    return DONE


def _first_not_writable(folder: Path) -> Path | None:
    """Return the first folder that must be writable to delete a folder, and is not."""
    inside = [Path(path) for path, _, _ in os.walk(folder)]
    for path in (folder.resolve().parent, *inside):
        if not os.access(path, os.W_OK | os.X_OK, effective_ids=_EFFECTIVE_IDS):
            return path
    return None


def _logs(options: argparse.Namespace) -> int:
    """Print the whole log of an emulated device, or the lines that another device sent."""
    try:
        folder = resolve_run(options.runs, options.run)
    except RunNotFoundError as exc:
        if _is_run(options.runs, options.name):
            raise _wrong_order(options.name, options.run) from exc
        raise
    logs = folder / "logs"
    path = logs / f"{options.name}.log"
    if is_device_name(options.name) and path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            print(line)
        return DONE
    with RunReader(folder) as reader:
        lines = reader.device_log(options.name)
        known = {device.name for device in reader.devices()}
        is_replay = reader.run().row.clock == "virtual"
    for _, row in lines:
        print(f"{instant(row.at_s):>8} {row.level.upper():<7} {row.text}")
    if is_replay and options.name in known:
        raise RunError(f"logs: {options.name} was replayed: it had no agent, so it has no log")
    if not lines and options.name in known:
        raise RunError(
            f"logs: {options.name} has sent no line of its log: its agent is too old, or its owner "
            'set send_log = "off"; its log is on the device'
        )
    if not lines:
        names = sorted(known | {p.stem for p in logs.glob("*.log")}) or ["none"]
        if _is_run(options.runs, options.name):
            raise _wrong_order(options.name, names[0])
        raise UsageError(f"logs: no device {options.name!r}; there are: {', '.join(names)}")
    return DONE


def _is_run(runs: Path, name: str) -> bool:
    try:
        resolve_run(runs, name)
    except RunNotFoundError:
        return False
    return True


def _wrong_order(run: str, device: str) -> UsageError:
    return UsageError(
        f"logs: the device comes first, then the run, got the run {run!r} in its place; run: "
        f"fairbed logs {device} {run}"
    )
