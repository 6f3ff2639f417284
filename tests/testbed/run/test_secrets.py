"""A broker's password stays out of argument lists, logs, stores and reports."""

import os
import stat
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import psutil
import pytest

from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from fairbed.testbed.errors import BrokerError
from fairbed.testbed.experiment.file import parse_experiment
from fairbed.testbed.run.broker import external_url, find_broker, start_broker
from fairbed.testbed.run_folder import ENDPOINT_FILE, Endpoint, read_endpoint, write_endpoint
from fairbed.wire.transport.address import PASSWORD_VARIABLE
from tests.testbed.small_run import UNTHROTTLED, Running, running

MARK = "hush-9f3b1c"
"""A password that occurs nowhere else."""


def argument_lists() -> list[str]:
    """Return the argument lists of all processes of this session and of the machine."""
    return [" ".join(found.info["cmdline"] or ()) for found in psutil.process_iter(["cmdline"])]


def files_with(folder: Path, secrets: Collection[str]) -> list[str]:
    """Return the names of files below a folder that contain a secret."""
    found = []
    for place, _, names in os.walk(folder):  # passes over a folder that is gone meanwhile
        for path in (Path(place, name) for name in names):
            with suppress(OSError):  # gone meanwhile
                data = path.read_bytes()
                if any(secret.encode() in data for secret in secrets):
                    found.append(str(path.relative_to(folder)))
    return found


def watch(run: Running, secrets: Collection[str]) -> None:
    """Follow a run to its end; nothing of it may contain a secret, except its endpoint.

    An endpoint is for its owner only, and is removed at the end.
    """
    seen = set[str]()
    while run.process.poll() is None:
        seen.update(argument_lists())
        endpoint = run.folder / ENDPOINT_FILE
        with suppress(FileNotFoundError):
            assert stat.S_IMODE(endpoint.stat().st_mode) == 0o600
        live = files_with(run.folder, secrets)
        assert {name.partition(".")[0] for name in live} <= {"endpoint"}
        time.sleep(0.05)
    code, out, err = run.finish()
    assert code == 0, err
    assert any("small.toml" in line for line in seen)
    assert any("launcher" in line or "fork_server" in line for line in seen)
    for secret in secrets:
        assert [line for line in seen if secret in line] == []
        assert secret not in out + err
    assert files_with(run.folder, secrets) == []


NEEDS_MOSQUITTO = pytest.mark.skipif(
    find_broker("mosquitto") is None, reason="mosquitto is not installed"
)


@pytest.mark.anyio
@pytest.mark.broker
@NEEDS_MOSQUITTO
async def test_a_run_writes_and_shows_the_password_nowhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    async with start_broker("mosquitto", folder=tmp_path / "broker", password=MARK) as broker:
        assert MARK in broker.url
        with running(folder, rounds=4, fleet=f'url = "{broker.url}"\n{UNTHROTTLED}') as run:
            await anyio.to_thread.run_sync(watch, run, [MARK])
    assert files_with(folder, [MARK]) == ["small.toml"]  # written by the test
    for command in (
        ["show", str(run.folder)],
        ["show", str(run.folder), "--json"],
        ["runs", "--runs", str(folder)],
    ):
        assert main(command) == 0
    shown = capfd.readouterr()
    assert MARK not in shown.out + shown.err
    with RunReader(run.folder) as reader:
        assert reader.run().row.status == "done"


@pytest.mark.full
@pytest.mark.broker
@NEEDS_MOSQUITTO
def test_a_run_in_a_lab_writes_and_shows_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.testbed.lab.labs import lab_up, make_lab  # of a room, which may be absent

    lab = make_lab(tmp_path)
    monkeypatch.setenv("FAIRBED_LAB", str(lab.folder))
    passwords = msgspec.json.decode(lab.coordinator.read_bytes(), type=dict[str, str]).values()
    with lab_up(lab), running(tmp_path, rounds=4, fleet=f'url = "lab"\n{UNTHROTTLED}') as run:
        watch(run, passwords)
    assert files_with(lab.folder, passwords) == ["coordinator.json"]


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
