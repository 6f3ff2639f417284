"""A broker's password stays out of argument lists, logs, stores and reports."""

import stat
from contextlib import suppress
from pathlib import Path

import anyio
import psutil
import pytest

from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from fairbed.testbed.errors import BrokerError
from fairbed.testbed.experiment.file import parse_experiment
from fairbed.testbed.run.broker import PASSWORD_VARIABLE, external_url, find_broker, start_broker
from fairbed.testbed.run_folder import ENDPOINT_FILE, Endpoint, read_endpoint, write_endpoint
from tests.testbed.small_run import UNTHROTTLED, running

MARK = "hush-9f3b1c"
"""A password that occurs nowhere else."""


def argument_lists() -> list[str]:
    """Return the argument lists of all processes of this session and of the machine."""
    return [" ".join(found.info["cmdline"] or ()) for found in psutil.process_iter(["cmdline"])]


def files_with(folder: Path, secret: str) -> list[str]:
    """Return the names of files below a folder that contain a text."""
    found = []
    for path in folder.rglob("*"):
        with suppress(OSError):  # a folder, or gone meanwhile
            if secret.encode() in path.read_bytes():
                found.append(str(path.relative_to(folder)))
    return found


@pytest.mark.anyio
@pytest.mark.broker
@pytest.mark.skipif(find_broker("mosquitto") is None, reason="mosquitto is not installed")
async def test_a_run_writes_and_shows_the_password_nowhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen = set[str]()
    folder = tmp_path / "work"
    folder.mkdir()
    async with start_broker("mosquitto", folder=tmp_path / "broker", password=MARK) as broker:
        assert MARK in broker.url
        fleet = f'url = "{broker.url}"\n{UNTHROTTLED}'
        with running(folder, rounds=4, fleet=fleet) as run:
            while run.process.poll() is None:
                seen.update(argument_lists())
                if (run.folder / ENDPOINT_FILE).exists():
                    mode = (run.folder / ENDPOINT_FILE).stat().st_mode
                    assert stat.S_IMODE(mode) == 0o600
                    live = {path.partition("/")[0] for path in files_with(run.folder, MARK)}
                    assert live <= {ENDPOINT_FILE, "endpoint.tmp"}
                await anyio.sleep(0.05)
            code, out, err = run.finish()
    assert code == 0, err
    assert MARK not in out + err
    assert any("small.toml" in line for line in seen)
    assert any("launcher" in line or "fork_server" in line for line in seen)
    assert [line for line in seen if MARK in line] == []
    assert files_with(folder, MARK) == ["small.toml"]  # written by the test
    run.experiment.unlink()
    for command in (["show", str(run.folder)], ["show", str(run.folder), "--json"], ["runs"]):
        assert main([*command, *(["--runs", str(folder)] if command == ["runs"] else [])]) == 0
    shown = capfd.readouterr()
    assert MARK not in shown.out + shown.err
    with RunReader(run.folder) as reader:
        assert reader.run().row.status == "done"


def test_an_experiment_is_stored_without_the_password() -> None:
    document = {"name": "a", "broker": {"url": f"mqtts://fairbed:{MARK}@host"}}
    experiment = parse_experiment(document, "test")
    assert MARK not in experiment.resolved_toml()
    assert 'url = "mqtts://fairbed:***@host"' in experiment.resolved_toml()
    other = parse_experiment({"name": "a", "broker": {"url": "mqtts://fairbed:other@host"}}, "test")
    assert experiment.hash() == other.hash()


def test_the_password_comes_from_the_experiment_the_environment_or_the_earlier_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden, full = "mqtts://u:***@host?cafile=a", f"mqtts://u:{MARK}@host?cafile=a"
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)
    assert external_url(full) == full
    assert external_url("mqtt://host") == "mqtt://host"
    assert external_url("mqtt://u@host") == "mqtt://u@host"
    assert external_url(hidden, full) == full
    for earlier in (None, hidden, f"mqtts://u:{MARK}@other?cafile=a"):
        with pytest.raises(BrokerError, match="must have the password of its user, got mqtts://u:"):
            external_url(hidden, earlier)
    monkeypatch.setenv(PASSWORD_VARIABLE, MARK)
    assert external_url(hidden) == full
    assert external_url("mqtts://u@host?cafile=a") == full
    assert external_url("mqtts://u:own@host") == "mqtts://u:own@host"
    with pytest.raises(BrokerError, match="needs a user for the password"):
        external_url("mqtts://host")


def test_an_endpoint_is_for_its_owner_only(tmp_path: Path) -> None:
    (tmp_path / ENDPOINT_FILE).write_text("{}")
    (tmp_path / ENDPOINT_FILE).chmod(0o644)
    endpoint = Endpoint(url=f"mqtt://u:{MARK}@host", tenant="main")
    write_endpoint(tmp_path, endpoint)
    assert stat.S_IMODE((tmp_path / ENDPOINT_FILE).stat().st_mode) == 0o600
    assert read_endpoint(tmp_path) == endpoint
