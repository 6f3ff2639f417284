"""Who counts as gone in the middle of a round. Pure."""

from coordinator.registry import Device

OFF_GRACE_S = 5.0
"""A last will is a lost link at first: the device has this long to come back and go on."""

SILENT_S = 15.0
"""Nothing at all heard for this long: gone. Heartbeats come at 1 Hz but wait behind a window of
chunks on a slow link (4 x 32 KB at 100 kbit/s is 10 s)."""


def why_gone(device: Device, link_up_since: float, now: float) -> str | None:
    """Return why a device that should be working counts as gone; None while it does not.

    Args:
        device: The device.
        link_up_since: When our own link last came up; nobody is to blame for silence before.
        now: This instant.
    """
    off_since = device.off_since
    if off_since is not None and now - max(off_since, link_up_since) > OFF_GRACE_S:
        return f"the device left and did not come back within {OFF_GRACE_S:g} s"
    if now - max(device.heard_at, link_up_since) > SILENT_S:
        return f"nothing heard from the device for {SILENT_S:g} s"
    return None
