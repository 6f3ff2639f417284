"""Messages that did not help a lab engineer: each names the cause, and what to do."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from fairbed.coordinator.report.result import next_commands, result_of
from fairbed.coordinator.state.alerts import HOST_BEGIN, HostLoad
from fairbed.coordinator.store import RunReader
from fairbed.device_agent import doctor
from fairbed.device_agent.config import AgentConfig, load_config
from fairbed.device_agent.doctor import network_findings
from fairbed.device_agent.errors import ConfigError
from fairbed.device_agent.installed import agent_version
from fairbed.profiles.load import check
from fairbed.testbed.cli.main import main
from fairbed.testbed.errors import LabError
from fairbed.testbed.lab.cli_devices import install_line
from fairbed.testbed.lab.folder import lab_option
from fairbed.testbed.lab.identities import Identities
from fairbed.testbed.lab.wheelhouse import fill
from fairbed.wire.transport.client import MqttTransport
from fairbed.wire.transport.link import advice_for
from tests import needs
from tests.coordinator.store.fake_run import fake_run
from tests.testbed.lab.labs import NOW_S, make_lab
from tests.testbed.lab.test_wheelhouse import FakePip


@contextmanager
def closing_port() -> Iterator[int]:
    """Yield a port that closes each connection at its first bytes, as a TLS port closes MQTT."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    link, _ = listener.accept()
                except OSError:
                    return
                with link:
                    link.recv(100)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("client", ["direct", "aiomqtt"])
def test_a_port_that_speaks_tls_is_named_to_a_client_without_it(client: str) -> None:
    async def reason(port: int) -> str:
        transport = MqttTransport(f"mqtt://127.0.0.1:{port}?client={client}", "pi")
        with anyio.fail_after(20):
            async with transport:
                while transport.down_reason in (None, "not connected yet"):
                    await anyio.lowlevel.checkpoint()
                return transport.down_reason or ""

    with closing_port() as port:
        assert "if this port speaks TLS, as 8883 does, write mqtts://" in anyio.run(reason, port)


def test_tls_without_a_ca_and_tls_at_a_plain_port_say_what_to_write() -> None:
    unknown = ssl.SSLCertVerificationError()
    unknown.verify_code = 20
    assert "add ?cafile=FILE" in (advice_for(unknown) or "")
    assert "ca.pem in its folder" in (advice_for(unknown) or "")
    plain = ssl.SSLError()
    plain.reason = "WRONG_VERSION_NUMBER"
    assert advice_for(plain) == (
        "this port speaks no TLS: write mqtt://, or the port of TLS, such as 8883"
    )


@needs.program("curl")
def test_the_line_of_enrolment_says_that_no_lab_answered_and_keeps_the_token_to_itself(
    tmp_path: Path,
) -> None:
    lab = make_lab(tmp_path)
    line = install_line(lab, "127.0.0.1", "t" * 32)
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "fairbed: no script of the lab lab at https://127.0.0.1:" in done.stderr
    assert "on the lab host run fairbed lab status" in done.stderr
    before, pipe, after = line.rpartition(" | ")
    assert (pipe, after) == (" | ", "sh")  # `sudo sh`: no argument of a process has the token
    assert before.startswith(f"{{ echo FAIRBED_TOKEN={'t' * 32}; curl ")


