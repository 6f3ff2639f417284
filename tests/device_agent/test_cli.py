"""The command line: errors of one line, with the right exit code."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import numpy as np
import pytest

from fairbed.device_agent.cli import COMMANDS, PASSWORD_VARIABLE, main
from fairbed.device_agent.errors import ConfigError
from fairbed.wire.transport import address

BROKER = ("--broker", "mqtt://127.0.0.1:1")


@pytest.fixture(autouse=True)
def leaves_logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """Return the exit code and the text on stderr."""
    code = main(args)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--name", "a"), "flags: broker_url is missing; give --broker URL"),
        (BROKER, "flags: name is missing; give --name NAME"),
        ((*BROKER, "--name", "No"), "flags: name must be 1 to 32 of a-z, 0-9 and hyphen"),
        ((*BROKER, "--name", "a", "--tenant", "x/y"), "flags: tenant must be 1 to 32"),
        (("--broker", "ftp://x", "--name", "a"), "must begin with mqtt:// or mqtts://"),
        ((*BROKER, "--name", "a", "--config", "none.toml"), "none.toml: must be a readable TOML"),
        ((*BROKER, "--name", "a", "--data", "none.npz"), "none.npz: must be a readable .npz"),
        ((*BROKER, "--name", "a", "--data", "data.csv"), "data.csv: must be an .npz file"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], message: str
) -> None:
    code, stderr = run(capsys, *args)
    assert code == 2
    assert stderr.startswith("device-agent: ")
    assert message in stderr
    assert stderr.count("\n") == 1
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("foo = 1", "agent.toml: foo: unknown key; valid keys are broker_url, name"),
        ("timeouts = {foo = 1}", "agent.toml: timeouts.foo: unknown key; valid keys are hello_s"),
        ('cache_bytes = "x"', "agent.toml: cache_bytes: must be a whole number, got 'x'"),
        ("cache_bytes = -1", "agent.toml: cache_bytes: must be a whole number >= 0"),
    ],
)
def test_a_wrong_key_in_the_file_is_named(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(text, encoding="utf-8")
    code, stderr = run(capsys, *BROKER, "--name", "a", "--config", str(path))
    assert code == 2
    assert message in stderr
    assert "$" not in stderr


def test_a_file_that_is_no_archive_is_not_unpickled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(b"cos\nsystem\n")
    code, stderr = run(capsys, *BROKER, "--name", "a", "--data", str(path))
    assert code == 2
    assert "numpy.savez(FILE, x=..., y=...)" in stderr
    assert "pickle" not in stderr


def test_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["--version"])
    assert exit_info.value.code == 0
    assert capsys.readouterr().out.startswith("device-agent ")


def test_the_cause_in_nested_task_groups_is_printed_and_decides_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail() -> None:
        async with anyio.create_task_group(), anyio.create_task_group():
            raise ConfigError("cache: must be a folder, got a file")

    monkeypatch.setitem(COMMANDS, "run", lambda args: anyio.run(fail))
    assert main([]) == 2
    assert capsys.readouterr().err == "device-agent: cache: must be a folder, got a file\n"


def test_debug_prints_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    code, stderr = run(capsys, "--name", "a", "--debug")
    assert code == 2
    assert "Traceback" in stderr


def test_the_password_of_the_environment_needs_a_user(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "secret")
    code, stderr = run(capsys, *BROKER, "--name", "a")
    assert code == 2
    assert "needs a user" in stderr
    assert "secret" not in stderr


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(3)}, "must hold arrays x and y, got a"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(2, int)}, "with one n >= 1, got (3, 2), (2,)"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "with one n >= 1"),
        ({"x": np.full((1, 2), np.nan), "y": np.zeros(1, int)}, "must be a finite float32"),
        ({"x": np.zeros((1, 2)), "y": np.array(["?"])}, "y must have a value in every row"),
        ({"x": np.zeros((1, 2), complex), "y": np.zeros(1, int)}, "got complex128"),
        ({"x": np.array([["a"]]), "y": np.zeros(1, int)}, "x must be float, uint8 or integer"),
        ({"x": np.array([[None]]), "y": np.zeros(1, int)}, "must be a readable .npz file"),
    ],
)
def test_bad_data_is_one_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arrays: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]],
    message: str,
) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, allow_pickle=True, **arrays)
    code, stderr = run(capsys, *BROKER, "--name", "a", "--data", str(path))
    assert code == 2
    assert message in stderr
    assert stderr.count("\n") == 1


def test_help_loads_no_numpy() -> None:
    code = (
        "import sys; from fairbed.device_agent.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('numpy', 'anyio', 'msgspec', 'aiomqtt') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("[]\n")
    assert "usage: device-agent" in done.stdout


def test_agent_and_coordinator_read_one_variable() -> None:
    assert PASSWORD_VARIABLE == address.PASSWORD_VARIABLE


def test_a_password_among_the_arguments_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairbed.device_agent.process.run_agent", lambda *args, **kwargs: None)
    config = tmp_path / "agent.toml"
    config.write_text('broker_url = "mqtt://u:secret@host"')
    for given in (["--broker", "mqtt://host"], ["--config", str(config)]):
        assert run(capsys, *given, "--name", "a") == (0, "")
    code, stderr = run(capsys, "--broker", "mqtt://u:secret@host", "--name", "a")
    assert (code, stderr.count("\n")) == (0, 1)
    assert f"which other users of this machine can read; put it into {PASSWORD_VARIABLE}" in stderr
    assert "secret" not in stderr
