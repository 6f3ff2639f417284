"""Run the tests of a device on every supported Python: python tools/pythons.py [VERSION ...].

VERSION is 3.10 to 3.14, all by default; what follows `--` goes to pytest, instead of the tests of
wire, agent and profiles. An interpreter is taken from the PATH or from pyenv, with an environment
`.venv-VERSION` of a device's packages. Without one, root on Debian gets the Debian release that has
it, in a temporary folder (`--folder`) that later runs use again. Where neither is there, one line
names the reason, and the version is skipped; a version that fails, or a root that cannot be built,
ends it with status 1.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.roots import (  # this file is run as a program
    ROOT,
    StepError,
    Unavailable,
    call,
    find_uv,
    keep_root,
    make_folder,
    new_parser,
    run_recipe,
)

RECIPE = "test-pythons"

SUITES: Mapping[str, str] = {
    "3.10": "",
    "3.11": "bookworm",
    "3.12": "",
    "3.13": "trixie",
    "3.14": "sid",
}
"""Supported Pythons, and the Debian release of each; Debian released none with 3.10 or 3.12."""

PACKAGES = ("python3", "ca-certificates", "git", "iproute2", "mosquitto", "openssl", "procps")
"""What the tests of a device use of a system."""

TESTS = ("tests/wire", "tests/device_agent", "tests/profiles")
TESTS_S = 3600.0
"""Longest run of the tests of one version: some minutes on a quiet machine."""

ENTER = """
set -e
mkdir -p "$1"/source "$1"/data
for folder in dev proc sys; do mount --rbind /$folder "$1"/$folder; done
mount --bind "$2" "$1"/source
mount -o remount,bind,ro "$1"/source
[ -z "$3" ] || mount --bind -o ro "$3" "$1"/data
root=$1
shift 3
exec chroot "$root" /usr/bin/env -i "$@"
"""
"""Enters a root, in a mount namespace of its own. Arguments: root, checkout, data or nothing, then
a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests; return 1 if they failed on a version."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    dashes = words.index("--") if "--" in words else len(words)
    tests = words[dashes + 1 :] or TESTS
    steps = {version: partial(run_tests, version, tests) for version in SUITES}

    parser = new_parser(RECIPE, __doc__)
    options = words[:dashes]
    return run_recipe(RECIPE, parser, options, lambda args: args.folder, steps, noun="version")


def run_tests(version: str, tests: Sequence[str], folder: Path) -> str:
    """Run tests on one version; return which one it was.

    Raises:
        Unavailable: There is no such Python on this machine.
        StepError: A test failed, or the packages cannot be installed.
    """
    workers = ["-n", str(min(os.cpu_count() or 1, 8)), "--dist", "worksteal"]
    pytest = ["pytest", *workers, *tests]
    python = next(interpreters(version), None)
    if python is not None:
        venv = ROOT / f".venv-{version}"
        setup = ["sh", "tools/setup.sh", "device", venv.name]
        if call(setup, cwd=ROOT, environ={"PYTHON": python}):
            raise StepError(f"the packages of a device cannot be installed for {python}")
        environ = {"PATH": os.pathsep.join([str(venv / "bin"), os.environ["PATH"]])}
        command = [str(venv / "bin" / "python"), "-m", *pytest]
        used = python
    else:
        environ, used = {}, f"Debian {SUITES[version]}"
        root = debian_with(version, folder)
        inside = ["env", "-C", "/source", f"python{version}", "-m", *pytest]
        command = entering(root, [*inside, "-p", "no:cacheprovider"])
    print(f"{RECIPE}: {version}, {used}", flush=True)
    if status := call(command, cwd=ROOT, environ=environ, timeout_s=TESTS_S):
        raise StepError(f"{used}: pytest ended with status {status}")
    return f"passed, {used}"


def interpreters(version: str) -> Iterator[str]:
    """Yield the interpreters of a version that run and can make environments."""
    pyenv = Path.home() / ".pyenv" / "versions"
    found = [f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python{version}")))]
    for python in found:
        path = shutil.which(python)
        check = f"import venv, sys; sys.exit('{version}' != '%d.%d' % sys.version_info[:2])"
        if path and not subprocess.run([path, "-c", check], capture_output=True).returncode:
            yield path


def debian_with(version: str, folder: Path) -> Path:
    """Return a root of the Debian release that has this version, with the packages of a device.

    Raises:
        Unavailable: This machine cannot make it.
        StepError: It cannot be built.
    """
    suite = SUITES[version]
    if not suite:
        raise Unavailable("no such Python is installed")
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        raise Unavailable("no such Python is installed; root and mmdebstrap would make a Debian")
    make_folder(folder)
    root = folder / f"root-{suite}"
    # The index of Debian's unreleased suite expires within days where a mirror lags behind.
    options = ("--variant=minbase", '--aptopt=Acquire::Check-Valid-Until "false"')
    keep_root(root, suite, PACKAGES, *options)
    inside = ["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(
        entering(root, inside), capture_output=True, text=True, encoding="utf-8", errors="replace"
    )
    if done.stdout.strip() != version:
        raise Unavailable(f"Debian {suite} has Python {done.stdout.strip() or done.stderr}")
    install(version, root)
    return root


def install(version: str, root: Path) -> None:
    """Put the packages of a device, the tools of the tests and Fairbed into a root.

    By uv, as pip reads the markers of the Python that it runs on, not of another.
    """
    site = root / "site"
    shutil.rmtree(site, ignore_errors=True)
    options = ["--target", str(site), f"--python-version={version}", "--only-binary=:all:"]
    options += ["--no-binary=fairbed", "-c", "constraints.txt", ".", "--group", "test"]
    if call([find_uv(), "pip", "install", "-q", *options], cwd=ROOT):
        raise StepError(f"the packages of a device cannot be installed for Python {version}")


def entering(root: Path, command: Sequence[str]) -> list[str]:
    """Return the command line that runs a program of a root, with the packages in `/site`."""
    data = os.environ.get("FAIRBED_DATA", "")
    environ = {
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "PYTHONPATH": "/site",
        "PYTHONPYCACHEPREFIX": "/var/cache/python",
        **({"FAIRBED_DATA": "/data"} if data else {}),
    }
    variables = [f"{key}={value}" for key, value in environ.items()]
    enter = ["unshare", "--mount", "sh", "-c", ENTER, "enter", str(root), str(ROOT), data]
    return [*enter, *variables, *command]


if __name__ == "__main__":
    os.nice(19)
    sys.exit(main())
