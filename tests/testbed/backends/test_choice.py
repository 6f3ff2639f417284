"""The choice of a backend, by name or automatic, is always reported."""

import json
import secrets
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import msgspec
import pytest

from fairbed import profiles
from fairbed.coordinator.store import RunReader
from fairbed.testbed.backends.base import DeviceSpec, device_spec
from fairbed.testbed.backends.choice import choose, problem_with
from fairbed.testbed.emulation.cell import Cell
from fairbed.testbed.emulation.conditions import Shape
from fairbed.testbed.errors import BackendUnavailable
from tests.testbed.backends.test_namespace import what_is_left

REPOSITORY = Path(__file__).parents[3]

LIMIT_S = 90.0

PLAIN = """
name = "plain"
rounds = 2
[selection]
per_round = 2
[[fleet]]
count = 2
"""


@pytest.fixture
def needs_namespaces() -> None:
    problem = anyio.run(problem_with, "namespace")
    if problem is not None:
        pytest.skip(problem)


def fairbed(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fairbed.testbed.cli.main", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def pi(speed_ratio: float | None = None) -> DeviceSpec:
    spec = device_spec("pi", profiles.load("raspberry-pi-4b"))
    assert spec.device is not None
    speed_ratio = spec.device.speed_ratio if speed_ratio is None else speed_ratio
    device = msgspec.structs.replace(spec.device, speed_ratio=speed_ratio)
    return replace(spec, device=device, shape=None)


@pytest.mark.usefixtures("needs_namespaces")
def test_auto_takes_namespaces_where_they_work() -> None:
    assert anyio.run(choose, "auto", [pi()]) == ("namespace", {})


def test_auto_reports_why_it_rejects_the_better_backend() -> None:
    async def test() -> None:
        name, rejected = await choose("auto", [pi(0.001)])
        assert name == "process"
        assert rejected["namespace"].startswith("pi: processor share must be at least 0.01")

    anyio.run(test)


@pytest.mark.usefixtures("needs_namespaces")
@pytest.mark.parametrize(("own_bps", "expected"), [(8e6, "namespace"), (7e6, "process")])
def test_auto_takes_namespaces_only_if_bytes_share_a_cell_as_time_does(
    own_bps: float, expected: str
) -> None:
    cell = Cell(name="lte", down_bps=8e6, up_bps=8e6, share="proportional-fair")
    spec = replace(pi(), shape=Shape(down_bps=8e6, up_bps=own_bps), cells=(cell,))
    assert anyio.run(choose, "auto", [spec])[0] == expected


def test_a_named_backend_is_used_or_refused() -> None:
    async def test() -> None:
        assert await choose("process", [pi()]) == ("process", {})
        with pytest.raises(
            BackendUnavailable, match=r'^emulation\.backend: .* got "namespace": pi'
        ):
            await choose("namespace", [pi(0.001)])

    anyio.run(test)


@pytest.mark.full
def test_a_run_with_a_backend_that_cannot_work_ends_with_one_line_and_status_2(
    tmp_path: Path,
) -> None:
    done = fairbed(
        *("run", "examples/quickstart.toml", "--headless", "--out", str(tmp_path / "run")),
        *("--set", 'emulation.backend="namespace"', "--set", "emulation.host_core_speed=1000"),
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "processor share must be at least 0.01" in done.stderr


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.usefixtures("needs_namespaces")
def test_a_whole_run_reports_its_backend_and_leaves_nothing(tmp_path: Path) -> None:
    experiment = tmp_path / "plain.toml"
    experiment.write_text(PLAIN, encoding="utf-8")
    folder = tmp_path / f"run-{secrets.token_hex(4)}"
    done = fairbed(
        *("run", str(experiment), "--json", "--out", str(folder)),
        *("--set", 'emulation.backend="namespace"'),
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["exchange"]["count"] == 4
    assert summary["exchange"]["failed"] == 0
    with RunReader(folder) as reader:
        (event,) = (event for _, event in reader.events() if event.kind == "backend")
    assert event.text == "devices are emulated by the namespace backend"
    assert what_is_left(folder.name) == []
