"""Who is asked to train what: the choice, the orders, and what was known of each device then.

What was said to a device, and known of it, when it was asked to train. Pure.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.policy.choice import Choice, ReportedLosses
from fairbed.coordinator.policy.config import CoordinatorConfig
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.records.rows import Before, before
from fairbed.coordinator.rounds.model_versions import ModelVersions
from fairbed.coordinator.state.exchange import Exchange, ExchangeState
from fairbed.coordinator.state.registry import Registry
from fairbed.coordinator.state.round import Round
from fairbed.wire.messages import Train


@dataclass(frozen=True, slots=True)
class Assignment:
    """One exchange that is under way."""

    round: int
    """The round that it belongs to."""
    train: Train
    known: Before
    context: Floats
    """Shape (4,)."""
    has_answered: bool
    """It had told a loss before the selection."""

    def context_before(self, round_id: int) -> Floats | None:
        """Return the context if it is of a round before `round_id`."""
        return self.context if self.round < round_id else None


def pulled_blobs(asked: Mapping[tuple[str, int], Assignment], played: Round) -> set[bytes]:
    """Return the ids of the models that devices may not have pulled yet."""
    blobs = set[bytes]()
    for exchange in played.in_stage(ExchangeState.ASKED):
        train = asked[exchange.device, exchange.round].train
        blobs.add(train.model.id)
        if train.coding.model is not None:
            blobs.add(train.coding.model.manifest.id)
    return blobs


class Assignments:
    """Chooses devices for rounds, and remembers what is known of them until they are through.

    Args:
        config: Of the run.
        decisions: Choose.
        registry: Of the fleet.
        versions: The model that is trained.
        now: Monotonic seconds.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        decisions: Decisions,
        registry: Registry,
        versions: ModelVersions,
        now: Callable[[], float],
    ) -> None:
        self._config = config
        self._decisions = decisions
        self._registry = registry
        self._versions = versions
        self._now = now
        self._open: dict[tuple[str, int], Assignment] = {}
        """Of every exchange that is under way, by device and round."""

    def choose(
        self,
        played: Round,
        count: int | None,
        pick: int = 0,
        answers: ReportedLosses | None = None,
        answered: Collection[str] = (),
    ) -> tuple[dict[str, Train], Choice]:
        """Choose devices for the round that is open; return what each is asked.

        Args:
            played: The round.
            count: How many; None is what the configuration says.
            pick: How often devices were chosen for it before.
            answers: The losses that were asked for; None where none were.
            answered: Who has told one.
        """
        now = self._now()
        choice = self._decisions.choose(
            played.id,
            self._registry,
            self._versions.transfer_bits(),
            now,
            answers=answers,
            asked=count,
            pick=pick,
        )
        names = [self._registry.names()[row] for row in choice.rows.tolist()]
        trains = {name: self._train(played, name) for name in names}
        for name in names:
            device = self._registry[name]
            self._open[name, played.id] = Assignment(
                round=played.id,
                train=trains[name],
                known=before(device, choice, now),
                context=choice.context[device.row],
                has_answered=name in answered,
            )
        self._registry.open_round(names, played.id)
        return trains, choice

    def close(self, over: Sequence[Exchange]) -> dict[tuple[str, int], Assignment]:
        """Return what is known of every exchange, by device and round; forget those that are over.

        The registry learns who holds which version, and whose update enters the next.
        """
        asked = dict(self._open)
        for exchange in over:
            device = self._registry[exchange.device]
            known = self._open.pop((exchange.device, exchange.round))
            if exchange.offer is not None:
                device.holds = known.train.model.sha256
            if exchange.stage is ExchangeState.DONE:
                device.aggregated_round = exchange.round
        return asked

    def _train(self, played: Round, name: str) -> Train:
        settings, device = self._config.round, self._registry[name]
        return Train(
            round=played.id,
            attempt=played.attempt,
            model=self._versions.manifest,
            hyperparameters=self._config.training.hyperparameters(played.id),
            seed=self._decisions.training_seed(played.id, device.row),
            needs_loss=self._decisions.aggregator.needs_loss,
            deadline_s=settings.patience_s or settings.deadline_s,
            keep_warm=settings.goes_on and device.trained_last,
            coding=self._versions.coding(device),
        )
