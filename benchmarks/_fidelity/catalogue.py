"""The quantities by group, the devices that they need, and their measurement."""

import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from benchmarks._fidelity import (
    bursts,
    cells,
    cpu,
    delay_and_loss,
    dilation,
    fleets,
    link,
    outage,
    queues,
    trace,
)
from benchmarks._fidelity.measure import Plan, print_row
from benchmarks._fidelity.measured_device import MeasuredDevice, open_measured_device
from benchmarks._fidelity.rows import QuantitySpec, Row, unknown
from fairbed.testbed.backends.choice import BackendName, problem_with
from fairbed.testbed.backends.containers.engine import find_engine
from fairbed.testbed.errors import BackendError

OnDevice: TypeAlias = Callable[[MeasuredDevice, Plan], Awaitable[list[Row]]]
OnFleet: TypeAlias = Callable[[BackendName, Plan, Path], Awaitable[list[Row]]]


@dataclass(frozen=True, slots=True)
class Group:
    """The measurements of one value of `--quantity`."""

    near: tuple[OnDevice, ...] = ()
    """On a device whose link has only a rate."""
    far: tuple[OnDevice, ...] = ()
    """On a device whose link has delay and loss."""
    jittered: tuple[OnDevice, ...] = ()
    """On a device whose link has jitter, too."""
    fleet: tuple[OnFleet, ...] = ()


GROUPS: Mapping[str, Group] = {
    "cpu": Group(near=(cpu.shares, cpu.quotas)),
    "step": Group(near=(cpu.steps,)),
    "work": Group(near=(cpu.work,)),
    "burst": Group(near=(bursts.bursts,)),
    "goodput": Group(near=(link.goodputs,), far=(link.far_goodputs,)),
    "transfer": Group(near=(link.transfers,)),
    "delay": Group(
        far=(delay_and_loss.delays,), jittered=(delay_and_loss.jitters, delay_and_loss.dense)
    ),
    "loss": Group(far=(delay_and_loss.losses,)),
    "queue": Group(near=(queues.under_load,)),
    "outage": Group(near=(outage.outages,)),
    "trace": Group(near=(trace.traces,)),
    "trace-steps": Group(near=(trace.short_steps,)),
    "dilation": Group(near=(dilation.steps, dilation.transfers), far=(dilation.delays,)),
    "cell": Group(fleet=(cells.shares,)),
    "driver": Group(fleet=(fleets.drivers,)),
    "fleet": Group(fleet=(fleets.set_ups,)),
}


async def problem(backend: BackendName) -> str | None:
    """Try a backend; return why it does not work here and the remedy, or None if it works."""
    found = await problem_with(backend)
    if found is None and backend == "container":
        try:
            await find_engine()
        except BackendError as exc:
            return str(exc)
    return found


async def measure(backend: BackendName, names: Iterable[str], plan: Plan) -> list[Row]:
    """Measure groups of quantities on one backend; unavailable ones are unknown, with a reason.

    Each group has devices of its own; in a quick measurement all groups share them.
    """
    rows: list[Row] = []
    wanted = list(names)
    for batch in [wanted] if plan.is_quick else [[name] for name in wanted]:
        groups = [(name, GROUPS[name]) for name in batch]
        near = [(name, part) for name, group in groups for part in group.near]
        far = [(name, part) for name, group in groups for part in group.far]
        jittered = [(name, part) for name, group in groups for part in group.jittered]
        rows += await _on_device(backend, near, plan, is_delayed=False, has_jitter=False)
        rows += await _on_device(backend, far, plan, is_delayed=True, has_jitter=False)
        rows += await _on_device(backend, jittered, plan, is_delayed=True, has_jitter=True)
        for name, group in groups:
            for fleet in group.fleet:
                rows += _named(name, await _on_fleet(backend, name, fleet, plan))
    return rows


def _named(group: str, rows: Iterable[Row]) -> list[Row]:
    return [msgspec.structs.replace(row, group=group) for row in rows]


async def _on_device(
    backend: BackendName,
    parts: Iterable[tuple[str, OnDevice]],
    plan: Plan,
    *,
    is_delayed: bool,
    has_jitter: bool,
) -> list[Row]:
    """Measure the parts of groups on one device; after a failure, the other groups on another."""
    rows: list[Row] = []
    waiting = deque(parts)
    while waiting:
        name, _ = waiting[0]
        with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
            try:
                async with open_measured_device(
                    backend, Path(folder), is_delayed=is_delayed, has_jitter=has_jitter
                ) as measured:
                    while waiting:
                        name, part = waiting.popleft()
                        rows += _named(name, await part(measured, plan))
            except BackendError as exc:
                rows += _named(name, [_broken(backend, name, exc)])
                waiting = deque(left for left in waiting if left[0] != name)
    return rows


async def _on_fleet(backend: BackendName, name: str, part: OnFleet, plan: Plan) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
        try:
            return await part(backend, plan, Path(folder))
        except BackendError as exc:
            return [_broken(backend, name, exc)]


def _broken(backend: BackendName, name: str, exc: BackendError) -> Row:
    row = unknown(QuantitySpec(backend=backend, quantity=name, target=None, unit="ratio"), str(exc))
    print_row(row)
    return row
