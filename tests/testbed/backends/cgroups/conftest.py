"""Control groups of this machine, for tests that need real ones."""

import secrets
from collections.abc import Callable, Iterator

import pytest

from testbed.backends.cgroups.files import CgroupError
from testbed.backends.cgroups.group import Group
from testbed.backends.cgroups.places import Places, find_places

MakeGroup = Callable[[str], Group]


@pytest.fixture
def places() -> Places:
    """Return where groups can be made here."""
    try:
        found = find_places()
        trial = Group(found, secrets.token_hex(4), "trial")
        trial.make()
        trial.remove()
    except CgroupError as exc:
        pytest.skip(str(exc))
    return found


@pytest.fixture
def run() -> str:
    """Return the identity of a run that nobody else has."""
    return secrets.token_hex(4)


@pytest.fixture
def make_group(places: Places, run: str) -> Iterator[MakeGroup]:
    """Return what makes real groups; they are removed afterwards."""
    groups: list[Group] = []

    def make(device: str) -> Group:
        group = Group(places, run, device)
        group.make()
        groups.append(group)
        return group

    yield make
    for group in groups:
        group.remove()
