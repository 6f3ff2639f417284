"""The fleet of a live run as it was recorded: a profile a device, and an experiment of them."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from profiles import Profile
from testbed.experiment import Experiment, FleetConfig
from testbed.fleet import PlannedDevice
from testbed.recording.compose import Identity, compose, trace_name
from testbed.recording.findings import Findings
from testbed.recording.from_run import Course, DeviceOfRun, findings_of_run
from testbed.recording.run_store import read_device, read_training

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
            sample=None,
            count=1,
            name=device.spec.name.rpartition("-")[0],
            link=group.link if moves(device) else None,
            trace=group.trace if moves(device) else None,
        )
        for group, device, file in zip(groups, planned, files, strict=True)
    ]
    return structs.replace(experiment, fleet=tuple[FleetConfig, ...](fleet))


def moves(device: PlannedDevice) -> bool:
    """Tell whether the rates of a device's link have a course."""
    link = device.tracks.link
    return link is not None and not (link.down_bps.is_constant and link.up_bps.is_constant)


def _record(seen: DeviceOfRun, device: PlannedDevice, training: Course, folder: Path) -> Path:
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
