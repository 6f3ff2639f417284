"""Makes the `Train` messages of selected devices, and keeps their contexts."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from msgspec import structs

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.policy.config import CoordinatorConfig
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.policy.selection import Selection
from fairbed.coordinator.records.rows import KnownAtSelection, known_at_selection
from fairbed.coordinator.rounds.model_versions import ModelVersions
from fairbed.coordinator.state.exchange import Exchange, ExchangeState
from fairbed.coordinator.state.registry import Device, Registry
from fairbed.coordinator.state.round import Round
from fairbed.wire.messages import Hyperparameters, Personal, Train


@dataclass(frozen=True, slots=True)
class Assignment:
    """The `Train` message of one exchange, and the context of its device before."""

    round: int
    """The round that the exchange belongs to."""
    train: Train
    known: KnownAtSelection
    context: Floats
    """Input of the estimator, shape (4,)."""
    has_reported_loss: bool
    """The device reported a loss before the selection."""

    def context_before(self, round_id: int) -> Floats | None:
        """Return the context if the exchange was dispatched before round `round_id`."""
        return self.context if self.round < round_id else None


def pulled_blobs(assignments: Mapping[tuple[str, int], Assignment], table: Round) -> set[bytes]:
    """Return the ids of the blobs that devices may still be downloading."""
    blobs = set[bytes]()
    for exchange in table.in_state(ExchangeState.DISPATCHED):
        train = assignments[exchange.device, exchange.round].train
        blobs.add(train.model.id)
        if train.coding.model is not None:
            blobs.add(train.coding.model.manifest.id)
    return blobs


class Assignments:
    """Keeps the assignment of each open exchange.

    Args:
        decisions: Seeds, and the configuration of the run.
        registry: The devices of the run.
        versions: The model that is trained.
        run: Id of the run; devices keep their personal models by run.
    """

    def __init__(
        self,
        decisions: Decisions,
        registry: Registry,
        versions: ModelVersions,
        run: str,
    ) -> None:
        self._decisions = decisions
        self._registry = registry
        self._versions = versions
        self._run = run
        self._open: dict[tuple[str, int], Assignment] = {}
        """Assignments of all open exchanges, by device and round."""

    @property
    def _config(self) -> CoordinatorConfig:
        return self._decisions.config

    def assign(
        self,
        table: Round,
        selection: Selection,
        now: float,
        has_reported: Collection[str] = (),
        contents: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> dict[str, Train]:
        """Return the `Train` message of each device of a selection for the open round.

        Args:
            table: The round.
            selection: The selection.
            now: When it was made, on the coordinator's clock.
            has_reported: Devices that reported a loss before it.
            contents: Fields of the messages that an application chose, by device.
        """
        names = [self._registry.names()[row] for row in selection.rows.tolist()]
        seeds = self._decisions.training_seeds(table.id, selection.rows).tolist()
        hyperparameters = self._config.training.hyperparameters(table.id)
        own, work = [hyperparameters] * len(names), self._decisions.local_work
        if work is not None:
            drawn = work.drawn(table.id, selection.rows)
            own = [drawn.of(at, hyperparameters) for at in range(len(names))]
        trains = {
            name: self._train(table, name, one, seed)
            for name, one, seed in zip(names, own, seeds, strict=True)
        }
        for name in contents.keys() & trains.keys():
            trains[name] = structs.replace(trains[name], **contents[name])
        for name in names:
            device = self._registry[name]
            self._open[name, table.id] = Assignment(
                round=table.id,
                train=trains[name],
                known=known_at_selection(device, selection, now),
                context=selection.context[device.row],
                has_reported_loss=name in has_reported,
            )
        self._registry.open_round(names, table.id)
        return trains

    def close(self, ended: Sequence[Exchange]) -> dict[tuple[str, int], Assignment]:
        """Return all assignments, by device and round, and drop those of exchanges that ended.

        Records in the registry the version that each device holds and the round that merged it.
        """
        assignments = dict(self._open)
        for exchange in ended:
            device = self._registry[exchange.device]
            assignment = self._open.pop((exchange.device, exchange.round))
            if exchange.offer is not None:
                device.held_sha256 = assignment.train.model.sha256
            if exchange.state is ExchangeState.DONE:
                device.aggregated_round = exchange.round
        return assignments

    def _train(self, table: Round, name: str, hyperparameters: Hyperparameters, seed: int) -> Train:
        settings, device = self._config.round, self._registry[name]
        fitted = self._registry.fitted(device, hyperparameters)
        if fitted.optimiser is not None and fitted.keeps_state:
            own = structs.replace(fitted.optimiser, run=self._run, merged=device.aggregated_round)
            fitted = structs.replace(fitted, optimiser=own)
        return Train(
            round=table.id,
            attempt=table.attempt,
            model=self._versions.manifest,
            hyperparameters=fitted,
            seed=seed,
            needs_loss=self._decisions.aggregator.needs_loss
            or bool(self._config.training.loss_metric),
            deadline_s=settings.late_limit_s or settings.deadline_s,
            keep_warm=settings.merges_late_updates and device.trained_last,
            coding=self._versions.coding(device),
            local=self._decisions.local_training(self._run, device.aggregated_round),
            personal=self._personal(table.id, device) if device.can_personalise else None,
            privacy=self._config.privacy.request(),
            local_values=self._config.local_values(self._run, device.aggregated_round),
        )

    def _personal(self, round_id: int, device: Device) -> Personal | None:
        """Return how the personal model of a device is trained in a round; None if it is not.

        It begins at the model before round 1, or, if that has weights, at the first one that the
        device receives. If the device loses it later, it begins at the current one, unless no
        personal model may depend on the global one.
        """
        config, settings = self._config, self._config.personalisation
        if not settings.is_on:
            return None
        is_new = device.aggregated_round is None or settings.method == "local-only"
        personal = settings.request(
            config.training,
            round_id,
            run=self._run,
            init_seed=config.first_seed if is_new else None,
        )
        fitted = self._registry.fitted(device, personal.hyperparameters)
        return structs.replace(personal, hyperparameters=fitted)
