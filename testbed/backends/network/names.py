"""How the parts of a run's network are called.

    fairbed.RUN.TAG           the hub's namespace
    fairbed.RUN.TAG.DEVICE    the namespace of a device
    fbTAG                     the one link in the host's namespace
    hub0, dN                  links inside the hub: to the host, to device N
    eth0                      a device's one link

RUN is for the reader. TAG is random, so that two runs of one name, or one that is resumed while
its predecessor is swept, never meet.
"""

import re
from dataclasses import dataclass

PREFIX = "fairbed"
HUB_LINK = "hub0"
DEVICE_LINK = "eth0"

TAG_BYTES = 4
"""Of randomness in a tag. An interface name has room for 15 characters."""

MAX_RUN_CHARACTERS = 64
"""Of the run's name that go into names: a file name has room for 255."""

_STRANGE = re.compile(r"[^A-Za-z0-9_-]")
_STEM = re.compile(rf"({PREFIX}\.[A-Za-z0-9_-]*\.[0-9a-f]{{{2 * TAG_BYTES}}})(\..+)?")


@dataclass(frozen=True, slots=True)
class Names:
    """The names that belong to one run."""

    stem: str
    """`fairbed.RUN.TAG`"""

    @property
    def hub(self) -> str:
        """Namespace of the hub."""
        return self.stem

    def device(self, name: str) -> str:
        """Namespace of a device."""
        return f"{self.stem}.{name}"

    @property
    def host_link(self) -> str:
        """Our link in the host's namespace."""
        return "fb" + self.stem.rpartition(".")[2]


def make_names(run_id: str, tag: bytes) -> Names:
    """Return the names of a run.

    Args:
        run_id: Whatever the run is called.
        tag: `TAG_BYTES` random bytes.
    """
    run = _STRANGE.sub("-", run_id)[:MAX_RUN_CHARACTERS]
    return Names(f"{PREFIX}.{run}.{tag.hex()}")


def owner_of(namespace: str) -> Names | None:
    """Return the names of the run that a namespace belongs to; None if it is not ours."""
    match = _STEM.fullmatch(namespace)
    return None if match is None else Names(match[1])


def hub_side(index: int) -> str:
    """Return the hub's link to the device of this number."""
    return f"d{index}"
