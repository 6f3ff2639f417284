"""What a run or a replay needs before it starts: the experiment, the folder, and their checks.

Messages name options of the command line; `testbed.api.errors.in_python` replaces them.
"""

import itertools
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from fairbed.coordinator.algorithms.selection.base import Selector
from fairbed.coordinator.policy.config import APP
from fairbed.coordinator.policy.decisions import make_decisions
from fairbed.coordinator.store import RunInfo, RunReader
from fairbed.coordinator.store.connection import CONFIG, DATABASE
from fairbed.coordinator.store.store import Provenance
from fairbed.device_agent.sensors import real_host
from fairbed.profiles.errors import ProfileError
from fairbed.testbed.api import RUNS
from fairbed.testbed.errors import BackendError, RunError, UsageError
from fairbed.testbed.experiment.file import (
    EMBEDDED,
    Experiment,
    ExperimentError,
    Settings,
    change_experiment,
    make_experiment,
    read_document,
)
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.experiment.resolved import origins_of, set_by
from fairbed.testbed.host.speed import host_speed
from fairbed.testbed.run.fleet_hosts import FleetHosts
from fairbed.testbed.run.preflight import choose_dilation
from fairbed.testbed.run.supervisor import Predict, PreparedTask, RunPlan
from fairbed.testbed.run.watchers import watchers_of
from fairbed.testbed.run_folder import foreign_files
from fairbed.wire.console import storable
from fairbed.wire.messages import LOCAL_RULES_GROUP
from fairbed.wire.plugins import PluginError, registered
from fairbed.wire.transport.address import is_loopback

NO_APPLICATION = (
    'selection.policy: must not be "app" without an application that selects; run one with '
    "--flower PATH, or choose another policy"
)

SHOWN_DIGITS = 12
"""Digits of a hash in an error message."""

SCRIPT = "script"
"""Origin of keys that a program sets."""

GivenExperiment: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | Experiment"
"""An experiment file, the folder of a run to resume, the content of a file, or an experiment."""

Command: TypeAlias = Literal["run", "replay"]


def plan_run(
    given: GivenExperiment,
    *,
    settings: Settings = (),
    seed: int | None = None,
    out: Path | None = None,
    has_fleet: bool = True,
    listen: str = "127.0.0.1",
    is_plain: bool = False,
    places_fleet: bool = True,
    hosts: FleetHosts | None = None,
    predicts: bool = True,
) -> RunPlan:
    """Return the plan of a live run, or of one to resume.

    Args:
        given: The experiment, or the folder of the run to resume.
        settings: Overrides of keys of the experiment.
        seed: Its seed; None is that of the experiment.
        out: Folder of the run; None is a new one below `RUNS`.
        has_fleet: The testbed emulates the devices; otherwise all join by themselves.
        listen: Address of the embedded broker, HOST or HOST:PORT.
        is_plain: The broker may listen beyond this machine.
        places_fleet: Check that the devices fit into this machine, or on `hosts`. Without it, they
            run on hosts that are not known yet, and a later plan checks it.
        hosts: The hosts that emulate the devices; None is this machine.
        predicts: Choose the dilation "auto" by predicted exchanges, too, for which the data are
            loaded. A process that only shows the run needs none.

    Raises:
        UsageError: The experiment, a file that it names, the folder or the address cannot be used.
        RunError: The speed of this machine cannot be measured.
        StoreError: The run cannot be read.
    """
    named = named_experiment(given, settings, seed, out, "run")
    experiment, application = named.experiment, None
    if experiment.room_tables:
        from fairbed.testbed.run.application import application_of

        application = application_of(experiment, named.origin, named.origins)
        experiment = experiment if application is None else application.experiment
    experiment = _with_host_speed(experiment)
    run_id = named.folder.name if named.folder else new_id(experiment.name)
    folder = named.folder or out or RUNS / run_id
    experiment = _with_client_paths(experiment, named.origin, folder)
    if holds_run(folder):
        run_id = check_resumable(folder, experiment, "run", is_named=named.folder is not None)
    elif out is not None:
        run_id = folder.resolve().name
        check_new(folder)
    host, port = _listen(listen)
    if hosts is not None:
        if experiment.training.client is not None:
            raise UsageError(
                f"{_key_of_client(experiment)}: must be left out with --cluster, whose hosts have "
                f"not the code, got {experiment.training.client!r}; emulate the devices on this "
                "machine"
            )
        hosts.check(experiment, is_plain=is_plain)
        host = hosts.address
    elif not (is_loopback(host) or is_plain):
        raise UsageError(
            f"--listen: must be a loopback address, got {host}, where passwords and models would "
            "travel in plain text; make a lab with TLS (fairbed lab init, then broker.url = "
            '"lab"), or add --plain'
        )
    _check_policy(experiment, has_application=application is not None)
    if has_fleet and experiment.physical and experiment.broker.url == EMBEDDED:
        raise UsageError(
            "broker.url: must be a broker that physical devices such as "
            f'{experiment.physical[0]} reach, got "embedded", which serves this machine alone; '
            'set it to "lab" (fairbed lab init makes one) or to mqtts://user:password@host'
        )
    predict = predictor_of(experiment) if has_fleet and hosts is None else None
    dilation, prepared = 1.0, None
    if has_fleet and places_fleet:
        dilation, prepared = _dilation(experiment, folder, hosts, predict if predicts else None)
    return RunPlan(
        experiment=experiment,
        folder=folder,
        run_id=run_id,
        has_fleet=has_fleet,
        listen_host=host,
        listen_port=port,
        dilation=dilation,
        origin=named.origin,
        origins=named.origins,
        watchers=watchers_of(experiment),
        hosts=hosts,
        application=application,
        remarks=() if application is None or named.folder else tuple(application.remarks),
        predict=predict,
        prepared=prepared,
    )


