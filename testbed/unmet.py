"""What profiles ask for that a backend holds still or leaves out: never in silence."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from profiles import Link, Profile, Varying
from testbed.backends.choice import BackendName
from testbed.fleet import PlannedDevice


def unmet(devices: Sequence[PlannedDevice], backend: BackendName) -> str | None:
    """Return one line that says what is not emulated, and of which profiles; None if all is."""
    owners: dict[str, set[str]] = defaultdict(set)
    concerned = 0
    for planned in devices:
        wishes = list(_wishes(planned.profile, planned.link, backend))
        concerned += bool(wishes)
        for wish in wishes:
            owners[wish].add(planned.profile.name if planned.profile else planned.spec.name)
    if not owners:
        return None
    found = "; ".join(f"{wish} ({_some(sorted(names))})" for wish, names in owners.items())
    return (
        f"{concerned} of {len(devices)} devices ask for what the {backend} backend does not "
        f"emulate, and have it at its typical value or not at all: {found}"
    )


def _wishes(profile: Profile | None, link: Link | None, backend: BackendName) -> Iterator[str]:
    if link is not None:
        yield from _moving(link, "link.")
        if link.loss_ratio > 0.0 and backend == "process":
            yield "link.loss_ratio"
    if profile is not None:
        yield from _moving(profile)
        if profile.thermal is not None:
            yield "thermal"
        if profile.availability is not None:
            yield "availability"


def _moving(item: msgspec.Struct, prefix: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(item):
        number = getattr(item, field.name)
        if isinstance(number, Varying) and not number.is_constant:
            yield f"{prefix}{field.encode_name} over time"


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
