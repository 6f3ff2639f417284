"""The rooms of the testbed: each can be deleted, and the core works without it."""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import fairbed
from fairbed.testbed import rooms
from fairbed.testbed.api.hosts import Hosts
from fairbed.testbed.cli.elsewhere import FindRun
from fairbed.testbed.cli.following import Follower
from fairbed.testbed.cli.main import main
from fairbed.testbed.cluster.api import ClusterHosts
from fairbed.testbed.experiment.file import make_experiment
from fairbed.testbed.flower.application import application
from fairbed.testbed.lab.named_broker import LabBroker
from fairbed.testbed.metrics.start import follower
from fairbed.testbed.notify.notify import watcher
from fairbed.testbed.remote import relay
from fairbed.testbed.remote.viewer import parse_target
from fairbed.testbed.rooms import SHIPPED
from fairbed.testbed.run.application import MakeApplication
from fairbed.testbed.run.run_broker import NamedBroker
from fairbed.testbed.run.watchers import MakeWatcher

ROOT = Path(__file__).parent.parent
PACKAGES = ("wire", "profiles", "device_agent", "coordinator", "testbed")
ROOMS = tuple(SHIPPED)
ALONE = [(name,) for name in ROOMS]
TIMEOUT_S = 110.0

CORE_TESTS = (
    "tests/coordinator/test_late_round.py",
    "tests/testbed/cli/test_experiment.py",
    "tests/testbed/compare/test_grid.py",
    "tests/testbed/experiment/test_file.py",
    "tests/testbed/replay/test_linear_replay.py",
    "tests/testbed/run/test_keep_broker.py",
    "tests/testbed/run/test_supervisor.py",
)
"""A selection of the core's tests: rounds, files, commands, grids, replays, live runs."""

FEW_TESTS = (
    "tests/coordinator/test_late_round.py",
    "tests/testbed/experiment/test_file.py",
    "tests/testbed/run/test_keep_broker.py",
)
"""Those that run without a single room; without all rooms all of the selection does."""

REFUSED: dict[str, tuple[tuple[str, ...], ...]] = {
    "cluster": (
        ("run", "x.toml", "--cluster", "local"),
        ("replay", "x.toml", "--cluster=local"),
        ("compare", "grid.toml", "--cluster", "local"),
    ),
    "flower": (
        ("run", "x.toml", "--flower", "app"),
        ("flower", "setup"),
        ("run", "x.toml", "--set", "flower.app=app"),
    ),
    "lab": (
        ("lab", "init"),
        ("devices", "list"),
        ("enroll", "pi-1", "--qr"),
        ("run", "x.toml", "--set", "broker.url=lab"),
    ),
    "metrics": (
        ("run", "x.toml", "--metrics", ":9464"),
        ("replay", "x.toml", "--tensorboard", "curves"),
    ),
    "notify": (
        ("run", "x.toml", "--set", 'notify.command=["true"]'),
        ("replay", "x.toml", "--set", "notify.on=[]"),
    ),
    "packs": (("pack", "latest"), ("unpack", "x.tar.zst", "--rerun")),
    "remote": (
        ("watch", "mqtts://viewer_alice@example.org"),
        ("command", "mqtts://operator_alice@example.org", "pause"),
    ),
    "reproduction": (("reproduce", "q-ffl", "--smoke"),),
    "web": (("watch", "latest", "--web"), ("watch", "--port", "8000")),
}
"""What a user types for a room; without the room each is refused in one line that names it."""


OF_FLOWER = re.compile(r"^(?:from|import) flwr\b", re.MULTILINE)
"""In a module that runs in the interpreter of a Flower app, and in no other."""

OF_ROOM = re.compile(rf"fairbed\.testbed(?: import |\.)(?:{'|'.join(ROOMS)})\b")


def _room_in(module: str) -> str:
    """Return the room of a module; empty if it is of the core."""
    parts = (*module.split("."), "", "", "")
    return parts[2] if parts[:2] == ("fairbed", "testbed") and parts[2] in ROOMS else ""


def _rooms_of(path: Path) -> set[str]:
    """Return the rooms that a module imports, also in a function or for its types."""
    text = path.read_text(encoding="utf-8")
    if not OF_ROOM.search(text):
        return set()
    names = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {room for name in names if (room := _room_in(name))}


def test_no_module_of_the_core_imports_a_room_and_no_room_another() -> None:
    found = [
        f"{path.relative_to(ROOT)} imports {name}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in _rooms_of(path)
        if path.relative_to(ROOT).parts[:2] != ("testbed", name)
    ]
    assert found == []


@pytest.mark.parametrize("name", rooms.present())
def test_the_line_that_refuses_an_absent_room_knows_all_that_it_adds(name: str) -> None:
    room, options = rooms.room(name), set[str]()
    for command, add in room.options.items():
        parser = argparse.ArgumentParser(add_help=False)
        rooms.load(add)(parser)
        options |= {f"{command} {o}" for action in parser._actions for o in action.option_strings}
    added: dict[str, set[str]] = {
        "commands": {*room.commands},
        "options": options,
        "tables": {*room.tables},
        "brokers": {*room.brokers},
        "seams": {*room.parts},
    }
    assert {kind: set(getattr(SHIPPED[name], kind)) for kind in added} == added