BASE = 'broker_url = "mqtt://h"\nname = "pi"\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            'power = { command = "read-plug kitchen" }',
            "power.command: must be a list, got 'read-plug kitchen'; write each word as one text: "
            'command = ["read-plug", "kitchen"]',
        ),
        (
            'power = { transfer_w = "1.6W" }',
            "power.transfer_w: must be a number or left out, got '1.6W'; write the number alone, "
            "in the unit of its name: transfer_w = 1.6",
        ),
        ('engine_threads = "two"', "engine_threads: must be a whole number, got 'two'"),
        ("data = 5", 'data: must be a text or left out, got 5; write it in quotes: data = "5"'),
        (
            'once = "yes"',
            "once: must be true or false, got 'yes'; write it without quotes: once = ",
        ),
    ],
)
def test_a_value_of_another_kind_is_shown_as_it_must_be_written(
    text: str, line: str, tmp_path: Path
) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(f"{BASE}{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, {})
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('round.deadline_s = "30 s"', "the number alone, in the unit of its name: deadline_s = 30"),
        ('round.deadline_s = "1 min"', "in the unit of its name"),  # 1 would be a second
        ('notify.command = "mail me"', '; write each word as one text: command = ["mail", "me"]'),
        ('fleet = "pi"', "must be a list, got 'pi'; the keys of each follow a line [[fleet]]"),
        ('aggregation = "fedavg"', "got 'fedavg'; its keys follow a line [aggregation]"),
        ('data.partition = "iid"', "got 'iid'; write it so: partition = { kind = \"iid\" }"),
        ("selection.policy = 5", 'must be a text, got 5; write it in quotes: policy = "5"'),
    ],
)  # fmt: skip
def test_a_value_of_an_experiment_is_shown_as_it_must_be_written(
    text: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.toml"
    path.write_text(f'name = "a"\nrounds = 2\n{text}\n')
    assert refused(capsys, "config", str(path)).endswith(line)


def test_an_enrolled_board_names_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "fairbed").mkdir()
    own = tmp_path / "fairbed" / "agent.toml"
    own.write_text(BASE)
    with pytest.raises(ConfigError, match="is missing; this device is enrolled: give --config "):
        load_config(None, {})


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the line of a command that is refused."""
    with suppress(SystemExit):  # of argparse
        assert main(list(arguments)) != 0
    return capsys.readouterr().err.splitlines()[-1]


def test_orders_and_options_that_were_mistaken_are_corrected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = ["--runs", str(tmp_path)]
    folder = fake_run(tmp_path / "demo-1", rounds=2, devices=2)
    name = sorted(path.name for path in tmp_path.iterdir())[0]
    assert "fairbed lab up --lab DIR" in refused(capsys, "lab", "up", str(tmp_path))
    assert refused(capsys, "exclude", "pi-55").endswith(
        "; it is for a live run: fairbed command RUN exclude DEVICE"
    )
    assert refused(capsys, "lab", "stop").endswith("fairbed lab down stops it")
    for words in (["latest"], [name], ["latest", "latest"]):
        line = refused(capsys, "logs", *words, *runs)
        assert "the device comes first, then the run" in line
        assert line.endswith(words[0])
    with RunReader(folder) as reader:
        (known, *_) = sorted(device.name for device in reader.devices())
    assert known not in ("latest", name)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_an_experiment_that_is_given_as_a_model_is_put_in_its_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = refused(capsys, "doctor", "--model", "a.toml")
    assert line.endswith(": fairbed doctor a.toml --model MODULE:FUNCTION")


def test_a_series_is_sent_to_its_profile(tmp_path: Path) -> None:
    series, alone = tmp_path / "pi-1.csv", tmp_path / "pi-2.csv"
    (tmp_path / "pi-1.toml").write_text("")
    for path in (series, alone):
        path.write_text("t_s,value\n0,1\n")
    (line,) = check(series)
    assert line.endswith(f"this is a series beside its profile; check {tmp_path / 'pi-1.toml'}")
    (line,) = check(alone)
    assert line.endswith("fairbed profiles import reads a .csv file as a trace")


def test_boards_are_not_told_to_raise_the_dilation() -> None:
    load = HostLoad()
    for _ in range(HOST_BEGIN):
        load.add("pi", True)
    assert "raise emulation.dilation" in (load.text(is_standing=False) or "")
    of_boards = load.text(is_standing=False, is_emulated=False) or ""
    assert "dilation" not in of_boards
    assert "stop other programs on the machine of the coordinator" in of_boards


def test_init_names_the_option_of_the_label(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, "init", str(tmp_path / "a.toml"), "--dataset", "x.csv")
    assert line.endswith("; give --label COLUMN")


def test_commands_in_advice_quote_a_folder_with_a_space(tmp_path: Path) -> None:
    with RunReader(fake_run(tmp_path / "my runs" / "demo-1", rounds=2, devices=2)) as reader:
        commands = [command for _, _, command in next_commands(result_of(reader))]
    assert commands
    assert all(f"'{tmp_path}/my runs/demo-1" in command for command in commands)


def test_a_wrong_clock_is_named_before_the_certificates_that_it_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_lab_clock", lambda lab: NOW_S)
    config = AgentConfig(
        broker_url=f"mqtts://pi:{'p' * 32}@127.0.0.1:1?cafile=/nowhere/ca.pem",
        name="pi",
        lab_url="https://127.0.0.1:1",
    )
    for now_s, words in ((0.0, "behind"), (NOW_S + 4000 * 86400.0, "4000 days ahead of")):
        monkeypatch.setattr("time.time", lambda now_s=now_s: now_s)
        first = next(iter(network_findings(config)))
        assert (first.check, first.state) == ("clock", "problem")
        assert words in first.found
        assert "sudo timedatectl set-ntp true" in first.found


def test_a_command_in_advice_names_a_lab_that_is_not_the_usual_one(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "FAIRBED_LAB": str(tmp_path / "lab")}
    assert lab_option(tmp_path / "lab", environment) == ""
    assert lab_option(tmp_path / "lab2", environment) == f" --lab {tmp_path / 'lab2'}"


def test_an_open_token_keeps_its_name_until_it_expires(tmp_path: Path) -> None:
    with Identities(tmp_path / "lab.db") as identities:
        token = identities.new_token("pi-1", now_s=NOW_S, lifetime_s=900.0)
        identities.check_token(token, now_s=NOW_S)
        identities.redeem(token, None, now_s=NOW_S)
        for problem, at_s in (("already used", NOW_S), ("already used", NOW_S + 901.0)):
            with pytest.raises(LabError, match=problem):
                identities.check_token(token, now_s=at_s)
        identities.new_token("pi-9", now_s=NOW_S, lifetime_s=900.0)
        with pytest.raises(LabError, match=r"pi-9: an open token .* has this name, for 15 minutes"):
            identities.rename("pi-1", "pi-9", now_s=NOW_S)
        identities.rename("pi-1", "pi-9", now_s=NOW_S + 901.0)


def test_a_wheelhouse_takes_a_wheel(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    other = tmp_path / "fairbed-9.9.9-py3-none-any.whl"
    other.write_bytes(b"x")
    with pytest.raises(LabError, match=r"--source: must be a wheel of this version, fairbed-"):
        fill(lab, ["3.11"], ["aarch64"], other, write=print)
    own = tmp_path / f"fairbed-{agent_version()}-py3-none-any.whl"
    own.write_bytes(b"x")
    found = fill(lab, ["3.11"], ["aarch64"], own, write=print, run=FakePip())
    assert own.name in {path.name for path in found}
    with pytest.raises(LabError, match=r"--source: must be a wheel of Fairbed, got no file"):
        fill(lab, ["3.11"], ["aarch64"], tmp_path / "none.whl", write=print)
