"""The code of docs/python.md, block after block in one program."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandas", reason="the page reads tables with pandas")

from fairbed.testbed.api.register import GROUPS
from fairbed.wire import plugins
from tests.docs.pages import read_blocks

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = [block for block in read_blocks(PAGE) if block.kind == "python"]
    try:
        for block in blocks:
            exec(compile(block.text, f"docs/python.md:{block.line}", "exec"), names)
        assert names["own"].experiment.data.dataset == "brightest"
    finally:
        plugins._registered.clear()
    assert len(names["rounds"]) == 20
    assert names["uniform"].experiment.selection.policy == "uniform"
    assert {path.name for path in tmp_path.iterdir()} >= {
        "policies.pdf",
        "digits.html",
        "digits-csv",
        "comparisons",
    }
    assert "policy-uniform" in capsys.readouterr().out


def test_the_page_names_every_exported_name_and_every_kind() -> None:
    import fairbed

    for name in (*fairbed._MODULES, *GROUPS):
        assert f"`{name}" in PAGE or f'`"{name}"`' in PAGE, name
