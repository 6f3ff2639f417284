"""The choice of a container runtime, with programs that imitate podman."""

from pathlib import Path

import anyio
import pytest

from fairbed.testbed.backends.containers.engine import ContainerEngine, find_engine
from fairbed.testbed.errors import BackendUnavailable

PODMAN = """#!/bin/sh
case "$*" in
  *runc*) {runc} ;;
  *) {default} ;;
esac
"""

REFUSED, BROKEN, MISSING = (
    f"echo 'Error: {text}' >&2; exit 126"
    for text in (
        "sysctl is not permitted",
        "no such overlay",
        'default OCI runtime "runc" not found: invalid argument',
    )
)


def find(folder: Path, monkeypatch: pytest.MonkeyPatch, *, default: str, runc: str) -> str:
    """Return the command of the engine that is found, or the problem."""
    podman = folder / "podman"
    podman.write_text(PODMAN.format(default=default, runc=runc))
    podman.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))

    async def attempt() -> ContainerEngine:
        return await find_engine()

    try:
        return " ".join(anyio.run(attempt).command)
    except BackendUnavailable as exc:
        return str(exc)


def test_runc_is_used_where_the_default_runtime_does_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find(tmp_path, monkeypatch, default=BROKEN, runc="exit 0")
    assert found == f"{tmp_path}/podman --runtime runc"


def test_the_cause_is_named_and_not_that_runc_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find(tmp_path, monkeypatch, default=REFUSED, runc=MISSING)
    assert found == "podman: run failed: Error: sysctl is not permitted"


def test_each_runtime_names_its_own_cause_and_a_common_one_occurs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find(tmp_path, monkeypatch, default=REFUSED, runc=BROKEN) == (
        "podman: run failed: Error: sysctl is not permitted; "
        "with runc: podman: run failed: Error: no such overlay"
    )
    assert find(tmp_path, monkeypatch, default=BROKEN, runc=BROKEN) == (
        "podman: run failed: Error: no such overlay"
    )
