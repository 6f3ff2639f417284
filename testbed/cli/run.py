"""`fairbed run` and `fairbed coordinator`: start a run or resume one.

On a terminal the TUI shows the run (`testbed.cli.watch`); otherwise, and on a dumb terminal, one
line per round.
"""

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from shlex import quote
from typing import TextIO

import anyio
import msgspec

from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.connection import CONFIG, DATABASE
from fairbed.device_agent.memory import share_one_heap
from fairbed.testbed.api.errors import one_line_errors
from fairbed.testbed.api.hosts import emulating
from fairbed.testbed.api.planning import plan_run
from fairbed.testbed.cli import DONE, FAILED, NOT_BEGUN, output_width, shows_screens
from fairbed.testbed.cli.following import Followers, followers_of
from fairbed.testbed.experiment.file import EMBEDDED
from fairbed.testbed.host.dilation import loop_factory
from fairbed.testbed.host.termination import default_signals
from fairbed.testbed.progress import Bar, is_dumb_terminal, progress
from fairbed.testbed.run.stopping import ended_by_signals
from fairbed.testbed.run.supervisor import RunPlan, run_experiment
from fairbed.wire.console import log_lines
from fairbed.wire.printable import printable


def main(options: argparse.Namespace) -> int:
    """Run an experiment or resume a run; return the exit code."""
    address: str | None = options.hosts
    is_shown = shows_screens() and not (options.headless or options.json)
    planned = partial(
        plan_run,
        options.experiment,
        settings=options.set,
        seed=options.seed,
        out=options.out,
        has_fleet=options.command != "coordinator",
        listen=getattr(options, "listen", "127.0.0.1"),
        is_plain=getattr(options, "plain", False),
        predicts=not is_shown,  # the process of the run does
    )
    with one_line_errors():
        plan = planned(places_fleet=address is None)  # its errors do not wait for a cluster
    for remark in plan.remarks:
        _print(sys.stderr, f"fairbed: {remark}")
    if is_shown:
        from fairbed.testbed.cli.watch import run_with_tui

        default_signals()  # this process only shows the run
        is_detached = run_with_tui(plan, options)
        return DONE if is_detached else _close(plan, as_json=False)
    share_one_heap()
    with ExitStack() as stack:
        if address is not None:
            with one_line_errors():
                hosts = stack.enter_context(emulating(address, _warn))
                plan = planned(hosts=hosts)
        return _run_headless(plan, options, stack.enter_context(followers_of(options)))


def _close(plan: RunPlan, *, as_json: bool) -> int:
    """Print the summary of an ended run; return the exit code."""
    from fairbed.coordinator.report.summary import summarise_run
    from fairbed.coordinator.report.summary_table import summary_table

    with RunReader(plan.folder) as reader:
        summary = summarise_run(reader)
        can_be_replayed = reader.run().plan.can_be_replayed
    if as_json:
        print(msgspec.json.encode(summary).decode())
    else:
        print(summary_table(summary, output_width()))
        if plan.has_fleet and summary.status == "done" and can_be_replayed:
            if any(device.kind == "physical" for device in summary.fleet):
                print(
                    "\na record of this run, to replay it on a virtual clock:\n"
                    f"  fairbed record --all --run {quote(str(plan.folder))} "
                    f"--out {quote(plan.folder.name + '-recorded')}"
                )
            else:
                print(
                    "\nthe same on a virtual clock, with the costs of this run:\n"
                    f"  fairbed replay {quote(str(plan.folder / CONFIG))} "
                    f"--set {quote(f'replay.costs_from={plan.folder}')}"
                )
    return DONE if summary.status in ("done", "stopped") else FAILED


def _run_headless(plan: RunPlan, options: argparse.Namespace, followers: Followers) -> int:
    is_debug = hasattr(options, "debug")
    out = sys.stderr if options.json else sys.stdout
    log_lines("debug" if is_debug else "warning")
    physical, rounds = len(plan.experiment.physical), plan.rounds
    emulated = plan.experiment.devices - physical if plan.has_fleet else 0
    devices = f"{emulated} emulated devices" + (f" and {physical} physical" if physical else "")
    planned = "the rounds of the app" if rounds is None else f"{rounds} rounds"
    _print(out, f"run {plan.run_id}: {planned}, {devices}, in {plan.folder}")
    if not plan.has_fleet:
        is_named = plan.experiment.broker.url.isidentifier()  # enrolled where the broker is
        is_named = is_named and plan.experiment.broker.url != EMBEDDED
        of_run = "" if is_named else f" --run {plan.folder}"
        _print(out, f"to add a device, run: fairbed enroll NAME{of_run}")
    for line in followers.lines:
        _print(out, line)
    with ExitStack() as shown:
        shown.enter_context(one_line_errors())
        shown.enter_context(followers.following(plan.folder))
        bar: Bar | None = None
        if out.isatty() and not is_dumb_terminal():  # elsewhere the lines are enough
            bar = shown.enter_context(progress(rounds, "rounds", "run", out, is_ticking=False))
        above: Callable[[str], None] | None = None if bar is None else bar.line
        show_line = above or partial(_print, out)
        warn = above or partial(_print, sys.stderr)

        def closed(one: RoundProgress) -> None:
            if not one.is_repeated:
                show_line(one.line(rounds or 0))
            if bar is not None:
                counted = one.round.round - one.round.rounds_empty
                if not bar.done:  # the first round of a resumed run
                    bar.skip(max(counted - 1, 0))
                bar.update(counted)

        run = partial(
            run_experiment,
            plan,
            closed,
            lambda line: show_line(f"waiting: {line}"),
            alerted=lambda change: show_line(f"alert: {change.line}"),
            is_attached=options.attached,
            signals=partial(
                ended_by_signals,
                interrupted=lambda: warn(
                    "fairbed: stopping; press Ctrl-C again to stop immediately"
                ),
            ),
        )
        anyio.run(run, backend_options={"loop_factory": loop_factory(plan.dilation)})
    if not (plan.folder / DATABASE).exists():
        _print(sys.stderr, f"fairbed: {NOT_BEGUN}")
        return DONE
    return _close(plan, as_json=options.json)


def _warn(line: str) -> None:
    _print(sys.stderr, f"warning: {line}")


def _print(out: TextIO, line: str) -> None:
    with suppress(BrokenPipeError):
        print(printable(line), file=out, flush=True)
