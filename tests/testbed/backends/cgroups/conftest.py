"""Control groups of this machine, for tests that need real ones."""

import secrets
from collections.abc import Callable, Iterator

import pytest

from fairbed.testbed.backends.cgroups.files import CgroupError
from fairbed.testbed.backends.cgroups.group import Group
from fairbed.testbed.backends.cgroups.places import CgroupPlaces, find_places

MakeGroup = Callable[[str], Group]


@pytest.fixture
def places() -> CgroupPlaces:
    """Return where groups can be made here."""
    try:
        found = find_places()
        trial = Group(found, f"fairbed-test-{secrets.token_hex(4)}")
        trial.make()
        trial.remove()
    except CgroupError as exc:
        pytest.skip(str(exc))
    return found


@pytest.fixture
def make_group(places: CgroupPlaces) -> Iterator[MakeGroup]:
    """Return what makes real groups; they are removed afterwards."""
    groups: list[Group] = []

    def make(name: str) -> Group:
        group = Group(places, f"fairbed-test-{secrets.token_hex(4)}-{name}")
        group.make()
        groups.append(group)
        return group

    yield make
    for group in groups:
        group.remove()
