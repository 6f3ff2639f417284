"""The table of docs/flower.md: each line is that of the case in its row, without a run."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from fairbed.testbed.api.planning import plan_run
from fairbed.testbed.cli.main import main
from fairbed.testbed.errors import UsageError
from tests.testbed.flower.small_apps import PYPROJECT, write_app

PAGE = Path(__file__).parents[3] / "docs" / "flower.md"

EXPERIMENT = """
name = "app"
rounds = 2
[[fleet]]
count = 3
"""

CONFIG = """
[tool.flwr.app.config]
rounds = 3
"""


def table() -> dict[str, list[str]]:
    """Return the lines of each row of the page's table of what is refused."""
    text = PAGE.read_text(encoding="utf-8")
    rows = text.partition("| refused at the start | line |\n|---|---|\n")[2].partition("\n\n")[0]
    cells = [row.strip("| ").split(" | ") for row in rows.splitlines()]
    return {case: re.findall(r"`([^`]+)`", lines) for case, lines in cells}


class Place:
    """An app, an experiment and an interpreter that only claims to have flwr."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.app = write_app(folder / "app", client="")
        file = self.app / "pyproject.toml"
        file.write_text(PYPROJECT.format(name="small") + CONFIG, encoding="utf-8")
        self.file = folder / "app.toml"
        self.file.write_text(EXPERIMENT, encoding="utf-8")
        self.flwr: str | None = "1.42.0"

    def python(self) -> str:
        """Write the interpreter; return its path."""
        answer = json.dumps({"python": [3, 11, 1], "versions": {"flwr": self.flwr}})
        path = self.folder / "python"
        path.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    def run(self, *options: str, app: Path | None = None, python: str | None = None) -> str:
        """Return the line with which `fairbed run --flower` refuses."""
        sets = [f"flower.python={json.dumps(python or self.python())}", *options]
        sets = [word for one in sets for word in ("--set", one)]
        out = ["--out", str(self.folder / "run"), "--headless"]
        return self.fairbed("run", "--flower", str(app or self.app), str(self.file), *out, *sets)

    def fairbed(self, *words: str) -> str:
        """Return the last line of a command that is refused."""
        assert main(list(words)) == 2
        line = self._capsys.readouterr().err.splitlines()[-1]
        assert not (self.folder / "run").exists()
        return line

    def changed(self, old: str, new: str) -> str:
        """Return the line for an app whose `pyproject.toml` is another one."""
        file = self.app / "pyproject.toml"
        file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        return self.run()

    def module(self, text: str) -> str:
        """Return the line for a folder with a module alone."""
        folder = self.folder / "module"
        folder.mkdir()
        (folder / "client.py").write_text(text, encoding="utf-8")
        return self.run(app=folder)


def script(place: Place) -> Iterator[str]:
    yield place.module("import flwr as fl\nfl.client.start_client(client=c)\n")


def no_app(place: Place) -> Iterator[str]:
    yield place.run(app=place.folder / "gone")
    yield place.module("")


def two_apps(place: Place) -> Iterator[str]:
    for name in "ab":
        other = write_app(place.folder / "apps" / name)
        for module in other.glob("*/*_app.py"):
            module.write_text("", encoding="utf-8")
    yield place.run(app=place.folder / "apps")
    yield place.module("a = ServerApp()\nb = ServerApp()\nc = ClientApp()\n")


def missing(place: Place) -> Iterator[str]:
    yield place.changed("clientapp =", "other =")
    yield place.changed('other = "small.client_app', 'clientapp = "small.gone')


def secure(place: Place) -> Iterator[str]:
    text = "from flwr.client.mod import secaggplus_mod\n"
    (place.app / "small" / "client_app.py").write_text(text, encoding="utf-8")
    yield place.run()


def agents(place: Place) -> Iterator[str]:
    yield place.changed("clientapp =", "agentapp =")


def interpreters(place: Place) -> Iterator[str]:
    out = ["--out", str(place.folder / "run"), "--headless"]
    yield place.fairbed("run", "--flower", str(place.app), str(place.file), *out)
    place.flwr = None
    yield place.run()


def versions(place: Place) -> Iterator[str]:
    place.flwr = "2.0.0"
    yield place.changed('"flwr>=1.21"', '"flwr>=1.21,<2"')
    place.flwr = "1.20.0"
    yield place.run()


def configuration(place: Place) -> Iterator[str]:
    yield place.run("flower.config.x=1")
    yield place.run("flower.config.rounds=1.5")


def rounds(place: Place) -> Iterator[str]:
    sync = place.run('round.late="merge"')
    assert place.run('round.mode="async"', "round.buffer=1", "round.concurrency=1") == sync
    yield sync


def own_models(place: Place) -> Iterator[str]:
    yield place.run('personalisation.method="ditto"')
    yield place.run("privacy.clip=1.0", "privacy.noise_multiplier=1.0")


def audit(place: Place) -> Iterator[str]:
    yield place.run("selection.audit=0.1")


def losses(place: Place) -> Iterator[str]:
    policy = ('selection.policy="power-of-choice"', 'selection.variant="pow-d"')
    yield place.run(*policy, "selection.candidates=3", "selection.per_round=2")


def too_many(place: Place) -> Iterator[str]:
    yield place.run('selection.policy="uniform"')


def policy(place: Place) -> Iterator[str]:
    yield place.fairbed("run", str(place.file), "--headless", "--set", 'selection.policy="app"')


def inside(place: Place) -> Iterator[str]:
    out = ["--out", str(place.app / "results"), "--headless"]
    python = f"flower.python={json.dumps(place.python())}"
    words = ["--flower", str(place.app), str(place.file), *out, "--set", python]
    yield place.fairbed("run", *words)


def containers(place: Place) -> Iterator[str]:
    yield place.run('emulation.backend="container"')


def cluster(place: Place) -> Iterator[str]:
    with pytest.raises(UsageError) as refused:
        plan_run(named(place), hosts=cast(Any, object()))
    yield str(refused.value)


def named(place: Place) -> Path:
    """Return an experiment file that names the app."""
    flower = f"app = {json.dumps(str(place.app))}\npython = {json.dumps(place.python())}\n"
    place.file.write_text(f"{EXPERIMENT}[flower]\n{flower}", encoding="utf-8")
    return place.file


def replay(place: Place) -> Iterator[str]:
    out = str(place.folder / "run")
    yield place.fairbed("replay", str(named(place)), "--out", out)
    yield place.fairbed("compare", "--live-replay", str(named(place)), "--out", out)


def grid(place: Place) -> Iterator[str]:
    file = place.folder / "grid.toml"
    arms = '[[arm]]\nname = "a"\n[[arm]]\nname = "b"\nset = { "selection.beta" = 0.1 }\n'
    body = EXPERIMENT.replace('name = "app"\n', "").replace("[[fleet]]", "[[experiment.fleet]]")
    app = f"[experiment.flower]\napp = {json.dumps(str(place.app))}\n"
    for fleet in ("replay", "run"):
        text = f'seeds = 2\nfleet = "{fleet}"\n{arms}[experiment]\n{body}{app}'
        file.write_text(text, encoding="utf-8")
        line = place.fairbed("compare", str(file), "--out", str(place.folder / "run"))
    yield line


CASES: dict[str, Callable[[Place], Iterator[str]]] = dict(
    zip(
        table(),
        (
            *(script, no_app, two_apps, missing, secure, agents, interpreters, versions),
            *(configuration, rounds, own_models, audit, losses, too_many, policy, inside),
            *(containers, cluster, replay, grid),
        ),
        strict=True,
    )
)


@pytest.mark.parametrize("case", CASES)
def test_a_row_of_the_page_has_the_lines_of_its_case(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # no environment was made there
    lines, found = table()[case], list(CASES[case](Place(tmp_path, capsys)))
    assert len(found) == len(lines)
    for line, message in zip(lines, found, strict=True):
        assert line in message
