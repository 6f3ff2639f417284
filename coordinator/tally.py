"""How many exchanges of a table stand where, so that nobody has to go through all of them. Pure."""

from dataclasses import dataclass

from coordinator.exchange import Exchange, Stage
from coordinator.room import flight_bytes


@dataclass(slots=True)
class Tally:
    """Kept along: an exchange is counted out before it changes, and in again afterwards."""

    round: int
    """The round that the table is of."""
    open: int = 0
    """Under way."""
    waited_for: int = 0
    """Of this round, under way and not late."""
    done: int = 0
    done_in_round: int = 0
    """Of this round."""
    in_memory: int = 0
    """On their way up, or being checked."""
    flight_bytes: int = 0
    """What those on their way may have waiting for us in the broker."""

    def count(self, x: Exchange, by: int) -> None:
        """Count an exchange in where it stands (`by` = 1), or out of there (-1)."""
        is_own = x.round == self.round
        if x.stage is Stage.DONE:
            self.done += by
            self.done_in_round += by * is_own
        if not x.stage.is_open:
            return
        self.open += by
        self.waited_for += by * (is_own and not x.is_late)
        if x.stage in (Stage.GRANTED, Stage.CHECKING):
            self.in_memory += by
        if x.stage is Stage.GRANTED and x.offer is not None:
            self.flight_bytes += by * flight_bytes(x.offer.manifest)
