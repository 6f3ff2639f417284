"""What kind of machine a device is, for people."""

import json

from coordinator.store.records import DeviceRow, TruthRow


def profile_of(device: DeviceRow, truth: TruthRow | None) -> str:
    """Return the emulated profile, or else the board that the device says it is."""
    if truth is not None:
        return truth.profile
    try:
        capabilities = json.loads(device.capabilities)
        return str(capabilities.get("model") or capabilities.get("machine") or "")
    except (ValueError, AttributeError):
        return ""
