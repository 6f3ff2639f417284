"""A Flower app as the application of a run: its experiment, its process and its task."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import structs

from fairbed.coordinator.policy.config import (
    APP,
    AggregationConfig,
    ExchangeConfig,
    TrainingConfig,
)
from fairbed.coordinator.store.store import Checkpoint
from fairbed.device_agent.clients.child.flower import NODE_OPTION, run_id
from fairbed.device_agent.clients.child.kinds import ClientError
from fairbed.testbed.errors import UsageError
from fairbed.testbed.experiment.client_task import client_layout, client_spec, name_of, raw_rule
from fairbed.testbed.experiment.data import NO_DATA, DataConfig
from fairbed.testbed.experiment.file import Experiment, ExperimentError
from fairbed.testbed.flower.driver import AppLoop, AppSettings
from fairbed.testbed.flower.environment import find_interpreter
from fairbed.testbed.flower.raw import ARRAYS, AppArrays, AppRecords, MergedArrays, client_arrays
from fairbed.testbed.flower.reading import read_app
from fairbed.testbed.flower.server import AppError, ServerApp, Strategy, server_app
from fairbed.testbed.flower.settings import FlowerConfig
from fairbed.testbed.run.application import ApplicationTask
from fairbed.wire.artifact import Artifact, ClientArray, ClientSource
from fairbed.wire.client_folder import ClientFolderError, folder_sha256
from fairbed.wire.plugins import PluginError
from fairbed.wire.records import Records, RecordsError, decode_records, encode_records

ROUNDS_KEY: Final = "num-server-rounds"
"""Key in the configuration of an app that is, by convention, its number of rounds."""

MAX_ROUNDS: Final = 1_000_000
"""Of an experiment."""

OF_THE_APP: Final = ("data", "model", "training", "rounds", "evaluation")
"""Tables and keys of an experiment that an app replaces; they are ignored."""

LOG: Final = Path("logs") / "app.log"

LOAD_S: Final = 120.0
"""Least limit of the time to load the app: imports of a slow machine are no idleness."""

WRITTEN: Final = "app"
"""Folder of a run for the files of its app: in the app's own they would change its hash."""

ARRAYS_FILE: Final = Path("state") / "app.records"
"""In the folder of a run with `merge = "ours"`: the first arrays of the app, by which a resumed run
knows their names, dtypes and shapes."""

NOTHING: Final = encode_records({})
"""The version before an app has shown its arrays."""


def application(
    experiment: Experiment, origin: Path, given: Mapping[str, str]
) -> "FlowerApplication | None":
    """Return the app that `[flower]` names; None if it names none.

    Raises:
        UsageError: The app, its interpreter or the experiment cannot be used.
    """
    settings: FlowerConfig | None = getattr(experiment, "flower", None)
    if settings is None or settings.app is None:
        return None
    return FlowerApplication(experiment, settings, origin, given)


