"""The doctor of a device: the line of each problem, and what to do."""

import json
import re
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from fairbed.coordinator.task.catalogue import load_task
from fairbed.device_agent.config import AgentConfig, AllowedClient
from fairbed.device_agent.doctor import (
    Finding,
    client_findings,
    disk_finding,
    examine,
    limit_findings,
    machine_findings,
    memory_finding,
    model_findings,
    network_findings,
    report,
    sensor_findings,
    service_finding,
    standing_finding,
    version_finding,
)
from fairbed.device_agent.enrolment import clock_problem
from fairbed.device_agent.sensors import RealSensors
from fairbed.wire.artifact import encode_artifact
from fairbed.wire.enrolment import RenewReply
from fairbed.wire.messages import PROTOCOL_VERSION

GOOD = {
    "python": (3, 11),
    "machine": "aarch64",
    "pointer_bits": 64,
    "libc": ("glibc", "2.36"),
    "is_linux": True,
}


def lines(findings: list[Finding]) -> str:
    """Return the report."""
    written: list[str] = []
    report(findings, as_json=False, write=written.append)
    return "".join(written)


def test_a_good_machine_has_no_problem() -> None:
    assert {f.state for f in machine_findings(**GOOD)} == {"ok"}  # type: ignore[arg-type]  # of the test


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"machine": "armv7l", "pointer_bits": 32},
            "problem  processor     armv7l with a 32-bit system, for which onnxruntime has no "
            "package; install the 64-bit edition of the operating system\n",
        ),
        (
            {"machine": "aarch64", "pointer_bits": 32},
            "problem  processor     aarch64 with a 32-bit system, for which onnxruntime has no "
            "package; install the 64-bit edition of the operating system\n",
        ),
        (
            {"libc": ("", "")},
            "problem  libc          musl or another C library, for which onnxruntime has no "
            "package; use a system with glibc, such as Debian, Ubuntu or Fedora\n",
        ),
        (
            {"libc": ("glibc", "2.23")},
            "problem  libc          glibc 2.23; install a newer system: glibc 2.28\n",
        ),
        ({"python": (3, 9)}, "; install Python 3.10 or newer and join again\n"),
    ],
)
def test_a_machine_without_packages_is_named(change: dict[str, object], line: str) -> None:
    assert line in lines(list(machine_findings(**{**GOOD, **change})))  # type: ignore[arg-type]  # of the test


def test_memory_and_disk_have_three_states() -> None:
    assert [memory_finding(n << 20).state for n in (128, 300, 4096)] == ["problem", "warning", "ok"]
    states = [disk_finding(Path("/x"), n << 20).state for n in (50, 500, 5000)]
    assert states == ["problem", "warning", "ok"]


@pytest.mark.parametrize(
    ("own_s", "text"),
    [
        (0.0, None),
        (-365 * 86400.0, "the clock of this device is 365 days behind the lab's; set it"),
        (365 * 86400.0, "the clock of this device is 365 days ahead of the lab's; set it"),
        (7200.0, "the clock of this device is 2 hours ahead of the lab's; set it"),
    ],
)
def test_a_clock_that_is_off_is_named(own_s: float, text: str | None) -> None:
    problem = clock_problem(1.8e9, 1.8e9 + own_s)
    assert problem is None if text is None else (problem or "").startswith(text)


def test_a_lab_without_a_clock_says_nothing() -> None:
    assert clock_problem(None, 0.0) is None


def a_reply(**values: object) -> RenewReply:
    """Return a reply with these values, valid otherwise."""
    given = {"standing": "valid", "name": "pi", "lab": "home", "version": "1", **values}
    return msgspec.convert(given, RenewReply)


def test_the_standing_of_an_identity_says_what_to_do() -> None:
    revoked = standing_finding("pi", a_reply(standing="revoked", since_s=1795400000.0))
    assert lines([revoked]) == (
        "problem  identity      pi was revoked on 2026-11-23; on the lab host: fairbed enroll pi, "
        "and run its line on this device\n"
    )
    assert "pi expired" in lines([standing_finding("pi", a_reply(standing="expired"))])
    renamed = standing_finding("pi", a_reply(standing="renamed", name="kitchen"))
    assert renamed.state == "warning"
    assert "pi was renamed to kitchen; restart the agent" in lines([renamed])


def test_versions_that_do_not_fit_are_named_with_the_side_to_upgrade() -> None:
    assert version_finding("1", a_reply()).state == "ok"
    assert version_finding("2", a_reply()).state == "warning"
    newer_lab = version_finding("1", a_reply(version="2", protocol=PROTOCOL_VERSION + 1))
    assert newer_lab.state == "problem"
    assert "protocols 1 and 2 do not fit" in newer_lab.found
    assert newer_lab.what_to_do.startswith("run the line of fairbed enroll on this device")
    older_lab = version_finding("2", a_reply(protocol=PROTOCOL_VERSION - 1))
    assert older_lab.what_to_do == "upgrade the lab host: pip install 'fairbed==2'"


def test_a_machine_without_sensors_is_no_problem(tmp_path: Path) -> None:
    text = lines(list(sensor_findings(RealSensors(root=tmp_path))))
    assert text == "ok       sensors       no temperature, no clock, no throttling sensor\n"


