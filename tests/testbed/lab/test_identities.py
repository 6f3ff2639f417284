"""Identities, tokens and contacts of a lab."""

import multiprocessing
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest

from fairbed.testbed.errors import LabError
from fairbed.testbed.lab.identities import Identities, is_password_of
from fairbed.testbed.lab.service import Contacts
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import Packet
from tests.testbed.lab.labs import NOW_S


@pytest.fixture
def identities(tmp_path: Path) -> Iterator[Identities]:
    with Identities(tmp_path / "lab.db") as opened:
        yield opened


def test_the_file_is_private(tmp_path: Path, identities: Identities) -> None:
    identities.create("pi-1")
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_both_brokers_hashes_are_of_the_password_which_is_nowhere(
    tmp_path: Path, identities: Identities
) -> None:
    password = identities.create("pi-1", now_s=NOW_S)
    found = identities.get("pi-1")
    assert found is not None
    assert (found.user, found.tenant, found.created_s) == ("pi-1", "main", NOW_S)
    assert is_password_of(password, found.mosquitto_hash)
    assert not is_password_of(password + "x", found.mosquitto_hash)
    assert bcrypt.checkpw(password.encode(), found.nats_hash.encode())
    token = identities.new_token("pi-2", now_s=NOW_S, lifetime_s=60)
    identities.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert password.encode() not in stored
    assert token.encode() not in stored


@pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="needs mosquitto_passwd")
def test_the_hash_has_the_format_of_mosquitto_passwd(
    tmp_path: Path, identities: Identities
) -> None:
    path = tmp_path / "passwords"
    path.touch(mode=0o600)
    subprocess.run(["mosquitto_passwd", "-b", str(path), "user", "secret"], check=True)
    hashed = path.read_text().strip().removeprefix("user:")
    assert is_password_of("secret", hashed)
    assert not is_password_of("Secret", hashed)


def test_users_of_roles_cannot_be_confused_with_devices(identities: Identities) -> None:
    identities.create("alice", "operator", tenant="main")
    identities.create("alice")
    assert {identity.user for identity in identities.all()} == {"alice", "operator_alice"}
    operator = identities.get("alice", "operator")
    assert operator is not None
    assert operator.tenant == "+"
    with pytest.raises(LabError, match="device name: must be 1 to 32 of a-z"):
        identities.create("operator_alice")


def test_a_name_is_taken_until_it_is_revoked_or_expired(identities: Identities) -> None:
    first = identities.create("pi-1", now_s=NOW_S, expires_s=NOW_S + 10)
    with pytest.raises(LabError, match="device name pi-1: taken"):
        identities.create("pi-1", now_s=NOW_S + 9)
    second = identities.create("pi-1", now_s=NOW_S + 10)
    identities.revoke("pi-1", now_s=NOW_S + 11)
    third = identities.create("pi-1", now_s=NOW_S + 12)
    assert len({first, second, third}) == 3
    found = identities.get("pi-1")
    assert found is not None
    assert is_password_of(third, found.mosquitto_hash)
    assert found.is_accepted(NOW_S + 13)


def test_the_broker_accepts_neither_revoked_nor_expired(identities: Identities) -> None:
    identities.create("pi-1", now_s=NOW_S, expires_s=NOW_S + 10)
    identities.create("pi-2", now_s=NOW_S)
    identities.create("pi-3", now_s=NOW_S)
    identities.revoke("pi-2", now_s=NOW_S + 1)
    assert [one.name for one in identities.accepted(NOW_S + 9)] == ["pi-1", "pi-3"]
    assert [one.name for one in identities.accepted(NOW_S + 10)] == ["pi-3"]
    with pytest.raises(LabError, match="device pi-9: must be enrolled"):
        identities.revoke("pi-9", now_s=NOW_S)


def test_a_renamed_device_keeps_its_password_and_is_known_by_its_old_name(
    identities: Identities,
) -> None:
    password = identities.create("pi-1", now_s=NOW_S)
    identities.saw("pi-1", at_s=NOW_S, agent="0.1.0")
    identities.rename("pi-1", "kitchen")
    identities.rename("kitchen", "pantry")
    assert identities.earlier_names("pantry") == ["kitchen", "pi-1"]
    other = identities.create("pi-1", now_s=NOW_S)  # the old name is free again
    assert {one.name for one in identities.all()} == {"pantry", "pi-1"}
    assert identities.earlier_names("pantry") == ["kitchen"], "another device has the other one"
    assert identities.earlier_names("pi-1") == []
    for name in ("pi-1", "kitchen", "pantry"):
        found = identities.authenticate(name, password)
        assert found is not None
        assert found.name == "pantry"
    same = identities.authenticate("pi-1", other)
    assert same is not None
    assert same.name == "pi-1"
    assert identities.authenticate("pantry", other) is None
    assert identities.contacts()["pantry"].agent == "0.1.0"
    with pytest.raises(LabError, match="device name pi-1: taken"):
        identities.rename("pantry", "pi-1")
    with pytest.raises(LabError, match="device nobody: must be enrolled"):
        identities.rename("nobody", "somebody")


