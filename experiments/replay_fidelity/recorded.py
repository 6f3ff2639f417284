"""The fleet of a live run as it was recorded: a profile a device, and an experiment of them.

The experiments of a comparison: who is recorded, and what is predicted. Pure.
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

RECORDED_POLICY, RECORDED_SEED = "uniform", 1
"""Of run A, which every device takes part in alike."""

PREDICTED_POLICY, PREDICTED_SEED = "rbcs-f", 2
"""Of run B and of its repeat."""


def check_rounds(experiment: Experiment) -> None:
    """See that every exchange ends with its round: only then cohorts and instants say it all.

    Raises:
        ExperimentError: Exchanges may outlive their rounds.
    """
    if experiment.round.merges_late_updates:
        key = "mode" if experiment.round.is_buffered else "late"
        raise ExperimentError(
            f"round.{key}: must be left out of a comparison, got "
            f"{getattr(experiment.round, key)!r}: what a live run did can be imposed on a replay "
            "only where each exchange ends with its round"
        )


def recorded(experiment: Experiment) -> Experiment:
    """Return run A: its devices are recorded."""
    return _settled(experiment, "a", RECORDED_POLICY, RECORDED_SEED)


def predicted(experiment: Experiment) -> Experiment:
    """Return run B: a replay of what was recorded in A predicts it."""
    return _settled(experiment, "b", PREDICTED_POLICY, PREDICTED_SEED)


def _settled(experiment: Experiment, name: str, policy: str, seed: int) -> Experiment:
    """Return an experiment with the same devices, data and traces, but chance of its own.

    It is not evaluated before its end: how long an evaluation lasts is this machine's affair, and
    would move the devices along their traces.
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


LINK = ("link.down_bps", "link.up_bps")


def record_fleet(run: Path, planned: Sequence[PlannedDevice], folder: Path) -> list[Path]:
    """Write the profile of each device of a run; return the files in the order of the devices.

    What no run can tell (storage, memory, heat) is that of the profile it was emulated by. So are
    the rates of a link that moves: a recording has seen it during transfers only, and a replay
    takes the traces themselves, from the instants that the live run had.

    Args:
        run: Folder of the run.
        planned: Its devices, each with a profile.
        folder: Receives the files.

    Raises:
        NotEnough: A number that a profile must have could not be told.
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
            link=group.link if moves(device) else None,
            trace=group.trace if moves(device) else None,
        )
        for group, device, file in zip(groups, planned, files, strict=True)
    ]
    return structs.replace(experiment, fleet=tuple[FleetConfig, ...](fleet))


def moves(device: PlannedDevice) -> bool:
    """Return whether the rates of a device's link have a course."""
    link = device.tracks.link
    return link is not None and not (link.down_bps.is_constant and link.up_bps.is_constant)


def _record(
    seen: DeviceOfRun, device: PlannedDevice, training: TrainingSettings, folder: Path
) -> Path:
    name = device.spec.name
    profile = device.profile
    if profile is None:
        raise ValueError(f"{name}: must have a profile to be recorded and replayed, got none")
    findings = findings_of_run(seen, training)
    if moves(device):
        _leave_link(findings)
    origin = f"device {name} of a live run, {seen.run_created}"
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


def _leave_link(findings: Findings) -> None:
    """Have the rates of a link that moves be those of its profile."""
    for key in LINK:
        findings.found.pop(key, None)
        findings.missing[key] = "it moves: a replay follows its trace"
