"""Slows a program that does not know of it, by making it stand still: a closed loop.

    credit = speed * elapsed - computed       in processor seconds, at most `MAX_CREDIT_S * speed`
    stand still for -credit / speed           while it is negative

Whatever it computes too much in one turn it pays for in the next, so only its mean speed is true:
steps that are shorter than a turn are not. Standing still in fixed turns without looking at what
was computed (an open loop) was 4 to 71 % off where this is 1.

Source: measured beside quotas and cooperative pacing; 1.000, 1.005, 1.012 of the speed asked for at
5, 25, 50 % with turns of 20 ms on a quiet machine.
"""

from dataclasses import dataclass

TURN_S = 0.02
"""Between two looks: shorter ones cost more than the 1.2 % of a core that these do."""

MAX_CREDIT_S = 0.1
"""Waiting earns no more than this: a device does not become faster by resting."""


@dataclass(slots=True)
class StopAndGo:
    """The account of one program. Readings of both clocks count from any origin, in seconds."""

    now: float
    cpu_s: float
    """Processor time of all its processes."""
    credit_s: float = 0.0
    unused_s: float = 0.0
    """Time in which it could have computed and did not: it was idle, or this machine was busy."""

    def advance(self, now: float, cpu_s: float, speed: float) -> float:
        """Account for the time since the last reading; return how long to stand still now.

        Args:
            now: Seconds.
            cpu_s: Processor time of all its processes.
            speed: That it had since the last reading, in cores.
        """
        self.credit_s += speed * (now - self.now) - (cpu_s - self.cpu_s)
        self.now, self.cpu_s = now, cpu_s
        highest_s = MAX_CREDIT_S * speed
        if self.credit_s > highest_s:
            self.unused_s += (self.credit_s - highest_s) / speed
            self.credit_s = highest_s
        return max(0.0, -self.credit_s / speed)
