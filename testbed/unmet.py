"""What profiles ask for that a backend leaves out: never in silence."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from profiles import Link
from testbed.backends.choice import BackendName
from testbed.fleet import PlannedDevice


def unmet(devices: Sequence[PlannedDevice], backend: BackendName) -> str | None:
    """Return one line that says what is not emulated, and of which profiles; None if all is."""
    owners: dict[str, set[str]] = defaultdict(set)
    concerned = 0
    for planned in devices:
        wishes = list(_wishes(planned.link, backend))
        concerned += bool(wishes)
        for wish in wishes:
            owners[wish].add(planned.profile.name if planned.profile else planned.spec.name)
    if not owners:
        return None
    found = "; ".join(f"{wish} ({_some(sorted(names))})" for wish, names in owners.items())
    return (
        f"{concerned} of {len(devices)} devices ask for what the {backend} backend does not "
        f"emulate, and do not have it: {found}"
    )


def _wishes(link: Link | None, backend: BackendName) -> Iterator[str]:
    loses = link is not None and link.loss is not None and link.loss.highest > 0.0
    if loses and backend == "process":
        yield "link.loss_ratio"


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
