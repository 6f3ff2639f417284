"""The experiments of a comparison: the recorded run, the predicted runs and the replays.

The profiles of the replays are recorded from a live run, one per device.
"""

from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from fairbed.coordinator.policy.config import EvaluationConfig
from fairbed.profiles import Profile
from fairbed.testbed.experiment.file import Experiment, ExperimentError, FleetConfig, SeedsConfig
from fairbed.testbed.experiment.fleet import PlannedDevice
from fairbed.testbed.recording.analysis.compose import Identity, compose, trace_name
from fairbed.testbed.recording.analysis.findings import Findings
from fairbed.testbed.recording.analysis.from_run import (
    DeviceOfRun,
    TrainingSettings,
    findings_of_run,
)
from fairbed.testbed.recording.run_store import read_device, read_training
from fairbed.testbed.replay.world.columns import loses_packets

RECORDED_POLICY, RECORDED_SEED = "uniform", 1
"""Of run A; all devices take part in it equally."""

PREDICTED_POLICY, PREDICTED_SEED = "rbcs-f", 2
"""Of run B and its repeats."""


def check_rounds(experiment: Experiment) -> None:
    """Check that every exchange ends with its round.

    Otherwise cohorts and instants do not determine a run.

    Raises:
        ExperimentError: Exchanges may outlive their rounds.
    """
    if experiment.round.merges_late_updates:
        key = "mode" if experiment.round.is_buffered else "late"
        raise ExperimentError(
            f"round.{key}: must be left out of a comparison, got "
            f"{getattr(experiment.round, key)!r}: the cohorts of a live run can be imposed on a "
            "replay only if each exchange ends with its round"
        )


def recorded(experiment: Experiment) -> Experiment:
    """Return run A, whose devices are recorded."""
    return _variant(experiment, "a", RECORDED_POLICY, RECORDED_SEED)


def predicted(experiment: Experiment) -> Experiment:
    """Return run B, which a replay of the devices recorded in A predicts."""
    return _variant(experiment, "b", PREDICTED_POLICY, PREDICTED_SEED)


def with_packets(experiment: Experiment, seed: int) -> Experiment:
    """Return the experiment with other lost packets, in the same loss windows."""
    return structs.replace(experiment, seeds=structs.replace(experiment.seeds, packets=seed))


def _variant(experiment: Experiment, name: str, policy: str, seed: int) -> Experiment:
    """Return an experiment with the same devices, data and traces, but other random draws.

    It is evaluated at its end only: the duration of an evaluation depends on this machine and
    would shift the devices along their traces.
    """
    shared = ("data", "init", "fleet", "traces")
    return structs.replace(
        experiment,
        name=f"{experiment.name[:60]}-{name}",
        seed=seed,
        seeds=SeedsConfig(**{purpose: experiment.seed_for(purpose) for purpose in shared}),
        selection=structs.replace(experiment.selection, policy=policy),
        evaluation=EvaluationConfig(every=0),
    )


LINK_RATES = ("link.down_bps", "link.up_bps")


def record_fleet(run: Path, planned: Sequence[PlannedDevice], folder: Path) -> list[Path]:
    """Write the profile of each device of a run; return the files in the order of the devices.

    Values that no run contains (storage, memory, heat) are those of the emulated profile. So are
    the rates of a link that varies or loses packets: a recording observes it during transfers
    only, and the replay uses the link itself, from the same instants as the live run.

    Args:
        run: Folder of the run.
        planned: Devices of the run, each with a profile.
        folder: Receives the files.

    Raises:
        IncompleteProfile: The run lacks a number that a profile needs.
        StoreError: The run cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    training = read_training(run)
    return [_record(read_device(run, d.spec.name), d, training, folder) for d in planned]


def replayed(
    experiment: Experiment, planned: Sequence[PlannedDevice], files: Sequence[Path]
) -> Experiment:
    """Return an experiment whose devices are the recorded ones, with the same names and traces."""
    groups = [group for group in experiment.fleet for _ in range(group.count)]
    fleet = [
        structs.replace(
            group,
            profile=str(file),
            population=None,
            count=1,
            name=device.spec.name.rpartition("-")[0],
            link=group.link if keeps_link(device) else None,
            trace=group.trace if keeps_link(device) else None,
        )
        for group, device, file in zip(groups, planned, files, strict=True)
    ]
    return structs.replace(experiment, fleet=tuple[FleetConfig, ...](fleet))


def has_variable_link(device: PlannedDevice) -> bool:
    """Return whether the rates of a device's link change over time."""
    link = device.tracks.link
    return link is not None and not (link.down_bps.is_constant and link.up_bps.is_constant)


def keeps_link(device: PlannedDevice) -> bool:
    """Return whether a replay has the link of the experiment, not the recorded one.

    A transfer does not measure the rate of such a link: it varies, TCP under loss is slower, or
    others of its cell take part of it.
    """
    return has_variable_link(device) or loses_packets(device) or bool(device.spec.cells)


def _record(
    measured: DeviceOfRun, device: PlannedDevice, training: TrainingSettings, folder: Path
) -> Path:
    name = device.spec.name
    profile = device.profile
    if profile is None:
        raise ValueError(f"{name}: must have a profile to be recorded and replayed, got none")
    findings = findings_of_run(measured, training)
    if keeps_link(device):
        _omit_link_rates(findings)
    origin = f"device {name} of a live run, {measured.run_created}"
    identity = Identity(name, f"{profile.title[:200]}, recorded", profile.kind, origin)
    recorded = compose(identity, findings, _with_link(profile, device))
    path, trace = folder / f"{name}.toml", folder / trace_name(name)
    if recorded.trace is None:
        trace.unlink(missing_ok=True)
    else:
        trace.write_text(recorded.trace, encoding="utf-8")
    path.write_text(recorded.profile, encoding="utf-8")
    return path


def _with_link(profile: Profile, device: PlannedDevice) -> Profile:
    return profile if device.link is None else structs.replace(profile, link=device.link)


def _omit_link_rates(findings: Findings) -> None:
    """Remove the measured rates, so that those of the profile are used."""
    for key in LINK_RATES:
        findings.found.pop(key, None)
        findings.missing[key] = "no transfer measures it: it varies, or packets are lost"