def selector_of(experiment: Experiment) -> Selector:
    """Return the selector of an experiment.

    Raises:
        UsageError: A plug-in cannot be loaded or does not support such rounds, or the weight rule
            is made for fewer devices.
    """
    try:
        return make_decisions(experiment.coordinator(), experiment.devices).selector
    except (PluginError, ValueError) as exc:
        raise UsageError(str(exc)) from exc


def new_id(name: str) -> str:
    """Return the id of a run that begins now, which no run in the default folder has."""
    slug = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-") or "run"
    first = f"{slug}-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    following = (f"{first}-{number}" for number in itertools.count(2))  # begun in the same second
    return next(name for name in itertools.chain([first], following) if not (RUNS / name).exists())


def holds_run(folder: Path) -> bool:
    """Return whether a folder holds a run; a path that the file system rejects does not."""
    return os.path.exists(folder / DATABASE)


@dataclass(frozen=True, slots=True)
class NamedExperiment:
    """An experiment, and where it comes from."""

    experiment: Experiment
    origin: Path
    """Folder of the experiment file."""
    origins: Mapping[str, str]
    """What set each key that is not a default."""
    folder: Path | None = None
    """The run to resume."""


def named_experiment(
    given: GivenExperiment,
    settings: Settings,
    seed: int | None,
    out: Path | None,
    command: Command,
) -> NamedExperiment:
    """Return the experiment, and the folder of the run if `given` is one.

    Raises:
        UsageError: It cannot be used.
    """
    try:
        if isinstance(given, Experiment):
            changed = change_experiment(given, settings, seed)
            origins = origins_of(changed, set_by({}, "", settings, seed), other=SCRIPT)
            return NamedExperiment(changed, Path(), origins)
        if isinstance(given, Mapping):
            made = make_experiment(given, "experiment", settings, seed)
            return NamedExperiment(
                made, Path(), origins_of(made, set_by(given, SCRIPT, settings, seed))
            )
        path = Path(given)
        folder = path if os.path.isdir(path) else None
        if folder is not None:
            path = folder / CONFIG
            _check_run_folder(
                folder, command, has_settings=bool(out or settings) or seed is not None
            )
        elif path.suffix != ".toml" and not os.path.exists(path):
            raise UsageError(
                f"{path}: there is no such experiment file or run; `fairbed runs` lists the runs, "
                "and `fairbed examples` the examples"
            )
        document = read_document(path)
        experiment = make_experiment(document, str(path), settings, seed)
        origins = origins_of(experiment, set_by(document, path.name, settings, seed))
        return NamedExperiment(experiment, Path(given).parent, origins, folder)
    except ExperimentError as exc:
        raise UsageError(str(exc)) from exc


def _check_run_folder(folder: Path, command: Command, *, has_settings: bool) -> None:
    """Check that a folder holds a run that the command can resume, or one that did not begin.

    Raises:
        UsageError: It does not, or settings are given.
    """
    if not (folder / CONFIG).exists():
        raise UsageError(
            f"{folder}: must be an experiment file or the folder of a run, got a folder "
            "without experiment.toml; fairbed runs lists the runs"
        )
    if (folder / DATABASE).exists():
        _check_unfinished(folder, command, is_named=True)
    elif foreign_files(folder):
        raise UsageError(
            f"{folder}: must be the folder of a run, got one without {DATABASE}; start its "
            f"experiment with: fairbed {command} {folder / CONFIG}"
        )
    if has_settings:
        raise UsageError(
            f"{folder}: a resumed run keeps its settings; remove --out, --set and --seed"
        )


