"""The wheel and the sdist, and the wheel in environments that hold its dependencies only."""

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.build_dist import FOLDERS, build, rebuilt, sdist_problems, unpack, wheel_problems

ROOT = Path(__file__).parent.parent
FOREIGN = ("wire", "device_agent", "coordinator", "profiles", "testbed")
TIMEOUT_S = 120.0

MISUSE = (
    "python",
    "-c",
    "import sys; from fairbed.testbed.cli.main import main; sys.stderr = sys.stdout; "
    "sys.exit(main() - 2)",
)
"""Runs `fairbed`; succeeds if it ends with status 2."""

NOT_IN_SDIST = {".ci/run", ".pre-commit-config.yaml", *(f"fairbed/{name}" for name in FOLDERS)}
"""Tracked files that a source distribution omits: links, and what serves this repository."""

Environment = Callable[[str], Path]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from this checkout."""
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return a function that makes an environment of the wheel with some of its extras.

    It holds the dependencies that the wheel names, linked from this environment, and foreign
    packages that have the names of our folders.
    """
    made: dict[str, Path] = {}

    def environment(extras: str) -> Path:
        if extras not in made:
            made[extras] = make_environment(tmp_path_factory.mktemp("environment"), wheel, extras)
        return made[extras]

    return environment


def make_environment(folder: Path, wheel: Path, extras: str) -> Path:
    """Make a virtual environment in `folder`; return its folder of commands."""
    venv.create(folder, symlinks=True)
    commands = folder / "bin"
    (site,) = folder.glob("lib/python*/site-packages")
    for dependency in dependencies(wheel, extras):
        for file in dependency.files or ():
            source = Path(str(dependency.locate_file(file)))
            if "bin" in file.parts[:-1] and file.parts[0] == "..":
                (commands / source.name).symlink_to(source)
            elif file.parts[0] not in ("..", "__pycache__"):
                top = site / file.parts[0]
                if not top.exists():
                    top.symlink_to(str(dependency.locate_file(file.parts[0])))
    pip = [sys.executable, "-m", "pip", "--python", str(commands / "python"), "install", "-q"]
    subprocess.run(
        [*pip, "--no-deps", "--no-index", "--no-compile", wheel], check=True, timeout=TIMEOUT_S
    )
    for name in FOREIGN:
        (site / name).mkdir()
        (site / name / "__init__.py").write_text("owner = 'another project'\n")
    return commands


