"""A device with a valid login against a live run without a lab."""

import secrets
from pathlib import Path

import pytest

from fairbed.coordinator.store import RunReader
from fairbed.testbed.broker.run_accounts import password_of
from fairbed.testbed.cli.main import main
from fairbed.testbed.run_folder import ENDPOINT_FILE, read_endpoint
from fairbed.wire.codec import decode_to_device, encode
from fairbed.wire.messages import CoordinatorStatus, OperatorCommand, Refuse
from fairbed.wire.topics import Topics
from tests import needs
from tests.testbed.lab.raw_client import Closed, Login, RawClient
from tests.testbed.small_run import UNTHROTTLED, Running, running

T = Topics()
ON_LOOPBACK = f'{UNTHROTTLED}\n[emulation]\nbackend = "process"\n'
pytestmark = [
    pytest.mark.broker,
    pytest.mark.full,
    needs.mosquitto,
]


def enrolled(run: Running, name: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Enrol a device as a person does; return the password and the command that it prints."""
    capsys.readouterr()
    assert main(["enroll", name, "--run", str(run.folder)]) == 0
    variable, command = capsys.readouterr().out.strip().split(" ", 1)
    return variable.partition("=")[2], command


def test_one_device_neither_stops_nor_changes_a_live_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path, rounds=10_000, fleet=ON_LOOPBACK) as run:
        run.wait_round(1)
        endpoint = read_endpoint(run.folder)
        assert endpoint is not None
        assert endpoint.port is not None
        passwords = dict[str, str]()
        for name in ("a1", "a2"):
            passwords[name], command = enrolled(run, name, capsys)
            where = f"mqtt://{name}@127.0.0.1:{endpoint.port}"
            assert command == f"device-agent --broker {where} --name {name}"
        assert passwords["a1"] != passwords["a2"]
        with pytest.raises(Closed):
            RawClient(endpoint.port, Login("x", "a2", passwords["a1"])).close()
        with RawClient(endpoint.port, Login("x", "a1", passwords["a1"])) as device:
            device.subscribe("#")
            device.subscribe(T.coordinator)
            stop = OperatorCommand(id=secrets.token_bytes(16), action="stop")
            device.publish(T.command("local"), encode(stop), qos=1)
            forged = encode(CoordinatorStatus(state="on", boot=0, run="forged"))
            device.publish(T.coordinator, forged, qos=1, retain=True)
            refusal = encode(Refuse(reason="forged", is_final=True))
            device.publish(T.control("pi-1"), refusal, qos=1, retain=True)
            device.ping()
            status = decode_to_device(
                next(m.payload for m in device.inbox if m.retain and m.topic == T.coordinator)
            )
            assert isinstance(status, CoordinatorStatus)
            assert {m.topic.split("/")[2] for m in device.inbox} <= {"coordinator", "b", "ctl"}
        guess = Login(f"coordinator-{status.boot:x}", "a1", passwords["a1"])
        RawClient(endpoint.port, guess).close()
        run.wait_round(run.rounds() + 3)
        with RunReader(run.folder) as reader:
            assert reader.commands() == []
            assert "disconnected" not in {event.kind for _, event in reader.events()}
            assert all(row.aggregated == 2 for row in reader.rounds())
        run.process.kill()
        run.process.wait()
        texts = {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()}
        users = ("a1", "a2", "pi-1", "coordinator_main", "operator_local")
        for path, data in texts.items():
            if path.name != ENDPOINT_FILE:  # for its owner only: the run can be resumed
                for user in users:
                    assert password_of(str(endpoint.secret), user).encode() not in data, path