def _check_unfinished(folder: Path, command: Command, *, is_named: bool) -> RunInfo:
    """Return a run that the command can resume.

    Raises:
        UsageError: The run is live, done, or of the other command.
    """
    with RunReader(folder) as reader:
        info = reader.run()
    anew = f"fairbed {command} {folder / CONFIG}"
    if info.is_alive:
        raise UsageError(f"{folder}: this run is live; watch it with: fairbed watch {folder}")
    if (info.row.clock == "virtual") != (command == "replay"):
        found = "a live run" if command == "replay" else "a replay"
        hint = f"start it anew with: {anew}" if is_named else "choose another --out"
        raise UsageError(f"{folder}: must be a run of fairbed {command}, got {found}; {hint}")
    if info.status == "done" and is_named:
        raise UsageError(
            f"{folder}: this run is done, nothing is left to resume; see it with: fairbed show "
            f"{folder}; repeat it with: {anew}"
        )
    if info.status == "done":
        raise UsageError(
            f"{folder}: this run is done; choose another --out, or open it with: "
            f"fairbed watch {folder}"
        )
    return info


def check_resumable(
    folder: Path, experiment: Experiment, command: Command, *, is_named: bool
) -> str:
    """Check that a run can be resumed; return its id.

    Args:
        folder: The folder of the run.
        experiment: The experiment to resume.
        command: The command, as a replay cannot resume a live run.
        is_named: The user named the folder, not an experiment.

    Raises:
        UsageError: The run cannot be resumed.
    """
    info = _check_unfinished(folder, command, is_named=is_named)
    _check_code(folder, info, experiment)
    if info.row.config_hash != experiment.hash() and is_named:
        raise UsageError(
            f"{folder}/experiment.toml: must be unchanged since the run began, got a change; "
            "undo it, or start a new run from this file with --out"
        )
    if info.row.config_hash != experiment.hash():
        raise UsageError(
            f"{folder}: has a run of another experiment; choose another --out, or resume that "
            f"run with: fairbed {command} {folder}"
        )
    return info.run_id


def _check_code(folder: Path, info: RunInfo, experiment: Experiment) -> None:
    """Check that the code of the client, or of the application, is that of the run.

    Raises:
        UsageError: It has changed, or cannot be read.
    """
    if experiment.training.client is None:
        return
    from fairbed.testbed.inputs import code_of_client
    from fairbed.wire.client_folder import ClientFolderError, folder_sha256

    before = code_of_client(msgspec.json.decode(info.row.provenance, type=Provenance).inputs)
    if before is None:
        return
    code = Path(experiment.training.client_folder or "")
    try:
        now = folder_sha256(code).hex()
    except ClientFolderError as exc:
        raise UsageError(str(exc)) from exc
    if now != before:
        raise UsageError(
            f"{code}: must have the code with which the run began, sha256 "
            f"{before[:SHOWN_DIGITS]}, got {now[:SHOWN_DIGITS]}; undo the change, or start a new "
            f"run with: fairbed run {folder / CONFIG}"
        )


def check_new(folder: Path) -> None:
    """Check that a folder has only files of runs, because `fairbed rm` deletes all its files.

    Raises:
        UsageError: The path is a file, the folder has other files, or UTF-8 has no such name.
    """
    whole = os.path.abspath(folder)
    if storable(whole) != whole:  # a database, a page and a message cannot hold it
        raise UsageError(
            f"--out {folder}: its path must be text in the encoding of the locale "
            f"({sys.getfilesystemencoding()}), got {storable(whole)}; choose another, or set "
            "LC_ALL to the locale in which its name was written"
        )
    try:
        found = foreign_files(folder)
    except OSError as exc:
        raise UsageError(
            f"--out {folder}: must be a folder, got: {exc.strerror}; choose another"
        ) from exc
    if found:
        raise UsageError(
            f"--out {folder}: must be a new or empty folder, got one with {found[0]}; choose "
            "another"
        )


