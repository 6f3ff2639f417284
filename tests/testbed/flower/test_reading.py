"""Apps on disk: components, configuration, versions, and what is no app."""

from pathlib import Path

import pytest

from fairbed.testbed.errors import UsageError
from fairbed.testbed.flower.reading import check_version, read_app, satisfies
from tests.testbed.flower.small_apps import PYPROJECT, write_app

BOTH = (
    "from flwr.app import x\napp = ServerApp()\nclient: ClientApp = flwr.ClientApp(client_fn=f)\n"
)


def error_of(path: Path, config: dict[str, object] | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        read_app(path, config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["numpy", "torch", "sklearn", "xgboost"])
def test_the_examples_are_apps(examples: Path, name: str) -> None:
    app = read_app(examples / f"flower-{name}")
    assert app.server == f"flower_{name}.server_app:app"
    assert app.client == f"flower_{name}.client_app:app"
    assert app.requirement == "flwr>=1.21,<2"
    assert "num-server-rounds" in app.config


def test_the_configuration_is_flat_and_can_be_changed(examples: Path) -> None:
    changes = {"params": {"max-depth": 2}, "num-server-rounds": 9, "params.eta": 1}
    app = read_app(examples / "flower-xgboost" / "pyproject.toml", changes)
    assert app.config["params.max-depth"] == 2
    assert app.config["num-server-rounds"] == 9
    assert app.config["params.eta"] == 1
    assert type(app.config["params.eta"]) is int, "as in Flower, which keeps the type that is given"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lr": 1.0}, "flower.config.lr: must be a key of the app's configuration"),
        ({"local-epochs": 1.5}, "flower.config.local-epochs: must be a whole number, got 1.5"),
        ({"local-epochs": True}, "flower.config.local-epochs: must be a whole number, got True"),
        ({"learning-rate": "fast"}, "flower.config.learning-rate: must be a number, got 'fast'"),
        ({"strategy": [1]}, "flower.config.strategy: must be a number, a text, true or false"),
    ],
)
def test_a_wrong_value_is_named(examples: Path, change: dict[str, object], says: str) -> None:
    assert says in error_of(examples / "flower-numpy", change)


def test_a_module_with_both_components_is_an_app(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BOTH)
    for path in (tmp_path / "mine.py", tmp_path):
        app = read_app(path)
        assert (app.folder, app.server, app.client) == (tmp_path, "mine:app", "mine:client")
        assert app.config == {}
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "other.py").write_text("app = ServerApp()\n")
    assert "must have one ServerApp, got 2 (mine.py:app, other.py:app)" in error_of(tmp_path)


def test_what_is_no_app_is_said_in_one_line(tmp_path: Path) -> None:
    assert "got no such file" in error_of(tmp_path / "none")
    assert "got neither a pyproject.toml with [tool.flwr.app] nor" in error_of(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (tmp_path / "client.py").write_text("import flwr as fl\nfl.client.start_client(client=c)\n")
    said = error_of(tmp_path)
    assert "got a script with start_client()" in said
    assert "app = ClientApp(client_fn=...)" in said
    (tmp_path / "client.py").write_text("app = ClientApp()\n")
    assert "must have a ServerApp and a ClientApp, got no ServerApp" in error_of(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project\n")
    assert "pyproject.toml: must be TOML" in error_of(tmp_path)


def test_a_folder_above_apps_names_them(tmp_path: Path) -> None:
    write_app(tmp_path / "a", name="one")
    assert "got a folder above an app (a)" in error_of_empty(tmp_path)
    write_app(tmp_path / "b", name="two")
    assert "got one above 2 apps (a, b)" in error_of_empty(tmp_path)


def error_of_empty(folder: Path) -> str:
    """Return the error of a folder whose apps make their components in functions."""
    for module in folder.glob("*/*/*_app.py"):
        module.write_text("")
    return error_of(folder)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('clientapp = "{name}.client_app:app"', "", "must have clientapp, got none"),
        ('"{name}.server_app:app"', '"{name}.server_app"', 'must be "package.module:attribute"'),
        ('"{name}.server_app:app"', '"{name}.gone:app"', "must name a module in"),
        ("[tool.flwr.app.components]", "[tool.flwr.app.other]", "got none"),
        ('serverapp = "', 'agentapp = "', "got an agentapp"),
    ],
)
def test_a_wrong_component_is_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    app = write_app(tmp_path / "app")
    assert old in PYPROJECT
    (app / "pyproject.toml").write_text(PYPROJECT.replace(old, new).format(name="small"))
    assert says in error_of(app)


def test_secure_aggregation_is_refused(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", client="from flwr.client.mod import secaggplus_mod\n")
    assert "got secaggplus_mod" in error_of(app)


@pytest.mark.parametrize(
    ("requirement", "version", "holds"),
    [
        ("flwr", "1.21.0", True),
        ("flwr[simulation]>=1.21,<2", "1.42.0", True),
        ("flwr[simulation] (>=1.21)", "1.20.1", False),
        ("flwr~=1.30", "1.42.0", True),
        ("flwr~=1.30.1", "1.31.0", False),
        ("flwr==1.30.*", "1.30.9", True),
        ("flwr==1.30", "1.30.0", True),
        ("flwr!=1.30.0", "1.30", False),
        ("flwr>1.29; python_version > '3.9'", "1.30", True),
        ("flwr<=1.29", "1.30.0rc1", False),
    ],
)
def test_versions_are_compared(requirement: str, version: str, holds: bool) -> None:
    assert satisfies(version, requirement) is holds


def test_a_version_out_of_range_is_refused(examples: Path) -> None:
    app = read_app(examples / "flower-numpy")
    assert check_version(app, "1.42.0") == check_version(app, "1.21.0") == ""
    assert "later than 1.42" in check_version(app, "1.43.0")
    for version, says in (
        ("1.20.9", "needs flwr 1.21 or later"),
        ("2.0.0", "the app needs flwr>="),
    ):
        with pytest.raises(UsageError, match=says):
            check_version(app, version)
