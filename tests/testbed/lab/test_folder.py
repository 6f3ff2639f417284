"""The folder of a lab: made once, private, found, and read strictly."""

import stat
from pathlib import Path

import pytest

from fairbed.testbed.errors import LabError
from fairbed.testbed.lab.folder import (
    LabSettings,
    find_lab,
    init_lab,
    open_lab,
    server_addresses,
    sign_if_changed,
    write_private,
)
from fairbed.testbed.lab.identities import Identities
from fairbed.wire.transport.address import parse_url
from tests.testbed.lab.labs import NOW_S, make_lab


def test_all_files_are_private_and_nothing_else_is_left(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    found = {str(path.relative_to(lab.folder)) for path in lab.folder.rglob("*")}
    assert found == {
        "lab.toml", "ca.pem", "ca.key", "server.pem", "server.key", "lab.db", "coordinator.json",
        "signing.key",
        "wheels", "broker",
    }  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == {"lab", "config"}
    for path in [lab.folder, *lab.folder.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_settings_are_read_back(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, "nats", addresses=("192.168.1.20", "fd00::1", "lab.local"))
    assert open_lab(lab.folder) == lab


def test_a_lab_is_never_made_over_another_or_over_files(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    before = lab.ca.read_bytes()
    with pytest.raises(LabError, match="got an existing lab"):
        init_lab(lab.folder, lab.settings, now_s=NOW_S, environment={"HOME": str(tmp_path)})
    assert lab.ca.read_bytes() == before
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").touch()
    with pytest.raises(LabError, match=r"got one with chapter\.tex"):
        init_lab(tmp_path / "thesis", lab.settings, now_s=NOW_S, environment={})


def test_the_first_lab_becomes_the_one_that_commands_find(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert find_lab(None, environment) == tmp_path / ".local/share/fairbed/lab"
    lab = make_lab(tmp_path)
    assert find_lab(None, environment) == lab.folder
    init_lab(tmp_path / "second", lab.settings, now_s=NOW_S, environment=environment)
    assert find_lab(None, environment) == lab.folder
    named = environment | {"FAIRBED_LAB": str(tmp_path / "second")}
    assert find_lab(None, named) == tmp_path / "second"
    assert find_lab(tmp_path / "third", named) == tmp_path / "third"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("version = 1", "version = 2"), "version must be 1, got 2; use the Fairbed"),
        (("version = 1", ""), "version must be 1, got None"),
        (("name = ", "nane = "), "Object contains unknown field `nane`"),
        (('name = "lab"', 'name = "My lab"'), "name must be 1 to 32 of a-z"),
        (('broker = "mosquitto"', 'broker = "amqtt"'), "Invalid enum value 'amqtt'"),
        (('broker = "mosquitto"', 'broker = "nats"'), "local_port must be set with mosquitto"),
        (("\nport = ", "\nport = 1"), "port must be 1 to 65535"),
        (('["127.0.0.1"]', '["127.0.0.1:80"]'), "addresses must be host names or IP addresses"),
        (('["127.0.0.1"]', "[]"), "addresses must name at least one"),
        (("version", "[version"), "must be a TOML file"),
    ],
)
def test_wrong_settings_give_one_line(
    tmp_path: Path, change: tuple[str, str], problem: str
) -> None:
    lab = make_lab(tmp_path)
    path = lab.folder / "lab.toml"
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change, 1))
    with pytest.raises(LabError) as raised:
        open_lab(lab.folder)
    assert problem in str(raised.value)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_a_folder_without_a_lab_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="make one with: fairbed lab init"):
        open_lab(tmp_path / "none")


def test_ports_must_differ() -> None:
    with pytest.raises(ValueError, match="port, enrol_port must differ"):
        LabSettings(broker="nats", port=8884, addresses=("a",))


def test_the_certificate_is_signed_again_for_new_addresses_only(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    before, key = lab.server.read_bytes(), lab.server_key.read_bytes()
    assert not sign_if_changed(lab, now_s=NOW_S)
    assert lab.server.read_bytes() == before
    text = (lab.folder / "lab.toml").read_text()
    (lab.folder / "lab.toml").write_text(text.replace('["127', '["lab.example.org", "127'))
    moved = open_lab(lab.folder)
    assert sign_if_changed(moved, now_s=NOW_S)
    assert moved.server.read_bytes() != before
    assert moved.server_key.read_bytes() == key
    assert "lab.example.org" in server_addresses(moved.settings)


def test_commands_on_this_host_have_credentials(tmp_path: Path) -> None:
    plain = make_lab(tmp_path)
    address = parse_url(plain.url("coordinator_main"))
    assert (address.host, address.port) == ("127.0.0.1", plain.settings.local_port)
    assert not address.is_tls
    assert address.password is not None
    with Identities(plain.database) as identities:
        users = {identity.user for identity in identities.all()}
    assert users == {"coordinator_main", "coordinator_lab", "operator_local"}
    with pytest.raises(LabError, match="must have the user root"):
        plain.url("root")
    (tmp_path / "n").mkdir()
    secure = make_lab(tmp_path / "n", "nats")
    address = parse_url(secure.url("operator_local"))
    assert (address.port, address.is_tls) == (secure.settings.port, True)
    assert address.cafile == str(secure.ca)


def test_a_folder_that_cannot_be_written_gives_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LabError, match="must be writable, got Not a directory"):
        write_private(tmp_path / "file" / "below", b"")
