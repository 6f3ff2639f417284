"""The house around the code: the wrapper, the setup, the pins, the links."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import fetch_pip
from tools.measure_house import FEATURES, bare_round, live_round, modules_of_features

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 60.0

OLD_PYTHON = """#!/bin/sh
case $1 in -V) echo Python 3.8.10 ;; *) exit 1 ;; esac
"""
BARE_PYTHON = """#!/bin/sh
# New enough, but without ensurepip and venv.
case $* in -V) echo Python 3.11.2 ;; *version_info*) ;; *) exit 1 ;; esac
"""
ECHO_RUNNER = """#!/bin/sh
if [ "$1" = --version ]; then exit; fi
pwd
printf '[%s]' "$@"
"""


def _executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return an empty checkout with the wrapper and the setup, and no `.venv` yet."""
    folder = tmp_path / "a checkout"
    files = ("just", "tools/setup.sh", "tools/fetch_pip.py", "pyproject.toml", "constraints.txt")
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def _run(*args: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        args,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/"), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def test_the_wrapper_runs_in_the_checkout_and_passes_its_arguments_on(
    checkout: Path, tmp_path: Path
) -> None:
    _executable(checkout / ".venv" / "bin" / "just", ECHO_RUNNER)
    done = _run(checkout / "just", "test", "--", "-k", "two words", cwd=tmp_path)
    assert done.stdout == f"{checkout}\n[test][--][-k][two words]"


def test_the_wrapper_takes_a_runner_from_the_path(checkout: Path, tmp_path: Path) -> None:
    folder = _executable(tmp_path / "bin" / "just", ECHO_RUNNER).parent
    done = _run(checkout / "just", "demo", cwd=tmp_path, PATH=f"{folder}:/usr/bin:/bin")
    assert done.stdout.endswith("[demo]")


def test_the_wrapper_is_not_its_own_runner(checkout: Path) -> None:
    old = _executable(checkout / "python", OLD_PYTHON)
    done = _run("./just", "demo", cwd=checkout, PATH=f"{checkout}:/usr/bin:/bin", PYTHON=str(old))
    assert done.returncode == 1
    assert done.stderr.startswith("setup: Python must be 3.10 or newer")


def test_setup_names_the_version_when_python_is_too_old(checkout: Path) -> None:
    _executable(checkout / "old", OLD_PYTHON)
    done = _run("sh", "tools/setup.sh", "demo", cwd=checkout, PYTHON="./old")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "setup: Python must be 3.10 or newer, got Python 3.8.10; "
        "install one and name it: PYTHON=python3.12 ./just demo\n"
    )


def test_setup_tells_the_one_command_that_a_python_without_venv_needs(checkout: Path) -> None:
    _executable(checkout / "python3", BARE_PYTHON)
    done = _run("sh", "tools/setup.sh", "demo", cwd=checkout, PYTHON="./python3")
    assert done.returncode == 1
    assert done.stderr == (
        "setup: Python must be able to build virtual environments, got ./python3 without "
        "venv; type: sudo apt-get install -y python3-venv\n"
    )


def test_setup_refuses_another_pip_where_python_has_no_ensurepip(
    checkout: Path, tmp_path: Path
) -> None:
    bare = f"""#!/bin/sh
case $* in *ensurepip*) exit 1 ;; *) exec {sys.executable} "$@" ;; esac
"""
    _executable(checkout / "python3", bare)
    index = _index(tmp_path, b"another file")
    env = {"PYTHON": "./python3", "PIP_INDEX_URL": index, "PIP_CONFIG_FILE": os.devnull}
    done = _run("sh", "tools/setup.sh", "runner", cwd=checkout, **env)
    assert done.returncode == 1
    assert done.stderr == (
        f"fetch_pip: {fetch_pip.WHEEL} must come from a package index: {index}/pip/ has another "
        "file of this name, with another SHA-256\n"
        "setup: pip could not be fetched (its reason is above); type the same command again, or: "
        "sudo apt-get install -y python3-venv\n"
    )


def _index(folder: Path, wheel: bytes) -> str:
    """Write a package index that holds pip's wheel; return its URL."""
    place = folder / "index" / "pip"
    place.mkdir(parents=True)
    (place / "index.html").write_text(f'<a href="../{fetch_pip.WHEEL}#sha256=0">pip</a>')
    (place.parent / fetch_pip.WHEEL).write_bytes(wheel)
    return place.parent.as_uri()


def test_pip_comes_from_the_first_index_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_pip, "SHA256", hashlib.sha256(b"wheel").hexdigest())
    index = _index(tmp_path, b"wheel")
    assert fetch_pip.fetch(["file:///nowhere/simple", index], None) == b"wheel"
    with pytest.raises(fetch_pip.FetchError, match=r"file:///nowhere/simple/pip/: .*No such file"):
        fetch_pip.fetch(["file:///nowhere/simple"], None)


def test_pip_is_asked_for_where_pip_would_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://a/simple\ncert = a.pem\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_CERT", "b.pem")
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    settings = fetch_pip.pip_settings()
    assert (settings["index-url"], settings["cert"]) == ("https://a/simple", "b.pem")


def test_setup_refuses_an_unknown_level(checkout: Path) -> None:
    done = _run("sh", "tools/setup.sh", "all", cwd=checkout)
    assert done.returncode == 2
    assert done.stderr == "setup: level must be runner, demo, device, supply or dev, got all\n"


def test_setup_makes_the_links_that_a_source_distribution_lacks(checkout: Path) -> None:
    (checkout / "fairbed").mkdir()
    (checkout / "fairbed" / "__init__.py").touch()
    (checkout / "wire").mkdir()
    (checkout / "fairbed" / "wire").write_text("../wire")
    _executable(checkout / "old", OLD_PYTHON)
    _run("sh", "tools/setup.sh", "demo", cwd=checkout, PYTHON="./old")
    assert (checkout / "fairbed" / "wire").resolve() == checkout / "wire"
    assert (checkout / "fairbed" / "examples").readlink() == Path("../examples")


def test_torch_is_pinned_to_one_version_everywhere() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert len(pins) == 1
    assert pins[0] in extras["optional-dependencies"]["torch"]


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))])
def test_every_link_to_a_file_leads_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", path.read_text())
    missing = [k for k in links if "://" not in k and not (path.parent / k).exists()]
    assert not missing


def test_every_path_in_the_design_exists() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    paths = set(re.findall(r"`([a-z_]+/[a-z_/]+(?:\.py|/))`", text))
    assert len(paths) > 20
    assert not [path for path in sorted(paths) if not (ROOT / path).exists()]


def test_a_round_passes_no_module_of_a_feature_that_is_off() -> None:
    assert not modules_of_features(bare_round())
    on = modules_of_features(live_round())
    assert {*FEATURES["explanation"], *FEATURES["alerts"], *FEATURES["fairness tables"]} <= on


def test_the_modules_of_each_feature_exist() -> None:
    missing = [path for paths in FEATURES.values() for path in paths if not (ROOT / path).exists()]
    assert not missing
