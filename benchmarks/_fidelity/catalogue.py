"""The quantities by group, the devices that they need, and their measurement."""

import tempfile
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
    """Measure groups of quantities on one backend; unavailable ones are unknown, with a reason."""
    rows: list[Row] = []
    for name in names:
        group = GROUPS[name]
        found: list[Row] = []
        for parts, is_delayed, has_jitter in (
            (group.near, False, False),
            (group.far, True, False),
            (group.jittered, True, True),
        ):
            if parts:
                found += await _on_device(backend, name, parts, plan, is_delayed, has_jitter)
        for part in group.fleet:
            found += await _on_fleet(backend, name, part, plan)
        rows += [msgspec.structs.replace(row, group=name) for row in found]
    return rows


async def _on_device(
    backend: BackendName,
    name: str,
    parts: Iterable[OnDevice],
    plan: Plan,
    is_delayed: bool,
    has_jitter: bool,
) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
        try:
            async with open_measured_device(
                backend, Path(folder), is_delayed=is_delayed, has_jitter=has_jitter
            ) as measured:
                for part in parts:
                    rows += await part(measured, plan)
        except BackendError as exc:
            rows.append(_broken(backend, name, exc))
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