def _check_policy(experiment: Experiment, *, has_application: bool) -> None:
    """Check that the parts of a live run exist, and work without the ground truth.

    Raises:
        UsageError: The policy is a plug-in that cannot be loaded, or needs true exchange times, or
            the processes of devices do not know the local rule.
    """
    selection, rule = experiment.selection, experiment.training.rule
    if selection.policy == APP and not has_application:
        raise UsageError(NO_APPLICATION)
    if experiment.aggregation.by == APP and not has_application:
        raise UsageError(
            'aggregation.by: must not be "app" without an application that merges; run one with '
            "--flower PATH, or remove it"
        )
    if rule in registered(LOCAL_RULES_GROUP):
        raise UsageError(
            "training.rule: must be importable by the processes of devices in a live run, got "
            f"{rule!r}, which this program registered; put it into a module and write "
            'training.rule = "module:Name"'
        )
    selector_of(experiment)
    if selection.needs_known_times:
        raise UsageError(
            f"selection.policy: must not need true exchange times in a live run, got "
            f"{selection.policy!r}; use rbcs-f, fedcs, oort, power-of-choice or uniform"
        )


def _key_of_client(experiment: Experiment) -> str:
    """Return the key that names the code of the devices."""
    return experiment.application or "training.client"


def _with_client_paths(experiment: Experiment, origin: Path, run_folder: Path) -> Experiment:
    """Return the experiment with whole paths of its client, so that a stored one has them.

    Raises:
        UsageError: The folder of the client does not exist, or the run would be in its code.
    """
    training = experiment.training
    if training.client is None:
        return experiment
    if experiment.emulation.backend == "container":
        raise UsageError(
            "emulation.backend: must be auto, namespace or process with "
            f"{_key_of_client(experiment)}, got container, where the code is not; change it"
        )
    folder = (origin / (training.client_folder or "")).absolute()
    if not os.path.isdir(folder):
        raise UsageError(
            f"training.client_folder: must be the folder with the code of the client, got "
            f"{folder}, which does not exist; correct it"
        )
    python = training.client_python
    if python is not None and os.sep in python:
        python = os.path.abspath(origin / python)
    from fairbed.wire.client_folder import is_code

    if is_code(run_folder, folder):
        raise UsageError(
            f"--out: must be outside of the code of the client, {folder}, whose hash it would "
            f"change, got {run_folder}; choose another, or a folder named runs in it"
        )
    training = msgspec.structs.replace(
        training, client_folder=os.path.realpath(folder), client_python=python
    )
    return msgspec.structs.replace(experiment, training=training)


def _with_host_speed(experiment: Experiment) -> Experiment:
    """Return the experiment with the measured speed of this machine in place of "auto".

    Raises:
        RunError: The speed cannot be measured.
    """
    if experiment.emulation.host_core_speed != "auto" or not experiment.fleet:
        return experiment
    try:
        speed = host_speed(os.environ).core_speed
    except BackendError as exc:
        raise RunError(str(exc)) from exc
    emulation = msgspec.structs.replace(experiment.emulation, host_core_speed=speed)
    return msgspec.structs.replace(experiment, emulation=emulation)


def _dilation(
    experiment: Experiment, folder: Path, hosts: FleetHosts | None, predict: Predict | None
) -> tuple[float, PreparedTask | None]:
    """Return the time dilation of the fleet, and what was loaded; a resumed run keeps its own.

    Raises:
        UsageError: The fleet does not fit into this machine.
    """
    earlier = None
    if (folder / DATABASE).exists():
        with RunReader(folder) as reader:
            earlier = reader.run().row.dilation
    cores = real_host().sensors.cores()
    chosen = None
    if predict is not None and experiment.emulation.dilation == "auto":
        from fairbed.testbed.api.admission import PreparedDilation

        chosen = PreparedDilation(experiment, predict, cores)
    try:
        devices = plan_fleet(experiment, os.environ)
        sufficient = None if chosen is None else chosen.sufficient
        dilation = choose_dilation(experiment, devices, cores, earlier, hosts, sufficient)
    except (ExperimentError, ProfileError) as exc:
        raise UsageError(str(exc)) from exc
    return dilation, None if chosen is None else chosen.task


def predictor_of(experiment: Experiment) -> Predict | None:
    """Return what predicts exchanges; None if that needs numbers that are unknown before the run.

    These are the training of a client, and a fleet without profiles has none.
    """
    has_profiles = any(group.profile or group.population for group in experiment.fleet)
    if not has_profiles or experiment.training.client is not None or experiment.data.has_none:
        return None
    from fairbed.testbed.replay.expected import expected_exchanges

    return expected_exchanges


def _listen(text: str) -> tuple[str, int | None]:
    host, separator, port = text.rpartition(":")
    if not (host if separator else text):
        raise UsageError(
            f"--listen: must be HOST or HOST:PORT, got {text!r}; 0.0.0.0 means all addresses"
        )
    if not separator or text.endswith("]"):
        return text, None
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"--listen: must be HOST or HOST:PORT, got {text!r}")
    return host, int(port)
