"""Enrolment from end to end without a broker: the server of a lab, and `device-agent join`."""

import gc
import http.client
import io
import json
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from anyio.from_thread import start_blocking_portal

from fairbed.device_agent import enrolment as device
from fairbed.device_agent.cli import main as device_agent
from fairbed.device_agent.config import load_config
from fairbed.device_agent.enrolment import Places, join, lab_at
from fairbed.device_agent.errors import ConfigError, LabProblem
from fairbed.testbed.lab import enrolment as server
from fairbed.testbed.lab.audit import REFUSED_PER_HOUR, Audit
from fairbed.testbed.lab.certificates import Certified, key_pin, make_authority, sign_server
from fairbed.testbed.lab.enrolment import (
    MAX_ADDRESSES,
    WRONG_PER_MINUTE,
    WrongAttempts,
    install_script,
    serve_enrolment,
)
from fairbed.testbed.lab.folder import Lab
from fairbed.testbed.lab.identities import Identities
from fairbed.wire.enrolment import EnrolRequest
from fairbed.wire.errors import Refused
from fairbed.wire.messages import PROTOCOL_VERSION
from fairbed.wire.transport.address import parse_url
from fairbed.wire.transport.client import MqttTransport
from fairbed.wire.transport.link import advice_for
from tests import needs
from tests.testbed.lab.labs import make_lab

DAY_S = 86400.0


