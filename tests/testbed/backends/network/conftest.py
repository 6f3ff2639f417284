"""Fixtures for real networks, and a check that the host's namespace does not change."""

import functools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from fairbed.testbed.backends.network.probe import Support, probe


@functools.cache
def _support() -> Support:
    return anyio.run(probe)


@pytest.fixture
def support() -> Support:
    """Skip where networks do not work; return the supported features."""
    found = _support()
    if found.problem is not None:
        pytest.skip(found.problem)
    return found


def host_view() -> list[str]:
    """Return every link, address, route and qdisc of the host's namespace, but for ours.

    Counters and life times move by themselves and are left out.
    """
    shows = (
        ["ip", "-json", "link", "show"],
        ["ip", "-json", "addr", "show"],
        ["ip", "-json", "route", "show", "table", "all"],
        ["ip", "-6", "-json", "route", "show", "table", "all"],
        ["tc", "-json", "qdisc", "show"],
    )
    rows = []
    for argv in shows:
        done = subprocess.run(argv, capture_output=True, check=True, timeout=60.0)
        for row in json.loads(done.stdout or b"[]"):
            if not str(row.get("ifname", row.get("dev", ""))).startswith("fb"):
                rows.append(" ".join([*argv, json.dumps(_steady(row))]))
    return rows


def missing_since(before: list[str]) -> list[str]:
    """Return what was removed or changed; other processes may add to the machine meanwhile."""
    present = host_view()
    return [row for row in before if row not in present]


def _steady(row: object) -> object:
    if isinstance(row, dict):
        moving = ("valid_life_time", "preferred_life_time", "expires")
        return {key: _steady(value) for key, value in row.items() if key not in moving}
    if isinstance(row, list):
        return [_steady(each) for each in row]
    return row


@pytest.fixture
def untouched_host(support: Support) -> Iterator[None]:
    """Fail a test that leaves the host's namespace different from how it was."""
    before = host_view()
    yield
    assert missing_since(before) == []


@pytest.fixture
def scratch(support: Support) -> Iterator[Path]:
    """Return a namespace without a name, which ends with the process inside."""
    argv = ["unshare", "--net", "sh", "-c", "echo up; exec cat"]
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "up\n"
    yield Path(f"/proc/{holder.pid}/ns/net")
    holder.communicate()