def test_throttling_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "sys/devices/platform/soc/soc:firmware/get_throttled"
    path.parent.mkdir(parents=True)
    path.write_text("5")
    (found,) = sensor_findings(RealSensors(root=tmp_path))
    assert found.state == "warning"
    assert "throttled: throttled, under-voltage" in found.found


def test_a_kernel_without_memory_groups_cannot_limit(tmp_path: Path) -> None:
    (found,) = limit_findings(tmp_path)
    assert found.state == "warning"
    assert "cgroup_enable=memory" in found.what_to_do


@pytest.mark.parametrize(
    ("values", "state", "text"),
    [
        ({"ActiveState": "active", "UnitFileState": "enabled"}, "ok", ""),
        ({"ActiveState": "failed"}, "problem", "see journalctl -u fairbed-agent; then systemctl"),
        ({"ActiveState": "active", "UnitFileState": "disabled"}, "warning", "start it at boot"),
        (
            {"ActiveState": "active", "UnitFileState": "enabled", "NRestarts": "9"},
            "warning",
            "see journalctl",
        ),
    ],
)
def test_the_state_of_the_unit(values: dict[str, str], state: str, text: str) -> None:
    found = service_finding(values, "systemctl", is_user=False)
    assert found.state == state
    assert text in found.what_to_do


def test_a_device_without_an_identity_gets_one_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("fairbed.device_agent.enrolment.has_systemd", lambda: False)
    found = list(examine(None))
    engine = next(f for f in found if f.check == "engine")
    assert engine.found.endswith("gradients are correct")
    assert (found[-1].check, found[-1].state) == ("identity", "problem")
    written: list[str] = []
    assert report(found, as_json=True, write=written.append) == 1
    assert [row["check"] for row in json.loads(written[0])] == [f.check for f in found]


def test_the_artifact_of_the_self_check_is_that_of_the_coordinator() -> None:
    import fairbed.device_agent.engines as engines

    shipped = Path(engines.__file__).with_name("self_check.task").read_bytes()
    assert shipped == encode_artifact(load_task("softmax", (60,), 10))


def test_the_modules_that_the_owner_allows_are_looked_for() -> None:
    module = "tests.device_agent.softmax"
    there, absent = model_findings([module, "nowhere_at_all"])
    assert there.check == absent.check == "model"
    assert there.found.startswith(f"{module}, sha256 ")
    assert absent.state == "problem"
    assert absent.found.endswith("got none named 'nowhere_at_all'")
    assert absent.what_to_do.startswith("copy nowhere_at_all to this device")


@contextmanager
def broker_with(answer: bytes) -> Iterator[int]:
    """Yield the port of a broker that answers each CONNECT so, on a thread of its own."""

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while self.request.recv(4096).startswith(b"\x10"):
                self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield server.server_address[1]
        server.shutdown()
        serving.join()


def test_each_node_of_a_cluster_is_tried_and_one_that_serves_is_enough() -> None:
    """Issue #21: only the first node of the address was tried."""
    with broker_with(b"\x20\x02\x00\x00") as good, broker_with(b"\x20\x02\x00\x04") as refusing:
        with broker_with(b"") as dead:
            pass
        ports = ",".join(f"127.0.0.1:{port}" for port in (dead, good, refusing))
        config = AgentConfig(broker_url=f"mqtt://u:p@{ports}", name="pi")
        down, serves, refuses, lab = network_findings(config)
        alone = AgentConfig(
            broker_url=f"mqtt://u:p@127.0.0.1:{dead},127.0.0.1:{refusing}", name="pi"
        )
        states = [finding.state for finding in network_findings(alone)]
    assert lines([down]) == (
        f"warning  node 1        nothing listens on 127.0.0.1:{dead}; on the lab host: fairbed lab "
        "up\n"
    )
    assert serves.state == "ok"
    assert re.fullmatch(
        rf"127\.0\.0\.1:{good} answers after \d+ ms, the broker accepts pi", serves.found
    )
    assert (refuses.check, refuses.state) == ("node 3", "warning")
    assert f"127.0.0.1:{refusing}" in refuses.found
    assert "wrong user or password" in refuses.found
    assert lab.check == "lab"
    assert states == ["problem", "problem", "ok"]


def test_it_says_which_allowed_clients_can_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    folder = str(tmp_path)
    findings = client_findings(
        {
            "absent": AllowedClient(folder="/nowhere"),
            "good": AllowedClient(folder=folder),
            "no-data": AllowedClient(folder=folder, data="/nowhere"),
            "no-python": AllowedClient(folder=folder, python="/nowhere/python"),
            "pinned": AllowedClient(folder=folder, sha256="0" * 64),
        }
    )
    levels = [(finding.state, finding.found) for finding in findings]
    assert [state for state, _ in levels] == ["problem", "ok", "problem", "problem", "problem"]
    assert levels[1][1].startswith(f"good: {folder}, sha256 ")
    assert "/nowhere" in levels[0][1]
    assert "its data must exist" in levels[2][1]
    assert "must be an interpreter" in levels[3][1]
    assert "must have the pinned sha256" in levels[4][1]
    assert not list(client_findings({}))
