"""The commands of the pages in docs/ that show how to do a task."""

import os
import sys
from pathlib import Path

import pytest

from tests.docs.pages import read_blocks, run_page

DOCS = Path(__file__).parent.parent.parent / "docs"

PAGES = (
    "tutorial",
    "analysis",
    "data-sets",
    "own-data",
    "lab",
    "own-device",
    "own-model",
    "own-loss",
    "own-client",
    "fine-tuning",
    "from-a-torch-script",
    "own-selector",
    "own-aggregator",
    "own-estimator",
    "own-local-training",
    "optimisers",
    "links",
    "from-logs",
    "long-runs",
    "steering",
    "many-runs",
    "mixed-fleets",
    "core-stability",
    "metrics",
    "python",
    "reproduction",
)


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment with the commands of this one and a cache of its own."""
    commands = str(Path(sys.executable).parent)
    cache = tmp_path_factory.mktemp("cache")
    return os.environ | {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(cache),
    }


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_run(name: str, environ: dict[str, str], tmp_path: Path) -> None:
    environ = environ | {"FAIRBED_LAB": str(tmp_path / "lab"), "XDG_CONFIG_HOME": str(tmp_path)}
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert run_page(page, tmp_path, environ) > 0


@pytest.mark.parametrize("name", PAGES)
def test_a_command_that_is_not_run_has_a_reason(name: str) -> None:
    blocks = read_blocks((DOCS / f"{name}.md").read_text(encoding="utf-8"))
    skipped = [block for block in blocks if block.mark.startswith("not run")]
    assert len(skipped) <= 2
    assert all(len(block.mark.removeprefix("not run: ")) > 10 for block in skipped)
