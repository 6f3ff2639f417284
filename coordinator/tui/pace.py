"""How often the screen may change, so that it costs nobody who is measured beside it. Pure."""

QUICKEST_S = 0.25
"""However many events came, the screen changes four times a second at most."""

SLOWEST_S = 1.0
"""However much it costs, a person sees it change."""

SHARE = 0.05
"""Of one core; what an exchange may lose to a busy machine without being invalid."""


def pause_s(spent_s: float) -> float:
    """Return how long to leave the screen alone after a change, seconds.

    Args:
        spent_s: Processor time that showing the last change took, seconds.
    """
    return min(max(QUICKEST_S, spent_s / SHARE), SLOWEST_S)
