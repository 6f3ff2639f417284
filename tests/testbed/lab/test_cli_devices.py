"""`fairbed enroll` and `fairbed devices` with a lab that is down, and without a lab."""

import json
import re
import time
from pathlib import Path

import pytest

from fairbed.testbed.cli.main import main
from fairbed.testbed.lab.audit import Audit
from fairbed.testbed.lab.certificates import key_pin
from fairbed.testbed.lab.cli_devices import version_problem
from fairbed.testbed.lab.folder import Lab
from fairbed.testbed.lab.identities import Identities
from tests.testbed.lab.labs import make_lab

DAY_S = 86400.0


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    made = make_lab(tmp_path)
    monkeypatch.setenv("FAIRBED_LAB", str(made.folder))
    return made


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a command."""
    code = main(arguments)
    found = capsys.readouterr()
    return code, found.out, found.err


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command, which is bad usage; return its line."""
    code, out, error = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert error.count("\n") == 1
    return error.removeprefix("fairbed: ").rstrip("\n")


def token_of(line: str) -> str:
    """Return the token in a line."""
    found = re.search(r"echo FAIRBED_TOKEN=([^;\s]+);", line)
    assert found is not None
    return found[1]


def test_one_line_has_the_pin_of_the_key_and_a_token_that_works_once(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = run(capsys, "enroll", "pi-kitchen")
    pin, port = key_pin(lab.server.read_bytes()), lab.settings.enrol_port
    token = token_of(out.rstrip("\n"))
    assert code == 0
    assert out == (
        f"{{ echo FAIRBED_TOKEN={token}; curl -fsSk --pinnedpubkey 'sha256//{pin}' "
        f"https://127.0.0.1:{port}/install || echo 'echo \"fairbed: no script of the lab lab at "
        f"https://127.0.0.1:{port}/install, see the line of curl above; on the lab host run "
        "fairbed lab status, and use a new line of fairbed enroll\" >&2; exit 1'; } | sh\n"
    )
    assert error == (
        "the line is good once, for 15 minutes; paste it into a shell on pi-kitchen (with sudo "
        "before sh at its end for a service of the system)\n"
        "warning: the lab lab is down; start it: fairbed lab up\n"
    )
    with Identities(lab.database) as identities:
        identity, _ = identities.redeem(token, None, now_s=time.time())
        assert (identity.name, identity.expires_s) == ("pi-kitchen", None)
    (row,) = Audit(lab.audit).rows()
    assert (row.action, row.name, row.detail) == ("token", "pi-kitchen", "15 minutes")
    assert token not in lab.audit.read_text()


def test_a_file_of_names_makes_a_line_for_each(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("# my boards\npi-1\n\npi-2  # attic\n")
    _, out, _ = run(capsys, "enroll", "pi-0", "--all", str(names))
    lines = out.splitlines()
    assert lines[::2] == ["# pi-0", "# pi-1", "# pi-2"]
    assert len({token_of(line) for line in lines[1::2]}) == 3


def test_json_has_role_and_end_of_each_token(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(
        capsys,
        "enroll",
        "alice",
        "--role",
        "operator",
        "--minutes",
        "5",
        "--expires",
        "30",
        "--json",
    )
    (row,) = json.loads(out)
    assert (row["name"], row["role"]) == ("alice", "operator")
    with Identities(lab.database) as identities:
        identity, _ = identities.redeem(token_of(row["line"]), None, now_s=time.time())
    assert identity.expires_s is not None
    assert identity.expires_s == pytest.approx(time.time() + 30 * DAY_S, abs=60.0)


def test_without_a_name_the_device_chooses(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "enroll")
    with Identities(lab.database) as identities:
        token = token_of(out.rstrip("\n"))
        identity, _ = identities.redeem(token, None, host_name="pi-7", now_s=time.time())
    assert identity.name == "pi-7"


def test_qr_prints_the_line_as_a_code(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "enroll", "pi-1", "--qr")
    assert len(out.splitlines()) > 20


def test_an_upgrade_needs_no_token(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "enroll", "--upgrade")
    assert out.endswith("exit 1'; } | sh\n")
    assert "TOKEN" not in out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["Pi"], "name: must be 1 to 32 of a-z, 0-9 and hyphen, got 'Pi'"),
        (["pi", "pi"], "name: must be given once, got pi 2 times"),
        (["pi", "--minutes", "0"], "--minutes: must be above 0, at most 10080, got 0"),
        (["pi", "--minutes", "nan"], "--minutes: must be above 0, at most 10080, got nan"),
        (["pi", "--expires", "-1"], "--expires: must be above 0 and at most 3650 days, got -1"),
        (["pi", "--tenant", "A/+"], "--tenant: must be 1 to 32 of a-z, 0-9 and hyphen, got 'A/+'"),
        (
            ["pi", "--upgrade"],
            "--upgrade: must have no names, got some; the line is the same for all",
        ),
        (["--all", "none.txt"], "none.txt: there is no such file; write one with one name a line"),
        (
            ["pi", "--address", "x.y"],
            "--address: must be in the lab's certificate, got 'x.y'; it has ",
        ),
    ],
)
def test_bad_usage_is_one_line(
    lab: Lab, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    assert refused(capsys, "enroll", *arguments).startswith(line)
    assert Audit(lab.audit).rows() == []


def test_a_name_that_is_taken_needs_replace(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    with Identities(lab.database) as identities:
        identities.create("pi-1")
        assert refused(capsys, "enroll", "pi-0", "pi-1") == (
            "pi-1: taken by an identity of this lab; choose another name, or give the name to a "
            "new device with --replace; a line that upgrades an enrolled device: fairbed enroll "
            "--upgrade"
        )
        _, out, _ = run(capsys, "enroll", "pi-1", "--replace")
        identities.redeem(token_of(out.rstrip("\n")), None, now_s=time.time())


def test_without_a_lab_a_live_run_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAIRBED_LAB", str(tmp_path / "none"))
    line = refused(capsys, "enroll", "pi-1", "--runs", str(tmp_path))
    assert line.endswith("; or make a lab for devices that serve every run: fairbed lab init")
    assert refused(capsys, "enroll", "a", "b", "--runs", str(tmp_path)).startswith(
        "enroll: needs one NAME for a live run; or make a lab"
    )


# Devices ------------------------------------------------------------------------------------------


def test_the_list_names_states_versions_and_dates(
    lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairbed.testbed.lab.cli_devices.running_pid", lambda lab: 1)
    monkeypatch.setattr("fairbed.testbed.lab.cli_devices.agent_version", lambda: "1.0")
    with Identities(lab.database) as identities:
        now = 1_770_000_000.0
        for name, expires_s in (
            ("gone", None),
            ("new", None),
            ("off", None),
            ("old", now + DAY_S),
            ("on", None),
            ("proto", None),
        ):
            identities.create(name, now_s=now, expires_s=expires_s)
        identities.create("alice", "operator", now_s=now)
        identities.create("sim", now_s=now, run="r1")
        identities.revoke("gone", now_s=now)
        identities.saw("on", at_s=now + 60, agent="1.0", state="online", address="10.0.0.7")
        identities.saw("off", at_s=now + 60, agent="0.9", state="offline")
        identities.saw("proto", at_s=now, agent="protocol 2", state="online")
    code, out, _ = run(capsys, "devices")
    assert code == 0
    upgrade = "run the line of this command on the device: fairbed enroll --upgrade"
    assert out.splitlines() == [
        "NAME              STATE    LAST CONTACT         AGENT       ENROLLED    EXPIRES",
        "gone              revoked  -                    -           2026-02-02  never",
        "new               new      -                    -           2026-02-02  never",
        "off               offline  2026-02-02 02:41:00  0.9         2026-02-02  never",
        "old               expired  -                    -           2026-02-02  2026-02-03",
        "on                online   2026-02-02 02:41:00  1.0         2026-02-02  never",
        "proto             online   2026-02-02 02:40:00  protocol 2  2026-02-02  never",
        "sim (emulated)    new      -                    -           2026-02-02  never",
        "alice (operator)  -        -                    -           2026-02-02  never",
        f"off: agent 0.9, this host 1.0; if it misbehaves, {upgrade}",
        f"proto: its agent has protocol 2, which this host (1.0) cannot read; {upgrade}",
    ]
    rows = {row["name"]: row for row in json.loads(run(capsys, "devices", "--json")[1])}
    assert rows["on"]["address"] == "10.0.0.7"
    assert rows["sim"]["emulated_by"] == "r1"
    assert rows["off"]["problem"] is not None
    assert rows == {
        row["name"]: row for row in json.loads(run(capsys, "devices", "list", "--json")[1])
    }


def test_a_lab_that_is_down_does_not_know_who_is_online(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    with Identities(lab.database) as identities:
        identities.create("on")
        identities.saw("on", at_s=time.time(), state="online")
    out = run(capsys, "devices")[1].splitlines()
    assert out[1].split()[:2] == ["on", "unknown"]
    assert out[2] == "the lab lab is down; start it with: fairbed lab up"


def test_an_empty_lab_says_how_to_begin(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "devices")[1] == (
        "no devices in the lab lab; enrol one with: fairbed enroll NAME\n"
    )


def test_rename_and_revoke_are_audited(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    with Identities(lab.database) as identities:
        identities.create("pi-1")
        identities.create("alice", "viewer")
        assert run(capsys, "devices", "rename", "pi-1", "attic")[0] == 0
        assert identities.get("pi-1") is None
        code, out, _ = run(capsys, "devices", "revoke", "attic")
        assert (code, out) == (0, "attic: revoked; the lab is down, and refuses it when it is up\n")
        assert run(capsys, "devices", "revoke", "alice", "--role", "viewer")[0] == 0
        assert not [
            one for one in identities.accepted(time.time()) if one.name in ("attic", "alice")
        ]
    rows = [(row.action, row.name, row.role, row.detail) for row in Audit(lab.audit).rows()]
    assert rows == [
        ("rename", "attic", "device", "was pi-1"),
        ("revoke", "attic", "device", ""),
        ("revoke", "alice", "viewer", ""),
    ]
    assert all(row.by for row in Audit(lab.audit).rows())


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["revoke", "none"], "device none: must be enrolled, got none of this name"),
        (["rename", "none", "x"], "device none: must be enrolled, got none of this name"),
        (["rename", "pi-1", "pi-2"], "device name pi-2: taken; choose another"),
        (["rename", "pi-1", "Pi"], "device name: must be 1 to 32 of a-z, 0-9 and hyphen"),
    ],
)
def test_a_device_that_is_not_there_changes_nothing(
    lab: Lab, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    with Identities(lab.database) as identities:
        for name in ("pi-1", "pi-2"):
            identities.create(name)
    assert refused(capsys, "devices", *arguments).startswith(line)
    assert Audit(lab.audit).rows() == []


def test_a_version_that_fits_has_no_problem() -> None:
    assert version_problem("pi", "1.0", "1.0") is None
    assert version_problem("pi", None, "1.0") is None
