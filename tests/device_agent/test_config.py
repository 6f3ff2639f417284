"""Configuration of an agent, and its error messages."""

from pathlib import Path

import pytest

from fairbed.device_agent.config import (
    AgentConfig,
    AllowedClient,
    allowed_clients,
    load_config,
    with_password,
)
from fairbed.device_agent.errors import ConfigError

FLAGS: dict[str, object] = {"broker_url": "mqtt://host", "name": "pi-07"}


def test_flags_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text('broker_url = "mqtt://a"\nname = "a"\n[timeouts]\nhello_s = 9.0\n')
    config = load_config(path, {"name": "b"})
    assert (config.broker_url, config.name, config.timeouts.hello_s) == ("mqtt://a", "b", 9.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "a"', "broker_url is missing; give --broker URL"),
        ('broker_url = "mqtt://a"', "name is missing; give --name NAME"),
        ('broker_url = "mqtt://a"\nname = "A B"', "name must be 1 to 32 of a-z, 0-9 and hyphen"),
        (
            'broker_url = "x"\nname = "a"\nbroker = 1',
            "broker: unknown key; did you mean broker_url",
        ),
        (
            'broker = "mqtt://a"\nname = "a"',
            r"broker: unknown key; did you mean broker_url\? valid",
        ),
        (
            'broker_url = "x"\nname = "a"\ntimeouts.helo_s = 1',
            r"timeouts\.helo_s: unknown key; did you mean timeouts\.hello_s\? valid keys are hello",
        ),
        ('broker_url = "x"\nname = "a"\nonce = 3', "once: must be true or false, got 3"),
        (
            'broker_url = "x"\nname = "a"\ntimeouts.hello_s = -1',
            "timeouts.hello_s: must be a number > 0.0",
        ),
        ('broker_url = "x"\nname = "a"\ntimeouts.hi = 1', "valid keys are hello_s, refused_s"),
        ("name = ", "must be a readable TOML file"),
        (
            'broker_url = "x"\nname = "a"\n[clients.mine]\npyton = "x"\nfolder = "y"',
            r"clients.NAME.pyton: unknown key; did you mean clients.NAME.python\? valid",
        ),
        ('broker_url = "x"\nname = "a"\nclients.A.folder = "y"', "clients"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(path, {})
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_flags_allow_clients() -> None:
    found = allowed_clients(["mine=/code", "other-one=/x,y,/bin/python"])
    assert found == {
        "mine": {"folder": "/code"},
        "other-one": {"folder": "/x", "python": "y,/bin/python"},
    }
    config = load_config(None, FLAGS | {"clients": found})
    assert config.clients["mine"] == AllowedClient(folder="/code")
    assert config.clients["other-one"].python == "y,/bin/python"


@pytest.mark.parametrize("flag", ["mine", "mine=", "=/code", "My=/code"])
def test_a_wrong_flag_for_a_client_is_one_line(flag: str) -> None:
    with pytest.raises(ConfigError, match="--allow-client: must be NAME=FOLDER or NAME=FOLDER,PY"):
        allowed_clients([flag])


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a readable TOML file, got: No such file"):
        load_config(tmp_path / "none.toml", {})


def test_each_tenant_and_name_has_its_own_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_config(None, FLAGS).cache_path == tmp_path / "fairbed/agent/main/pi-07"
    assert load_config(None, FLAGS | {"cache_folder": "/x"}).cache_path == Path("/x")


@pytest.mark.parametrize(
    ("url", "filled"),
    [
        ("mqtt://me@host:1883", "mqtt://me:p%40ss@host:1883"),
        ("mqtts://me:own@host?cafile=c", "mqtts://me:own@host?cafile=c"),
    ],
)
def test_the_password_comes_from_the_environment_unless_the_url_has_one(
    url: str, filled: str
) -> None:
    assert with_password(AgentConfig(broker_url=url, name="a"), "p@ss").broker_url == filled


def test_a_password_needs_a_user() -> None:
    with pytest.raises(ConfigError, match="needs a user for the password"):
        with_password(AgentConfig(broker_url="mqtt://host", name="a"), "secret")
