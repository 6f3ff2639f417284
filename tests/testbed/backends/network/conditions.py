"""Conditions of a device of which only the link is emulated."""

from fairbed.testbed.emulation.conditions import Conditions, Outage, Shape


def linked(shape: Shape | None = None, outage: Outage | None = None) -> Conditions:
    """Return conditions with this link, of a device that is not slowed."""
    return Conditions(speed_ratio=None, shape=shape, outage=outage)
