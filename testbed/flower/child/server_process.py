"""The ServerApp of a Flower app, in its own interpreter, with the coordinator as its grid.

    PYTHON -u watching.py "" server_process.py SOCKET

SOCKET is the number of an inherited socket to the coordinator's process.
`device_agent/clients/child/watching.py` ends this process with that one, and all that the app has
started with it. Files that the app writes go to the working directory, which is not the folder of
the app: they would change its hash. Both speak in frames (`device_agent/clients/child/frames.py`).
The other end is `testbed/flower/server.py`.

To this process (what `do` is):

    start     folder, component, run_config, run, policy (app or ours), merge (strategy or ours),
              poll_s, nodes (ids), first_round (above 1 after a resume)
                                                        parts: arrays (records, of a resume)
    nodes     nodes: the ids of the devices that are willing, once the fleet is there, and whenever
              they change; an app that asks for them before waits
    cohort    round, nodes                              answers `cohort`
    reply     id, or code and reason of an error        parts: records (with an id alone)
    merged    round                                     parts: arrays   answers `aggregated`, if
                                                        merge is ours
    stop      the run is over; the process ends

From it (what `is` is), in this order:

    loaded    flwr (version)
    strategy  name, num_rounds, first_round, weighted_by, arrays_key, lost (what a resume loses),
              settings                                  parts: arrays (at the start)
    cohort    round: `configure_train` waits for it, if the policy is ours
    payload   index                                     parts: raw      before the push that has it;
              one of the last push is not sent again
    push      round (0 without a strategy), type, group, is_whole, timeout_s (0: none), messages:
              each {id, node, ttl_s, payload, config}, configs: sizes   parts: configs, joined
    ended     ids: messages whose replies the app does not wait for any more
    aggregated  round, metrics by name                  parts: arrays (none if there are none)
    metrics   round, where (devices or server), metrics by name
    waits     round, waited_s, offered, needed (0: unknown): the app polls the nodes
    resumed   first_round, lost: the app has taken the arrays of the resume
    done      rounds                                    parts: arrays (none if there are none)
    failed    error (one line), trace (lines)

`payload` is the number of a payload, bytes of records; equal arrays in several messages have one
number. `config` is the index in `configs`. `flower_records.py` beside the frames states what both
are. A device gets them as they are, and the records of its reply come back as they are.
With `is_whole`, the app waits for these messages and sends no more of that group.
"""

import os
import signal
import socket
import sys
import traceback
import types
from pathlib import Path
from typing import Any

if "fairbed" not in sys.modules:  # run by its path: the modules beside it, without their packages
    package = types.ModuleType("fairbed")
    package.__path__ = [str(Path(__file__).resolve().parents[3])]
    sys.modules["fairbed"] = package

from fairbed.device_agent.clients.child.kinds import ClientError
from fairbed.testbed.flower.child.app_link import AppLink, Start, StopApp

MAX_TRACE_LINES, MAX_ERROR = 12, 400


def one_line(exc: BaseException) -> str:
    """Return an error as one line, with its type unless it is ours."""
    text = " ".join(str(exc).split())
    if not isinstance(exc, (ClientError, StopApp)):
        text = f"{type(exc).__name__}: {text}" if text else type(exc).__name__
    return text if len(text) <= MAX_ERROR else text[: MAX_ERROR - 3] + "..."


def trace_of(exc: BaseException, folder: str) -> list[str]:
    """Return the last lines of a traceback, from the first line of the app."""
    frames = traceback.extract_tb(exc.__traceback__)
    at = next((i for i, x in enumerate(frames) if x.filename.startswith(folder)), 0)
    lines = traceback.StackSummary.from_list(frames[at:]).format()
    lines += traceback.format_exception_only(type(exc), exc)
    return [line for text in lines for line in text.splitlines()][-MAX_TRACE_LINES:]


def load(start: Start) -> Any:
    """Return the ServerApp that `start` names.

    Raises:
        ClientError: There is none; the message is one line.
    """
    from flwr.serverapp import ServerApp

    from fairbed.device_agent.clients.child.flower import load_component

    try:
        return load_component(start.folder, start.component, ServerApp, "serverapp")
    except ModuleNotFoundError as exc:
        module, name = start.component.partition(":")[0], exc.name or "?"
        if f"{module}.".startswith(f"{name}."):
            raise ClientError(
                f"serverapp: {name} must be a module in {start.folder}, got none; correct its name"
            ) from exc
        raise ClientError(
            f"serverapp: needs the package {name}, which {sys.executable} has not; install it there"
        ) from exc


def run(link: AppLink, start: Start) -> None:
    """Run the ServerApp until it returns.

    Raises:
        StopApp: The run has been stopped, or the app broke a rule.
        Exception: What the app raises.
    """
    import flwr
    from flwr.app import Context, RecordDict

    from fairbed.testbed.flower.child.app_grid import NODE_ID, AppGrid, identify
    from fairbed.testbed.flower.child.resuming import offer_arrays
    from fairbed.testbed.flower.child.strategies import Strategies

    identify(start.run)
    strategies = Strategies(link, start)
    strategies.wrap()
    offer_arrays(link, start)
    app = load(start)
    link.send({"is": "loaded", "flwr": flwr.__version__})
    grid = AppGrid(link, start, strategies)
    context = Context(start.run, NODE_ID, {}, RecordDict(), dict(start.run_config))
    app(grid, context)
    grid.flush()
    strategies.finish()


def _raise_stop(number: int, frame: types.FrameType | None) -> None:
    raise StopApp("the run has been stopped")


def main(arguments: list[str]) -> int:
    """Serve `SOCKET`."""
    signal.signal(signal.SIGTERM, _raise_stop)
    link = AppLink(socket.socket(fileno=int(arguments[0])))
    start = link.start()
    status = 1
    try:
        sys.path[:] = [start.folder, *(x for x in sys.path if x)]
        run(link, start)
        status = 0
    except BaseException as exc:  # the code of the user may raise anything, such as SystemExit
        reason: BaseException = link.failure or exc
        error = one_line(reason)
        if isinstance(reason, SystemExit):
            error = f"the ServerApp must return, got sys.exit({reason.code!r:.60})"
        trace = [] if isinstance(reason, (StopApp, ClientError)) else trace_of(exc, start.folder)
        link.send_last({"is": "failed", "error": error, "trace": trace})
    os._exit(status)  # threads that the app has left must not keep the process


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