class FlowerApplication:
    """A Flower app that is not started yet.

    Args:
        experiment: The experiment, of which fleet, cells, emulation, selection, round, broker and
            the tables of rooms count.
        settings: `[flower]`.
        origin: Folder of the experiment file.
        given: What set each key that is not a default, by path.

    Raises:
        UsageError: The app, its interpreter or the experiment cannot be used.
    """

    kind: Final = "flower"

    def __init__(
        self, experiment: Experiment, settings: FlowerConfig, origin: Path, given: Mapping[str, str]
    ) -> None:
        assert settings.app is not None
        self._app = read_app(origin / settings.app, settings.config)
        self._interpreter = find_interpreter(self._app, settings.python)
        self._settings = structs.replace(
            settings,
            app=str((origin / settings.app).absolute()),
            python=str(self._interpreter.path),
        )
        remarks = _remarks(given, merges_here=settings.merge == "ours")
        if self._interpreter.remark:
            remarks.append(f"flower: {self._interpreter.remark}")
        self.remarks = tuple(remarks)
        """What of the file is ignored, in lines."""
        if problem := _excluded(experiment):
            raise UsageError(problem)
        self.experiment = self._derived(experiment, is_policy_given="selection.policy" in given)
        """The experiment with the task of the app."""
        if problem := _selection_problem(self.experiment):
            raise UsageError(problem)

    @property
    def rounds(self) -> int | None:
        """Rounds by the configuration of the app; None: it states none."""
        found = self._app.config.get(ROUNDS_KEY)
        if not isinstance(found, int) or isinstance(found, bool):
            return None
        return found if 0 < found <= MAX_ROUNDS else None

    def _derived(self, experiment: Experiment, *, is_policy_given: bool) -> Experiment:
        app, settings, devices = self._app, self._settings, experiment.shards
        selection = experiment.selection
        if not is_policy_given:
            selection = structs.replace(selection, policy=APP)
        if selection.policy == APP:  # the strategy may sample all
            selection = structs.replace(selection, per_round=max(devices, selection.per_round))
        options: dict[str, Any] = {**app.config}
        options |= {NODE_OPTION + name: value for name, value in settings.node_config.items()}
        training = TrainingConfig(
            client=app.client,
            client_folder=str(app.folder),
            client_python=str(self._interpreter.path),
            client_options=options,
            loss_metric=settings.loss_metric,
        )
        changed: dict[str, Any] = {
            "data": DataConfig(dataset=NO_DATA),
            "model": type(experiment.model)(),
            "training": training,
            "selection": selection,
            "evaluation": type(experiment.evaluation)(),
            "flower": settings,
        }
        if self.rounds is not None:
            changed["rounds"] = self.rounds
        if settings.merge == "strategy":
            changed |= {"aggregation": AggregationConfig(by="app"), "exchange": ExchangeConfig()}
        try:
            return structs.replace(experiment, **changed)
        except (ValueError, msgspec.ValidationError) as exc:
            raise UsageError(f"flower: {exc}") from exc

    @asynccontextmanager
    async def running(
        self, folder: Path, run: str, checkpoint: Checkpoint | None
    ) -> AsyncIterator[ApplicationTask]:
        """Run the process of the ServerApp while the context lasts.

        Args:
            folder: Folder of the run.
            run: Its id.
            checkpoint: Where the run continues; None: it begins.

        Raises:
            AppError: The app has failed, or has no strategy whose arrays a rule of ours could
                merge.
        """
        settings = self._settings
        policy = self.experiment.selection.policy
        python, app_folder = str(self._interpreter.path), self._app.folder
        async with server_app(python, folder / WRITTEN, folder / LOG) as app:
            await app.send(
                {
                    "do": "start",
                    "folder": str(app_folder),
                    "component": self._app.server,
                    "run_config": self._app.config,
                    "run": run_id(run),
                    "policy": APP if policy == APP else "ours",
                    "merge": settings.merge,
                    "poll_s": settings.poll_s,
                    "first_round": 1 if checkpoint is None else checkpoint.round + 1,
                },
                {"arrays": b"" if checkpoint is None else self._resumed(folder, checkpoint)},
            )
            await app.wait(
                lambda: app.pending.version or None, max(settings.timeout_s, LOAD_S), "load"
            )
            # What it does first: begin a strategy, or ask for the nodes.
            await app.wait(app.pending.first, settings.timeout_s, "use its grid")
            if settings.merge == "ours":
                yield await self._merged_here(app, folder)
            else:
                yield self._merged_there(app)

    def _resumed(self, folder: Path, checkpoint: Checkpoint) -> bytes:
        """Return the records of a checkpoint's version.

        Raises:
            AppError: The arrays of the run are not known any more.
        """
        if self._settings.merge != "ours":
            return checkpoint.raw
        try:
            ((name, record),) = decode_records((folder / ARRAYS_FILE).read_bytes()).items()
            arrays = AppArrays(client_arrays(record), name)
            return arrays.merged(checkpoint.model, checkpoint.raw)
        except (OSError, ValueError, ClientError) as exc:
            raise AppError(
                f"{folder / ARRAYS_FILE}: must have the first arrays of the app, got {exc}; start "
                "a new run"
            ) from exc

    def _artifact(self, arrays: tuple[ClientArray, ...]) -> Artifact:
        """Return the task of the ClientApp.

        Raises:
            AppError: Its folder cannot be used, or the arrays cannot be sent.
        """
        app, settings = self._app, self._settings
        options = self.experiment.training.client_options
        try:
            source = ClientSource(
                kind=self.kind,
                name=name_of(app.folder),
                sha256=folder_sha256(app.folder),
                path=app.client,
                arrays=arrays,
                options=tuple(options.items()),
                loss_metric=settings.loss_metric,
                weighted_by=settings.weighted_by,
            )
            layout = client_layout(arrays, "app")
        except (ClientFolderError, ExperimentError) as exc:
            raise AppError(str(exc)) from exc
        spec = client_spec(app.client, layout, None)
        return Artifact(spec=spec, train=b"", evaluate=b"", client=source)

    def _merged_there(self, app: ServerApp) -> ApplicationTask:
        """Return the task of an app whose strategy merges: all of it is raw."""
        return ApplicationTask(
            artifact=self._artifact(()),
            vector=np.zeros(0, np.float32),
            raw=NOTHING,
            raw_merger=AppRecords(),
            loop=self._loop(app, None),
            rounds=self._planned(app),
        )

    async def _merged_here(self, app: ServerApp, folder: Path) -> ApplicationTask:
        """Return the task of an app whose floats a rule of ours merges; store its first arrays.

        Raises:
            AppError: It has no strategy, or its arrays cannot be merged.
        """
        pending = app.pending
        strategy = await app.wait(
            lambda: pending.strategy or (Strategy() if pending.groups or pending.is_done else None),
            self._settings.timeout_s,
            "start a strategy, whose arrays are merged by [aggregation]",
        )
        records = _records(pending.initial)
        if not strategy.name or ARRAYS not in records:
            raise AppError(
                'flower.merge: must be "strategy" for an app without a Strategy that begins with '
                'initial_arrays, got "ours"; remove it'
            )
        name = strategy.arrays_key or ARRAYS
        if not (folder / ARRAYS_FILE).exists():
            _store(folder / ARRAYS_FILE, encode_records({name: records[ARRAYS]}))
        arrays = AppArrays(client_arrays(records[ARRAYS]), name)
        try:
            rule = raw_rule(self.experiment, arrays.arrays, self._app.folder)
            vector, raw = arrays.split({name: records[ARRAYS]})
        except (ClientError, ExperimentError, PluginError) as exc:
            raise AppError(f"app: {exc}") from exc
        return ApplicationTask(
            artifact=self._artifact(arrays.arrays),
            vector=vector,
            raw=raw,
            raw_merger=MergedArrays(arrays, rule),
            loop=self._loop(app, arrays),
            rounds=self._planned(app),
        )

    def _planned(self, app: ServerApp) -> int | None:
        """Return the rounds of the strategy, or those of the configuration."""
        strategy = app.pending.strategy
        rounds = 0 if strategy is None else strategy.num_rounds
        return rounds if 0 < rounds <= MAX_ROUNDS else self.rounds

    def _loop(self, app: ServerApp, arrays: AppArrays | None) -> "Callable[..., AppLoop]":
        settings = AppSettings(
            timeout_s=self._settings.timeout_s, rounds=self.rounds or 0, arrays=arrays
        )
        return lambda services, attempt: AppLoop(services, attempt, app, settings)


