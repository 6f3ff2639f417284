"""The script of enrolment on systems that it must refuse, with programs that imitate them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairbed.testbed.lab import enrolment
from fairbed.testbed.lab.enrolment import install_script
from fairbed.testbed.lab.folder import Lab
from tests.testbed.lab.labs import make_lab

TOKEN = "t0ken-that-must-not-be-printed"

GOOD = {
    "uname": "case $1 in -m) echo x86_64 ;; -o) echo GNU/Linux ;; *) echo Linux ;; esac",
    "getconf": "echo 64",
    "ldd": 'echo "ldd (Debian GLIBC 2.36) 2.36"',
    "df": 'printf "Filesystem 1024-blocks Used Available\\n/dev/x 1 1 9000000 1%% /\\n"',
}
"""Programs by name, and their text."""

NO_PACKAGE = "for which onnxruntime has no package"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return make_lab(tmp_path_factory.mktemp("lab"))


def install(lab: Lab, folder: Path, **programs: str) -> tuple[int, str]:
    """Run the script with some programs replaced; return exit code and output."""
    stubs = folder / "stubs"
    stubs.mkdir(exist_ok=True)
    for name, text in (GOOD | programs).items():
        (stubs / name).write_text(f"#!/bin/sh\n{text}\n")
        (stubs / name).chmod(0o755)
    for name in (
        "awk",
        "cat",
        "dirname",
        "grep",
        "id",
        "mkdir",
        "mktemp",
        "rm",
        "sed",
        "sh",
        "tail",
    ):
        program = shutil.which(name)
        if program is not None and not (stubs / name).exists():
            (stubs / name).symlink_to(program)
    if "python3" not in programs:
        (stubs / "python3").unlink(missing_ok=True)
        (stubs / "python3").symlink_to(sys.executable)
    environment = {
        "PATH": str(stubs),
        "HOME": str(folder),
        "FAIRBED_PREFIX": str(folder / "agent"),
        "FAIRBED_TOKEN": TOKEN,
        "PYTHON": str(stubs / "python3"),
    }
    done = subprocess.run(
        ["/bin/sh"],
        input=install_script(lab, "127.0.0.1"),
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    output = done.stdout + done.stderr
    assert TOKEN not in output
    return done.returncode, output


@pytest.mark.parametrize(
    ("programs", "line"),
    [
        (
            {"uname": "case $1 in -m) echo armv7l ;; *) echo Linux ;; esac"},
            f"the system must be 64-bit, got 32-bit ARM (armv7l), {NO_PACKAGE}; install the 64-bit "
            "edition of the operating system",
        ),
        (
            {
                "uname": "case $1 in -m) echo aarch64 ;; *) echo Linux ;; esac",
                "getconf": "echo 32",
            },
            f"the system must be 64-bit, got a 32-bit system on aarch64, {NO_PACKAGE}; install the "
            "64-bit edition of the operating system",
        ),
        (
            {"uname": "case $1 in -m) echo riscv64 ;; *) echo Linux ;; esac"},
            f"the processor must be x86_64 or aarch64, got riscv64, {NO_PACKAGE}",
        ),
        (
            {"ldd": 'echo "musl libc (x86_64)" >&2; exit 1'},
            f"the C library must be glibc, got musl (Alpine), {NO_PACKAGE}; use a system such as "
            "Debian, Ubuntu or Fedora",
        ),
        (
            {"uname": "case $1 in -o) echo Android ;; -m) echo aarch64 ;; *) echo Linux ;; esac"},
            "Android's own Python has no packages of onnxruntime; install Debian in Termux by "
            "proot-distro and run this line there",
        ),
        (
            {"uname": "echo FreeBSD"},
            "the system must be Linux or macOS, got FreeBSD; on Windows use WSL 2",
        ),
        (
            {"python3": 'if [ "$1" = -V ]; then echo "Python 3.9.2"; else exit 1; fi'},
            "Python must be 3.10 or newer and 64-bit, got Python 3.9.2; install a newer one (sudo "
            "apt-get install python3), or uv (https://docs.astral.sh/uv), which brings one",
        ),
        (
            {"df": 'printf "Filesystem 1024-blocks Used Available\\n/dev/x 1 1 102400 1%% /\\n"'},
            "{folder} must have 400 MB free, got 100 MB; free some space, or name another folder: "
            "FAIRBED_PREFIX=FOLDER before sh",
        ),
        (
            {
                "python3": f'case "$*" in *ensurepip* | "-m venv"* ) exit 1 ;; *) exec '
                f'{sys.executable} "$@" ;; esac'
            },
            "Python must be able to build virtual environments, got {folder}/stubs/python3 without "
            "the module venv; install it: sudo apt-get install -y python3-venv",
        ),
    ],
    ids=["arm32", "arm32-on-64", "riscv", "musl", "android", "bsd", "python", "disk", "venv"],
)
def test_a_system_that_cannot_run_the_agent_is_refused_with_one_line(
    lab: Lab, tmp_path: Path, programs: dict[str, str], line: str
) -> None:
    code, output = install(lab, tmp_path, **programs)
    assert code == 1
    assert output.splitlines()[-1] == "fairbed: " + line.replace("{folder}", str(tmp_path))
    assert not (tmp_path / "agent" / "venv" / "bin").exists()


def test_a_script_that_was_cut_in_transit_does_nothing(lab: Lab, tmp_path: Path) -> None:
    text = install_script(lab, "127.0.0.1")
    whole = text.removesuffix('main "$@"\n')
    assert whole != text
    for part in (whole, text[: len(text) // 2]):
        done = subprocess.run(
            ["/bin/sh"],
            input=part,
            env={"PATH": os.environ["PATH"], "FAIRBED_PREFIX": str(tmp_path / "agent")},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout == ""
        assert not (tmp_path / "agent").exists()


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_shells_can_read_the_script(lab: Lab, shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    command = [program, "sh", "-n"] if shell == "busybox" else [program, "-n"]
    text = install_script(lab, "127.0.0.1")
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing(lab: Lab) -> None:
    text = install_script(lab, "127.0.0.1")
    done = subprocess.run(
        ["shellcheck", "-"], input=text, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout


def test_values_of_the_lab_are_quoted(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment, "agent_version", lambda: "1'; touch x; '")
    head = install_script(lab, "::1").splitlines()[1:]
    done = subprocess.run(
        ["/bin/sh"],
        input="\n".join(head).partition("# Install and enrol")[0] + 'echo "$VERSION" "$LAB_URL"\n',
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == f"1'; touch x; ' https://[::1]:{lab.settings.enrol_port}\n"


@pytest.mark.full
def test_a_token_that_is_not_open_ends_the_script_before_it_installs(
    lab: Lab, tmp_path: Path
) -> None:
    asked = (
        'case "$*" in *t0ken*) exit 9 ;; esac; grep -q "\\"token\\":\\"t0ken" || exit 9; '
        'echo "{\\"problem\\":\\"token: already used; make a new one\\"}"'
    )
    code, output = install(lab, tmp_path, curl=asked)
    assert code == 1
    assert output.endswith("fairbed: token: already used; make a new one\n")
    assert not (tmp_path / "agent" / "venv").exists()
    (tmp_path / ".config" / "fairbed").mkdir(parents=True)
    (tmp_path / ".config" / "fairbed" / "agent.toml").touch()  # it keeps its identity
    _, output = install(lab, tmp_path, curl=asked)
    assert "already used" not in output
