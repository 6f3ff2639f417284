"""Start a live run from a program, and wait for its end.

A live run has an event loop of its own in a thread of its own, because a notebook already has a
loop in the main thread. An interrupt arrives in the main thread, and ends the run as Ctrl-C ends
`fairbed run`: gracefully, and at the second one immediately.
"""

import os
import warnings
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.coordinator.server.service import End
from fairbed.testbed.api.errors import in_python
from fairbed.testbed.api.hosts import emulating
from fairbed.testbed.api.planning import GivenExperiment, plan_run
from fairbed.testbed.api.progress import Progress, count_rounds, shown
from fairbed.testbed.host.dilation import loop_factory
from fairbed.testbed.progress import Bar
from fairbed.testbed.run.stopping import StopControl
from fairbed.testbed.run.supervisor import RunPlan, run_experiment

if TYPE_CHECKING:
    from fairbed.testbed.api.run import Run

Event = TypeVar("Event")
T = TypeVar("T")


def run(
    experiment: GivenExperiment,
    *,
    set: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    cluster: str | None = None,
    plain: bool = False,
    progress: Progress = None,
) -> "Run":
    """Run an experiment on emulated devices, or resume such a run; return the finished run.

    Args:
        experiment: An experiment file, the same as a dict, an `Experiment`, or the folder of a run
            to resume.
        set: Other values of its keys, such as `{"selection.policy": "uniform"}`.
        out: Folder of the run; None is a new one below `runs`.
        seed: Seed of the experiment; None is its own.
        cluster: HOST:PORT of the head of a Ray cluster whose hosts emulate the devices, or `local`
            for one on this machine.
        plain: With `cluster`: the broker of the run may serve devices beyond this machine, in plain
            text.
        progress: What shows progress.

    Raises:
        UsageError: The experiment, a file that it names, or the folder cannot be used.
        RunError: The run failed; what it has stored can be read and resumed.
        KeyboardInterrupt: It was interrupted. The run is closed, and its status `stopped`.
    """
    with in_python():
        folder = None if out is None else Path(out)
        planned = partial(
            plan_run, experiment, settings=set or {}, seed=seed, out=folder, is_plain=plain
        )
        plan = planned(places_fleet=cluster is None)  # its errors do not wait for a cluster
        with emulating(cluster, lambda line: warnings.warn(line, stacklevel=2)) as hosts:
            plan = plan if hosts is None else planned(hosts=hosts)
            with shown(progress, plan.experiment.rounds, "rounds", "run") as bar:
                _run_live(plan, bar)
    from fairbed.testbed.api.run import Run  # what reads a run, for when there is one

    return Run(plan.run_id, plan.folder)


def _run_live(plan: RunPlan, bar: Bar) -> End:
    """Run a plan, or resume it; return how it ended."""
    control: list[StopControl] = []

    async def main(send: Callable[["RoundProgress | str"], None]) -> End:
        control.append(StopControl())
        return await run_experiment(
            plan,
            send,
            waiting=lambda line: send(f"waiting: {line}"),
            alerted=lambda change: send(f"alert: {change.line}"),
            stop=control[0],
        )

    def receive(event: "RoundProgress | str") -> None:
        if isinstance(event, str):
            bar.line(event)
        else:
            count_rounds(bar, event.round.round - event.round.rounds_empty)

    def stop(portal: BlockingPortal, run: "Future[End]") -> None:
        portal.call(lambda: control[0].end_gracefully())  # `main` made it: it was called before

    return followed(main, receive, stop, {"loop_factory": loop_factory(plan.dilation)})


def followed(
    main: Callable[[Callable[[Event], None]], Awaitable[T]],
    receive: Callable[[Event], object],
    stop: Callable[[BlockingPortal, "Future[T]"], object],
    options: dict[str, Any] | None = None,
) -> T:
    """Run an async function in a thread of its own; return what it returns.

    Args:
        main: The function. It gets one that sends an event to the calling thread.
        receive: Called with each event in the calling thread.
        stop: Called when the calling thread is interrupted, or `receive` raises: ends `main`. A
            second interrupt cancels it.
        options: Of the event loop, as in `anyio.run`.
    """
    events: SimpleQueue[Event | None] = SimpleQueue()
    with start_blocking_portal("asyncio", options) as portal:
        future = portal.start_task_soon(main, events.put)
        future.add_done_callback(lambda _: events.put(None))
        try:
            while (event := events.get()) is not None:
                receive(event)
        except BaseException:
            stop(portal, future)
            wait([future])
            raise
        return future.result()
