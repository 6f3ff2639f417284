"""The list of branches that no test reaches: its rows, and how the tool finds branches."""

import json
import re
import runpy
from pathlib import Path

import pytest

from tools.uncovered_branches import ROOT, Branch, listed, missed, pure_files, pytest_arguments

MODULE = """
def jump(x):
    if x:
        return 1
    return 2

def idle():
    return 3

def handler(text):
    try:
        return int(text)
    except ValueError:
        return 0

jump(1)
handler("1")
"""


def test_a_missed_jump_a_handler_and_an_idle_function_are_found(tmp_path: Path) -> None:
    coverage = pytest.importorskip("coverage")
    path, report = tmp_path / "module.py", tmp_path / "report.json"
    path.write_text(MODULE)
    measured = coverage.Coverage(
        data_file=None, config_file=False, branch=True, include=[str(path)]
    )
    with measured.collect():
        runpy.run_path(str(path))
    measured.json_report(outfile=str(report))
    assert list(missed(json.loads(report.read_text()), tmp_path)) == [
        Branch("module.py", "jump", "`if x:` to `return 2`"),
        Branch("module.py", "idle", "never runs"),
        Branch("module.py", "handler", "`except ValueError:` never runs"),
    ]


def test_every_row_has_a_reason_and_lines_of_its_file() -> None:
    reasons = listed()
    assert reasons
    for branch, reason in reasons.items():
        lines = {line.strip() for line in (ROOT / branch.file).read_text().splitlines()}
        assert set(re.findall("`([^`]+)`", branch.text)) <= lines
        assert reason


def test_the_files_are_those_of_the_contract() -> None:
    files = pure_files()
    assert {"wire/codec.py", "wire/transport/protocol/packets.py", "coordinator/tui/view.py"} < {
        *files
    }
    assert not {"wire/transport/client.py", "profiles/load.py", "coordinator/tui/app.py"} & {*files}
    assert all(
        (ROOT / name).exists() for name in pytest_arguments(files) if not name.startswith("--")
    )
