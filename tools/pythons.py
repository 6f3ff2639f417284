"""Run the tests of a device on every supported Python: python tools/pythons.py [VERSION ...].

VERSION is 3.10 to 3.14, all by default; what follows `--` goes to pytest, instead of the tests of
wire, agent and profiles. An interpreter is taken from the PATH or from pyenv, with an environment
`.venv-VERSION` of a device's packages. Without one, root on Debian gets the Debian release that has
it, in a temporary folder (`--folder`) that later runs use again. Where neither is there, one line
names the reason, and the version is skipped; a version that fails ends it with status 1.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

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


class Unavailable(Exception):
    """This machine has no such Python; one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests; return 1 if they failed on a version."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=", ".join(SUITES))
    default = Path(tempfile.gettempdir(), "fairbed-pythons")
    parser.add_argument("--folder", type=Path, default=default, help=f"default {default}")
    own, _, tests = _split(sys.argv[1:] if arguments is None else arguments)
    args = parser.parse_args(own)
    for version in args.versions:
        if version not in SUITES:
            parser.error(f"a version must be one of {', '.join(SUITES)}; got {version}")
    results = {}
    for version in args.versions or SUITES:
        try:
            status = run_tests(version, tests or TESTS, args.folder.absolute())
            results[version] = f"FAILED, status {status}" if status else "passed"
        except Unavailable as exc:
            results[version] = f"skipped, {exc}"
    for version, result in results.items():
        print(f"test-pythons: {version}: {result}")
    return int(any(result.startswith("FAILED") for result in results.values()))


def _split(arguments: Sequence[str]) -> tuple[list[str], str, list[str]]:
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], "--", words[at + 1 :]


def run_tests(version: str, tests: Sequence[str], folder: Path) -> int:
    """Run tests on one version; return pytest's status.

    Raises:
        Unavailable: There is no such Python on this machine.
    """
    workers = ["-n", str(min(os.cpu_count() or 1, 8)), "--dist", "worksteal"]
    pytest = ["pytest", *workers, *tests]
    python = next(interpreters(version), None)
    if python is not None:
        venv = ROOT / f".venv-{version}"
        print(f"test-pythons: {version}, {python}", flush=True)
        setup = ["sh", "tools/setup.sh", "device", venv.name]
        if subprocess.run(setup, cwd=ROOT, env=os.environ | {"PYTHON": python}).returncode:
            raise Unavailable(f"the packages of a device cannot be installed for {python}")
        path = f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"
        command = [str(venv / "bin" / "python"), "-m", *pytest]
        return subprocess.run(command, cwd=ROOT, env=os.environ | {"PATH": path}).returncode
    root = debian_with(version, folder)
    print(f"test-pythons: {version}, Debian {SUITES[version]}", flush=True)
    options = ["-p", "no:cacheprovider"]
    inside = ["env", "-C", "/source", f"python{version}", "-m", *pytest, *options]
    return subprocess.run(entering(root, inside)).returncode


def interpreters(version: str) -> Iterator[str]:
    """Yield the interpreters of a version that run and can make environments."""
    pyenv = Path.home() / ".pyenv" / "versions"
    found = [f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python{version}")))]
    for python in found:
        path = shutil.which(python)
        check = (
            f"import ensurepip, venv, sys; sys.exit('{version}' != '%d.%d' % sys.version_info[:2])"
        )
        if path and not subprocess.run([path, "-c", check], capture_output=True).returncode:
            yield path


def debian_with(version: str, folder: Path) -> Path:
    """Return a root of the Debian release that has this version, with the packages of a device.

    Raises:
        Unavailable: It cannot be made on this machine.
    """
    suite = SUITES[version]
    if not suite:
        raise Unavailable("no such Python is installed")
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        raise Unavailable("no such Python is installed; root and mmdebstrap would make a Debian")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != 0:
        raise Unavailable(f"{folder}: must belong to root; name another with --folder")
    root, stamp = folder / f"root-{suite}", folder / f"root-{suite}.txt"
    if not stamp.exists() or stamp.read_text() != " ".join(PACKAGES):
        shutil.rmtree(root, ignore_errors=True)
        # The index of Debian's unreleased suite expires within days where a mirror lags behind.
        options = ["--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
        options += ['--aptopt=Acquire::Check-Valid-Until "false"']
        if subprocess.run(["mmdebstrap", *options, suite, str(root)]).returncode:
            raise Unavailable(f"mmdebstrap cannot make a root of {suite}, see above")
        stamp.write_text(" ".join(PACKAGES))
    inside = ["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(entering(root, inside), capture_output=True, text=True)
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
    tools = ROOT / ".venv-supply"
    uv = shutil.which("uv") or str(tools / "bin" / "uv")
    if not Path(uv).exists():
        subprocess.run(["sh", "tools/setup.sh", "supply", tools.name], cwd=ROOT, check=True)
    options = ["--target", str(site), f"--python-version={version}", "--only-binary=:all:"]
    options += ["--no-binary=fairbed", "-c", "constraints.txt", ".", "--group", "test"]
    if subprocess.run([uv, "pip", "install", "-q", *options], cwd=ROOT).returncode:
        raise Unavailable(f"the packages of a device cannot be installed for Python {version}")


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