def _store(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".tmp")
    scratch.write_bytes(data)
    scratch.replace(path)


def _records(data: bytes) -> Records:
    try:
        return decode_records(data) if data else {}
    except RecordsError as exc:
        raise AppError(f"app: its process sent arrays that are no records: {exc}") from exc


def _remarks(given: Mapping[str, str], *, merges_here: bool) -> list[str]:
    """Return one line that names what of the experiment file is ignored."""
    of_app = OF_THE_APP if merges_here else (*OF_THE_APP, "aggregation", "exchange")
    ignored = sorted(
        {path for path in given if path.partition(".")[0] in of_app and path != "replay.training"}
    )
    if not ignored:
        return []
    return [f"the app has its own data, model, training and rounds; ignored: {', '.join(ignored)}"]


def _excluded(experiment: Experiment) -> str:
    """Return which table of an experiment a Flower app excludes; empty if none."""
    if experiment.round.mode != "sync" or experiment.round.merges_late_updates:
        return (
            'round: must have mode = "sync" and late = "drop" with a Flower app, whose rounds end '
            "with the replies; remove round.mode and round.late"
        )
    if experiment.personalisation.is_on or experiment.privacy.is_on:
        key = "personalisation" if experiment.personalisation.is_on else "privacy"
        return (
            f"{key}: must be left out with a Flower app, which trains by itself; use a mod or a "
            "strategy of the app"
        )
    return ""


def _selection_problem(experiment: Experiment) -> str:
    """Return what of the selection does not fit a Flower app; empty if nothing."""
    selection, devices = experiment.selection, experiment.shards
    if selection.policy == APP and selection.audit:
        return (
            'selection.audit: must be 0 with policy "app", whose strategy selects; choose another '
            "policy, or remove it"
        )
    if selection.queries_losses:
        return (
            "selection.variant: must not ask devices for losses before a selection with a Flower "
            'app; use "rpow-d" with flower.loss_metric'
        )
    if selection.policy != APP and selection.per_round > devices:
        return (
            f"selection.per_round: must be at most the {devices} devices of the fleet, got "
            f"{selection.per_round}; lower it or add devices"
        )
    return ""