def test_a_device_is_offline_under_a_new_name_or_password_until_its_agent_comes_back(
    identities: Identities,
) -> None:
    identities.create("pi-1", now_s=NOW_S)
    identities.saw("pi-1", at_s=NOW_S, state="online")
    identities.rename("pi-1", "kitchen")
    identities.saw("pi-1", at_s=NOW_S + 1, state="online")  # from the link that is about to end
    assert {x.name: x.state for x in identities.contacts().values()} == {"kitchen": "offline"}
    identities.saw("kitchen", at_s=NOW_S + 2, state="online")
    identities.revoke("kitchen", now_s=NOW_S + 3)
    identities.create("kitchen", now_s=NOW_S + 4)
    assert identities.contacts()["kitchen"].state == "offline"
    identities.create("new", now_s=NOW_S)
    identities.rename("new", "hall")
    assert "hall" not in identities.contacts()  # not seen yet


def test_a_contact_after_a_change_of_identities_is_stored_at_once(identities: Identities) -> None:
    contacts = Contacts(identities, lambda: NOW_S)
    packet = Packet(topic=Topics().telemetry("pi-1"), payload=b"")
    identities.create("pi-1", now_s=NOW_S)
    contacts.on_packet(packet)
    contacts.store()
    contacts.on_packet(packet)
    was_urgent = [contacts.is_urgent]  # nothing new
    contacts.store()
    identities.rename("pi-1", "pi-2")
    identities.rename("pi-2", "pi-1")
    contacts.forget_states()
    contacts.on_packet(packet)
    was_urgent.append(contacts.is_urgent)
    assert was_urgent == [False, True]
    contacts.store()
    assert identities.contacts()["pi-1"].state == "online"


def test_renaming_back_leaves_one_name(identities: Identities) -> None:
    password = identities.create("a")
    identities.rename("a", "b")
    identities.rename("b", "a")
    for name in ("a", "b"):
        found = identities.authenticate(name, password)
        assert found is not None
        assert found.name == "a"


def test_a_token_is_good_for_one_use_one_name_and_its_time(identities: Identities) -> None:
    token = identities.new_token("pi-1", tenant="lab-b", now_s=NOW_S, lifetime_s=60)
    with pytest.raises(LabError, match=r"token: made for the name pi-1, got 'pi-2'; make a new"):
        identities.redeem(token, "pi-2", now_s=NOW_S)
    identity, password = identities.redeem(token, "pi-1", now_s=NOW_S + 59)
    assert (identity.name, identity.role, identity.tenant) == ("pi-1", "device", "lab-b")
    assert is_password_of(password, identity.mosquitto_hash)
    with pytest.raises(LabError, match="token: already used"):
        identities.redeem(token, "pi-1", now_s=NOW_S + 59)
    with pytest.raises(LabError, match="token: not known"):
        identities.redeem(token + "x", "pi-1", now_s=NOW_S)
    late = identities.new_token(None, now_s=NOW_S, lifetime_s=60)
    with pytest.raises(LabError, match="token: expired"):
        identities.redeem(late, "pi-3", now_s=NOW_S + 60)


def test_a_refused_redemption_does_not_use_the_token_up(identities: Identities) -> None:
    identities.create("pi-1", now_s=NOW_S)
    token = identities.new_token(None, now_s=NOW_S, lifetime_s=60)
    for name, problem in (("pi-1", "taken"), ("../etc", "must be 1 to 32")):
        with pytest.raises(LabError, match=problem):
            identities.redeem(token, name, now_s=NOW_S)
    assert identities.redeem(token, "pi-2", now_s=NOW_S)[0].name == "pi-2"


