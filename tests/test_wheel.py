"""The wheel in an environment of its own, beside foreign packages that have our folders' names."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("wire", "device_agent", "coordinator", "profiles", "testbed")
TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    done = subprocess.run(
        [*build, "--directory", folder], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of packages: the wheel, and foreign ones with the names of our folders."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for name in FOLDERS:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("owner = 'another project'\n")
    return folder


def run(site: Path, cwd: Path, *arguments: str) -> str:
    """Run an interpreter whose only packages are `site` and what Fairbed depends on."""
    # `-S` keeps the editable install of this checkout out; the dependencies come by their folder.
    done = subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *dependencies()])},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def dependencies() -> list[str]:
    """Return the folders of installed packages, without those of a checkout."""
    folders = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    return [*folders, *(path for path in sys.path if path.endswith("site-packages"))]


def test_a_wheel_holds_one_package_and_no_links(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = archive.infolist()
    tops = {info.filename.partition("/")[0] for info in files}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"fairbed"}
    assert not any(info.external_attr >> 16 & 0o170000 == 0o120000 for info in files)
    names = {info.filename for info in files}
    assert all(f"fairbed/{folder}/__init__.py" in names for folder in FOLDERS)
    assert {
        "fairbed/py.typed",
        "fairbed/coordinator/tui/app.tcss",
        "fairbed/examples/quickstart.toml",
    } <= names


def test_packages_with_the_names_of_our_folders_stay_what_they_are(
    site: Path, tmp_path: Path
) -> None:
    code = f"import {', '.join(FOLDERS)}, fairbed.profiles, fairbed.wire.messages\n"
    code += "import fairbed.testbed.run.supervisor as ours\n"
    code += f"print(*({{module.owner for module in ({', '.join(FOLDERS)})}}))\n"
    code += "print(ours.__file__)"
    owners, path = run(site, tmp_path, "-c", code).splitlines()
    assert owners == "another project"
    assert path.startswith(str(site))


def test_an_installed_wheel_replays_an_experiment(site: Path, tmp_path: Path) -> None:
    (tmp_path / "quickstart.toml").write_bytes((ROOT / "examples/quickstart.toml").read_bytes())
    code = "import sys; from fairbed.testbed.cli.main import console; sys.exit(console())"
    fairbed = ("-c", code)
    assert "raspberry-pi-4b" in run(site, tmp_path, *fairbed, "profiles", "list")
    replay = ("replay", "quickstart.toml", "--no-training", "--set", "rounds=3", "--json")
    assert '"rounds_completed":3' in run(site, tmp_path, *fairbed, *replay)


def test_a_benchmark_of_an_installed_wheel_names_the_clone(site: Path, tmp_path: Path) -> None:
    code = "import sys; from fairbed.testbed.cli.main import main; sys.exit(main() - 2)"
    error = "import sys; sys.stderr = sys.stdout; " + code
    assert "run this in a clone of the repository" in run(site, tmp_path, "-c", error, "bench")
