"""Times of the exchanges of a live run before it starts, as a replay of it would have them.

They decide which dilation the run needs (`testbed.emulation.machine_delay`). A device that trains
in consecutive rounds keeps session and data, and its connection is in use: it has no slow start.
The training of a client is unknown before the run, and so are the times of devices in cells, which
wait for each other.
"""

import os

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.testbed.emulation.machine_delay import ExchangeTimes
from fairbed.testbed.emulation.tcp import slow_start_s
from fairbed.testbed.emulation.work import TaskCosts
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.experiment.shards import FleetData
from fairbed.testbed.replay.setup import (
    evaluation_speeds,
    fitting_part_sizes,
    in_reference_cores,
    lengths_of,
    world_of,
)
from fairbed.testbed.replay.world.columns import columns_of
from fairbed.wire.artifact import Artifact

INSTANTS, APART_S = 8, 61.0
"""Exchanges of each device of a fleet whose conditions vary, and the time between them, seconds."""


def expected_exchanges(
    experiment: Experiment, data: FleetData, artifact: Artifact, costs: TaskCosts
) -> ExchangeTimes | None:
    """Return the times of exchanges of the emulated devices; None if no device has a profile.

    Args:
        experiment: The experiment of the run.
        data: The division of its data.
        artifact: Its task.
        costs: Costs of the task, in seconds of one core of the reference machine.

    Raises:
        ExperimentError: Training does not fit into the memory of a device.
        ProfileError: A profile, link or trace cannot be used.
    """
    replay = msgspec.structs.replace(experiment.replay, task_costs=costs, noise=0.0)
    fleet = tuple(msgspec.structs.replace(g, exchange_times=None) for g in experiment.fleet)
    experiment = msgspec.structs.replace(experiment, replay=replay, fleet=fleet)
    planned = plan_fleet(in_reference_cores(experiment), os.environ)
    placed = [
        (place, device.at_task(experiment, costs))
        for place, device in enumerate(planned)
        if device.profile is not None and not device.is_physical
    ]
    if not placed:
        return None
    places, devices = [place for place, _ in placed], [device for _, device in placed]
    examples = np.array([len(rows) for rows in data.train_rows], dtype=np.int64)
    lengths = lengths_of(data.dataset, data, examples, costs)
    names = [device.spec.name for device in devices]
    memory = np.array([0 if d.profile is None else d.profile.memory_bytes for d in devices])
    conditions = columns_of(devices)
    world, _ = world_of(
        experiment,
        artifact.spec.layout,
        data.dataset.example_bytes,
        conditions,
        examples[places],
        fitting_part_sizes(experiment, artifact, names, memory, examples[places]),
        None if lengths is None else lengths[places],
        evaluation_speed=evaluation_speeds(devices),
    )
    means, varying = conditions
    in_use_s = np.zeros(len(devices))
    for bits, bps in zip(world.transfer_bits, (means.down_bps, means.up_bps), strict=True):
        in_use_s += slow_start_s(bits, bits / bps, 2.0 * means.delay_s)
    in_use_s[list(varying.links)] = 0.0  # a replay of these has no slow start
    rows: Ints = np.arange(len(devices), dtype=np.int64)
    instants = INSTANTS if varying.links else 1
    cold_s = np.full((instants, len(rows)), np.nan)
    warm_s = cold_s.copy()
    for at in range(instants):
        exchanges = world.exchange(at + 1, at * APART_S, rows)
        took_s = exchanges.ready_s + exchanges.upload_s
        is_known = np.isfinite(took_s) & ~np.isin(rows, list(exchanges.faults))
        cold_s[at, is_known] = took_s[is_known]
        warm_s[at, is_known] = (took_s - exchanges.load_s - in_use_s)[is_known]
    # A device frees session and data unless it trains in consecutive rounds.
    warm_share = min(1.0, experiment.coordinator().cohort_size / max(len(planned), 1))
    return ExchangeTimes(cold_s, warm_s, warm_share)