def test_a_token_may_replace_a_valid_identity_and_limit_the_new_one(identities: Identities) -> None:
    old = identities.create("pi-1", now_s=NOW_S)
    token = identities.new_token(
        "pi-1", now_s=NOW_S, lifetime_s=60, replaces=True, identity_expires_s=NOW_S + 86400
    )
    identity, new = identities.redeem(token, "pi-1", now_s=NOW_S)
    assert identity.expires_s == NOW_S + 86400
    assert identities.authenticate("pi-1", old) is None
    assert identities.authenticate("pi-1", new) is not None


def test_emulated_devices_come_and_go_with_their_run(identities: Identities) -> None:
    identities.create("pi-9", now_s=NOW_S)
    with pytest.raises(LabError, match="pi-9: taken"):
        identities.create_many(["pi-1", "pi-9"], tenant="main", run="r1", now_s=NOW_S)
    assert identities.get("pi-1") is None  # all or none
    identities.create_many(["pi-1", "pi-2"], tenant="main", run="r1", now_s=NOW_S)
    passwords = identities.create_many(["pi-1"], tenant="main", run="r2", now_s=NOW_S)
    assert identities.authenticate("pi-1", passwords["pi-1"]) is not None
    with pytest.raises(LabError, match="pi-1: taken"):
        identities.create_many(["pi-1"], tenant="other", run="r3", now_s=NOW_S)
    identities.remove_run("r1")
    assert [one.name for one in identities.all()] == ["pi-1", "pi-9"]
    identities.remove_run("r2")
    assert [one.name for one in identities.all()] == ["pi-9"]


def test_the_version_grows_with_changes_of_identities_only(tmp_path: Path) -> None:
    with Identities(tmp_path / "lab.db") as one, Identities(tmp_path / "lab.db") as other:
        seen = [one.version()]
        other.create("pi-1", now_s=NOW_S)
        seen.append(one.version())
        other.rename("pi-1", "pi-2")
        seen.append(one.version())
        one.revoke("pi-2", now_s=NOW_S)
        seen.append(one.version())
        assert seen == sorted(set(seen))
        other.saw("pi-2", at_s=NOW_S)
        other.new_token(None, now_s=NOW_S, lifetime_s=1)
        other.revoke("pi-2", now_s=NOW_S)
        assert one.version() == seen[-1]
        other.create_many(["pi-3"], tenant="main", run="r", now_s=NOW_S)
        other.remove_run("r")
        assert one.version() > seen[-1]


def test_contacts_keep_what_is_known(identities: Identities) -> None:
    identities.create("pi-1", now_s=NOW_S)
    identities.saw("pi-1", at_s=NOW_S, address="192.168.1.7", agent="0.1.0", state="online")
    identities.saw("pi-1", at_s=NOW_S + 5, state="offline")
    identities.saw("stranger", at_s=NOW_S)
    assert list(identities.contacts()) == ["pi-1"]
    contact = identities.contacts()["pi-1"]
    assert (contact.at_s, contact.address, contact.agent, contact.state) == (
        NOW_S + 5, "192.168.1.7", "0.1.0", "offline",
    )  # fmt: skip


def _redeem(path: str, token: str, name: str, results: "multiprocessing.Queue[str]") -> None:
    with Identities(Path(path)) as identities:
        try:
            identities.redeem(token, name, now_s=NOW_S)
            results.put("granted")
        except LabError as exc:
            results.put(str(exc))


def test_of_two_processes_one_redeems_a_token(tmp_path: Path) -> None:
    path = tmp_path / "lab.db"
    with Identities(path) as identities:
        token = identities.new_token(None, now_s=NOW_S, lifetime_s=60)
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[str] = context.Queue()
    children = [
        context.Process(target=_redeem, args=(str(path), token, name, results))
        for name in ("pi-1", "pi-2")
    ]
    for child in children:
        child.start()
    answers = sorted(results.get(timeout=60) for _ in children)
    for child in children:
        child.join()
    assert answers[0] == "granted"
    assert answers[1].startswith("token: already used")


def test_a_damaged_file_gives_one_line(tmp_path: Path) -> None:
    (tmp_path / "lab.db").write_bytes(b"not a database" * 999)
    with pytest.raises(LabError, match=r"restore a copy of the lab's folder"):
        Identities(tmp_path / "lab.db")


def test_a_missing_package_names_the_command(
    identities: Identities, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairbed.testbed.lab.identities.find_spec", lambda name: None)
    with pytest.raises(LabError, match=r"must be installed, got none; run: .*'fairbed\[lab\]'"):
        identities.create("pi-1")
