"""A quota is raised during a compute section and restored afterwards."""

from pathlib import Path

import pytest

from fairbed.testbed.backends.cgroups.files import read
from fairbed.testbed.backends.cgroups.group import Group
from fairbed.testbed.backends.cgroups.quota import Headroom, Quota
from tests.testbed.backends.cgroups.conftest import MakeGroup


def quota_of(group: Group) -> float:
    """Return the share that the kernel has for a group, in cores."""
    sandbox = group.sandbox()
    folder = Path(sandbox.quota_folder)
    if sandbox.quota_version == 2:
        quota, period = read(folder / "cpu.max").split()
    else:
        quota, period = (read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return int(quota) / int(period)


def headroom_of(group: Group, speeds: list[float]) -> Headroom:
    """Return headroom of a device whose speed is the last one listed."""
    sandbox = group.sandbox()
    quota = Quota(Path(sandbox.quota_folder), sandbox.quota_version, is_shared=True)
    return Headroom(quota, lambda: speeds[-1])


def test_a_section_has_twice_the_share_and_the_device_its_own_afterwards(
    make_group: MakeGroup,
) -> None:
    group = make_group("a")
    group.limit_cpu(0.25)
    with headroom_of(group, [0.25]).lifted():
        assert quota_of(group) == pytest.approx(0.5)
    assert quota_of(group) == pytest.approx(0.25)


def test_a_section_that_fails_restores_the_quota(make_group: MakeGroup) -> None:
    group = make_group("a")
    group.limit_cpu(0.25)
    with pytest.raises(RuntimeError), headroom_of(group, [0.25]).lifted():
        raise RuntimeError
    assert quota_of(group) == pytest.approx(0.25)


def test_a_change_of_speed_within_a_section_is_followed(make_group: MakeGroup) -> None:
    group, speeds = make_group("a"), [0.5]
    group.limit_cpu(0.5)
    headroom = headroom_of(group, speeds)
    with headroom.lifted():
        speeds.append(0.03)
        group.limit_cpu(0.03)  # as the backend does: a longer period, and no headroom
        headroom.follow()
        assert quota_of(group) == pytest.approx(0.06, rel=1e-3)
    assert quota_of(group) == pytest.approx(0.03, rel=1e-3)


def test_a_change_at_the_end_of_a_section_is_not_lost(make_group: MakeGroup) -> None:
    group, speeds = make_group("a"), iter([0.5, 0.5, 0.1, 0.1])
    group.limit_cpu(0.5)
    sandbox = group.sandbox()
    quota = Quota(Path(sandbox.quota_folder), sandbox.quota_version, is_shared=True)
    with Headroom(quota, lambda: next(speeds)).lifted():
        pass
    assert quota_of(group) == pytest.approx(0.1)
