"""Start a live run or a replay from a program, and wait for its end.

A live run has an event loop of its own in a thread of its own, because a notebook already has a
loop in the main thread. An interrupt arrives in the main thread, and ends the run as Ctrl-C ends
`fairbed run`: gracefully, and at the second one immediately.
"""

import os
import shutil
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
from fairbed.coordinator.store import RunReader, StoreError
from fairbed.testbed.api.cluster import device_hosts, joined
from fairbed.testbed.api.errors import in_python
from fairbed.testbed.api.planning import GivenExperiment, ReplayPlan, plan_replay, plan_run
from fairbed.testbed.api.progress import Progress, shown
from fairbed.testbed.api.run import Run
from fairbed.testbed.errors import UsageError
from fairbed.testbed.host.dilation import loop_factory
from fairbed.testbed.progress import Bar
from fairbed.testbed.replay.engine.engine import ReplayedRound
from fairbed.testbed.replay.run import replay_setup
from fairbed.testbed.run.notify import notifying
from fairbed.testbed.run.stopping import StopControl
from fairbed.testbed.run.supervisor import RunPlan, run_experiment
from fairbed.testbed.run_folder import is_untouched

if TYPE_CHECKING:
    from fairbed.testbed.cluster.connection import Cluster

Event = TypeVar("Event")
T = TypeVar("T")

MAX_THREADS = 1_000
"""Maximum number of threads, as of `fairbed replay --threads`."""


def run(
    experiment: GivenExperiment,
    *,
    set: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    cluster: str | None = None,
    plain: bool = False,
    progress: Progress = None,
) -> Run:
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
        with device_hosts(cluster, lambda line: warnings.warn(line, stacklevel=2)) as hosts:
            plan = plan if hosts is None else planned(hosts=hosts)
            with shown(progress, plan.experiment.rounds, "rounds", "run") as bar:
                _run_live(plan, bar)
    return Run(plan.run_id, plan.folder)


def replay(
    experiment: GivenExperiment,
    *,
    set: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    threads: int | None = None,
    cluster: str | None = None,
    progress: Progress = None,
) -> Run:
    """Replay an experiment on a virtual clock, or resume a replay; return the finished run.

    Args:
        experiment: An experiment file, the same as a dict, an `Experiment`, or the folder of a
            replay to resume.
        set: Other values of its keys, such as `{"selection.policy": "uniform"}`.
        out: Folder of the run; None is a new one below `runs`.
        seed: Seed of the experiment; None is its own.
        threads: Devices trained at the same time, None for one per core; no result depends on it.
        cluster: HOST:PORT of the head of a Ray cluster whose hosts train a part of the devices, or
            `local` for one on this machine; no result depends on it.
        progress: What shows progress.

    Raises:
        UsageError: The experiment, a file that it names, or the folder cannot be used.
        RunError: The replay failed.
        KeyboardInterrupt: It was interrupted. The run is closed, and its status `stopped`.
    """
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UsageError(f"threads: must be from 1 to {MAX_THREADS:,}, got {threads}")
    with in_python():
        folder = None if out is None else Path(out)
        plan = plan_replay(experiment, settings=set or {}, seed=seed, out=folder)
        for warning in plan.warnings:
            warnings.warn(warning, stacklevel=2)
        planned = plan.setup.experiment
        with (
            joined(cluster, [planned], lambda line: warnings.warn(line, stacklevel=2)) as hosts,
            shown(progress, planned.rounds, "rounds", "replay") as bar,
        ):
            run_replay(plan, bar, threads, hosts)
    return Run(plan.run_id, plan.folder)


def run_replay(
    plan: ReplayPlan, bar: Bar, threads: int | None = None, cluster: "Cluster | None" = None
) -> int:
    """Replay all rounds of a plan; return the number of rounds that were replayed.

    An interrupt closes the run; one before its first row leaves no file behind.

    Args:
        plan: The replay.
        bar: Counts the rounds; those before a resumed one have no rate.
        threads: Devices trained at the same time; None is one per core.
        cluster: Hosts that train a part of the devices.

    Raises:
        Exception: A one-line error of a package: data, profile, store, ...
    """

    def on_round(replayed: ReplayedRound) -> None:
        _count(bar, replayed.choice.round - replayed.after.rounds_empty)

    is_new = is_untouched(plan.folder)
    try:
        with notifying(plan.notify, plan.folder):
            return replay_setup(
                plan.setup,
                plan.folder,
                plan.run_id,
                on_round,
                threads=threads,
                cluster=cluster,
                origin=plan.origin,
                origins=plan.origins,
            )
    finally:
        if is_new and not _has_begun(plan.folder):
            shutil.rmtree(plan.folder, ignore_errors=True)


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
            _count(bar, event.round.round - event.round.rounds_empty)

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


def _count(bar: Bar, rounds: int) -> None:
    """Count the rounds that were not empty; those before a resumed run have no rate."""
    bar.skip(max(rounds - 1 - bar.done, 0))
    bar.update(rounds)


def _has_begun(folder: Path) -> bool:
    """Return whether a folder has a run that can be read."""
    try:
        with RunReader(folder) as reader:
            reader.run()
    except StoreError:
        return False
    return True
