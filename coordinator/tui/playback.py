"""Position in the past of a run, and how it moves on. Pure: time is an argument."""

from dataclasses import dataclass, replace

from fairbed.coordinator.report.quantities import clock
from fairbed.coordinator.tui.view import RunView

SPEEDS: tuple[float | None, ...] = (0.5, 1.0, 2.0, 5.0, 10.0, None)
"""Rounds per second; without a number the speed is that of the run."""
FIRST_SPEED = SPEEDS.index(1.0)


@dataclass(frozen=True, slots=True)
class Playback:
    """The past round that the control room shows."""

    round: int
    """Counted from 1."""
    speed: int = FIRST_SPEED
    """Index of `SPEEDS`."""
    is_playing: bool = False
    began_s: float | None = None
    """When the round was shown from which it plays, seconds of the caller's clock; None if it has
    yet to be shown."""
    began_at: float = 0.0
    """That round; at the speed of the run, the run clock after it in seconds."""

    @property
    def rounds_per_s(self) -> float | None:
        """Rounds per second; without a number the speed is that of the run."""
        return SPEEDS[self.speed]

    def paused_at(self, round_id: int) -> "Playback":
        """Return the paused position at a round."""
        return replace(self, round=round_id, is_playing=False)

    def playing(self, *, is_playing: bool = True) -> "Playback":
        """Return the position as it plays from its round on, or stays there."""
        return replace(self, is_playing=is_playing, began_s=None)

    def at_speed(self, speed: int) -> "Playback":
        """Return the position with another speed, or with the nearest one that there is."""
        return replace(self, speed=min(max(speed, 0), len(SPEEDS) - 1), began_s=None)

    def begun(self, now_s: float, run_s: float) -> "Playback":
        """Return the position as its round is shown.

        Args:
            now_s: The instant, seconds of the caller's clock.
            run_s: The run clock after the round, seconds.
        """
        began_at = run_s if self.rounds_per_s is None else float(self.round)
        return replace(self, began_s=now_s, began_at=began_at)

    def due(self, now_s: float) -> float:
        """Return the round that is due; at the speed of the run, its clock in seconds."""
        passed_s = 0.0 if self.began_s is None else now_s - self.began_s
        return self.began_at + passed_s * (self.rounds_per_s or 1.0)


def history_line(playback: Playback, view: RunView, now: RunView) -> str:
    """Return one line about a past round.

    Args:
        playback: Where the control room is.
        view: The view of the past round.
        now: The newest view.
    """
    rate = playback.rounds_per_s
    speed = "the speed of the run" if rate is None else f"{rate:g} round{'s' * (rate != 1.0)}/s"
    return (
        f"history: round {playback.round} of {now.cursor.round}, "
        f"{clock(view.elapsed_s)} of {clock(now.elapsed_s)}, "
        f"{f'playing at {speed}' if playback.is_playing else 'paused'}"
    )