def dependencies(wheel: Path, extras: str) -> list[Distribution]:
    """Return the installed distributions that the wheel needs with some of its extras."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        own = Metadata.from_email(archive.read(name)).requires_dist or []
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    queue = [Requirement(f"fairbed[{extras}]")]
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            if name == "fairbed":
                requires = own
            else:
                found[name] = distribution(name)
                requires = [Requirement(text) for text in found[name].requires or ()]
            queue += [r for r in requires if not r.marker or r.marker.evaluate({"extra": extra})]
    return list(found.values())


def run(commands: Path, cwd: Path, command: str, *arguments: str) -> str:
    """Run a command of an environment, without the variables that lead to this checkout."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "FAIRBED_DATA")}
    done = subprocess.run(
        [commands / command, *arguments],
        cwd=cwd,
        env=env | {"PATH": f"{commands}{os.pathsep}{env['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tracked() -> list[str]:
    """Return the files of this checkout that git tracks and that exist."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    names = done.stdout.decode().split("\0")
    return [name for name in names if name and os.path.lexists(ROOT / name)]


def test_a_wheel_holds_the_package_its_licences_and_nothing_else(wheel: Path) -> None:
    assert not list(wheel_problems(wheel, ROOT))
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"fairbed/{folder}/__init__.py" for folder in FOREIGN} <= names
    assert {"fairbed/py.typed", "fairbed/examples/quickstart.toml"} <= names


@pytest.mark.full
def test_an_sdist_holds_no_link_and_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = build(ROOT, tmp_path, "sdist")
    assert not list(sdist_problems(sdist))
    assert not list(rebuilt(sdist, wheel))
    if (ROOT / ".git").exists():
        source = unpack(sdist, tmp_path)
        assert {name for name in tracked() if not (source / name).exists()} == NOT_IN_SDIST


@pytest.mark.parametrize(
    ("name", "mode", "problem"),
    [
        ("other/__init__.py", 0o100644, "other/__init__.py: must be in fairbed/"),
        ("fairbed/../x.py", 0o100644, "fairbed/../x.py: must be relative and inside the archive"),
        ("fairbed/x.py", 0o120777, "fairbed/x.py: must be a regular file"),
        ("fairbed/x.db", 0o100644, "fairbed/x.db: is no file of the package"),
    ],
)
def test_a_file_that_does_not_belong_into_a_wheel_is_found(
    wheel: Path, tmp_path: Path, name: str, mode: int, problem: str
) -> None:
    broken = tmp_path / wheel.name
    broken.write_bytes(wheel.read_bytes())
    entry = zipfile.ZipInfo(name)
    entry.external_attr = mode << 16
    with zipfile.ZipFile(broken, "a") as archive:
        archive.writestr(entry, "")
    assert list(wheel_problems(broken, ROOT)) == [problem]


def test_the_notice_names_every_source_of_the_profiles() -> None:
    notice = (ROOT / "NOTICE").read_text()
    texts = [path.read_text() for path in (ROOT / "profiles").rglob("*.toml")]
    sources = {s for t in texts for s in re.findall(r"\b[\w.-]+(?:/[\w.-]+)? [0-9a-f]{7}\b", t)}
    assert len(sources) > 5
    assert not [source for source in sources if source not in notice]


def test_the_builds_read_no_link() -> None:
    assert all((ROOT / "fairbed" / folder).is_symlink() for folder in FOLDERS)
    setup = (ROOT / "tools" / "setup.sh").read_text()
    assert f"for folder in {' '.join(FOLDERS)}; do" in setup


def test_packages_with_the_names_of_our_folders_stay_what_they_are(
    environment: Environment, tmp_path: Path
) -> None:
    commands = environment("testbed,broker")
    code = f"import {', '.join(FOREIGN)}, fairbed.profiles, fairbed.wire.messages\n"
    code += "import fairbed.testbed.run.supervisor as ours\n"
    code += f"print(*({{module.owner for module in ({', '.join(FOREIGN)})}}))\n"
    code += "print(ours.__file__)"
    owners, path = run(commands, tmp_path, "python", "-c", code).splitlines()
    assert owners == "another project"
    assert path.startswith(str(commands.parent))


def test_the_wheel_writes_and_replays_an_experiment(
    environment: Environment, tmp_path: Path
) -> None:
    commands = environment("testbed,broker")
    usage = run(commands, tmp_path, "fairbed", "--help")
    assert "usage: fairbed" in usage
    assert "rename or revoke the devices of the lab" in " ".join(usage.split())  # of a room
    assert "NotifyConfig" in run(commands, tmp_path, "fairbed", "schema")
    assert "raspberry-pi-4b" in run(commands, tmp_path, "fairbed", "profiles", "list")
    assert "quickstart.toml " in run(commands, tmp_path, "fairbed", "examples")
    assert "wrote experiment.toml" in run(commands, tmp_path, "fairbed", "init")
    replay = ("replay", "experiment.toml", "--no-training", "--set", "rounds=3", "--json")
    assert json.loads(run(commands, tmp_path, "fairbed", *replay))["rounds_completed"] == 3
    run(commands, tmp_path, "fairbed", "export", "--out", "tables")
    assert "Model exchange time" in (tmp_path / "tables" / "dictionary.csv").read_text()


@pytest.mark.full
def test_the_wheel_runs_the_quickstart(environment: Environment, tmp_path: Path) -> None:
    arguments = ("demo", "--headless", "--set", "rounds=2", "--json")
    summary = json.loads(run(environment("testbed,broker"), tmp_path, "fairbed", *arguments))
    assert summary["rounds_completed"] == 2


def test_a_device_runs_the_wheel_without_extras(environment: Environment, tmp_path: Path) -> None:
    commands = environment("")
    assert "usage: device-agent" in run(commands, tmp_path, "device-agent", "--help")
    code = "import fairbed.device_agent.process, fairbed.device_agent.engines.onnx\n"
    code += "from fairbed.device_agent.installed import engine_version; print(engine_version())"
    assert "onnxruntime" in run(commands, tmp_path, "python", "-c", code)
    assert "pip install 'fairbed[testbed]'" in run(commands, tmp_path, *MISUSE, "demo")


def test_a_benchmark_of_an_installed_wheel_names_the_clone(
    environment: Environment, tmp_path: Path
) -> None:
    output = run(environment("testbed,broker"), tmp_path, *MISUSE, "bench")
    assert "run this in a clone of the repository" in output