def test_the_parts_of_rooms_are_what_the_core_asks_for() -> None:
    """Types of the names below are checked by mypy; doors name them as texts."""
    make: MakeWatcher = watcher
    open_follower: Callable[[argparse.Namespace], AbstractContextManager[Follower]] = follower
    find: FindRun = parse_target
    broker: type[NamedBroker] = LabBroker
    hosts: type[Hosts] = ClusterHosts
    make_application: MakeApplication = application
    found = {seam: rooms.load(path) for room in rooms.rooms() for seam, path in room.parts.items()}
    assert found.pop("relay") is relay
    assert found == {
        "watcher": make,
        "follower": open_follower,
        "elsewhere": find,
        "hosts": hosts,
        "application": make_application,
    }
    assert [rooms.load(path) for room in rooms.rooms() for path in room.brokers.values()] == [
        broker
    ]
    for room in rooms.rooms():
        for command in room.commands.values():
            assert callable(rooms.load(f"{command.module}:main"))
            assert callable(rooms.load(command.options))
        assert all(callable(rooms.load(take)) for take in room.takes.values())


def test_all_rooms_are_found_by_their_doors() -> None:
    assert set(rooms.present()) == {*ROOMS}


@pytest.mark.parametrize("name", ROOMS)
def test_an_absent_room_is_named_and_no_other(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.toml").write_text('name = "x"\nrounds = 1\n')
    others = tuple(other for other in ROOMS if other != name)
    monkeypatch.setattr(rooms, "present", lambda: others)
    for words in REFUSED[name]:
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"must have the room {name} of Fairbed" in line
        assert f"without the folder testbed/{name}" in line


def test_an_absent_room_is_named_to_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "present", lambda: ())
    with pytest.raises(
        fairbed.UsageError, match=r"^cluster: must have the room cluster of Fairbed"
    ):
        fairbed.replay("examples/quickstart.toml", cluster="local")
    with pytest.raises(fairbed.UsageError, match="notify: must have the room notify of Fairbed"):
        fairbed.replay("examples/quickstart.toml", set={"notify.on": ["end"]})
    monkeypatch.setenv("FAIRBED_NOTIFY", "notify.toml")
    with pytest.raises(fairbed.UsageError, match=r"^FAIRBED_NOTIFY: must have the room notify"):
        fairbed.replay("examples/quickstart.toml", set={"rounds": 1})


def test_a_table_with_its_defaults_is_no_use_of_a_room() -> None:
    plain = make_experiment({"name": "x"}, "x.toml")
    assert make_experiment({"name": "x", "notify": {}}, "x.toml") == plain
    used = make_experiment({"name": "x", "notify": {"on": ["end"]}}, "x.toml")
    assert list(used.room_tables) == ["notify"]
    assert "[notify]" in used.resolved_toml()
    assert "notify" not in plain.resolved_toml()
    assert used.hash() == plain.hash() == used.without_rooms.hash()


@pytest.mark.full
def test_a_run_that_uses_no_room_imports_none() -> None:
    code = (
        "import sys\n"
        "from fairbed.testbed.cli.main import parsed\n"
        "import fairbed.testbed.cli.run\n"
        "from fairbed.testbed.api.planning import plan_run\n"
        "plan_run(parsed(['run', 'examples/quickstart.toml', '--headless']).experiment)\n"
        "print(*sys.modules)"
    )
    done = _python(ROOT, "-c", code)
    assert done.returncode == 0, done.stderr
    assert not [name for name in done.stdout.split() if _room_in(name)]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tree."""
    copy = tmp_path_factory.mktemp("tree") / "fairbed"
    left_out = shutil.ignore_patterns(".*", "__pycache__", "docs", "runs", "*.egg-info")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=left_out)
    return copy


@pytest.fixture(params=[*ALONE, ROOMS], ids=lambda names: names[0] if len(names) == 1 else "all")
def absent(request: pytest.FixtureRequest, tree: Path, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """Delete rooms from the copy, and put them back."""
    names: tuple[str, ...] = request.param
    for name in names:
        (tree / "testbed" / name).rename(tmp_path / name)
    yield names
    for name in names:
        shutil.rmtree(tree / "testbed" / name, ignore_errors=True)
        (tmp_path / name).rename(tree / "testbed" / name)


def _python(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("FAIRBED_LAB", "FAIRBED_NOTIFY", "PYTEST_ADDOPTS"):
        environ.pop(name, None)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def _fairbed(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _python(tree, "-m", "fairbed.testbed.cli.main", *arguments)


def _core_modules(tree: Path) -> list[str]:
    found = (path for package in PACKAGES for path in (tree / package).rglob("*.py"))
    paths = [path for path in found if not OF_FLOWER.search(path.read_text(encoding="utf-8"))]
    names = {".".join(path.relative_to(tree).with_suffix("").parts) for path in paths}
    return sorted(f"fairbed.{name.removesuffix('.__init__')}" for name in names)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.timeout(4 * TIMEOUT_S)
def test_the_core_works_without_a_room(tree: Path, tmp_path: Path, absent: tuple[str, ...]) -> None:
    modules = [name for name in _core_modules(tree) if not _room_in(name)]
    done = _python(tree, "-c", f"import importlib\nfor n in {modules}: importlib.import_module(n)")
    assert done.returncode == 0, done.stderr

    out = tmp_path / "run"
    done = _fairbed(
        *(tree, "run", "examples/quickstart.toml", "--headless", "--set", "rounds=2"),
        *("--out", str(out)),
    )
    assert done.returncode == 0, done.stderr
    assert "round 2/2" in done.stdout

    (tree / "x.toml").write_text('name = "x"\nrounds = 1\n')
    for name in absent:
        words = REFUSED[name][-1]
        done = _fairbed(tree, *words)
        (line,) = done.stderr.splitlines()
        assert done.returncode == 2, line
        assert f"must have the room {name} of Fairbed" in line, words

    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--tier", "fast"]
    if "lab" in absent:
        options += ["-k", "not mixed-fleet"]  # the example of a lab
    tests = CORE_TESTS if absent == ROOMS else FEW_TESTS
    done = _python(tree, "-m", "pytest", *options, *tests)
    assert done.returncode == 0, done.stdout[-4000:]
