"""What was said to a device, and known of it, when it was asked to train. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import UNSET

from coordinator.accounting import Before
from coordinator.algorithms.arrays import Floats
from coordinator.round import Round, Stage
from wire.messages import Train


@dataclass(frozen=True, slots=True)
class Asked:
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


def pulled_blobs(asked: Mapping[tuple[str, int], Asked], played: Round) -> set[bytes]:
    """Return the ids of the models that devices may not have pulled yet."""
    blobs = set[bytes]()
    for exchange in played.in_stage(Stage.ASKED):
        train = asked[exchange.device, exchange.round].train
        blobs.add(train.model.id)
        if train.coding is not UNSET and train.coding.model is not None:
            blobs.add(train.coding.model.manifest.id)
    return blobs