@dataclass
class Served:
    """A lab whose enrolment server runs, and its clock."""

    lab: Lab
    identities: Identities
    audit: Audit
    now_s: float = field(default_factory=time.time)

    @property
    def port(self) -> int:
        """Port of the enrolment server."""
        return self.lab.settings.enrol_port

    def token(self, name: str | None = "pi", role: str = "device", **more: object) -> str:
        """Return a new token for 15 minutes."""
        given = {"now_s": self.now_s, "lifetime_s": 900.0, **more}
        return self.identities.new_token(name, role, **given)  # type: ignore[arg-type]  # of the test

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Return status and body of a reply."""
        context = ssl.create_default_context(cafile=str(self.lab.ca))
        link = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=context)
        with closing(link):
            link.request(method, path, body, headers or {})
            reply = link.getresponse()
            return reply.status, reply.read()

    def post(self, path: str, **values: object) -> tuple[int, dict[str, object]]:
        """Return status and reply of a JSON request."""
        status, body = self.ask("POST", path, json.dumps(values).encode())
        return status, json.loads(body)

    def enrol(self, token: str, **values: object) -> tuple[int, dict[str, object]]:
        """Redeem a token."""
        given = {"token": token, "host_name": "raspberrypi", "agent": "0.1.0", **values}
        return self.post("/enrol", **given)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return make_lab(tmp_path_factory.mktemp("lab"))


@pytest.fixture
def served(lab: Lab, tmp_path: Path) -> Iterator[Served]:
    with Identities(tmp_path / "lab.db") as identities, start_blocking_portal() as portal:
        found = Served(lab, identities, Audit(tmp_path / "audit.jsonl"))
        serve = partial(serve_enrolment, lab, identities, found.audit, now=lambda: found.now_s)
        future, _ = portal.start_task(serve)
        yield found
        future.cancel()


Join = Callable[..., list[str]]


@pytest.fixture
def join_lab(served: Served, tmp_path: Path) -> Join:
    """Return a function that joins as a device; it returns the lines for the operator."""

    def run(token: str, url: str | None = None, **more: object) -> list[str]:
        lines: list[str] = []
        lab = lab_at(url or f"https://127.0.0.1:{served.port}", served.lab.ca)
        given = {"places": Places(tmp_path / "device", None, None), "unit": False, **more}
        join(lab, lambda: token, lines.append, **given)  # type: ignore[arg-type]  # of the test
        return lines

    return run


def actions(served: Served) -> list[tuple[str, str]]:
    """Return action and name of the rows of the audit log."""
    return [(row.action, row.name) for row in served.audit.rows()]


# A device ---------------------------------------------------------------------------------------


def test_a_token_becomes_an_identity_and_a_private_configuration(
    served: Served, join_lab: Join, tmp_path: Path
) -> None:
    token = served.token("pi-kitchen", identity_expires_s=1900000000.0)
    lines = join_lab(token)
    path = tmp_path / "device" / "agent.toml"
    assert lines[0] == f"pi-kitchen: enrolled at the lab lab until 2030-03-17; wrote {path}"
    config = load_config(path, {})
    address = parse_url(config.broker_url)
    assert (config.name, config.tenant) == ("pi-kitchen", "main")
    assert (address.host, address.port) == ("127.0.0.1", served.lab.settings.port)
    assert address.is_tls
    assert Path(address.cafile or "").read_text() == served.lab.ca.read_text()
    identity = served.identities.authenticate("pi-kitchen", address.password or "")
    assert identity is not None
    assert identity.expires_s == 1900000000.0
    for file in path.parent.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600, file
    assert path.parent.stat().st_mode & 0o777 == 0o700
    (row,) = served.audit.rows()
    assert (row.action, row.name, row.role, row.by) == ("enrol", "pi-kitchen", "device", "token")
    assert row.address == "127.0.0.1"
    texts = (served.audit._path.read_text(), *lines)
    for secret in (token, address.password or "-"):
        assert not any(secret in text for text in texts)


def test_the_name_of_a_token_without_one_is_that_of_the_host(
    served: Served, join_lab: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Pi Attic.local")
    assert join_lab(served.token(None))[0].startswith("pi-attic: enrolled")


def test_own_keys_of_the_configuration_stay(served: Served, join_lab: Join, tmp_path: Path) -> None:
    path = tmp_path / "device" / "agent.toml"
    path.parent.mkdir()
    path.write_text(
        '# mine\ndata = "mine.npz"\nname = "old"\nbroker_url = "mqtt://x"\n\n[power]\n'
        "compute_w = 2.5\n"
    )
    join_lab(served.token())
    config = load_config(path, {})
    assert (config.name, config.data, config.power.compute_w) == ("pi", "mine.npz", 2.5)
    assert path.read_text().startswith("# mine\n")


def test_to_join_again_keeps_the_identity_and_needs_no_token(
    served: Served, join_lab: Join, tmp_path: Path
) -> None:
    token = served.token()
    join_lab(token)
    before = load_config(tmp_path / "device" / "agent.toml", {})
    assert join_lab(token)[0] == "pi: keeps its identity at the lab lab; no token is used"
    assert load_config(tmp_path / "device" / "agent.toml", {}) == before
    assert actions(served) == [("enrol", "pi")]


@needs.localhost
def test_to_join_again_takes_the_new_address_of_the_lab(
    served: Served, join_lab: Join, tmp_path: Path
) -> None:
    join_lab(served.token())
    join_lab("unused-token", f"https://localhost:{served.port}")
    config = load_config(tmp_path / "device" / "agent.toml", {})
    address = parse_url(config.broker_url)
    assert (address.host, address.port) == ("localhost", served.lab.settings.port)
    assert config.lab_url == f"https://localhost:{served.port}"
    assert served.identities.authenticate("pi", address.password or "") is not None


def test_a_renamed_device_that_joins_again_takes_its_new_name(
    served: Served, join_lab: Join, tmp_path: Path
) -> None:
    join_lab(served.token())
    served.identities.rename("pi", "kitchen")
    assert join_lab("unused-token")[0].startswith("kitchen: keeps its identity")
    assert load_config(tmp_path / "device" / "agent.toml", {}).name == "kitchen"


def test_a_device_gets_a_task_key_that_a_new_name_keeps_and_a_new_enrolment_replaces(
    served: Served, join_lab: Join, tmp_path: Path
) -> None:
    path = tmp_path / "device" / "agent.toml"

    def keys(name: str) -> tuple[str | None, str | None]:
        identity = served.identities.get(name)
        assert identity is not None
        return load_config(path, {}).task_key, served.lab.task_key(identity)

    join_lab(served.token())
    first, expected = keys("pi")
    assert first is not None
    assert first == expected
    served.identities.rename("pi", "kitchen")
    assert keys("kitchen") == (first, first)
    path.write_text(path.read_text().replace(f'task_key = "{first}"', ""))  # an older enrolment
    join_lab("unused-token")
    assert keys("kitchen") == (first, first)
    join_lab(served.token("kitchen", replaces=True), is_new=True)
    second, expected = keys("kitchen")
    assert second == expected != first


def test_a_lab_without_a_secret_enrols_devices_without_a_key(
    served: Served, join_lab: Join, tmp_path: Path
) -> None:
    join_lab(served.token())
    secret = served.lab.signing_key.read_bytes()
    served.lab.signing_key.unlink()
    try:
        join_lab(served.token(replaces=True), is_new=True)
    finally:
        served.lab.signing_key.write_bytes(secret)
    assert load_config(tmp_path / "device" / "agent.toml", {}).task_key is None


def test_a_revoked_device_is_enrolled_again_by_a_new_token(served: Served, join_lab: Join) -> None:
    join_lab(served.token())
    served.identities.revoke("pi", now_s=served.now_s)
    assert join_lab(served.token())[0].startswith("pi: enrolled at the lab")


def test_an_operator_gets_a_file_with_the_address_of_the_broker(
    served: Served, join_lab: Join, tmp_path: Path
) -> None:
    (line,) = join_lab(served.token("alice", "operator"))
    path = tmp_path / "device" / "operator-alice.toml"
    assert line == f"alice: operator of the lab lab; {path} has the broker's address"
    assert "mqtts://operator_alice:" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_without_systemd_the_command_is_printed(served: Served, join_lab: Join) -> None:
    assert "there is no systemd service; start the agent with: " in join_lab(served.token())[-1]


class FakeSystemctl:
    """Keeps the commands; fails those that contain a word."""

    def __init__(self, fails: str = "-") -> None:
        self.fails, self.commands = fails, list[str]()

    def __call__(self, command: list[str]) -> "subprocess.CompletedProcess[str]":
        self.commands.append(" ".join(command))
        code = 1 if self.fails in command else 0
        return subprocess.CompletedProcess(command, code, "", "no such thing\n")


def test_the_service_is_started_and_the_lab_sees_the_device(
    served: Served, join_lab: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "has_systemd", lambda: True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(
        time, "sleep", lambda _: served.identities.saw("pi", at_s=served.now_s, state="online")
    )
    systemctl = FakeSystemctl()
    lines = join_lab(served.token(), unit=True, run=systemctl)
    assert lines[-1] == (
        "pi: the lab has seen this device; log: journalctl --user -u fairbed-agent"
    )
    assert systemctl.commands[1:] == [
        "systemctl --user daemon-reload",
        "systemctl --user enable fairbed-agent.service",
        "systemctl --user restart fairbed-agent.service",
        "loginctl enable-linger",
    ]
    unit = (tmp_path / "xdg" / "systemd" / "user" / "fairbed-agent.service").read_text()
    assert f"run --config {tmp_path / 'device' / 'agent.toml'}" in unit


def test_a_device_that_is_not_seen_is_a_problem(
    served: Served, join_lab: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "has_systemd", lambda: True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    with pytest.raises(LabProblem, match=r"^pi: must be seen by the lab within 0 s, got no sign"):
        join_lab(served.token(), unit=True, run=FakeSystemctl(), seen_s=0.0)


def test_a_service_that_does_not_start_leaves_the_command(
    served: Served, join_lab: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "has_systemd", lambda: True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    lines = join_lab(served.token(), unit=True, run=FakeSystemctl("restart"))
    assert lines[-2] == "systemctl --user restart fairbed-agent.service: no such thing"
    assert lines[-1].startswith("start the agent with: ")


# Bad input --------------------------------------------------------------------------------------


def problem(join_lab: Join, token: str, url: str | None = None, **more: object) -> str:
    """Join, which fails; return the line."""
    with pytest.raises(LabProblem) as caught:
        join_lab(token, url, **more)
    text = str(caught.value)
    assert "\n" not in text
    assert token not in text
    return text


def test_a_token_is_good_once(served: Served, join_lab: Join, tmp_path: Path) -> None:
    token = served.token()
    join_lab(token)
    other = Places(tmp_path / "other", None, None)
    assert problem(join_lab, token, places=other) == (
        "token: already used; make a new one on the lab's host with: fairbed enroll"
    )
    assert not other.config.exists()
    refused = served.audit.rows()[1]
    assert (refused.action, refused.address) == ("enrol-refused", "127.0.0.1")
    assert refused.detail.startswith("token: already used")


def test_a_token_expires(served: Served, join_lab: Join) -> None:
    token = served.token()
    served.now_s += 901.0
    assert problem(join_lab, token) == (
        "token: expired; make a new one on the lab's host with: fairbed enroll"
    )


def test_an_unknown_token_is_refused(join_lab: Join) -> None:
    assert problem(join_lab, "x" * 32) == (
        "token: not known to this lab; make a new one on the lab's host with: fairbed enroll"
    )


def test_a_name_that_is_taken_is_refused_and_the_token_stays(
    served: Served, join_lab: Join, tmp_path: Path
) -> None:
    join_lab(served.token())
    token, other = served.token(), Places(tmp_path / "other", None, None)
    assert problem(join_lab, token, places=other) == (
        "device name pi: taken; choose another, revoke it, or enrol it again with --replace"
    )
    served.identities.revoke("pi", now_s=served.now_s)
    join_lab(token, places=other)
    join_lab(served.token(replaces=True), places=Places(tmp_path / "third", None, None))


def test_a_token_for_another_name_is_refused(served: Served, join_lab: Join) -> None:
    assert problem(join_lab, served.token("pi"), name="other").startswith(
        "token: made for the name pi, got 'other'; make a new one"
    )


def test_wrong_addresses_are_named(served: Served, join_lab: Join, lab: Lab) -> None:
    closed = socket.create_server(("127.0.0.1", 0))
    free = closed.getsockname()[1]
    closed.close()
    token = served.token()
    assert problem(join_lab, token, f"https://127.0.0.1:{free}") == (
        f"https://127.0.0.1:{free}: nothing listens there; on the lab host: fairbed lab up, and "
        "check the port"
    )
    assert problem(join_lab, token, f"https://none.invalid:{free}").startswith(
        f"https://none.invalid:{free}: the name none.invalid must resolve to an address, got: "
    )
    with pytest.raises(ConfigError, match=r"^lab: must be https://HOST:PORT, got 'mqtts://x'"):
        lab_at("mqtts://x", lab.ca)


def test_a_port_without_tls_and_one_without_a_lab_are_named(join_lab: Join) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, start_blocking_portal() as portal:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            link, _ = listener.accept()
            with link:
                link.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                link.recv(1000)

        portal.start_task_soon(anyio.to_thread.run_sync, answer)
        assert problem(join_lab, "t" * 32, url).startswith(f"{url}: it does not speak TLS there (")


@pytest.fixture
def other_server(tmp_path: Path, lab: Lab) -> Callable[[Certified], int]:
    """Return a function that serves one TLS handshake with a certificate; it returns the port."""

    def serve(certified: Certified) -> int:
        pem = tmp_path / "server.pem"
        pem.write_bytes(certified.certificate + certified.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        listener = socket.create_server(("127.0.0.1", 0))

        def answer() -> None:
            with listener:
                link, _ = listener.accept()
                with link:
                    try:
                        context.wrap_socket(link, server_side=True).close()
                    except OSError:
                        return

        threading.Thread(target=answer, daemon=True).start()
        return int(listener.getsockname()[1])

    return serve


def test_a_certificate_of_another_name_another_ca_or_another_time_is_named(
    join_lab: Join, lab: Lab, other_server: Callable[[Certified], int]
) -> None:
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    authority = Certified(lab.ca.read_bytes(), lab.ca_key.read_bytes())
    port = other_server(sign_server(authority, ["lab.local"], now))
    assert problem(join_lab, "t" * 32, f"https://127.0.0.1:{port}") == (
        f"https://127.0.0.1:{port}: its certificate is not for the name 127.0.0.1; use an address "
        "of lab.toml, or add this one there (addresses) and restart the lab"
    )
    foreign = make_authority("other", now)
    port = other_server(sign_server(foreign, ["127.0.0.1"], now))
    assert problem(join_lab, "t" * 32, f"https://127.0.0.1:{port}") == (
        f"https://127.0.0.1:{port}: its certificate is of another CA: this is not the lab of this "
        "device, or the lab was made anew; run the line of fairbed enroll again"
    )


def test_the_agent_names_a_certificate_of_another_name_or_ca(
    lab: Lab, other_server: Callable[[Certified], int]
) -> None:
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    authority = Certified(lab.ca.read_bytes(), lab.ca_key.read_bytes())

    async def refusal(port: int) -> str:
        url = f"mqtts://pi:{'p' * 32}@127.0.0.1:{port}?cafile={lab.ca}"
        async with MqttTransport(url, "pi") as transport:
            with anyio.fail_after(20), pytest.raises(Refused) as caught:
                await anext(transport.events())
        return str(caught.value)

    line = anyio.run(refusal, other_server(sign_server(authority, ["lab.local"], now)))
    assert "IP address mismatch, certificate is not valid for '127.0.0.1'" in line
    assert line.endswith("; connect to a name of the broker's certificate")
    foreign = make_authority("other", now)
    line = anyio.run(refusal, other_server(sign_server(foreign, ["127.0.0.1"], now)))
    assert "certificate verify failed" in line
    assert "; add ?cafile=FILE to the address" in line


@pytest.mark.parametrize("code", [9, 10])
def test_the_agent_names_a_clock_before_or_after_the_certificate(code: int) -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_code = code
    advice = "set the clock of this machine, or renew the certificate"
    assert advice_for(error) == advice
    wrapped = RuntimeError(str(error))
    wrapped.__context__ = error  # as aiomqtt does
    assert advice_for(wrapped) == advice


def test_a_clock_before_the_certificate_is_named(lab: Lab) -> None:
    where = lab_at("https://lab.local:8884", lab.ca)
    for code, state in ((9, "not valid yet"), (10, "expired")):
        error = ssl.SSLCertVerificationError()
        error.verify_code = code
        text = device.connection_problem(error, where)
        today = time.strftime("%Y-%m-%d", time.gmtime())
        assert text == (
            f"its certificate is {state} on {today}, the date of this device; set the clock: sudo "
            "timedatectl set-ntp true"
        )


def test_a_clock_that_is_off_by_a_year_is_a_warning_and_no_obstacle(
    served: Served, join_lab: Join
) -> None:
    served.now_s += 365 * DAY_S
    assert join_lab(served.token())[1] == (
        "warning: the clock of this device is 365 days behind the lab's; set it: sudo timedatectl "
        "set-ntp true"
    )


def test_a_full_disk_costs_no_token(
    served: Served, join_lab: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    token = served.token()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        text = problem(join_lab, token)
    assert text == (
        f"{tmp_path / 'device' / '.space'}: must be writable, got: No space left on device; free "
        "some space or change the permissions, and run the same line again"
    )
    assert list((tmp_path / "device").iterdir()) == []
    assert join_lab(token)[0].startswith("pi: enrolled")


def test_a_malformed_token_is_not_quoted(
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FAIRBED_TOKEN", "two words")
    argv = ["join", "--lab", f"https://127.0.0.1:{served.port}", "--ca", str(served.lab.ca)]
    assert device_agent([*argv, "--folder", str(tmp_path), "--no-service"]) == 2
    assert capsys.readouterr().err == (
        "device-agent: FAIRBED_TOKEN: must be the token that fairbed enroll prints, got 9 "
        "characters of another form; copy the whole line\n"
    )


def test_the_token_is_read_from_the_input_too(
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("FAIRBED_TOKEN", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO(served.token() + "\n"))
    argv = ["join", "--lab", f"https://127.0.0.1:{served.port}", "--ca", str(served.lab.ca)]
    assert device_agent([*argv, "--folder", str(tmp_path / "d"), "--no-service"]) == 0
    assert capsys.readouterr().out.startswith("device-agent: pi: enrolled at the lab lab;")


# The server -------------------------------------------------------------------------------------


def test_versions_that_do_not_fit_are_named_and_the_token_stays(served: Served) -> None:
    token = served.token()
    status, reply = served.enrol(token, protocol=PROTOCOL_VERSION + 1, agent="9.9")
    assert status == 409
    assert "agent 9.9 has protocol 2, lab " in str(reply["problem"])
    assert str(reply["problem"]).endswith("upgrade the lab host: pip install 'fairbed==9.9'")
    assert served.enrol(token)[0] == 200


def test_a_revoked_device_changes_nothing_that_is_stored_or_shown(served: Served) -> None:
    _, reply = served.enrol(served.token(), agent="0.1.0")
    served.identities.revoke("pi", now_s=served.now_s)
    before = (served.identities.contacts(), served.audit.rows(), served.identities.all())
    asked = {"name": "pi", "password": reply["password"], "agent": "\x1b]0;title\x07"}
    served.now_s += 9.0
    status, standing = served.post("/renew", **asked)
    assert (status, standing["standing"]) == (200, "revoked")
    served.identities.saw("pi", at_s=served.now_s, agent="other", state="online")
    status, _ = served.enrol(str(reply["password"]), agent="other", name="pi")
    assert status == 403
    contacts, rows, identities = before
    assert served.identities.contacts() == contacts
    assert served.identities.all() == identities
    assert [row.action for row in served.audit.rows()] == [
        *(row.action for row in rows),
        "enrol-refused",  # a line of the lab, without a text of the device
    ]


def test_wrong_tokens_of_changing_addresses_have_a_limit_in_all(served: Served) -> None:
    service = server._Service(served.lab, served.identities, served.audit, lambda: served.now_s)
    request = EnrolRequest(token="a" * 32, host_name="pi", agent="1")
    for k in range(300):
        with pytest.raises(server._Refusal):
            service.enrol(request, f"10.0.{k}.1")
    served.audit.write_left_out(served.now_s)
    rows = served.audit.rows()
    assert len(rows) == REFUSED_PER_HOUR + 1
    assert rows[-1].detail.startswith("200 refused requests")


@pytest.mark.parametrize("standing", ["valid", "revoked", "expired", "renamed"])
def test_the_standing_of_an_identity(served: Served, standing: str) -> None:
    _, enrolled = served.enrol(served.token(identity_expires_s=served.now_s + DAY_S))
    match standing:
        case "revoked":
            served.identities.revoke("pi", now_s=served.now_s)
        case "expired":
            served.now_s += 2 * DAY_S
        case "renamed":
            served.identities.rename("pi", "kitchen")
    status, reply = served.post(
        "/renew", name="pi", password=enrolled["password"], agent="0.2.0", protocol=1
    )
    assert (status, reply["standing"]) == (200, standing)
    assert reply["name"] == ("kitchen" if standing == "renamed" else "pi")
    is_accepted = standing in ("valid", "renamed")
    agent = served.identities.contacts()[str(reply["name"])].agent
    assert agent == ("0.2.0" if is_accepted else "0.1.0")


def test_a_device_is_seen_when_the_broker_has_seen_it(served: Served) -> None:
    _, enrolled = served.enrol(served.token())
    given = {"name": "pi", "password": enrolled["password"], "agent": "0.1.0"}
    assert "is_seen" in served.post("/renew", **given)[1]
    assert served.post("/renew", **given)[1]["is_seen"] is False
    served.identities.saw("pi", at_s=served.now_s, state="online")
    assert served.post("/renew", **given)[1]["is_seen"] is True


def test_wrong_tokens_and_passwords_are_limited_and_audited(served: Served) -> None:
    token = served.token()
    for _ in range(WRONG_PER_MINUTE - 1):
        assert served.enrol("x" * 32)[0] == 403
    assert served.post("/renew", name="pi", password="y" * 32, agent="1")[0] == 403
    status, reply = served.enrol(token)
    assert (status, reply["problem"]) == (
        429,
        "more than 6 wrong tokens or passwords from 127.0.0.1; wait a minute",
    )
    assert len(served.audit.rows()) == WRONG_PER_MINUTE
    served.now_s += 61.0
    assert served.enrol(token)[0] == 200


def test_the_addresses_of_wrong_attempts_are_bounded() -> None:
    attempts = WrongAttempts(limit=1)
    for i in range(MAX_ADDRESSES + 1):
        attempts.add(str(i), 0.0)
    assert not attempts.is_blocked("0", 1.0)
    assert attempts.is_blocked("1", 1.0)
    assert not attempts.is_blocked("1", 61.0)


@pytest.mark.parametrize(
    "path",
    [
        "/../lab.toml",
        "/wheels/../ca.key",
        "/wheels/..%2fca.key",
        "/wheels/%2e%2e/lab.db",
        "/wheels//etc/passwd",
        "/wheels/link.whl",
        "/wheels/notes.txt",
        "/wheels/folder.whl",
        "/wheels",
        "/install/",
        "/install?x",
        "/",
        "/lab.db",
    ],
)
def test_no_path_reaches_another_file(served: Served, path: str) -> None:
    folder = served.lab.wheels
    (folder / "notes.txt").write_text("x")
    (folder / "folder.whl").mkdir(exist_ok=True)
    if not (folder / "link.whl").is_symlink():
        (folder / "link.whl").symlink_to(served.lab.ca_key)
    status, body = served.ask("GET", path)
    assert status == 404
    assert b"KEY" not in body


def test_wheels_are_listed_and_sent(served: Served) -> None:
    name = "demo-1.0+local-py3-none-any.whl"
    (served.lab.wheels / name).write_bytes(b"wheel" * 100_000)
    status, page = served.ask("GET", "/wheels/")
    assert (status, page.count(b"href")) == (200, 1)
    assert b'href="demo-1.0%2Blocal-py3-none-any.whl"' in page
    path = "/wheels/demo-1.0%2Blocal-py3-none-any.whl"
    assert served.ask("GET", path) == (200, b"wheel" * 100_000)
    assert served.ask("HEAD", path) == (200, b"")
    (served.lab.wheels / name).unlink()


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        (b'{"token": 1}', {}, 400),
        (b'{"token": "\xff\xfe"}', {}, 400),
        (b"[" * 4_000, {}, 400),
        (b"x" * 5000, {}, 413),
        (None, {"Content-Length": "-1"}, 413),
        (None, {"Content-Length": "1e3"}, 413),
        (None, {"Transfer-Encoding": "chunked"}, 413),
    ],
)
def test_malformed_requests_are_refused(
    served: Served, body: bytes | None, headers: dict[str, str], status: int
) -> None:
    assert served.ask("POST", "/enrol", body, headers)[0] == status


@pytest.mark.parametrize("method", ["PUT", "DELETE", "CONNECT"])
def test_other_methods_are_refused(served: Served, method: str) -> None:
    assert served.ask(method, "/enrol")[0] == 501


def test_idle_connections_neither_block_others_nor_last(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.3)
    idle = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(4)]
    assert served.ask("GET", "/install")[0] == 200
    for link in idle:
        link.settimeout(20)
        assert link.recv(1) == b""
        link.close()


def test_connections_of_a_server_that_ends_are_closed(lab: Lab, tmp_path: Path) -> None:
    with Identities(tmp_path / "lab.db") as identities, start_blocking_portal() as portal:
        serve = partial(serve_enrolment, lab, identities, Audit(tmp_path / "audit.jsonl"))
        future, _ = portal.start_task(serve)
        address = ("127.0.0.1", lab.settings.enrol_port)
        links = [socket.create_connection(address) for _ in range(server.MAX_PER_ADDRESS)]
        future.cancel()
        for link in links:
            link.settimeout(20)
            with suppress(ConnectionResetError):
                assert link.recv(1) == b""
            link.close()
    gc.collect()  # a socket that was left open is a warning, and so an error


def test_connections_of_one_address_are_limited(served: Served) -> None:
    idle = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(12)]
    for link in idle[server.MAX_PER_ADDRESS :]:
        link.settimeout(20)
        assert link.recv(1) == b""
    for link in idle:
        link.close()


# The script -------------------------------------------------------------------------------------


@needs.program("curl")
def test_the_line_of_curl_fetches_the_script_by_the_pinned_key(served: Served) -> None:
    pin = key_pin(served.lab.server.read_bytes())
    url = f"https://127.0.0.1:{served.port}/install"
    command = ["curl", "-fsSk", "--noproxy", "*", "--pinnedpubkey"]
    done = subprocess.run([*command, f"sha256//{pin}", url], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == install_script(served.lab, "127.0.0.1")
    foreign = make_authority("other", datetime(2026, 1, 1, tzinfo=timezone.utc)).certificate
    other = key_pin(foreign)
    wrong = subprocess.run([*command, f"sha256//{other}", url], capture_output=True, text=True)
    assert wrong.returncode == 90  # the public key does not match
    assert wrong.stdout == ""


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1;rm -rf /", "$(id)", "'", ""])
def test_a_foreign_host_does_not_get_into_the_script(served: Served, host: str) -> None:
    _, body = served.ask("GET", "/install", None, {"Host": host})
    assert body.decode() == install_script(served.lab, "127.0.0.1")
