"""A whole replay: a world from an experiment, its rounds, and the store that keeps them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from coordinator.decisions import make_decisions
from coordinator.store import Store
from testbed.experiment import Experiment, ExperimentError, FleetConfig
from testbed.fleet import MAX_NAME
from testbed.replay.linear import LinearLaw, LinearWorld
from testbed.replay.play import Played, play
from testbed.replay.record import device_rows, round_rows


@dataclass(frozen=True, slots=True)
class Cast:
    """Who takes part: one entry a device, in the order of rows."""

    names: tuple[str, ...]
    groups: tuple[str, ...]
    laws: tuple[LinearLaw, ...]


def cast_of(experiment: Experiment) -> Cast:
    """Return the devices of an experiment whose fleet is linear.

    Raises:
        ExperimentError: A group is of another kind, there is none, or a name would be too long.
    """
    if not experiment.fleet:
        raise ExperimentError(
            'fleet: a replay needs devices, got none; add [[fleet]] with model = "linear"'
        )
    names, groups, laws = list[str](), list[str](), list[LinearLaw]()
    for number, group in enumerate(experiment.fleet):
        if group.model is None or group.theta is None:
            raise ExperimentError(
                f'fleet[{number}].model: must be "linear" for a replay, got a device to emulate; '
                "fairbed run emulates it"
            )
        prefix = group.name or f"linear-{number + 1}"
        if len(f"{prefix}-{group.count}") > MAX_NAME:
            raise ExperimentError(
                f"fleet[{number}].name: must leave room for the device's number, got {prefix!r}; "
                "give a shorter name"
            )
        names += [f"{prefix}-{i}" for i in range(1, group.count + 1)]
        groups += [prefix] * group.count
        laws += [_law(group, group.theta)] * group.count
    if len(set(names)) < len(names):
        raise ExperimentError("fleet: names must differ, got a name twice; name the groups apart")
    return Cast(tuple(names), tuple(groups), tuple(laws))


def _law(group: FleetConfig, theta: tuple[float, float, float]) -> LinearLaw:
    return LinearLaw(
        theta=theta,
        mu=group.mu,
        bandwidth_bps=group.bandwidth_bps,
        availability=group.availability,
        noise=group.noise,
    )


def replay_experiment(
    experiment: Experiment, folder: Path, run_id: str, listener: Callable[[Played], None]
) -> None:
    """Play all rounds of an experiment on the virtual clock, and keep them as a run.

    Raises:
        ExperimentError: Its fleet cannot be replayed.
        StoreError: The folder holds a run, or cannot be written.
    """
    cast = cast_of(experiment)
    world = LinearWorld(
        cast.laws, experiment.replay.update_bits, seed=experiment.seed_for("traces")
    )
    decisions = make_decisions(experiment.coordinator())
    store = Store.create(
        folder,
        run_id=run_id,
        name=experiment.name,
        experiment_toml=experiment.resolved_toml(),
        seed=experiment.seed,
        config_hash=experiment.hash(),
        version=version("fairbed"),
        git_revision=None,
    )
    try:
        store.set_status("running")
        started_s, virtual_s = time.perf_counter(), 0.0
        for row in device_rows(cast.names, cast.groups, cast.laws):
            store.add(row)
        for played in play(decisions, world, experiment.round, experiment.rounds):
            for row in round_rows(played, decisions, cast.names):
                store.add(row)
            listener(played)
            virtual_s = played.started_s + played.duration_s
        store.set_dilation((time.perf_counter() - started_s) / virtual_s)
        store.set_status("done")
    except BaseException as exc:
        is_ours = isinstance(exc, Exception)
        store.set_status("failed" if is_ours else "stopped", str(exc) if is_ours else "")
        raise
    finally:
        store.close()
