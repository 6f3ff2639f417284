"""The commands of docs/flower.md, with the interpreter of these tests as the environment."""

import os
import sys
from pathlib import Path

import pytest

from fairbed.testbed.cli.main import main
from fairbed.testbed.flower.environment import environment_of
from fairbed.testbed.flower.reading import read_app
from tests.docs.pages import read_blocks, run_page

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[3] / "docs" / "flower.md"


def test_the_commands_of_the_page_run(
    flower_python: str,
    examples: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    made = environment_of(read_app(examples / "flower-numpy"))
    made.parent.mkdir(parents=True)
    made.symlink_to(Path(flower_python).parent.parent)
    commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = os.environ | {"PATH": commands, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    page = PAGE.read_text(encoding="utf-8")
    assert run_page(page, tmp_path, environ) == 2
    recorded = ["--all", "--out", str(tmp_path / "recorded")]
    assert main(["record", "--run", str(tmp_path / "runs" / "app"), *recorded]) == 2
    line = "must be a run that can be replayed, got one with a client or an app"
    assert line in capsys.readouterr().err
    skipped = [block for block in read_blocks(page) if block.mark.startswith("not run: ")]
    assert len(skipped) == 2
