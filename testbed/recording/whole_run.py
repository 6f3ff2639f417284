"""The experiment that replays a whole run, with a recorded profile for each physical device."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import DeviceRow
from fairbed.testbed import rooms
from fairbed.testbed.emulation.work import TaskCosts
from fairbed.testbed.experiment.file import (
    EMBEDDED,
    Experiment,
    ExperimentError,
    FleetConfig,
    load_experiment,
)
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.experiment.shards import StoredShards
from fairbed.testbed.recording.run_store import CONFIG, is_emulated


def devices_to_record(folder: Path) -> list[DeviceRow]:
    """Return the devices of a run without a profile: physical ones, and plain agents of a fleet.

    Raises:
        StoreError: The store cannot be read.
    """
    with RunReader(folder) as reader:
        emulated = {row.name for row in reader.truths() if is_emulated(row)}
        return [row for row in reader.devices() if row.name not in emulated]


def recorded_experiment(
    folder: Path, recorded: Mapping[str, Path], costs: TaskCosts
) -> tuple[Experiment, list[str]]:
    """Return the experiment of a run with recorded profiles, and remarks on what differs from it.

    Emulated devices keep their own profiles. All devices keep their names and their order, by which
    they get their shards.

    Args:
        folder: Folder of the run.
        recorded: Profile of each device of `devices_to_record`, by name.
        costs: The cost of local training in the run.

    Raises:
        ExperimentError: The experiment cannot be read, or no profile can stand for a group.
        ProfileError: A profile of an emulated device cannot be read.
        StoreError: The store cannot be read.
    """
    experiment, devices = load_experiment(folder / CONFIG), devices_to_record(folder)
    planned = [device.spec.name for device in plan_fleet(experiment, os.environ)]
    shards = StoredShards.read(folder) or {}
    renamed = _renamed(planned, shards, experiment.physical)
    names = iter([renamed.get(name, name) for name in planned])
    fleet = [
        part
        for number, group in enumerate(experiment.fleet)
        for part in _with_profiles(
            f"fleet[{number}]", group, [next(names) for _ in range(group.size)], recorded
        )
    ]
    listed = {*experiment.physical, *renamed.values()}
    others = [x for x in devices if x.kind == "physical" and x.name not in listed]
    others.sort(key=lambda row: (shards.get(row.name, len(shards)), row.row))
    fleet += [_physical(row.name, recorded) for row in others]
    changed = msgspec.structs.replace(
        experiment,
        fleet=tuple(fleet),
        broker=msgspec.structs.replace(
            experiment.broker,  # without its address, which may hold a password
            url=experiment.broker.url if rooms.broker(experiment.broker.url) else EMBEDDED,
        ),
        replay=msgspec.structs.replace(experiment.replay, costs_from=str(folder), task_costs=costs),
    )
    return changed, list(_remarks(experiment, changed, devices, renamed))


def _renamed(
    planned: Sequence[str], shards: Mapping[str, int], physical: Sequence[str]
) -> dict[str, str]:
    """Return the present names of physical devices of the file that were renamed in a lab."""
    holders = {shard: name for name, shard in shards.items()}
    return {
        name: holders[k]
        for k, name in enumerate(planned)
        if name in physical and name not in shards and k in holders
    }


def _with_profiles(
    where: str, group: FleetConfig, names: Sequence[str], recorded: Mapping[str, Path]
) -> Iterator[FleetConfig]:
    """Yield the groups that stand for a group, in the order of its devices."""
    if group.physical:
        yield from (_physical(name, recorded) for name in names if name in recorded)
        return
    if group.profile is not None or group.population is not None:
        yield group
        return
    # Agents of this machine without a profile: one that never joined is as the others.
    known = [name for name in names if name in recorded]
    if not known or group.malicious is not None:
        raise ExperimentError(
            f"{where}: devices without a profile must have joined the run and be honest to be "
            f"recorded, got {'none that joined' if not known else 'malicious ones'}; give them a "
            "profile"
        )
    prefix = names[0].rpartition("-")[0]
    for name in names:
        path = str(recorded.get(name, recorded[known[0]]))
        yield msgspec.structs.replace(group, name=prefix, count=1, profile=path)


def _physical(name: str, recorded: Mapping[str, Path]) -> FleetConfig:
    return FleetConfig(physical=(name,), profile=str(recorded[name]))


def _remarks(
    before: Experiment,
    after: Experiment,
    devices: Sequence[DeviceRow],
    renamed: Mapping[str, str],
) -> Iterator[str]:
    """Yield what the replay cannot have as the run had it."""
    if absent := [x for x in before.physical if renamed.get(x, x) not in after.physical]:
        yield f"{', '.join(absent)}: never joined the run, so the replay has no such device"
    if own := [row.name for row in devices if row.has_own_data]:
        yield f"{', '.join(own)}: trained on own data, which stay there; the replay gives a shard"
    if before.shards != after.devices and not (absent or own):
        yield (
            f"the run divided its data among {before.shards} devices, the replay among "
            f"{after.devices}"
        )
