"""Detects another agent of the same name at the broker."""

SHORT_S = 5.0
"""A link lost earlier than this may have been taken over; another agent reconnects within it."""

LASTED_S = 10.0
"""A link that lasted longer was not one of two agents that disconnect each other: the other one is
away for its backoff of 5 s at most, and for 1 s in which NATS delays a client id that flaps."""

SIGHTINGS = 2
"""Links on which the other agent must be seen; one may be a late will of an earlier process."""

SIGHTINGS_OF_SMALLER_BOOT = 4
"""The same for the agent with the smaller boot, so that of two new agents one remains."""


class NameConflict:
    """Decides whether an agent gives up because another one has its name.

    A broker disconnects the older of two clients with one id. That client reconnects, so two
    agents of one name disconnect each other in turn. After a short link the agent reads its own
    status topic: the boot of another agent there, after its own status, means that the other agent
    is alive. An agent whose link has lasted never gives up.

    Args:
        boot: Identifies the process of this agent.
    """

    def __init__(self, boot: int) -> None:
        self._boot = boot
        self._is_watching = False
        self._has_lasted = False
        self._up_s = 0.0
        self._is_counted = False
        self.sightings = 0
        """Links on which the status of another agent was seen."""

    def on_link_up(self, now: float) -> None:
        """Begin a link."""
        self._up_s, self._is_counted = now, False

    def on_link_down(self, now: float) -> bool:
        """End a link; return whether to subscribe to the own status topic."""
        self._has_lasted |= now - self._up_s >= LASTED_S
        if now - self._up_s >= SHORT_S:
            return False
        is_new, self._is_watching = not self._is_watching, True
        return is_new

    def on_status(self, boot: int) -> bool:
        """Note a status on the own topic; return whether this agent gives up."""
        if boot == self._boot or self._is_counted:
            return False
        self._is_counted = True
        self.sightings += 1
        limit = SIGHTINGS if self._boot > boot else SIGHTINGS_OF_SMALLER_BOOT
        return self.sightings >= limit and not self._has_lasted
